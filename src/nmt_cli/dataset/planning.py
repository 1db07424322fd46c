"""Which pairs make up each update of an epoch: every pair once, shuffled, and cut into updates."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from nmt_cli.dataset.plan import PlanFacts, PlanKey, TokenBudgets
from nmt_cli.dataset.sampled_pieces import Growth
from nmt_cli.dataset.store import Array, Rows, TokenFile, TokenPairs, make_rows, narrowest_type, row_type
from nmt_cli.devices import SHORT

_BLOCK_PAIRS = 1 << 18
_FULL = 7 / 8  # of a budget: if the last update has less, it is cut anew with the updates before it
_MOST_RECUT = 9  # updates that are cut anew; each of them is then 8/9 full or more
_MARGIN = 0.003  # by which the side with fewer tokens may exceed the data's ratio of the sides
_OPEN_PAIRS = 1.5  # average number of pairs by which a full update falls short of its budget
_ROOM = 1.1  # sentences grow unequally: the longest one may become longer than expected by this factor
_PURPOSE = 1  # keeps the order of data apart from other uses of the seed


@dataclass(frozen=True, slots=True)
class PlannedEpoch:
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
        return make_rows(self.row, pairs.astype(np.int64), self.src, self.tgt)

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


def plan_epoch(data: TokenPairs, *, key: PlanKey, facts: PlanFacts | None) -> PlannedEpoch:
    """Every pair that the model takes, once: shuffled, the few with a long sentence first, and cut into updates.

    An update takes pairs while neither side exceeds its budget. If that leaves few pairs to the last update, the last
    updates are cut anew, evenly. The updates are shuffled last. Section 5.1 batches pairs by approximate length; here
    there are two classes of length. Without `facts`, they follow from the lengths in `data`.
    """
    src, tgt = _offsets(data.src), _offsets(data.tgt)
    order, classes = _usable(src, tgt, max_positions=key.max_positions)
    longest = _longest(order, src, tgt, budget=key.batch_tokens)
    longest_length = int(max(_lengths(side, longest[:1]).sum() for side in (src, tgt)))
    if facts is None:
        facts = _facts(classes, num_pairs=len(data), longest=longest_length, batch_tokens=key.batch_tokens)
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([key.seed, _PURPOSE, key.epoch])))
    for start, stop in pairwise((0, classes[0].pairs, len(order))):
        generator.shuffle(order[start:stop])
    cut = _Cut(facts.budgets)
    for start in range(0, len(order), _BLOCK_PAIRS):
        block = order[start : start + _BLOCK_PAIRS]
        cut.add(_lengths(src, block), _lengths(tgt, block))
    bounds = cut.bounds()
    if key.has_even_end:
        bounds = _with_even_end(bounds, order, src, tgt, budgets=facts.budgets)
    row = row_type(num_pairs=len(data), num_tokens=int(max(src[-1], tgt[-1])), longest=longest_length)
    turn = generator.permutation(len(bounds) - 1)
    return PlannedEpoch(order, bounds, turn, longest, facts, src, tgt, row)


def token_budgets(*, batch_tokens: int, num_pairs: int, src_tokens: int, tgt_tokens: int, longest: int) -> TokenBudgets:
    """The budgets of an update: at most `batch_tokens` for the side of the data with more tokens.

    The other side has its proportion of that, and `_MARGIN` more. The budget is lowered until the updates of an
    epoch are about equally full. This matters if an epoch has few updates. A sentence of `longest` pieces fits
    either side, unless it is longer than `batch_tokens`.
    """
    larger = max(src_tokens, tgt_tokens)
    budget = larger
    if larger > batch_tokens:
        unused_tokens = _OPEN_PAIRS * larger / num_pairs
        num_updates = math.ceil(larger / max(batch_tokens - unused_tokens, 1))
        budget = min(batch_tokens, math.ceil(larger / num_updates + unused_tokens))
    src, tgt = (
        min(batch_tokens, max(longest, min(budget, math.ceil(budget * tokens / max(larger, 1) * (1 + _MARGIN)))))
        for tokens in (src_tokens, tgt_tokens)
    )
    return TokenBudgets(src, tgt)


def expected_facts(data: TokenPairs, *, key: PlanKey, growth: Growth) -> PlanFacts:
    """The facts of all epochs with sampled pieces: `data` has the prepared pieces, which sampling makes more."""
    src, tgt = _offsets(data.src), _offsets(data.tgt)
    order, classes = _usable(src, tgt, max_positions=key.max_positions)
    grown = [one.grown(growth) for one in classes]
    longest = int(max(_lengths(side, _longest(order, src, tgt, budget=1)[:1]).sum() for side in (src, tgt)))
    room = math.ceil(longest * max(growth.src, growth.tgt) * _ROOM)
    longest = max(longest, min(room, key.max_positions, key.batch_tokens))
    facts = _facts(grown, num_pairs=len(data), longest=longest, batch_tokens=key.batch_tokens)
    return facts.model_copy(update={"longest": longest})


def _facts(classes: Sequence[_Class], *, num_pairs: int, longest: int, batch_tokens: int) -> PlanFacts:
    num_usable = sum(one.pairs for one in classes)
    budgets = token_budgets(
        batch_tokens=batch_tokens,
        num_pairs=num_usable,
        src_tokens=sum(one.src_tokens for one in classes),
        tgt_tokens=sum(one.tgt_tokens for one in classes),
        longest=longest,
    )
    pairs_in_update = max(one.pairs_in_update(budgets) for one in classes)
    return PlanFacts(num_left_out=num_pairs - num_usable, budgets=budgets, pairs_in_update=pairs_in_update)


@dataclass(frozen=True, slots=True)
class _Class:
    """The pairs of a class of length."""

    pairs: int
    src_tokens: int
    tgt_tokens: int

    def grown(self, growth: Growth) -> _Class:
        """The same pairs with more tokens."""
        return _Class(self.pairs, round(self.src_tokens * growth.src), round(self.tgt_tokens * growth.tgt))

    def pairs_in_update(self, budgets: TokenBudgets) -> int:
        """Pairs in an update of nothing but such pairs, on average."""
        parts = (budgets.src / max(self.src_tokens, 1), budgets.tgt / max(self.tgt_tokens, 1))
        return math.ceil(self.pairs * min(1, *parts))


class _Cut:
    """Cuts pairs that come in blocks into updates."""

    def __init__(self, budgets: TokenBudgets) -> None:
        self._budgets = budgets
        self._bounds = [0]
        self._taken = self._src_total = self._tgt_total = self._src_done = self._tgt_done = 0

    def add(self, src_lengths: Array, tgt_lengths: Array) -> None:
        """Continue with these pairs; an update ends before the pair by which a side would exceed its budget."""
        src_ends = np.cumsum(src_lengths, dtype=np.int64) + self._src_total
        tgt_ends = np.cumsum(tgt_lengths, dtype=np.int64) + self._tgt_total
        while True:
            fits = min(
                int(np.searchsorted(src_ends, self._src_done + self._budgets.src, side="right")),
                int(np.searchsorted(tgt_ends, self._tgt_done + self._budgets.tgt, side="right")),
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


def _with_even_end(bounds: Array, order: Array, src: Array, tgt: Array, *, budgets: TokenBudgets) -> Array:
    """The bounds of updates of which the last is not nearly empty: the last few are cut anew, evenly.

    The order of the pairs and the number of updates stay, and both budgets are kept. The bounds stay as they are if the
    last update is nearly full, or if no even cut keeps the budgets.
    """
    first = max(0, len(bounds) - 1 - _MOST_RECUT)
    starts = bounds[first:-1] - bounds[first]
    if len(starts) < 2:
        return bounds
    tail = order[bounds[first] :]
    lengths = np.stack([_lengths(side, tail) for side in (src, tgt)])
    limits = np.array([[budgets.src], [budgets.tgt]])
    old_fill = float((lengths[:, starts[-1] :].sum(axis=1) / limits[:, 0]).max())
    if old_fill >= _FULL:
        return bounds
    for number in range(len(starts), 1, -1):
        begin = int(starts[-number])
        ends = np.cumsum((lengths[:, begin:] / limits).sum(axis=0))
        inner = np.searchsorted(ends, ends[-1] * np.arange(1, number) / number, side="right")
        cuts = np.concatenate([[begin], begin + inner])
        pairs = np.diff(cuts, append=len(tail))
        if pairs.min() < 1:
            continue
        tokens = np.add.reduceat(lengths, cuts, axis=1)
        is_kept = (tokens <= limits).all(axis=0) | (pairs == 1)
        if is_kept.all() and float((tokens / limits).max(axis=0).min()) > old_fill:
            return np.concatenate([bounds[: -number - 1], bounds[first] + cuts, bounds[-1:]])
    return bounds


def _usable(src: Array, tgt: Array, *, max_positions: int) -> tuple[Array, tuple[_Class, _Class]]:
    """The pairs that the model takes: pairs with a long sentence, ascending, then the others, ascending."""
    num_pairs = len(src) - 1
    order = _scratch(num_pairs, narrowest_type(num_pairs))
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
    """The longest pairs, longest first, up to the pair by which a side exceeds the budget."""
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


def _offsets(side: TokenFile) -> Array:
    """Where each sentence of a side begins, and where the last sentence ends, in memory of its own."""
    offsets = _scratch(len(side) + 1, narrowest_type(side.num_tokens))
    for start in range(0, len(offsets), _BLOCK_PAIRS):
        stop = min(start + _BLOCK_PAIRS, len(offsets))
        offsets[start:stop] = side.read_offsets(start, stop)
    return offsets


def _lengths(offsets: Array, pairs: Array) -> Array:
    places = pairs.astype(np.int64)
    return (offsets[places + 1] - offsets[places]).astype(np.int64)


def _scratch(size: int, code: str) -> npt.NDArray[np.unsignedinteger]:
    """An array in pages of its own, which go back to the system with it: malloc is told to keep freed blocks."""
    dtype = np.dtype(code)
    pages = mmap.mmap(-1, max(size, 1) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):  # kernels and systems without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype=dtype, count=size)
