"""Attention on a CPU: plain matrix products over groups of sentences of similar length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt_cli.model.dropout import apply_bit_mask, cpu_bit_mask
from nmt_cli.model.packing import Packed

Integers = NDArray[np.int64]
_MIN_KEYS = 16  # torch takes ten times as long for a softmax over fewer than 16 float32
# oneDNN prepares each new shape of a product for half a millisecond. With multiples, fewer shapes occur.
_WIDTH_MULTIPLE, _SENTENCE_MULTIPLE = 8, 16
_MAX_RUNS = 24  # runs of sentences of similar length, which are not divided between groups
# Costs of a slot and of a group, for one head in forward and backward pass, in units of the cost of one query and one
# key. Other values change the time little.
_SLOT_COST, _GROUP_COST = 36, 12_000


def attend_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    queries: Packed,
    keys: Packed,
    is_causal: bool,
    window: int | None,
    dropout: float,
) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)) V within each sentence (equation 1), [N, H, V], zeros in empty slots.

    Shapes: q [N, H, K], k [M, H, K], v [M, H, V]. With `is_causal` a token sees itself and the tokens before it.
    `window` restricts it to its neighbours within window // 2 on either side (section 4). `dropout` is the probability
    of each weight of the softmax to be zeroed, by masks from torch's generator.
    """
    groups = group_by_length(queries, keys, heads=q.size(1))
    mixed: Tensor = _GroupedAttention.apply(q, k, v, groups, is_causal, window, dropout)  # type: ignore[no-untyped-call]  # torch has no types for it
    return mixed


