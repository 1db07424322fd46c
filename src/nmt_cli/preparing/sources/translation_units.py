"""Translation files: units with a text per language, from which the two languages of the corpus are taken."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

from pydantic import Field

from nmt_cli.errors import DataError
from nmt_cli.languages import match_code
from nmt_cli.preparing.chunks import Chunk, UnitPair, unit_chunks
from nmt_cli.preparing.sources.base import CorpusContext, LocalSource, OneFileSource

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

    def local_source(self, file: Path, name: str, context: CorpusContext) -> LocalSource:
        """The pairs of a file; its units are counted, because only the reading for the data names its languages."""
        return replace(super().local_source(file, name, context), items_to_count=partial(self.units, file))

    def reader(self, file: Path, languages: tuple[str, str]) -> Callable[[], Iterator[Chunk]]:
        """The function that reads the two languages of a file."""
        return partial(self._read, file, languages)

    def _read(self, file: Path, languages: tuple[str, str]) -> Iterator[Chunk]:
        """The pairs of units with a finished text in both languages; other units are untranslated.

        DataError if there is no pair in the whole file. The log names the languages that were taken for the two.
        """
        taken: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        unpaired: Counter[str] = Counter()
        num_unfinished = 0

        def pair_of(unit: Unit) -> UnitPair:
            nonlocal num_unfinished
            codes = tuple([code for code, _ in unit.texts])
            source, target = _match_codes(codes, languages)
            if source is None or target is None:
                unpaired.update(codes or [""])
                return UnitPair(unit.line, "" if source is None else unit.texts[source][1], None)
            src, tgt = unit.texts[source][1], unit.texts[target][1]
            if not unit.is_finished and not self.keep_unfinished:
                num_unfinished += 1
                return UnitPair(unit.line, src, None)
            taken[0][codes[source]] += 1
            taken[1][codes[target]] += 1
            return UnitPair(unit.line, src, tgt, date=unit.date)

        try:
            yield from unit_chunks(map(pair_of, self.units(file)), origin=file.name)
        finally:  # with a limit, the rest of the file is not read
            log_unfinished(file, num_unfinished)
            matches = [_description(*match) for match in zip(languages, taken, strict=True)]
            if any(matches):
                logger.info("%s: %s", file.name, ", ".join(filter(None, matches)))
        if not taken[0]:
            raise _no_pairs_error(file, languages, unpaired, num_unfinished=num_unfinished)


def _description(wanted: str, taken: Counter[str]) -> str:
    """Which languages were taken for one, in words; nothing if they have its code."""
    codes = [code for code in taken if code]
    if all(code.replace("_", "-").lower() == wanted.replace("_", "-").lower() for code in codes):
        return ""
    shown = codes if len(codes) == 1 else [f"{code} ({taken[code]:,} pairs)" for code in codes]
    return f"{wanted} is {' and '.join(shown)}"


def _no_pairs_error(
    file: Path, languages: tuple[str, str], unpaired: Counter[str], *, num_unfinished: int
) -> DataError:
    """The error for a file without a finished translation; `unpaired` has the languages of its units."""
    if num_unfinished:
        message = f"{file.name} has no finished translation: {num_unfinished:,} are marked as not finished"
        hint = "write keep_unfinished: true beside the file in the corpus file to keep them"
    elif unpaired:
        codes = [f"{code} ({number:,})" for code, number in unpaired.most_common(_LANGUAGES_SHOWN) if code]
        message = f"no unit of {file.name} has a translation in {' and '.join(languages)}"
        message += f"; it has {', '.join(codes)}" if codes else ""
        hint = "name two languages that it has with -l, or export it again with its translations"
    else:
        message, hint = f"{file.name} has no units", "give a file with translations"
    return DataError(message, where=str(file), hint=hint)


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
