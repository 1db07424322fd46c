"""Structured files (TMX, CSV and the like): `nmt decode` refuses them with a command that takes the text out."""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.errors import DataError
from nmt_cli.languages import match_code
from nmt_cli.text_encoding import STDIN, decompressor_of, shell_pipe


@dataclass(frozen=True, slots=True)
class _Structure:
    """A kind of file with more than the lines of a text, and the command that takes the source language out.

    `beginning` is how its contents begin. `is_certain` means that no text begins so. CODE stands for the language.
    """

    kind: str
    endings: Collection[str]
    beginning: re.Pattern[bytes]
    command: str
    is_certain: bool = True


def _xml_command(path: str, condition: str = "") -> str:
    """A command that prints the text of each XML element at a path, without notes, codes and other translations."""
    return (
        "python3 -c \"import re, sys, xml.etree.ElementTree as E; [print(*''.join(s.itertext()).split()) for s in "
        "E.fromstring(re.sub(rb'(?s)<((\\w+:)?(alt-trans|bpt|ept|ignorable|it|matches|note|ph|prop|ut))"
        r"\b([^>]*[^/>])?>.*?</\1>', b'', "
        f"sys.stdin.buffer.read())).iterfind('{path}'){condition}]\""
    )


# Each Python command prints one text per line, with its blanks as single spaces.
_PO_COMMAND = (
    "python3 -c \"import ast, re, sys; [print(*ast.literal_eval('(' + m + ')').split()) "
    r"for m in re.findall(r'^msgid ((?:\".*\"\s*)+)', sys.stdin.read(), re.M)[1:]]"
    '"'
)
_TSV_COMMAND = r"awk -F'\t' 'NR > {skipped} {{print ${number}}}'"
_CSV_COMMAND = (
    'python3 -c "import csv, sys; [print(*row[{index}].split()) '
    "for row in [*csv.reader(sys.stdin, delimiter='{delimiter}')][{skipped}:] if row[{index}:]]\""
)
_JSON_LINES_COMMAND = "python3 -c \"import json, sys; [print(*json.loads(line)['KEY'].split()) for line in sys.stdin]\""
# The lines below a time code, up to a blank line.
_CUES_COMMAND = r"awk '/-->/ {is_text = 1; next} /^[ \t\r]*$/ {is_text = 0} is_text'"
_TMX_COMMAND = _xml_command(".//tuv", r" if re.search(r'lang\W+CODE[_\W]', str(s.attrib), re.I)")
_XLIFF = {".xliff", ".xlf", ".sdlxliff", ".mxliff"}
_STRUCTURES = (
    _Structure("a translation memory (TMX)", {".tmx"}, re.compile(rb"\s*<(?:[?!][^<]*<)*tmx\b"), _TMX_COMMAND),
    _Structure("XLIFF", _XLIFF, re.compile(rb"\s*<(?:[?!][^<]*<)*xliff\b"), _xml_command(".//{*}source")),
    _Structure("a PO file", {".po", ".pot"}, re.compile(rb'(?:#.*\n|\s)*msgid ""\s*\nmsgstr "'), _PO_COMMAND),
    _Structure("subtitles (SRT)", {".srt"}, re.compile(rb"\s*\d+[ \t]*\r?\n[\d:]+:\d\d[,.]\d+ -->"), _CUES_COMMAND),
    _Structure("subtitles (WebVTT)", {".vtt"}, re.compile(rb"WEBVTT\b(?s:.)*?\n[\d:]+:\d\d\.\d+ -->"), _CUES_COMMAND),
    _Structure("a table (TSV)", {".tsv"}, re.compile(rb"[^\n]*\t"), _TSV_COMMAND, is_certain=False),
    _Structure("a table (CSV)", {".csv"}, re.compile(rb"[^\n]*[,;\t]"), _CSV_COMMAND, is_certain=False),
    _Structure("JSON lines", {".jsonl", ".ndjson"}, re.compile(rb"\s*\{"), _JSON_LINES_COMMAND, is_certain=False),
)


def check_unstructured(beginning: bytes, *, name: str, find_models: Callable[[], list[Path]] | None = None) -> None:
    """Raise DataError, with the command that takes the text out, if a text is a file of TMX, CSV or the like.

    A file is recognised by its first bytes, and a table or JSON also by the ending of its name. The first of the models
    has the language to take out; without models, the user has to write its code for TMX.
    """
    from nmt_cli.artifacts.model_directory import load_saved_config

    file = Path(name)
    ending = Path(file.stem if decompressor_of(file) else file.name).suffix.lower()
    content = beginning.removeprefix(codecs.BOM_UTF8)
    for structure in _STRUCTURES:
        is_possible = structure.is_certain or ending in structure.endings
        if not is_possible or not structure.beginning.match(content):
            continue
        text, command = content.decode(errors="replace"), structure.command
        has_languages = find_models is not None and ("CODE" in command or "{skipped}" in command)
        source = load_saved_config(find_models()[0]).languages.source if find_models and has_languages else ""
        if code := match_code(source, re.findall(r"<tuv\b[^>]*\blang\s*=\s*[\"']([\w-]+)", text)):
            command = command.replace("CODE", re.split("[-_]", code)[0])
        if "{skipped}" in command:
            command = _fill_in(command, text.splitlines(keepends=True), source, is_tsv=ending == ".tsv")
        message = f"{STDIN if name == STDIN else file.name} is {structure.kind}, not lines of text"
        raise DataError(message, where=name, hint=f"{shell_pipe(None if name == STDIN else file, command)} > NEW")


def _fill_in(command: str, lines: Sequence[str], source: str, *, is_tsv: bool) -> str:
    """The command for a table: its column is named by the language, or is the first of the two with most letters."""
    from nmt_cli.preparing.sources.base import find_columns
    from nmt_cli.preparing.sources.tsv_csv import delimiter_of

    delimiter = "\t" if is_tsv else delimiter_of(lines) or ","
    first, *rest = csv.reader(map(str.rstrip, lines), delimiter=delimiter)
    found = find_columns(first, (source, ""), given=(None, -1)) if source else None  # -1: no target is looked for
    letters = Counter(
        index for row in rest or [first] for index, cell in enumerate(row) for _ in filter(str.isalpha, cell)
    )
    index = found[0] if found else min(dict(letters.most_common(2)), default=0)
    return command.format(index=index, number=index + 1, skipped=1 if found else 0, delimiter=repr(delimiter)[1:-1])
