"""The two columns of a table: given by number or name, or found by the languages that the first row names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

from pydantic import Field

from nmt_cli.errors import DataError
from nmt_cli.languages import language_name, languages_called, match_code, short_code
from nmt_cli.preparing.chunks import text_length
from nmt_cli.preparing.sources.base import CorpusContext, OneFileSource
from nmt_cli.recipe.section import PositiveInt

Column: TypeAlias = PositiveInt | Annotated[str, Field(min_length=1)] | None

QUOTE_CELLS = "put quotes around cells with a delimiter"
_REMOVE_TITLE = "remove the lines above the names of the columns"
_SET_BOTH = "set source and target, both of them"
# The name of a column or key that can be the code of a language, and pairs of names that stand for source and target.
_CODE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
_PAIRS_OF_NAMES = (
    ("source", "target"),
    ("src", "tgt"),
    ("src", "trg"),
    ("source_text", "target_text"),
    ("src_text", "tgt_text"),
)
# A cell that can be the name of a column: it begins with a letter and is no sentence.
_COLUMN_NAME = re.compile(r"[^\W\d_][^.!?\ufffd]{0,29}")
_NUMBER = re.compile(r"[\d.,:/ -]+")
_ROWS_BELOW_TITLE = 4
_CELLS_SHOWN = 8
_CELL_CHARACTERS = 20


class TableSource(OneFileSource):
    """A table of which two columns are taken. Each format is a subclass."""

    source: Column = Field(
        None,
        description="column of the source: its number, counted from 1, or its name; null: the column that the first "
        "line calls by the language, or else column 1",
    )
    target: Column = Field(None, description="column of the target; null: the same, or else column 2")
    header: bool | None = Field(
        None, description="the first line names the columns; null: true if a column is found by its name there"
    )


class Columns(NamedTuple):
    """The columns of source and target, counted from 1. They are known if given, or found by their languages."""

    source: int
    target: int
    has_header: bool
    are_known: bool

    @property
    def needed(self) -> int:
        """The number of cells that a row needs."""
        return max(self.source, self.target)


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first rows of a table, by which its two columns are chosen; `settings` are the source's in the corpus."""

    rows: Sequence[Sequence[str]]
    file: Path
    settings: TableSource
    context: CorpusContext

    @property
    def width(self) -> int:
        """The number of columns of most rows, or of the first row if it has more; a title above a table has fewer."""
        return max(len(self.rows[0]), Counter(map(len, self.rows)).most_common(1)[0][0])

    @property
    def names(self) -> list[str]:
        """The cells of the first row, "" for a cell that all rows repeat, such as the code of the language."""
        below = self.rows[1:]
        return [
            "" if {name.strip()} == {*_column(below, index)} else name.strip()
            for index, name in enumerate(self.rows[0])
        ]

    def choose_columns(self) -> Columns:
        """The two columns. A column that is neither given nor found is 1 for the source and 2 for the target.

        DataError if both would be one column, or if the first row names other languages, or stands above the names.
        """
        given, settings = self._given_indices(), self.settings
        are_given = None not in given
        may_be_named = not are_given and settings.header is not False
        found = find_columns(self.names, self.context.codes, given=given) if may_be_named else None
        source, target = found or (default if index is None else index for default, index in enumerate(given))
        if source == target and not are_given:
            hint = f"{_SET_BOTH}: the first line has {_shown(self.rows[0])}"
            raise self._error(f"source and target of {self.file.name} are both column {source + 1}", hint)
        if may_be_named and found is None:
            self._check_first_row()
        is_named = found is not None or isinstance(settings.source, str) or isinstance(settings.target, str)
        has_header = is_named if settings.header is None else settings.header
        return Columns(source + 1, target + 1, has_header, are_given or found is not None)

    def first_two_are_doubtful(self) -> bool:
        """True if column 1 or 2 has only numbers and blanks, or if the first row seems to name the columns."""
        below = self.rows[1:] or self.rows
        if any(_are_numbers([*filter(None, _column(below, index))]) for index in (0, 1)):
            return True
        return self.settings.header is not False and self._likely_names(self._with_most_text((None, None))) is not None

    def unnamed_error(self) -> DataError:
        """The error for columns that are neither given nor called by the languages, with the setting to add."""
        called = " and ".join(self.context.codes)
        message = f"{self.file.name} has {self.width} columns, and its first line does not call two by {called}"
        chosen = self._with_most_text(self._given_indices())
        hint = self._fix_of_languages(chosen) or self._fix_of_columns(chosen)
        return self._error(f"{message}: {_shown(self.rows[0])}", hint)

    def _given_indices(self) -> tuple[int | None, int | None]:
        return self._given_index(self.settings.source), self._given_index(self.settings.target)

    def _given_index(self, column: Column) -> int | None:
        """The index of a given column, or None. DataError if the first row has no such name."""
        if not isinstance(column, str):
            return None if column is None else column - 1
        names = [name.strip() for name in self.rows[0]]
        if column not in names:
            hint = f"it has {_shown(self.rows[0])}: set source and target to two of these, or to their numbers"
            raise self._error(f"the first line of {self.file.name} names no column {column}", hint)
        return names.index(column)

    def _check_first_row(self) -> None:
        """Raise DataError if the first row names other languages, or if lines above the names hide the names.

        Such lines are a title, Excel's `sep=;`, or blank lines of TSV.
        """
        if len({*languages_called(self.names).values()}) > 1:
            raise self.unnamed_error()
        if num_texts(self.rows[0]) < 2:
            below = next((row for row in self.rows[1 : 1 + _ROWS_BELOW_TITLE] if num_texts(row) > 1), [])
            if find_columns(below, self.context.codes, given=(None, None)):
                raise self._error(f"line 1 of {self.file.name} stands above the names of the columns", _REMOVE_TITLE)

    def _with_most_text(self, given: Sequence[int | None]) -> list[int]:
        """The indices of the given columns, and for each that is not given, of one with the most text, in order."""
        lengths = [sum(map(text_length, _column(self.rows, index))) for index in range(self.width)]
        by_length = sorted(set(range(self.width)).difference(given), key=lambda index: -lengths[index])
        longest = iter(sorted(by_length[: given.count(None)]))
        return [next(longest) if index is None else index for index in given]

    def _likely_names(self, chosen: Sequence[int]) -> list[str] | None:
        """The names in the first row, if it seems to name the chosen columns; otherwise None.

        Names are no numbers and no sentences. Below them are longer texts, or a column of numbers.
        """
        names, below = [cell.strip() for cell in self.rows[0]], self.rows[1:]
        can_be_names = all(_COLUMN_NAME.fullmatch(name) for name in names if name)
        if not (below and can_be_names and all(_is_unique(index, names) for index in chosen)):
            return None
        columns = [_column(below, index) for index in range(len(names))]
        has_numbers = any(name and _are_numbers(column) for name, column in zip(names, columns, strict=True))
        are_short = all(2 * len(names[index]) * len(columns[index]) < len("".join(columns[index])) for index in chosen)
        return names if has_numbers or are_short else None

    def _fix_of_languages(self, chosen: Sequence[int]) -> str | None:
        """The fix if the first row names other languages than the corpus, or swaps them; otherwise None."""
        called, wanted = languages_called(self.names), [short_code(code) for code in self.context.codes]
        # A wanted source comes first, and a wanted target last.
        codes = sorted(dict.fromkeys(called.values()), key=lambda code: (code == wanted[1]) - (code == wanted[0]))
        if len(codes) > 1 and codes != wanted:
            return f"name two languages that it has: -l {codes[0]}-{codes[-1]}, or {_SET_BOTH}"
        is_of_other = any(called.get(index, code) != code for index, code in zip(chosen, wanted, strict=True))
        return _SET_BOTH if is_of_other else None

    def _fix_of_columns(self, chosen: Sequence[int]) -> str:
        """The fix that sets the chosen columns, by name if the first row seems to have names."""
        is_short = len(self.rows[0]) < self.width
        names = None if is_short else self._likely_names(chosen)
        source, target = (names[index] if names else index + 1 for index in chosen)
        columns = {"source": self.settings.source or source, "target": self.settings.target or target}
        fix = f"name the two columns: add {self.settings.setting(self.context, **columns)}"
        if is_short:
            return f"{_REMOVE_TITLE if num_texts(self.rows[0]) < 2 else QUOTE_CELLS}, or {fix}"
        if names:
            return f"{fix}; if line 1 is a pair, write header: false beside them"
        return f"{fix}; if line 1 names the columns, write header: true beside them"

    def _error(self, message: str, hint: str) -> DataError:
        return DataError(message, where=f"{self.file}:1", hint=hint)


