"""Corpora of which only the lengths matter, and plans of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from nmt_cli.dataset.plan import PlanKey
from nmt_cli.dataset.planning import Planned, plan_epoch
from nmt_cli.dataset.rows import Array
from nmt_cli.dataset.store import TokenFile, TokenPairs

LONGEST = 300


@dataclass(frozen=True)
class Corpus:
    """Lengths of the two sides, in pieces with EOS."""

    src: Array
    tgt: Array

    def __len__(self) -> int:
        return len(self.src)

    @property
    def pairs(self) -> TokenPairs:
        """Token files with sentences of these lengths."""
        return TokenPairs(*(token_file(side) for side in (self.src, self.tgt)))

    @property
    def sizes(self) -> Array:
        """The longer side of each pair."""
        return np.maximum(self.src, self.tgt)

    def plan(self, *, batch_tokens: int, seed: int = 1, epoch: int = 0, max_positions: int = 1 << 20) -> Planned:
        """The plan of an epoch."""
        key = PlanKey(
            data="x",
            num_pairs=len(self),
            src_tokens=int(self.src.sum()),
            tgt_tokens=int(self.tgt.sum()),
            batch_tokens=batch_tokens,
            max_positions=max_positions,
            seed=seed,
            epoch=epoch,
        )
        return plan_epoch(self.pairs, key=key)


def token_file(lengths: Array) -> TokenFile:
    """Sentences of these lengths, all of them zeros."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return TokenFile(np.zeros(offsets[-1], dtype=np.uint16), offsets)


def as_corpus(pairs: list[tuple[int, int]]) -> Corpus:
    """A corpus of pairs given as (source length, target length)."""
    src, tgt = np.array(pairs, dtype=np.int64).T
    return Corpus(src, tgt)


def realistic(num_pairs: int, *, seed: int = 1, ratio: float = 1.0) -> Corpus:
    """Lengths like those of WMT14: 28 pieces on average, up to 256, targets `ratio` times as long as sources."""
    generator = np.random.default_rng(seed)
    src = np.clip(generator.lognormal(3.1, 0.7, num_pairs), 2, 256)
    tgt = np.clip(ratio * src * generator.lognormal(0.0, 0.2, num_pairs), 2, 256)
    return Corpus(src.astype(np.int64), tgt.astype(np.int64))


_LENGTH = st.one_of(st.integers(1, 40), st.integers(1, LONGEST))
CORPORA = st.lists(st.tuples(_LENGTH, _LENGTH), min_size=1, max_size=80).map(as_corpus)
