"""TSV and CSV: rows of cells, of which two columns are taken."""

from __future__ import annotations

import csv
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Literal, TypeAlias

from pydantic import Field

from nmt_cli.errors import DataError
from nmt_cli.preparing.chunks import Chunk, UnitPair, record_chunk, unit_chunks
from nmt_cli.preparing.sources.base import CorpusContext, LocalPairs, Weight, empty_error
from nmt_cli.preparing.sources.columns import GIVE_COLUMNS, Columns, TableSource, choose_columns, width_of
from nmt_cli.preparing.sources.lines import join_lines, line_chunks, read_lines
from nmt_cli.preparing.sources.translation_units import KeepUnfinished, log_unfinished

logger = logging.getLogger(__name__)

DelimiterName: TypeAlias = Literal["comma", "semicolon", "tab"]

_DELIMITERS: Mapping[DelimiterName, str] = {"tab": "\t", "semicolon": ";", "comma": ","}
_QUOTED_CELL = re.compile(r'"[^"]*(?:""[^"]*)*"')
# The same between two delimiters of any kind, or the ends of a line.
_QUOTED_CELL_IN_LINE = re.compile(r'(^|[,;\t\r\n]) *"[^"]*(?:""[^"]*)*" *(?=[,;\t\r\n]|$)')
_FIRST_ROWS = 200
_MAX_LINES_PER_ROW = 100


class TsvSource(TableSource):
    """A file of tab-separated columns, also quoted as in CSV; plain or compressed."""

    kind: Literal["tsv"] = Field(description="two columns of one file")
    weight: Weight = 1.0

    def local_pairs(self, file: Path, name: str, context: CorpusContext) -> TsvFile | CsvFile:
        """The two columns of a file."""
        _, lines = next(line_chunks(file))
        rows_over_lines = rows_over_several_lines(lines)
        rows = rows_over_lines or tsv_rows(lines)
        columns = choose_columns(rows, file=file, settings=self, languages=context.codes)
        if rows_over_lines:
            logger.info("%s: quoted cells have line breaks, and are read as in CSV", name)
            return CsvFile(((name, file),), file.name, self.weight, file, columns, "\t", width_of(rows), False)
        is_quoted = are_quoted(lines)
        if is_quoted:
            logger.info("%s: cells are quoted as in CSV, and the quotes are taken off", name)
        return TsvFile(((name, file),), file.name, self.weight, file, columns, is_quoted)


class CsvSource(TableSource):
    """A CSV file, with quoting and line breaks in cells; plain or compressed. More than two columns need names."""

    kind: Literal["csv"] = Field(description="two columns of one file")
    delimiter: DelimiterName | None = Field(
        None, description="what stands between cells; null: as the first lines have it"
    )
    weight: Weight = 1.0
    keep_unfinished: KeepUnfinished = False

    def local_pairs(self, file: Path, name: str, context: CorpusContext) -> CsvFile:
        """The two columns of a file."""
        lines = next(line_chunks(file))[1][:_FIRST_ROWS]
        delimiter = _DELIMITERS[self.delimiter] if self.delimiter else find_delimiter(lines)
        if delimiter is None:
            message = f"{file.name} has no columns: no comma, semicolon or tab stands between its cells"
            raise DataError(message, where=f"{file}:1", hint="give a file with source and target in two columns")
        rows = list(filter(None, csv_rows(lines, delimiter))) or [[]]  # blank lines are no rows
        columns = choose_columns(rows, file=file, settings=self, languages=context.codes)
        inputs = ((name, file),)
        return CsvFile(inputs, file.name, self.weight, file, columns, delimiter, width_of(rows), self.keep_unfinished)


