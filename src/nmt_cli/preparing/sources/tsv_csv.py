"""TSV and CSV: rows of cells, of which two columns are taken."""

from __future__ import annotations

import csv
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Literal, TypeAlias

from pydantic import Field

from nmt_cli.errors import DataError
from nmt_cli.preparing.chunks import Chunk, UnitPair, record_chunk, unit_chunks
from nmt_cli.preparing.sources.base import empty_error
from nmt_cli.preparing.sources.columns import GIVE_COLUMNS, Columns, TableSource, choose_columns, width_of
from nmt_cli.preparing.sources.lines import LONGEST_LINE, join_lines, line_chunks, read_lines
from nmt_cli.preparing.sources.translation_units import KeepUnfinished, log_unfinished

logger = logging.getLogger(__name__)

DelimiterName: TypeAlias = Literal["comma", "semicolon", "tab"]

_DELIMITERS: Mapping[DelimiterName, str] = {"tab": "\t", "semicolon": ";", "comma": ","}
_QUOTED_CELL = re.compile(r'"[^"]*(?:""[^"]*)*"')
# The same between two delimiters of any kind, or the ends of a line.
_QUOTED_CELL_IN_LINE = re.compile(r'(^|[,;\t\r\n]) *"[^"]*(?:""[^"]*)*" *(?=[,;\t\r\n]|$)')
_FIRST_ROWS = 200
_MAX_LINES_PER_ROW = 100

csv.field_size_limit(LONGEST_LINE)


class TsvSource(TableSource):
    """A file of tab-separated columns, also quoted as in CSV; plain or compressed."""

    endings = (".tsv",)
    kind: Literal["tsv"] = Field(description="two columns of one file")

    def reader(self, file: Path, languages: tuple[str, str]) -> Callable[[], Iterator[Chunk]]:
        """The function that reads the two columns of a file."""
        _, lines = next(line_chunks(file))
        if have_line_breaks(lines):
            logger.info("%s: quoted cells have line breaks, and are read as in CSV", file.name)
            rows = csv_rows(lines, "\t")
            columns = choose_columns(rows, file=file, settings=self, languages=languages)
            return partial(read_csv, file, columns, delimiter="\t", width=width_of(rows), keep_unfinished=False)
        rows = [[*map(unquote, line.split("\t"))] for line in lines]
        columns = choose_columns(rows, file=file, settings=self, languages=languages)
        if is_quoted := are_quoted(lines):
            logger.info("%s: cells are quoted as in CSV, and the quotes are taken off", file.name)
        return partial(read_tsv, file, columns, is_quoted=is_quoted)


class CsvSource(TableSource):
    """A CSV file, with quoting and line breaks in cells; plain or compressed. More than two columns need names."""

    endings = (".csv",)
    kind: Literal["csv"] = Field(description="two columns of one file")
    delimiter: DelimiterName | None = Field(
        None, description="what stands between cells; null: as the first lines have it"
    )
    keep_unfinished: KeepUnfinished = False

    def reader(self, file: Path, languages: tuple[str, str]) -> Callable[[], Iterator[Chunk]]:
        """The function that reads the two columns of a file."""
        lines = next(line_chunks(file))[1][:_FIRST_ROWS]
        delimiter = _DELIMITERS[self.delimiter] if self.delimiter else find_delimiter(lines)
        if delimiter is None:
            message = f"{file.name} has no columns: no comma, semicolon or tab stands between its cells"
            raise DataError(message, where=f"{file}:1", hint="give a file with source and target in two columns")
        rows = csv_rows(lines, delimiter) or [[]]
        columns = choose_columns(rows, file=file, settings=self, languages=languages)
        width, keep_unfinished = width_of(rows), self.keep_unfinished
        return partial(read_csv, file, columns, delimiter=delimiter, width=width, keep_unfinished=keep_unfinished)


def read_tsv(file: Path, columns: Columns, *, is_quoted: bool) -> Iterator[Chunk]:
    """The two columns of the lines below the header. A line with too few cells is malformed.

    If the file `is_quoted`, cells that are quoted as in CSV lose their quotes, and any other quote stays.

    DataError if there is no tab, though a second column is asked for, or if quoted cells have line breaks.
    """
    source, target, needed, skip = columns.source - 1, columns.target - 1, columns.needed, int(columns.has_header)

    def describe_malformed(line: str) -> str:
        looked_for, number = f"columns {columns.source} and {columns.target} are looked for", line.count("\t") + 1
        found = f"that line has {number} column{'s' if number > 1 else ''}"
        return f"{looked_for}, and {found}: mend the line, or give two columns that it has: --columns SOURCE,TARGET"

    for number, lines in line_chunks(file, skip=skip):
        if number == 1 + skip and needed > 1 and not any("\t" in line for line in lines):
            hint = "separate source and target by one tab, or call a table with commas or semicolons .csv"
            message = f"{file.name} has no columns: there is no tab in its first lines"
            raise DataError(message, where=f"{file}:{number}", hint=hint)
        seem_broken = any('"' in line and line.count("\t") < needed - 1 for line in lines)
        if seem_broken and have_line_breaks(lines):
            message = f"quoted cells of {file.name} have line breaks, as in CSV, below line {number:,}"
            copy = file.with_name(re.sub(r"\.tsv", ".csv", file.name, flags=re.IGNORECASE))
            hint = f"give it the ending of CSV: cp {quote(str(file))} {quote(str(copy))}"
            raise DataError(message, where=f"{file}:{number}", hint=hint)
        rows = (line.split("\t") for line in lines)
        pairs = [(row[source], row[target]) if len(row) >= needed else None for row in rows]
        if is_quoted:
            pairs = [pair and (unquote(pair[0]), unquote(pair[1])) for pair in pairs]
        yield record_chunk(lines, pairs, first_line=number, origin=file.name, describe=describe_malformed)


