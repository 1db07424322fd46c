"""Lengths of sentences, counted as they pass by, and what a report says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Longer sentences are counted as this long: they are noise, and the counts stay small.
MAX_COUNTED = 5000
_EDGES = (0, 1, 5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 250)


class WordCounts:
    """How many sentences have how many words, a side."""

    def __init__(self) -> None:
        self._counts = np.zeros((2, MAX_COUNTED + 1), dtype=np.int64)

    def add(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Count the words of both sides of pairs."""
        for side in range(2):
            lengths = [min(len(pair[side].split()), MAX_COUNTED) for pair in pairs]
            self._counts[side] += np.bincount(lengths, minlength=MAX_COUNTED + 1)

    def report(self) -> dict[str, list[int]]:
        """For each side, at index n the number of sentences with n words."""
        return {
            side: np.trim_zeros(counts, "b").tolist()
            for side, counts in zip(("source", "target"), self._counts, strict=True)
        }


def summarise(counts: NDArray[np.int64]) -> dict[str, Any]:
    """Mean, percentiles, maximum and histogram of lengths, given how many sentences have each length."""
    total = int(counts.sum())
    cumulative = np.cumsum(counts)
    percentiles = {
        name: int(np.searchsorted(cumulative, share * total)) if total else 0
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    }
    return {
        "mean": round(float(counts @ np.arange(len(counts))) / max(total, 1), 2),
        **percentiles,
        "max": len(np.trim_zeros(counts, "b")) - 1 if total else 0,
        "histogram": _histogram(counts),
    }


def _histogram(counts: NDArray[np.int64]) -> list[dict[str, int | None]]:
    """The number of sentences from each edge (included) to the next (excluded); the last bin is open."""
    ends: list[int | None] = [*_EDGES[1:], None]
    bins = [
        {"from": start, "to": None if end is None else end - 1, "sentences": int(counts[start:end].sum())}
        for start, end in zip(_EDGES, ends, strict=True)
    ]
    while len(bins) > 1 and bins[-1]["sentences"] == 0:
        bins.pop()
    return bins
