"""PO, the format of gettext: the messages of a program and their translations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import Field

from nmt_cli.errors import DataError
from nmt_cli.preparing.sources.lines import LONGEST_LINE, join_lines, line_chunks, too_long_error
from nmt_cli.preparing.sources.translation_units import Unit, UnitsFile, UnitsSource

_KEYWORD = re.compile(r'(msgctxt|msgid_plural|msgid|msgstr)(?:\[(\d+)\])?\s*(".*)')
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
# A run of octal and hexadecimal escapes, which are bytes in the encoding of the file, or another escape.
_ESCAPES = re.compile(r"((?:\\(?:x[0-9A-Fa-f]{2}|[0-7]{1,3}))+)|\\(.)")
_BYTE = re.compile(r"\\(x?)([0-9A-Fa-f]+)")
_CHARACTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_LANGUAGE = re.compile(r"^Language:[ \t]*([A-Za-z][\w.-]*)", re.MULTILINE)
_CHARSET = re.compile(r"charset=([\w-]+)")


@dataclass(frozen=True, slots=True)
class PoFile(UnitsFile):
    """The messages of a PO file. Its header names the language of the translations."""

    def units(self) -> Iterator[Unit]:
        """Each message; of plurals, the singular with the first form and the plural with the last."""
        language = ""
        for entry in self._entries():
            if entry.is_header:
                named = _LANGUAGE.search(entry.texts.get("msgstr", ""))
                language = named[1] if named else ""
                continue
            forms = [text for key, text in entry.texts.items() if key.startswith("msgstr")]
            if not forms or not all(forms) or entry.is_fuzzy:
                forms = [""]
            pairs = [(entry.texts["msgid"], forms[0])]
            if "msgid_plural" in entry.texts:
                pairs.append((entry.texts["msgid_plural"], forms[-1]))
            for original, translation in pairs:
                unit = [("", join_lines(original))]
                if translation:
                    unit.append((language, join_lines(translation)))
                yield entry.line, unit

    def _entries(self) -> Iterator[_Entry]:
        """The entries of the file; DataError for a line that PO does not have. Blank lines mean nothing."""
        entry, key = _Entry(0), ""
        encoding = "utf-8"
        for first, lines in line_chunks(self.file):
            for number, line_bytes in enumerate(lines, start=first):
                line = _decode(line_bytes, encoding, self.file).removeprefix("\ufeff").strip()
                has_flags, is_obsolete = line.startswith("#,"), line.startswith("#~")
                if not line or (line.startswith("#") and not has_flags and not is_obsolete):
                    continue
                keyword = _KEYWORD.fullmatch(line)
                begins_entry = has_flags or is_obsolete or (keyword and keyword[1] in ("msgctxt", "msgid"))
                if begins_entry and "msgid" in entry.texts:
                    yield entry
                    entry, key = _Entry(number), ""
                if is_obsolete:
                    entry, key = _Entry(number), ""  # its flags are not the next entry's
                elif has_flags:
                    entry.is_fuzzy = entry.is_fuzzy or "fuzzy" in line
                elif keyword:
                    key = keyword[1] + (f"[{keyword[2]}]" if keyword[2] else "")
                    if "msgid" not in entry.texts:
                        entry.line = number
                    entry.add(key, keyword[3], encoding, self.file, number)
                elif line.startswith('"') and key:
                    entry.add(key, line, encoding, self.file, number)
                else:
                    raise _not_po_error(self.file, number)
                if entry.is_header and key == "msgstr" and (named := _CHARSET.search(line)):
                    encoding = _supported_encoding(named[1], self.file)
        if "msgid" in entry.texts:
            yield entry


class PoSource(UnitsSource):
    """A PO file of gettext. Messages that are fuzzy or without a translation are left out and counted."""

    kind: Literal["po"] = Field(description="messages and translations of a PO file")
    format = PoFile


class _Entry:
    """The strings of a message by their keywords."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.is_fuzzy = False
        self.texts: dict[str, str] = {}

    @property
    def is_header(self) -> bool:
        """True for the message that is empty and has no context: its translation has facts about the file."""
        return self.texts.get("msgid") == "" and "msgctxt" not in self.texts

    def add(self, key: str, quoted: str, encoding: str, file: Path, line: int) -> None:
        """Append a quoted string, without its escapes."""
        string = _STRING.fullmatch(quoted)
        if string is None:
            raise _not_po_error(file, line)
        text = _ESCAPES.sub(partial(_unescape, encoding=encoding, file=file), string[1])
        self.texts[key] = self.texts.get(key, "") + text
        if len(self.texts[key]) > LONGEST_LINE:
            raise too_long_error(file, line, text=f"the string up to line {line:,}", unit="characters")


def _unescape(escape: re.Match[str], *, encoding: str, file: Path) -> str:
    if escape[1] is None:
        return _CHARACTERS.get(escape[2], escape[2])
    codes = (int(digits, 16 if is_hexadecimal else 8) for is_hexadecimal, digits in _BYTE.findall(escape[1]))
    return _decode(bytes(code & 0xFF for code in codes), encoding, file)


def _decode(content: bytes, encoding: str, file: Path) -> str:
    """The text in the encoding of the file; each wrong byte is a surrogate."""
    try:
        return content.decode(encoding, "surrogateescape")
    except UnicodeError:
        raise _encoding_error(f"is not in {encoding}, which its header names", file) from None


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
