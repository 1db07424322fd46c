"""Batches: an update's pairs dealt into micro-batches of one shape, and packed end to end as the model takes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt_cli.dataset.plan import TokenBudgets
from nmt_cli.dataset.store import Array, Rows, TokenFile, TokenPairs, num_tokens
from nmt_cli.devices import SHORT_SENTENCE_TOKENS
from nmt_cli.model.packing import Packed
from nmt_cli.tokenization.tokenizer import BOS, PAD

# Slots are rounded up to a multiple of 128 unless that could add more than 1/400 to a side; then of 64, 32, 16 or 8.
_LARGEST_MULTIPLE, _SMALLEST_MULTIPLE, _MIN_MULTIPLES_PER_SIDE = 128, 8, 400
# The number of pairs that fill an update varies: its standard deviation in text is under 2/3 of the square root of the
# mean. A micro-batch has room for 4 of these square roots more than the mean, so for 6 standard deviations.
_PAIRS_HEADROOM = 4
# In a full micro-batch, at most about one slot of 50 is empty: docs/design/data.md, "Two classes of length".
_SLOTS_PER_EMPTY_SLOT = 50
# Rows of each micro-batch that a swap chooses from: among 64 * 64 swaps, one moves about the tokens in excess.
_SWAP_CANDIDATES = 64
# After these, each device gets another micro-batch. None of 1,085 updates did: docs/design/data.md, "The global batch".
_SWAPS_PER_MICRO_BATCH = 16


@dataclass(frozen=True, slots=True)
class MicroBatchShape:
    """The slots of a micro-batch for the tokens of each side, and its number of sentences, dummies included.

    `length_bound` is a power of two that no sentence of the data exceeds.
    """

    src_slots: int
    tgt_slots: int
    sentences: int
    length_bound: int

    def for_passes(self, number: int) -> MicroBatchShape:
        """The shape of a batch that holds each pair `number` times."""
        return MicroBatchShape(
            number * self.src_slots, number * self.tgt_slots, number * self.sentences, length_bound=self.length_bound
        )

    def num_dummies(self, *, src_tokens: int, tgt_tokens: int) -> int:
        """Dummy sentences of at most SHORT_SENTENCE_TOKENS slots that cover the slots without tokens on either side."""
        return math.ceil(max(self.src_slots - src_tokens, self.tgt_slots - tgt_tokens) / SHORT_SENTENCE_TOKENS)

    def holds(self, *, src_tokens: int, tgt_tokens: int, num_pairs: int) -> bool:
        """True if the pairs fit, and the dummies for the rest of the slots too."""
        if src_tokens > self.src_slots or tgt_tokens > self.tgt_slots:
            return False
        return num_pairs + self.num_dummies(src_tokens=src_tokens, tgt_tokens=tgt_tokens) <= self.sentences


def accumulation_steps(*, batch_tokens: int, max_tokens: int, world_size: int) -> int:
    """Micro-batches that each device runs for a full update."""
    return math.ceil(batch_tokens / (max_tokens * world_size))


def micro_batch_shape(
    budgets: TokenBudgets, *, num_micro_batches: int, pairs_in_update: int, longest: int, max_tokens: int
) -> MicroBatchShape:
    """The shape of the `num_micro_batches` micro-batches of an update whose sides have their budgets.

    A side has at most `max_tokens` slots, and at least `longest`, the data's longest sentence. `pairs_in_update` is the
    average number of pairs in a full update (`EpochInvariants`).
    """
    src, tgt = (
        max(longest, min(max_tokens, _round_up_slots(math.ceil(budget / num_micro_batches))))
        for budget in (budgets.src, budgets.tgt)
    )
    most_pairs = math.ceil((pairs_in_update + _PAIRS_HEADROOM * math.sqrt(pairs_in_update)) / num_micro_batches)
    dummies_if_empty = math.ceil(max(src, tgt) / SHORT_SENTENCE_TOKENS)
    dummies_if_full = dummies_if_empty // _SLOTS_PER_EMPTY_SLOT + 2  # two for the remainders
    # The last micro-batches of an epoch may have a single pair, and dummies everywhere else.
    sentences = _round_up(max(most_pairs + dummies_if_full, 1 + dummies_if_empty), _SMALLEST_MULTIPLE)
    return MicroBatchShape(src, tgt, sentences, length_bound=max(SHORT_SENTENCE_TOKENS, _next_power_of_two(longest)))


def _round_up_slots(slots: int) -> int:
    """The next multiple of a power of two that adds few slots: see `_MIN_MULTIPLES_PER_SIDE`."""
    multiple = _LARGEST_MULTIPLE
    while multiple > _SMALLEST_MULTIPLE and multiple * _MIN_MULTIPLES_PER_SIDE > slots:
        multiple //= 2
    return _round_up(slots, multiple)


def _round_up(number: int, multiple: int) -> int:
    return math.ceil(number / multiple) * multiple


def _next_power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def deal_micro_batches(rows: Rows, *, shape: MicroBatchShape, num_micro_batches: int, world_size: int) -> list[Rows]:
    """An update's rows in `num_micro_batches` micro-batches that fit the shape.

    If they do not fit, each rank gets more micro-batches. Micro-batch i goes to rank i % world_size; some are empty if
    an update has few pairs. Within each, rows ascend by target length, then by source length. Raises ValueError if a
    single sentence does not fit.
    """
    src, tgt = (rows[f"{side}_length"].astype(np.int64) for side in ("src", "tgt"))
    for lengths, slots in ((src, shape.src_slots), (tgt, shape.tgt_slots)):
        if (longest := int(lengths.max(initial=0))) > slots:
            raise ValueError(f"a sentence of {longest} pieces does not fit {slots} slots")
    by_length = np.lexsort((src, tgt))
    rows, src, tgt = rows[by_length], src[by_length], tgt[by_length]
    while True:
        micro_of_row = _deal_in_serpentine(len(rows), num_micro_batches)
        if _swap_until_all_fit(micro_of_row, src, tgt, shape=shape, num_micro_batches=num_micro_batches):
            return [rows[micro_of_row == number] for number in range(num_micro_batches)]
        num_micro_batches += world_size


def first_rows_that_fit(rows: Rows, *, shape: MicroBatchShape) -> Rows:
    """The first rows, at least one, that fit the shape."""
    src, tgt = (np.cumsum(rows[f"{side}_length"], dtype=np.int64) for side in ("src", "tgt"))
    size = len(rows)
    while size > 1 and not shape.holds(src_tokens=int(src[size - 1]), tgt_tokens=int(tgt[size - 1]), num_pairs=size):
        size -= 1
    return rows[:size]


def _deal_in_serpentine(num_rows: int, num_micro_batches: int) -> Array:
    """The micro-batch of each row. Rows are dealt from the longest to the shortest; every second lap runs backwards."""
    lap, within = np.divmod(np.arange(num_rows)[::-1], num_micro_batches)
    return np.where(lap % 2 == 1, num_micro_batches - 1 - within, within)


def _swap_until_all_fit(
    micro_of_row: Array, src: Array, tgt: Array, *, shape: MicroBatchShape, num_micro_batches: int
) -> bool:
    """Swap rows in `micro_of_row` until every micro-batch fits the shape; False if that is not achieved.

    Each swap is between the micro-batch that exceeds the shape most and another.
    """
    slots = np.array([shape.src_slots, shape.tgt_slots])
    lengths = np.stack([src, tgt], axis=1)
    if (lengths.sum(axis=0) > num_micro_batches * slots).any():
        return False
    sums = np.stack(
        [np.bincount(micro_of_row, weights=side, minlength=num_micro_batches) for side in (src, tgt)], axis=1
    ).astype(np.int64)
    for _ in range(_SWAPS_PER_MICRO_BATCH * num_micro_batches):
        excess = np.maximum(sums - slots, 0).sum(axis=1)
        if not excess.any():
            break
        worst = int(excess.argmax())
        room = ((slots - sums) / slots).min(axis=1)
        for other in np.argsort(-room, kind="stable").tolist():
            if other != worst and _make_best_swap(micro_of_row, lengths, sums, slots, worst, other):
                break
        else:
            return False
    sizes = np.bincount(micro_of_row, minlength=num_micro_batches)
    return all(
        size == 0 or shape.holds(src_tokens=src_sum, tgt_tokens=tgt_sum, num_pairs=size)
        for size, (src_sum, tgt_sum) in zip(sizes.tolist(), sums.tolist(), strict=True)
    )


def _make_best_swap(micro_of_row: Array, lengths: Array, sums: Array, slots: Array, worst: int, other: int) -> bool:
    """Swap the row of `worst` and the row of `other` that most reduce their excess; False if no swap reduces it.

    A swap may also move a single row.
    """
    given, taken = (_swap_candidates(micro_of_row, number) for number in (worst, other))
    over = sums[[worst, other]] - slots
    excess = np.zeros((len(given) + 1, len(taken) + 1), dtype=np.int64)
    for side in (0, 1):
        # The last length, 0, stands for no row.
        change = np.subtract.outer(np.append(lengths[given, side], 0), np.append(lengths[taken, side], 0))
        excess += np.maximum(over[0, side] - change, 0)
        excess += np.maximum(over[1, side] + change, 0)
    best = int(excess.argmin())
    if excess.flat[best] >= np.maximum(over, 0).sum():
        return False
    give, take = divmod(best, len(taken) + 1)
    # The index after the last row selects nothing: no row is given, or none taken.
    micro_of_row[given[give : give + 1]], micro_of_row[taken[take : take + 1]] = other, worst
    moved = lengths[given[give : give + 1]].sum(axis=0) - lengths[taken[take : take + 1]].sum(axis=0)
    sums[worst] -= moved
    sums[other] += moved
    return True


def _swap_candidates(micro_of_row: Array, number: int) -> Array:
    """Some rows of a micro-batch, of all lengths."""
    rows = np.flatnonzero(micro_of_row == number)
    return rows[:: max(1, math.ceil(len(rows) / _SWAP_CANDIDATES))]


@dataclass(frozen=True, slots=True)
class Batch:
    """Source [M], the decoder's input [N] (the target shifted right behind BOS), and the gold pieces [N] to predict.

    Empty slots come last, PAD in all three. M and N are the slots of the shape, or else multiples of 128: libraries and
    compilers prepare each size that occurs, so few may occur.
    """

    source: Packed
    target: Packed
    gold: Tensor

    def tensors(self) -> list[Tensor]:
        """All tensors of the batch, always in the same order."""
        sides = (self.source, self.target)
        return [*(part for side in sides for part in (side.ids, side.cu_seqlens, side.positions)), self.gold]

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with the function applied to each of its tensors."""
        source, target = (
            replace(
                side, ids=function(side.ids), cu_seqlens=function(side.cu_seqlens), positions=function(side.positions)
            )
            for side in (self.source, self.target)
        )
        return Batch(source, target, function(self.gold))

    def to(self, device: torch.device) -> Batch:
        """The batch on `device`; from pinned memory the host does not wait for the copies."""
        return self.map_tensors(lambda tensor: tensor.to(device, non_blocking=tensor.is_pinned()))


