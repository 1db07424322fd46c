"""Chunks of up to 50,000 pairs, as the readers of the formats give them to the cleaning rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, TypeVar

CHUNK_PAIRS = 50_000
CHUNK_BYTES = 1 << 26
"""The size, in bytes or characters, at which a chunk ends even with fewer pairs. Only very long lines reach it."""

_ITEMS_PER_SIZE_CHECK = 32

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
class Chunk:
    """Pairs in order. Bytes that are not UTF-8 are surrogate escapes.

    `first_line` is the line, or row, of the first pair, counted from 1.
    """

    src: list[str]
    tgt: list[str]
    first_line: int
    origin: str
    # The indices of broken records, whose whole text is in `src`.
    malformed: frozenset[int] = frozenset()
    # What is wrong with the first broken record: the columns or keys that it should have, and those that it has.
    problem: str | None = None
    # The indices of pairs without a translation in their file; `malformed` holds them too.
    untranslated: frozenset[int] = frozenset()
    # The line of each pair, if pairs may take several lines.
    lines: Sequence[int] | None = None
    # The date of each pair, as in `UnitPair`, if its file has dates.
    dates: Sequence[int] | None = None
    # The word alignment of each pair, in Pharaoh's format, if its source has alignments.
    alignments: Sequence[str] | None = None
    # The target's file, if it is not the source's.
    target_origin: str | None = None

    def __len__(self) -> int:
        return len(self.src)

    def where(self, index: int, *, side: int = 0) -> str:
        """File and line of a pair, or of its target if `side` is 1."""
        return f"{(self.target_origin if side else None) or self.origin}:{self.line(index)}"

    def line(self, index: int) -> int:
        """The line, or row, of a pair."""
        return self.first_line + index if self.lines is None else self.lines[index]

    def first(self, number: int) -> Chunk:
        """The first `number` pairs, or all if there are no more."""
        return replace(self, src=self.src[:number], tgt=self.tgt[:number])


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


def unit_chunks(pairs: Iterable[UnitPair], *, origin: str) -> Iterator[Chunk]:
    """Pairs in chunks."""
    for batch in batched(pairs, size=lambda pair: len(pair.src) + len(pair.tgt or "")):
        lines, src, tgt, faults, dates = zip(*batch, strict=True)
        broken = [index for index, pair in enumerate(batch) if pair.tgt is None or pair.fault is not None]
        yield Chunk(
            list(src),
            [text or "" for text in tgt],
            lines[0],
            origin,
            malformed=frozenset(broken),
            problem=next(filter(None, faults), None),
            untranslated=frozenset(index for index in broken if tgt[index] is None),
            lines=lines,
            dates=dates,
        )


def record_chunk(
    lines: Sequence[str],
    pairs: Sequence[tuple[str, str] | None],
    *,
    first_line: int,
    origin: str,
    describe: Callable[[str], str],
) -> Chunk:
    """The pairs of lines with a record each; None for a malformed record, which `describe` puts into words."""
    malformed = [index for index, pair in enumerate(pairs) if pair is None]
    problem = None
    if malformed:
        first = lines[malformed[0]]
        problem = describe(first) if first.strip() else "that line is blank: remove it"
    src = [pair[0] if pair else line for line, pair in zip(lines, pairs, strict=True)]
    return Chunk(src, [pair[1] if pair else "" for pair in pairs], first_line, origin, frozenset(malformed), problem)
