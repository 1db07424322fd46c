"""TSV and CSV: rows of cells, from which two columns are taken, by their number, their name, or their language."""

from __future__ import annotations

import csv
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import Field

from nmt_cli.errors import DataError
from nmt_cli.languages import languages_called, short_code
from nmt_cli.preparing.chunks import RawChunk, TsvChunk, UnitPair, are_quoted, text_length, unit_chunks, unquote
from nmt_cli.preparing.sources.base import CorpusContext, LocalPairs, OneFileSource, Weight, empty_error, find_columns
from nmt_cli.preparing.sources.lines import join_lines, line_chunks, read_lines
from nmt_cli.recipe.section import PositiveInt
from nmt_cli.text_encoding import conversion

logger = logging.getLogger(__name__)

DelimiterName: TypeAlias = Literal["comma", "semicolon", "tab"]
Column: TypeAlias = PositiveInt | Annotated[str, Field(min_length=1)] | None
Header: TypeAlias = Annotated[
    bool | None,
    Field(description="the first line names the columns; null: true if a column is found by its name there"),
]

_DELIMITERS: Mapping[DelimiterName, str] = {"tab": "\t", "semicolon": ";", "comma": ","}
_WRONG_SEPARATORS = {b"|||": "|||", b"  ": "spaces", b";": "semicolons", b",": "commas"}
# A quoted cell between two delimiters of any kind, or the ends of a line.
_QUOTED_CELL = re.compile(r'(^|[,;\t\r\n]) *"[^"]*(?:""[^"]*)*" *(?=[,;\t\r\n]|$)')
# A cell that can be the name of a column: it begins with a letter and is no sentence.
_COLUMN_NAME = re.compile(r"[^\W\d_][^.!?\ufffd]{0,29}")
_NUMBER = re.compile(r"[\d.,:/ -]+")
_ROWS_COMPARED = 200
_MAX_LINES_PER_ROW = 100
_CELLS_SHOWN = 8
_CELL_CHARACTERS = 20
_REMOVE_TITLE = "remove the lines above the names of the columns"
_QUOTE_CELLS = "put quotes around cells with a delimiter"


class TsvSource(OneFileSource):
    """A file of tab-separated columns, also quoted as in CSV; plain, .gz, .zst or .xz."""

    kind: Literal["tsv"] = Field(description="two columns of one file")
    source: Column = Field(
        None,
        description="column of the source: its number, counted from 1, or its name; null: the column that the first "
        "line calls by the language, or else column 1",
    )
    target: Column = Field(None, description="column of the target; null: the same, or else column 2")
    header: Header = None
    weight: Weight = 1.0

    def local_pairs(self, file: Path, name: str, context: CorpusContext) -> TsvFile:
        """The two columns of a file."""
        lines = [line.decode("utf-8-sig", "replace").rstrip("\r\n") for line in next(line_chunks(file))[1]]
        rows = [[*map(unquote, line.split("\t"))] if '"' in line else line.split("\t") for line in lines]
        columns, width = _choose_columns(self, rows, file, context), _num_columns(rows)
        if not columns.are_known and width > 2 and self.source is None and self.target is None:
            are_numbers = (all(_NUMBER.fullmatch("".join(row[n : n + 1])) for row in rows[1:] or rows) for n in (0, 1))
            longest = _longest_columns(rows, (None, None), width=width)
            if any(are_numbers) or (self.header is not False and _likely_header(rows, longest)):
                raise _unnamed_columns_error(self, file, rows, context, width=width)
            warning = (
                "%s has %s columns, and its first line does not name them: column 1 is taken as %s, 2 as %s; "
                "if they are others, put a line that names all columns before line 1"
            )
            logger.warning(warning, name, width, *context.codes)
        is_quoted = are_quoted(lines)
        if is_quoted:
            logger.info("%s: cells are quoted as in CSV, and the quotes are taken off", name)
        return TsvFile(((name, file),), file.name, self.weight, file, columns, is_quoted)


