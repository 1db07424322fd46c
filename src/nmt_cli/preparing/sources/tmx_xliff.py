"""TMX and XLIFF, the XML formats of translation memories and of translators' files.

lxml reads them in bounded memory. It opens no other file and no address, and a file that declares entities is refused.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from html.entities import html5
from pathlib import Path
from typing import ClassVar, Literal

from lxml import etree
from pydantic import Field

from nmt_cli.decompression import open_bytes
from nmt_cli.errors import DataError
from nmt_cli.preparing.sources.lines import LONGEST_LINE, join_lines
from nmt_cli.preparing.sources.translation_units import Unit, UnitsSource
from nmt_cli.text_encoding import check_uncompressed

_BLOCK = 1 << 18
_MAX_UNIT_BYTES = 4 * LONGEST_LINE
# Between units. The files of Trados hold the whole document there.
_MAX_OTHER_BYTES = 32 * LONGEST_LINE
# TMX 1.4b and XLIFF 1.2: the content of these is code of the document's format, except for <sub>.
_CODE = frozenset({"bpt", "ept", "it", "ph", "ut"})
# Code that stands for white space: by its type, and by its text. Other code may stand inside of a word.
_BREAK_TAG = "br|p|div|li|[uod]l|d[td]|h[1-6r]|t[rdh]|table|tab|option|blockquote"
_BREAK_TYPE = re.compile(rf"[clp]b|xlf:lb|x-(?:html-)?(?:{_BREAK_TAG})", re.IGNORECASE)
_BREAK_CODE = re.compile(
    rf"^\s+$|</?(?:\w+:)?(?:{_BREAK_TAG})(?![\w-])|\\(?:[nrt]|line|par|tab)(?![a-z])|&(?:nbsp|#160|#10);", re.IGNORECASE
)
_TYPE_ATTRIBUTES = ("type", "ctype", "subType")
_CODE_ATTRIBUTES = ("equiv-text", "equiv", "equivStart", "disp", "dispStart")
_LANGUAGE_ATTRIBUTES = (("source-language", "srcLang"), ("target-language", "trgLang"))
_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
# The states of translations that nobody has finished, by the attributes of XLIFF 1.2, 2, Trados, memoQ and Phrase.
_UNFINISHED = {
    "state": re.compile(r"new|initial|needs-.*"),
    "conf": re.compile("Unspecified|Draft|Rejected.*"),
    "status": re.compile("NotStarted|PartiallyEdited|Pretranslated|AssembledFromFragments|MachineTranslated|Rejected"),
    "confirmed": re.compile("0"),
}


class _XmlSource(UnitsSource):
    """A file of a kind of XML. `unit_names` are the names of the elements that are units."""

    unit_names: ClassVar[tuple[str, ...]]

    @abstractmethod
    def units_of(self, elements: Iterator[etree._Element]) -> Iterator[Unit]:
        """The units that elements hold."""

    def units(self, file: Path) -> Iterator[Unit]:
        """The units of the file. DataError if it is not well-formed, has another root, or declares entities."""
        parser = etree.XMLPullParser(
            ("start", "end"),
            tag=[f"{{*}}{tag}" for tag in self.unit_names],
            huge_tree=True,  # `_MAX_UNIT_BYTES` and `_MAX_OTHER_BYTES` are the limits
            resolve_entities=False,
            no_network=True,
            remove_comments=True,
            remove_pis=True,
        )
        try:
            yield from self.units_of(_elements(file, parser))
            root = parser.close()
        except etree.XMLSyntaxError as error:
            message = f"{file.name} is not well-formed XML: {error.msg}"
            hint = "mend that place (& is written as &amp;, < as &lt;), or export the file again in UTF-8"
            raise DataError(message, where=f"{file}:{error.lineno}", hint=hint) from None
        if etree.QName(root).localname != self.kind:
            message = f"{file.name} is no {self.kind.upper()} file: its root is <{root.tag[:40]}>"
            raise DataError(message, where=f"{file}:1", hint=f"give a file whose root is <{self.kind}>")


class TmxSource(_XmlSource):
    """A translation memory (TMX 1.1 to 1.4b). Languages match loosely, en-US is en; text inside code is left out."""

    endings = (".tmx",)
    kind: Literal["tmx"] = Field(description="two languages of a translation memory")
    unit_names = ("tu",)

    def units_of(self, elements: Iterator[etree._Element]) -> Iterator[Unit]:
        """Each <tu> with the text of the <seg> in each of its <tuv>, one per language."""
        for element in elements:
            texts: list[tuple[str, str]] = []
            is_finished = True
            tag = element.tag[:-2]
            variant, segment = f"{tag}tuv", f"{tag}seg"
            for child in element:
                if child.tag == variant:
                    # "?" matches no language; an empty code would fit any language.
                    language = child.get(_XML_LANG) or child.get("lang") or "?"
                    for one in child:
                        if one.tag == segment and (text := _text_of(one)):
                            texts.append((language, text))
                elif child.get("type") == "x-ConfirmationLevel" and _UNFINISHED["conf"].fullmatch(child.text or ""):
                    is_finished = False
            yield Unit(element.sourceline, texts, is_finished, max(map(_date_of, (element, *element))))


class XliffSource(_XmlSource):
    """A file of XLIFF 1.2 or 2, by segments. Those without a finished target are left out and counted."""

    endings = (".xliff", ".xlf", ".sdlxliff", ".mqxliff", ".mxliff", ".mxlf")
    kind: Literal["xliff"] = Field(description="source and target of an XLIFF file")
    unit_names = ("trans-unit", "segment")

    def units_of(self, elements: Iterator[etree._Element]) -> Iterator[Unit]:
        """Source and target of each <trans-unit> of XLIFF 1.2, or of its segments, and of each <segment> of XLIFF 2.

        Only direct children of a unit count: <alt-trans> and <mtc:match> hold a <source> and a <target> as well.
        """
        parent, languages = None, ["", ""]
        for element in elements:
            if element.getparent() is not parent:
                parent = element.getparent()
                languages = [_language_around(element, *names) for names in _LANGUAGE_ATTRIBUTES]
            tag = element.tag.removesuffix("trans-unit").removesuffix("segment")
            child = {one.tag: one for one in element.iterchildren(f"{tag}source", f"{tag}seg-source", f"{tag}target")}
            source, target = child.get(f"{tag}source"), child.get(f"{tag}target")
            if source is None:
                continue
            codes = [
                one.get(_XML_LANG, language) if one is not None else ""
                for one, language in zip((source, target), languages, strict=True)
            ]
            is_finished = _is_finished(element) and _is_finished(target)
            for src, tgt, state in _segments_of_unit(element, source, child.get(f"{tag}seg-source", source), target):
                texts = [(code, _text_of(one)) for code, one in zip(codes, (src, tgt), strict=True) if one is not None]
                yield Unit(src.sourceline, [text for text in texts if text[1]], is_finished and _is_finished(state))


def _elements(file: Path, parser: etree.XMLPullParser) -> Iterator[etree._Element]:
    """The elements that are units; what comes before an element is forgotten."""
    num_bytes, most_bytes, line = 0, _MAX_OTHER_BYTES, 1
    last: etree._Element | None = None
    with open_bytes(file, in_utf8=False) as stream:  # the parser reads what the document declares
        for block in iter(partial(stream.read, _BLOCK), b""):
            if last is None:
                check_uncompressed(block, name=str(file))
                _check_entities(file, block)
            parser.feed(block)
            num_bytes += len(block)
            event = ""
            for event, last in parser.read_events():
                if event == "end":
                    yield last
            if event and last is not None:
                num_bytes, line = 0, last.sourceline
                most_bytes = _MAX_UNIT_BYTES if event == "start" else _MAX_OTHER_BYTES
                for outer in (last, *last.iterancestors()):
                    if (parent := outer.getparent()) is not None:
                        del parent[: parent.index(outer)]
            if num_bytes > most_bytes:
                message = f"a unit, tag or comment of {file.name} has more than {most_bytes:,} bytes"
                hint = "give units with one sentence per language"
                raise DataError(message, where=f"{file}:{line}", hint=hint)


def _check_entities(file: Path, block: bytes) -> None:
    """Raise DataError if the beginning of a file declares an entity: a few of them can fill the memory."""
    before, declaration, _ = block.replace(b"\0", b"").partition(b"<!ENTITY")
    if declaration:
        message = f"{file.name} declares an entity, and a file that declares entities is not read"
        line = before.count(b"\n") + 1
        raise DataError(message, where=f"{file}:{line}", hint="remove <!ENTITY ...> from its DOCTYPE")


def _date_of(element: etree._Element) -> int:
    """The last change of a <tu> or <tuv>, or its creation, as the number YYYYMMDDhhmmss; 0 without either."""
    digits = re.sub(r"\D", "", element.get("changedate") or element.get("creationdate") or "")
    return int(digits[:14].ljust(14, "0")) if digits else 0


def _segments_of_unit(
    unit: etree._Element, source: etree._Element, seg_source: etree._Element, target: etree._Element | None
) -> list[tuple[etree._Element, etree._Element | None, etree._Element | None]]:
    """Source, target and Trados's state of each segment, or of the whole unit if its target has no segments."""
    segments, translated = _segments_of(seg_source), {} if target is None else _segments_of(target)
    if not segments or (not translated and target is not None and _text_of(target)):
        return [(source, target, None)]
    states = {one.get("id"): one for one in unit.iterfind("{*}seg-defs/{*}seg")}
    return [(one, translated.get(mid), states.get(mid)) for mid, one in segments.items()]


