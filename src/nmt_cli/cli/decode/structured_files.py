"""Structured files (TMX, CSV and the like): `nmt decode` refuses them with a command that takes the text out."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.errors import DataError
from nmt_cli.text_encoding import STDIN, decompressor_of, shell_pipe


@dataclass(frozen=True, slots=True)
class _Structure:
    """A kind of file with more than the lines of a text, and the command that takes its first language out.

    `beginning` is how its contents begin. `is_certain` means that no text begins so.
    """

    kind: str
    endings: Collection[str]
    beginning: re.Pattern[bytes]
    command: str
    is_certain: bool = True


def _xml_command(path: str) -> str:
    """A command that prints the text of each XML element at a path."""
    return (
        "python3 -c \"import sys, xml.etree.ElementTree as E; [print(*''.join(s.itertext()).split()) "
        f"for s in E.parse(sys.stdin.buffer).iterfind('{path}')]\""
    )


# Each Python command prints one text per line, with its blanks as single spaces.
_PO_COMMAND = (
    "python3 -c \"import ast, re, sys; [print(*ast.literal_eval('(' + m + ')').split()) "
    r"for m in re.findall(r'^msgid ((?:\".*\"\s*)+)', sys.stdin.read(), re.M)[1:]]"
    '"'
)
_CSV_COMMAND = (  # {} is the delimiter
    "python3 -c \"import csv, sys; [print(*row[0].split()) for row in csv.reader(sys.stdin, delimiter='{}') if row]\""
)
_JSON_LINES_COMMAND = "python3 -c \"import json, sys; [print(*json.loads(line)['KEY'].split()) for line in sys.stdin]\""
# The lines below a time code, up to a blank line.
_CUES_COMMAND = r"awk '/-->/ {is_text = 1; next} /^[ \t\r]*$/ {is_text = 0} is_text'"
_XLIFF = {".xliff", ".xlf", ".sdlxliff", ".mxliff"}
_STRUCTURES = (
    _Structure(
        "a translation memory (TMX)",
        {".tmx"},
        re.compile(rb"\s*<(?:[?!][^<]*<)*tmx\b"),
        _xml_command(".//tu/tuv[1]/seg"),
    ),
    _Structure(
        "XLIFF",
        _XLIFF,
        re.compile(rb"\s*<(?:[?!][^<]*<)*xliff\b[^>]*\bversion=.2"),
        _xml_command(".//{*}segment/{*}source"),
    ),
    _Structure("XLIFF", _XLIFF, re.compile(rb"\s*<(?:[?!][^<]*<)*xliff\b"), _xml_command(".//{*}trans-unit/{*}source")),
    _Structure("a PO file", {".po", ".pot"}, re.compile(rb'(?:#.*\n|\s)*msgid ""\s*\nmsgstr "'), _PO_COMMAND),
    _Structure("subtitles (SRT)", {".srt"}, re.compile(rb"\s*\d+[ \t]*\r?\n[\d:]+:\d\d[,.]\d+ -->"), _CUES_COMMAND),
    _Structure("subtitles (WebVTT)", {".vtt"}, re.compile(rb"WEBVTT\b(?s:.)*?\n[\d:]+:\d\d\.\d+ -->"), _CUES_COMMAND),
    _Structure("a table (TSV)", {".tsv"}, re.compile(rb"[^\n]*\t"), "cut -f1", is_certain=False),
    _Structure("a table (CSV)", {".csv"}, re.compile(rb"[^\n]*[,;\t]"), _CSV_COMMAND, is_certain=False),
    _Structure("JSON lines", {".jsonl", ".ndjson"}, re.compile(rb"\s*\{"), _JSON_LINES_COMMAND, is_certain=False),
)


def check_unstructured(beginning: bytes, *, name: str) -> None:
    """Raise DataError, with the command that takes the text out, if a text is a file of TMX, CSV or the like.

    A file is recognised by the ending of its name and its first bytes. `STDIN` has no ending: the first bytes must do.
    """
    file = Path(name)
    ending = Path(file.stem if decompressor_of(file) else file.name).suffix.lower()
    content = beginning.removeprefix(codecs.BOM_UTF8)
    for structure in _STRUCTURES:
        is_possible = structure.is_certain if name == STDIN else ending in structure.endings
        if not is_possible or not structure.beginning.match(content):
            continue
        command = structure.command
        if ending == ".csv":
            command = command.format(_delimiter(content).replace("\t", "\\t"))
        message = f"{STDIN if name == STDIN else file.name} is {structure.kind}, not lines of text"
        raise DataError(message, where=name, hint=f"{shell_pipe(None if name == STDIN else file, command)} > NEW")


def _delimiter(beginning: bytes) -> str:
    """The delimiter of a CSV file, as `nmt prepare` finds it; a comma if the file has one column."""
    from nmt_cli.preparing.sources.tsv_csv import delimiter_of

    *lines, rest = beginning.decode(errors="replace").split("\n")  # the last line may be cut off
    return delimiter_of([line + "\n" for line in lines] or [rest]) or ","