class CsvSource(OneFileSource):
    """A file of comma-separated values, with quoting and line breaks in cells; plain, .gz, .zst or .xz."""

    kind: Literal["csv"] = Field(description="two columns of one file")
    delimiter: DelimiterName | None = Field(
        None, description="what stands between cells; null: as the first lines have it"
    )
    source: Column = Field(
        None,
        description="column of the source: its number or name; null: as for kind: tsv, if there are two columns",
    )
    target: Column = Field(None, description="column of the target")
    header: Header = None
    weight: Weight = 1.0

    def local_pairs(self, file: Path, name: str, context: CorpusContext) -> CsvFile:
        """The two columns of a file."""
        lines = [line.decode("utf-8-sig", "replace") for line in next(line_chunks(file))[1][:_ROWS_COMPARED]]
        delimiter = _DELIMITERS[self.delimiter] if self.delimiter else delimiter_of(lines)
        if delimiter is None:
            message = f"{file.name} has no columns: no comma, semicolon or tab stands between its cells"
            raise DataError(message, where=f"{file}:1", hint="give a file with source and target in two columns")
        rows = list(filter(None, _readable_rows(lines, delimiter))) or [[]]  # blank lines are no rows
        columns, width = _choose_columns(self, rows, file, context), _num_columns(rows)
        if not columns.are_known and width > 2 and width >= columns.needed:  # else reading says which are missing
            raise _unnamed_columns_error(self, file, rows, context, width=width)
        return CsvFile(((name, file),), file.name, self.weight, file, columns, delimiter, width)


class Columns(NamedTuple):
    """The columns of source and target, counted from 1. They are known if given, or found by their languages."""

    source: int
    target: int
    header: bool
    are_known: bool

    @property
    def needed(self) -> int:
        """The number of columns that a row needs."""
        return max(self.source, self.target)


@dataclass(frozen=True, slots=True)
class TsvFile(LocalPairs):
    """Two columns of a file of tab-separated columns."""

    file: Path
    columns: Columns
    is_quoted: bool

    def read(self) -> Iterator[RawChunk]:
        """The lines below the header. DataError if there is no tab, though a second column is asked for."""
        source, target, header, _ = self.columns
        for number, lines in line_chunks(self.file, skip=int(header)):
            if number == 1 + header:
                self._check_columns(lines)
            yield TsvChunk(len(lines), number, self.origin, b"".join(lines), source, target, self.is_quoted)

    def _check_columns(self, lines: Sequence[bytes]) -> None:
        if self.columns.needed == 1 or any(b"\t" in line for line in lines):
            return
        hint = "separate source and target by one tab"
        separators = [name for mark, name in _WRONG_SEPARATORS.items() if all(mark in line for line in lines)]
        if separators:
            is_csv = separators[0] in ("semicolons", "commas")
            hint += f"; these seem to be separated by {separators[0]}"
            hint += ": write kind: csv, or call the file .csv" if is_csv else ""
        else:
            hint += "; for two files with a sentence per line, --train PREFIX"
        message = f"{self.file.name} has no columns: there is no tab in its first {len(lines):,} lines"
        raise DataError(message, where=f"{self.file}:{1 + self.columns.header}", hint=hint)


@dataclass(frozen=True, slots=True)
class CsvFile(LocalPairs):
    """Two columns of a CSV file; `width` is the number of columns of most rows."""

    file: Path
    columns: Columns
    delimiter: str
    width: int

    def read(self) -> Iterator[RawChunk]:
        """The rows below the header. A row with too few cells is untranslated, with too many it is malformed.

        DataError if a cell is broken.
        """
        yield from unit_chunks(self._pairs(), origin=self.origin)

    def _pairs(self) -> Iterator[UnitPair]:
        """The line and the two cells of each row below the header."""
        source, target, needed = self.columns.source - 1, self.columns.target - 1, self.columns.needed
        rows, num_columns, widest = self._numbered_rows(), max(self.width, needed), 0
        others, fix = f"{num_columns} are expected", "put a line that names all columns before line 1"
        if self.columns.are_known:
            fix += ", with header: true beside source and target"
        if self.columns.header:
            _, names = next(rows, (1, []))
            has_names = len(names) >= needed and names[source].strip() and names[target].strip()
            num_columns = len(names) if has_names else sys.maxsize  # a title above a table says nothing
            others, fix = f"the header {num_columns}", "name all columns in the header"
        for line, row in rows:
            widest = max(widest, len(row))
            if len(row) < needed:
                yield UnitPair(line, join_lines(" ".join(row)), None)
            elif any(map(str.strip, row[num_columns:])):
                fault = f"that row has {len(row)} cells, and {others}: {_QUOTE_CELLS}, or {fix}"
                yield UnitPair(line, join_lines(self.delimiter.join(row)), "", fault)
            else:
                yield UnitPair(line, join_lines(row[source]), join_lines(row[target]))
        if widest == 0:
            raise empty_error(self.file, below_header=self.columns.header)
        if widest < needed:
            message = f"no row of {self.file.name} has a column {needed}: the longest has {widest}"
            hint = "set source and target in the corpus file to columns that it has"
            raise DataError(message, where=str(self.file), hint=hint)

    def _numbered_rows(self) -> Iterator[tuple[int, list[str]]]:
        """The line that each row begins at, and its cells. Blank lines are no rows. DataError for a broken cell."""
        start = 1  # the line that the row begins at

        def lines() -> Iterator[str]:
            for number, line in enumerate(read_lines(self.file), start=1):
                if number - start >= _MAX_LINES_PER_ROW:
                    raise csv.Error(f"it is not closed within {_MAX_LINES_PER_ROW} lines")
                text = line.decode("utf-8", "surrogateescape")
                yield text.removeprefix("\ufeff") if number == 1 else text

        rows = csv.reader(lines(), delimiter=self.delimiter, strict=True, skipinitialspace=True)
        try:
            for row in rows:
                if row:
                    yield start, row
                start = rows.line_num + 1
        except csv.Error as error:
            raise _broken_row_error(self.file, start, str(error)) from None


