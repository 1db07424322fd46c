"""Lines of text: plain files, the messages of PO files, and the cells of tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from shlex import quote

import polib

from nmt_cli.documents.marked_text import MarkedText
from nmt_cli.documents.markup import PLAIN, parse_markup, write_plain
from nmt_cli.documents.parts import Block, Part, blocks_of
from nmt_cli.errors import DataError
from nmt_cli.languages import match_code
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.tokenization.pieces import Range

_LINE = re.compile(r"[^\r\n]+")
_PO_STRINGS = r'"(?:[^"\\\n]|\\.)*"(?:\s*\n[ \t]*"(?:[^"\\\n]|\\.)*")*'
# In the header, which is the translation of the empty text.
_PO_LANGUAGE = re.compile(r'^"Language: *([A-Za-z][\w@-]*) *\\n"', re.M)
_PO_FIELD = re.compile(
    rf"^(?P<name>msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)[ \t]*(?P<strings>{_PO_STRINGS})", re.M
)
_PO_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_DELIMITERS = ",;\t"


def text_parts(text: str) -> list[Part]:
    """Each line of a text as a block; tags are text as well."""
    parts: list[Part] = []
    position = 0
    for match in _LINE.finditer(text):
        line = match[0].strip()
        start = match.start() + match[0].find(line)
        if any(map(str.isalpha, line)):
            parts += [text[position:start], Block(MarkedText(line), write_plain)]
            position = start + len(line)
    return [*parts, text[position:]]


def marked_parts(text: str, escape: Callable[[str], str]) -> list[Part]:
    """Each line of a text with tags as a block; `escape` writes text as the document spells it."""
    parts: list[Part] = []
    position = 0
    for match in _LINE.finditer(text):
        parts.append(escape(text[position : match.start()]))
        for part in parse_markup(match[0], PLAIN).parts:
            parts.append(escape(part) if isinstance(part, str) else _escaped(part, escape))
        position = match.end()
    return [*parts, escape(text[position:])]


def _escaped(block: Block, escape: Callable[[str], str]) -> Block:
    return Block(block.text, lambda translation: escape(block.write(translation)))


def po_parts(text: str, *, languages: LanguagePair, name: str) -> list[Part]:
    """The messages of a PO file or template without a translation, in the places of their translations.

    The first plural form translates the singular, and all others translate the plural. DataError if the file is not PO,
    or is for another target language.
    """
    language = _PO_LANGUAGE.search(text)
    if language and match_code(languages.target, [language[1].replace("_", "-")]) is None:
        message = f"{name} is to be translated into {language[1]}, and this model translates into {languages.target}"
        raise DataError(message, where=name, hint="give a model of this language with -m, or another file")
    parts: list[Part] = []
    position = end = 0
    message = plural = name_before = ""
    comments: Range | None = None
    for match in _PO_FIELD.finditer(text):
        value = "".join(map(polib.unescape, _PO_STRING.findall(match["strings"])))
        if match["name"] == "msgctxt" or (match["name"] == "msgid" and name_before != "msgctxt"):
            comments = end, match.start()
        if match["name"] == "msgid":
            message = plural = value
        elif match["name"] == "msgid_plural":
            plural = value
        elif match["name"].startswith("msgstr") and message and not value:
            source = message if match["name"] in ("msgstr", "msgstr[0]") else plural
            if comments:
                parts += [text[position : comments[0]], _with_fuzzy(text[slice(*comments)])]
                position, comments = comments[1], None
            parts += [text[position : match.start("strings")], *_po_string(source)]
            position = match.end()
        end, name_before = match.end(), match["name"]
    if not position and "msgid" not in text and text.strip():
        hint = 'a PO file has lines such as msgid "text" and msgstr ""'
        raise DataError(f"{name} is not PO", where=name, hint=hint)
    return [*parts, text[position:]]


def _with_fuzzy(comments: str) -> str:
    """The comments before a message, which say that a translator has to look at its translation."""
    if re.search(r"^#,.*\bfuzzy\b", comments, re.M):
        return comments
    flagged, num_flags = re.subn(r"^#,", "#, fuzzy,", comments, count=1, flags=re.M)
    return flagged if num_flags else f"{comments}#, fuzzy\n"


def _po_string(source: str) -> list[Part]:
    """A string of a PO file; one with line breaks has a line for each of its lines, as gettext writes it."""
    lines = source.splitlines(keepends=True)
    parts: list[Part] = ['""\n' if len(lines) > 1 else ""]
    for number, line in enumerate(lines):
        parts += ["\n" if number else "", '"', *marked_parts(line, polib.escape), '"']
    return parts


def table_parts(text: str, *, column: str | None, delimiter: str | None, name: str) -> list[Part]:
    """The cells of a column of a CSV or TSV file. The other cells stay as they are.

    `column` is a name in the first row, or the number of a column of a table without a row of names. None means the
    only column. DataError if there is no such column.
    """
    if delimiter is None:
        delimiter = max(_DELIMITERS, key=text.partition("\n")[0].count)
    rows = _cells_by_row(text, delimiter)
    names = [_unquoted(text[start:end]).strip() for start, end in rows[0]] if rows else []
    has_names = not (column or "").isdecimal() or column in names
    if has_names:
        column = names[0] if column is None and len(names) == 1 else column
        if column not in names:
            message = f"{name} has the columns {', '.join(names)}"
            hint = f"say which one to translate: --column {quote(names[0] if names else 'NAME')}"
            raise DataError(message if column is None else f"{message}, and no {column}", where="--column", hint=hint)
        index = names.index(column)
    else:
        index, num_columns = int(column or 0) - 1, max(map(len, rows), default=0)
        if not 0 <= index < num_columns:
            message = f"{name} has {num_columns} columns, and no number {column}"
            raise DataError(message, where="--column", hint="count columns from 1: --column 1")
    parts: list[Part] = []
    position = 0
    for row in rows[has_names:]:
        if index < len(row):
            start, end = row[index]
            parts += [text[position:start], *_cell(text[start:end], delimiter)]
            position = end
    return [*parts, text[position:]]


def _cells_by_row(text: str, delimiter: str) -> list[list[tuple[int, int]]]:
    """Where each cell of each row begins and ends, with its quotes."""
    # A quote inside of a cell that does not begin with one is a character of it, as in most TSV files.
    cell = re.compile(rf'("(?:[^"]|"")*"(?=[{delimiter}\r\n]|\Z)|[^{delimiter}\r\n]*)({delimiter}|\r?\n|\r|\Z)')
    rows: list[list[tuple[int, int]]] = [[]]
    position = 0
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
            return [Block(block.text, lambda translation: _quoted_if_needed(block.write(translation), delimiter))]
    return ['"', *marked_parts(inner, _doubled), '"']


def _doubled(text: str) -> str:
    return text.replace('"', '""')


def _quoted_if_needed(text: str, delimiter: str) -> str:
    return f'"{_doubled(text)}"' if delimiter in text or '"' in text else text
