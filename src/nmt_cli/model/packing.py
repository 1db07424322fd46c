"""Sentences laid end to end, their queries, keys and values, and their conversion to a padded rectangle and back.

Shapes: N slots, B sentences, S or T the longest of them. Only attention ever sees padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Spans(NamedTuple):
    """Where each of C sentences, with dummies and empty ones, begins and ends among N slots.

    The shapes are the same in all batches of a training, so compiled code fits them all: `cu_seqlens` [C + 1] int32,
    `positions` [N] int64. No sentence is longer than `length_bound`; an empty one ends where it begins.
    """

    cu_seqlens: Tensor
    positions: Tensor
    length_bound: int


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Token ids [N] of B sentences end to end; sentence b is `ids[cu_seqlens[b]:cu_seqlens[b + 1]]`.

    `positions` [N] int64 counts from 0 in each sentence. The last `num_empty` slots hold no token: they pad N to a size
    that batches share, have position 0, and their results are ignored. `max_len` is the length of the longest sentence,
    and `length_bound` an upper bound shared by many batches.

    `cu_seqlens` [C + 1] int32 has C >= B sentences. After the B sentences come dummy sentences over the empty slots,
    because some kernels write only inside sentences; then empty sentences up to C. Source and target have the same
    number of dummies.

    `is_cut` [N] is True at the tokens whose embedding is zero, if there are any.
    """

    ids: Tensor
    cu_seqlens: Tensor
    positions: Tensor
    num_sentences: int
    max_len: int
    num_empty: int
    length_bound: int
    is_cut: Tensor | None = None

    def cut(self, is_chosen: Tensor) -> Packed:
        """The same sentences with these tokens [N] cut too."""
        return replace(self, is_cut=is_chosen if self.is_cut is None else self.is_cut | is_chosen)

    def zero_cut_rows(self, rows: Tensor) -> Tensor:
        """The rows [N, D], zero at cut tokens."""
        return rows if self.is_cut is None else rows.masked_fill(self.is_cut[:, None], 0)

    @property
    def num_tokens(self) -> int:
        """Tokens of all sentences, N without the empty slots."""
        return self.ids.numel() - self.num_empty

    @property
    def spans(self) -> Spans:
        """Where its sentences begin and end, dummy sentences included."""
        return Spans(self.cu_seqlens, self.positions, self.length_bound)

    @cached_property
    def lengths(self) -> Tensor:
        """Tokens of each sentence, [B] int64."""
        return self.cu_seqlens[: self.num_sentences + 1].diff().long()

    @cached_property
    def cpu_length_groups(self) -> list[tuple[Packed | None, Any]]:
        """A cache of `cpu_attention.group_by_length`, by the layout of the keys; None stands for this layout itself."""
        return []

    @cached_property
    def rectangle_index(self) -> Tensor:
        """The index of each token in the flattened rectangle [B * max_len], [num_tokens] int64."""
        rows = torch.arange(self.num_sentences, device=self.ids.device)
        rows = torch.repeat_interleave(rows, self.lengths, output_size=self.num_tokens)
        return self.positions[: self.num_tokens] + self.max_len * rows

    @cached_property
    def keep_mask(self) -> Tensor:
        """True at the real tokens of the rectangle, [B, max_len] bool."""
        return torch.arange(self.max_len, device=self.ids.device) < self.lengths[:, None]

    @cached_property
    def is_rectangular(self) -> bool:
        """True if all sentences have the same length: then a rectangle has no padding."""
        return self.num_tokens == self.num_sentences * self.max_len


Layout = Packed | Spans
"""Where sentences lie: `Packed` for any kernel, `Spans` for compiled code, whose kernels need no more."""


class Projections(NamedTuple):
    """Queries, keys and values of H heads: one matrix [N, H (2 K + V)], or [N, H K] and [M, H (K + V)], or all three.

    Attention writes the gradient of each matrix as a whole, so no gradients need to be joined.
    """

    matrices: Sequence[Tensor]
    heads: int
    d_k: int
    d_v: int

    def split(self) -> list[Tensor]:
        """Queries [N, H K], keys [M, H K] and values [M, H V], views of the matrices."""
        widths = [self.heads * self.d_k, self.heads * self.d_k, self.heads * self.d_v]
        *single, joined = self.matrices  # the last matrix holds all that have no matrix of their own
        return [*single, *joined.split(widths[len(single) :], dim=-1)]

    def by_head(self) -> list[Tensor]:
        """Queries [N, H, K], keys [M, H, K] and values [M, H, V]."""
        return [x.unflatten(-1, (self.heads, -1)) for x in self.split()]


def pack(rows: Sequence[Sequence[int]], *, device: torch.device) -> Packed:
    """The given sentences, none of them empty, end to end on `device`."""
    lengths = [len(row) for row in rows]
    sizes, ids = torch.tensor(lengths), torch.tensor([token for row in rows for token in row])
    ends, longest = sizes.cumsum(0), max(lengths)
    start_of_sentence = torch.repeat_interleave(ends - sizes, sizes, output_size=len(ids))
    return Packed(
        ids=ids.to(device),
        cu_seqlens=torch.cat([ends.new_zeros(1), ends]).int().to(device),
        positions=(torch.arange(len(ids)) - start_of_sentence).to(device),
        num_sentences=len(lengths),
        max_len=longest,
        num_empty=0,
        length_bound=longest,
    )


def to_rectangle(x: Tensor, layout: Packed) -> Tensor:
    """Tokens [N, ...] laid out as [B, max_len, ...], zeros at the padding."""
    shape = (layout.num_sentences, layout.max_len, *x.shape[1:])
    tokens = x[: layout.num_tokens]
    if layout.is_rectangular:
        return tokens.view(shape)
    slots = tokens.new_zeros(layout.num_sentences * layout.max_len, *x.shape[1:])
    return slots.index_copy_(0, layout.rectangle_index, tokens).view(shape)


def from_rectangle(x: Tensor, layout: Packed) -> Tensor:
    """The tokens [N, ...] of a rectangle [B, max_len, ...], zeros in empty slots."""
    tokens = x.reshape(-1, *x.shape[2:])
    if not layout.is_rectangular:
        tokens = tokens.index_select(0, layout.rectangle_index)
    if layout.num_empty:
        tokens = torch.cat([tokens, tokens.new_zeros(layout.num_empty, *tokens.shape[1:])])
    return tokens


def round_up(number: int, multiple: int) -> int:
    """The next multiple of `multiple`."""
    return math.ceil(number / multiple) * multiple
