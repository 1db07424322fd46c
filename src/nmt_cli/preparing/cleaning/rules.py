"""Rules that drop training pairs. Each rule sees one pair at a time; drops are counted, with the first examples.

The rules hold no state. Whether a pair is kept does not depend on the pairs before it, so text is cleaned in any order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import inf
from typing import Any, TypeAlias, TypeVar

from pydantic import TypeAdapter

from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.cleaning.side_rules import (
    LanguageRule,
    ScriptRule,
    find_punctuation_only,
    find_repeated_characters,
    find_urls_only,
)
from nmt_cli.preparing.corpus import CleaningConfig
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.text_encoding import is_unicode
from nmt_cli.tokenization.white_space import normalize_spaces

EXAMPLES_PER_REASON = 3
MALFORMED = "malformed record"
UNTRANSLATED = "no translation"
NOT_UTF8 = "invalid UTF-8"
CONTROL_CHARACTERS = "control characters"
DUPLICATE = "duplicate"
OTHER_TRANSLATION = "other translation"
HELD_OUT = "in validation or test text"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_EXAMPLE_CHARACTERS = 160

T = TypeVar("T")
SideRule: TypeAlias = Callable[[Sequence[str]], list[int]]
"""The indices of the texts that break a rule."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The meaning of a reason to drop pairs, and the settings of section `cleaning` that keep such pairs."""

    meaning: str
    relaxed: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of section `cleaning` that the rule reads."""
        return tuple(setting.partition("=")[0] for setting in self.relaxed)


# A pair counts for the first of these that applies to it.
REASONS = {
    MALFORMED: Reason("a row of TSV has too few cells, a row of CSV too many, or a record no text at the keys", ()),
    UNTRANSLATED: Reason("a unit or a row of CSV lacks one of the two texts, or its translation is not finished", ()),
    NOT_UTF8: Reason("a side has bytes that are no UTF-8, or half a character", ()),
    "line break": Reason("a side has a line break inside", ()),
    CONTROL_CHARACTERS: Reason("a side has control characters inside", ("control_characters=false",)),
    "empty": Reason("a side is empty or white space", ()),
    "too short": Reason("a side has fewer words or characters", ("min_words=null", "min_characters=null")),
    "too long": Reason("a side has more words or characters", ("max_words=null", "max_characters=null")),
    "length ratio": Reason("a side is too long for the other", ("max_length_ratio=null", "max_word_ratio=null")),
    "identical sides": Reason("both sides are the same text", ("identical_sides=false",)),
    "punctuation only": Reason("a side has neither a letter nor a digit", ("punctuation_only=false",)),
    "URL only": Reason("a side is nothing but web addresses", ("url_only=false",)),
    "repeated characters": Reason("a side repeats a character more often in a row", ("max_repeated_characters=null",)),
    "other script": Reason("most letters of a side are in another script than its language's", ("other_script=false",)),
    "other language": Reason("a side is identified as another language", ("other_language=false",)),
    DUPLICATE: Reason("the pair was seen before", ("duplicates=false",)),
    OTHER_TRANSLATION: Reason("another translation of the same source is kept", ("several_translations=all",)),
    HELD_OUT: Reason("the pair, or a side of it, is in validation or test text", ("overlap=report",)),
}


@dataclass(frozen=True, slots=True)
class DroppedExample:
    """A dropped pair: file and line, and the beginnings of its sides."""

    where: str
    source: str
    target: str


@dataclass(slots=True)
class DroppedPairs:
    """The pairs dropped for one reason."""

    count: int = 0
    examples: list[DroppedExample] = field(default_factory=list)


@dataclass(slots=True)
class CleaningCounts:
    """The number of pairs that were read, of pairs whose spaces were tidied, and of pairs dropped by reason.

    Tidied pairs may be dropped later, as duplicates or as held-out text.
    """

    read: int = 0
    tidied: int = 0
    dropped: dict[str, DroppedPairs] = field(default_factory=lambda: {reason: DroppedPairs() for reason in REASONS})

    @property
    def kept(self) -> int:
        """The number of pairs that were read and not dropped."""
        return self.read - sum(dropped.count for dropped in self.dropped.values())

    def drop(self, reason: str, where: str, src: str, tgt: str) -> None:
        """Count a pair as dropped; the first pairs of a reason are kept as examples."""
        dropped = self.dropped[reason]
        dropped.count += 1
        if len(dropped.examples) < EXAMPLES_PER_REASON:
            dropped.examples.append(DroppedExample(where, make_printable(src), make_printable(tgt)))

    def add(self, other: CleaningCounts) -> None:
        """Add the counts of the text that follows; its examples come last."""
        self.read += other.read
        self.tidied += other.tidied
        for reason, dropped in other.dropped.items():
            own = self.dropped[reason]
            own.count += dropped.count
            own.examples = [*own.examples, *dropped.examples][:EXAMPLES_PER_REASON]

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON, for files and for the report."""
        dropped = {reason: asdict(dropped) for reason, dropped in self.dropped.items()}
        return {"read": self.read, "kept": self.kept, "tidied": self.tidied, "dropped": dropped}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> CleaningCounts:
        """The counts that `to_json` gave."""
        return TypeAdapter(cls).validate_python(values)


