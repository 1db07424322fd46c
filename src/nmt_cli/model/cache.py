"""Keys and values that a decoder keeps from step to step.

Shapes: B sentences, W hypotheses a sentence, R = B * W rows, S source tokens, N slots in use, C slots there are,
H heads, K = d_k, V = d_v.

Every hypothesis that was ever open has a slot of its sentence, written once and never moved. Which slots are a
hypothesis's own past is a mask: when hypotheses are chosen, the mask is, and keys and values stay where they are. All
hypotheses of a sentence then attend to its slots in one product.

Where a CPU multiplies in bf16, attention sees a multiple of 16 slots and source tokens, those too many masked: oneDNN
prepares such a product anew for each new shape, which takes longer than a small product itself (docs/LOG.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# Steps for which there is room at a time.
_GROWTH = 32
# Slots and source tokens are seen in multiples of this where a new shape costs something.
_GRAIN = 16


class Slots(NamedTuple):
    """A step's slots are those from `start` to `end`; attention sees `seen`; memory is taken for `room`."""

    start: int
    end: int
    seen: int
    room: int


# Of x [R, D], positions [R], their slots, and what is added to scores of slots and of the source.
Step = Callable[[Tensor, Tensor, Slots, Tensor | None, Tensor | None], Tensor]


class LayerCache:
    """One decoder layer: cross-attention keys and values per source token, self-attention ones per slot."""

    def __init__(self, cross_keys: Tensor, cross_values: Tensor) -> None:
        """`cross_keys` [B, H, S, K] and `cross_values` [B, H, S, V]."""
        self.cross_keys = cross_keys
        self.cross_values = cross_values
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, k: Tensor, v: Tensor, slots: Slots) -> tuple[Tensor, Tensor]:
        """The keys and values that attention sees, [B, H, seen, .], with k [B, H, W, K] and v [B, H, W, V] written.

        Slots not written yet are 0.
        """
        self._keys = _with_room(self._keys, k, slots)
        self._values = _with_room(self._values, v, slots)
        self._keys[:, :, slots.start : slots.end] = k
        self._values[:, :, slots.start : slots.end] = v
        return self._keys[:, :, : slots.seen], self._values[:, :, : slots.seen]

    def keep(self, sentences: Tensor) -> None:
        """Keep the sentences [B'] only."""
        self.cross_keys = self.cross_keys.index_select(0, sentences)
        self.cross_values = self.cross_values.index_select(0, sentences)
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(0, sentences)
            self._values = self._values.index_select(0, sentences)


@dataclass(slots=True)
class DecoderCache:
    """All layers, what each does with a token a row, and what is added to scores of source tokens, [B, 1, 1, S].

    The last is 0, or -inf at padding; None for nothing.
    `past` [B, W, C] is what is added to scores of slots: 0 at those of each hypothesis; None while it is every slot.
    """

    layers: list[LayerCache]
    steps: Sequence[Step]
    source_bias: Tensor | None
    num_sentences: int
    grain: int
    step: int = 0
    num_slots: int = 0
    past: Tensor | None = None

    def open(self, num_rows: int, *, like: Tensor) -> tuple[Slots, Tensor | None]:
        """Slots for the next piece of each of R rows; what is added to scores of slots, [B, 1, W, seen], or None.

        The latter in the precision that scores are summed in, and on the device of `like`.
        """
        width = num_rows // self.num_sentences
        start, self.num_slots = self.num_slots, self.num_slots + width
        self.step += 1
        seen = rounded(self.num_slots, self.grain)
        # A product of a part of a tensor copies it in bf16: there is no more room than is seen.
        slots = Slots(start, self.num_slots, seen, seen + _GROWTH * width if self.grain == 1 else seen)
        if self.past is None:
            if width > 1:
                raise ValueError("a sentence has several hypotheses from its second step on")
            return slots, None if self.grain == 1 else _one_past(slots, like)
        if self.past.size(2) < seen:
            room = self.past.new_full((*self.past.shape[:2], slots.room - start), -torch.inf)
            self.past = torch.cat([self.past[:, :, :start], room], dim=2)
        self.past[:, :, start : slots.end].diagonal(dim1=1, dim2=2).zero_()
        return slots, self.past[:, None, :, :seen]

    def select(self, *, rows: Tensor, sentences: Tensor | None) -> None:
        """Go on from `rows` [R'] of the present rows, those of a sentence side by side, and with `sentences` [B'] only.

        Where `sentences` is None all stay.
        """
        remaining = self.num_sentences if sentences is None else len(sentences)
        width = len(rows) // remaining
        if self.past is None and width > 1:
            shape = (self.num_sentences, 1, self.num_slots)
            self.past = torch.zeros(shape, dtype=sums_of(self.layers[0].cross_keys), device=rows.device)
        if self.past is not None:
            self.past = self.past.flatten(0, 1).index_select(0, rows).view(remaining, width, -1)
        if sentences is not None:
            self.num_sentences = remaining
            for layer in self.layers:
                layer.keep(sentences)
            if self.source_bias is not None:
                self.source_bias = self.source_bias.index_select(0, sentences)


def grain_of(x: Tensor) -> int:
    """The multiple in which attention over tensors like x sees slots and source tokens."""
    return _GRAIN if x.device.type == "cpu" and x.dtype == torch.bfloat16 else 1


def sums_of(x: Tensor) -> torch.dtype:
    """The precision in which scores of tensors like x are summed: float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)


def rounded(number: int, grain: int) -> int:
    """The next multiple of `grain`."""
    return -(-number // grain) * grain


def _one_past(slots: Slots, like: Tensor) -> Tensor:
    """What is added where every slot in use is a hypothesis's own, [1, 1, 1, seen]."""
    bias = like.new_zeros(1, 1, 1, slots.seen, dtype=sums_of(like))
    bias[..., slots.end :] = -torch.inf
    return bias


def _with_room(kept: Tensor | None, new: Tensor, slots: Slots) -> Tensor:
    """A tensor with room for `slots`, those before their start as in `kept`."""
    if kept is not None and slots.seen <= kept.size(2):
        return kept
    grown = new.new_empty(new.size(0), new.size(1), slots.room, new.size(3))
    grown[:, :, slots.start :] = 0
    if kept is not None:
        grown[:, :, : slots.start] = kept[:, :, : slots.start]
    return grown
