"""Micro-batches: one shape for all micro-batches of a training, and the pairs of an update dealt into this shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nmt_cli.dataset.plan_computation import TokenBudgets
from nmt_cli.dataset.prepared_data import Array, Rows
from nmt_cli.devices import SHORT_SENTENCE_TOKENS
from nmt_cli.model.packing import round_up

# Slots are rounded up to a multiple of 128 unless that could add more than 1/400 to a side; then of 64, 32, 16 or 8.
_LARGEST_MULTIPLE, _SMALLEST_MULTIPLE, _MIN_MULTIPLES_PER_SIDE = 128, 8, 400
# The number of pairs that fill an update varies: its standard deviation in text is under 2/3 of the square root of the
# mean. A micro-batch has room for the mean and 4 of these square roots, which are at least 6 standard deviations.
_PAIRS_HEADROOM = 4
# In a full micro-batch, at most about one slot of 50 is empty: docs/design/data.md, "Two classes of length".
_SLOTS_PER_EMPTY_SLOT = 50
# Rows of each micro-batch that a swap chooses from: among 64 * 64 swaps, one moves about the tokens in excess.
_SWAP_CANDIDATES = 64
# If this many swaps do not help, each device gets another micro-batch: needed by none of the 1,085 updates measured.
_SWAPS_PER_MICRO_BATCH = 16


@dataclass(frozen=True, slots=True)
class MicroBatchShape:
    """The slots of a micro-batch for the tokens of each side, and the most sentences that it holds, dummies included.

    Dummies are sentences of padding that fill the slots without tokens. `length_bound` is a power of two that no
    sentence of the data exceeds.
    """

    src_slots: int
    tgt_slots: int
    max_sentences: int
    length_bound: int

    def for_passes(self, num_passes: int) -> MicroBatchShape:
        """The shape of a batch that holds each pair `num_passes` times."""
        src_slots, tgt_slots = num_passes * self.src_slots, num_passes * self.tgt_slots
        return MicroBatchShape(src_slots, tgt_slots, num_passes * self.max_sentences, self.length_bound)

    def num_dummies(self, *, src_tokens: int, tgt_tokens: int) -> int:
        """The dummies, of SHORT_SENTENCE_TOKENS slots or less, that cover the slots without tokens on both sides."""
        return math.ceil(max(self.src_slots - src_tokens, self.tgt_slots - tgt_tokens) / SHORT_SENTENCE_TOKENS)

    def holds(self, *, src_tokens: int, tgt_tokens: int, num_pairs: int) -> bool:
        """Whether the shape has room for the pairs and for the dummies that they leave."""
        if src_tokens > self.src_slots or tgt_tokens > self.tgt_slots:
            return False
        return num_pairs + self.num_dummies(src_tokens=src_tokens, tgt_tokens=tgt_tokens) <= self.max_sentences


def accumulation_steps(*, batch_tokens: int, max_tokens: int, world_size: int) -> int:
    """Micro-batches that each device runs for a full update."""
    return math.ceil(batch_tokens / (max_tokens * world_size))


def micro_batch_shape(
    budgets: TokenBudgets, *, num_micro_batches: int, pairs_in_update: int, max_tokens_in_sentence: int, max_tokens: int
) -> MicroBatchShape:
    """The shape of the `num_micro_batches` micro-batches of an update whose sides have their budgets.

    A side has at most `max_tokens` slots, and room for the longest sentence. `pairs_in_update` is the average number of
    pairs in a full update (`EpochInvariants`).
    """
    src_slots, tgt_slots = (
        max(max_tokens_in_sentence, min(max_tokens, _round_up_slots(math.ceil(budget / num_micro_batches))))
        for budget in (budgets.src, budgets.tgt)
    )
    most_pairs = math.ceil((pairs_in_update + _PAIRS_HEADROOM * math.sqrt(pairs_in_update)) / num_micro_batches)
    dummies_if_empty = math.ceil(max(src_slots, tgt_slots) / SHORT_SENTENCE_TOKENS)
    dummies_if_full = dummies_if_empty // _SLOTS_PER_EMPTY_SLOT + 2  # two for the remainders
    # The last micro-batches of an epoch may have a single pair, and dummies everywhere else.
    max_sentences = round_up(max(most_pairs + dummies_if_full, 1 + dummies_if_empty), _SMALLEST_MULTIPLE)
    length_bound = max(SHORT_SENTENCE_TOKENS, 1 << (max_tokens_in_sentence - 1).bit_length())  # the next power of two
    return MicroBatchShape(src_slots, tgt_slots, max_sentences, length_bound)


def _round_up_slots(slots: int) -> int:
    """The next multiple of a power of two that adds few slots: see `_MIN_MULTIPLES_PER_SIDE`."""
    multiple = _LARGEST_MULTIPLE
    while multiple > _SMALLEST_MULTIPLE and multiple * _MIN_MULTIPLES_PER_SIDE > slots:
        multiple //= 2
    return round_up(slots, multiple)


def deal_micro_batches(rows: Rows, *, shape: MicroBatchShape, num_micro_batches: int, world_size: int) -> list[Rows]:
    """An update's rows in `num_micro_batches` micro-batches that fit the shape, or in more if they do not fit.

    Micro-batch i is for rank i % world_size, and all ranks have equally many. Some are empty if the update has few
    pairs. Within each, rows ascend by target length, then by source length. Raises ValueError if a single sentence does
    not fit.
    """
    lengths = np.stack([rows["src_length"], rows["tgt_length"]], axis=1).astype(np.int64)
    for side_lengths, slots in zip(lengths.T, (shape.src_slots, shape.tgt_slots), strict=True):
        if (longest := int(side_lengths.max(initial=0))) > slots:
            raise ValueError(f"a sentence of {longest} pieces does not fit {slots} slots")
    by_length = np.lexsort((lengths[:, 0], lengths[:, 1]))
    rows, lengths = rows[by_length], lengths[by_length]
    while True:
        micro_batch_of_row = _deal_in_serpentine(len(rows), num_micro_batches)
        if _swap_until_all_fit(micro_batch_of_row, lengths, shape=shape, num_micro_batches=num_micro_batches):
            return [rows[micro_batch_of_row == index] for index in range(num_micro_batches)]
        num_micro_batches += world_size


def first_rows_that_fit(rows: Rows, *, shape: MicroBatchShape) -> Rows:
    """The first rows, at least one, that fit the shape."""
    src_ends, tgt_ends = (np.cumsum(rows[f"{side}_length"], dtype=np.int64).tolist() for side in ("src", "tgt"))
    size = len(rows)
    while size > 1 and not shape.holds(src_tokens=src_ends[size - 1], tgt_tokens=tgt_ends[size - 1], num_pairs=size):
        size -= 1
    return rows[:size]


def _deal_in_serpentine(num_rows: int, num_micro_batches: int) -> Array:
    """The micro-batch of each row. Rows are dealt from the longest to the shortest; every second lap runs backwards."""
    lap, position = np.divmod(np.arange(num_rows)[::-1], num_micro_batches)
    return np.where(lap % 2 == 1, num_micro_batches - 1 - position, position)


def _swap_until_all_fit(
    micro_batch_of_row: Array, lengths: Array, *, shape: MicroBatchShape, num_micro_batches: int
) -> bool:
    """Swap rows between micro-batches, in place, until each fits the shape; False if some do not fit in the end.

    `micro_batch_of_row` is [n], and `lengths` of source and target [n, 2]. Each swap is between the micro-batch that
    exceeds the shape most and another, preferably the one with most room.
    """
    slots = np.array([shape.src_slots, shape.tgt_slots])
    if (lengths.sum(axis=0) > num_micro_batches * slots).any():
        return False
    tokens_of_sides = [np.bincount(micro_batch_of_row, weights=side, minlength=num_micro_batches) for side in lengths.T]
    tokens = np.stack(tokens_of_sides, axis=1).astype(np.int64)
    for _ in range(_SWAPS_PER_MICRO_BATCH * num_micro_batches):
        excess = np.maximum(tokens - slots, 0).sum(axis=1)
        if not excess.any():
            break
        worst = int(excess.argmax())
        room = ((slots - tokens) / slots).min(axis=1)
        for other in np.argsort(-room, kind="stable").tolist():
            if other != worst and _make_best_swap(micro_batch_of_row, lengths, tokens, slots, worst=worst, other=other):
                break
        else:
            return False
    sizes = np.bincount(micro_batch_of_row, minlength=num_micro_batches)
    return all(
        size == 0 or shape.holds(src_tokens=src_tokens, tgt_tokens=tgt_tokens, num_pairs=size)
        for size, (src_tokens, tgt_tokens) in zip(sizes.tolist(), tokens.tolist(), strict=True)
    )


def _make_best_swap(
    micro_batch_of_row: Array, lengths: Array, tokens: Array, slots: Array, *, worst: int, other: int
) -> bool:
    """Swap the row of `worst` and the row of `other` that most reduce their excess; False if no swap reduces it.

    A swap may also move a single row. `lengths` [n, 2], `tokens` [micro-batches, 2] and `slots` [2] count source and
    target. `micro_batch_of_row` [n] and `tokens` are changed in place.
    """
    worst_rows, other_rows = (_swap_candidates(micro_batch_of_row, index) for index in (worst, other))
    over = tokens[[worst, other]] - slots
    # The last entry stands for no row, so its length is 0.
    given_lengths, taken_lengths = (np.append(lengths[rows], [[0, 0]], axis=0) for rows in (worst_rows, other_rows))
    moved = given_lengths[:, None] - taken_lengths  # tokens, [rows given, rows taken, sides]
    excess = (np.maximum(over[0] - moved, 0) + np.maximum(over[1] + moved, 0)).sum(axis=2)
    best = int(excess.argmin())
    if excess.flat[best] >= np.maximum(over, 0).sum():
        return False
    given, taken = divmod(best, len(taken_lengths))
    if given < len(worst_rows):
        micro_batch_of_row[worst_rows[given]] = other
    if taken < len(other_rows):
        micro_batch_of_row[other_rows[taken]] = worst
    tokens[worst] -= moved[given, taken]
    tokens[other] += moved[given, taken]
    return True


def _swap_candidates(micro_batch_of_row: Array, micro_batch: int) -> Array:
    """Evenly spaced rows of a micro-batch, so rows of all lengths."""
    rows = np.flatnonzero(micro_batch_of_row == micro_batch)
    return rows[:: max(1, math.ceil(len(rows) / _SWAP_CANDIDATES))]