def find_columns(
    names: Sequence[str], languages: tuple[str, str], *, given: tuple[int | None, int | None]
) -> tuple[int, int] | None:
    """The indices of the two columns or keys. A column that is not given is found by its name.

    A name is the English name of the language, a code, or both are a pair such as source and target. The last part of a
    dotted name counts: `translation.id` beside `translation.en` is Indonesian, and `id` an identifier. None if a side
    has no column, or both have the same one.
    """
    parts = [name.strip().rpartition(".")[::2] for name in names]
    last_parts = [last for _, last in parts]
    # For each parent, the last parts of its names. Other names become "", because an index is a place among all names.
    families = [
        [last if parent == family else "" for parent, last in parts]
        for family in dict.fromkeys(parent for parent, _ in parts)
    ]
    lower = [part.lower() for part in last_parts]
    by_language = [[_find_language(code, group) for code in languages] for group in (*families, last_parts)]
    by_pair = [[lower.index(name) if name in lower else None for name in pair] for pair in _PAIRS_OF_NAMES]
    for found in (*by_language, *by_pair):
        source, target = (by_name if index is None else index for index, by_name in zip(given, found, strict=True))
        if source is not None and target is not None and source != target:
            return source, target
    return None


def find_column(names: Sequence[str], language: str) -> int | None:
    """The index of the column of a language: with its English name, its code, or a name such as source; else None."""
    last_parts = [name.strip().rpartition(".")[2] for name in names]
    if (index := _find_language(language, last_parts)) is not None:
        return index
    lower = [part.lower() for part in last_parts]
    return next((lower.index(source) for source, _ in _PAIRS_OF_NAMES if source in lower), None)


