"""Rules that look at the characters of one side: which texts of a list break them, found for the whole list at once."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_BEGINS_WITH_ADDRESS = re.compile(r"[\W_]*(?:(?:https?|ftp)://|www\.)\w", re.IGNORECASE)


def without_letters_or_digits(texts: Sequence[str]) -> list[int]:
    """The places of the texts in which there is neither a letter nor a digit, of any script."""
    return [
        place
        for place, text in enumerate(texts)
        # Nearly all texts begin with a letter, which costs less to ask than a search.
        if not text[:1].isalnum() and _LETTER_OR_DIGIT.search(text) is None
    ]


def only_addresses(texts: Sequence[str]) -> list[int]:
    """The places of the texts that consist of web addresses and, at most, punctuation."""
    begins_with_address = _BEGINS_WITH_ADDRESS.match
    return [
        place for place, text in enumerate(texts) if begins_with_address(text) and all(map(_says_nothing, text.split()))
    ]


def with_long_runs(texts: Sequence[str], *, longest: int) -> list[int]:
    """The places of the texts in which one character is repeated more than `longest` times in a row."""
    if not texts:
        return []
    codes = code_points(texts)
    is_repeated = codes[1:] == codes[:-1]
    width = 1  # of the run of True that each entry of is_repeated stands for
    while width < longest:
        shift = min(width, longest - width)
        is_repeated = is_repeated[:-shift] & is_repeated[shift:]
        width += shift
    found = np.flatnonzero(is_repeated)
    if len(found) == 0:
        return []
    # No run reaches from one text into the next: a line end lies between them.
    places: list[int] = np.unique(np.searchsorted(starts(texts), found, side="right") - 1).tolist()
    return places


def code_points(texts: Sequence[str]) -> NDArray[np.uint32]:
    """The characters of texts with a line end between two of them, flat; the texts hold no surrogates."""
    return np.frombuffer("\n".join(texts).encode("utf-32-le"), dtype="<u4")


def starts(texts: Sequence[str]) -> NDArray[np.int64]:
    """Where each text begins in `code_points`, [n]."""
    lengths = np.fromiter((len(text) + 1 for text in texts), dtype=np.int64, count=len(texts))
    return np.cumsum(lengths) - lengths


def _says_nothing(word: str) -> bool:
    return _BEGINS_WITH_ADDRESS.match(word) is not None or _LETTER_OR_DIGIT.search(word) is None
