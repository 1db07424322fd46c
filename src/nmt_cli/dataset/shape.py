"""The one shape that all micro-batches of a training have: slots on both sides, and sentences.

It follows from the recipe, the data and the number of devices, never from what was trained before: a kernel, graph or
plan of memory made for it serves the whole run, and after a resume the same one is made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nmt_cli.model.packing import SHORT

_MARGIN = 0.003  # by which the side with fewer tokens may exceed the data's ratio of the sides
_OPEN_PAIRS = 1.5  # pairs of average length that a full update could have taken more, on average, where a side is full
_LARGEST_MULTIPLE, _SMALLEST_MULTIPLE = 128, 8
_DEVIATIONS = 4  # of the number of pairs in an update from its mean: 6 and more where lengths vary as they do in text


@dataclass(frozen=True, slots=True)
class Budgets:
    """The most tokens of each side that an update has."""

    src: int
    tgt: int


@dataclass(frozen=True, slots=True)
class Shape:
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


def budgets(*, batch_tokens: int, num_pairs: int, src_tokens: int, tgt_tokens: int, longest: int) -> Budgets:
    """At most `batch_tokens` for the side of the data that has more tokens; for the other, in proportion and more.

    As much less than `batch_tokens` as lets the last update of an epoch be about as full as the others, which counts
    where there are few. A sentence of `longest` pieces fits either side, unless it is longer than `batch_tokens`.
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
    return Budgets(src, tgt)


def accumulation(*, batch_tokens: int, max_tokens: int, world_size: int) -> int:
    """Micro-batches that each device runs for a full update."""
    return -(-batch_tokens // (max_tokens * world_size))


def micro_shape(limits: Budgets, *, count: int, pairs_in_update: int, longest: int, max_tokens: int) -> Shape:
    """The shape of the `count` micro-batches of an update whose sides have their budgets.

    A side has at most `max_tokens` slots, and at least `longest`, the data's longest sentence. `pairs_in_update` is how
    many pairs a full update has on average (`Plan.pairs_in_update`).
    """
    src, tgt = (max(longest, min(max_tokens, _round_up(-(-limit // count)))) for limit in (limits.src, limits.tgt))
    most_pairs = math.ceil((pairs_in_update + _DEVIATIONS * math.sqrt(pairs_in_update)) / count)
    of_empty = -(-max(src, tgt) // SHORT)
    sentences = max(most_pairs + of_empty // 50 + 2, of_empty + 1)
    return Shape(src, tgt, _multiple_of(sentences, _SMALLEST_MULTIPLE), max(SHORT, 1 << (longest - 1).bit_length()))


def _round_up(slots: int) -> int:
    """To a multiple of the largest power of two that is at most a 400th of it, within bounds."""
    multiple = _LARGEST_MULTIPLE
    while multiple > _SMALLEST_MULTIPLE and multiple * 400 > slots:
        multiple //= 2
    return _multiple_of(slots, multiple)


def _multiple_of(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
