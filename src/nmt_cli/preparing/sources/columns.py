"""The two columns of a table: given by number or name, or named by the languages in the first row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

from pydantic import Field

from nmt_cli.errors import DataError
from nmt_cli.languages import code_of_name, is_language, match_code
from nmt_cli.preparing.sources.base import OneFileSource
from nmt_cli.recipe.section import PositiveInt

Column: TypeAlias = PositiveInt | Annotated[str, Field(min_length=1)] | None

GIVE_COLUMNS = "give the two columns, by number or by name: --columns SOURCE,TARGET"
# The name of a column or key that can be the code of a language, and pairs of names that stand for source and target.
_CODE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
_PAIRS_OF_NAMES = (("source", "target"), ("src", "tgt"))
_ROWS_BELOW_TITLE = 4
_LONGEST_NAME = 30  # characters; a cell may be a sentence of a megabyte
_CELLS_SHOWN = 8
_CELL_CHARACTERS = 20


class TableSource(OneFileSource):
    """A table of which two columns are taken. Each format is a subclass."""

    source: Column = Field(
        None,
        description="column of the source: its number, counted from 1, or its name; null: the column that the first "
        "line calls by the code or the name of the language, or by `source`; of two columns without names the first",
    )
    target: Column = Field(None, description="column of the target; null: the same, by `target`, or the second")
    header: bool | None = Field(
        None, description="the first line names the columns; null: true if it names one of them, or both languages"
    )


class Columns(NamedTuple):
    """The columns of source and target, counted from 1."""

    source: int
    target: int
    has_header: bool

    @property
    def needed(self) -> int:
        """The number of cells that a row needs."""
        return max(self.source, self.target)


def choose_columns(
    rows: Sequence[Sequence[str]], *, file: Path, settings: TableSource, languages: tuple[str, str]
) -> Columns:
    """The two columns of a table that begins with these rows, by the settings of its source.

    DataError if more than two columns are neither given nor named, or if lines stand above the names.
    """
    first_row = [cell.strip() for cell in rows[0]]
    source, target = (_given_index(column, first_row, file) for column in (settings.source, settings.target))
    is_named = isinstance(settings.source, str) or isinstance(settings.target, str)
    names = [] if settings.header is False else _possible_names(rows)
    if (source is None or target is None) and settings.header is not False:
        if found := find_columns(names, languages, given=(source, target)):
            (source, target), is_named = found, True
        else:
            _check_no_title(rows, file, languages)
    if source is None and target is None and width_of(rows) <= 2:
        called = [name for name in names if len(name) <= _LONGEST_NAME and is_language(name)]
        if len(called) < 2:  # else the names are those of other languages
            source, target = 0, 1  # reading tells what is wrong with a table of one column
    if source is None or target is None or source == target:
        message = f"{file.name} has {width_of(rows)} columns, and its first line does not call two by "
        message += f"{' and '.join(languages)}: {shown(rows[0])}"
        raise DataError(message, where=f"{file}:1", hint=GIVE_COLUMNS)
    chosen = [name for index, name in enumerate(names) if index in (source, target)]
    has_header = is_named or find_columns(chosen, languages) is not None
    return Columns(source + 1, target + 1, has_header if settings.header is None else settings.header)


def width_of(rows: Sequence[Sequence[str]]) -> int:
    """The number of columns of most rows, or of the first row if it has more."""
    return max(len(rows[0]), Counter(map(len, rows)).most_common(1)[0][0])


def find_columns(
    names: Sequence[str], languages: tuple[str, str], *, given: tuple[int | None, int | None] = (None, None)
) -> tuple[int, int] | None:
    """The indices of the two columns or keys. A column that is not given is found by its name.

    A name is the code of the language or its name in any language, or both are a pair such as source and target; the
    last part of a dotted name counts. None if a side has no column, or both have the same one.
    """
    parts = [name.strip().rpartition(".") for name in names]
    last_parts, lower = [part[2] for part in parts], [part[2].lower() for part in parts]
    in_translation = [last if parent == "translation" else "" for parent, _, last in parts]  # not `id` beside it
    by_code = [[_find_language(code, group) for code in languages] for group in (in_translation, last_parts)]
    by_pair = [[lower.index(name) if name in lower else None for name in pair] for pair in _PAIRS_OF_NAMES]
    for found in (*by_code, *by_pair):
        source, target = (by_name if index is None else index for index, by_name in zip(given, found, strict=True))
        if source is not None and target is not None and source != target:
            return source, target
    return None


def shown(cells: Sequence[str]) -> str:
    """The beginnings of some cells or keys, for an error."""
    more = ["..."] if len(cells) > _CELLS_SHOWN else []
    return ", ".join([*(repr(cell.strip()[:_CELL_CHARACTERS]) for cell in cells[:_CELLS_SHOWN]), *more])


def _given_index(column: Column, names: Sequence[str], file: Path) -> int | None:
    """The index of a given column, or None. DataError if the first row has no such name."""
    if not isinstance(column, str):
        return None if column is None else column - 1
    if column not in names:
        message = f"the first line of {file.name} names no column {column}: it has {shown(names)}"
        raise DataError(message, where=f"{file}:1", hint=GIVE_COLUMNS)
    return names.index(column)


def _possible_names(rows: Sequence[Sequence[str]]) -> list[str]:
    """The cells of the first row, empty where the same comes again below, as `en` and `de` in en | Yes. | de | Ja."""
    below = [cell.strip() for cell in rows[1]] if len(rows) > 1 else []
    cells = [cell.strip() for cell in rows[0]]
    return ["" if cell in below[index : index + 1] else cell for index, cell in enumerate(cells)]


def _check_no_title(rows: Sequence[Sequence[str]], file: Path, languages: tuple[str, str]) -> None:
    """Raise DataError if lines above the names hide the names, such as a title or Excel's `sep=;`."""
    num_texts = sum(map(bool, map(str.strip, rows[0])))  # a title has one
    if num_texts < 2 and any(find_columns(row, languages) for row in rows[1 : 1 + _ROWS_BELOW_TITLE]):
        message = f"line 1 of {file.name} stands above the names of the columns"
        raise DataError(message, where=f"{file}:1", hint="remove the lines above the names of the columns")


def _find_language(language: str, names: Sequence[str]) -> int | None:
    """The index of the name that is a language's code, or what it is called in any language."""
    codes = [name if _CODE.fullmatch(name) else code_of_name(name[:_LONGEST_NAME], in_language=None) for name in names]
    code = match_code(language, [code for code in codes if code is not None])
    return None if code is None else codes.index(code)
