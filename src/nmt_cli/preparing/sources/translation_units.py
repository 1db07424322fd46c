"""Translation files: units with a text per language, from which the two languages of the corpus are taken."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

from pydantic import Field

from nmt_cli.errors import DataError
from nmt_cli.languages import match_code
from nmt_cli.preparing.chunks import Chunk, UnitPair, unit_chunks
from nmt_cli.preparing.sources.base import OneFileSource

logger = logging.getLogger(__name__)

KeepUnfinished: TypeAlias = Annotated[
    bool, Field(description="keep translations that are marked as fuzzy, new, draft, to be reviewed, or rejected")
]

_LANGUAGES_SHOWN = 8


class Unit(NamedTuple):
    """The line where a unit begins, and its texts, each after its language; an empty code fits any language.

    `date` is as in `UnitPair`.
    """

    line: int
    texts: list[tuple[str, str]]
    is_finished: bool = True
    date: int = 0


class UnitsSource(OneFileSource):
    """A file of units. Each format is a subclass."""

    keep_unfinished: KeepUnfinished = False

    @abstractmethod
    def units(self, file: Path) -> Iterator[Unit]:
        """The units in order. DataError if the file is not of this format."""

    def reader(self, file: Path, languages: tuple[str, str]) -> Callable[[], Iterator[Chunk]]:
        """The function that reads the two languages of a file."""
        return partial(self._read, file, languages)

    def _read(self, file: Path, languages: tuple[str, str]) -> Iterator[Chunk]:
        """The pairs of units with a finished text in both languages; other units are untranslated.

        DataError if there is no pair in the whole file. The log names the languages that were taken for the two.
        """
        matcher = _LanguageMatcher(file, languages, keep_unfinished=self.keep_unfinished)
        yield from unit_chunks(map(matcher.pair_of, self.units(file)), origin=file.name)
        matcher.log()
        matcher.check_has_pairs()


class _LanguageMatcher:
    """Finds the texts of each unit that are in the two languages of the corpus, and counts the languages."""

    def __init__(self, file: Path, wanted: tuple[str, str], *, keep_unfinished: bool) -> None:
        self._file = file
        self._keep_unfinished = keep_unfinished
        self._wanted = wanted
        self._taken: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._unpaired_codes: Counter[str] = Counter()
        self._num_units = self._num_pairs = self._num_unfinished = 0

    def pair_of(self, unit: Unit) -> UnitPair:
        """The two texts of a unit; the translation is None if one of them is missing, or is not finished."""
        line, texts, is_finished, date = unit
        self._num_units += 1
        codes = tuple([code for code, _ in texts])
        source, target = _match_codes(codes, self._wanted)
        if source is None or target is None:
            self._unpaired_codes.update(codes)
            return UnitPair(line, "" if source is None else texts[source][1], None)
        if not is_finished and not self._keep_unfinished:
            self._num_unfinished += 1
            return UnitPair(line, texts[source][1], None)
        self._num_pairs += 1
        self._taken[0][codes[source]] += 1
        self._taken[1][codes[target]] += 1
        return UnitPair(line, texts[source][1], texts[target][1], date=date)

    def log(self) -> None:
        """Log which languages were taken for the two, if they have other codes, and how much was not finished."""
        messages = []
        for wanted, taken in zip(self._wanted, self._taken, strict=True):
            codes = [code for code in taken if code]
            if any(code.replace("_", "-").lower() != wanted.replace("_", "-").lower() for code in codes):
                shown = codes if len(codes) == 1 else [f"{code} ({taken[code]:,} pairs)" for code in codes]
                messages.append(f"{wanted} is {' and '.join(shown)}")
        if messages:
            logger.info("%s: %s", self._file.name, ", ".join(messages))
        log_unfinished(self._file, self._num_unfinished)

    def check_has_pairs(self) -> None:
        """Raise DataError if no unit has both languages."""
        if self._num_pairs:
            return
        name, where = self._file.name, str(self._file)
        if self._num_units == 0:
            raise DataError(f"{name} has no units", where=where, hint="give a file with translations")
        if self._num_unfinished:
            message = f"{name} has no finished translation: {self._num_unfinished:,} are marked as not finished"
            hint = "write keep_unfinished: true beside the file in the corpus file to keep them"
            raise DataError(message, where=where, hint=hint)
        codes = [code for code, _ in self._unpaired_codes.most_common(_LANGUAGES_SHOWN) if code]
        message = f"none of the {self._num_units:,} units of {name} has a translation in {' and '.join(self._wanted)}"
        if codes:
            message += f"; it has {', '.join(f'{code} ({self._unpaired_codes[code]:,})' for code in codes)}"
        hint = "name two languages that it has with -l, or export it again with its translations"
        raise DataError(message, where=where, hint=hint)


def log_unfinished(file: Path, number: int) -> None:
    """Log how many translations of a file are left out because they are not finished."""
    if number:
        logger.info(
            "%s: %s translations are left out, because they are marked as not finished", file.name, f"{number:,}"
        )


@lru_cache(maxsize=1_000)
def _match_codes(codes: tuple[str, ...], wanted: tuple[str, str]) -> tuple[int | None, int | None]:
    """The indices of the source and the target text: by their codes, else the next text without a code."""
    known_codes = [code for code in codes if code]
    without_code = iter([index for index, code in enumerate(codes) if not code])
    matched = [match_code(code, known_codes) for code in wanted]
    source, target = (next(without_code, None) if code is None else codes.index(code) for code in matched)
    return (source, None) if source == target else (source, target)
