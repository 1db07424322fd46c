"""Structured files (TMX, CSV and the like): `nmt decode` refuses them with a command that takes the text out."""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt_cli.errors import DataError
from nmt_cli.languages import match_code
from nmt_cli.text_encoding import STDIN, decompressor_of, shell_pipe


@dataclass(frozen=True, slots=True)
class _Structure:
    """A kind of file with more than the lines of a text, and the command that takes its text out.

    `beginning` is how its contents begin. `is_certain` means that no text begins so.
    """

    kind: str
    endings: Collection[str]
    beginning: re.Pattern[bytes]
    command: str
    is_certain: bool = True


def _xml_command(elements: str) -> str:
    """A command that prints the text of each element `s` of the tree `t`, without codes, notes, other translations."""
    return (
        'python3 -c "import re, sys, xml.etree.ElementTree as E; t = E.parse(sys.stdin.buffer); '
        "[(k := s.tail, s.clear(), setattr(s, 'tail', k)) for s in [*t.iter()] if re.fullmatch("
        "'(.*})?(alt-trans|bpt|ept|ignorable|it|matches|note|ph|prop|ut)', s.tag)]; "
        f"[print(*''.join(s.itertext()).split()) {elements}]\""
    )


# Each Python command prints one text per line, with its blanks as single spaces.
_PO_COMMAND = (
    "python3 -c \"import ast, re, sys; [print(*ast.literal_eval('(' + m + ')').split()) "
    r"for m in re.findall(r'^msgid ((?:\".*\"\s*)+)', sys.stdin.read(), re.M)[1:]]"
    '"'
)
_TSV_COMMAND = r"awk -F'\t' 'NR > {skipped} {{print ${number}}}'"
_CSV_COMMAND = (
    'python3 -c "import csv, sys; [print(*row[{index}].split()) for row in '
    "[*csv.reader(sys.stdin, delimiter='{delimiter}', skipinitialspace=True)][{skipped}:] if row[{index}:]]\""
)
_JSON_LINES_COMMAND = "python3 -c \"import json, sys; [print(*json.loads(line)['KEY'].split()) for line in sys.stdin]\""
# The lines below a time code, up to a blank line.
_CUES_COMMAND = r"awk '/-->/ {is_text = 1; next} /^[ \t\r]*$/ {is_text = 0} is_text'"
_TMX_COMMAND = _xml_command("for u in t.iterfind('.//{*}tu') for s in UNIT[:1]")
_UNIT_IN_LANGUAGE = (
    r"sorted((v for v in u if re.search(r'lang\W+SHORT[_\W]', str(v.attrib), re.I)), "
    "key=lambda v: 'CODE' not in str(v.attrib))"
)
_XLIFF_COMMAND = _xml_command("for s in t.iterfind('.//{*}source')")
_XLIFF = {".xliff", ".xlf", ".sdlxliff", ".mxliff"}
_XML_STRUCTURES = (
    _Structure("a translation memory (TMX)", {".tmx"}, re.compile(rb"\s*<(?:[?!][^<]*<)*tmx\b"), _TMX_COMMAND),
    _Structure("XLIFF", _XLIFF, re.compile(rb"\s*<(?:[?!][^<]*<)*xliff\b"), _XLIFF_COMMAND),
)
_STRUCTURES = (
    *_XML_STRUCTURES,
    _Structure("a PO file", {".po", ".pot"}, re.compile(rb'(?:#.*\n|\s)*msgid ""\s*\nmsgstr "'), _PO_COMMAND),
    _Structure("subtitles (SRT)", {".srt"}, re.compile(rb"\s*\d+[ \t]*\r?\n[\d:]+:\d\d[,.]\d+ -->"), _CUES_COMMAND),
    _Structure("subtitles (WebVTT)", {".vtt"}, re.compile(rb"WEBVTT\b(?s:.)*?\n[\d:]+:\d\d\.\d+ -->"), _CUES_COMMAND),
    _Structure("a table (TSV)", {".tsv"}, re.compile(rb"[^\n]*\t"), _TSV_COMMAND, is_certain=False),
    _Structure("a table (CSV)", {".csv"}, re.compile(rb"[^\n]*[,;\t]"), _CSV_COMMAND, is_certain=False),
    _Structure("JSON lines", {".jsonl", ".ndjson"}, re.compile(rb"\s*\{"), _JSON_LINES_COMMAND, is_certain=False),
)


