"""The plan of an epoch, which says which pairs make up each update: every pair once, shuffled, and cut into updates.

With a temperature, pairs of large directions come in some epochs only, and those of small ones several times in each.
A plan is a pure function of the lengths of the pairs, the recipe, the seed and the epoch. Each rank computes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from zlib import crc32

import numpy as np

from nmt_cli.dataset.prepared_data import Array, TokenPairs, mapped_array
from nmt_cli.dataset.sampled_pieces import SamplingCost
from nmt_cli.devices import SHORT_SENTENCE_TOKENS
from nmt_cli.errors import DataError

_BLOCK_PAIRS = 1 << 18
_NEARLY_FULL = 7 / 8  # share of a budget: if the last update has less, the last updates are cut again, evenly
_MAX_RECUT_UPDATES = 9  # each update that is cut again is then 8/9 full or more
_RATIO_MARGIN = 0.003  # by which the side with fewer tokens may exceed the data's ratio of the sides
_UNFILLED_PAIRS = 1.5  # pairs that the average full update could still take
_UNEVEN_GROWTH = 1.1  # sampling lengthens sentences unequally: the longest one may grow by this factor more
_ORDER_PURPOSE, _TURNS_PURPOSE = 1, 4  # in keys of generators: keep these orders apart from other uses of the seed
_CRC32_OF_ORDER = 3419719308  # of 1,000 numbers in their order


@dataclass(frozen=True, slots=True)
class TokenBudgets:
    """The most tokens that an update may have on each side."""

    src: int
    tgt: int


@dataclass(frozen=True, slots=True)
class EpochInvariants:
    """The part of a plan that all epochs of a training share: it depends on the lengths of pairs, not on their order.

    `num_pairs_left_out` pairs are too long for the model. `pairs_in_update` is the average number of pairs in a full
    update; of the two length classes, the larger average. No sentence of any epoch has more than
    `max_tokens_in_sentence`, with EOS. If pieces are sampled, every field except `num_pairs_left_out` is computed from
    expected lengths.
    """

    num_pairs_left_out: int
    budgets: TokenBudgets
    pairs_in_update: int
    max_tokens_in_sentence: int


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The plan of an epoch: update u has the pairs `pairs_of_update(u)`.

    `bounds` cut `pair_order` into updates, and training takes the updates in `update_order`. `longest_pairs`, longest
    first, are enough for one update: the warm-up runs them.
    """

    pair_order: Array
    bounds: Array
    update_order: Array
    longest_pairs: Array
    invariants: EpochInvariants

    def __len__(self) -> int:
        return len(self.update_order)

    def pairs_of_update(self, index: int) -> Array:
        """The pairs of one update, from 0."""
        update = self.update_order[index]
        return self.pair_order[self.bounds[update] : self.bounds[update + 1]]

    @property
    def fullest_update(self) -> int:
        """The index of the update with the most pairs: a full update of ordinary pairs."""
        return int(np.diff(self.bounds)[self.update_order].argmax())


@dataclass(frozen=True, slots=True)
class Mixture:
    """The pairs of each direction, which lie one direction after another, and the temperature that mixes them."""

    sizes: Sequence[int]
    temperature: float


def pairs_in_epoch(sizes: Sequence[int], *, temperature: float) -> list[int]:
    """How many pairs of each direction an epoch has: together as many as there are, in proportion to size^(1/T).

    Arivazhagan et al. 2019, arXiv:1907.05019.
    """
    weights = np.array(sizes, dtype=np.float64) ** (1 / temperature)
    ends = np.floor(sum(sizes) * np.cumsum(weights) / max(weights.sum(), 1) + 0.5)
    return [int(number) for number in np.diff(ends, prepend=0)]