def make_batch(
    rows: Rows, data: TokenPairs, *, device: torch.device, shape: MicroBatchShape | None, pinned: bool
) -> Batch:
    """The batch of at least one row on `device`; if `pinned`, it passes through pinned memory of the host.

    The pairs must fit the shape, if there is one. Otherwise there are as many slots as tokens, rounded up.
    """
    tokens = {side: num_tokens(rows, side=side) for side in ("src", "tgt")}
    if shape is None:
        src_slots, tgt_slots = (_round_up(count, _LARGEST_MULTIPLE) for count in tokens.values())
        num_dummies, sentences = 0, len(rows)
    elif shape.holds(src_tokens=tokens["src"], tgt_tokens=tokens["tgt"], num_pairs=len(rows)):
        src_slots, tgt_slots, sentences = shape.src_slots, shape.tgt_slots, shape.sentences
        num_dummies = shape.num_dummies(src_tokens=tokens["src"], tgt_tokens=tokens["tgt"])
    else:
        raise ValueError(f"{len(rows)} pairs of {tokens} tokens do not fit {shape}")
    source = _pack_side(data.src, rows, side="src", slots=src_slots, num_dummies=num_dummies, sentences=sentences)
    target = _pack_side(data.tgt, rows, side="tgt", slots=tgt_slots, num_dummies=num_dummies, sentences=sentences)
    if shape is not None:
        are_short = max(source.max_len, target.max_len) <= SHORT_SENTENCE_TOKENS
        bound = SHORT_SENTENCE_TOKENS if are_short else shape.length_bound
        source, target = replace(source, bound=bound), replace(target, bound=bound)
    batch = Batch(source, _decoder_input(target), target.ids)
    return (batch.map_tensors(Tensor.pin_memory) if pinned else batch).to(device)


