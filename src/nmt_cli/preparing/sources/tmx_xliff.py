"""TMX and XLIFF, the XML formats of translation memories and of translators' files.

A stream of XML events is read in bounded memory. The parser is expat. It reads UTF-8, UTF-16 and the encodings of one
byte per character. It opens no other file and no address, and a file that declares entities is refused.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from html.entities import html5
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal
from xml.parsers import expat

from pydantic import Field

from nmt_cli.decompression import open_bytes
from nmt_cli.errors import DataError
from nmt_cli.preparing.sources.lines import LONGEST_LINE, join_lines, read_beginning
from nmt_cli.preparing.sources.translation_units import Unit, UnitsFile, UnitsSource
from nmt_cli.text_encoding import check_encoding, check_uncompressed, conversion, not_utf8_error

_BLOCK = 1 << 18
_MAX_TOKEN_BYTES = 1 << 24
_MAX_UNIT_CHARACTERS = 4 * LONGEST_LINE
_MAX_REMEMBERED = 10_000  # names, and open elements: the parser remembers both
_BYTES_PER_TEXT = 200  # in memory, beside its characters
# TMX 1.4b and XLIFF 1.2: the content of these is code of the document's format, except for <sub>.
_CODE = frozenset({"bpt", "ept", "it", "ph", "ut"})
_BREAKS = frozenset({"lb", "pb", "x-html-br", "xlf:lb"})
_REASONS = {"no element found": "it ends too early", "unclosed token": "it ends within a tag"}
_CONTROL = r"[\x01-\x08\x0b\x0c\x0e-\x1f]|&#(0*([0-8]|1[124-9]|2\d|3[01])|x0*([0-8bcefBCEF]|1[\da-fA-F]));"
# What XML forbids in a line, with a regular expression that also perl knows, what to write instead, and the fix.
_MISTAKES = {
    "a control character": (_CONTROL, "", "remove it"),  # first, because the others may stand in CDATA
    "a bare &": (r"&(?!#?\w+;)", "&amp;", "write &amp; for &"),
    "a bare <": (r"<(?![\w\/!?:])", "&lt;", "write &lt; for <"),
}
_BREAK_ATTRIBUTES = ("type", "ctype", "subType")


@dataclass(frozen=True, slots=True)
class TmxFile(UnitsFile):
    """The units of a translation memory."""

    def units(self) -> Iterator[Unit]:
        """Each <tu> with the text of its <seg> elements."""
        return _TmxParser(self.file).units()


@dataclass(frozen=True, slots=True)
class XliffFile(UnitsFile):
    """The units of an XLIFF file."""

    def units(self) -> Iterator[Unit]:
        """Each <trans-unit>, or <segment> of version 2, with source and target."""
        return _XliffParser(self.file).units()


class TmxSource(UnitsSource):
    """A translation memory (TMX 1.1 to 1.4b). Languages match loosely, en-US is en; text inside code is left out."""

    kind: Literal["tmx"] = Field(description="two languages of a translation memory")
    format = TmxFile


class XliffSource(UnitsSource):
    """A file of XLIFF 1.2 or 2. Units without a target are left out and counted."""

    kind: Literal["xliff"] = Field(description="source and target of an XLIFF file")
    format = XliffFile


class _UnitParser(ABC):
    """The units of a kind of XML, made from the events of a parser.

    A subclass sees the elements outside texts, by `start_outside_text` and `end_outside_text`. It calls `open_unit`,
    `close_unit` and `open_text`.

    A text begins with `open_text`, and lasts until its element ends. All tags inside it are left out. So is the content
    of <ph>, <bpt>, <ept>, <it> and <ut>, which is code. A <sub> inside code is text again.
    """

    root: str

    def __init__(self, file: Path) -> None:
        self.file = file
        self._parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        # Without the attributes that a DTD adds: they can be huge, and every element gets them.
        parser.specified_attributes = True
        parser.XmlDeclHandler = self._handle_xml_declaration
        parser.EntityDeclHandler = self._handle_entity_declaration
        parser.SkippedEntityHandler = self._handle_skipped_entity
        parser.StartElementHandler = self._handle_root
        parser.EndElementHandler = self._handle_end
        self._encoding = "utf-8"  # of the XML declaration
        self.depth = 0  # the number of open elements
        # Prefixes of names, such as `x:`, that stand for the namespace of the root.
        self._prefixes: tuple[str, ...] = ()
        # Finished units that `units` has not yielded yet.
        self._units: list[Unit] = []
        # The open unit: its line, and its finished texts, each after its language.
        self._unit: Unit | None = None
        # The size of the open unit: its characters, and _BYTES_PER_TEXT for each text.
        self._unit_length = 0
        # The parts of the open text, and its language.
        self._text: list[str] | None = None
        self._language = ""
        # False inside code.
        self._is_text = True
        # The values of `_is_text` around the open elements inside the open text.
        self._outer_is_text: list[bool] = []

    def units(self) -> Iterator[Unit]:
        """The units of the file. DataError if it is not well-formed, has another root, or declares entities."""
        num_bytes = 0
        with open_bytes(self.file) as stream:
            while block := stream.read(_BLOCK):
                if num_bytes == 0:
                    check_uncompressed(block, name=str(self.file))
                self._feed(block)
                num_bytes += len(block)
                if num_bytes - self._parser.CurrentByteIndex > _MAX_TOKEN_BYTES:
                    raise self._too_large_error()
                if max(len(self._parser.intern), self.depth) > _MAX_REMEMBERED:
                    message = f"{self.file.name} has more than {_MAX_REMEMBERED:,} names or nested elements"
                    hint = f"export it again: no translation tool writes {self.root.upper()} so"
                    raise DataError(message, where=f"{self.file}:{self.line}", hint=hint)
                yield from self._units
                self._units.clear()
            self._feed(b"")
        yield from self._units

    @property
    def line(self) -> int:
        """The line of the current event."""
        return self._parser.CurrentLineNumber

    @abstractmethod
    def start_outside_text(self, name: str, attributes: Mapping[str, str]) -> None:
        """The start of an element outside texts."""

    @abstractmethod
    def end_outside_text(self, name: str) -> None:
        """The end of an element outside texts."""

    def open_unit(self) -> None:
        """A unit begins here."""
        self._unit = (self.line, [])
        self._unit_length = 0

    def close_unit(self) -> None:
        """The unit ends here."""
        if self._unit is not None:
            self._units.append(self._unit)
        self._unit = None

    def open_text(self, language: str) -> None:
        """The element that has just started is a text of the unit."""
        if self._unit is not None:
            self._text, self._language, self._is_text = [], language, True
            self._unit_length += _BYTES_PER_TEXT
            self._parser.CharacterDataHandler = self._handle_text

    def _feed(self, block: bytes) -> None:
        try:
            self._parser.Parse(block, not block)
        except expat.ExpatError as error:
            raise self._not_well_formed_error(expat.errors.messages[error.code], error.lineno) from None
        except (LookupError, ValueError) as error:  # of the encoding in the XML declaration
            if self.depth > 0:  # a mistake of ours: the encoding is known before the first element
                raise
            raise DataError(
                f"the encoding of {self.file.name} cannot be read: {error}",
                where=f"{self.file}:1",
                hint='save the file in UTF-8, with encoding="UTF-8" in its first line',
            ) from None

    def _not_well_formed_error(self, parser_message: str, number: int) -> DataError:
        """The error for a line: its bytes that are not UTF-8, its text that XML forbids, or the parser's message."""
        if parser_message == expat.errors.XML_ERROR_INCORRECT_ENCODING:
            check_encoding(read_beginning(self.file), name=str(self.file))
        is_of_text = parser_message in (expat.errors.XML_ERROR_INVALID_TOKEN, expat.errors.XML_ERROR_BAD_CHAR_REF)
        line = _read_line(self.file, number) if is_of_text else b""
        if self._encoding in ("utf-8", "utf8"):
            with suppress(ValueError):  # the line is UTF-8
                return not_utf8_error(line, name=str(self.file), number=number)
        usual = _REASONS.get(parser_message, parser_message), "mend that place, or export the file again"
        reason, hint = self._mistake_in(line) or usual
        message = f"{self.file.name} is not well-formed XML: {reason}"
        return DataError(message, where=f"{self.file}:{number}", hint=hint)

    def _mistake_in(self, line: bytes) -> tuple[str, str] | None:
        """The reason why XML forbids a line, and the fix; None if no mistake is known, or its characters are wide."""
        for mistake, (pattern, written, fix) in _MISTAKES.items():
            if b"\0" not in line and re.search(pattern.encode(), line):
                command = conversion(self.file, f"perl -pe 's/{pattern}/{written}/g'", new="mended")
                return f"{mistake} stands in that line", f"{fix}: {command}"
        return None

    def _handle_xml_declaration(self, version: str, encoding: str | None, standalone: int) -> None:
        self._encoding = (encoding or "utf-8").lower()

    def _handle_root(self, name: str, attributes: Mapping[str, str]) -> None:
        if name.rsplit(":", 1)[-1].lower() != self.root:
            raise DataError(
                f"{self.file.name} is no {self.root.upper()} file: its root is <{name[:40]}>",
                where=f"{self.file}:{self.line}",
                hint=f"give a file whose root is <{self.root}>",
            )
        self._prefixes = _prefixes_of_root(name, attributes)
        self._parser.StartElementHandler = self._handle_start
        self._handle_start(name, attributes)

    def _handle_start(self, name: str, attributes: Mapping[str, str]) -> None:
        if self._prefixes and name.startswith(self._prefixes):
            name = name.rpartition(":")[2]
        self.depth += 1
        if self._text is None:
            self.start_outside_text(name, attributes)
            return
        self._outer_is_text.append(self._is_text)
        if name in _CODE:
            self._is_text = False
        elif name == "sub":
            self._is_text = True
            self._text.append(" ")
        elif name == "cp" and attributes.get("hex"):
            self._text.append(" ")  # a character that XML cannot hold
        if any(attributes.get(key) in _BREAKS for key in _BREAK_ATTRIBUTES):
            self._text.append(" ")

    def _handle_end(self, name: str) -> None:
        if self._prefixes and name.startswith(self._prefixes):
            name = name.rpartition(":")[2]
        if self._text is None:
            self.end_outside_text(name)
        elif self._outer_is_text:
            self._is_text = self._outer_is_text.pop()
            if name == "sub":
                self._text.append(" ")
        else:
            assert self._unit is not None
            text = join_lines("".join(self._text))
            if text:
                self._unit[1].append((self._language, text))
            self._text = None
            self._parser.CharacterDataHandler = None
        self.depth -= 1

    def _handle_text(self, data: str) -> None:
        self._unit_length += len(data)
        if self._unit_length > _MAX_UNIT_CHARACTERS:
            raise self._too_large_error()
        if self._is_text and self._text is not None:
            self._text.append(data)

    def _too_large_error(self) -> DataError:
        message = f"a unit, tag or comment of {self.file.name} has more than {_MAX_UNIT_CHARACTERS:,} characters"
        where, hint = f"{self.file}:{self.line}", "give units with one sentence per language"
        return DataError(message, where=where, hint=hint)

    def _handle_skipped_entity(self, name: str, is_parameter: Any) -> None:
        """A character that only the DTD names, such as &nbsp;. No DTD is read, so it is HTML's character."""
        if not is_parameter:
            self._handle_text(html5.get(f"{name};", f"&{name};"))

    def _handle_entity_declaration(self, name: str, *declaration: Any) -> None:
        raise DataError(
            f"{self.file.name} declares the entity {name[:40]!r}, and a file that declares entities is not read",
            where=f"{self.file}:{self.line}",
            hint="remove <!ENTITY ...> from its DOCTYPE: a small file with entities can fill the memory",
        )


