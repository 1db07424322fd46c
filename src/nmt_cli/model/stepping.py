"""A decoder layer one token at a time, over cached keys and values (sections 3.1 and 3.2.3).

Shapes: B sentences, W hypotheses a sentence, R = B * W rows, S source tokens, N slots of the cache, D d_model, H heads,
K = d_k, V = d_v.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nmt_cli.model.cache import LayerCache, Slots, sums_of
from nmt_cli.model.layers import CrossAttention, DecoderLayer, SelfAttention


def step_layer(
    layer: DecoderLayer,
    x: Tensor,
    cache: LayerCache,
    *,
    positions: Tensor,
    slots: Slots,
    past: Tensor | None,
    source_bias: Tensor | None,
) -> Tensor:
    """x [R, D] of one new token a row, at `positions` [R], to [R, D]; its keys and values go into `slots` of the cache.

    `past` [B, 1, W, N] and `source_bias` [B, 1, 1, S] are added to the scores of attention: 0, or -inf at what a
    hypothesis does not see.
    """
    around = layer.self_attention_residual
    x = around.leave(x, _self_attention(layer.self_attention, around.enter(x), cache, positions, slots, past))
    around = layer.cross_attention_residual
    x = around.leave(x, _cross_attention(layer.cross_attention, around.enter(x), cache, source_bias))
    around = layer.feed_forward_residual
    return around.leave(x, layer.feed_forward(around.enter(x)))


def _self_attention(
    module: SelfAttention, x: Tensor, cache: LayerCache, positions: Tensor, slots: Slots, past: Tensor | None
) -> Tensor:
    q, k, v = (_by_sentence(rows, len(cache.cross_keys)) for rows in module.project(x, positions))
    keys_BHNK, values_BHNV = cache.append(k, v, slots)
    out: Tensor = module.output(_mix(q, keys_BHNK, values_BHNV, bias=past))
    return out


def _cross_attention(module: CrossAttention, x: Tensor, cache: LayerCache, source_bias: Tensor | None) -> Tensor:
    q = _by_sentence(module.q(x).unflatten(-1, (module.heads, module.d_k)), len(cache.cross_keys))
    out: Tensor = module.output(_mix(q, cache.cross_keys, cache.cross_values, bias=source_bias))
    return out


def _by_sentence(rows: Tensor, num_sentences: int) -> Tensor:
    """[R, H, K] as [B, H, W, K]."""
    return rows.view(num_sentences, -1, *rows.shape[1:]).transpose(1, 2)


def _mix(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(d_k) + bias) V for q [B, H, W, K], by rows: [R, H * V].

    Plain products: with few queries a sentence, torch's fused kernels take longer, and do not all take a mask. The
    softmax is in the bias's precision, float32: of short rows in bf16 torch's takes three times as long.
    """
    scores_BHWN = q @ k.mT
    if bias is None:
        scores_BHWN = scores_BHWN.to(sums_of(q)) * q.size(-1) ** -0.5
    else:
        scores_BHWN = torch.add(bias, scores_BHWN, alpha=q.size(-1) ** -0.5)
    mixed_BHWV: Tensor = scores_BHWN.softmax(-1).to(q.dtype) @ v
    num_rows = q.size(0) * q.size(2)
    return mixed_BHWV.transpose(1, 2).reshape(num_rows, -1)
