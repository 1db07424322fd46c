"""Cleaning of training pairs: what is dropped, counted by reason, with the first examples; digests find duplicates."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.corpora import CleaningConfig

EXAMPLES_PER_REASON = 3
REASONS = (
    "malformed record",
    "invalid UTF-8",
    "line break",
    "control characters",
    "empty",
    "too long",
    "length ratio",
    "identical sides",
    "duplicate",
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SPACES = re.compile(r" {2,}")
_EXAMPLE_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class Example:
    """A dropped pair: file and line, and the beginnings of its sides."""

    where: str
    source: str
    target: str


@dataclass(slots=True)
class Dropped:
    """The pairs dropped for one reason."""

    count: int = 0
    examples: list[Example] = field(default_factory=list)


class Cleaner:
    """Applies the rules to chunk after chunk and keeps the counts; a pair counts for the first rule that drops it."""

    def __init__(self, config: CleaningConfig) -> None:
        self._config = config
        self._seen = DigestSet()
        self.read = 0
        self.kept = 0
        self.tidied = 0
        self.dropped = {reason: Dropped() for reason in REASONS}

    def clean(self, chunk: Chunk) -> list[tuple[str, str]]:
        """The pairs that remain of a chunk, in their order, without outer and repeated spaces."""
        kept: list[tuple[str, str]] = []
        indices: list[int] = []
        for index, sides in enumerate(zip(chunk.src, chunk.tgt, strict=True)):
            src, tgt = (tidy(side) for side in sides)
            reason = "malformed record" if index in chunk.malformed else self._reason(src, tgt)
            if reason is not None:
                self._drop(reason, chunk, index)
            else:
                kept.append((src, tgt))
                indices.append(index)
                self.tidied += (src, tgt) != sides
        self.read += len(chunk.src)
        if self._config.duplicates and kept:
            is_new = self._seen.add(digests(f"{src}\n{tgt}" for src, tgt in kept))
            for position in np.flatnonzero(~is_new):
                self._drop("duplicate", chunk, indices[position])
            kept = [pair for pair, new in zip(kept, is_new, strict=True) if new]
        self.kept += len(kept)
        return kept

    def _reason(self, src: str, tgt: str) -> str | None:
        config = self._config
        if not (is_unicode(src) and is_unicode(tgt)):
            return "invalid UTF-8"
        if "\n" in src or "\n" in tgt:
            return "line break"  # whatever the rules: in the files of clean text it would part the two sides
        if config.control_characters and (_CONTROL.search(src) or _CONTROL.search(tgt)):
            return "control characters"
        if not src or not tgt:
            return "empty"
        longer, shorter = max(len(src), len(tgt)), min(len(src), len(tgt))
        if config.max_characters is not None and longer > config.max_characters:
            return "too long"
        if config.max_words is not None and max(len(src.split()), len(tgt.split())) > config.max_words:
            return "too long"
        if config.max_length_ratio is not None and longer > config.max_length_ratio * shorter:
            return "length ratio"
        if config.identical_sides and src == tgt:
            return "identical sides"
        return None

    def _drop(self, reason: str, chunk: Chunk, index: int) -> None:
        dropped = self.dropped[reason]
        dropped.count += 1
        if len(dropped.examples) < EXAMPLES_PER_REASON:
            src, tgt = chunk.malformed.get(index, chunk.src[index]), chunk.tgt[index]
            dropped.examples.append(Example(chunk.where(index), _printable(src), _printable(tgt)))


def digests(texts: Iterable[str]) -> NDArray[np.uint64]:
    """64-bit digests of texts, [n]; the same in every process.

    Among 40 million texts two different ones share a digest with a probability of about 1 in 20,000.
    """
    joined = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(joined, dtype=np.uint64)


class DigestSet:
    """A growing set of digests in sorted runs: 8 bytes each, where a Python set takes about 70."""

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []

    def add(self, new: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Add the digests; True for each that was neither in the set nor earlier in `new`."""
        unique, first = np.unique(new, return_index=True)
        is_new = np.zeros(len(new), dtype=bool)
        is_new[first] = ~self.contains(unique)
        run = np.sort(new[is_new])
        # Each run is more than twice as long as the next: few runs to search, and a digest is merged few times.
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        if len(run):
            self._runs.append(run)
        return is_new

    def contains(self, wanted: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """True for each digest that is in the set."""
        found = np.zeros(len(wanted), dtype=bool)
        for run in self._runs:
            position = np.minimum(np.searchsorted(run, wanted), len(run) - 1)
            found |= run[position] == wanted
        return found


def tidy(text: str) -> str:
    """The text without white space at its ends and with single spaces."""
    text = text.strip()
    return _SPACES.sub(" ", text) if "  " in text else text


def is_unicode(text: str) -> bool:
    """False where a text holds surrogates: bytes that were not UTF-8, or half a character from JSON."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(text: str) -> str:
    """The beginning of a text for a report, with escapes for what cannot be shown."""
    short = text if len(text) <= _EXAMPLE_CHARACTERS else text[:_EXAMPLE_CHARACTERS] + " …"
    return _UNPRINTABLE.sub(_escape, short)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    # 0xDC80 to 0xDCFF stand for the bytes from 0x80 on that were not UTF-8.
    return f"\\u{code:04x}" if 0xD800 <= code < 0xDC80 or code > 0xDCFF else f"\\x{code & 0xFF:02x}"
