"""Chunks of some thousand pairs: raw bytes from the readers, parsed into text for the cleaning rules."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar

CHUNK_PAIRS = 10_000
CHUNK_BYTES = 1 << 25
"""The size, in bytes or characters, at which a chunk ends even with fewer pairs. Only very long lines reach it."""

_QUOTED_CELL = re.compile(r'"[^"]*(?:""[^"]*)*"')
_ITEMS_PER_SIZE_CHECK = 32
_KEYS_SHOWN = 8
_KEY_CHARACTERS = 40
_MAX_KEY_DEPTH = 8
_BROKEN = object()
_JSON_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}

T = TypeVar("T")


class UnitPair(NamedTuple):
    """The two texts that begin at a line; `tgt` is None without a translation. `fault` says what is wrong.

    `date` is that of the last change, as the number YYYYMMDDhhmmss, or 0 if it is not known.
    """

    line: int
    src: str
    tgt: str | None
    fault: str | None = None
    date: int = 0


@dataclass(frozen=True, slots=True)
class ParsedChunk:
    """Pairs in order. Bytes that are not UTF-8 are surrogate escapes."""

    src: list[str]
    tgt: list[str]
    first_line: int
    origin: str
    # The text of broken records, by the index of their pair.
    malformed: dict[int, str] = field(default_factory=dict)
    # What is wrong with the first broken record: the columns or keys that it should have, and those that it has.
    problem: str | None = None
    # The indices of pairs without a translation in their file; `malformed` holds them too.
    untranslated: frozenset[int] = frozenset()
    # The line of each pair, if pairs may take several lines.
    lines: Sequence[int] | None = None
    # The date of each pair, as in `UnitPair`, if its file has dates.
    dates: Sequence[int] | None = None
    # The target's file, if it is not the source's.
    target_origin: str | None = None

    def where(self, index: int, *, side: int = 0) -> str:
        """File and line of a pair, or of its target if `side` is 1."""
        line = self.first_line + index if self.lines is None else self.lines[index]
        return f"{(self.target_origin if side else None) or self.origin}:{line}"


@dataclass(frozen=True, slots=True)
class RawChunk(ABC):
    """Pairs as they were read, cheap to make and to send to another process. Each format is a subclass.

    `first_line` is the line, or row, of the first pair, counted from 1.
    """

    num_pairs: int
    first_line: int
    origin: str

    @abstractmethod
    def parse(self) -> ParsedChunk:
        """The pairs as text."""

    def first(self, number: int) -> RawChunk:
        """The first `number` pairs, or all if there are no more."""
        return replace(self, num_pairs=min(number, self.num_pairs))

    def _lines(self, data: bytes) -> list[str]:
        """A line for each pair, without its end (LF or CR LF); a file's first line also without a byte-order mark."""
        text = data.decode("utf-8", "surrogateescape")
        if self.first_line == 1:
            text = text.removeprefix("\ufeff")
        lines = text.removesuffix("\n").split("\n")[: self.num_pairs]
        return [line.removesuffix("\r") for line in lines] if "\r" in text else lines


@dataclass(frozen=True, slots=True)
class TextChunk(RawChunk):
    """Lines of two aligned files, each with its line end; the last line may lack it. A tab is a space."""

    src: bytes
    tgt: bytes
    target_origin: str

    def parse(self) -> ParsedChunk:
        """The pairs as text."""
        sides = self._lines(self.src.replace(b"\t", b" ")), self._lines(self.tgt.replace(b"\t", b" "))
        return ParsedChunk(*sides, self.first_line, self.origin, target_origin=self.target_origin)


@dataclass(frozen=True, slots=True)
class UnitsChunk(RawChunk):
    """Texts of units that may take several lines of their file, joined with line feeds; lines and dates are int64.

    `faults` tells what is wrong with broken units, by their index.
    """

    src: bytes
    tgt: bytes
    line_numbers: bytes
    dates: bytes
    untranslated: frozenset[int]
    faults: Mapping[int, str]

    def parse(self) -> ParsedChunk:
        """The pairs as text."""
        src, tgt = (
            side.decode("utf-8", "surrogateescape").split("\n")[: self.num_pairs] for side in (self.src, self.tgt)
        )
        malformed = [index for index in sorted({*self.untranslated, *self.faults}) if index < self.num_pairs]
        return ParsedChunk(
            src,
            tgt,
            self.first_line,
            self.origin,
            malformed={index: src[index] for index in malformed},
            problem=next((self.faults[index] for index in malformed if index in self.faults), None),
            untranslated=self.untranslated.intersection(malformed),
            lines=array("q", self.line_numbers),
            dates=array("q", self.dates),
        )