class _GroupedAttention(torch.autograd.Function):
    """Attention by one matrix product per group.

    The vectors of all tokens and heads are gathered into the rectangles of all groups at once, [sum of B * H * T, K].
    Scores are rounded to the precision of the queries; the softmax is computed in float32 at least.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        groups: LengthGroups,
        is_causal: bool,
        window: int | None,
        dropout: float,
    ) -> Tensor:
        num_queries, num_keys, scale, dtype = q.size(0), k.size(0), q.size(2) ** -0.5, q.dtype
        queries, keys = groups.queries, groups.keys
        q_rows, k_rows, v_rows = _gather_rows(q, queries), _gather_rows(k, keys), _gather_rows(v, keys)
        out_rows = v.new_empty(q_rows.size(0), v.size(2))
        all_weights, dropout_masks = [], groups.dropout_masks(dropout, like=q)
        rectangles = (queries.split(q_rows), keys.split(k_rows), keys.split(v_rows), queries.split(out_rows))
        by_group = zip(groups.groups, dropout_masks, *rectangles, strict=True)
        for group, dropout_mask, group_q, group_k, group_v, group_out in by_group:
            mask = group.mask(dtype, is_causal=is_causal, window=window)
            if mask is None:
                scores = torch.baddbmm(q.new_zeros(1), group_q, group_k.mT, beta=0, alpha=scale)
            else:
                scores = torch.baddbmm(mask, group_q, group_k.mT, alpha=scale)
            weights = _to_float32(scores).softmax(-1).to(dtype)
            torch.bmm(_drop(weights, dropout_mask, dropout), group_v, out=group_out)
            all_weights.append(weights)
        ctx.groups, ctx.num_queries, ctx.num_keys, ctx.dropout = groups, num_queries, num_keys, dropout
        ctx.save_for_backward(q_rows, k_rows, v_rows, *all_weights, *dropout_masks)
        return _scatter_rows(out_rows, queries, num_queries)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, dropout = ctx.groups.queries, ctx.groups.keys, ctx.dropout
        q_rows, k_rows, v_rows, *weights_and_masks = ctx.saved_tensors
        num_groups = len(ctx.groups.groups)
        all_weights, dropout_masks = weights_and_masks[:num_groups], weights_and_masks[num_groups:]
        scale = q_rows.size(1) ** -0.5
        dout_rows = _gather_rows(gradients[0], queries).index_fill_(0, queries.padding, 0)
        dq_rows, dk_rows, dv_rows = (torch.empty_like(rows) for rows in (q_rows, k_rows, v_rows))
        inputs = (queries.split(q_rows), keys.split(k_rows), keys.split(v_rows), queries.split(dout_rows))
        outputs = (queries.split(dq_rows), keys.split(dk_rows), keys.split(dv_rows))
        for weights, dropout_mask, q, k, v, dout, dq, dk, dv in zip(
            all_weights, dropout_masks, *inputs, *outputs, strict=True
        ):
            torch.bmm(_drop(weights, dropout_mask, dropout).mT, dout, out=dv)
            dweights = _to_float32(_drop(torch.bmm(dout, v.mT), dropout_mask, dropout))
            dscores = torch.ops.aten._softmax_backward_data(dweights, _to_float32(weights), -1, dweights.dtype)
            dscores = dscores.to(q.dtype)
            dq.baddbmm_(dscores, k, beta=0, alpha=scale)
            dk.baddbmm_(dscores.mT, q, beta=0, alpha=scale)
        return (
            _scatter_rows(dq_rows, queries, ctx.num_queries),
            _scatter_rows(dk_rows, keys, ctx.num_keys),
            _scatter_rows(dv_rows, keys, ctx.num_keys),
            *(None,) * 4,
        )


def _gather_rows(x: Tensor, rectangles: Rectangles) -> Tensor:
    """The vectors of x [N, H, K] as rows [sum of B * H * T, K] of the rectangles; padding repeats the last token."""
    num_slots, heads, width = x.shape
    if x.stride(2) != 1 or x.stride(1) != width or x.stride(0) % width:
        x = x.contiguous()
    # Queries, keys and values are often columns of one matrix. Its rows then hold `step` vectors of K numbers.
    step = x.stride(0) // width
    vectors = x.as_strided(((num_slots - 1) * step + heads, width), (width, 1))
    return vectors.index_select(0, rectangles.vector_of_each_row(step))


def _scatter_rows(rows: Tensor, rectangles: Rectangles, num_slots: int) -> Tensor:
    """The vectors [N, H, K] of all tokens and heads, from the rows of the rectangles; zeros in empty slots."""
    out = rows.new_empty(num_slots * rectangles.heads, rows.size(1))
    row_of_each_vector = rectangles.row_of_each_vector
    torch.index_select(rows, 0, row_of_each_vector, out=out[: len(row_of_each_vector)])
    out[len(row_of_each_vector) :] = 0
    return out.view(num_slots, rectangles.heads, -1)


def _drop(x: Tensor, bit_mask: Tensor | None, probability: float) -> Tensor:
    return x if bit_mask is None else apply_bit_mask(x, bit_mask, 1 / (1 - probability))


def _to_float32(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


class Rectangles:
    """The rectangles of queries or of keys: which vector lies in each of their rows, and which row has each vector.

    A vector is one head of one token. A rectangle has [B * H, width] rows, and the rectangles of all groups follow each
    other. Tensors are made on first use, and kept for the other layers.
    """

    def __init__(
        self, layout: Packed, groups: list[Integers], widths: list[int], *, heads: int, num_repeats: int
    ) -> None:
        """`groups` has the numbers of the sentences in each group.

        The first `num_repeats` entries of the first group are copies of its shortest sentence. They make the number of
        sentences a multiple, and their results are not used.
        """
        self.heads = heads
        self._starts, self._lengths = _starts_and_lengths(layout)
        self._groups, self._widths, self._num_repeats = groups, widths, num_repeats
        self._vector_of_each_row: dict[int, Tensor] = {}

    def split(self, rows: Tensor) -> list[Tensor]:
        """The rectangles [B * H, width, K] of each group in rows [all, K]."""
        shapes = [(len(group) * self.heads, width) for group, width in zip(self._groups, self._widths, strict=True)]
        parts = rows.split([batch * width for batch, width in shapes])
        return [part.view(*shape, rows.size(1)) for part, shape in zip(parts, shapes, strict=True)]

    def vector_of_each_row(self, step: int) -> Tensor:
        """The index token * step + head of the vector in each row; padding repeats the last token of its sentence."""
        if step not in self._vector_of_each_row:
            tokens = [
                self._starts[group, None] + np.minimum(np.arange(width), self._lengths[group, None] - 1)
                for group, width in zip(self._groups, self._widths, strict=True)
            ]
            vectors = [(part[:, None] * step + np.arange(self.heads)[:, None]).ravel() for part in tokens]
            self._vector_of_each_row[step] = torch.from_numpy(np.concatenate(vectors))
        return self._vector_of_each_row[step]

    @cached_property
    def row_of_each_vector(self) -> Tensor:
        """The index of the row that has each vector, [num_tokens * H]."""
        heads, first_row = np.arange(self.heads), 0
        row_of = np.empty((int(self._lengths.sum()), self.heads), dtype=np.int64)
        for group, width, are_tokens in zip(self._groups, self._widths, self._are_tokens, strict=True):
            tokens = (self._starts[group, None] + np.arange(width))[are_tokens]
            rows_of_first_head = np.arange(len(group))[:, None] * self.heads * width + np.arange(width)
            row_of[tokens] = first_row + rows_of_first_head[are_tokens][:, None] + heads * width
            first_row += len(group) * self.heads * width
        return torch.from_numpy(row_of.ravel())

    @cached_property
    def padding(self) -> Tensor:
        """The rows of the rectangles that are padding."""
        are_tokens = [np.repeat(part, self.heads, axis=0).ravel() for part in self._are_tokens]
        return torch.from_numpy((~np.concatenate(are_tokens)).nonzero()[0])

    @cached_property
    def _are_tokens(self) -> list[NDArray[np.bool_]]:
        """For each group, True at the tokens of its sentences, [B, width]."""
        parts = [
            np.arange(width) < self._lengths[group, None]
            for group, width in zip(self._groups, self._widths, strict=True)
        ]
        parts[0][: self._num_repeats] = False
        return parts


@dataclass(frozen=True)
class Group:
    """Sentences that share a rectangle of queries, `num_queries` wide, and a rectangle of keys, `num_keys` wide."""

    query_lengths: Integers
    key_lengths: Integers
    num_queries: int
    num_keys: int
    heads: int
    _masks: dict[tuple[torch.dtype, bool, int | None], Tensor | None] = field(default_factory=dict)

    def mask(self, dtype: torch.dtype, *, is_causal: bool, window: int | None) -> Tensor | None:
        """-inf at keys that a query does not see, else 0: [T, S], [B * H, 1, S] or [B * H, T, S]; None: all are seen.

        A padded query sees at least one key: a row without keys would be NaN.
        """
        key = (dtype, is_causal, window)
        if key not in self._masks:
            self._masks[key] = self._mask(*key)
        return self._masks[key]

    def _mask(self, dtype: torch.dtype, is_causal: bool, window: int | None) -> Tensor | None:
        queries, keys = np.arange(self.num_queries)[:, None], np.arange(self.num_keys)
        if is_causal:
            return _as_bias(keys <= queries, dtype)
        is_key = keys < self.key_lengths[:, None, None]
        if window is None:
            return None if is_key.all() else _as_bias(is_key, dtype).repeat_interleave(self.heads, 0)
        is_near = abs(queries - keys) <= window // 2
        is_padded_query = queries >= self.query_lengths[:, None, None]
        return _as_bias((is_near | is_padded_query) & is_key, dtype).repeat_interleave(self.heads, 0)


def _as_bias(is_seen: NDArray[np.bool_], dtype: torch.dtype) -> Tensor:
    return torch.zeros(is_seen.shape, dtype=dtype).masked_fill_(torch.from_numpy(~is_seen), -torch.inf)


@dataclass(frozen=True)
class LengthGroups:
    """The sentences of queries and keys in groups of similar length, which cost least."""

    groups: list[Group]
    queries: Rectangles
    keys: Rectangles

    def dropout_masks(self, probability: float, *, like: Tensor) -> Sequence[Tensor | None]:
        """For each group a bit mask of its weights, [B * H, T, S]; all None for the probability zero."""
        if probability == 0:
            return [None] * len(self.groups)
        shapes = [(len(group.query_lengths) * group.heads, group.num_queries, group.num_keys) for group in self.groups]
        sizes = [math.prod(shape) for shape in shapes]
        masks = cpu_bit_mask(sum(sizes), probability, like=like).split(sizes)
        return [mask.view(shape) for mask, shape in zip(masks, shapes, strict=True)]


def group_by_length(queries: Packed, keys: Packed, *, heads: int) -> LengthGroups:
    """The groups of two layouts of the same sentences; made once for the two, and kept as long as `queries` is."""
    other_keys = None if queries is keys else keys  # a layout that held itself would have to be collected as garbage
    groups: LengthGroups
    for keys_of_groups, groups in queries.cpu_length_groups:
        if keys_of_groups is other_keys and groups.queries.heads == heads:
            return groups
    groups = _make_groups(queries, keys, heads)
    queries.cpu_length_groups.append((other_keys, groups))
    return groups


def _make_groups(queries: Packed, keys: Packed, heads: int) -> LengthGroups:
    (_, q_lengths), (_, k_lengths) = _starts_and_lengths(queries), _starts_and_lengths(keys)
    order = np.argsort(q_lengths + k_lengths, kind="stable")
    multiple = min(_SENTENCE_MULTIPLE, 1 << (len(order) - 1).bit_length())  # of a few sentences: 1, 2, 4 or 8
    num_repeats = -len(order) % multiple
    order = np.concatenate([np.repeat(order[:1], num_repeats), order])
    sentences_of_groups = _cheapest_groups(order, q_lengths, k_lengths, multiple=multiple)
    groups = [
        Group(
            q_lengths[sentences],
            k_lengths[sentences],
            num_queries=_rounded_width(q_lengths[sentences]),
            num_keys=max(_MIN_KEYS, _rounded_width(k_lengths[sentences])),
            heads=heads,
        )
        for sentences in sentences_of_groups
    ]
    q_widths, k_widths = [group.num_queries for group in groups], [group.num_keys for group in groups]
    return LengthGroups(
        groups,
        Rectangles(queries, sentences_of_groups, q_widths, heads=heads, num_repeats=num_repeats),
        Rectangles(keys, sentences_of_groups, k_widths, heads=heads, num_repeats=num_repeats),
    )


def _starts_and_lengths(layout: Packed) -> tuple[Integers, Integers]:
    """Where each sentence starts, and how long it is."""
    bounds = layout.cu_seqlens[: layout.num_sentences + 1].numpy().astype(np.int64)
    return bounds[:-1], np.diff(bounds)


def _rounded_width(lengths: Integers) -> int:
    """The width of a rectangle for sentences of these lengths."""
    return math.ceil(int(lengths.max()) / _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE


def _cheapest_groups(order: Integers, q_lengths: Integers, k_lengths: Integers, *, multiple: int) -> list[Integers]:
    """The sentences, in order of length, divided so that all rectangles together cost least (dynamic programming).

    The sentences form runs of nearly equal size. A group consists of whole runs that follow each other. The number of
    sentences in `order` is a multiple of `multiple`.
    """
    units = len(order) // multiple
    num_runs = min(_MAX_RUNS, units)
    bounds = np.arange(num_runs + 1) * units // num_runs * multiple
    run_widths = [np.maximum.reduceat(lengths[order], bounds[:-1]) for lengths in (q_lengths, k_lengths)]
    costs, best_starts = np.zeros(num_runs + 1), np.zeros(num_runs + 1, dtype=np.int64)
    for end in range(1, num_runs + 1):
        # For each run that the last group could begin with: its widths, and the least cost with the groups before it.
        num_queries, num_keys = (np.maximum.accumulate(widths[:end][::-1])[::-1] for widths in run_widths)
        num_keys = np.maximum(_MIN_KEYS, num_keys)
        sentence_costs = num_queries * num_keys + _SLOT_COST * (num_queries + num_keys)
        totals = costs[:end] + (bounds[end] - bounds[:end]) * sentence_costs + _GROUP_COST
        best_starts[end] = totals.argmin()
        costs[end] = totals[best_starts[end]]
    groups, end = [], num_runs
    while end > 0:
        groups.append(order[bounds[best_starts[end]] : bounds[end]])
        end = int(best_starts[end])
    return groups[::-1]
