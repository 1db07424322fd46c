"""The cells of CSV and TSV files."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import partial
from shlex import quote

from nmt_cli.documents.lines import text_parts
from nmt_cli.documents.markup import parse_markup
from nmt_cli.documents.markup_tokens import PLAIN
from nmt_cli.documents.parts import Block, Part, blocks_of
from nmt_cli.errors import DataError, nearest_word

logger = logging.getLogger(__name__)

_DELIMITERS = ",;\t"
# Excel reads this line as the delimiter.
_DELIMITER_LINE = re.compile(r"\"?sep=([^\w\r\n\"])\"?(?:\r\n?|\n)", re.IGNORECASE)


def table_parts(text: str, *, column: str | None, delimiter: str | None, name: str) -> list[Part]:
    """The cells of a column of a CSV or TSV file. The other cells stay as they are.

    `column` is a name in the first row, or the number of a column of a table without a row of names. None means the
    only column. DataError if there is no such column.
    """
    first_line = _DELIMITER_LINE.match(text)
    start = first_line.end() if first_line else 0
    delimiter = first_line[1] if first_line else delimiter or max(_DELIMITERS, key=text.partition("\n")[0].count)
    rows = _cells_by_row(text, delimiter, start=start)
    if not rows:
        return [text]
    names = [_unquoted(text[start:end]).strip() for start, end in rows[0]]
    has_names = not (column or "").isdecimal() or column in names
    if has_names:
        column = names[0] if column is None and len(names) == 1 else column
        if column not in names:
            message = f"{name} has the columns {', '.join(names)}"
            near = nearest_word(column or "text", names) or names[0]
            hint = f"say which one to translate: `column: {quote(near)}`"
            raise DataError(message if column is None else f"{message}, and no {column}", setting="column", hint=hint)
        index = names.index(column)
        if len(names) == 1:
            logger.info("%s: the first row names the column and stays: %s", name, column)
    else:
        index, num_columns = int(column or 0) - 1, max(map(len, rows))
        if not 0 <= index < num_columns:
            message = f"{name} has {num_columns} columns, and no number {column}"
            raise DataError(message, setting="column", hint="count columns from 1: `column: 1`")
    wider = [row for row in rows if len(row) > len(rows[0])]
    if wider:
        line = text.count("\n", 0, wider[0][0][0]) + 1
        message = "%s: line %d has more cells than the first row: a cell with a %r needs quotes around it"
        logger.warning(message, name, line, delimiter)
    parts: list[Part] = []
    position = 0
    for row in rows[has_names:]:
        if index < len(row):
            start, end = row[index]
            parts += [text[position:start], *_cell(text[start:end], delimiter)]
            position = end
    return [*parts, text[position:]]


def _cells_by_row(text: str, delimiter: str, *, start: int) -> list[list[tuple[int, int]]]:
    """Where each cell of each row from `start` on begins and ends, with its quotes."""
    # A quote inside of a cell that does not begin with one is a character of it, as in most TSV files.
    end = re.escape(delimiter)
    cell = re.compile(rf'("(?:[^"]|"")*"(?=[{end}\r\n]|\Z)|[^{end}\r\n]*)({end}|\r?\n|\r|\Z)')
    rows: list[list[tuple[int, int]]] = [[]]
    position = start
    while position < len(text):
        match = cell.match(text, position)
        assert match is not None
        rows[-1].append(match.span(1))
        position = match.end()
        if match[2] != delimiter:
            rows.append([])
    return [row for row in rows if row]


def _unquoted(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell


def _cell(cell: str, delimiter: str) -> Sequence[Part]:
    """The parts of a cell. It stays quoted or not, but a translation that needs quotes gets them."""
    inner = _unquoted(cell)
    parts = parse_markup(inner, PLAIN).parts
    if inner == cell and (delimiter == "\t" or not blocks_of(parts)):
        return parts
    match parts:
        case [Block() as block] if inner == cell:
            return [block.respelled(partial(_quoted_if_needed, delimiter=delimiter))]
    return ['"', *text_parts(inner, _doubled), '"']


def _doubled(text: str) -> str:
    return text.replace('"', '""')


def _quoted_if_needed(text: str, *, delimiter: str) -> str:
    return f'"{_doubled(text)}"' if delimiter in text or '"' in text else text
