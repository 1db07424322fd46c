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
# Costs of a slot and of a group, for one head in forward and backward pass. The unit is the cost of one query and one
# key, a nanosecond on one machine. Only the ratios matter, and not much.
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
        scale = q.size(2) ** -0.5
        queries, keys = groups.queries, groups.keys
        q_rows, k_rows, v_rows = _gathered(q, queries), _gathered(k, keys), _gathered(v, keys)
        out_rows = v.new_empty(q_rows.size(0), v.size(2))
        parts = (*map(queries.split, (q_rows, out_rows)), *map(keys.split, (k_rows, v_rows)))
        ctx.keep_probability, weights, masks = 1 - dropout, [], groups.dropout_masks(dropout, like=q)
        for group, keep_mask, group_q, group_out, group_k, group_v in zip(groups.groups, masks, *parts, strict=True):
            mask = group.mask(q.dtype, is_causal=is_causal, window=window)
            if mask is None:
                scores = torch.baddbmm(group_q.new_zeros(1), group_q, group_k.mT, beta=0, alpha=scale)
            else:
                scores = torch.baddbmm(mask, group_q, group_k.mT, alpha=scale)
            weights.append(_in_float32(scores).softmax(-1).to(q.dtype))
            torch.bmm(_after_dropout(weights[-1], keep_mask, ctx.keep_probability), group_v, out=group_out)
        ctx.groups, ctx.num_queries, ctx.num_keys = groups, q.size(0), k.size(0)
        ctx.save_for_backward(q_rows, k_rows, v_rows, *weights, *masks)
        return _scattered(out_rows, queries, q.size(0))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys = ctx.groups.queries, ctx.groups.keys
        q_rows, k_rows, v_rows, *others = ctx.saved_tensors
        weights, masks = others[: len(others) // 2], others[len(others) // 2 :]
        scale = q_rows.size(1) ** -0.5
        dout_rows = _gathered(gradients[0], queries).index_fill_(0, queries.padding, 0)
        dq_rows, dk_rows, dv_rows = (torch.empty_like(rows) for rows in (q_rows, k_rows, v_rows))
        parts = (
            *map(queries.split, (q_rows, dout_rows, dq_rows)),
            *map(keys.split, (k_rows, v_rows, dk_rows, dv_rows)),
        )
        for group_weights, keep_mask, group_q, group_dout, group_dq, group_k, group_v, group_dk, group_dv in zip(
            weights, masks, *parts, strict=True
        ):
            torch.bmm(_after_dropout(group_weights, keep_mask, ctx.keep_probability).mT, group_dout, out=group_dv)
            dweights = _in_float32(_after_dropout(torch.bmm(group_dout, group_v.mT), keep_mask, ctx.keep_probability))
            dscores = torch.ops.aten._softmax_backward_data(dweights, _in_float32(group_weights), -1, dweights.dtype)
            dscores = dscores.to(group_q.dtype)
            group_dq.baddbmm_(dscores, group_k, beta=0, alpha=scale)
            group_dk.baddbmm_(dscores.mT, group_q, beta=0, alpha=scale)
        return (
            _scattered(dq_rows, queries, ctx.num_queries),
            _scattered(dk_rows, keys, ctx.num_keys),
            _scattered(dv_rows, keys, ctx.num_keys),
            *(None,) * 4,
        )


def _gathered(x: Tensor, rectangles: Rectangles) -> Tensor:
    """The vectors of x [N, H, K] as rows [sum of B * H * T, K] of the rectangles; padding repeats the last token."""
    num_slots, heads, width = x.shape
    if x.stride(2) != 1 or x.stride(1) != width or x.stride(0) % width:
        x = x.contiguous()
    # Queries, keys and values are often columns of one matrix. Its rows then hold `step` vectors of K numbers.
    step = x.stride(0) // width
    rows = x.as_strided(((num_slots - 1) * step + heads, width), (width, 1))
    return rows.index_select(0, rectangles.rows(step))


def _scattered(rows: Tensor, rectangles: Rectangles, num_slots: int) -> Tensor:
    """The vectors [N, H, K] of all tokens and heads, from the rows of the rectangles; zeros in empty slots."""
    out = rows.new_empty(num_slots * rectangles.heads, rows.size(1))
    torch.index_select(rows, 0, rectangles.places, out=out[: len(rectangles.places)])
    out[len(rectangles.places) :] = 0
    return out.view(num_slots, rectangles.heads, -1)


def _after_dropout(x: Tensor, bit_mask: Tensor | None, keep_probability: float) -> Tensor:
    return x if bit_mask is None else apply_bit_mask(x, bit_mask, 1 / keep_probability)


def _in_float32(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


class Rectangles:
    """The rectangles of queries or of keys: which tokens lie in them, and where each token lies.

    A rectangle has [B * H, width] rows, and the rectangles of all groups follow each other. Tensors are made on first
    use, and kept for the other layers.
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
        self._rows: dict[int, Tensor] = {}

    def split(self, rows: Tensor) -> list[Tensor]:
        """The rectangles [B * H, width, K] of each group in rows [all, K]."""
        shapes = [(len(group) * self.heads, width) for group, width in zip(self._groups, self._widths, strict=True)]
        parts = rows.split([batch * width for batch, width in shapes])
        return [part.view(*shape, rows.size(1)) for part, shape in zip(parts, shapes, strict=True)]

    def rows(self, step: int) -> Tensor:
        """For each row of the rectangles, the row of its token and head: token * step + head.

        Padding repeats the last token of its sentence.
        """
        if step not in self._rows:
            tokens = [
                self._starts[group, None] + np.minimum(np.arange(width), self._lengths[group, None] - 1)
                for group, width in zip(self._groups, self._widths, strict=True)
            ]
            rows = [(part[:, None] * step + np.arange(self.heads)[:, None]).ravel() for part in tokens]
            self._rows[step] = torch.from_numpy(np.concatenate(rows))
        return self._rows[step]

    @cached_property
    def places(self) -> Tensor:
        """The row of the rectangles where each head of each token lies, [num_tokens * H]."""
        heads, offset = np.arange(self.heads), 0
        places = np.empty((int(self._lengths.sum()), self.heads), dtype=np.int64)
        for group, width, are_tokens in zip(self._groups, self._widths, self._are_tokens, strict=True):
            tokens = (self._starts[group, None] + np.arange(width))[are_tokens]
            rows = np.arange(len(group))[:, None] * self.heads * width + np.arange(width)
            places[tokens] = offset + rows[are_tokens][:, None] + heads * width
            offset += len(group) * self.heads * width
        return torch.from_numpy(places.ravel())

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
        are_real = keys < self.key_lengths[:, None, None]
        if window is None:
            return None if are_real.all() else _as_bias(are_real, dtype).repeat_interleave(self.heads, 0)
        is_near = (abs(queries - keys) <= window // 2) | (queries >= self.query_lengths[:, None, None])
        return _as_bias(is_near & are_real, dtype).repeat_interleave(self.heads, 0)


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
        masks = cpu_bit_mask(sum(map(math.prod, shapes)), probability, like=like).split([*map(math.prod, shapes)])
        return [mask.view(shape) for mask, shape in zip(masks, shapes, strict=True)]


def group_by_length(queries: Packed, keys: Packed, *, heads: int) -> LengthGroups:
    """The groups of two layouts of the same sentences; made once for the two, and kept as long as `queries` is."""
    partner = None if queries is keys else keys  # a layout that held itself would have to be collected as garbage
    groups: LengthGroups
    for known, groups in queries.length_groups:
        if known is partner and groups.queries.heads == heads:
            return groups
    groups = _make_groups(queries, keys, heads)
    queries.length_groups.append((partner, groups))
    return groups


def _make_groups(queries: Packed, keys: Packed, heads: int) -> LengthGroups:
    (_, q_lengths), (_, k_lengths) = _starts_and_lengths(queries), _starts_and_lengths(keys)
    order = np.argsort(q_lengths + k_lengths, kind="stable")
    num_repeats = -len(order) % _SENTENCE_MULTIPLE
    order = np.concatenate([np.repeat(order[:1], num_repeats), order])
    numbers = _cheapest_groups(order, q_lengths, k_lengths)
    groups = []
    for part in numbers:
        q_part, k_part = q_lengths[part], k_lengths[part]
        groups.append(Group(q_part, k_part, _rounded_width(q_part), max(_MIN_KEYS, _rounded_width(k_part)), heads))
    return LengthGroups(
        groups,
        Rectangles(queries, numbers, [group.num_queries for group in groups], heads=heads, num_repeats=num_repeats),
        Rectangles(keys, numbers, [group.num_keys for group in groups], heads=heads, num_repeats=num_repeats),
    )


def _starts_and_lengths(layout: Packed) -> tuple[Integers, Integers]:
    """Where each sentence starts, and how long it is."""
    bounds = layout.cu_seqlens[: layout.num_sentences + 1].numpy().astype(np.int64)
    return bounds[:-1], np.diff(bounds)


def _rounded_width(lengths: Integers) -> int:
    """The width of a rectangle for sentences of these lengths."""
    return math.ceil(int(lengths.max()) / _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE


def _cheapest_groups(order: Integers, q_lengths: Integers, k_lengths: Integers) -> list[Integers]:
    """The sentences, in order of length, divided so that all rectangles together cost least (dynamic programming).

    The sentences form runs of nearly equal size. A group consists of whole runs that follow each other. The number of
    sentences in `order` is a multiple of `_SENTENCE_MULTIPLE`.
    """
    units = len(order) // _SENTENCE_MULTIPLE
    num_runs = min(_MAX_RUNS, units)
    bounds = np.arange(num_runs + 1) * units // num_runs * _SENTENCE_MULTIPLE
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
