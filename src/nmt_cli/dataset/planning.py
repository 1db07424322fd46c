"""How an epoch is planned: which pairs make up each update. A pure function of lengths and the plan's key.

A length is in pieces with EOS. The same plan serves 1, 2 or 8 GPUs. Memory is 12 bytes a pair (20 where a side has
2^32 tokens), whatever else the process holds, and goes back to the system at the end.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nmt_cli.dataset.plan import PlanKey
from nmt_cli.dataset.rows import Array, Rows, fill_rows, narrowest, row_type
from nmt_cli.dataset.store import TokenFile, TokenPairs

_POOL_PAIRS = 1 << 17
_BLOCK_PAIRS = 1 << 18
_PURPOSE = 1  # keeps the order of data apart from other uses of the seed
_LENGTH_BITS, _PLACE_BITS = 23, 18  # of a pair's key for sorting; longer sentences than 2^23 - 1 sort as that


@dataclass(frozen=True, slots=True)
class Planned:
    """An epoch in memory: update u takes `pairs(u)`, alike in length."""

    order: Array
    bounds: Array
    turn: Array
    longest: Array
    num_left_out: int
    src: Array
    tgt: Array
    row: np.dtype[np.void]

    def __len__(self) -> int:
        return len(self.turn)

    def pairs(self, index: int) -> Array:
        """The pairs of one update, from 0."""
        number = self.turn[index]
        return self.order[self.bounds[number] : self.bounds[number + 1]]

    def sizes(self) -> Array:
        """Pairs in each update."""
        return np.diff(self.bounds)[self.turn]

    def rows(self, pairs: Array) -> Rows:
        """The rows of some pairs."""
        return fill_rows(self.row, pairs.astype(np.int64), self.src, self.tgt)

    def blocks(self) -> Iterator[Rows]:
        """The rows of all updates in their order, some hundred thousand at a time; an update is never split."""
        sizes, firsts = self.sizes(), self.bounds[self.turn]
        ends = np.cumsum(sizes)
        done = 0
        while done < len(sizes):
            reach = ends[done] + _BLOCK_PAIRS
            stop = max(done + 1, int(np.searchsorted(ends, reach, side="right")))
            within = np.arange(sizes[done:stop].sum())
            shift = firsts[done:stop] - (ends[done:stop] - sizes[done:stop] - (ends[done] - sizes[done]))
            yield self.rows(self.order[within + np.repeat(shift, sizes[done:stop])])
            done = stop


def plan_epoch(data: TokenPairs, *, key: PlanKey) -> Planned:
    """Every pair that the model takes once: shuffled, sorted by length within large pools, cut at the budget.

    An update closes with the pair by which a side reaches the budget; the updates are shuffled last, and one of them
    may be short. Section 5.1: pairs batched by approximate length.
    """
    src, tgt = _offsets(data.src), _offsets(data.tgt)
    order = _usable(src, tgt, max_positions=key.max_positions)
    longest = _longest(order, src, tgt, budget=key.batch_tokens)
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([key.seed, _PURPOSE, key.epoch])))
    generator.shuffle(order)
    cut = _Cut(key.batch_tokens)
    for number, start in enumerate(range(0, len(order), _POOL_PAIRS)):
        pool = order[start : start + _POOL_PAIRS]
        src_lengths, tgt_lengths = _lengths(src, pool), _lengths(tgt, pool)
        place = _by_length(src_lengths, tgt_lengths)
        if number % 2:
            place = place[::-1]  # every other one downwards: neighbours meet at like lengths
        pool[:] = pool[place]
        cut.add(src_lengths[place], tgt_lengths[place])
    bounds = cut.bounds()
    row = row_type(
        num_pairs=len(data), num_tokens=int(max(src[-1], tgt[-1])), longest=_longest_length(longest, src, tgt)
    )
    turn = generator.permutation(len(bounds) - 1)
    return Planned(order, bounds, turn, longest, len(data) - len(order), src, tgt, row)


class _Cut:
    """Cuts pairs that come in pools into updates."""

    def __init__(self, batch_tokens: int) -> None:
        self._budget = batch_tokens
        self._bounds = [0]
        self._taken = self._src_total = self._tgt_total = self._src_done = self._tgt_done = 0

    def add(self, src_lengths: Array, tgt_lengths: Array) -> None:
        """Go on with these pairs; each update closes with the pair by which its source or its target is full."""
        src_ends = np.cumsum(src_lengths, dtype=np.int64) + self._src_total
        tgt_ends = np.cumsum(tgt_lengths, dtype=np.int64) + self._tgt_total
        while True:
            reached = min(
                int(np.searchsorted(src_ends, self._src_done + self._budget)),
                int(np.searchsorted(tgt_ends, self._tgt_done + self._budget)),
            )
            if reached == len(src_ends):
                break
            self._bounds.append(self._taken + reached + 1)
            self._src_done, self._tgt_done = int(src_ends[reached]), int(tgt_ends[reached])
        self._taken += len(src_ends)
        self._src_total, self._tgt_total = int(src_ends[-1]), int(tgt_ends[-1])

    def bounds(self) -> Array:
        """Where each update begins, and where the last one ends, in the order of the pairs."""
        last = [self._taken] if self._bounds[-1] < self._taken else []
        return np.array([*self._bounds, *last], dtype=np.int64)


def _by_length(src_lengths: Array, tgt_lengths: Array) -> Array:
    """The places of a pool by target, then source length, then place.

    One sort of 64-bit keys takes a fraction of the time of `np.lexsort`.
    """
    limit = (1 << _LENGTH_BITS) - 1
    key = np.minimum(tgt_lengths, limit).astype(np.uint64) << _LENGTH_BITS
    key = (key | np.minimum(src_lengths, limit).astype(np.uint64)) << _PLACE_BITS
    key |= np.arange(len(key), dtype=np.uint64)
    key.sort()
    return (key & ((1 << _PLACE_BITS) - 1)).astype(np.int64)


def _usable(src: Array, tgt: Array, *, max_positions: int) -> Array:
    """The pairs that the model takes, ascending."""
    num_pairs = len(src) - 1
    order = _scratch(num_pairs, narrowest(num_pairs))
    filled = 0
    for start in range(0, num_pairs, _BLOCK_PAIRS):
        stop = min(start + _BLOCK_PAIRS, num_pairs)
        size = np.maximum(np.diff(src[start : stop + 1]), np.diff(tgt[start : stop + 1]))
        pairs = np.flatnonzero(size <= max_positions) + start
        order[filled : filled + len(pairs)] = pairs
        filled += len(pairs)
    return order[:filled]


def _longest(usable: Array, src: Array, tgt: Array, *, budget: int) -> Array:
    """The longest pairs, longest first, up to the one by which a side goes over the budget."""
    longest, floor = usable[:0], 0
    for start in range(0, len(usable), _BLOCK_PAIRS):
        block = usable[start : start + _BLOCK_PAIRS]
        longer = np.maximum(_lengths(src, block), _lengths(tgt, block)) > floor
        longest = np.concatenate([longest, block[longer]])
        size = np.maximum(_lengths(src, longest), _lengths(tgt, longest))
        longest = longest[np.argsort(-size, kind="stable")]
        total = np.maximum(np.cumsum(_lengths(src, longest)), np.cumsum(_lengths(tgt, longest)))
        over = int(np.searchsorted(total, budget, side="right"))
        if over < len(longest):
            longest = longest[: over + 1]
            floor = int(max(_lengths(src, longest[-1:])[0], _lengths(tgt, longest[-1:])[0]))
    return longest


def _longest_length(longest: Array, src: Array, tgt: Array) -> int:
    """The length of the longest sentence, given the longest pairs; 0 where there are none."""
    return int(max(_lengths(side, longest[:1]).sum() for side in (src, tgt)))


def _offsets(side: TokenFile) -> Array:
    """Where each sentence of a side begins, and where the last one ends, in memory of its own."""
    offsets = _scratch(len(side) + 1, narrowest(side.num_tokens))
    for start in range(0, len(offsets), _BLOCK_PAIRS):
        stop = min(start + _BLOCK_PAIRS, len(offsets))
        offsets[start:stop] = side.read_offsets(start, stop)
    return offsets


def _lengths(offsets: Array, pairs: Array) -> Array:
    places = pairs.astype(np.int64)
    return (offsets[places + 1] - offsets[places]).astype(np.int64)


def _scratch(size: int, code: str) -> npt.NDArray[np.unsignedinteger]:
    """An array in pages of its own, given back when it goes: malloc, told to keep freed blocks, would keep them."""
    dtype = np.dtype(code)
    pages = mmap.mmap(-1, max(size, 1) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):  # of kernels, and systems, without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype=dtype, count=size)
