"""Lines that are too long for the model, cut where it hurts least."""

from __future__ import annotations

import re
from collections.abc import Callable

# Where to cut, best first: after a sentence, after a clause, between words. CJK marks have no space after them.
_BOUNDARIES = (
    re.compile(r"[.!?…।]+[\"'”’»)\]]*\s+|[。！？]+[」』”’]?\s*"),
    re.compile(r"[,;:–—]+\s+|[，、；：]\s*"),
    re.compile(r"\s+"),
)
_FIRST_GUESS = 64


def split_line(text: str, *, fits: Callable[[str], bool]) -> list[str]:
    """The parts of `text` in order, each of which fits; together they are `text`, with nothing added or left out.

    A part ends after a sentence, else after a clause, else after a word, unless it would then be less than half as long
    as it may be; a word that is too long by itself is cut anywhere. A single character is never cut.
    """
    parts = []
    start = 0
    while start < len(text):
        part = _first_part(text, start, fits)
        parts.append(part)
        start += len(part)
    return parts


def _first_part(text: str, start: int, fits: Callable[[str], bool]) -> str:
    """The first part of what `text` has from `start` on."""
    longest = _longest_prefix(text, start, fits)
    if start + len(longest) == len(text):
        return longest
    for boundary in _BOUNDARIES:
        ends = [match.end() for match in boundary.finditer(longest)]
        # A prefix can take more pieces than the whole, so that a prefix of what fits need not fit.
        end = next((end for end in reversed(ends) if fits(longest[:end])), 0)
        if 2 * end >= len(longest):
            return longest[:end]
    return longest


def _longest_prefix(text: str, start: int, fits: Callable[[str], bool]) -> str:
    """About the longest text from `start` on that fits, by doubling and bisection; at least one character."""
    rest = len(text) - start
    fitting, tried = 1, _FIRST_GUESS
    while fitting < rest and fits(text[start : start + tried]):
        fitting, tried = min(tried, rest), 2 * tried
    beyond = min(tried, rest + 1)
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        if fits(text[start : start + middle]):
            fitting = middle
        else:
            beyond = middle
    return text[start : start + fitting]