def compute_plan(
    data: TokenPairs,
    *,
    batch_tokens: int,
    max_positions: int,
    seed: int,
    epoch: int,
    invariants: EpochInvariants | None,
    mixture: Mixture | None,
) -> EpochPlan:
    """The plan of an epoch: every pair that the model takes, in shuffled updates, once or as often as `mixture` says.

    Pairs with a long sentence come before all others, so at most one update has both: attention has fast kernels for
    short sentences. Section 5.1 of the paper sorts by length more finely. Both classes are shuffled. An update takes
    pairs while neither side exceeds its budget. If few pairs are left for the last update, the last updates are cut
    again, evenly. If `invariants` is None, they are computed from the lengths in `data`.
    DataError if this numpy shuffles in another order than the versions before it.
    """
    _check_order()
    usable = _usable_pairs(data, max_positions=max_positions, mixture=mixture)
    pair_order, num_long = usable.pairs, usable.num_long
    longest_pairs = _longest_pairs(pair_order, data, budget=batch_tokens)
    invariants = invariants or _invariants_of(usable, usable.classes, batch_tokens=batch_tokens)
    if mixture is not None:
        repeats = usable.repeats(seed=seed, epoch=epoch)
        pair_order, num_long = np.repeat(pair_order, repeats), int(repeats[:num_long].sum())
    generator = _generator(seed, epoch, purpose=_ORDER_PURPOSE)
    for of_class in (pair_order[:num_long], pair_order[num_long:]):
        generator.shuffle(of_class)
    starts = range(0, len(pair_order), _BLOCK_PAIRS)
    blocks_of_lengths = (data.lengths(pair_order[start : start + _BLOCK_PAIRS]) for start in starts)
    bounds = _cut(blocks_of_lengths, budgets=invariants.budgets)
    bounds = _even_out_last_updates(bounds, pair_order, data, budgets=invariants.budgets)
    update_order = generator.permutation(len(bounds) - 1)
    return EpochPlan(pair_order, bounds, update_order, longest_pairs, invariants)


def expected_invariants(
    data: TokenPairs, *, batch_tokens: int, max_positions: int, cost: SamplingCost, mixture: Mixture | None
) -> EpochInvariants:
    """The invariants of epochs with sampled pieces, from the prepared pieces in `data` and their growth by sampling."""
    usable = _usable_pairs(data, max_positions=max_positions, mixture=mixture)
    limit = min(max_positions, batch_tokens)
    sampled = [length_class.after_sampling(cost, limit=limit) for length_class in usable.classes]
    return _invariants_of(usable, sampled, batch_tokens=batch_tokens)


