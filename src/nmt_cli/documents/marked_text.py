"""A text with inline markup, and the same markup put on the words of its translation.

A unit is a word, or a character of a script without spaces, or any other visible character. A translation comes with
links between the characters of both texts, as attention gives them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import regex

from nmt_cli.tokenization.pieces import Link

# Scripts whose words stand together: each of their characters is a unit, with the marks on it.
_UNIT = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\p{M}*"
    r"|[\w--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]]+(?:['’\-][\w--\p{Han}]+)*|\S",
    regex.VERSION1,
)


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
    def kept(self) -> list[tuple[int, int]]:
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
            position = mark.end if mark.is_kept else max(position, mark.start)
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

    def __init__(self, text: str, wholes: Sequence[tuple[int, int]]) -> None:
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

    def between(self, start: int, end: int) -> tuple[int, int]:
        """The units that begin in a range of characters, as a range of indices."""
        return bisect_left(self.starts, start), bisect_left(self.starts, end)

    def touching(self, start: int, end: int) -> range:
        """The indices of the units that share characters with a range."""
        first = bisect_left(self.starts, start)
        first -= first > 0 and self.ends[first - 1] > start
        return range(first, bisect_left(self.starts, end))


class _Transfer:
    """The ranges of the marks of a text in its translation."""

    def __init__(self, source: MarkedText, text: str, links: Iterable[Link]) -> None:
        self._source = source
        links = list(links)
        kept = set(source.kept)
        self._kept_targets = {link[:2]: link[2:] for link in links if link[:2] in kept}
        self._sources = _Units(source.text, source.kept)
        self._targets = _Units(text, sorted(self._kept_targets.values()))
        self._source_of = self._link_units(links)
        # The ranges of target units that each mark has: [start, end) of units.
        self._regions: dict[int, tuple[int, int]] = {-1: (0, len(self._targets))}
        self._placed: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def _link_units(self, links: Sequence[Link]) -> list[int | None]:
        """The source unit of each target unit: the word that shares most characters with it by links."""
        weights: list[dict[int, float]] = [defaultdict(float) for _ in range(len(self._targets))]
        for link in links:
            for target in self._targets.touching(link.target_start, link.target_end):
                for source in self._sources.touching(link.source_start, link.source_end):
                    # Between a word and a mark of punctuation there is rarely a link.
                    is_same_kind = self._sources.is_word[source] == self._targets.is_word[target]
                    weights[target][source] += 1.0 if is_same_kind else 0.1
        return [max(sources, key=lambda unit: (sources[unit], -unit)) if sources else None for sources in weights]

    def marks(self) -> tuple[Mark, ...]:
        """The marks, with their ranges in the translation."""
        marks = self._source.marks
        for index, mark in enumerate(marks):
            if mark.start < mark.end:
                self._place(index, mark)
        found: list[Mark] = []
        last = 0
        for index, mark in enumerate(marks):
            if index in self._regions:
                start, end = self._characters(*self._regions[index])
            else:
                # Tags that are no pairs stay in their order.
                boundary = self._boundary(mark, not_before=last)
                last = max(last, boundary)
                start = end = self._position(mark, boundary)
                self._regions[index] = (boundary, boundary)
            if mark.is_kept and (mark.start, mark.end) in self._kept_targets:
                start, end = self._kept_targets[mark.start, mark.end]
            elif mark.is_kept:
                end = start
            found.append(replace(mark, start=start, end=end))
        return tuple(found)

    def _source_region(self, index: int) -> tuple[int, int]:
        if index < 0:
            return 0, len(self._sources)
        mark = self._source.marks[index]
        return self._sources.between(mark.start, mark.end)

    def _place(self, index: int, mark: Mark) -> None:
        """Find the units of a mark that has text."""
        own, around = self._source_region(index), self._source_region(mark.parent)
        region = self._regions.get(mark.parent)
        if own[0] == own[1] or region is None:  # it holds nothing but spaces
            return
        if own == around:
            chosen = region
        elif mark.is_kept:
            target = self._kept_targets.get((mark.start, mark.end))
            if target is None:
                return
            chosen = self._targets.between(*target)
        else:
            free = self._free(region, self._placed[mark.parent])
            chosen = self._with_punctuation(self._best_run(own, free) or self._nearest(own, around, free), own, free)
        self._regions[index] = chosen
        if chosen[0] < chosen[1]:
            self._placed[mark.parent].append(chosen)

    @staticmethod
    def _free(region: tuple[int, int], placed: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The parts of a region that no other mark has taken."""
        free, start = [], region[0]
        for other_start, other_end in sorted(placed):
            free.append((start, other_start))
            start = other_end
        return [part for part in [*free, (start, region[1])] if part[0] < part[1]]

    def _best_run(self, own: tuple[int, int], free: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        """The run of target units with the most words from the mark's words and the fewest others."""
        best, best_score = None, 0.0
        for start, end in free:
            run_start, score = start, 0.0
            for unit in range(start, end):
                source = self._source_of[unit]
                is_own = source is not None and own[0] <= source < own[1]
                if self._targets.is_word[unit]:
                    gain = 1.0 if is_own else -1.0
                    score, run_start = (score + gain, run_start) if score > 0 else (gain, unit)
                if is_own and score > best_score:
                    best, best_score = (run_start, unit + 1), score
        return best

    def _nearest(
        self, own: tuple[int, int], around: tuple[int, int], free: Sequence[tuple[int, int]]
    ) -> tuple[int, int]:
        """The free word that stands where the mark's text would stand if nothing changed its place; else nothing."""
        region_start = free[0][0] if free else 0
        region_end = free[-1][1] if free else 0
        share = ((own[0] + own[1]) / 2 - around[0]) / max(1, around[1] - around[0])
        place = region_start + share * (region_end - region_start) - 0.5
        units = [unit for start, end in free for unit in range(start, end)]
        words = [unit for unit in units if self._targets.is_word[unit]] or units
        if not words:
            return region_end, region_end
        nearest = min(words, key=lambda unit: abs(unit - place))
        return nearest, nearest + 1

    def _with_punctuation(
        self, chosen: tuple[int, int], own: tuple[int, int], free: Sequence[tuple[int, int]]
    ) -> tuple[int, int]:
        """The run with the punctuation beside it, as far as the mark's text begins and ends with punctuation."""
        start, end = chosen
        for first, last in free:
            if first <= start and end <= last:
                before, after = own
                while start > first and before < own[1] and not self._sources.is_word[before]:
                    if self._targets.is_word[start - 1]:
                        break
                    start, before = start - 1, before + 1
                while end < last and after > own[0] and not self._sources.is_word[after - 1]:
                    if self._targets.is_word[end]:
                        break
                    end, after = end + 1, after - 1
        return start, end

    def _boundary(self, mark: Mark, *, not_before: int) -> int:
        """The boundary between target units where an empty mark has the same neighbours as in the source."""
        around, region = self._source_region(mark.parent), self._regions[mark.parent]
        place = bisect_left(self._sources.starts, mark.start)
        if place <= around[0]:
            return region[0]
        if place >= around[1]:
            return region[1]
        taken = self._placed[mark.parent]
        # A unit on the side that it came from counts for a boundary, more if it stood close to the mark.
        score = 0.0
        best, best_score = region[1], float("-inf")
        for boundary in range(region[0], region[1] + 1):
            is_inside = any(start < boundary < end for start, end in taken)
            if not is_inside and boundary >= min(not_before, region[1]) and score > best_score:
                best, best_score = boundary, score
            source = self._source_of[boundary] if boundary < region[1] else None
            if source is not None:
                distance = place - source if source < place else source - place + 1
                score += (1.0 if source < place else -1.0) / distance**2
        return best

    def _characters(self, start: int, end: int) -> tuple[int, int]:
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
