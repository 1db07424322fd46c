"""Statistics of encoded text, added up piece by piece, so that no report has to read all of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nmt_cli.tokenization.word_cache import EncodedText


@dataclass(frozen=True, slots=True)
class SideStatistics:
    """Of one side of a split: sentences by length in words and in pieces without EOS, and the uses of each id, [V]."""

    words: NDArray[np.int64]
    pieces: NDArray[np.int64]
    usage: NDArray[np.int64]

    def plus(self, other: SideStatistics) -> SideStatistics:
        """The statistics of both texts together."""
        return SideStatistics(
            _sum(self.words, other.words), _sum(self.pieces, other.pieces), _sum(self.usage, other.usage)
        )


def statistics_of(encoded: EncodedText, *, words: NDArray[np.integer], vocab_size: int) -> SideStatistics:
    """The statistics of encoded sentences, of which `words` holds the length in words, [n]."""
    return SideStatistics(
        np.bincount(words), np.bincount(encoded.lengths - 1), np.bincount(encoded.ids, minlength=vocab_size)
    )


def _sum(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    shorter, longer = sorted((first, second), key=len)
    total = longer.copy()
    total[: len(shorter)] += shorter
    return total