def _generator(seed: int, number: int, *, purpose: int) -> np.random.Generator:
    """The generator of an epoch's order, or of the turns in a direction."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, purpose, number])))


def _check_order() -> None:
    """DataError unless this numpy shuffles as ever: with another order, a run would repeat some pairs and skip others.

    numpy keeps the bits of its generators from version to version, but does not promise the same for `shuffle`.
    """
    if crc32(_generator(1, 0, purpose=_ORDER_PURPOSE).permutation(1000).astype("<u2").tobytes()) != _CRC32_OF_ORDER:
        message = f"numpy {np.__version__} shuffles in another order: a run would repeat some pairs and skip others"
        raise DataError(message, hint="install the version of numpy that constraints.txt names")


def token_budgets(
    *, batch_tokens: int, num_pairs: int, src_tokens: int, tgt_tokens: int, max_tokens_in_sentence: int
) -> TokenBudgets:
    """The budgets of an update: at most `batch_tokens` for the side of the data with more tokens.

    The other side's budget is proportional to its tokens, and larger by `_RATIO_MARGIN`. If an epoch has few updates,
    the budgets are lower, so that all updates are about equally full. A sentence of `max_tokens_in_sentence` fits
    either side, unless it is longer than `batch_tokens`.
    """
    larger_side = max(src_tokens, tgt_tokens)
    budget = larger_side
    if larger_side > batch_tokens:
        unused_tokens = _UNFILLED_PAIRS * larger_side / num_pairs
        num_updates = math.ceil(larger_side / max(batch_tokens - unused_tokens, 1))
        # A full update has unused tokens, because it stops before the pair that would not fit.
        budget = min(batch_tokens, math.ceil(larger_side / num_updates + unused_tokens))

    def budget_of_side(tokens: int) -> int:
        in_proportion = math.ceil(budget * tokens / max(larger_side, 1) * (1 + _RATIO_MARGIN))
        return min(batch_tokens, max(max_tokens_in_sentence, min(budget, in_proportion)))

    return TokenBudgets(budget_of_side(src_tokens), budget_of_side(tgt_tokens))


@dataclass(frozen=True, slots=True)
class _LengthClass:
    """The size of one class of pairs: the pairs with a long sentence, or the others."""

    num_pairs: int
    src_tokens: int
    tgt_tokens: int
    max_tokens_in_sentence: int

    @classmethod
    def mixed(cls, classes: Sequence[_LengthClass], copies: Sequence[float]) -> _LengthClass:
        """One class of all directions, each of which comes as often as `copies` says, on average."""
        sizes = [(one.num_pairs, one.src_tokens, one.tgt_tokens) for one in classes]
        num_pairs, src_tokens, tgt_tokens = np.array(copies) @ np.array(sizes, dtype=np.float64)
        longest = max(one.max_tokens_in_sentence for one in classes)
        return cls(round(num_pairs), round(src_tokens), round(tgt_tokens), longest)

    def after_sampling(self, cost: SamplingCost, *, limit: int) -> _LengthClass:
        """The same pairs with the tokens that sampling makes of them; no sentence grows beyond `limit`."""
        src_tokens, tgt_tokens = round(self.src_tokens * cost.src_growth), round(self.tgt_tokens * cost.tgt_growth)
        longest = math.ceil(self.max_tokens_in_sentence * max(cost.src_growth, cost.tgt_growth) * _UNEVEN_GROWTH)
        longest = max(self.max_tokens_in_sentence, min(longest, limit))
        return _LengthClass(self.num_pairs, src_tokens, tgt_tokens, longest)

    def pairs_in_update(self, budgets: TokenBudgets) -> int:
        """The average number of pairs in a full update of this class."""
        shares = (budgets.src / max(self.src_tokens, 1), budgets.tgt / max(self.tgt_tokens, 1))
        return math.ceil(self.num_pairs * min(1, *shares))


@dataclass(frozen=True, slots=True)
class _UsablePairs:
    """The pairs that the model takes, those with a long sentence first; each class lies direction by direction.

    `by_direction` has the sizes of the two classes of each direction. `in_epoch` says how many pairs of each direction
    an epoch has. `num_left_out` pairs are too long.
    """

    pairs: Array
    by_direction: list[tuple[_LengthClass, _LengthClass]]
    in_epoch: list[int]
    num_left_out: int

    @property
    def num_long(self) -> int:
        """The pairs with a long sentence."""
        return sum(long_class.num_pairs for long_class, _ in self.by_direction)

    @property
    def classes(self) -> list[_LengthClass]:
        """The sizes of the two classes in an epoch; the mean over epochs."""
        sizes = [max(1, sum(one.num_pairs for one in classes)) for classes in self.by_direction]
        copies = [number / size for number, size in zip(self.in_epoch, sizes, strict=True)]
        return [_LengthClass.mixed(classes, copies) for classes in zip(*self.by_direction, strict=True)]

    def repeats(self, *, seed: int, epoch: int) -> Array:
        """How often an epoch has each pair, [n].

        A direction gives whole copies of its pairs, and a remainder for which they take turns from epoch to epoch.
        """
        repeats = np.zeros(int(self.pairs.max(initial=0)) + 1, dtype=np.uint32)  # by pair
        starts = [0, self.num_long]
        for direction, (classes, wanted) in enumerate(zip(self.by_direction, self.in_epoch, strict=True)):
            stops = [start + one.num_pairs for start, one in zip(starts, classes, strict=True)]
            own = np.concatenate([self.pairs[start:stop] for start, stop in zip(starts, stops, strict=True)])
            starts = stops
            copies, remainder = divmod(wanted, max(len(own), 1))
            repeats[own] = copies
            own.sort()  # sampled pieces may move a pair to the other class
            _generator(seed, direction, purpose=_TURNS_PURPOSE).shuffle(own)
            first = epoch * remainder % max(len(own), 1)
            repeats[own[first : first + remainder]] += 1
            repeats[own[: max(first + remainder - len(own), 0)]] += 1
        return repeats[self.pairs]


def _invariants_of(usable: _UsablePairs, classes: Sequence[_LengthClass], *, batch_tokens: int) -> EpochInvariants:
    """The invariants of epochs whose pairs are in `classes`."""
    max_tokens_in_sentence = max(length_class.max_tokens_in_sentence for length_class in classes)
    budgets = token_budgets(
        batch_tokens=batch_tokens,
        num_pairs=sum(length_class.num_pairs for length_class in classes),
        src_tokens=sum(length_class.src_tokens for length_class in classes),
        tgt_tokens=sum(length_class.tgt_tokens for length_class in classes),
        max_tokens_in_sentence=max_tokens_in_sentence,
    )
    return EpochInvariants(
        num_pairs_left_out=usable.num_left_out,
        budgets=budgets,
        pairs_in_update=max(length_class.pairs_in_update(budgets) for length_class in classes),
        max_tokens_in_sentence=max_tokens_in_sentence,
    )


def _cut(blocks_of_lengths: Iterable[Array], *, budgets: TokenBudgets) -> Array:
    """Where each update begins, and where the last one ends; the lengths of the pairs come in blocks [2, n].

    An update ends before the pair by which a side would exceed its budget. A pair beyond the budget is an update of its
    own. Numbers of tokens are [2]: source, then target.
    """
    limits = np.array([budgets.src, budgets.tgt])
    bounds, num_pairs = [0], 0
    tokens = tokens_in_updates = np.zeros(2, dtype=np.int64)  # of all pairs so far, and of the finished updates
    for lengths in blocks_of_lengths:
        ends = tokens[:, None] + np.cumsum(lengths, axis=1)
        while True:
            sides = zip(ends, tokens_in_updates + limits, strict=True)
            num_fitting = min(int(np.searchsorted(ends_of_side, limit, side="right")) for ends_of_side, limit in sides)
            if num_fitting == ends.shape[1]:
                break
            if num_pairs + num_fitting == bounds[-1]:
                num_fitting += 1
            bounds.append(num_pairs + num_fitting)
            tokens_in_updates = ends[:, num_fitting - 1] if num_fitting else tokens
        num_pairs += ends.shape[1]
        tokens = ends[:, -1]
    last = [num_pairs] if bounds[-1] < num_pairs else []
    return np.array([*bounds, *last], dtype=np.int64)


def _even_out_last_updates(bounds: Array, pair_order: Array, data: TokenPairs, *, budgets: TokenBudgets) -> Array:
    """The bounds after the last few updates were cut again, so that these updates are about equally full.

    The order of the pairs and the number of updates stay, and both budgets are kept. All bounds stay if the last update
    is nearly full, or if no even cut keeps the budgets.
    """
    num_updates = len(bounds) - 1
    if num_updates < 2:
        return bounds
    limits = np.array([[budgets.src], [budgets.tgt]])
    last_update = data.lengths(pair_order[bounds[-2] :])
    old_fill = float((last_update.sum(axis=1, keepdims=True) / limits).max())
    if old_fill >= _NEARLY_FULL:
        return bounds
    for num_recut in range(min(num_updates, _MAX_RECUT_UPDATES), 1, -1):
        first_pair = bounds[-1 - num_recut]
        lengths = data.lengths(pair_order[first_pair:])
        # By the sum of both fills: a compromise, because one cut serves both sides.
        fill_so_far = np.cumsum((lengths / limits).sum(axis=0))
        even_fills = fill_so_far[-1] * np.arange(1, num_recut) / num_recut
        starts = np.concatenate([[0], np.searchsorted(fill_so_far, even_fills, side="right")])
        sizes = np.diff(starts, append=lengths.shape[1])
        if sizes.min() < 1:
            continue
        tokens = np.add.reduceat(lengths, starts, axis=1)  # [2, num_recut]
        keeps_budgets = (tokens <= limits).all(axis=0) | (sizes == 1)
        new_fills = (tokens / limits).max(axis=0)
        if keeps_budgets.all() and new_fills.min() > old_fill:
            return np.concatenate([bounds[: -1 - num_recut], first_pair + starts, bounds[-1:]])
    return bounds


def _usable_pairs(data: TokenPairs, *, max_positions: int, mixture: Mixture | None) -> _UsablePairs:
    """The pairs that the model takes."""
    pairs = mapped_array(len(data), largest=len(data))
    max_short = min(SHORT_SENTENCE_TOKENS, max_positions)
    bounds = [*accumulate([len(data)] if mixture is None else mixture.sizes, initial=0)]
    by_class, num_usable = list[list[_LengthClass]](), 0
    for longer_than, up_to in ((SHORT_SENTENCE_TOKENS, max_positions), (0, max_short)):
        by_class.append([])
        for start, stop in pairwise(bounds):
            found = _collect_class(pairs[num_usable:], data, start, stop, longer_than=longer_than, up_to=up_to)
            by_class[-1].append(found)
            num_usable += found.num_pairs
    by_direction = [*zip(*by_class, strict=True)]
    in_epoch = [sum(one.num_pairs for one in classes) for classes in by_direction]
    if mixture is not None:
        in_epoch = pairs_in_epoch(in_epoch, temperature=mixture.temperature)
    return _UsablePairs(pairs[:num_usable], by_direction, in_epoch, num_left_out=len(data) - num_usable)


def _collect_class(
    pairs: Array, data: TokenPairs, first: int, end: int, *, longer_than: int, up_to: int
) -> _LengthClass:
    """Write the pairs of a class, of those from `first` to before `end`, to the beginning of `pairs`; return its size.

    The longer sentence of each pair has more than `longer_than` tokens, and at most `up_to`.
    """
    num_pairs, tokens, longest = 0, np.zeros(2, dtype=np.int64), 0
    for start in range(first, end, _BLOCK_PAIRS):
        stop = min(start + _BLOCK_PAIRS, end)
        lengths = [np.diff(side.offsets[start : stop + 1]) for side in (data.src, data.tgt)]
        longer = np.maximum(*lengths)
        chosen = np.flatnonzero((longer > longer_than) & (longer <= up_to))
        pairs[num_pairs : num_pairs + len(chosen)] = start + chosen
        num_pairs += len(chosen)
        tokens += [side[chosen].sum(dtype=np.int64) for side in lengths]
        longest = max(longest, int(longer[chosen].max(initial=0)))
    return _LengthClass(num_pairs, int(tokens[0]), int(tokens[1]), longest)


def _longest_pairs(usable: Array, data: TokenPairs, *, budget: int) -> Array:
    """The longest pairs, longest first, up to and with the pair by which a side exceeds the budget."""
    longest, shortest_kept = usable[:0], 0
    for start in range(0, len(usable), _BLOCK_PAIRS):
        block = usable[start : start + _BLOCK_PAIRS]
        is_longer = data.lengths(block).max(axis=0) > shortest_kept
        candidates = np.concatenate([longest, block[is_longer]])
        lengths = data.lengths(candidates)
        by_length = np.argsort(-lengths.max(axis=0), kind="stable")
        longest, lengths = candidates[by_length], lengths[:, by_length]
        num_in_budget = int(np.searchsorted(lengths.cumsum(axis=1).max(axis=0), budget, side="right"))
        if num_in_budget < len(longest):
            longest = longest[: num_in_budget + 1]
            shortest_kept = int(lengths[:, num_in_budget].max())
    return longest
