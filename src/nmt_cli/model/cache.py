"""Keys and values that a decoder keeps from step to step.

Shapes: B sentences, W hypotheses a sentence, R = B * W rows, S source tokens, N slots in use, C slots there are,
H heads, K = d_k, V = d_v.

Every hypothesis that was ever open has a slot of its sentence, written once and never moved. Which slots are a
hypothesis's own past is a mask: when hypotheses are chosen, the mask is, and keys and values stay where they are. All
hypotheses of a sentence then attend to its slots in one product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_GROWTH = 32


class LayerCache:
    """One decoder layer: cross-attention keys and values per source token, self-attention ones per slot."""

    def __init__(self, cross_keys: Tensor, cross_values: Tensor) -> None:
        """`cross_keys` [B, H, S, K] and `cross_values` [B, H, S, V]."""
        self.cross_keys = cross_keys
        self.cross_values = cross_values
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, k: Tensor, v: Tensor, *, start: int) -> tuple[Tensor, Tensor]:
        """All keys and values so far, [B, H, N, .], with k [B, H, W, K] and v [B, H, W, V] in slots from `start`."""
        end = start + k.size(2)
        self._keys = _with_room(self._keys, k, used=start)
        self._values = _with_room(self._values, v, used=start)
        self._keys[:, :, start:end] = k
        self._values[:, :, start:end] = v
        return self._keys[:, :, :end], self._values[:, :, :end]

    def keep(self, sentences: Tensor) -> None:
        """Keep the sentences [B'] only."""
        self.cross_keys = self.cross_keys.index_select(0, sentences)
        self.cross_values = self.cross_values.index_select(0, sentences)
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(0, sentences)
            self._values = self._values.index_select(0, sentences)


@dataclass(slots=True)
class DecoderCache:
    """All layers, and which source tokens are real, [B, 1, 1, S]; None where all are.

    `past` [B, W, N] says which slots belong to each hypothesis; None while it is every slot, as with one hypothesis a
    sentence.
    """

    layers: list[LayerCache]
    source_mask: Tensor | None
    num_sentences: int
    step: int = 0
    num_slots: int = 0
    past: Tensor | None = None

    def open(self, num_rows: int) -> Tensor | None:
        """Slots for the next piece of each of R rows; which slots each may look at, [B, 1, W, N], None for all."""
        width = num_rows // self.num_sentences
        self.num_slots += width
        self.step += 1
        if self.past is None:
            if width > 1:
                raise ValueError("a sentence has several hypotheses from its second step on")
            return None
        own = torch.eye(width, dtype=torch.bool, device=self.past.device)
        self.past = torch.cat([self.past, own.expand(self.num_sentences, -1, -1)], dim=2)
        return self.past[:, None]

    def select(self, *, rows: Tensor, sentences: Tensor | None) -> None:
        """Go on from `rows` [R'] of the present rows, those of a sentence side by side, and with `sentences` [B'] only.

        Where `sentences` is None all stay.
        """
        remaining = self.num_sentences if sentences is None else len(sentences)
        width = len(rows) // remaining
        if self.past is None and width > 1:
            shape = (self.num_sentences, 1, self.num_slots)
            self.past = torch.ones(shape, dtype=torch.bool, device=rows.device)
        if self.past is not None:
            self.past = self.past.flatten(0, 1)[rows].view(remaining, width, -1)
        if sentences is not None:
            self.num_sentences = remaining
            for layer in self.layers:
                layer.keep(sentences)
            if self.source_mask is not None:
                self.source_mask = self.source_mask.index_select(0, sentences)


def _with_room(kept: Tensor | None, new: Tensor, *, used: int) -> Tensor:
    """A tensor with room for `new` after the `used` slots of `kept`."""
    needed = used + new.size(2)
    if kept is not None and needed <= kept.size(2):
        return kept
    grown = new.new_empty(new.size(0), new.size(1), needed + _GROWTH * new.size(2), new.size(3))
    if kept is not None:
        grown[:, :, :used] = kept[:, :, :used]
    return grown