class _TmxParser(_UnitParser):
    """TMX: <tu> holds a <tuv> per language, each with a <seg>."""

    root = "tmx"
    _variant = ""

    def start_outside_text(self, name: str, attributes: Mapping[str, str]) -> None:
        if name == "seg":
            self.open_text(self._variant)
        elif name == "tuv":
            # "?" matches no language; an empty code would fit any language.
            self._variant = attributes.get("xml:lang") or attributes.get("lang") or "?"
        elif name == "tu":
            self.open_unit()

    def end_outside_text(self, name: str) -> None:
        if name == "tu":
            self.close_unit()


class _XliffParser(_UnitParser):
    """XLIFF 1.2: <file source-language target-language>, <trans-unit>. XLIFF 2: <xliff srcLang trgLang>, <segment>.

    Only direct children of a unit count: <alt-trans> and <mtc:match> hold a <source> and a <target> as well.
    """

    root = "xliff"
    _languages: Mapping[str, str] = MappingProxyType({"source": "", "target": ""})
    _unit_depth = 0

    def start_outside_text(self, name: str, attributes: Mapping[str, str]) -> None:
        match name:
            case "xliff":
                self._languages = {"source": attributes.get("srcLang", ""), "target": attributes.get("trgLang", "")}
            case "file" if "source-language" in attributes:
                self._languages = {side: attributes.get(f"{side}-language", "") for side in ("source", "target")}
            case "trans-unit" | "segment":
                self._unit_depth = self.depth
                self.open_unit()
            case "source" | "target" if self._unit_depth and self.depth == self._unit_depth + 1:
                self.open_text(attributes.get("xml:lang") or self._languages[name])

    def end_outside_text(self, name: str) -> None:
        if self.depth == self._unit_depth:
            self._unit_depth = 0
            self.close_unit()


def _read_line(file: Path, number: int) -> bytes:
    """A line of a file; empty if it is longer than `LONGEST_LINE`."""
    lines_before = number - 1
    with open_bytes(file) as stream:
        while lines_before and (part := stream.readline(LONGEST_LINE)):
            lines_before -= part.endswith(b"\n")
        line: bytes = stream.readline(LONGEST_LINE)
    return line if len(line) < LONGEST_LINE else b""


def _prefixes_of_root(name: str, attributes: Mapping[str, str]) -> tuple[str, ...]:
    """The prefixes, such as `x:`, that stand for the namespace of the root element."""
    own, colon, _ = name.rpartition(":")
    namespace = attributes.get(f"xmlns:{own}" if colon else "xmlns")
    declared = {
        key.removeprefix("xmlns:") for key, value in attributes.items() if key[:6] == "xmlns:" and value == namespace
    }
    return tuple(f"{prefix}:" for prefix in declared | {own} if prefix)
