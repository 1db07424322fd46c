"""Cleaning of training pairs: what is dropped, counted by reason, with the first examples of each."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from nmt_cli.preparing.corpora import CleaningConfig
from nmt_cli.preparing.digests import DigestSet, digests
from nmt_cli.preparing.readers import Chunk

EXAMPLES_PER_REASON = 3
REASONS = (
    "malformed record",
    "invalid UTF-8",
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
