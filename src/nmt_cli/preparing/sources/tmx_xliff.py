"""TMX and XLIFF, the XML formats of translation memories and of translators' files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from pydantic import Field

from nmt_cli.preparing.sources.units import Unit, UnitsFile, UnitsSource
from nmt_cli.preparing.sources.xml_units import UnitParser


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


class _TmxParser(UnitParser):
    """TMX: <tu> holds a <tuv> per language, each with a <seg>."""

    root = "tmx"
    _variant = ""

    def start_outside_text(self, name: str, attributes: Mapping[str, str]) -> None:
        if name == "seg":
            self.open_text(self._variant)
        elif name == "tuv":
            self._variant = attributes.get("xml:lang") or attributes.get("lang") or "?"
        elif name == "tu":
            self.open_unit()

    def end_outside_text(self, name: str) -> None:
        if name == "tu":
            self.close_unit()


class _XliffParser(UnitParser):
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
