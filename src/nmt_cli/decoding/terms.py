"""A list of terms and their translations: read from a table, and found in text."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Self

import regex

from nmt_cli.decompression import open_bytes
from nmt_cli.errors import DataError
from nmt_cli.files import reading_errors
from nmt_cli.languages import LETTERS_WITHOUT_SPACES
from nmt_cli.text_encoding import decode_utf8
from nmt_cli.tokenization.pieces import Range
from nmt_cli.tokenization.sentence_splitting import split_sentences

logger = logging.getLogger(__name__)

_BETWEEN_FORMS = "|"
_NAMES_OF_COLUMNS = (("source", "target"), ("src", "tgt"))
_HYPHENS = "‐‑-"
# A term and a text may spell these in their own way each.
_SAME_SPELLING = str.maketrans("’‐‑", "'--")
# Of CSV: a term, its translation and, in DeepL's glossaries, their languages.
_NUMBERS_OF_COLUMNS = (2, 4)
# In these scripts a word is no unit between spaces: each character is a unit. A hyphen joins parts of one word.
_LETTERS_OF_WORDS = rf"[\p{{L}}\p{{M}}\p{{N}}_--[{LETTERS_WITHOUT_SPACES}]]"
_UNIT = regex.compile(
    rf"[{LETTERS_WITHOUT_SPACES}]\p{{M}}*+|{_LETTERS_OF_WORDS}++(?:[{_HYPHENS}]{_LETTERS_OF_WORDS}++)*+|\s++|.",
    regex.V1,
)
WORD_CHARACTER = regex.compile(_LETTERS_OF_WORDS, regex.V1)
_FIRST_LETTER = regex.compile(r"\w")
UnitTexts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A term in a text, from `start` to `end`, its units in the list, and forms of which its translation has one."""

    start: int
    end: int
    units: UnitTexts
    targets: tuple[str, ...]

    @property
    def term(self) -> str:
        """The term as it is in the list."""
        return "".join(self.units)


class TermList:
    """Terms of the source language, each with one or several forms of its translation."""

    def __init__(self, terms: Mapping[str, str | Sequence[str]]) -> None:
        """`terms` has the forms of the translation of each term. DataError if one of these texts is blank."""
        self._targets: dict[UnitTexts, tuple[str, ...]] = {}
        lengths: dict[str, set[int]] = {}
        for source, targets in terms.items():
            joined = targets if isinstance(targets, str) else _BETWEEN_FORMS.join(targets)
            term, forms = checked_term(source, joined, place="terms", where="terms")
            texts = tuple(_unit_texts(term))
            self._targets[texts] = tuple(forms)
            lengths.setdefault(texts[0], set()).add(len(texts))
        # The numbers of units of the terms that begin with a unit.
        self._lengths = {first: sorted(numbers) for first, numbers in lengths.items()}

    def __len__(self) -> int:
        return len(self._targets)

    @classmethod
    def read(cls, file: Path) -> Self:
        """The terms of a file of two columns: of a CSV file, or else separated by tabs.

        DataError if it cannot be read, or as `parse_terms` says.
        """
        with reading_errors(file), open_bytes(file) as stream:
            data = stream.read()
        text = decode_utf8(data, name=str(file))
        return cls(parse_terms(text, is_csv=".csv" in file.suffixes, name=str(file)))

    def find(self, text: str) -> list[Occurrence]:
        """The terms in a text, in order. If terms overlap, the longest counts.

        A term is whole words, or characters of a script without spaces. It stands as it is in the list, or with a
        capital letter at the beginning of a sentence.
        """
        units = list(units_of(text))
        taken: set[int] = set()
        occurrences = []
        matches = self._matches(text, units)
        for place, term in sorted(matches.items(), key=lambda item: (-len(item[0]), item[0].start)):
            if taken.isdisjoint(place):
                taken.update(place)
                first, last = units[place.start], units[place.stop - 1]
                occurrences.append(Occurrence(first.start, last.end, term, self._targets[term]))
        return sorted(occurrences, key=lambda occurrence: occurrence.start)

    def _matches(self, text: str, units: Sequence[TermUnit]) -> dict[range, UnitTexts]:
        """The terms that stand at ranges of the units of a text."""
        texts = [unit.text for unit in units]
        first_letters = cache(partial(_first_letters, text))  # found once, and only if it is needed
        found: dict[range, UnitTexts] = {}
        for index, first in enumerate(texts):
            for word in dict.fromkeys([first, first[0].lower() + first[1:]]):
                for length in self._lengths.get(word, ()):
                    term = (word, *texts[index + 1 : index + length])
                    if term in self._targets and (word == first or units[index].start in first_letters()):
                        found.setdefault(range(index, index + len(term)), term)
        return found

    def find_without_case(self, text: str) -> list[Occurrence]:
        """The terms in a text that was in capitals or title case, whatever letters the list has.

        It does not tell terms apart that differ in nothing else, such as US and us: it has neither, unless their
        translations are the same.
        """
        return self._in_lower_case.find("".join(c.lower() if len(c.lower()) == 1 else c for c in text))

    @cached_property
    def _in_lower_case(self) -> TermList:
        found: dict[str, set[tuple[str, ...]]] = {}
        for units, targets in self._targets.items():
            found.setdefault("".join(units).lower(), set()).add(targets)
        return TermList({term: next(iter(targets)) for term, targets in found.items() if len(targets) == 1})


