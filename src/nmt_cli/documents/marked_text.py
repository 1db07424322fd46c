"""A text with inline markup, and the same markup put on the words of its translation.

A unit is a word, or a character of a script without spaces, or any other visible character. A translation comes with
links between the characters of both texts, as attention gives them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import accumulate, chain, islice
from math import ceil

import regex

from nmt_cli.languages import LETTERS_WITHOUT_SPACES
from nmt_cli.tokenization.pieces import Link, Range

# Scripts whose words stand together: each of their characters is a unit, with the marks on it.
_LETTER = rf"[\w--[{LETTERS_WITHOUT_SPACES}]]"
LETTER_WITHOUT_SPACES = regex.compile(f"[{LETTERS_WITHOUT_SPACES}]")
_UNIT = regex.compile(rf"[{LETTERS_WITHOUT_SPACES}]\p{{M}}*|{_LETTER}+(?:['’\-]{_LETTER}+)*|\S", regex.VERSION1)
_UnitRange = tuple[int, int]  # of indices of units; a Range is of characters
# An empty mark whose neighbours change their order stays between them.
_NEIGHBOUR_WEIGHT = 1.5
# Words on each side of an empty mark that are looked at.
_NEIGHBOURS = 8
_SHOWN_CHARACTERS = 40
# Bounds of the work on blocks that no one writes by hand: the units that are searched for a mark whose words have no
# translation, and the depth of marks with words of their own.
_MOST_UNITS, _DEEPEST = 100, 100


def beginning_of(text: str) -> str:
    """The first characters of a text, by which a message names it."""
    words = " ".join(text.split())
    return words if len(words) <= _SHOWN_CHARACTERS else f"{words[: _SHOWN_CHARACTERS - 1]}…"


@dataclass(frozen=True, slots=True)
class Mark:
    """Markup on the characters from `start` to `end` of a text: what stands before and after them, as in a file.

    `parent` is the index of the mark around it, -1 for none. If it is kept, `opening` stands for its characters, too,
    and these are not translated.
    """

    start: int
    end: int
    opening: str
    closing: str = ""
    parent: int = -1
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A text without its markup, and the marks in the order in which they begin; a mark comes after its parent."""

    text: str
    marks: tuple[Mark, ...] = ()

    @property
    def kept(self) -> list[Range]:
        """The ranges of characters that must stay as they are, in order."""
        return sorted({(mark.start, mark.end) for mark in self.marks if mark.is_kept and mark.start < mark.end})

    def render(self, escape: Callable[[str], str]) -> str:
        """The text with its markup; `escape` writes the characters between marks."""
        children = self._children()
        parts: list[str] = []
        position = 0
        # What is still to be written, the next at the end: marks that begin, and (end, closing) of marks that end.
        waiting: list[int | tuple[int, str]] = [(len(self.text), ""), *reversed(children[-1])]
        while waiting:
            item = waiting.pop()
            if isinstance(item, tuple):
                end, closing = item
                parts += [escape(self.text[position:end]), closing]
                position = max(position, end)
                continue
            mark = self.marks[item]
            parts += [escape(self.text[position : mark.start]), mark.opening]
            position = max(position, mark.end if mark.is_kept else mark.start)
            waiting += [(mark.end, mark.closing), *reversed(children[item])]
        return "".join(parts)

    def _children(self) -> dict[int, list[int]]:
        """The marks directly inside each mark, in the order in which they stand."""
        children: dict[int, list[int]] = defaultdict(list)
        for index, mark in enumerate(self.marks):
            children[mark.parent].append(index)
        for indices in children.values():
            indices.sort(key=lambda index: (self.marks[index].start, self.marks[index].end, index))
        return children

    def translated(self, text: str, links: Iterable[Link]) -> MarkedText:
        """The translation with the marks on the words that translate the words they stood on.

        Marks are nested as before, and none is lost or added. An empty one stands between the same neighbours. The
        exact translation of kept text is among the links.
        """
        if not self.marks:
            return MarkedText(text)
        return MarkedText(text, _Transfer(self, text, links).marks())


