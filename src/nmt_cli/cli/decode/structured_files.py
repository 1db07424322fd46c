"""Structured files (TMX, CSV, HTML and the like), which are no lines of text; `nmt decode FILE` translates them."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from nmt_cli.errors import DataError
from nmt_cli.text_encoding import STDIN, decompressor_of, wide_encoding


class _Structure(NamedTuple):
    """A kind of file, and how its text begins; `endings` of names, if plain text may begin so too."""

    kind: str
    beginning: re.Pattern[str]
    endings: Collection[str] = ()


# A text may begin with a bracket, but not with the quoted name and the value of a JSON object, or two quoted texts.
_JSON_STRING = r'"(?:[^"\\\n]|\\.)*"'
_JSON_OBJECT = rf'\{{\s*{_JSON_STRING}\s*:\s*(?:["\[{{\d-]|true|false|null)'
_STRUCTURES = (
    _Structure("a translation memory (TMX)", re.compile(r"\s*<(?:[?!][^<]*<)*tmx\b")),
    _Structure("XLIFF", re.compile(r"\s*<(?:[?!][^<]*<)*xliff\b")),
    _Structure("a PO file", re.compile(r'(?:#.*\n|\s)*msgid ""\s*\nmsgstr "')),
    _Structure("subtitles (SRT)", re.compile(r"\s*\d+[ \t]*\r?\n[\d:]+:\d\d[,.]\d+ -->")),
    _Structure("subtitles (WebVTT)", re.compile(r"WEBVTT\b(?s:.)*?\n[\d:]+:\d\d\.\d+ -->")),
    _Structure("a table (TSV)", re.compile(r"(?:[^\n\t]*\n){0,4}[^\n]*\t"), {".tsv"}),
    _Structure("a table (CSV)", re.compile(r"[\r\n]*[^\n]*[,;\t]"), {".csv"}),
    _Structure(
        "a web page (HTML)",
        re.compile(
            r"\s*(?:<\?[^<]*|<!--(?s:.)*?-->\s*)*<(?:!doctype\s+html\b|(?:html|head|body)\b[^<>]*>\s*<)", re.IGNORECASE
        ),
    ),
    _Structure("XML", re.compile(r"\s*<\?xml\s[^<>]*\?>")),
    _Structure("JSON lines", re.compile(rf"\s*{_JSON_OBJECT}[^\n]*\}}[ \t\r]*(?:\n|\Z)")),
    _Structure("JSON", re.compile(rf'\s*(?:(?:\[\s*)*{_JSON_OBJECT}|(?:\[\s*)+{_JSON_STRING}\s*(?:,\s*"|\]\s*\Z))')),
)


def check_unstructured(beginning: bytes, *, name: str) -> None:
    """Raise DataError if a text is a file of TMX, CSV or the like, by its first bytes or, for tables, by its name."""
    from nmt_cli.documents.formats import ending_of, is_binary

    file = Path(name)
    ending = Path(file.stem if decompressor_of(file) else file.name).suffix.lower()
    text = beginning.decode(wide_encoding(beginning) or "utf-8", "replace").removeprefix("\ufeff")
    kinds = (
        structure.kind
        for structure in _STRUCTURES
        if structure.beginning.match(text) and (not structure.endings or ending in structure.endings)
    )
    kind = next(kinds, None)
    if beginning.startswith(b"PK\x03\x04") and is_binary(name):
        kind = "a document"
    if kind is not None:
        message = f"{STDIN if name == STDIN else file.name} is {kind}, not lines of text"
        hint = "give its text alone, with one sentence per line"
        if not kind.startswith("JSON"):
            known = quote(name) if ending_of(name) not in ("", ".txt") else "FILE"
            hint = f"give it as a document, with its ending: nmt decode {known} -o NEW"
        raise DataError(message, where=name, hint=hint)
