"""Text inside of sentences that no translation may change: addresses, placeholders of programs, kept markup.

A model often copies it. If it does not, the sentence is translated without it, and gets it back at its place.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from nmt_cli.documents.marked_text import Mark, MarkedText
from nmt_cli.tokenization.pieces import Link, Range

# As in printf, Python, .NET, Ruby, shells and templates: %s, %1$s, %(n)d, %{n}, {0}, {name}, {{ x }}, ${x}, $1, $name.
# Possessive: a brace that is never closed takes one pass.
_PLACEHOLDER = (
    r"%\([^\s()]+\)[#0+-]*\d*(?:\.\d+)?[a-z]"
    r"|%(?:\d+\$)?[#0+-]*\d*(?:\.\d+)?(?:ll?|h|z)?[sdiufegxoc@](?![^\W_])"
    r"|[%$#]?\{\{?(?: ?[^\s{}]++)*+ ?\}?\}"
    r"|\$(?:\d++(?![.,]\d)|[a-z_]\w*)"
)
SHORTCODE: Final = (
    r"\[[a-z][\w-]*+(?:\s++[\w-]++=(?:\"[^\"\[\]]*+\"|'[^'\[\]]*+'|[^\s\[\]]++))++\s*+/?\](?!\()|\[/[a-z][\w-]*+\](?!\()"
    r"|(?<![\w:]):(?:[a-z][\w+-]{1,50}|[+-]1|100):(?![\w:])"
)
"""As in WordPress and in chats: [gallery id="1"], [/caption], :smile:."""
_EMAIL = r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
_URL = r"(?:https?://|(?<!\w)(?:[a-z][a-z+.-]{0,30}+://|www\.))[^\s<>\"“”«»]+"
_KEPT = re.compile(rf"(?P<url>{_URL})|{_EMAIL}|{_PLACEHOLDER}|{SHORTCODE}", re.IGNORECASE)
_OPENING = {")": "(", "]": "[", "}": "{"}


def find_kept(text: str) -> list[Range]:
    """The ranges of addresses and placeholders in a text."""
    ranges = []
    for match in _KEPT.finditer(text):
        kept = _without_punctuation(match[0]) if match["url"] else match[0]
        ranges.append((match.start(), match.start() + len(kept)))
    return ranges


def _without_punctuation(address: str) -> str:
    """An address without the punctuation after it. A closing bracket stays if the address has its opening one."""
    while address[-1] in ".,;:!?…'’*" or (
        address[-1] in _OPENING and address.count(_OPENING[address[-1]]) < address.count(address[-1])
    ):
        address = address[:-1]
    return address


def without_overlaps(ranges: Iterable[Range], others: Iterable[Range] = ()) -> list[Range]:
    """The ranges in order. Of two that overlap, the first one stays; of the others, only those beside all ranges."""
    found: list[Range] = []
    for start, end in sorted(ranges, key=lambda kept: (kept[0], -kept[1])):
        if not found or start >= found[-1][1]:
            found.append((start, end))
    beside = []
    for start, end in others:
        place = bisect_right(found, start, key=itemgetter(1))
        if place == len(found) or end <= found[place][0]:
            beside.append((start, end))
    return without_overlaps([*found, *beside]) if beside else found


def without_ranges(text: str, kept: Sequence[Range]) -> str:
    """The text without these ranges."""
    for start, end in reversed(kept):
        text = text[:start] + text[end:]
    return text


def links_to_copies(text: str, kept: Sequence[Range], translation: str) -> list[Link] | None:
    """A link from each kept range to its copy in a translation; None unless this has each as often as the text."""
    links: list[Link] = []
    ranges_of: dict[str, list[Range]] = {}
    for start, end in kept:
        ranges_of.setdefault(text[start:end], []).append((start, end))
    for copy, ranges in ranges_of.items():
        pattern = (r"\b" if copy[0].isalnum() else "") + re.escape(copy) + (r"\b" if copy[-1].isalnum() else "")
        starts = [match.start() for match in re.finditer(pattern, translation)]
        if len(starts) != len(ranges):
            return None
        links += [Link(*own, start, start + len(copy)) for own, start in zip(ranges, starts, strict=True)]
    # One may be a part of another.
    targets = without_overlaps(link[2:] for link in links)
    return links if len(targets) == len(links) else None


@dataclass(frozen=True, slots=True)
class WithoutKept:
    """A text without its kept ranges. Each of them is an empty mark of `marked`, which says where to put it back."""

    text: str
    kept: Sequence[Range]
    marked: MarkedText

    @classmethod
    def of(cls, text: str, kept: Sequence[Range]) -> WithoutKept:
        """The text without the ranges, and without the space before those that stand alone."""
        parts: list[str] = []
        marks: list[Mark] = []
        position = length = 0
        for start, end in kept:
            before = text[position:start]
            if text[end : end + 1].isspace() or not text[end : end + 1].isalnum():
                before = before.rstrip()
            parts.append(before)
            length += len(before)
            marks.append(Mark(length, length, text[start:end]))
            position = end
        return cls(text, kept, MarkedText("".join([*parts, text[position:]]), tuple(marks)))

    def put_back(self, translation: str, links: Iterable[Link]) -> tuple[str, list[Link]]:
        """The translation of the whole text, made of the translation without the kept ranges, and its links.

        The first links are those of the kept ranges, one for each.
        """
        links = list(links)
        places = [mark.start for mark in self.marked.translated(translation, links).marks]
        text, new_links = "", list[Link]()
        # How far each character of both texts moves.
        moved_in_source = [0] * (len(self.marked.text) + 1)
        moved_in_target = [0] * (len(translation) + 1)
        position = 0
        for (start, end), mark, place in sorted(
            zip(self.kept, self.marked.marks, places, strict=True), key=itemgetter(2)
        ):
            text += translation[position:place]
            if text and not text[-1].isspace() and self._needs_space(text[-1], self.text[max(0, start - 1) : start]):
                text += " "
            new_links.append(Link(start, end, len(text), len(text) + end - start))
            text += self.text[start:end]
            next_character = translation[place : place + 1]
            if next_character.isalnum() and self._needs_space(next_character, self.text[end : end + 1]):
                text += " "
            position = place
            for index in range(place, len(moved_in_target)):
                moved_in_target[index] = len(text) - place
            for index in range(mark.start, len(moved_in_source)):
                moved_in_source[index] = end - mark.start
        for link in links:
            source, target = moved_in_source[link.source_start], moved_in_target[link.target_start]
            new_links.append(link.shifted(source, target))
        return text + translation[position:], new_links

    @staticmethod
    def _needs_space(neighbour: str, source_neighbour: str) -> bool:
        """Whether a space stands beside a kept text: as in the source, and never between two words without one."""
        is_apart = not source_neighbour or source_neighbour.isspace()
        return is_apart or (neighbour.isalnum() and not source_neighbour.isalnum())
