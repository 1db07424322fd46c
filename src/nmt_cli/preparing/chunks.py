"""Chunks of some thousand pairs: raw bytes from the readers, parsed into text for the cleaning rules."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

CHUNK_PAIRS = 10_000
_KEYS_SHOWN = 8
_KEY_CHARACTERS = 40
_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True, slots=True)
class ParsedChunk:
    """Pairs in order. Bytes that are not UTF-8 are surrogate escapes; `malformed` holds broken records by index.

    `problem` describes the first broken record: the columns or keys that it should have, and those that it has.
    """

    src: list[str]
    tgt: list[str]
    first_line: int
    origin: str
    malformed: dict[int, str] = field(default_factory=dict)
    problem: str | None = None

    def where(self, index: int) -> str:
        """File and line of a pair."""
        return f"{self.origin}:{self.first_line + index}"


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
    """Lines of two aligned files, each with its line end; the last line may lack it."""

    src: bytes
    tgt: bytes

    def parse(self) -> ParsedChunk:
        """The pairs as text."""
        return ParsedChunk(self._lines(self.src), self._lines(self.tgt), self.first_line, self.origin)


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
        problem = self._problem(next(iter(malformed.values()))) if malformed else None
        return ParsedChunk(src, tgt, self.first_line, self.origin, malformed, problem)

    @abstractmethod
    def _pairs(self, lines: Sequence[str]) -> Iterator[tuple[str, str] | None]:
        """The pair of each line; None if the record is malformed."""

    @abstractmethod
    def _problem(self, line: str) -> str:
        """The description of a malformed record, and the fix."""


@dataclass(frozen=True, slots=True)
class TsvChunk(_RecordChunk):
    """Lines of tab-separated columns; `source` and `target` count from 1."""

    source: int
    target: int

    def _pairs(self, lines: Sequence[str]) -> Iterator[tuple[str, str] | None]:
        source, target, needed = self.source - 1, self.target - 1, max(self.source, self.target)
        for row in (line.split("\t") for line in lines):
            yield (row[source], row[target]) if len(row) >= needed else None

    def _problem(self, line: str) -> str:
        there = line.count("\t") + 1
        number = "1 column" if there == 1 else f"{there:,} columns"
        return (
            f"columns {self.source} and {self.target} are looked for, and that line has {number}: "
            "set source and target in the corpus file to columns that it has"
        )


@dataclass(frozen=True, slots=True)
class JsonlChunk(_RecordChunk):
    """Lines of JSON objects; `source` and `target` are dotted keys."""

    source: str
    target: str

    def _pairs(self, lines: Sequence[str]) -> Iterator[tuple[str, str] | None]:
        source, target = self.source.split("."), self.target.split(".")
        for line in lines:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):  # the first for numbers of thousands of digits as well
                yield None
                continue
            src, tgt = _value_at(source, record), _value_at(target, record)
            yield (src, tgt) if isinstance(src, str) and isinstance(tgt, str) else None

    def _problem(self, line: str) -> str:
        return (
            f"text is looked for under the keys {self.source} and {self.target}, and that line "
            f"{_contents(line)}: set source and target in the corpus file to keys of text"
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
        src, tgt = ([text or "" for text in column.to_pylist()] for column in columns)
        return ParsedChunk(src, tgt, self.first_line, self.origin)


def _value_at(key: Sequence[str], record: Any) -> Any:
    """The value at the parts of a dotted key, or None."""
    for part in key:
        record = record.get(part) if isinstance(record, dict) else None
    return record


def _contents(line: str) -> str:
    """A line of JSON described for an error: its dotted keys, with the kind of value if a key has no text."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return "is not JSON"
    if not isinstance(record, dict):
        return f"is no object but {_KINDS[type(record)]}"
    keys = list(_leaves(record, ""))
    more = f" and {len(keys) - _KEYS_SHOWN:,} more" if len(keys) > _KEYS_SHOWN else ""
    return f"has {', '.join(keys[:_KEYS_SHOWN])}{more}" if keys else "has no keys"


def _leaves(record: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in record.items():
        if isinstance(value, dict) and value and prefix.count(".") < _KEYS_SHOWN:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            shown = repr(f"{prefix}{key}"[:_KEY_CHARACTERS])[1:-1]  # with escapes for what cannot be printed
            yield shown if isinstance(value, str) else f"{shown} ({_KINDS[type(value)]})"
