"""The plan of an epoch: which pairs make up each update. A pure function of lengths, budget, seed and epoch.

A length is in pieces with EOS. The same plan serves 1, 2 or 8 GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]

_POOL_PAIRS = 1 << 17
_PURPOSE = 1  # keeps the order of data apart from other uses of the seed


@dataclass(frozen=True, slots=True)
class Plan:
    """The updates of an epoch: update u takes the pairs `order[starts[u]:starts[u + 1]]`, alike in length."""

    order: Array
    starts: Array

    def __len__(self) -> int:
        return len(self.starts) - 1

    def pairs(self, index: int) -> Array:
        """The pairs of one update, from 0."""
        return self.order[self.starts[index] : self.starts[index + 1]]


def plan_epoch(src_lengths: Array, tgt_lengths: Array, *, batch_tokens: int, seed: int, epoch: int) -> Plan:
    """Every pair once: shuffled, sorted by length within large pools, cut where a side reaches the budget.

    The updates are shuffled last; one of them may be short. Section 5.1: pairs batched by approximate length.
    """
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, _PURPOSE, epoch])))
    order = _sorted_in_pools(generator.permutation(len(src_lengths)), src_lengths, tgt_lengths)
    bounds = _cut(src_lengths[order], tgt_lengths[order], batch_tokens=batch_tokens)
    turn = generator.permutation(len(bounds) - 1)
    sizes = np.diff(bounds)[turn]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    within = np.arange(len(order)) - np.repeat(starts[:-1], sizes)
    return Plan(order[np.repeat(bounds[:-1][turn], sizes) + within], starts)


def micro_batches(
    pairs: Array, src_lengths: Array, tgt_lengths: Array, *, batch_tokens: int, max_tokens: int, world_size: int
) -> list[Array]:
    """An update's pairs in runs that fit `max_tokens` a side: a multiple of `world_size`, the smallest that serves.

    Run i goes to rank i % world_size; a run may be empty where an update has fewer pairs than ranks.
    Raises ValueError where a single sentence does not fit.
    """
    src, tgt = src_lengths[pairs], tgt_lengths[pairs]
    if max(src.max(), tgt.max()) > max_tokens:
        raise ValueError(f"a sentence of {max(src.max(), tgt.max())} pieces does not fit {max_tokens} tokens")
    count = accumulation(batch_tokens=batch_tokens, max_tokens=max_tokens, world_size=world_size) * world_size
    size = np.maximum(src, tgt)
    middle = np.cumsum(size) - size / 2
    while True:
        run = np.minimum((middle * count / size.sum()).astype(np.int64), count - 1)
        if max(np.bincount(run, side).max() for side in (src, tgt)) <= max_tokens:
            return [pairs[run == index] for index in range(count)]
        count += world_size


def accumulation(*, batch_tokens: int, max_tokens: int, world_size: int) -> int:
    """Micro-batches that each device runs for a full update."""
    return -(-batch_tokens // (max_tokens * world_size))


def _sorted_in_pools(order: Array, src_lengths: Array, tgt_lengths: Array) -> Array:
    """Each pool sorted by target, then source length, every other one downwards: neighbours meet at like lengths."""
    pools = []
    for number, start in enumerate(range(0, len(order), _POOL_PAIRS)):
        pool = order[start : start + _POOL_PAIRS]
        pool = pool[np.lexsort((src_lengths[pool], tgt_lengths[pool]))]
        pools.append(pool[::-1] if number % 2 else pool)
    return np.concatenate(pools)


def _cut(src_lengths: Array, tgt_lengths: Array, *, batch_tokens: int) -> Array:
    """Bounds of the updates: each closes with the pair by which its source or its target tokens reach the budget."""
    src_ends, tgt_ends = np.cumsum(src_lengths, dtype=np.int64), np.cumsum(tgt_lengths, dtype=np.int64)
    bounds, src_done, tgt_done = [0], 0, 0
    while bounds[-1] < len(src_ends):
        reached = min(
            np.searchsorted(src_ends, src_done + batch_tokens), np.searchsorted(tgt_ends, tgt_done + batch_tokens)
        )
        end = min(int(reached) + 1, len(src_ends))
        bounds.append(end)
        src_done, tgt_done = int(src_ends[end - 1]), int(tgt_ends[end - 1])
    return np.array(bounds, dtype=np.int64)
