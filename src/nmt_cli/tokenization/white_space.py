"""White space of all kinds, and characters without width."""

from __future__ import annotations

import re

_SPACES = re.compile(r" {2,}")
# Tabs and other control characters that are white space: cleaned training text has none.
CONTROL_SPACES = dict.fromkeys((*range(9, 14), *range(28, 32), 133), " ")
OTHER_SPACES = "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u2800\u3000"
# Soft hyphens, joiners, marks of direction, byte-order marks, fillers, variation selectors and tags have no width.
NO_WIDTH = (
    "\xad\u034f\u061c\u115f\u1160\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e01ef"
)
INVISIBLE = rf"\s{OTHER_SPACES}{NO_WIDTH}"
"""White space, control characters and characters without width, as a pattern to be put between brackets."""
_VISIBLE = re.compile(f"[^{INVISIBLE}]")


def _replacing(ranges: str, text: str) -> dict[int, str]:
    spans = re.findall("(.)(?:-(.))?", ranges, re.DOTALL)
    return {code: text for first, last in spans for code in range(ord(first), ord(last or first) + 1)}


PLAIN_SPACES = CONTROL_SPACES | _replacing(OTHER_SPACES, " ")
"""For str.translate: white space of any kind becomes a space."""
PLAIN_CHARACTERS = PLAIN_SPACES | _replacing(NO_WIDTH, "")
"""As PLAIN_SPACES, and what has no width goes."""


def normalize_spaces(text: str) -> str:
    """The text without white space at its ends and with single spaces."""
    text = text.strip()
    return _SPACES.sub(" ", text) if "  " in text else text


def plain_spaces(line: str) -> str:
    """The line with white space as in cleaned text: none at its ends, single spaces, and no tabs."""
    return normalize_spaces(line if line.isprintable() else line.translate(CONTROL_SPACES))


def is_blank(text: str) -> bool:
    """Whether a text has nothing but white space, control characters and characters without width."""
    return _VISIBLE.search(text) is None
