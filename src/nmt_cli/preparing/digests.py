"""Digests of text, and a set of them that holds the pairs of a large corpus in little memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


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