class _Units:
    """The units of a text: where each begins and ends, and whether it is a word."""

    def __init__(self, text: str, wholes: Sequence[Range]) -> None:
        """Each of the ranges `wholes` is one unit."""
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.is_word: list[bool] = []
        position = 0
        for start, end in [*wholes, (len(text), len(text))]:
            for match in _UNIT.finditer(text, position, max(position, start)):
                self._add(match.start(), match.end(), is_word=match[0][0].isalnum())
            if start < end:
                self._add(start, end, is_word=True)
            position = max(position, end)
        self.text = text

    def _add(self, start: int, end: int, *, is_word: bool) -> None:
        self.starts.append(start)
        self.ends.append(end)
        self.is_word.append(is_word)

    def __len__(self) -> int:
        return len(self.starts)

    def between(self, start: int, end: int) -> _UnitRange:
        """The units that begin in a range of characters, as a range of indices."""
        return bisect_left(self.starts, start), bisect_left(self.starts, end)

    def touching(self, start: int, end: int) -> range:
        """The indices of the units that share characters with a range."""
        first = bisect_left(self.starts, start)
        first -= first > 0 and self.ends[first - 1] > start
        return range(first, bisect_left(self.starts, end))


def _copies(source: MarkedText, text: str, links: Sequence[Link]) -> dict[Range, Range]:
    """The ranges of a text that its translation has as they are, such as kept text and addresses: each is one unit.

    Kept text that spans several sentences has one copy for each; they count as one.
    """
    kept = source.kept
    is_kept = set(kept)
    ends_of_marks = sorted({end for mark in source.marks for end in (mark.start, mark.end)})
    copies = [
        (link[:2], link[2:])
        for link in links
        if (own := source.text[slice(*link[:2])]) == text[slice(*link[2:])]
        and (link[:2] in is_kept or (any(map(str.isalnum, own)) and not own.isalnum()))
        and bisect_right(ends_of_marks, link[0]) == bisect_left(ends_of_marks, link[1])
    ]
    copies.sort()
    starts = [own[0] for own, _ in copies]
    for start, end in kept:
        inside = copies[bisect_left(starts, start) : bisect_left(starts, end)]
        parts = [target for own, target in inside if own[1] <= end]
        if parts:
            copies.append(((start, end), (min(parts)[0], max(part[1] for part in parts))))
    # Of those that overlap, the first counts, and of those that begin together the longest.
    for side in (0, 1):
        copies.sort(key=lambda copy: (copy[side][0], -copy[side][1]))
        ends = [0, *accumulate((copy[side][1] for copy in copies), max)]
        copies = [copy for copy, end in zip(copies, ends, strict=False) if copy[side][0] >= end]
    return dict(copies)


