"""Text inside of sentences that no translation may change: addresses, placeholders of programs, kept markup.

A model often copies it. If it does not, the sentence is translated without it, and gets it back at its place.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final

from nmt_cli.documents.icu_messages import ICU_ARGUMENT
from nmt_cli.documents.marked_text import Mark, MarkedText
from nmt_cli.tokenization.pieces import Link, Range
from nmt_cli.tokenization.split_text import WIDE

# Chinese, Japanese and Korean have no space beside an address or a placeholder, and their marks end it.
_LETTER = rf"[^\W{WIDE}\uac00-\ud7af]"
# As in printf, Python, .NET, Ruby, shells and templates: %s, %1$s, %(n)d, %{n}, {0}, {name}, {{ x }}, ${x}, $1, $name.
# Percentages with an ending (Hungarian 50%-e, Turkish 20%i), money ($100, $5m, US$5) and names (Ke$ha) are text.
# Possessive: a brace that is never closed takes one pass.
_PLACEHOLDER = (
    r"%\([^\s()]+\)[#0+-]*\d*(?:\.\d+)?[a-z]"
    rf"|%(?:\d+\$)?[#0+-]*\d*(?:\.\d+)?(?:ll?|h|z)?(?<!\d%-)(?:[sd@]|(?<!\d%)[iufegxoc])(?!(?!_){_LETTER})"
    r"|[%$#]?\{\{?(?: ?[^\s{}]++)*+ ?\}?\}"
    rf"|(?<!(?![\d_]){_LETTER})\$(?:\d(?!{_LETTER}|[.,]\d)|[a-z_][a-z\d_]*)"
)
_FORUM_CODE = (
    r"b|i|u|s|url|img|email|quote|code|list|li|color|size|font|center|left|right|align|sub|sup|spoiler|video|youtube"
    r"|table|tr|td|th|h[1-6]|pre|indent"
)
SHORTCODE: Final = (
    rf"\[(?P<code>{_FORUM_CODE})(?:=(?:\"[^\"\[\]]*+\"|[^\"\[\]]*+))?\](?=.{{0,2000}}?\[/(?P=code)\])(?!\()|\[\*\]"
    r"|\[[a-z][\w-]*+(?:\s++[\w-]++=(?:\"[^\"\[\]]*+\"|'[^'\[\]]*+'|[^\s\[\]]++))++\s*+/?\](?!\()"
    r"|\[/[a-z][\w-]*+\](?!\()|(?<![\w:]):(?:[a-z][\w+-]{1,50}|[+-]1|100):(?![\w:])"
)
"""As in forums, WordPress and chats: [b] before [/b], [*], [gallery id="1"], [/caption], :smile:."""
_EMAIL = rf"(?<!{_LETTER})(?<![.+-])(?:{_LETTER}|[.+-])+@(?:{_LETTER}|-)+(?:\.(?:{_LETTER}|-)+)+"
_URL = (
    rf"(?:https?://|(?<!{_LETTER})(?:[a-z][a-z+.-]{{0,30}}+://|www\.))"
    r"[^\s<>|\"“”«»—،؛؟，。、；：！？（）「」『』【】《》〈〉]+"
)
_KEPT = re.compile(rf"(?P<url>{_URL})|{_EMAIL}|{ICU_ARGUMENT}|{_PLACEHOLDER}|{SHORTCODE}", re.IGNORECASE)
_CODE = re.compile(r"\[(/?)([a-z][\w-]*)", re.IGNORECASE)
_END_OF_WORD = re.compile(rf"(?!{_LETTER})")
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
        # The same text may also stand where it is not kept, as in "2 m<sup>2</sup>".
        starts, own_starts = _starts_of(copy, translation), _starts_of(copy, text)
        if len(starts) != len(own_starts) or not {start for start, _ in ranges} <= {*own_starts}:
            return None
        own_ends = dict(ranges)
        links += [
            Link(own, own_ends[own], start, start + len(copy))
            for own, start in zip(own_starts, starts, strict=True)
            if own in own_ends
        ]
    # One may be a part of another.
    targets = without_overlaps(link[2:] for link in links)
    return links if len(targets) == len(links) else None


def _pairs_of_codes(kept: Sequence[str]) -> dict[int, int]:
    """The index of each code that another one ends, such as [b] and [/b], by the index of that end."""
    pairs: dict[int, int] = {}
    begun: list[tuple[str, int]] = []
    for index, text in enumerate(kept):
        if (code := _CODE.match(text)) is None:
            continue
        if not code[1]:
            begun.append((code[2].lower(), index))
        elif code[2].lower() in (names := [name for name, _ in begun]):
            place = len(names) - 1 - names[::-1].index(code[2].lower())
            pairs[index] = begun[place][1]
            del begun[place:]
    return pairs


def _starts_of(copy: str, text: str) -> list[int]:
    """Where a copy stands in a text, and not inside of a longer word or number."""
    before = r"(?<!\d)" if copy[0].isdigit() else f"(?<!{_LETTER})" if copy[0].isalpha() else ""
    after = r"(?!\d)" if copy[-1].isdigit() else f"(?!{_LETTER})" if copy[-1].isalpha() else ""
    return [match.start() for match in re.finditer(before + re.escape(copy) + after, text)]


@dataclass(frozen=True, slots=True)
class WithoutKept:
    """A text without its kept ranges. Each of them is a mark of `marked`, which says where to put it back.

    The mark of a code such as [b] is on the words up to its [/b], and `closed` has its index by that of its end. All
    others are empty.
    """

    text: str
    kept: Sequence[Range]
    marked: MarkedText
    closed: Mapping[int, int]

    @classmethod
    def of(cls, text: str, kept: Sequence[Range]) -> WithoutKept:
        """The text without the ranges, and without the space before those that stand alone."""
        parts: list[str] = []
        marks: list[Mark] = []
        closed = _pairs_of_codes([text[start:end] for start, end in kept])
        position = length = 0
        for start, end in kept:
            before = text[position:start]
            if text[end : end + 1].isspace() or not text[end : end + 1].isalnum():
                before = before.rstrip()
            parts.append(before)
            length += len(before)
            marks.append(Mark(length, length, text[start:end]))
            position = end
        for end_index, index in sorted(closed.items(), key=itemgetter(1)):  # the outer ones first
            marks[index] = replace(marks[index], end=marks[end_index].start)
            marks[index + 1 : end_index] = [replace(mark, parent=index) for mark in marks[index + 1 : end_index]]
        return cls(text, kept, MarkedText("".join([*parts, text[position:]]), tuple(marks)), closed)

    def put_back(self, translation: str, links: Iterable[Link], *, prefix: str = "") -> tuple[str, list[Link]]:
        """The translation of the whole text, made of the translation without the kept ranges, and its links.

        What the prefix of the translation has is not put back, and nothing is put into it. The kept ranges have the
        first links, one for each.
        """
        links = list(links)
        given = self._starts_in(prefix)
        first_place = next(_END_OF_WORD.finditer(translation, len(prefix))).start() if prefix else 0
        marks = self.marked.translated(translation, links).marks
        # What ends at a place stands before what begins there.
        places = [
            (marks[index].start, True)
            if (begun := self.closed.get(index)) is None
            else (marks[begun].end, marks[begun].start == marks[begun].end)
            for index in range(len(marks))
        ]
        text = ""
        new_links = [
            Link(start, end, given[index], given[index] + end - start)
            for index, (start, end) in enumerate(self.kept)
            if index in given
        ]
        # From which character on both texts move, and how far.
        moves_in_source = [
            (mark.start, end - mark.start) for (_, end), mark in zip(self.kept, self.marked.marks, strict=True)
        ]
        moves_in_target: list[tuple[int, int]] = []
        position = 0
        put = [
            (kept, (max(place, first_place), is_end))
            for index, (kept, (place, is_end)) in enumerate(zip(self.kept, places, strict=True))
            if index not in given
        ]
        ordered = sorted(put, key=itemgetter(1))
        for number, ((start, end), (place, _)) in enumerate(ordered, 1):
            text += translation[position:place]
            if text and not text[-1].isspace() and self._needs_space(text[-1], self.text[max(0, start - 1) : start]):
                text += " "
            new_links.append(Link(start, end, len(text), len(text) + end - start))
            text += self.text[start:end]
            is_last_here = number == len(ordered) or ordered[number][1][0] != place
            next_character = translation[place : place + 1] if is_last_here else ""
            if next_character.isalnum() and self._needs_space(next_character, self.text[end : end + 1]):
                text += " "
            position = place
            moves_in_target.append((place, len(text) - place))
        new_links += [
            link.shifted(_move_at(link.source_start, moves_in_source), _move_at(link.target_start, moves_in_target))
            for link in links
        ]
        return text + translation[position:], new_links

    def _starts_in(self, prefix: str) -> dict[int, int]:
        """Where kept ranges, by their index, stand in the prefix of a translation."""
        texts = [self.text[start:end] for start, end in self.kept]
        found: dict[int, int] = {}
        for copy in dict.fromkeys(texts):
            indices = [index for index, text in enumerate(texts) if text == copy]
            found |= zip(indices, _starts_of(copy, prefix), strict=False)
        return found

    @staticmethod
    def _needs_space(neighbour: str, source_neighbour: str) -> bool:
        """Whether a space stands beside a kept text: as in the source, and never between two words without one."""
        is_apart = not source_neighbour or source_neighbour.isspace()
        return is_apart or (neighbour.isalnum() and not source_neighbour.isalnum())


def _move_at(position: int, moves: Sequence[tuple[int, int]]) -> int:
    """How far a character moves: as the last of the places that move, in order, at which it stands or before it."""
    before = bisect_right(moves, position, key=itemgetter(0))
    return moves[before - 1][1] if before else 0
