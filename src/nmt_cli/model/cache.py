"""Keys and values that a decoder keeps from step to step.

Shapes: B sentences, W hypotheses a sentence, R = B * W rows, S source tokens, T steps so far, H heads, K = d_k,
V = d_v.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

_GROWTH = 32


class LayerCache:
    """One decoder layer: cross-attention keys and values per sentence, self-attention ones per row, grown in blocks."""

    def __init__(self, cross_keys: Tensor, cross_values: Tensor) -> None:
        """`cross_keys` [B, H, S, K] and `cross_values` [B, H, S, V]."""
        self.cross_keys = cross_keys
        self.cross_values = cross_values
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, k: Tensor, v: Tensor, *, step: int) -> tuple[Tensor, Tensor]:
        """All keys and values so far, [R, H, T, .], with k [R, H, 1, K] and v [R, H, 1, V] of `step`, from 0, kept."""
        self._keys = _with_room(self._keys, k, step=step)
        self._values = _with_room(self._values, v, step=step)
        self._keys[:, :, step : step + 1] = k
        self._values[:, :, step : step + 1] = v
        return self._keys[:, :, : step + 1], self._values[:, :, : step + 1]

    def select(self, *, rows: Tensor, sentences: Tensor | None) -> None:
        """Keep these rows, in this order; and these sentences, where some have left."""
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(0, rows)
            self._values = self._values.index_select(0, rows)
        if sentences is not None:
            self.cross_keys = self.cross_keys.index_select(0, sentences)
            self.cross_values = self.cross_values.index_select(0, sentences)


@dataclass(slots=True)
class DecoderCache:
    """All layers, and which source tokens are real, [B, 1, 1, S]; None where all are."""

    layers: list[LayerCache]
    source_mask: Tensor | None
    step: int = 0

    def select(self, *, rows: Tensor, sentences: Tensor | None) -> None:
        """Reorder to `rows` [R'] of the present rows, and to `sentences` [B'] where some ended."""
        for layer in self.layers:
            layer.select(rows=rows, sentences=sentences)
        if sentences is not None and self.source_mask is not None:
            self.source_mask = self.source_mask.index_select(0, sentences)


def _with_room(kept: Tensor | None, new: Tensor, *, step: int) -> Tensor:
    """A tensor with room for `step`, holding what was kept."""
    if kept is not None and step < kept.size(2):
        return kept
    shape = (new.size(0), new.size(1), step + _GROWTH, new.size(3))
    grown = new.new_empty(shape)
    if kept is not None:
        grown[:, :, :step] = kept[:, :, :step]
    return grown