@dataclass(frozen=True, slots=True)
class TsvFile(LocalPairs):
    """Two columns of a file of tab-separated columns."""

    file: Path
    columns: Columns
    is_quoted: bool

    def read(self) -> Iterator[Chunk]:
        """The lines below the header. A line with too few cells is malformed.

        DataError if there is no tab, though a second column is asked for, or if quoted cells have line breaks.
        """
        skip = int(self.columns.has_header)
        for number, lines in line_chunks(self.file, skip=skip):
            if number == 1 + skip and self.columns.needed > 1 and not any("\t" in line for line in lines):
                hint = "separate source and target by one tab, or call a table with commas or semicolons .csv"
                message = f"{self.file.name} has no columns: there is no tab in its first lines"
                raise DataError(message, where=f"{self.file}:{number}", hint=hint)
            seem_broken = any('"' in line and line.count("\t") < self.columns.needed - 1 for line in lines)
            if seem_broken and rows_over_several_lines(lines):
                message = f"quoted cells of {self.file.name} have line breaks, as in CSV, below line {number:,}"
                copy = self.file.with_name(self.file.name.replace(".tsv", ".csv"))
                hint = f"give it the ending of CSV: cp {quote(str(self.file))} {quote(str(copy))}"
                raise DataError(message, where=f"{self.file}:{number}", hint=hint)
            pairs = list(map(self._pair, lines))
            yield record_chunk(lines, pairs, first_line=number, origin=self.origin, describe=self._describe_malformed)

    def _pair(self, line: str) -> tuple[str, str] | None:
        row = line.split("\t")
        if len(row) < self.columns.needed:
            return None
        src, tgt = row[self.columns.source - 1], row[self.columns.target - 1]
        return (unquote(src), unquote(tgt)) if self.is_quoted and '"' in line else (src, tgt)

    def _describe_malformed(self, line: str) -> str:
        num_columns = line.count("\t") + 1
        number = "1 column" if num_columns == 1 else f"{num_columns:,} columns"
        return (
            f"columns {self.columns.source} and {self.columns.target} are looked for, and that line has {number}: mend "
            "the line, or give two columns that it has: --columns 1,2"
        )


@dataclass(frozen=True, slots=True)
class CsvFile(LocalPairs):
    """Two columns of a CSV file; `width` is the number of columns of most rows."""

    file: Path
    columns: Columns
    delimiter: str
    width: int
    keep_unfinished: bool

    def read(self) -> Iterator[Chunk]:
        """The rows below the header. A row with too few cells is untranslated, with too many it is malformed.

        DataError if a cell is broken, or if no row has the two columns.
        """
        yield from unit_chunks(self._pairs(), origin=self.origin)

    def _pairs(self) -> Iterator[UnitPair]:
        """The line and the two cells of each row below the header. A row that is marked as fuzzy is untranslated."""
        source, target, needed = self.columns.source - 1, self.columns.target - 1, self.columns.needed
        rows, longest = self._numbered_rows(), 0
        names = next(rows, (1, []))[1] if self.columns.has_header else None
        most_cells = max(self.width, needed) if names is None or len(names) < needed else len(names)
        marks = [] if self.keep_unfinished else [name.strip().lower() == "fuzzy" for name in names or []]
        num_unfinished = 0
        for line, row in rows:
            longest = max(longest, len(row))
            if len(row) < needed:
                yield UnitPair(line, join_lines(" ".join(row)), None)
            elif any(map(str.strip, row[most_cells:])):
                fault = f"that row has {len(row)} cells, and {most_cells} are expected: put quotes around cells with a "
                fault += "delimiter, or name all columns in line 1"
                yield UnitPair(line, join_lines(self.delimiter.join(row)), "", fault)
            elif any(mark and cell.strip().lower() == "true" for mark, cell in zip(marks, row, strict=False)):
                num_unfinished += 1
                yield UnitPair(line, join_lines(row[source]), None)
            else:
                yield UnitPair(line, join_lines(row[source]), join_lines(row[target]))
        log_unfinished(self.file, num_unfinished)
        if longest == 0:
            raise empty_error(self.file, below_header=self.columns.has_header)
        if longest < needed:
            message = f"no row of {self.file.name} has a column {needed}: the longest has {longest}"
            raise DataError(message, where=str(self.file), hint=f"{GIVE_COLUMNS} 1,2")

    def _numbered_rows(self) -> Iterator[tuple[int, list[str]]]:
        """The line that each row begins at, and its cells. Blank lines are no rows. DataError for a broken cell."""
        start = 1  # the line that the row begins at

        def lines() -> Iterator[str]:
            for number, line in enumerate(read_lines(self.file), start=1):
                if number - start >= _MAX_LINES_PER_ROW:
                    raise csv.Error(f"it is not closed within {_MAX_LINES_PER_ROW} lines")
                yield line.decode("utf-8", "surrogateescape")

        rows = csv.reader(lines(), delimiter=self.delimiter, strict=True, skipinitialspace=True)
        try:
            for row in rows:
                if row:
                    yield start, row
                start = rows.line_num + 1
        except csv.Error as error:
            message = f"a cell in line {start:,} of {self.file.name} is broken: {error}"
            hint = "put quotes around a cell that has a quote or a line break in it, and write such a quote twice"
            raise DataError(message, where=f"{self.file}:{start}", hint=hint) from None