def _segments_of(element: etree._Element) -> dict[str, etree._Element]:
    """The segments <mrk mtype="seg"> inside an element by their `mid`."""
    marks = [mark for mark in element.iter("{*}mrk") if mark.get("mtype") == "seg"] if len(element) else []
    return {mark.get("mid", str(number)): mark for number, mark in enumerate(marks)}


def _is_finished(element: etree._Element | None) -> bool:
    """False if an attribute of an element, in whatever namespace, says that its translation is not finished."""
    for name, state in () if element is None else element.items():
        pattern = _UNFINISHED.get(name.rpartition("}")[2])
        if pattern is not None and pattern.fullmatch(state):
            return False
    return True


def _language_around(element: etree._Element, *attributes: str) -> str:
    """The language that the elements around a unit name; empty if none does."""
    named = (outer.get(attribute) for outer in element.iterancestors() for attribute in attributes)
    return next(filter(None, named), "")


def _text_of(element: etree._Element) -> str:
    """The text of an element as one line, without the code in it."""
    return join_lines("".join(_parts_of(element, is_text=True)) if len(element) else element.text or "")


def _parts_of(element: etree._Element, *, is_text: bool) -> Iterator[str]:
    """The parts of the text of an element, which is code unless `is_text`; a <sub> inside code is text again."""
    if is_text:
        yield element.text or ""
    for child in element:
        if child.tag is etree.Entity:
            # A character that only the DTD names, such as &nbsp;. No DTD is read, so it is HTML's character.
            if is_text:
                yield html5.get(f"{child.name};", child.text)
        else:
            name = child.tag.rpartition("}")[2]
            is_code = name in _CODE or child.get("mtype") == "x-sdl-deleted"
            # <cp> is a character that XML cannot hold.
            is_apart = name == "sub" or (name == "cp" and child.get("hex")) or _is_break(child, name)
            if is_apart:
                yield "\n"
            yield from _parts_of(child, is_text=name == "sub" or (is_text and not is_code))
            if is_apart:
                yield "\n"
        if is_text:
            yield child.tail or ""


def _is_break(element: etree._Element, name: str) -> bool:
    """Whether an element stands for white space between words, such as a line break or the beginning of a paragraph."""
    codes = [element.text if name in _CODE else "", *map(element.get, _CODE_ATTRIBUTES)]
    return any(_BREAK_TYPE.fullmatch(element.get(key, "")) for key in _TYPE_ATTRIBUTES) or any(
        _BREAK_CODE.search(code) for code in codes if code
    )