def _pack_side(tokens: TokenFile, rows: Rows, *, side: str, slots: int, num_dummies: int, sentences: int) -> Packed:
    """The sentences of one side, laid end to end in `slots`, on the host; `bound` is the length of the longest."""
    lengths: Array = rows[f"{side}_length"].astype(np.int64)
    num_tokens = int(lengths.sum())
    num_empty = slots - num_tokens
    ids = np.full(slots, PAD, dtype=np.int64)
    ids[:num_tokens] = tokens.gather(rows[f"{side}_start"], lengths)
    # Dummies share the empty slots evenly; empty sentences after them begin and end at the last slot in use.
    cu_seqlens = np.full(sentences + 1, slots if num_dummies else num_tokens, dtype=np.int32)
    cu_seqlens[0] = 0
    np.cumsum(lengths, out=cu_seqlens[1 : len(lengths) + 1])
    ends = num_tokens + num_empty * np.arange(1, num_dummies + 1) // max(num_dummies, 1)
    cu_seqlens[len(lengths) + 1 : len(lengths) + 1 + num_dummies] = ends
    positions = np.zeros(slots, dtype=np.int64)
    positions[:num_tokens] = np.arange(num_tokens) - np.repeat(cu_seqlens[: len(lengths)], lengths)
    longest = int(lengths.max())
    return Packed(
        ids=torch.from_numpy(ids),
        cu_seqlens=torch.from_numpy(cu_seqlens),
        positions=torch.from_numpy(positions),
        num_sentences=len(lengths),
        max_len=longest,
        num_empty=num_empty,
        bound=longest,
    )


def _decoder_input(gold: Packed) -> Packed:
    """The decoder's input for gold pieces: each sentence starts with BOS and loses its EOS."""
    ids: NDArray[np.int64] = np.roll(gold.ids.numpy(), 1)
    ids[gold.cu_seqlens.numpy()[: gold.num_sentences]] = BOS
    ids[gold.num_tokens :] = PAD
    return replace(gold, ids=torch.from_numpy(ids))