def num_texts(row: Sequence[str]) -> int:
    """The number of cells that are not blank; a title above a table has one."""
    return sum(map(bool, map(str.strip, row)))


def _find_language(language: str, names: Sequence[str]) -> int | None:
    """The index of the name that is a language's code, or else its English name, which comes before the code `id`."""
    english = language_name(language).lower()
    code = match_code(language, [name for name in names if _CODE.fullmatch(name)])
    lower = [name.lower() for name in names]
    if english in lower and (code is None or code.lower() == "id"):  # Indonesian, or an identifier
        return lower.index(english)
    return None if code is None else names.index(code)


def _column(rows: Sequence[Sequence[str]], index: int) -> list[str]:
    """The cells of a column, in the rows that have it."""
    return [row[index].strip() for row in rows if index < len(row)]


def _are_numbers(cells: Sequence[str]) -> bool:
    return bool(cells) and all(map(_NUMBER.fullmatch, cells))


def _is_unique(index: int, names: Sequence[str]) -> bool:
    """True if the name at an index is there, and is the name of no other column."""
    return index < len(names) and bool(names[index]) and names.count(names[index]) == 1


def _shown(cells: Sequence[str]) -> str:
    """The beginnings of some cells, for an error."""
    more = ["..."] if len(cells) > _CELLS_SHOWN else []
    return ", ".join([*(repr(cell.strip()[:_CELL_CHARACTERS]) for cell in cells[:_CELLS_SHOWN]), *more])
