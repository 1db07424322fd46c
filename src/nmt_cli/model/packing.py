"""Sentences laid end to end, and the way to a padded rectangle and back.

N tokens of B sentences, S or T the longest of them. No padding is computed on outside attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Packed:
    """Token ids [N] of B sentences end to end; sentence b is `ids[cu_seqlens[b]:cu_seqlens[b + 1]]`.

    The last `num_empty` of the N slots hold no sentence: they bring N to a size that comes again and again, and what is
    computed in them is never looked at.
    """

    ids: Tensor
    cu_seqlens: Tensor
    max_len: int
    num_empty: int = 0

    @property
    def num_sentences(self) -> int:
        """B."""
        return self.cu_seqlens.numel() - 1

    @property
    def num_tokens(self) -> int:
        """Tokens of all sentences, N without the empty slots."""
        return self.ids.numel() - self.num_empty

    @cached_property
    def lengths(self) -> Tensor:
        """Tokens of each sentence, [B] int64."""
        return self.cu_seqlens.diff().long()

    @cached_property
    def positions(self) -> Tensor:
        """Place of each token in its sentence, from 0, and 0 in empty slots, [N] int64."""
        starts = torch.repeat_interleave(self.cu_seqlens[:-1].long(), self.lengths, output_size=self.num_tokens)
        return F.pad(torch.arange(self.num_tokens, device=self.ids.device) - starts, (0, self.num_empty))

    @cached_property
    def slots(self) -> Tensor:
        """Place of each token of a sentence in the flattened rectangle [B * max_len], [num_tokens] int64."""
        rows = torch.arange(self.num_sentences, device=self.ids.device)
        rows = torch.repeat_interleave(rows, self.lengths, output_size=self.num_tokens)
        return self.positions[: self.num_tokens] + self.max_len * rows

    @cached_property
    def keep_mask(self) -> Tensor:
        """True at the real tokens of the rectangle, [B, max_len] bool."""
        return torch.arange(self.max_len, device=self.ids.device) < self.lengths[:, None]

    @cached_property
    def is_rectangular(self) -> bool:
        """True where all sentences have the same length, so that a rectangle has no padding."""
        return self.num_tokens == self.num_sentences * self.max_len


def pack(rows: Sequence[Sequence[int]], *, device: torch.device) -> Packed:
    """The given sentences, none of them empty, end to end on `device`."""
    lengths = torch.tensor([0, *(len(row) for row in rows)])
    if len(rows) == 0 or not bool((lengths[1:] > 0).all()):
        raise ValueError("cannot pack an empty sentence")
    ids = torch.tensor([token for row in rows for token in row])
    return Packed(ids.to(device), lengths.cumsum(0).int().to(device), int(lengths.max()))


def to_rectangle(x: Tensor, layout: Packed) -> Tensor:
    """Tokens [N, ...] laid out as [B, max_len, ...], zeros at the padding."""
    shape = (layout.num_sentences, layout.max_len, *x.shape[1:])
    x = x[: layout.num_tokens]
    if layout.is_rectangular:
        return x.view(shape)
    return x.new_zeros(shape[0] * shape[1], *shape[2:]).index_copy_(0, layout.slots, x).view(shape)


def from_rectangle(x: Tensor, layout: Packed) -> Tensor:
    """The tokens [N, ...] of a rectangle [B, max_len, ...], zeros in empty slots."""
    flat = x.reshape(-1, *x.shape[2:])
    if layout.is_rectangular and layout.num_empty == 0:
        return flat
    packed: Tensor = _Gather.apply(flat, layout.slots, layout.ids.numel())  # type: ignore[no-untyped-call]  # not annotated
    return packed


class _Gather(torch.autograd.Function):
    """Rows from their slots, then zeros up to `size`. Slots are distinct, so the gradient needs no index_add."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, slots: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.num_rows = x.size(0)  # type: ignore[attr-defined]  # a context takes any attribute
        packed = x.new_empty(size, *x.shape[1:])
        packed[len(slots) :] = 0
        torch.index_select(x, 0, slots, out=packed[: len(slots)])
        return packed

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slots,) = ctx.saved_tensors  # type: ignore[attr-defined]  # missing from torch's annotations
        gradient = gradients[0][: len(slots)]
        num_rows: int = ctx.num_rows  # type: ignore[attr-defined]  # set in forward
        return gradient.new_zeros(num_rows, *gradient.shape[1:]).index_copy_(0, slots, gradient), None, None
