"""Sentences laid end to end, and the way to a padded rectangle and back.

N tokens of B sentences, S or T the longest of them. No padding is computed on outside attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packed:
    """Token ids [N] of B sentences end to end; sentence b is `ids[cu_seqlens[b]:cu_seqlens[b + 1]]`."""

    ids: Tensor
    cu_seqlens: Tensor
    max_len: int

    @property
    def num_sentences(self) -> int:
        """B."""
        return self.cu_seqlens.numel() - 1

    @cached_property
    def lengths(self) -> Tensor:
        """Tokens of each sentence, [B] int64."""
        return self.cu_seqlens.diff().long()

    @cached_property
    def positions(self) -> Tensor:
        """Place of each token in its sentence, from 0, [N] int64."""
        starts = torch.repeat_interleave(self.cu_seqlens[:-1].long(), self.lengths, output_size=self.ids.numel())
        return torch.arange(self.ids.numel(), device=self.ids.device) - starts

    @cached_property
    def slots(self) -> Tensor:
        """Place of each token in the flattened rectangle [B * max_len], [N] int64."""
        rows = torch.arange(self.num_sentences, device=self.ids.device)
        return self.positions + self.max_len * torch.repeat_interleave(rows, self.lengths, output_size=self.ids.numel())

    @cached_property
    def keep_mask(self) -> Tensor:
        """True at the real tokens of the rectangle, [B, max_len] bool."""
        return torch.arange(self.max_len, device=self.ids.device) < self.lengths[:, None]

    @cached_property
    def is_rectangular(self) -> bool:
        """True where all sentences have the same length, so that a rectangle has no padding."""
        return self.ids.numel() == self.num_sentences * self.max_len


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
    if layout.is_rectangular:
        return x.view(shape)
    padded: Tensor = _Scatter.apply(x, layout.slots, shape[0] * shape[1])  # type: ignore[no-untyped-call]  # not annotated
    return padded.view(shape)


def from_rectangle(x: Tensor, layout: Packed) -> Tensor:
    """The real tokens [N, ...] of a rectangle [B, max_len, ...]."""
    flat = x.reshape(-1, *x.shape[2:])
    if layout.is_rectangular:
        return flat
    packed: Tensor = _Gather.apply(flat, layout.slots)  # type: ignore[no-untyped-call]  # not annotated
    return packed


class _Scatter(torch.autograd.Function):
    """Rows to their slots. Slots are distinct, so the gradient is a plain gather; index_add is never needed."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, slots: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(slots)
        return x.new_zeros(size, *x.shape[1:]).index_copy_(0, slots, x)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slots,) = ctx.saved_tensors  # type: ignore[attr-defined]  # missing from torch's annotations
        return gradients[0].index_select(0, slots), None, None


class _Gather(torch.autograd.Function):
    """Rows from their slots, with the gradient laid back into zeros."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, slots: Tensor) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.size = x.size(0)  # type: ignore[attr-defined]  # a context takes any attribute
        return x.index_select(0, slots)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        (slots,) = ctx.saved_tensors  # type: ignore[attr-defined]  # missing from torch's annotations
        gradient = gradients[0]
        size: int = ctx.size  # type: ignore[attr-defined]  # set in forward
        return gradient.new_zeros(size, *gradient.shape[1:]).index_copy_(0, slots, gradient), None