def _num_columns(rows: Sequence[Sequence[str]]) -> int:
    """The number of columns of most rows, or of the first row if it has more; a title above a table has fewer."""
    return max(len(rows[0]), Counter(map(len, rows)).most_common(1)[0][0])


def _choose_columns(
    table: TsvSource | CsvSource, rows: Sequence[Sequence[str]], file: Path, context: CorpusContext
) -> Columns:
    """The columns. A column that is neither given nor found is 1 for the source and 2 for the target.

    DataError if source and target would be one column, or if a title, or Excel's `sep=;`, hides the names of the two.
    """
    first_row, where = rows[0], f"{file}:1"
    given = _column_index(table.source, first_row, file), _column_index(table.target, first_row, file)
    are_both_given = None not in given
    found = None if are_both_given or table.header is False else find_columns(first_row, context.codes, given=given)
    src, tgt = found or [number if index is None else index for number, index in enumerate(given)]
    if src == tgt and not are_both_given:
        hint = f"set source and target, both of them: the first line has {_shorten(first_row)}"
        raise DataError(f"source and target of {file.name} are both column {src + 1}", where=where, hint=hint)
    are_known = are_both_given or found is not None
    below = next((row for row in rows[1:5] if num_texts(row) > 1), [])
    is_title = table.header is not False and not are_known and num_texts(first_row) == 1 and _num_columns(rows) <= 2
    if is_title and find_columns(below, context.codes, given=(None, None)):
        message = f"line 1 of {file.name} stands above the names of the columns"
        raise DataError(message, where=where, hint=_REMOVE_TITLE)
    is_named = found is not None or isinstance(table.source, str) or isinstance(table.target, str)
    header = is_named if table.header is None else table.header
    return Columns(src + 1, tgt + 1, header, are_known)


def _column_index(column: Column, first_row: Sequence[str], file: Path) -> int | None:
    """The index of a given column, or None. DataError if the first line has no such name."""
    if not isinstance(column, str):
        return None if column is None else column - 1
    names = [name.strip() for name in first_row]
    if column not in names:
        hint = f"it has {_shorten(first_row)}: set source and target to two of these, or to their numbers"
        raise DataError(f"the first line of {file.name} names no column {column}", where=f"{file}:1", hint=hint)
    return names.index(column)


def delimiter_of(lines: Sequence[str]) -> str | None:
    """The delimiter with which most of the first rows have the same number of columns; None if there is none.

    Among equal delimiters, two columns are preferred. Quoted cells are emptied first, so that delimiters inside them do
    not count.
    """
    emptied = re.split(r"[\r\n]", _QUOTED_CELL.sub(r"\1x", "".join(lines)))
    fits: dict[str, tuple[float, bool]] = {}
    for delimiter in _DELIMITERS.values():
        rows = [row for row in _readable_rows(emptied, delimiter) if row]
        width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
        if width > 1:
            fits[delimiter] = (count / len(rows), width == 2)
    return max(fits, key=lambda delimiter: fits[delimiter], default=None)


def _readable_rows(lines: Sequence[str], delimiter: str) -> Iterator[list[str]]:
    """The rows until one is broken. The reading of the whole file raises the error for the broken row."""
    with suppress(csv.Error):
        yield from csv.reader(lines, delimiter=delimiter, skipinitialspace=True)


def num_texts(row: Sequence[str]) -> int:
    """The number of cells that are not blank; a title above a table has one."""
    return sum(map(bool, map(str.strip, row)))