def unquote(cell: str) -> str:
    """The text of a cell that is quoted as in CSV; any other cell unchanged."""
    return cell[1:-1].replace('""', '"') if _QUOTED_CELL.fullmatch(cell) else cell


def are_quoted(lines: Sequence[str]) -> bool:
    """True if cells of TSV are quoted as in CSV: all texts below a header, or those with quotes, one of them inside."""
    with_quotes = [cell for line in lines if '"' in line for cell in line.split("\t") if '"' in cell]
    if not with_quotes or not all(map(_QUOTED_CELL.fullmatch, with_quotes)):
        return False
    below_header = lines if '"' in lines[0] else lines[1:]
    texts = [cell for line in below_header for cell in line.split("\t") if _is_text(cell.strip())]
    are_all_quoted = len(texts) > 2 and all('"' in cell for cell in texts)  # a single pair may be two quotations
    return are_all_quoted or any('"' in cell[1:-1] for cell in with_quotes)


def _is_text(cell: str) -> bool:
    """False for a blank cell, and for a number or an identifier: a single word with digits."""
    return bool(cell) and (" " in cell or not any(map(str.isdigit, cell)))


def tsv_rows(lines: Sequence[str]) -> list[list[str]]:
    """The cells of each line of TSV, without the quotes of CSV."""
    return [[*map(unquote, line.split("\t"))] if '"' in line else line.split("\t") for line in lines]


def csv_rows(lines: Sequence[str], delimiter: str) -> Iterator[list[str]]:
    """The rows of lines of CSV until one is broken. Reading the whole file raises the error for the broken row."""
    with suppress(csv.Error):
        yield from csv.reader(lines, delimiter=delimiter, skipinitialspace=True)


def rows_over_several_lines(lines: Sequence[str]) -> list[list[str]]:
    """The rows of lines of TSV, if quoted cells have line breaks, as spreadsheets write them; else none.

    A stray quote at the start of a cell would seem to last until another quote, over tabs or within a cell.
    """
    rows: list[list[str]] = []
    try:
        rows.extend(csv.reader((f"{line}\n" for line in lines), delimiter="\t", strict=True))
    except csv.Error as error:
        if str(error) != "unexpected end of data":  # of the last row, which may go on below these lines
            return []
    broken = [row for row in rows if any("\n" in cell for cell in row)]
    width = Counter(map(len, rows)).most_common(1)
    is_table = all(len(row) == width[0][0] and not any("\t" in cell for cell in row) for row in broken)
    return [*filter(None, rows)] if broken and is_table else []


def find_delimiter(lines: Sequence[str]) -> str | None:
    """The delimiter with which most of the first lines have the same number of columns; None if there is none.

    Among equal delimiters, two columns are preferred. Quoted cells are emptied first, so that delimiters inside them do
    not count.
    """
    rows = list(filter(None, re.split(r"[\r\n]", _QUOTED_CELL_IN_LINE.sub(r"\1x", "\n".join(lines)))))
    fits: dict[str, tuple[int, bool]] = {}
    for delimiter in _DELIMITERS.values():
        width, count = Counter(row.count(delimiter) + 1 for row in rows).most_common(1)[0] if rows else (1, 0)
        if width > 1:
            fits[delimiter] = (count, width == 2)
    return max(fits, key=lambda delimiter: fits[delimiter], default=None)
