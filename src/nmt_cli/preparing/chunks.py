"""Chunks of some thousand pairs: raw bytes from the readers, parsed into text for the cleaning rules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

CHUNK_PAIRS = 10_000
_KEYS_SHOWN = 8
_KEY_CHARACTERS = 40


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
class TextChunk:
    """Lines of two aligned files, each with its line end; the last line may lack it."""

    src: bytes
    tgt: bytes
    num_pairs: int
    first_line: int
    origin: str

    def parse(self) -> ParsedChunk:
        """The pairs as text."""
        src, tgt = (_lines(side, is_start=self.first_line == 1)[: self.num_pairs] for side in (self.src, self.tgt))
        return ParsedChunk(src, tgt, self.first_line, self.origin)


@dataclass(frozen=True, slots=True)
class TsvChunk:
    """Lines of tab-separated columns; `source` and `target` count from 1."""

    lines: bytes
    source: int
    target: int
    num_pairs: int
    first_line: int
    origin: str

    def parse(self) -> ParsedChunk:
        """The pairs as text; a line without these columns is malformed."""
        needed = max(self.source, self.target)
        rows = [line.split("\t") for line in _lines(self.lines, is_start=self.first_line == 1)[: self.num_pairs]]
        malformed = {index: "\t".join(row) for index, row in enumerate(rows) if len(row) < needed}
        rows = [row if len(row) >= needed else [""] * needed for row in rows]
        src, tgt = ([row[column - 1] for row in rows] for column in (self.source, self.target))
        return ParsedChunk(src, tgt, self.first_line, self.origin, malformed, self._problem(malformed))

    def _problem(self, malformed: Mapping[int, str]) -> str | None:
        if not malformed:
            return None
        there = next(iter(malformed.values())).count("\t") + 1
        number = "1 column" if there == 1 else f"{there:,} columns"
        return (
            f"columns {self.source} and {self.target} are looked for, and that line has {number}: "
            "set source and target in the corpus file to columns that it has"
        )


@dataclass(frozen=True, slots=True)
class JsonlChunk:
    """Lines of JSON objects; `source` and `target` are dotted keys."""

    lines: bytes
    source: str
    target: str
    num_pairs: int
    first_line: int
    origin: str

    def parse(self) -> ParsedChunk:
        """The pairs as text; a line that is not JSON, or holds no text under a key, is malformed."""
        keys = [self.source.split("."), self.target.split(".")]
        sides: tuple[list[str], list[str]] = ([], [])
        malformed = {}
        for index, line in enumerate(_lines(self.lines, is_start=self.first_line == 1)[: self.num_pairs]):
            texts = _texts_at(line, keys)
            if texts is None:
                malformed[index] = line
            for side, text in zip(sides, texts or ("", ""), strict=True):
                side.append(text)
        return ParsedChunk(*sides, self.first_line, self.origin, malformed, self._problem(malformed))

    def _problem(self, malformed: Mapping[int, str]) -> str | None:
        if not malformed:
            return None
        return (
            f"text is looked for under the keys {self.source} and {self.target}, and that line "
            f"{_contents(next(iter(malformed.values())))}: set source and target in the corpus file to keys of text"
        )


@dataclass(frozen=True, slots=True)
class TableChunk:
    """Two columns of text, as an Arrow IPC stream; a null is an empty text."""

    table: bytes
    num_pairs: int
    first_line: int
    origin: str

    def parse(self) -> ParsedChunk:
        """The pairs as text."""
        import pyarrow

        with pyarrow.ipc.open_stream(self.table) as stream:
            columns = stream.read_all().slice(0, self.num_pairs).columns
        src, tgt = ([text or "" for text in column.to_pylist()] for column in columns)
        return ParsedChunk(src, tgt, self.first_line, self.origin)


RawChunk: TypeAlias = TextChunk | TsvChunk | JsonlChunk | TableChunk
"""Pairs as they were read, cheap to make and to send to another process; `replace(raw, num_pairs=n)` is the first n.

`first_line` is the line, or row, of the first of them, counted from 1.
"""


def _lines(data: bytes, *, is_start: bool) -> list[str]:
    """Lines without their end (LF or CR LF), and without a byte-order mark at the start of a file; LF ends a line."""
    text = data.decode("utf-8", "surrogateescape")
    if is_start:
        text = text.removeprefix("\ufeff")
    lines = text.removesuffix("\n").split("\n") if text else [""]
    return [line.removesuffix("\r") for line in lines] if "\r" in text else lines


def _texts_at(line: str, keys: Sequence[Sequence[str]]) -> list[str] | None:
    """The texts at the keys of a JSON object, or None if the line is not JSON or a key has no text."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # the first for numbers of thousands of digits as well
        return None
    texts = []
    for key in keys:
        value: Any = record
        for part in key:
            value = value.get(part) if isinstance(value, dict) else None
        if not isinstance(value, str):
            return None
        texts.append(value)
    return texts


def _contents(line: str) -> str:
    """A line of JSON described for an error: its dotted keys, with the kind of value if a key has no text."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return "is not JSON"
    if not isinstance(record, dict):
        return f"is no object but {_kind(record)}"
    keys = list(_leaves(record, ""))
    more = f" and {len(keys) - _KEYS_SHOWN:,} more" if len(keys) > _KEYS_SHOWN else ""
    return f"has {', '.join(keys[:_KEYS_SHOWN])}{more}" if keys else "has no keys"


def _leaves(record: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in record.items():
        if isinstance(value, dict) and value and prefix.count(".") < _KEYS_SHOWN:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            shown = repr(f"{prefix}{key}"[:_KEY_CHARACTERS])[1:-1]  # with escapes for what cannot be printed
            yield shown if isinstance(value, str) else f"{shown} ({_kind(value)})"


def _kind(value: object) -> str:
    if value is None:
        return "null"
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list"}
    return kinds.get(type(value), "an object")
