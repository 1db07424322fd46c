"""Structured files (TMX, CSV, HTML and the like): `nmt decode` refuses them with a command that takes the text out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nmt_cli.errors import DataError
from nmt_cli.languages import language_name, languages_called, match_code
from nmt_cli.text_encoding import STDIN, decompressor_of, not_utf8_error, shell_pipe, wide_encoding

_ROWS_LOOKED_AT = 5  # for the names of the columns
_TAB_IN_FIRST_ROWS = re.compile(rf"(?:[^\n\t]*\n){{0,{_ROWS_LOOKED_AT - 1}}}[^\n]*\t")


class _Command(NamedTuple):
    """A command that reads a file on stdin and prints its texts, one per line; `note` tells for which texts it is."""

    line: str
    note: str = ""
    needs_utf8: bool = False


@dataclass(frozen=True, slots=True)
class _Structure:
    """A kind of file with more than the lines of a text; `beginning` is how its text begins.

    If plain text may begin so too, the name of the file must have one of `endings`. `make_command` takes the text, and
    the code of the language to take out, or "".
    """

    kind: str
    beginning: re.Pattern[str]
    make_command: Callable[[str, str], _Command]
    endings: Collection[str] = ()


def check_unstructured(beginning: bytes, *, name: str, find_code: Callable[[], str] | None = None) -> None:
    """Raise DataError, with the command that takes the text out, if a text is a file of TMX, CSV or the like.

    A file is recognised by its first bytes, and a table also by the ending of its name. `find_code` returns
    the code of the language to take out, or "" if it is unknown, as it is without `find_code`. If the command reads
    UTF-8 only, the error is that of a line that is not.
    """
    file = Path(name)
    ending = Path(file.stem if decompressor_of(file) else file.name).suffix.lower()
    encoding = wide_encoding(beginning)
    text = beginning.decode(encoding or "utf-8", "replace").removeprefix("\ufeff")
    if encoding == "UTF-32":  # none of the commands reads it; the caller's check of the encoding refuses it
        return
    for structure in _STRUCTURES if encoding is None else _XML_STRUCTURES:  # the commands for XML also read UTF-16
        if structure.beginning.match(text) and (not structure.endings or ending in structure.endings):
            command = structure.make_command(text, find_code() if find_code else "")
            if command.needs_utf8:
                _check_utf8(beginning, name=name)
            message = f"{STDIN if name == STDIN else file.name} is {structure.kind}, not lines of text"
            note = f"{command.note}: " if command.note else ""
            pipe = shell_pipe(None if name == STDIN else file, command.line)
            raise DataError(message, where=name, hint=f"{note}{pipe} > NEW")


def _check_utf8(beginning: bytes, *, name: str) -> None:
    """Raise DataError for the first whole line that is not UTF-8."""
    for number, line in enumerate(beginning.split(b"\n")[:-1], start=1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            raise not_utf8_error(line, name=name, number=number) from None


def _xml_command(elements: str) -> str:
    """A command that prints the text of each element `s` of the tree `t`, without codes, notes, other translations."""
    return (
        'python3 -c "import re, sys, xml.etree.ElementTree as E; t = E.parse(sys.stdin.buffer); '
        "[(k := s.tail, s.clear(), setattr(s, 'tail', k)) for s in [*t.iter()] if re.fullmatch("
        "'(.*})?(alt-trans|bpt|ept|ignorable|it|matches|note|ph|prop|ut)', s.tag)]; "
        f"[(print(*''.join(s.itertext()).split()), s.clear()) {elements}]\""
    )


def _tmx_command(text: str, language: str) -> _Command:
    """The command for a translation memory: it takes the language of each unit, or else the unit's first."""
    codes = re.findall(r"<tuv\b[^>]*\blang\s*=\s*[\"']([\w-]+)", text)
    code = match_code(language, codes) if codes else language
    if not code:
        note = "for the first language of each unit"
        return _Command(_xml_command("for u in t.iterfind('.//{*}tu') for s in u.findall('{*}tuv')[:1]"), note)
    short = re.split("[-_]", code)[0]
    of_language = (
        rf"sorted((v for v in u if re.search(r'lang\W+{short}[_\W]', str(v.attrib), re.I)), "
        f"key=lambda v: '{code}' not in str(v.attrib))"
    )
    return _Command(_xml_command(f"for u in t.iterfind('.//{{*}}tu') for s in {of_language}[:1]"))