def check_unstructured(beginning: bytes, *, name: str, find_code: Callable[[], str] | None = None) -> None:
    """Raise DataError, with the command that takes the text out, if a text is a file of TMX, CSV or the like.

    A file is recognised by its first bytes, and a table or JSON also by the ending of its name. `find_code` returns
    the code of the language to take out, or "" if it is unknown, as it is without `find_code`.
    """
    file = Path(name)
    ending = Path(file.stem if decompressor_of(file) else file.name).suffix.lower()
    structures: Sequence[_Structure] = _STRUCTURES
    content = beginning.removeprefix(codecs.BOM_UTF8)
    if beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # which the commands for XML read
        structures, content = _XML_STRUCTURES, beginning.decode("utf-16", "ignore").encode()
    for structure in structures:
        is_possible = structure.is_certain or ending in structure.endings
        if not is_possible or not structure.beginning.match(content):
            continue
        text, command, note = content.decode(errors="replace"), structure.command, ""
        if command == _TMX_COMMAND:
            wanted, codes = find_code() if find_code else "", re.findall(r"<tuv\b[^>]*\blang\s*=\s*[\"']([\w-]+)", text)
            if code := match_code(wanted, codes) if codes else wanted:
                unit = _UNIT_IN_LANGUAGE.replace("SHORT", re.split("[-_]", code)[0]).replace("CODE", code)
            else:
                unit, note = "u.findall('{*}tuv')", ", which takes the first language of each unit"
            command = command.replace("UNIT", unit)
        elif "{skipped}" in command:
            wanted = find_code() if find_code else ""
            command = _fill_in(text.splitlines(keepends=True), wanted, is_tsv=ending == ".tsv")
        message = f"{STDIN if name == STDIN else file.name} is {structure.kind}, not lines of text"
        raise DataError(message, where=name, hint=f"{shell_pipe(None if name == STDIN else file, command)} > NEW{note}")


def _fill_in(lines: Sequence[str], language: str, *, is_tsv: bool) -> str:
    """The command for a table: its column is named by the language, or is the first of the two with most letters."""
    from nmt_cli.preparing.chunks import are_quoted
    from nmt_cli.preparing.sources.base import find_column
    from nmt_cli.preparing.sources.tsv_csv import delimiter_of, num_texts

    lines = lines[:-1] if len(lines) > 2 else lines  # the last one may be cut off
    is_plain = is_tsv and not are_quoted([*map(str.rstrip, lines)])
    delimiter = "\t" if is_tsv else delimiter_of(lines) or ","
    quotes: dict[str, Any] = {"quoting": csv.QUOTE_NONE} if is_plain else {"skipinitialspace": True}
    rows = [*csv.reader(map(str.rstrip, lines), delimiter=delimiter, **quotes)]
    has_title = num_texts(rows[0]) == 1  # above the names of the columns
    columns = [find_column(row, language) if language else None for row in rows[: 1 + has_title]]
    letters = Counter[int]()
    for row in rows[1:] or rows:
        letters.update({index: sum(map(str.isalpha, cell)) for index, cell in enumerate(row)})
    first = min(dict((+letters).most_common(2)), default=0)
    skipped, index = next(((row, column) for row, column in enumerate(columns, 1) if column is not None), (0, first))
    command = _TSV_COMMAND if is_plain else _CSV_COMMAND
    filled = command.format(index=index, number=index + 1, skipped=skipped, delimiter=repr(delimiter)[1:-1])
    return filled.replace("NR > 0 ", "").replace("[0:]", "")
