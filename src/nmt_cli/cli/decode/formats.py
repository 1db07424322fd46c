"""How `nmt decode` writes translations, and how it shows progress and speed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt_cli.cli.decode.files import STANDARD
from nmt_cli.console import live_bars, shows_live_views
from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from nmt_cli.decoding.translation import Translation


_FORMATS = ("text", "tsv", "jsonl")


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A format and the details that it shows of each translation; UsageError if the format has no room for them."""

    name: str
    nbest: int = 1
    word_scores: bool = False
    alignments: bool = False

    def __post_init__(self) -> None:
        if self.name not in _FORMATS:
            hint = f"take one of: {', '.join(_FORMATS)}"
            raise UsageError(f"there is no format called {self.name!r}", where="--format", hint=hint)
        wanted = {"--nbest": self.nbest > 1, "--word-scores": self.word_scores, "--alignments": self.alignments}
        flag = next((flag for flag, is_wanted in wanted.items() if is_wanted), None)
        if self.name == "text" and flag is not None:
            message = f"--format text has nothing but the translation, so no room for {flag}"
            if flag == "--nbest":
                message = f"--format text has one translation per line, not {self.nbest}"
            raise UsageError(message, where=flag, hint="add --format tsv or --format jsonl")

    @property
    def has_numbered_rows(self) -> bool:
        """True if a line has several rows, each with its number."""
        return self.name == "tsv" and self.nbest > 1

    def render(self, translations: Sequence[Translation], *, first_line: int) -> str:
        """The translations of consecutive lines, each row with its line end."""
        rows: list[str] = []
        for number, best in enumerate(translations, first_line):
            match self.name:
                case "text":
                    rows.append(best.text)
                case "tsv":
                    ranked = enumerate((best, *best.alternatives), 1)
                    rows += ["\t".join([str(number), str(rank), *self._columns(one)]) for rank, one in ranked]
                case _:
                    alternatives = [self._fields(alternative) for alternative in best.alternatives]
                    fields = {"line": number, **self._fields(best), "alternatives": alternatives}
                    rows.append(json.dumps(fields, ensure_ascii=False))
        return "".join(row + "\n" for row in rows)

    def _columns(self, one: Translation) -> list[str]:
        columns = [f"{one.score:.6f}", f"{one.log_prob:.6f}", one.text.replace("\t", " ")]
        columns += [" ".join(f"{value:.6f}" for value in one.word_log_probs)] if self.word_scores else []
        return columns + ([_pharaoh(one)] if self.alignments else [])

    def _fields(self, one: Translation) -> dict[str, Any]:
        fields: dict[str, Any] = {"text": one.text, "score": round(one.score, 6), "log_prob": round(one.log_prob, 6)}
        if one.utility is not None:
            fields["utility"] = round(one.utility, 6)
        if self.word_scores:
            fields["word_log_probs"] = [round(value, 6) for value in one.word_log_probs]
        if self.alignments:
            fields["alignment"] = _pharaoh(one)
        return fields


@dataclass(slots=True)
class Statistics:
    """Counts of sentences and tokens, the engine, and the seconds; loading and waiting for input do not count."""

    by: str
    sentences: int = 0
    target_tokens: int = 0
    seconds: float = 0.0
    until: float = 0.0

    def add(self, translations: Sequence[Translation], *, started: float, ended: float) -> None:
        """Count one block; of its time, only the part that overlaps no earlier block."""
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


def _pharaoh(one: Translation) -> str:
    return " ".join(f"{source}-{target}" for source, target in one.alignment)


class LineCounter:
    """Shows nothing: no one reads stderr, or the progress would come between the lines that are typed."""

    def wrote(self, write: Callable[[], object], *, num_lines: int) -> None:
        """Count the lines that `write` writes."""
        write()


class _ShownLineCounter(LineCounter):
    """A line on stderr, taken off the screen while translations are written to the same screen."""

    def __init__(self, bars: Bars, task: TaskID, *, is_shared: bool) -> None:
        self._bars = bars
        self._task = task
        self._is_shared = is_shared

    def wrote(self, write: Callable[[], object], *, num_lines: int) -> None:
        if self._is_shared:
            self._bars.stop()
        write()
        if self._is_shared:
            self._bars.start()
        self._bars.advance(self._task, num_lines)


@contextmanager
def shown_progress(source: Path, *, is_streamed: bool, lines_done: int) -> Iterator[LineCounter]:
    """The progress for as long as the context lasts; `lines_done` were translated before."""
    is_typed = is_streamed or (source == STANDARD and sys.stdin.isatty())
    if is_typed or not shows_live_views():
        yield LineCounter()
        return
    from rich.progress import TimeElapsedColumn

    is_shared = sys.stdout.isatty()
    with live_bars("{task.completed:,.0f} lines translated", TimeElapsedColumn()) as bars:
        yield _ShownLineCounter(bars, bars.add_task("", total=None, completed=lines_done), is_shared=is_shared)