def batched(items: Iterable[T], *, size: Callable[[T], int]) -> Iterator[list[T]]:
    """The items in lists of `CHUNK_PAIRS`, or of fewer items if their sizes add up to `CHUNK_BYTES`."""
    remaining = iter(items)
    batch: list[T] = []
    total = 0
    while group := list(islice(remaining, min(_ITEMS_PER_SIZE_CHECK, CHUNK_PAIRS - len(batch)))):
        batch += group
        total += sum(map(size, group))
        if len(batch) == CHUNK_PAIRS or total >= CHUNK_BYTES:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def unit_chunks(pairs: Iterable[UnitPair], *, origin: str) -> Iterator[UnitsChunk]:
    """Pairs in chunks. The texts have no line breaks."""
    for batch in batched(pairs, size=lambda pair: len(pair.src) + len(pair.tgt or "")):
        lines, src, tgt, faults, dates = zip(*batch, strict=True)
        src_bytes, tgt_bytes = (
            "\n".join(text or "" for text in side).encode("utf-8", "surrogateescape") for side in (src, tgt)
        )
        line_numbers, dates_bytes = (array("q", values).tobytes() for values in (lines, dates))
        untranslated = frozenset(index for index, text in enumerate(tgt) if text is None)
        fault_of_index = {index: fault for index, fault in enumerate(faults) if fault is not None}
        yield UnitsChunk(
            num_pairs=len(batch),
            first_line=lines[0],
            origin=origin,
            src=src_bytes,
            tgt=tgt_bytes,
            line_numbers=line_numbers,
            dates=dates_bytes,
            untranslated=untranslated,
            faults=fault_of_index,
        )


@dataclass(frozen=True, slots=True)
class _RecordChunk(RawChunk):
    """Lines with a record of a pair each. A record without both texts is malformed."""

    lines: bytes

    def parse(self) -> ParsedChunk:
        """The pairs as text, and the malformed records."""
        lines = self._lines(self.lines)
        pairs = list(self._pairs(lines))
        malformed = {index: line for index, (line, pair) in enumerate(zip(lines, pairs, strict=True)) if pair is None}
        src, tgt = ([pair[side] if pair else "" for pair in pairs] for side in (0, 1))
        return ParsedChunk(src, tgt, self.first_line, self.origin, malformed, self._describe_first(malformed))

    def _describe_first(self, malformed: Mapping[int, str]) -> str | None:
        """The fault of the first malformed line, and, if that one is blank, of the first that is not."""
        blank = ""
        for index, line in malformed.items():
            if line.strip():
                where = f"{blank}; {self.origin}:{self.first_line + index}: " if blank else ""
                return where + self._describe_malformed(line)
            blank = "that line is blank: remove it"
        return blank or None

    @abstractmethod
    def _pairs(self, lines: Sequence[str]) -> Iterator[tuple[str, str] | None]:
        """The pair of each line; None if the record is malformed."""

    @abstractmethod
    def _describe_malformed(self, line: str) -> str:
        """The description of a malformed record, and the fix."""


@dataclass(frozen=True, slots=True)
class TsvChunk(_RecordChunk):
    """Lines of tab-separated columns; `source` and `target` count from 1. Cells may be quoted as in CSV."""

    source: int
    target: int
    is_quoted: bool

    def _pairs(self, lines: Sequence[str]) -> Iterator[tuple[str, str] | None]:
        source, target, needed = self.source - 1, self.target - 1, max(self.source, self.target)
        for line in lines:
            row = line.split("\t")
            if len(row) < needed:
                yield None
            elif self.is_quoted and '"' in line:
                yield unquote(row[source]), unquote(row[target])
            else:
                yield row[source], row[target]

    def _describe_malformed(self, line: str) -> str:
        num_columns = line.count("\t") + 1
        number = "1 column" if num_columns == 1 else f"{num_columns:,} columns"
        return (
            f"columns {self.source} and {self.target} are looked for, and that line has {number}: mend the line, or "
            "give two columns that it has: --columns 1,2"
        )


