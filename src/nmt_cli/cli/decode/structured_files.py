"""Structured files (TMX, CSV, HTML and the like), which are no lines of text; `nmt decode FILE` translates them."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote

from nmt_cli.errors import DataError
from nmt_cli.text_encoding import STDIN, decompressor_of, wide_encoding

# TMX, XLIFF, PO, SRT, WebVTT, HTML and XML.
_DOCUMENT = re.compile(
    r"\s*<(?:[?!][^<]*<)*(?:tmx|xliff)\b"
    r'|(?:#.*\n|\s)*msgid ""\s*\nmsgstr "'
    r"|\s*\d+[ \t]*\r?\n[\d:]+:\d\d[,.]\d+ -->|WEBVTT\b(?s:.)*?\n[\d:]+:\d\d\.\d+ -->"
    r"|\s*(?:<\?[^<]*|<!--(?s:.)*?-->\s*)*<(?i:!doctype\s+html\b|(?:html|head|body)\b[^<>]*>\s*<)|\s*<\?xml\s[^<>]*\?>"
)
# Plain text may begin so, too.
_TABLES = {".tsv": re.compile(r"(?:[^\n\t]*\n){0,4}[^\n]*\t"), ".csv": re.compile(r"[\r\n]*[^\n]*[,;\t]")}
# A text may begin with a bracket, but not with the quoted name and the value of a JSON object, or two quoted texts.
_JSON_STRING = r'"(?:[^"\\\n]|\\.)*"'
_JSON_OBJECT = rf'\{{\s*{_JSON_STRING}\s*:\s*(?:["\[{{\d-]|true|false|null)'
_JSON = re.compile(rf'\s*(?:(?:\[\s*)*{_JSON_OBJECT}|(?:\[\s*)+{_JSON_STRING}\s*(?:,\s*"|\]\s*\Z))')


def check_unstructured(beginning: bytes, *, name: str) -> None:
    """Raise DataError if a text is a file of TMX, CSV or the like, by its first bytes or, for tables, by its name."""
    from nmt_cli.documents.formats import ending_of, is_binary

    file = Path(name)
    ending = Path(file.stem if decompressor_of(file) else file.name).suffix.lower()
    text = beginning.decode(wide_encoding(beginning) or "utf-8", "replace").removeprefix("\ufeff")
    is_table = ending in _TABLES and bool(_TABLES[ending].match(text))
    if is_table or _DOCUMENT.match(text) or (beginning.startswith(b"PK\x03\x04") and is_binary(name)):
        known = quote(name) if ending_of(name) not in ("", ".txt") else "FILE"
        kind, hint = "a document", f"give it as a document, with its ending: nmt decode {known} -o NEW"
    elif _JSON.match(text):
        kind, hint = "JSON", "give its text alone, with one sentence per line"
    else:
        return
    message = f"{STDIN if name == STDIN else file.name} is {kind}, not lines of text"
    raise DataError(message, where=name, hint=hint)