@dataclass(frozen=True, slots=True)
class KeptPairs:
    """The pairs of a chunk that the rules keep, in order, and the counts.

    The pairs are tidy: without outer and repeated spaces. `indices` are their indices in the chunk.
    """

    src: list[str]
    tgt: list[str]
    indices: list[int]
    counts: CleaningCounts


class CleaningRules:
    """The rules of a corpus for single pairs. Duplicates and overlap need all of the text: `selection.py` finds them.

    Raises DataError if languages are to be identified and that is not possible: see `LanguageRule`.
    """

    def __init__(self, config: CleaningConfig, languages: LanguagePair) -> None:
        self._config = config
        self._length_ratio = config.length_ratio(languages) or inf
        longest = config.max_repeated_characters or 0
        # Rules that look at one side: their setting, and how they are made of a language's code. They cost more.
        side_rules: dict[str, tuple[object, Callable[[str], SideRule]]] = {
            "punctuation only": (config.punctuation_only, lambda _: find_punctuation_only),
            "URL only": (config.url_only, lambda _: find_urls_only),
            "repeated characters": (longest, lambda _: partial(find_repeated_characters, longest=longest)),
            "other script": (config.other_script, ScriptRule),
            "other language": (config.other_language, LanguageRule),
        }
        self._side_rules = [
            (name, [make(code) for code in (languages.source, languages.target)])
            for name, (setting, make) in side_rules.items()
            if setting
        ]

    def apply(self, chunk: Chunk) -> KeptPairs:
        """The pairs of a chunk that the rules keep."""
        counts = CleaningCounts(read=len(chunk.src))

        def drop(index: int, reason: str, side: int) -> None:
            counts.drop(reason, chunk.where(index, side=side), chunk.src[index], chunk.tgt[index])

        src: list[str] = []
        tgt: list[str] = []
        indices: list[int] = []
        for index, (source, target) in enumerate(
            zip(map(normalize_spaces, chunk.src), map(normalize_spaces, chunk.tgt), strict=True)
        ):
            if index in chunk.malformed:
                drop(index, UNTRANSLATED if index in chunk.untranslated else MALFORMED, 0)
            elif (fault := self._fault(source, target)) is None:
                src.append(source)
                tgt.append(target)
                indices.append(index)
            else:
                drop(index, *fault)
        for reason, (source_rule, target_rule) in self._side_rules:
            bad_sources = {*source_rule(src)}
            bad_pairs = {*bad_sources, *target_rule(tgt)}
            for position in sorted(bad_pairs):
                drop(indices[position], reason, 0 if position in bad_sources else 1)
            if bad_pairs:
                src, tgt, indices = _remove(src, bad_pairs), _remove(tgt, bad_pairs), _remove(indices, bad_pairs)
        counts.tidied = sum(
            source != chunk.src[index] or target != chunk.tgt[index]
            for index, source, target in zip(indices, src, tgt, strict=True)
        )
        return KeptPairs(src, tgt, indices, counts)

    def _fault(self, src: str, tgt: str) -> tuple[str, int] | None:
        """The reason to drop a tidy pair, and the side at fault; None if its characters and lengths are in order."""
        config = self._config
        src_fault, tgt_fault = self._fault_of_side(src), self._fault_of_side(tgt)
        if src_fault or tgt_fault:
            faults = [(fault, side) for side, fault in enumerate((src_fault, tgt_fault)) if fault]
            return min(faults, key=lambda fault: [*REASONS].index(fault[0]))
        if len(src) > self._length_ratio * len(tgt) or len(tgt) > self._length_ratio * len(src):
            return "length ratio", 0
        if config.max_word_ratio is not None:
            fewer, more = sorted((len(src.split()), len(tgt.split())))
            if more > config.max_word_ratio * fewer:
                return "length ratio", 0
        return ("identical sides", 0) if config.identical_sides and src == tgt else None

    def _fault_of_side(self, text: str) -> str | None:
        config = self._config
        if not text.isprintable():
            if not is_unicode(text):
                return NOT_UTF8
            if "\n" in text:
                return "line break"  # under any rules: it would misalign the two files of clean text
            if config.control_characters and _CONTROL.search(text):
                return CONTROL_CHARACTERS
        if not text:
            return "empty"
        # A text of n words has at least 2 n - 1 characters, so most texts need not be split.
        least, most, length = config.min_words or 0, config.max_words or inf, len(text)
        words = len(text.split()) if least or length > 2 * most else 0
        if length < (config.min_characters or 0) or words < least:
            return "too short"
        return "too long" if length > (config.max_characters or inf) or words > most else None


def make_printable(text: str) -> str:
    """The beginning of a text for a report, with escapes for characters that cannot be shown."""
    short = text if len(text) <= _EXAMPLE_CHARACTERS else text[:_EXAMPLE_CHARACTERS] + " …"
    return _UNPRINTABLE.sub(_escape, short)


def _remove(values: list[T], indices: set[int]) -> list[T]:
    return [value for index, value in enumerate(values) if index not in indices]


def _escape(character: re.Match[str]) -> str:
    code = ord(character[0])
    # 0xDC80 to 0xDCFF stand for the bytes from 0x80 on that were not UTF-8.
    return f"\\u{code:04x}" if 0xD800 <= code < 0xDC80 or code > 0xDCFF else f"\\x{code & 0xFF:02x}"
