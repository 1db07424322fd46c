"""How `nmt decode` writes translations, and what it says of its speed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from nmt_cli.decoding.translator import Translation

_FORMATS = ("text", "tsv", "jsonl")


def check_form(form: str, *, nbest: int, next_words: int | None, word_scores: bool, alignments: bool) -> None:
    """Raise UsageError where the format does not exist or has no room for what is wanted."""
    if form not in _FORMATS:
        raise UsageError(
            f"there is no format called {form!r}", where="--format", hint=f"take one of: {', '.join(_FORMATS)}"
        )
    if form != "text":
        return
    if nbest > 1:
        raise UsageError(
            f"--format text has one translation a line, not {nbest}",
            where="--nbest",
            hint="add --format tsv or --format jsonl",
        )
    wanted = {"--next-words": next_words is not None, "--word-scores": word_scores, "--alignments": alignments}
    for flag, is_wanted in wanted.items():
        if is_wanted:
            raise UsageError(
                f"--format text has nothing but the translation, so no room for {flag}",
                where=flag,
                hint="add --format tsv or --format jsonl",
            )


def render(
    translations: Sequence[Translation],
    *,
    form: str,
    first_line: int,
    word_scores: bool = False,
    alignments: bool = False,
) -> str:
    """The translations of consecutive lines in one of the formats, each line of it with its end."""
    wanted = {"word_scores": word_scores, "alignments": alignments}
    rows: list[str] = []
    for number, best in enumerate(translations, first_line):
        if form == "text":
            rows.append(best.text)
        elif form == "tsv":
            ranked = enumerate((best, *best.alternatives), 1)
            rows += ["\t".join([str(number), str(rank), *_columns(one, **wanted)]) for rank, one in ranked]
        else:
            alternatives = [_fields(alternative, **wanted) for alternative in best.alternatives]
            fields = {"line": number, **_fields(best, **wanted), "alternatives": alternatives}
            rows.append(json.dumps(fields, ensure_ascii=False))
    return "".join(row + "\n" for row in rows)


@dataclass(frozen=True, slots=True)
class Told:
    """What is written of each line, and how."""

    form: str
    nbest: int
    next_words: int | None
    mbr: str | None
    word_scores: bool
    alignments: bool

    @property
    def options(self) -> dict[str, Any]:
        """What the translator has to be asked for."""
        return {
            "nbest": self.nbest,
            "next_words": self.next_words,
            "mbr": self.mbr,
            "word_scores": self.word_scores,
            "alignments": self.alignments,
        }

    @property
    def has_numbered_rows(self) -> bool:
        """Whether a line has several rows, each with its number."""
        return self.form == "tsv" and (self.nbest > 1 or self.next_words is not None)

    def render(self, translations: Sequence[Translation], *, first_line: int) -> str:
        """The translations of consecutive lines."""
        extra = {"word_scores": self.word_scores, "alignments": self.alignments}
        return render(translations, form=self.form, first_line=first_line, **extra)


@dataclass(slots=True)
class Statistics:
    """What was translated, by what, and in how many seconds, without loading and without waiting for input."""

    by: str
    sentences: int = 0
    target_tokens: int = 0
    seconds: float = 0.0
    until: float = 0.0

    def add(self, translations: Sequence[Translation], *, started: float, ended: float) -> None:
        """Count one block, and of its time what no block before it took, too."""
        self.sentences += len(translations)
        self.target_tokens += sum(translation.num_pieces for translation in translations)
        self.seconds += max(0.0, ended - max(started, self.until))
        self.until = max(ended, self.until)

    def __str__(self) -> str:
        seconds = max(self.seconds, 1e-9)
        return (
            f"{self.sentences:,} sentences and {self.target_tokens:,} target tokens in {self.seconds:.2f} s: "
            f"{self.sentences / seconds:,.1f} sentences/s, {self.target_tokens / seconds:,.0f} tokens/s, by {self.by}"
        )


def _columns(one: Translation, *, word_scores: bool, alignments: bool) -> list[str]:
    columns = [f"{one.score:.6f}", f"{one.log_prob:.6f}", one.text.replace("\t", " ")]
    columns += [" ".join(f"{value:.6f}" for value in one.word_log_probs)] if word_scores else []
    return columns + ([_pharaoh(one)] if alignments else [])


def _fields(one: Translation, *, word_scores: bool, alignments: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "text": one.text,
        "score": round(one.score, 6),
        "log_prob": round(one.log_prob, 6),
    }
    if one.utility is not None:
        fields["utility"] = round(one.utility, 6)
    if word_scores:
        fields["word_log_probs"] = [round(value, 6) for value in one.word_log_probs]
    if alignments:
        fields["alignment"] = _pharaoh(one)
    return fields


def _pharaoh(one: Translation) -> str:
    return " ".join(f"{source}-{target}" for source, target in one.alignment)
