"""Attention by plain matrix products, over rectangles of sentences of like length: the kernel for CPUs.

Sentences are put in groups by length, and each group is padded to its own longest (`model/pairing.py`). The fused
kernels of torch take several times as long on sentences (docs/LOG.md).

Shapes: N, M query and key slots, B sentences of a group, T, S its rectangle's widths, H heads, K = d_k, V = d_v.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nmt_cli.model.packing import Packed
from nmt_cli.model.pairing import Pairing, Side, pairing_of


def attend_products(
    q: Tensor, k: Tensor, v: Tensor, *, queries: Packed, keys: Packed, is_causal: bool, window: int | None
) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)) V within each sentence (equation 1), [N, H, V], zeros in empty slots.

    q [N, H, K], k [M, H, K], v [M, H, V]. With `is_causal` a token sees itself and those before it; `window` restricts
    it to its neighbours within window // 2 on either side (section 4).
    """
    pairing = pairing_of(queries, keys)
    mixed: Tensor = _Products.apply(q, k, v, pairing, is_causal, window)  # type: ignore[no-untyped-call]  # not annotated
    return mixed


class _Products(torch.autograd.Function):
    """Rows of heads are gathered into the rectangles of all groups at once, [sum of B * H * T, K], and back.

    Scores are rounded to the precision of the queries; the softmax is computed in float32 at least.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, pairing: Pairing, is_causal: bool, window: int | None
    ) -> Tensor:
        heads, scale = q.size(1), q.size(2) ** -0.5
        q_rows, k_rows, v_rows = _gathered(q, pairing.queries), _gathered(k, pairing.keys), _gathered(v, pairing.keys)
        out_rows = v.new_empty(q_rows.size(0), v.size(2))
        parts = (
            *(pairing.queries.split(rows, heads) for rows in (q_rows, out_rows)),
            *(pairing.keys.split(rows, heads) for rows in (k_rows, v_rows)),
        )
        weights = []
        for group, q_g, out_g, k_g, v_g in zip(pairing.groups, *parts, strict=True):
            mask = group.mask(heads, q.dtype, is_causal=is_causal, window=window)
            if mask is None:
                scores = torch.baddbmm(q_g.new_zeros(1), q_g, k_g.mT, beta=0, alpha=scale)
            else:
                scores = torch.baddbmm(mask, q_g, k_g.mT, alpha=scale)
            weights.append(_widened(scores).softmax(-1).to(q.dtype))
            torch.bmm(weights[-1], v_g, out=out_g)
        ctx.pairing, ctx.sizes = pairing, (q.size(0), k.size(0))
        ctx.save_for_backward(q_rows, k_rows, v_rows, *weights)
        return _scattered(out_rows, pairing.queries, heads, q.size(0))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        pairing: Pairing = ctx.pairing
        q_rows, k_rows, v_rows, *weights = ctx.saved_tensors
        heads, scale = gradients[0].size(1), q_rows.size(1) ** -0.5
        out_rows = _gathered(gradients[0], pairing.queries).index_fill_(0, pairing.queries.padding(heads), 0)
        dq_rows, dk_rows, dv_rows = (torch.empty_like(rows) for rows in (q_rows, k_rows, v_rows))
        parts = (
            *(pairing.queries.split(rows, heads) for rows in (q_rows, out_rows, dq_rows)),
            *(pairing.keys.split(rows, heads) for rows in (k_rows, v_rows, dk_rows, dv_rows)),
        )
        for weights_g, q_g, out_g, dq_g, k_g, v_g, dk_g, dv_g in zip(weights, *parts, strict=True):
            torch.bmm(weights_g.mT, out_g, out=dv_g)
            dweights = _widened(torch.bmm(out_g, v_g.mT))
            dscores = torch.ops.aten._softmax_backward_data(dweights, _widened(weights_g), -1, dweights.dtype)
            dscores = dscores.to(q_g.dtype)
            dq_g.baddbmm_(dscores, k_g, beta=0, alpha=scale)
            dk_g.baddbmm_(dscores.mT, q_g, beta=0, alpha=scale)
        num_queries, num_keys = ctx.sizes
        return (
            _scattered(dq_rows, pairing.queries, heads, num_queries),
            _scattered(dk_rows, pairing.keys, heads, num_keys),
            _scattered(dv_rows, pairing.keys, heads, num_keys),
            *(None, None, None),
        )


def _gathered(x: Tensor, side: Side) -> Tensor:
    """The heads of x [N, H, K] as rows [sum of B * H * T, K] of the rectangles; padding repeats a sentence's last."""
    num_slots, heads, width = x.shape
    if x.stride(2) != 1 or x.stride(1) != width or x.stride(0) % width:
        x = x.contiguous()
    # Queries, keys and values are often columns of one matrix, whose rows hold `step` rows of a head.
    step = x.stride(0) // width
    rows = x.as_strided(((num_slots - 1) * step + heads, width), (width, 1))
    return rows.index_select(0, side.rows(heads, step=step))


def _scattered(rows: Tensor, side: Side, heads: int, num_slots: int) -> Tensor:
    """Heads [N, H, K] from their places in the rectangles, zeros in empty slots."""
    out = rows.new_empty(num_slots * heads, rows.size(1))
    places = side.places(heads)
    torch.index_select(rows, 0, places, out=out[: len(places)])
    out[len(places) :] = 0
    return out.view(num_slots, heads, -1)


def _widened(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