def _table_command(text: str, language: str, *, is_tsv: bool) -> _Command:
    """The command for a table."""
    from nmt_cli.preparing.chunks import are_quoted
    from nmt_cli.preparing.sources.tsv_csv import csv_rows, find_delimiter, tsv_rows

    lines = text.splitlines()
    lines = lines[:-1] if len(lines) > 2 else lines  # the last one may be cut off
    if is_tsv and not are_quoted(lines):
        column = _choose_column(tsv_rows(lines), language)
        condition = f"NR > {column.num_skipped} " if column.num_skipped else ""
        return _Command(rf"awk -F'\t' '{condition}{{print ${column.index + 1}}}'", column.note)
    delimiter = "\t" if is_tsv else find_delimiter(lines) or ","
    column = _choose_column(list(csv_rows(lines, delimiter)), language)
    rows = f"[*csv.reader(open(0, encoding='utf-8-sig'), delimiter={delimiter!r}, skipinitialspace=True)]"
    below_names = f"{rows}[{column.num_skipped}:]" if column.num_skipped else rows
    texts = f"print(*row[{column.index}].split()) for row in {below_names} if len(row) > {column.index}"
    return _Command(f'python3 -c "import csv; [{texts}]"', column.note, needs_utf8=True)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table by its index, and the number of rows above its texts."""

    index: int
    num_skipped: int
    note: str = ""


def _choose_column(rows: Sequence[Sequence[str]], language: str) -> _Column:
    """The column of the language; without one, the first of any language, or the first of the two with most letters."""
    from nmt_cli.preparing.sources.columns import find_column, num_texts

    # Titles and blank lines may stand above the names of the columns.
    top = next((number for number, row in enumerate(rows[:_ROWS_LOOKED_AT]) if num_texts(row) > 1), 0)
    for number in (top, 0) if language else ():
        if (index := find_column(rows[number], language)) is not None:
            return _Column(index, number + 1)
    languages = languages_called(rows[top])
    if len({*languages.values()}) > 1:
        index = min(languages)
        return _Column(index, top + 1, f"for column {index + 1}, in {language_name(languages[index])}")
    letters = Counter[int]()
    for row in rows[top + 1 :] or rows:
        letters.update({index: sum(map(str.isalpha, cell)) for index, cell in enumerate(row)})
    return _Column(min(dict((+letters).most_common(2)), default=0), 0)


def _fixed(line: str, *, needs_utf8: bool = False) -> Callable[[str, str], _Command]:
    """A command that is the same for every text."""
    return lambda text, language: _Command(line, needs_utf8=needs_utf8)


_PO_COMMAND = (
    "python3 -c \"import ast, re; [print(*ast.literal_eval('(' + m + ')').split()) "
    r"for m in re.findall(r'^msgid ((?:\".*\"\s*)+)', open(0, encoding='utf-8-sig').read(), re.M)[1:]]"
    '"'
)
_JSON_COMMAND = (
    "python3 -c \"import json; d = json.load(open(0, encoding='utf-8-sig')); [print(*(t if isinstance(t, str) else "
    "t['KEY']).split()) for t in (d.values() if isinstance(d, dict) else d)]\""
)
# A text may begin with a bracket, but not with the quoted name and the value of a JSON object, or two quoted texts.
_JSON_STRING = r'"(?:[^"\\\n]|\\.)*"'
_JSON_OBJECT = rf'\{{\s*{_JSON_STRING}\s*:\s*(?:["\[{{\d-]|true|false|null)'
_JSON_LINES_COMMAND = (
    "python3 -c \"import json; [print(*json.loads(line)['KEY'].split()) for line in open(0, encoding='utf-8-sig')]\""
)
# The lines below a time code, up to a blank line.
_CUES_COMMAND = r"awk '/-->/ {is_text = 1; next} /^[ \t\r]*$/ {is_text = 0} is_text'"
# What inline tags mark is a part of its sentence.
_HTML_COMMAND = (
    r"""python3 -c "import html, re; t = re.sub(r'(?is)<(head|script|style)\b.*?</\1>|</?(a|b|em|i|span|strong)\b"""
    r"""[^>]*>', '', open(0, encoding='utf-8-sig').read()); [print(*html.unescape(p).split()) """
    r"""for p in re.split('<[^>]*>', t) if p.strip()]" """.strip()
)
# An element with text of its own is printed with all that is in it.
_XML_COMMAND = _xml_command("for s in t.iter() if ''.join([s.text or '', *(c.tail or '' for c in s)]).strip()")
_XLIFF_COMMAND = _xml_command("for s in t.iterfind('.//{*}source')")

_XML_STRUCTURES = (
    _Structure("a translation memory (TMX)", re.compile(r"\s*<(?:[?!][^<]*<)*tmx\b"), _tmx_command),
    _Structure("XLIFF", re.compile(r"\s*<(?:[?!][^<]*<)*xliff\b"), _fixed(_XLIFF_COMMAND)),
)
_STRUCTURES = (
    *_XML_STRUCTURES,
    _Structure("a PO file", re.compile(r'(?:#.*\n|\s)*msgid ""\s*\nmsgstr "'), _fixed(_PO_COMMAND, needs_utf8=True)),
    _Structure("subtitles (SRT)", re.compile(r"\s*\d+[ \t]*\r?\n[\d:]+:\d\d[,.]\d+ -->"), _fixed(_CUES_COMMAND)),
    _Structure("subtitles (WebVTT)", re.compile(r"WEBVTT\b(?s:.)*?\n[\d:]+:\d\d\.\d+ -->"), _fixed(_CUES_COMMAND)),
    _Structure("a table (TSV)", _TAB_IN_FIRST_ROWS, partial(_table_command, is_tsv=True), {".tsv"}),
    _Structure("a table (CSV)", re.compile(r"[\r\n]*[^\n]*[,;\t]"), partial(_table_command, is_tsv=False), {".csv"}),
    _Structure(
        "a web page (HTML)",
        re.compile(
            r"\s*(?:<\?[^<]*|<!--(?s:.)*?-->\s*)*<(?:!doctype\s+html\b|(?:html|head|body)\b[^<>]*>\s*<)", re.IGNORECASE
        ),
        _fixed(_HTML_COMMAND, needs_utf8=True),
    ),
    _Structure("XML", re.compile(r"\s*<\?xml\s[^<>]*\?>"), _fixed(_XML_COMMAND)),
    _Structure(
        "JSON lines",
        re.compile(rf"\s*{_JSON_OBJECT}[^\n]*\}}[ \t\r]*(?:\n|\Z)"),
        _fixed(_JSON_LINES_COMMAND, needs_utf8=True),
    ),
    _Structure(
        "JSON",
        re.compile(rf'\s*(?:(?:\[\s*)*{_JSON_OBJECT}|(?:\[\s*)+{_JSON_STRING}\s*(?:,\s*"|\]\s*\Z))'),
        _fixed(_JSON_COMMAND, needs_utf8=True),
    ),
)
