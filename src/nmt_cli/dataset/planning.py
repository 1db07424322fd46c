"""How an epoch is planned: which pairs make up each update. A pure function of lengths and the plan's key.

A length is in pieces with EOS. The same plan serves 1, 2 or 8 GPUs. Memory is 12 bytes a pair (20 where a side has
2^32 tokens), whatever else the process holds, and goes back to the system at the end.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from nmt_cli.dataset.plan import PlanFacts, PlanKey
from nmt_cli.dataset.rows import Array, Rows, fill_rows, narrowest, row_type
from nmt_cli.dataset.shape import Budgets, budgets
from nmt_cli.dataset.store import TokenFile, TokenPairs
from nmt_cli.model.packing import SHORT

_BLOCK_PAIRS = 1 << 18
_PURPOSE = 1  # keeps the order of data apart from other uses of the seed


@dataclass(frozen=True, slots=True)
class Planned:
    """An epoch in memory: update u takes `pairs(u)`."""

    order: Array
    bounds: Array
    turn: Array
    longest: Array
    facts: PlanFacts
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
    """Every pair that the model takes once: shuffled, the few with a long sentence first, cut at the budgets.

    An update takes pairs while neither side exceeds its budget; the updates are shuffled last, and one of them may be
    short. Section 5.1: pairs batched by approximate length, here in two classes.
    """
    src, tgt = _offsets(data.src), _offsets(data.tgt)
    order, classes = _usable(src, tgt, max_positions=key.max_positions)
    longest = _longest(order, src, tgt, budget=key.batch_tokens)
    length = _longest_length(longest, src, tgt)
    limits = budgets(
        batch_tokens=key.batch_tokens,
        num_pairs=len(order),
        src_tokens=sum(one.src_tokens for one in classes),
        tgt_tokens=sum(one.tgt_tokens for one in classes),
        longest=length,
    )
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([key.seed, _PURPOSE, key.epoch])))
    for start, stop in pairwise((0, classes[0].pairs, len(order))):
        generator.shuffle(order[start:stop])
    cut = _Cut(limits)
    for start in range(0, len(order), _BLOCK_PAIRS):
        block = order[start : start + _BLOCK_PAIRS]
        cut.add(_lengths(src, block), _lengths(tgt, block))
    bounds = cut.bounds()
    row = row_type(num_pairs=len(data), num_tokens=int(max(src[-1], tgt[-1])), longest=length)
    turn = generator.permutation(len(bounds) - 1)
    pairs_in_update = max(one.pairs_in_update(limits) for one in classes)
    num_left_out = len(data) - len(order)
    facts = PlanFacts(num_left_out=num_left_out, budgets=limits, pairs_in_update=pairs_in_update)
    return Planned(order, bounds, turn, longest, facts, src, tgt, row)


@dataclass(frozen=True, slots=True)
class _Class:
    """The pairs of a class of length."""

    pairs: int
    src_tokens: int
    tgt_tokens: int

    def pairs_in_update(self, limits: Budgets) -> int:
        """Pairs in an update of nothing but such pairs, on average."""
        parts = (limits.src / max(self.src_tokens, 1), limits.tgt / max(self.tgt_tokens, 1))
        return math.ceil(self.pairs * min(1, *parts))


class _Cut:
    """Cuts pairs that come in blocks into updates."""

    def __init__(self, limits: Budgets) -> None:
        self._limits = limits
        self._bounds = [0]
        self._taken = self._src_total = self._tgt_total = self._src_done = self._tgt_done = 0

    def add(self, src_lengths: Array, tgt_lengths: Array) -> None:
        """Go on with these pairs; an update closes before the pair by which a side would exceed its budget."""
        src_ends = np.cumsum(src_lengths, dtype=np.int64) + self._src_total
        tgt_ends = np.cumsum(tgt_lengths, dtype=np.int64) + self._tgt_total
        while True:
            fits = min(
                int(np.searchsorted(src_ends, self._src_done + self._limits.src, side="right")),
                int(np.searchsorted(tgt_ends, self._tgt_done + self._limits.tgt, side="right")),
            )
            if fits == len(src_ends):
                break
            if self._taken + fits == self._bounds[-1]:
                fits += 1  # a pair beyond the budget is an update of its own
            self._bounds.append(self._taken + fits)
            self._src_done = int(src_ends[fits - 1]) if fits else self._src_total
            self._tgt_done = int(tgt_ends[fits - 1]) if fits else self._tgt_total
        self._taken += len(src_ends)
        self._src_total, self._tgt_total = int(src_ends[-1]), int(tgt_ends[-1])

    def bounds(self) -> Array:
        """Where each update begins, and where the last one ends, in the order of the pairs."""
        last = [self._taken] if self._bounds[-1] < self._taken else []
        return np.array([*self._bounds, *last], dtype=np.int64)


def _usable(src: Array, tgt: Array, *, max_positions: int) -> tuple[Array, tuple[_Class, _Class]]:
    """The pairs that the model takes, first those with a long sentence, then the others, each ascending."""
    num_pairs = len(src) - 1
    order = _scratch(num_pairs, narrowest(num_pairs))
    classes, filled = [], 0
    for above, limit in ((SHORT, max_positions), (0, min(SHORT, max_positions))):
        first, tokens = filled, np.zeros(2, dtype=np.int64)
        for start in range(0, num_pairs, _BLOCK_PAIRS):
            stop = min(start + _BLOCK_PAIRS, num_pairs)
            lengths = [np.diff(side[start : stop + 1]) for side in (src, tgt)]
            size = np.maximum(*lengths)
            places = np.flatnonzero((size > above) & (size <= limit))
            order[filled : filled + len(places)] = places + start
            filled += len(places)
            tokens += [side[places].sum(dtype=np.int64) for side in lengths]
        classes.append(_Class(filled - first, int(tokens[0]), int(tokens[1])))
    return order[:filled], (classes[0], classes[1])


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