def read_csv(file: Path, columns: Columns, *, delimiter: str, width: int, keep_unfinished: bool) -> Iterator[Chunk]:
    """The two columns of the rows below the header; `width` is the number of columns of most rows.

    A row with too few cells is untranslated, with too many it is malformed. DataError if a cell is broken, or if no row
    has the two columns.
    """
    source, target, needed = columns.source - 1, columns.target - 1, columns.needed
    rows = _numbered_rows(file, delimiter)
    names = next(rows, (1, []))[1] if columns.has_header else None
    most_cells = max(width, needed) if names is None or len(names) < needed else len(names)
    marks = [] if keep_unfinished else [name.strip().lower() == "fuzzy" for name in names or []]
    longest = num_unfinished = 0

    def pairs() -> Iterator[UnitPair]:
        """The line and the two cells of each row. A row that is marked as fuzzy is untranslated."""
        nonlocal longest, num_unfinished
        for line, row in rows:
            longest = max(longest, len(row))
            if len(row) < needed:
                yield UnitPair(line, join_lines(" ".join(row)), None)
            elif any(map(str.strip, row[most_cells:])):
                fault = f"that row has {len(row)} cells, and {most_cells} are expected: put quotes around cells with a "
                fault += "delimiter, or name all columns in line 1"
                yield UnitPair(line, join_lines(delimiter.join(row)), "", fault)
            elif any(mark and cell.strip().lower() == "true" for mark, cell in zip(marks, row, strict=False)):
                num_unfinished += 1
                yield UnitPair(line, join_lines(row[source]), None)
            else:
                yield UnitPair(line, join_lines(row[source]), join_lines(row[target]))

    yield from unit_chunks(pairs(), origin=file.name)
    log_unfinished(file, num_unfinished)
    if longest == 0:
        raise empty_error(file, below_header=columns.has_header)
    if longest < needed:
        message = f"no row of {file.name} has a column {needed}: the longest has {longest}"
        raise DataError(message, where=str(file), hint=GIVE_COLUMNS)


def _numbered_rows(file: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The line that each row begins at, and its cells. Blank lines are no rows. DataError for a broken cell."""
    start = 1  # the line that the row begins at

    def lines() -> Iterator[str]:
        for number, line in enumerate(read_lines(file), start=1):
            if number - start >= _MAX_LINES_PER_ROW:
                raise csv.Error(f"it is not closed within {_MAX_LINES_PER_ROW} lines")
            yield line.decode("utf-8", "surrogateescape")

    rows = csv.reader(lines(), delimiter=delimiter, strict=True, skipinitialspace=True)
    try:
        for row in rows:
            if row:
                yield start, row
            start = rows.line_num + 1
    except csv.Error as error:
        message = f"a cell in line {start:,} of {file.name} is broken: {error}"
        hint = "put quotes around a cell that has a quote or a line break in it, and write such a quote twice"
        raise DataError(message, where=f"{file}:{start}", hint=hint) from None


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


def csv_rows(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    """The rows of lines of CSV until one is broken. Reading the whole file raises the error for the broken row."""
    rows: list[list[str]] = []
    with suppress(csv.Error):
        rows.extend(csv.reader(lines, delimiter=delimiter, skipinitialspace=True))
    return [row for row in rows if row]  # blank lines are no rows


def have_line_breaks(lines: Sequence[str]) -> bool:
    """True if quoted cells in lines of TSV have line breaks, as spreadsheets write them.

    A stray quote at the start of a cell would seem to last until another quote, over tabs or within a cell.
    """
    rows: list[list[str]] = []
    try:
        rows.extend(csv.reader((f"{line}\n" for line in lines), delimiter="\t", strict=True))
    except csv.Error as error:
        if str(error) != "unexpected end of data":  # of the last row, which may go on below these lines
            return False
    broken = [row for row in rows if any("\n" in cell for cell in row)]
    width = Counter(map(len, rows)).most_common(1)
    return bool(broken) and all(len(row) == width[0][0] and not any("\t" in cell for cell in row) for row in broken)


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
