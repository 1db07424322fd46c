"""Files with more than the lines of a text (TMX, CSV and the like), and the shell commands that take the text out."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.errors import DataError
from nmt_cli.text_encoding import STDIN, reader_of, shell_pipe


@dataclass(frozen=True, slots=True)
class _Structure:
    """A kind of file with more than the lines of a text, and the command that takes its first language out.

    `beginning` is how its contents begin. `is_certain` means that no text begins so.
    """

    kind: str
    endings: Collection[str]
    beginning: re.Pattern[bytes]
    is_certain: bool
    command: str


def _python_command(imports: str, text: str, of: str) -> str:
    """A command that prints `text` for each item of the loop `of`, its blanks as single spaces."""
    return f'python3 -c "import {imports}; [print(*{text}.split()) for {of}]"'


def _xml_command(path: str) -> str:
    """A command that prints the text of each XML element at a path."""
    found = f"s in E.parse(sys.stdin.buffer).iterfind('{path}')"
    return _python_command("sys, xml.etree.ElementTree as E", "''.join(s.itertext())", found)


_XLIFF = {".xliff", ".xlf", ".sdlxliff", ".mxliff"}
_FOR_PO_MESSAGES = r"m in re.findall(r'^msgid ((?:\".*\"\s*)+)', sys.stdin.read(), re.M)[1:]"
_FOR_CSV_ROWS = "row in csv.reader(sys.stdin, delimiter='{}') if row"  # {} is the delimiter
_STRUCTURES = (
    _Structure(
        "a translation memory (TMX)",
        {".tmx"},
        re.compile(rb"\s*<(?:[?!][^<]*<)*tmx\b"),
        True,
        _xml_command(".//tu/tuv[1]/seg"),
    ),
    _Structure(
        "XLIFF",
        _XLIFF,
        re.compile(rb"\s*<(?:[?!][^<]*<)*xliff\b[^>]*\bversion=.2"),
        True,
        _xml_command(".//{*}segment/{*}source"),
    ),
    _Structure(
        "XLIFF",
        _XLIFF,
        re.compile(rb"\s*<(?:[?!][^<]*<)*xliff\b"),
        True,
        _xml_command(".//{*}trans-unit/{*}source"),
    ),
    _Structure(
        "a PO file",
        {".po", ".pot"},
        re.compile(rb'(?:#.*\n|\s)*msgid ""\s*\nmsgstr "'),
        True,
        _python_command("ast, re, sys", "ast.literal_eval('(' + m + ')')", _FOR_PO_MESSAGES),
    ),
    _Structure("a table (TSV)", {".tsv"}, re.compile(rb"[^\n]*\t"), False, "cut -f1"),
    _Structure(
        "a table (CSV)",
        {".csv"},
        re.compile(rb"[^\n]*[,;\t]"),
        False,
        _python_command("csv, sys", "row[0]", _FOR_CSV_ROWS),
    ),
    _Structure(
        "JSON lines",
        {".jsonl", ".ndjson"},
        re.compile(rb"\s*\{"),
        False,
        _python_command("json, sys", "json.loads(line)['KEY']", "line in sys.stdin"),
    ),
)


def refuse_structured(beginning: bytes, *, name: str) -> None:
    """Raise DataError, with the command that takes the text out, if a text is a file of TMX, CSV or the like.

    A file is recognised by the ending of its name and its first bytes. `STDIN` has no ending: the first bytes must do.
    """
    file = Path(name)
    ending = Path(file.stem if reader_of(file) else file.name).suffix.lower()
    content = beginning.removeprefix(codecs.BOM_UTF8)
    for found in _STRUCTURES:
        is_possible = found.is_certain if name == STDIN else ending in found.endings
        if not is_possible or not found.beginning.match(content):
            continue
        take = found.command
        if ending == ".csv":
            take = take.format(_delimiter(content).replace("\t", "\\t"))
        message = f"{STDIN if name == STDIN else file.name} is {found.kind}, not lines of text"
        raise DataError(message, where=name, hint=f"{shell_pipe(None if name == STDIN else file, take)} > NEW")


def _delimiter(beginning: bytes) -> str:
    """The delimiter of a CSV file, as `nmt prepare` finds it; a comma if the file has one column."""
    from nmt_cli.preparing.sources.tsv_csv import delimiter_of

    *lines, rest = beginning.decode(errors="replace").split("\n")  # the last line may be cut off
    return delimiter_of([line + "\n" for line in lines] or [rest]) or ","