@dataclass(frozen=True, slots=True)
class JsonlChunk(_RecordChunk):
    """Lines of JSON objects; `source` and `target` are dotted keys."""

    source: str
    target: str

    def _pairs(self, lines: Sequence[str]) -> Iterator[tuple[str, str] | None]:
        source, target = self.source.split("."), self.target.split(".")
        for line in lines:
            record = _parse_json(line)
            src, tgt = _value_at_key(source, record), _value_at_key(target, record)
            are_texts = isinstance(src, str) and isinstance(tgt, str)
            yield (src.replace("\t", " "), tgt.replace("\t", " ")) if are_texts else None

    def _describe_malformed(self, line: str) -> str:
        contents = _describe_line(line)
        if contents is None:
            return "that line is not JSON, so it is broken or cut short: mend it, or fetch the file again"
        return (
            f"text is looked for under the keys {self.source} and {self.target}, and that line {contents}: "
            "name the two keys: --columns SOURCE,TARGET"
        )


@dataclass(frozen=True, slots=True)
class TableChunk(RawChunk):
    """Two columns of text, as an Arrow IPC stream; a null is an empty text."""

    table: bytes

    def parse(self) -> ParsedChunk:
        """The pairs as text."""
        import pyarrow

        with pyarrow.ipc.open_stream(self.table) as stream:
            columns = stream.read_all().slice(0, self.num_pairs).columns
        # As bytes, because writers of tables do not check that text is UTF-8.
        sides = (column.cast(pyarrow.binary()).to_pylist() for column in columns)
        src, tgt = (
            [(text or b"").replace(b"\t", b" ").decode("utf-8", "surrogateescape") for text in side] for side in sides
        )
        return ParsedChunk(src, tgt, self.first_line, self.origin)


def unquote(cell: str) -> str:
    """The text of a cell that is quoted as in CSV; any other cell unchanged."""
    return cell[1:-1].replace('""', '"') if _QUOTED_CELL.fullmatch(cell) else cell


def are_quoted(lines: Sequence[str]) -> bool:
    """True if cells of TSV are quoted as in CSV: all texts below a header, or those with quotes, one of them inside."""
    with_quotes = [cell for line in lines if '"' in line for cell in line.split("\t") if '"' in cell]
    if not with_quotes or not all(map(_QUOTED_CELL.fullmatch, with_quotes)):
        return False
    below_header = lines if '"' in lines[0] else lines[1:]
    texts = [cell for line in below_header for cell in line.split("\t") if text_length(cell)]
    are_all_quoted = len(texts) > 2 and all('"' in cell for cell in texts)  # a single pair may be two quotations
    return are_all_quoted or any('"' in cell[1:-1] for cell in with_quotes)


def text_length(cell: str) -> int:
    """The characters of a cell or a value; 0 for a number or an identifier, a single word with digits."""
    text = cell.strip()
    return 0 if " " not in text and any(map(str.isdigit, text)) else len(text)


def keys_of_texts(line: bytes) -> list[str]:
    """The dotted keys of the texts in a line of JSON; none if it is no object."""
    record = _parse_json(line.decode("utf-8-sig", "surrogateescape"))
    return (
        [key for key, value in _dotted_items(record, "") if isinstance(value, str)] if isinstance(record, dict) else []
    )


def _parse_json(line: str) -> Any:
    """The value that a line of JSON holds; `_BROKEN` if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):  # the first for numbers of thousands of digits as well
        return _BROKEN


def _value_at_key(key: Sequence[str], record: Any) -> Any:
    """The value at the parts of a dotted key, or None."""
    for part in key:
        record = record.get(part) if isinstance(record, dict) else None
    return record


def _describe_line(line: str) -> str | None:
    """A line of JSON in words: its dotted keys, with the kind of value if a key has no text; None if it is not JSON."""
    record = _parse_json(line)
    if record is _BROKEN:
        return None
    if not isinstance(record, dict):
        return f"is no object but {_JSON_KINDS[type(record)]}"
    keys = [
        repr(key[:_KEY_CHARACTERS])[1:-1]  # with escapes for what cannot be printed
        + ("" if isinstance(value, str) else f" ({_JSON_KINDS[type(value)]})")
        for key, value in _dotted_items(record, "")
    ]
    more = f" and {len(keys) - _KEYS_SHOWN:,} more" if len(keys) > _KEYS_SHOWN else ""
    return f"has {', '.join(keys[:_KEYS_SHOWN])}{more}" if keys else "has no keys"


def _dotted_items(record: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """All values that are no objects, each after its dotted key."""
    for key, value in record.items():
        if isinstance(value, dict) and value and prefix.count(".") < _MAX_KEY_DEPTH:
            yield from _dotted_items(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