class _Transfer:
    """The ranges of the marks of a text in its translation, as ranges of units."""

    def __init__(self, source: MarkedText, text: str, links: Iterable[Link]) -> None:
        self._source = source
        links = list(links)
        self._copies = _copies(source, text, links)
        self._sources = _Units(source.text, sorted(self._copies))
        self._targets = _Units(text, sorted(self._copies.values()))
        self._targets_of = self._link_units(links)
        self._num_words = [0, *accumulate(self._targets.is_word)]  # among the first units
        self._depths = {-1: 0}
        # The target units of each mark, and what the marks inside of each have taken, in order.
        self._regions: dict[int, _UnitRange] = {-1: (0, len(self._targets))}
        self._taken: dict[int, list[_UnitRange]] = defaultdict(list)

    def _link_units(self, links: Sequence[Link]) -> list[list[int]]:
        """The target units of each source unit. Each target unit is of the source unit that it shares most links with.

        A mark of punctuation is seldom from a word. Units of one link are in the same order.
        """
        weights: list[dict[int, float]] = [defaultdict(float) for _ in range(len(self._targets))]
        for link in links:
            sources = self._sources.touching(link.source_start, link.source_end)
            for number, target in enumerate(self._targets.touching(link.target_start, link.target_end)):
                for other_number, source in enumerate(sources):
                    is_same_kind = self._sources.is_word[source] == self._targets.is_word[target]
                    weights[target][source] += (1.0 if is_same_kind else 0.1) - 0.01 * abs(number - other_number)
        for own, copy in self._copies.items():  # whatever attention says
            weights[self._targets.between(*copy)[0]] = {self._sources.between(*own)[0]: 1.0}
        targets_of: list[list[int]] = [[] for _ in range(len(self._sources))]
        for target, of_target in enumerate(weights):
            if of_target:
                targets_of[max(of_target, key=of_target.__getitem__)].append(target)
        return targets_of

    def marks(self) -> tuple[Mark, ...]:
        """The marks, with their ranges of characters in the translation."""
        for index, mark in enumerate(self._source.marks):
            self._depths[index] = self._depths[mark.parent] + 1
            if mark.start < mark.end:
                self._place(index, mark)
        found: list[Mark] = []
        last = 0
        for index, mark in enumerate(self._source.marks):
            if index in self._regions:
                start, end = self._characters(*self._regions[index])
            else:
                # Tags that are no pairs stay in their order.
                boundary = self._boundary(mark, not_before=last)
                last = max(last, boundary)
                start = end = self._position(mark, boundary)
                self._regions[index] = (boundary, boundary)
            if mark.is_kept:
                start, end = self._copies.get((mark.start, mark.end), (start, start))
            found.append(replace(mark, start=start, end=end))
        return tuple(found)

    def _source_region(self, index: int) -> _UnitRange:
        if index < 0:
            return 0, len(self._sources)
        mark = self._source.marks[index]
        return self._sources.between(mark.start, mark.end)

    def _place(self, index: int, mark: Mark) -> None:
        """Find the units of a mark that has text."""
        own, around = self._source_region(index), self._source_region(mark.parent)
        if own[0] == own[1] or mark.parent not in self._regions:  # it holds nothing but spaces
            return
        if mark.is_kept and (mark.start, mark.end) in self._copies:
            chosen = self._targets.between(*self._copies[mark.start, mark.end])
        elif own == around or self._depths[index] > _DEEPEST:
            chosen = self._regions[mark.parent]
        elif (run := self._best_run(own, mark.parent) or self._nearest(own, around, mark.parent)) is not None:
            chosen = self._with_punctuation(run, own, mark.parent)
        else:
            return
        self._regions[index] = chosen
        if chosen[0] < chosen[1]:
            insort(self._taken[mark.parent], chosen)

    def _free_around(self, unit: int, parent: int) -> _UnitRange:
        """The units around one that no mark inside of the parent has taken; empty if it is taken."""
        start, end = self._regions[parent]
        taken = self._taken[parent]
        place = bisect_right(taken, (unit, len(self._targets)))
        start = max(start, taken[place - 1][1]) if place else start
        end = min(end, taken[place][0]) if place < len(taken) else end
        return (start, end) if start <= unit < end else (unit, unit)

    def _best_run(self, own: _UnitRange, parent: int) -> _UnitRange | None:
        """The run of target units with the most words from the mark's words and the fewest others."""
        best, best_score = None, 0
        start, end, score, free = 0, 0, 0, (0, 0)
        has_word = any(self._sources.is_word[own[0] : own[1]])
        for unit in sorted(chain.from_iterable(self._targets_of[own[0] : own[1]])):
            others = self._num_words[unit] - self._num_words[end]
            if not free[0] <= unit < free[1] or score <= others:
                start, score, free = unit, 0, self._free_around(unit, parent)
                if free[0] == free[1]:
                    continue
            else:
                score -= others
            end, score = unit + 1, score + (self._targets.is_word[unit] or not has_word)
            if score > best_score:
                best, best_score = (start, end), score
        return best

    def _nearest(self, own: _UnitRange, around: _UnitRange, parent: int) -> _UnitRange | None:
        """The free word nearest to where the mark's text would stand if nothing moved; None if those near are taken."""
        start, end = self._regions[parent]
        share = ((own[0] + own[1]) / 2 - around[0]) / (around[1] - around[0])
        place = start + share * (end - start) - 0.5
        after = ceil(place)
        nearest_first = merge(range(after - 1, start - 1, -1), range(after, end), key=lambda unit: abs(unit - place))
        for unit in islice(nearest_first, _MOST_UNITS):
            if self._targets.is_word[unit] and unit < self._free_around(unit, parent)[1]:
                return unit, unit + 1
        return None

    def _with_punctuation(self, chosen: _UnitRange, own: _UnitRange, parent: int) -> _UnitRange:
        """The run with the punctuation beside it, as far as the mark's text begins and ends with punctuation."""
        start, end = chosen
        first, last = self._free_around(start, parent)
        before, after = own
        while (
            start > first and before < after and not (self._targets.is_word[start - 1] or self._sources.is_word[before])
        ):
            start, before = start - 1, before + 1
        while end < last and before < after and not (self._targets.is_word[end] or self._sources.is_word[after - 1]):
            end, after = end + 1, after - 1
        return start, end

    def _boundary(self, mark: Mark, *, not_before: int) -> int:
        """The boundary between target units at which an empty mark has the same neighbours as in the source."""
        around, region = self._source_region(mark.parent), self._regions[mark.parent]
        place = bisect_left(self._sources.starts, mark.start)
        if place <= around[0]:
            return region[0]
        if place >= around[1]:
            return region[1]
        # How near each unit of the region stood to the mark: positive before it, negative after it.
        nearness: dict[int, float] = {}
        for source in range(max(around[0], place - _NEIGHBOURS), min(around[1], place + _NEIGHBOURS)):
            weight = 1 / (place - source) ** 2 if source < place else -1 / (source - place + 1) ** 2
            nearness |= {unit: weight for unit in self._targets_of[source] if region[0] <= unit < region[1]}
        # Units count for a boundary if they stay on their side of it, and more if they are beside it.
        best, best_score, score = min(max(not_before, region[0]), region[1]), float("-inf"), 0.0
        units = sorted(nearness)
        for boundary in sorted({*units, *(unit + 1 for unit in units)}):
            score += nearness.get(boundary - 1, 0.0)
            beside = abs(nearness.get(boundary - 1, 0.0)) + abs(nearness.get(boundary, 0.0))
            total = score + _NEIGHBOUR_WEIGHT * beside
            if not_before <= boundary and total > best_score and not self._is_inside(boundary, mark.parent):
                best, best_score = boundary, total
        return best

    def _is_inside(self, boundary: int, parent: int) -> bool:
        """Whether a boundary is inside of a mark."""
        taken = self._taken[parent]
        place = bisect_left(taken, (boundary, boundary))
        return place > 0 and boundary < taken[place - 1][1]

    def _characters(self, start: int, end: int) -> Range:
        """The range of characters of a range of units."""
        if start < end:
            return self._targets.starts[start], self._targets.ends[end - 1]
        position = self._targets.starts[start] if start < len(self._targets) else len(self._targets.text)
        return position, position

    def _position(self, mark: Mark, boundary: int) -> int:
        """The character at a boundary: before or after the space there, as the mark stood in the source."""
        if boundary == 0:
            return 0
        end_before = self._targets.ends[boundary - 1]
        if boundary == len(self._targets) and mark.start >= len(self._source.text.rstrip()):
            return len(self._targets.text)
        follows_word = mark.start > 0 and not self._source.text[mark.start - 1].isspace()
        if follows_word or boundary == len(self._targets):
            return end_before
        return self._targets.starts[boundary]
