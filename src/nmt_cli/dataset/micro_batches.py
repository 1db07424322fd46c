"""Micro-batches: the one shape that all of a training have, and an update's pairs dealt into them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nmt_cli.dataset.store import Array, Rows
from nmt_cli.model.packing import SHORT

_MARGIN = 0.003  # by which the side with fewer tokens may exceed the data's ratio of the sides
_OPEN_PAIRS = 1.5  # average number of pairs by which a full update falls short of its budget
_LARGEST_MULTIPLE, _SMALLEST_MULTIPLE = 128, 8
_DEVIATIONS = 4  # of the number of pairs in an update from its mean: 6 and more where lengths vary as they do in text
_CANDIDATES = 64  # rows of a micro-batch that are looked at for a swap: one of 4,096 swaps fits to about a token
_SWAPS = 16  # for each micro-batch, before another round of all devices is taken


@dataclass(frozen=True, slots=True)
class TokenBudgets:
    """The most tokens of each side that an update has."""

    src: int
    tgt: int


@dataclass(frozen=True, slots=True)
class MicroBatchShape:
    """Slots of each side, sentences in them, dummies included, and a power of two that none of the data's exceeds."""

    src_slots: int
    tgt_slots: int
    sentences: int
    longest: int

    def num_dummies(self, *, src_tokens: int, tgt_tokens: int) -> int:
        """Dummy sentences of at most SHORT slots that cover what so many tokens leave empty on either side."""
        return -(-max(self.src_slots - src_tokens, self.tgt_slots - tgt_tokens) // SHORT)

    def holds(self, *, src_tokens: int, tgt_tokens: int, num_pairs: int) -> bool:
        """True where so many pairs with so many tokens fit, with the dummies that they leave room for."""
        if src_tokens > self.src_slots or tgt_tokens > self.tgt_slots:
            return False
        return num_pairs + self.num_dummies(src_tokens=src_tokens, tgt_tokens=tgt_tokens) <= self.sentences


def token_budgets(*, batch_tokens: int, num_pairs: int, src_tokens: int, tgt_tokens: int, longest: int) -> TokenBudgets:
    """At most `batch_tokens` for the side of the data that has more tokens; for the other, in proportion and more.

    The budget is lowered until the last update of an epoch is about as full as the others. In an epoch of few updates
    this matters. A sentence of `longest` pieces fits either side, unless it is longer than `batch_tokens`.
    """
    larger = max(src_tokens, tgt_tokens)
    even = larger
    if larger > batch_tokens:
        left_open = _OPEN_PAIRS * larger / num_pairs
        updates = math.ceil(larger / max(batch_tokens - left_open, 1))
        even = min(batch_tokens, math.ceil(larger / updates + left_open))
    src, tgt = (
        min(batch_tokens, max(longest, min(even, math.ceil(even * tokens / max(larger, 1) * (1 + _MARGIN)))))
        for tokens in (src_tokens, tgt_tokens)
    )
    return TokenBudgets(src, tgt)


def accumulation(*, batch_tokens: int, max_tokens: int, world_size: int) -> int:
    """Micro-batches that each device runs for a full update."""
    return -(-batch_tokens // (max_tokens * world_size))


def micro_batch_shape(
    limits: TokenBudgets, *, count: int, pairs_in_update: int, longest: int, max_tokens: int
) -> MicroBatchShape:
    """The shape of the `count` micro-batches of an update whose sides have their budgets.

    A side has at most `max_tokens` slots, and at least `longest`, the data's longest sentence. `pairs_in_update` is how
    many pairs a full update has on average (`Plan.pairs_in_update`).
    """
    src, tgt = (max(longest, min(max_tokens, _round_up(-(-limit // count)))) for limit in (limits.src, limits.tgt))
    most_pairs = math.ceil((pairs_in_update + _DEVIATIONS * math.sqrt(pairs_in_update)) / count)
    of_empty = -(-max(src, tgt) // SHORT)
    sentences = max(most_pairs + of_empty // 50 + 2, of_empty + 1)
    return MicroBatchShape(
        src, tgt, _multiple_of(sentences, _SMALLEST_MULTIPLE), max(SHORT, 1 << (longest - 1).bit_length())
    )


def _round_up(slots: int) -> int:
    """To a multiple of the largest power of two that is at most a 400th of it, within bounds."""
    multiple = _LARGEST_MULTIPLE
    while multiple > _SMALLEST_MULTIPLE and multiple * 400 > slots:
        multiple //= 2
    return _multiple_of(slots, multiple)


def _multiple_of(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def deal_micro_batches(rows: Rows, *, shape: MicroBatchShape, count: int, world_size: int) -> list[Rows]:
    """An update's rows in `count` micro-batches that fit the shape, or a multiple of `world_size` more where need be.

    Micro-batch i goes to rank i % world_size; one may be empty where an update has few pairs. Within each, rows ascend
    by target, then source length. Raises ValueError where a single sentence does not fit.
    """
    src, tgt = (rows[f"{side}_length"].astype(np.int64) for side in ("src", "tgt"))
    for lengths, slots in ((src, shape.src_slots), (tgt, shape.tgt_slots)):
        if (longest := int(lengths.max(initial=0))) > slots:
            raise ValueError(f"a sentence of {longest} pieces does not fit {slots} slots")
    place = np.lexsort((src, tgt))
    rows, src, tgt = rows[place], src[place], tgt[place]
    while True:
        part = _serpentine(len(rows), count)
        if _evened_out(part, src, tgt, shape=shape, count=count):
            return [rows[part == number] for number in range(count)]
        count += world_size


def first_rows_that_fit(rows: Rows, *, shape: MicroBatchShape) -> Rows:
    """The first rows, at least one, that fit the shape."""
    src, tgt = (np.cumsum(rows[f"{side}_length"], dtype=np.int64) for side in ("src", "tgt"))
    size = len(rows)
    while size > 1 and not shape.holds(src_tokens=int(src[size - 1]), tgt_tokens=int(tgt[size - 1]), num_pairs=size):
        size -= 1
    return rows[:size]


def _serpentine(num_rows: int, count: int) -> Array:
    """To and fro over the micro-batches, from the last row, the longest, to the first: the micro-batch of each row."""
    lap, within = np.divmod(np.arange(num_rows)[::-1], count)
    return np.where(lap % 2 == 1, count - 1 - within, within)


def _evened_out(part: Array, src: Array, tgt: Array, *, shape: MicroBatchShape, count: int) -> bool:
    """True where every micro-batch fits, after swaps of rows that are made in `part`.

    Each swap is one of the micro-batch that exceeds the shape most with another, the one that most reduces by how much
    both exceed it; a row may also be given and none taken.
    """
    slots = np.array([shape.src_slots, shape.tgt_slots])
    lengths = np.stack([src, tgt], axis=1)
    if (lengths.sum(axis=0) > count * slots).any():
        return False
    sums = np.stack([np.bincount(part, weights=side, minlength=count) for side in (src, tgt)], axis=1).astype(np.int64)
    for _ in range(_SWAPS * count):
        excess = np.maximum(sums - slots, 0).sum(axis=1)
        if not excess.any():
            break
        worst = int(excess.argmax())
        room = ((slots - sums) / slots).min(axis=1)
        for other in np.argsort(-room, kind="stable").tolist():
            if other != worst and _swap(part, lengths, sums, slots, worst, other):
                break
        else:
            return False
    sizes = np.bincount(part, minlength=count)
    return all(
        size == 0 or shape.holds(src_tokens=src_sum, tgt_tokens=tgt_sum, num_pairs=size)
        for size, (src_sum, tgt_sum) in zip(sizes.tolist(), sums.tolist(), strict=True)
    )


def _swap(part: Array, lengths: Array, sums: Array, slots: Array, worst: int, other: int) -> bool:
    """Make the best swap between two micro-batches in `part` and `sums`; False if no swap improves anything."""
    given, taken = (_candidates(part, number) for number in (worst, other))
    over = sums[[worst, other]] - slots
    total = np.zeros((len(given) + 1, len(taken) + 1), dtype=np.int64)
    for side in (0, 1):
        change = np.subtract.outer(_with_none(lengths[given, side]), _with_none(lengths[taken, side]))
        total += np.maximum(over[0, side] - change, 0)
        total += np.maximum(over[1, side] + change, 0)
    best = int(total.argmin())
    if total.flat[best] >= np.maximum(over, 0).sum():
        return False
    give, take = divmod(best, len(taken) + 1)
    part[given[give : give + 1]], part[taken[take : take + 1]] = other, worst
    moved = lengths[given[give : give + 1]].sum(axis=0) - lengths[taken[take : take + 1]].sum(axis=0)
    sums[worst] -= moved
    sums[other] += moved
    return True


def _candidates(part: Array, number: int) -> Array:
    """Rows of a micro-batch, of all lengths."""
    rows = np.flatnonzero(part == number)
    return rows[:: max(1, -(-len(rows) // _CANDIDATES))]


def _with_none(lengths: Array) -> Array:
    """The lengths of rows, and of none."""
    return np.append(lengths, 0)
