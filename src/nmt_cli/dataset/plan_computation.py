"""The computation of a plan: every pair once, shuffled, and cut into updates."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from nmt_cli.dataset.plan_files import EpochInvariants, PlanKey, TokenBudgets
from nmt_cli.dataset.prepared_data import Array, Rows, TokenFile, TokenPairs, make_rows, narrowest_type, row_type
from nmt_cli.dataset.sampled_pieces import SamplingCost
from nmt_cli.devices import SHORT_SENTENCE_TOKENS

_BLOCK_PAIRS = 1 << 18
_NEARLY_FULL = 7 / 8  # share of a budget: if the last update has less, it is cut anew with the updates before it
_MAX_RECUT_UPDATES = 9  # each update that is cut anew is then 8/9 full or more
_RATIO_MARGIN = 0.003  # by which the side with fewer tokens may exceed the data's ratio of the sides
_UNFILLED_PAIRS = 1.5  # pairs that the average full update could still take
_UNEVEN_GROWTH = 1.1  # sampling lengthens sentences unequally: the longest one may grow by this factor more
_ORDER_PURPOSE = 1  # in the key of the generator: keeps the order of pairs apart from other uses of the seed


@dataclass(frozen=True, slots=True)
class ComputedPlan:
    """The plan of an epoch in memory: update u has the pairs `pairs(u)`.

    `bounds` cut `pair_order` into updates, and training takes the updates in `update_order`. `longest_pairs` come
    longest first. The offsets say where each sentence of the split begins, and where the last one ends.
    """

    pair_order: Array
    bounds: Array
    update_order: Array
    longest_pairs: Array
    invariants: EpochInvariants
    src_offsets: Array
    tgt_offsets: Array
    row_dtype: np.dtype[np.void]

    def __len__(self) -> int:
        return len(self.update_order)

    def pairs(self, index: int) -> Array:
        """The pairs of one update, from 0."""
        place = self.update_order[index]
        return self.pair_order[self.bounds[place] : self.bounds[place + 1]]

    def sizes(self) -> Array:
        """Pairs in each update."""
        return np.diff(self.bounds)[self.update_order]

    def rows(self, pairs: Array) -> Rows:
        """The rows of some pairs."""
        return make_rows(self.row_dtype, pairs.astype(np.int64), self.src_offsets, self.tgt_offsets)

    def blocks(self) -> Iterator[Rows]:
        """The rows of all updates in their order, some hundred thousand at a time; an update is never split."""
        sizes = self.sizes()
        ends = np.cumsum(sizes)
        starts = ends - sizes
        # From the place of an update's pairs in the epoch to their place in `pair_order`.
        shifts = self.bounds[self.update_order] - starts
        first = 0
        while first < len(sizes):
            stop = max(first + 1, int(np.searchsorted(ends, ends[first] + _BLOCK_PAIRS, side="right")))
            places = np.arange(starts[first], ends[stop - 1])
            yield self.rows(self.pair_order[places + np.repeat(shifts[first:stop], sizes[first:stop])])
            first = stop


def compute_plan(data: TokenPairs, *, key: PlanKey, invariants: EpochInvariants | None) -> ComputedPlan:
    """The plan of an epoch: every pair that the model takes, once, in shuffled updates.

    Pairs with a long sentence come first, then all others; both classes are shuffled. An update takes pairs while
    neither side exceeds its budget. If few pairs are left for the last update, the last updates are cut anew, evenly.
    Section 5.1 batches pairs by approximate length. Without `invariants`, they follow from the lengths in `data`.
    """
    src, tgt = _load_offsets(data.src), _load_offsets(data.tgt)
    order, classes = _usable_pairs(src, tgt, max_positions=key.max_positions)
    longest_pairs = _longest_pairs(order, src, tgt, budget=key.batch_tokens)
    max_pieces = _max_pieces(longest_pairs, src, tgt)
    if invariants is None:
        invariants = _invariants(classes, num_pairs=len(data), max_pieces=max_pieces, batch_tokens=key.batch_tokens)
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([key.seed, _ORDER_PURPOSE, key.epoch])))
    for start, stop in pairwise((0, classes[0].pairs, len(order))):
        generator.shuffle(order[start:stop])
    cutter = _UpdateCutter(invariants.budgets)
    for start in range(0, len(order), _BLOCK_PAIRS):
        block = order[start : start + _BLOCK_PAIRS]
        cutter.add(_lengths_of(src, block), _lengths_of(tgt, block))
    bounds = cutter.bounds()
    if key.has_even_end:
        bounds = _with_even_end(bounds, order, src, tgt, budgets=invariants.budgets)
    row_dtype = row_type(num_pairs=len(data), num_tokens=int(max(src[-1], tgt[-1])), longest=max_pieces)
    update_order = generator.permutation(len(bounds) - 1)
    return ComputedPlan(order, bounds, update_order, longest_pairs, invariants, src, tgt, row_dtype)


def token_budgets(
    *, batch_tokens: int, num_pairs: int, src_tokens: int, tgt_tokens: int, max_pieces: int
) -> TokenBudgets:
    """The budgets of an update: at most `batch_tokens` for the side of the data with more tokens.

    The other side's budget is proportional to its tokens, and larger by `_RATIO_MARGIN`. If an epoch has few updates,
    the budgets are lower, so that all updates are about equally full. A sentence of `max_pieces` fits either side,
    unless it is longer than `batch_tokens`.
    """
    larger = max(src_tokens, tgt_tokens)
    budget = larger
    if larger > batch_tokens:
        unused_tokens = _UNFILLED_PAIRS * larger / num_pairs
        num_updates = math.ceil(larger / max(batch_tokens - unused_tokens, 1))
        budget = min(batch_tokens, math.ceil(larger / num_updates + unused_tokens))

    def of_side(tokens: int) -> int:
        in_proportion = math.ceil(budget * tokens / max(larger, 1) * (1 + _RATIO_MARGIN))
        return min(batch_tokens, max(max_pieces, min(budget, in_proportion)))

    return TokenBudgets(of_side(src_tokens), of_side(tgt_tokens))


def expected_invariants(data: TokenPairs, *, key: PlanKey, cost: SamplingCost) -> EpochInvariants:
    """The invariants of epochs with sampled pieces, from the prepared pieces in `data` and their growth by sampling."""
    src, tgt = _load_offsets(data.src), _load_offsets(data.tgt)
    order, classes = _usable_pairs(src, tgt, max_positions=key.max_positions)
    grown = [length_class.grown(cost) for length_class in classes]
    prepared_pieces = _max_pieces(_longest_pairs(order, src, tgt, budget=1), src, tgt)
    sampled_pieces = math.ceil(prepared_pieces * max(cost.src_growth, cost.tgt_growth) * _UNEVEN_GROWTH)
    max_pieces = max(prepared_pieces, min(sampled_pieces, key.max_positions, key.batch_tokens))
    invariants = _invariants(grown, num_pairs=len(data), max_pieces=max_pieces, batch_tokens=key.batch_tokens)
    return invariants.model_copy(update={"max_pieces": max_pieces})


def _invariants(
    classes: Sequence[_LengthClass], *, num_pairs: int, max_pieces: int, batch_tokens: int
) -> EpochInvariants:
    """The invariants without `max_pieces`; the classes hold the usable ones of `num_pairs` pairs."""
    num_usable = sum(each.pairs for each in classes)
    budgets = token_budgets(
        batch_tokens=batch_tokens,
        num_pairs=num_usable,
        src_tokens=sum(each.src_tokens for each in classes),
        tgt_tokens=sum(each.tgt_tokens for each in classes),
        max_pieces=max_pieces,
    )
    pairs_in_update = max(each.pairs_in_update(budgets) for each in classes)
    return EpochInvariants(num_left_out=num_pairs - num_usable, budgets=budgets, pairs_in_update=pairs_in_update)


@dataclass(frozen=True, slots=True)
class _LengthClass:
    """The size of one class of pairs: the pairs with a long sentence, or the others."""

    pairs: int
    src_tokens: int
    tgt_tokens: int

    def grown(self, cost: SamplingCost) -> _LengthClass:
        """The same pairs after sampling, which makes more tokens of them."""
        return _LengthClass(
            self.pairs, round(self.src_tokens * cost.src_growth), round(self.tgt_tokens * cost.tgt_growth)
        )

    def pairs_in_update(self, budgets: TokenBudgets) -> int:
        """The average number of pairs in a full update of this class."""
        shares = (budgets.src / max(self.src_tokens, 1), budgets.tgt / max(self.tgt_tokens, 1))
        return math.ceil(self.pairs * min(1, *shares))


class _UpdateCutter:
    """Cuts pairs, given block by block, into updates."""

    def __init__(self, budgets: TokenBudgets) -> None:
        self._budgets = budgets
        self._bounds = [0]
        self._num_pairs = self._src_tokens = self._tgt_tokens = 0  # of all pairs so far
        self._src_in_updates = self._tgt_in_updates = 0  # tokens of the finished updates

    def add(self, src_lengths: Array, tgt_lengths: Array) -> None:
        """Add the next pairs; an update ends before the pair by which a side would exceed its budget."""
        src_ends = np.cumsum(src_lengths, dtype=np.int64) + self._src_tokens
        tgt_ends = np.cumsum(tgt_lengths, dtype=np.int64) + self._tgt_tokens
        while True:
            fits = min(
                int(np.searchsorted(src_ends, self._src_in_updates + self._budgets.src, side="right")),
                int(np.searchsorted(tgt_ends, self._tgt_in_updates + self._budgets.tgt, side="right")),
            )
            if fits == len(src_ends):
                break
            if self._num_pairs + fits == self._bounds[-1]:
                fits += 1  # a pair beyond the budget is an update of its own
            self._bounds.append(self._num_pairs + fits)
            self._src_in_updates = int(src_ends[fits - 1]) if fits else self._src_tokens
            self._tgt_in_updates = int(tgt_ends[fits - 1]) if fits else self._tgt_tokens
        self._num_pairs += len(src_ends)
        self._src_tokens, self._tgt_tokens = int(src_ends[-1]), int(tgt_ends[-1])

    def bounds(self) -> Array:
        """Where each update begins, and where the last one ends, in the order of the pairs."""
        last = [self._num_pairs] if self._bounds[-1] < self._num_pairs else []
        return np.array([*self._bounds, *last], dtype=np.int64)


def _with_even_end(bounds: Array, order: Array, src: Array, tgt: Array, *, budgets: TokenBudgets) -> Array:
    """The bounds with the last few updates cut anew, evenly, so that the last one is not nearly empty.

    The order of the pairs and the number of updates stay, and both budgets are kept. All bounds stay if the last update
    is nearly full, or if no even cut keeps the budgets.
    """
    first = max(0, len(bounds) - 1 - _MAX_RECUT_UPDATES)
    starts = bounds[first:-1] - bounds[first]
    if len(starts) < 2:
        return bounds
    tail = order[bounds[first] :]
    lengths = np.stack([_lengths_of(side, tail) for side in (src, tgt)])
    limits = np.array([[budgets.src], [budgets.tgt]])
    old_fill = float((lengths[:, starts[-1] :].sum(axis=1) / limits[:, 0]).max())
    if old_fill >= _NEARLY_FULL:
        return bounds
    for num_recut in range(len(starts), 1, -1):
        begin = int(starts[-num_recut])
        fill_so_far = np.cumsum((lengths[:, begin:] / limits).sum(axis=0))
        even_fills = fill_so_far[-1] * np.arange(1, num_recut) / num_recut
        cuts = np.concatenate([[begin], begin + np.searchsorted(fill_so_far, even_fills, side="right")])
        pairs = np.diff(cuts, append=len(tail))
        if pairs.min() < 1:
            continue
        tokens = np.add.reduceat(lengths, cuts, axis=1)
        fits = (tokens <= limits).all(axis=0) | (pairs == 1)
        if fits.all() and float((tokens / limits).max(axis=0).min()) > old_fill:
            return np.concatenate([bounds[: -num_recut - 1], bounds[first] + cuts, bounds[-1:]])
    return bounds


def _usable_pairs(src: Array, tgt: Array, *, max_positions: int) -> tuple[Array, tuple[_LengthClass, _LengthClass]]:
    """The pairs that the model takes, those with a long sentence first, and the sizes of the two classes."""
    num_pairs = len(src) - 1
    order = _mapped_array(num_pairs, narrowest_type(num_pairs))
    classes, filled = [], 0
    for above, limit in ((SHORT_SENTENCE_TOKENS, max_positions), (0, min(SHORT_SENTENCE_TOKENS, max_positions))):
        first, tokens = filled, np.zeros(2, dtype=np.int64)
        for start in range(0, num_pairs, _BLOCK_PAIRS):
            stop = min(start + _BLOCK_PAIRS, num_pairs)
            lengths = [np.diff(side[start : stop + 1]) for side in (src, tgt)]
            size = np.maximum(*lengths)
            places = np.flatnonzero((size > above) & (size <= limit))
            order[filled : filled + len(places)] = places + start
            filled += len(places)
            tokens += [side[places].sum(dtype=np.int64) for side in lengths]
        classes.append(_LengthClass(filled - first, int(tokens[0]), int(tokens[1])))
    return order[:filled], (classes[0], classes[1])


def _longest_pairs(usable: Array, src: Array, tgt: Array, *, budget: int) -> Array:
    """The longest pairs, longest first, up to and with the pair by which a side exceeds the budget."""
    longest, shortest_kept = usable[:0], 0
    for start in range(0, len(usable), _BLOCK_PAIRS):
        block = usable[start : start + _BLOCK_PAIRS]
        longer = np.maximum(_lengths_of(src, block), _lengths_of(tgt, block)) > shortest_kept
        longest = np.concatenate([longest, block[longer]])
        size = np.maximum(_lengths_of(src, longest), _lengths_of(tgt, longest))
        longest = longest[np.argsort(-size, kind="stable")]
        total = np.maximum(np.cumsum(_lengths_of(src, longest)), np.cumsum(_lengths_of(tgt, longest)))
        over = int(np.searchsorted(total, budget, side="right"))
        if over < len(longest):
            longest = longest[: over + 1]
            shortest_kept = int(max(_lengths_of(src, longest[-1:])[0], _lengths_of(tgt, longest[-1:])[0]))
    return longest


def _max_pieces(longest_pairs: Array, src: Array, tgt: Array) -> int:
    """The pieces of the longest sentence, given the longest pairs, longest first; 0 if there is none."""
    return int(max(_lengths_of(side, longest_pairs[:1]).sum() for side in (src, tgt)))


def _load_offsets(side: TokenFile) -> Array:
    """Where each sentence of a side begins, and where the last sentence ends, copied into memory."""
    offsets = _mapped_array(len(side) + 1, narrowest_type(side.num_tokens))
    for start in range(0, len(offsets), _BLOCK_PAIRS):
        stop = min(start + _BLOCK_PAIRS, len(offsets))
        offsets[start:stop] = side.read_offsets(start, stop)
    return offsets


def _lengths_of(offsets: Array, pairs: Array) -> Array:
    """The tokens of one side of some pairs, given the offsets of that side."""
    places = pairs.astype(np.int64)
    return (offsets[places + 1] - offsets[places]).astype(np.int64)


def _mapped_array(size: int, type_code: str) -> npt.NDArray[np.unsignedinteger]:
    """An array in pages of its own, which return to the system as soon as it is freed; malloc would keep them."""
    dtype = np.dtype(type_code)
    pages = mmap.mmap(-1, max(size, 1) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):  # kernels and systems without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype=dtype, count=size)