def parse_terms(text: str, *, is_csv: bool, name: str) -> dict[str, list[str]]:
    """The terms of a table as text, each with the forms of its translation; `name` is that of its file.

    Each row has a term and its translation, or several forms of it: Haus|Hauses. In CSV two languages may follow, as in
    DeepL's glossaries. Blank lines are skipped. The first line may name the columns source and target, in either order.
    DataError if a row has other columns, if one is blank, if a term has two translations, or if there are no terms.
    """
    terms: dict[str, list[str]] = {}
    lines_of_terms: dict[str, int] = {}
    is_swapped = False
    for number, row in _rows(text, is_csv=is_csv, name=name):
        where = f"{name}:{number}"
        if len(row) not in (_NUMBERS_OF_COLUMNS if is_csv else (2,)):
            separator = "a comma or a semicolon" if is_csv else "a tab"
            message = f"line {number} has {len(row)} column{'s' if len(row) > 1 else ''}, and a term needs two"
            raise DataError(message, where=where, hint=f"write the term, {separator}, and its translation")
        names = tuple(cell.strip().lower() for cell in row[:2])
        if not terms and (names in _NAMES_OF_COLUMNS or names[::-1] in _NAMES_OF_COLUMNS):
            is_swapped = names not in _NAMES_OF_COLUMNS
            logger.info("%s: line %d names the columns %s and %s, and is no term", name, number, *row[:2])
            continue
        source, forms = checked_term(*(row[1::-1] if is_swapped else row[:2]), place=f"line {number}", where=where)
        if terms.setdefault(source, forms) != forms:
            first = f"{_BETWEEN_FORMS.join(terms[source])!r} in line {lines_of_terms[source]}"
            message = f"line {number} translates {source!r} by {_BETWEEN_FORMS.join(forms)!r}, but it is {first}"
            hint = f"keep one of them, or write both forms in one line: {'|'.join([*terms[source], *forms])}"
            raise DataError(message, where=where, hint=hint)
        lines_of_terms.setdefault(source, number)
    if not terms:
        hint = "write a term, a tab or in CSV a comma, and its translation in each line"
        raise DataError(f"there are no terms in {name}", where=name, hint=hint)
    return terms


def checked_term(source: str, target: str, *, place: str, where: str) -> tuple[str, list[str]]:
    """A term and the forms of its translation, without needless white space; DataError if one is blank."""
    term = " ".join(source.split())
    forms = list(dict.fromkeys(" ".join(form.split()) for form in target.split(_BETWEEN_FORMS)))
    if not term or not all(forms):
        message = f"{place} has an empty {'translation' if term else 'term'}"
        raise DataError(message, where=where, hint="write a term and its translation, or take both out")
    return term, forms


def missing_terms(occurrences: Sequence[Occurrence], translation: str) -> list[int]:
    """The indices of the terms that a translation lacks; a place in it counts for one of them."""
    met = places_of_terms(occurrences, translation)
    return [index for index in range(len(occurrences)) if index not in met]


def places_of_terms(occurrences: Sequence[Occurrence], translation: str) -> dict[int, Range]:
    """Where a translation has the terms that it has, by their indices; the longest terms choose first."""
    units = list(units_of(translation)) if occurrences else []
    texts = [unit.text for unit in units]
    forms = [sorted((_unit_texts(form) for form in one.targets), key=len, reverse=True) for one in occurrences]
    taken: set[int] = set()
    met: dict[int, Range] = {}
    for index in sorted(range(len(forms)), key=lambda index: -len(forms[index][0])):
        free_places = (place for form in forms[index] for place in _places(texts, form) if taken.isdisjoint(place))
        if (place := next(free_places, None)) is not None:
            taken.update(place)
            met[index] = (units[place.start].start, units[place.stop - 1].end)
    return met


class TermUnit(NamedTuple):
    """A word, a single character, a mark, or white space as one space, and where it stands in a text."""

    text: str
    start: int
    end: int


def units_of(text: str) -> Iterator[TermUnit]:
    """The words, single characters and marks of a text, and a space for any white space.

    Curved apostrophes and the hyphens of Unicode are those of ASCII.
    """
    for match in _UNIT.finditer(text):
        yield TermUnit(" " if match[0].isspace() else match[0].translate(_SAME_SPELLING), *match.span())


def _unit_texts(text: str) -> list[str]:
    return [unit.text for unit in units_of(text)]


def _places(texts: Sequence[str], form: Sequence[str]) -> Iterator[range]:
    """The places at which the units of a form stand among others."""
    for start in range(len(texts) - len(form) + 1):
        if texts[start] == form[0] and texts[start : start + len(form)] == form:
            yield range(start, start + len(form))


def _first_letters(text: str) -> set[int]:
    """Where the first words of the sentences of a text begin."""
    # Any language would do: it only matters for ordinals and "I.".
    starts = accumulate(map(len, split_sentences(text, "en")), initial=0)
    return {match.start() for start in starts if (match := _FIRST_LETTER.search(text, start))}


def _rows(text: str, *, is_csv: bool, name: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the number of its line."""
    if not is_csv:
        yield from ((number, line.split("\t")) for number, line in enumerate(text.split("\n"), 1) if line.strip())
        return
    delimiter = max(",;\t", key=lambda one: _num_rows_of_terms(text, one))
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    try:
        yield from ((reader.line_num, row) for row in reader if any(cell.strip() for cell in row))
    except csv.Error as error:
        message = f"line {reader.line_num} is no line of CSV: {error}"
        raise DataError(message, where=f"{name}:{reader.line_num}", hint="mend its quotes") from None


def _num_rows_of_terms(text: str, delimiter: str) -> int:
    """How many lines of a CSV file have the columns of a term if this is between them."""
    try:
        return sum(len(row) in _NUMBERS_OF_COLUMNS for row in csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error:
        return 0