def _unnamed_columns_error(
    table: TsvSource | CsvSource, file: Path, rows: Sequence[Sequence[str]], context: CorpusContext, *, width: int
) -> DataError:
    """The error for unnamed columns. Its fix takes given columns, or those with most text, but of no other language."""
    first_row, settings = rows[0], (table.source, table.target)
    chosen = _longest_columns(rows, [_column_index(column, first_row, file) for column in settings], width=width)
    advice = _REMOVE_TITLE if num_texts(first_row) == 1 else _QUOTE_CELLS
    first_row_fix = f"{advice}, or " if len(first_row) < width else ""
    names = None if first_row_fix else _likely_header(rows, chosen)
    found = [names[index] if names else index + 1 for index in chosen]
    src, tgt = (column if setting is None else setting for column, setting in zip(found, settings, strict=True))
    line_1 = "is a pair, write header: false" if names else "names the columns, write header: true"
    header_advice = "" if first_row_fix else f"; if line 1 {line_1} beside them"
    message = f"{file.name} has {width} columns, and its first line does not call two by {' and '.join(context.codes)}"
    hint = f"{first_row_fix}name the two columns: add {table.setting(context, source=src, target=tgt)}{header_advice}"
    languages, wanted = languages_called(first_row), [short_code(code) for code in context.codes]
    codes = sorted(dict.fromkeys(languages.values()), key=lambda code: (code == wanted[1]) - (code == wanted[0]))
    by_code = f"name two languages that it has: -l {codes[0]}-{codes[-1]}, or " if codes[1:] and codes != wanted else ""
    if by_code or any(languages.get(index, code) != code for index, code in zip(chosen, wanted, strict=True)):
        hint = f"{by_code}set source and target, both of them"
    return DataError(f"{message}: {_shorten(first_row)}", where=f"{file}:1", hint=hint)


def _longest_columns(rows: Sequence[Sequence[str]], given: Sequence[int | None], *, width: int) -> list[int]:
    """The indices of the given columns, and for each that is not given, of one with the most text, in order."""
    lengths = [sum(text_length(row[index]) for row in rows if index < len(row)) for index in range(width)]
    by_length = sorted(set(range(width)).difference(given), key=lambda index: -lengths[index])
    longest = iter(sorted(by_length[: given.count(None)]))
    return [next(longest) if index is None else index for index in given]


def _likely_header(rows: Sequence[Sequence[str]], chosen: Sequence[int]) -> list[str] | None:
    """The names in the first row, if it looks like a header that names the chosen columns; otherwise None.

    A header has no numbers and no sentences. It names two languages, or texts below it are numbers only, or are longer.
    """
    names, below = [cell.strip() for cell in rows[0]], rows[1:]
    are_names = all(_COLUMN_NAME.fullmatch(name) for name in names if name)
    are_unique = len(names) > max(chosen) and all(names[index] and names.count(names[index]) == 1 for index in chosen)
    if not (below and are_names and are_unique):
        return None
    columns = [[row[index].strip() for row in below if index < len(row)] for index in range(len(names))]
    has_numbers = any(
        name and column and all(map(_NUMBER.fullmatch, column)) for name, column in zip(names, columns, strict=True)
    )
    is_shorter = all(2 * len(names[index]) * len(columns[index]) < len("".join(columns[index])) for index in chosen)
    return names if has_numbers or is_shorter or len({*languages_called(names).values()}) > 1 else None


def _broken_row_error(file: Path, line: int, message: str) -> DataError:
    hint = 'write a quote inside a quoted cell twice (""), and one quote where the cell ends'
    if message.startswith("new-line character"):
        message, as_rows = "a carriage return stands in it without quotes", conversion(file, r"tr '\r' '\n'", new="lf")
        hint = f"put quotes around the cell, or, if a row ends there: {as_rows}"
    reason = {
        "unexpected end of data": "it is not closed before the end of the file",
        "field larger than field limit (131072)": "it is not closed within 131,072 characters",
    }.get(message, message)
    return DataError(f"a cell in line {line:,} of {file.name} is broken: {reason}", where=f"{file}:{line}", hint=hint)


def _shorten(cells: Sequence[str]) -> str:
    """The beginnings of some cells, for an error."""
    more = ["..."] if len(cells) > _CELLS_SHOWN else []
    return ", ".join([*(repr(cell.strip()[:_CELL_CHARACTERS]) for cell in cells[:_CELLS_SHOWN]), *more])
