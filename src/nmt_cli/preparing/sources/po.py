"""PO, the format of gettext: the messages of a program and their translations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from nmt_cli.errors import DataError
from nmt_cli.preparing.sources.lines import LONGEST_LINE, join_lines, line_chunks, too_long_error
from nmt_cli.preparing.sources.translation_units import Unit, UnitsFile, UnitsSource

_KEYWORD = re.compile(r'(msgctxt|msgid_plural|msgid|msgstr)(?:\[(\d+)\])?\s*(".*)')
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|[0-7]{1,3}|.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_LANGUAGE = re.compile(r"^Language:[ \t]*([A-Za-z][\w@.-]*)", re.MULTILINE)
_CHARSET = re.compile(r"charset=([\w-]+)")


@dataclass(frozen=True, slots=True)
class PoFile(UnitsFile):
    """The messages of a PO file. Its header names the language of the translations."""

    def units(self) -> Iterator[Unit]:
        """Each message; of plurals, the singular with the first form and the plural with the last."""
        language, encoding = "", "utf-8"
        for entry in self._entries():
            try:
                texts = {key: _decode(text, encoding) for key, text in entry.texts.items()}
            except UnicodeError:
                raise _encoding_error(f"is not in {encoding}, which its header names", self.file) from None
            if texts.get("msgid") == "" and "msgctxt" not in texts:
                header = texts.get("msgstr", "")
                named_language, named_encoding = _LANGUAGE.search(header), _CHARSET.search(header)
                language = named_language[1] if named_language else ""
                encoding = _supported_encoding(named_encoding[1] if named_encoding else encoding, self.file)
                continue
            translations = [text for key, text in texts.items() if key.startswith("msgstr") and text]
            if not translations or entry.is_fuzzy:
                translations = [""]
            pairs = [(texts["msgid"], translations[0])]
            if "msgid_plural" in texts:
                pairs.append((texts["msgid_plural"], translations[-1]))
            for original, translation in pairs:
                unit = [("", join_lines(original))]
                if translation:
                    unit.append((language.split("@")[0], join_lines(translation)))
                yield entry.line, unit

    def _entries(self) -> Iterator[_Entry]:
        """The entries of the file; DataError for a line that PO does not have."""
        entry, key = _Entry(0), ""
        for first, lines in line_chunks(self.file):
            for number, line_bytes in enumerate(lines, start=first):
                line = line_bytes.decode("utf-8", "surrogateescape").removeprefix("\ufeff").strip()
                has_flags = line.startswith("#,")
                if line.startswith("#") and not has_flags:
                    continue
                keyword = _KEYWORD.fullmatch(line)
                begins_entry = line == "" or has_flags or (keyword and keyword[1] in ("msgctxt", "msgid"))
                if begins_entry and "msgid" in entry.texts:
                    yield entry
                    entry = _Entry(number)
                if keyword:
                    key = keyword[1] + (f"[{keyword[2]}]" if keyword[2] else "")
                    entry.line = entry.line if "msgid" in entry.texts else number
                    entry.add(key, keyword[3], self.file, number)
                elif has_flags:
                    entry.is_fuzzy = entry.is_fuzzy or "fuzzy" in line
                elif line.startswith('"') and key:
                    entry.add(key, line, self.file, number)
                elif line:
                    raise _not_po_error(self.file, number)
        if "msgid" in entry.texts:
            yield entry


class PoSource(UnitsSource):
    """A PO file of gettext. Messages that are fuzzy or without a translation are left out and counted."""

    kind: Literal["po"] = Field(description="messages and translations of a PO file")
    format = PoFile


class _Entry:
    """The strings of a message by their keywords, still with escapes."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.is_fuzzy = False
        self.texts: dict[str, str] = {}

    def add(self, key: str, quoted: str, file: Path, line: int) -> None:
        """Append a quoted string."""
        string = _STRING.fullmatch(quoted)
        if string is None:
            raise _not_po_error(file, line)
        self.texts[key] = self.texts.get(key, "") + string[1]
        if len(self.texts[key]) > LONGEST_LINE:
            raise too_long_error(file, line, text=f"the string up to line {line:,}", unit="characters")


def _decode(text: str, encoding: str) -> str:
    """A string without its escapes, in the encoding of the file."""
    if encoding != "utf-8":
        text = text.encode("utf-8", "surrogateescape").decode(encoding, "surrogateescape")
    return _ESCAPE.sub(_unescape, text) if "\\" in text else text


def _unescape(escape: re.Match[str]) -> str:
    code = escape[1]
    if code[0] == "x" and len(code) == 3:
        return chr(int(code[1:], 16))
    return chr(int(code, 8)) if code.isdigit() and code[0] < "8" else _ESCAPES.get(code, code)


def _supported_encoding(encoding: str, file: Path) -> str:
    """The name of an encoding in lower case; UTF-8 for the placeholder of a template. DataError if Python lacks it."""
    if encoding.upper() == "CHARSET":
        return "utf-8"
    try:
        "".encode(encoding)
    except (LookupError, UnicodeError):
        raise _encoding_error(f"names the unknown encoding {encoding} in its header", file) from None
    return encoding.lower()


def _encoding_error(problem: str, file: Path) -> DataError:
    hint = "convert the file to UTF-8, and write charset=UTF-8 in its header"
    return DataError(f"{file.name} {problem}", where=str(file), hint=hint)


def _not_po_error(file: Path, line: int) -> DataError:
    hint = 'msgfmt --check names what is wrong with it; a PO file has lines such as msgid "text"'
    return DataError(f"line {line:,} of {file.name} is not PO", where=f"{file}:{line}", hint=hint)
