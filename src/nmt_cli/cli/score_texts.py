"""The texts of `nmt score`: references, translations, baselines and sources, read and checked against each other."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from nmt_cli.scoring.segments import Segments

_STDIN = "-"


@dataclass(frozen=True, slots=True)
class TextNames:
    """The files as they were given, or a test set of sacreBLEU's; `-` is stdin. No `hypotheses`: none are scored."""

    references: Sequence[str]
    hypotheses: Sequence[str]
    baselines: Sequence[str]
    source: str | None
    test_set: str | None
    languages: str | None


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts, all of as many lines; `test_set` is a name of sacreBLEU's, `languages` a pair such as en-de."""

    references: list[Segments]
    hypotheses: list[Segments]
    baselines: list[Segments]
    source: Segments | None
    test_set: str | None
    languages: str | None

    @property
    def target_language(self) -> str | None:
        """The code of the language translated into, without a country: pt for en-PT_br."""
        return None if self.languages is None else self.languages.lower().partition("-")[2].partition("_")[0]

    @property
    def num_lines(self) -> int:
        """Lines of each."""
        return len(self.references[0].lines)

    @property
    def systems(self) -> list[Segments]:
        """What is measured: hypotheses, then baselines."""
        return [*self.hypotheses, *self.baselines]

    def as_json(self) -> dict[str, object]:
        """Which texts these are, with their SHA-256."""
        described: dict[str, object] = {"lines": self.num_lines}
        if len(self.hypotheses) == 1:
            described["hypothesis"] = identity(self.hypotheses[0])
        described["references"] = [identity(text) for text in self.references]
        if self.source is not None:
            described["source"] = identity(self.source)
        if self.test_set is not None:
            described["test_set"] = {"name": self.test_set, "languages": self.languages}
        return described


def identity(text: Segments) -> dict[str, str]:
    """A text's file and the SHA-256 of its bytes."""
    return {"file": text.name, "sha256": text.sha256}


def read_texts(names: TextNames) -> Texts:
    """The texts; UsageError where the arguments do not go together, DataError where the texts do not."""
    from nmt_cli.scoring.segments import check_hypothesis, check_lengths, check_reference, read_segments

    _check_stdin(names)
    _check_systems(names)
    source, references, languages = names.source, list(names.references), _checked_languages(names.languages)
    if names.test_set is not None:
        from nmt_cli.scoring.testsets import find_test_set

        found = find_test_set(names.test_set, languages)
        source, references = source or str(found.source), [str(file) for file in found.references]

    def read(name: str) -> Segments:
        return read_segments(name, stdin=sys.stdin.buffer)

    texts = Texts(
        references=[],
        hypotheses=[read(name) for name in names.hypotheses],
        baselines=[read(name) for name in names.baselines],
        source=None if source is None else read(source),
        test_set=names.test_set,
        languages=languages,
    )
    texts.references.extend(map(read, references))
    for text in texts.systems:
        check_hypothesis(text, fits=texts.references)
    for other in texts.references[1:] if texts.source is None else [*texts.references[1:], texts.source]:
        check_lengths(other, texts.references[0])
    for reference in texts.references:
        check_reference(reference)
    return texts


def check_test_set_or_reference(names: TextNames) -> None:
    """Raise UsageError unless there is either a test set or a reference."""
    if names.test_set is not None and names.references:
        message = f"-t {names.test_set} brings its own references, but {names.references[0]} is given as well"
        raise UsageError(message, where="-t", hint="leave out one of them; the translation is -i HYP")
    if names.test_set is None and not names.references:
        hint = "nmt score REF -i HYP, or nmt score -t wmt14/full -l en-de -i HYP; see nmt score --help"
        raise UsageError("REF is missing", where="nmt score", hint=hint)


def _checked_languages(languages: str | None) -> str | None:
    if languages is None or re.fullmatch(r"[A-Za-z_]+-[A-Za-z_]+", languages):
        return languages
    raise UsageError(f"-l takes two languages, not {languages!r}", where="-l", hint="for example -l en-de")


def _check_stdin(names: TextNames) -> None:
    """Raise UsageError where several texts are to come from stdin, or one from a terminal."""
    roles = {"hypothesis": names.hypotheses, "baseline": names.baselines, "reference": names.references}
    roles["source"] = [] if names.source is None else [names.source]
    waiting = [role for role, files in roles.items() for file in files if file == _STDIN]
    if len(waiting) > 1:
        hint = "give the hypothesis with -i HYP" if "hypothesis" in waiting else "give the others as files"
        message = f"stdin can hold one text, but {' and '.join(waiting)} are to come from it"
        raise UsageError(message, where=_STDIN, hint=hint)
    if waiting and (sys.stdin is None or sys.stdin.isatty()):
        message = f"the {waiting[0]} is to come from stdin, but stdin is a terminal"
        hint = "give a file with -i HYP, or pipe: nmt decode < input.txt | nmt score REF"
        raise UsageError(message, where="stdin", hint=hint)


def _check_systems(names: TextNames) -> None:
    """Raise UsageError where one file is to be two systems."""
    systems = [*names.hypotheses, *names.baselines]
    for name in systems:
        if systems.count(name) > 1:
            where = "--baseline" if name in names.baselines else "-i"
            what = "the hypothesis and a baseline" if name in names.hypotheses and where != "-i" else "given twice"
            raise UsageError(f"{name} is {what}", where=where, hint="give the output of two different systems or runs")
