"""A decoder's step in memory of fixed shapes and addresses, so that a GPU can record it and repeat it.

Shapes: B sentences, W hypotheses a sentence, R = B * W rows, S source tokens, C slots, D d_model, H heads, K = d_k,
V = d_v. As in cache.py every hypothesis has a slot, and a mask says whose past it belongs to; here all slots there are
take part in each step, those that were not written masked like those of others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from nmt_cli.model.layers import CrossAttention, DecoderLayer, Residual, SelfAttention
from nmt_cli.model.packing import Packed, to_rectangle
from nmt_cli.model.transformer import Transformer

# The first takes such masks as they are; cuDNN's would be planned anew for each size.
_KERNELS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True, slots=True)
class FixedCache:
    """Keys and values of each decoder layer: of its slots, `own` [B, C, H * (K + V)], and of the source, `cross`.

    The latter are [B, S, H * (K + V)]. All are finite, written or not.
    """

    own: list[Tensor]
    cross: list[Tensor]


def fixed_widths(model: Transformer) -> list[int]:
    """H * (K + V) of each decoder layer."""
    layers = [_self_attention(layer) for layer in model.decoder]
    return [layer.heads * (layer.d_k + layer.d_v) for layer in layers]


def write_source(model: Transformer, cache: FixedCache, memory: Tensor, source: Packed) -> None:
    """Put the keys and values of memory [M, D] into the first places of `cross`."""
    for layer, kept in zip(model.decoder, cache.cross, strict=True):
        assert isinstance(layer, DecoderLayer)
        kept[: source.num_sentences, : source.max_len] = to_rectangle(layer.cross_attention.kv(memory), source)


def fixed_step(
    model: Transformer,
    ids: Tensor,
    cache: FixedCache,
    *,
    place: Tensor,
    slots: Tensor,
    past: Tensor,
    source_bias: Tensor,
) -> Tensor:
    """The decoder's output [R, D] for one more token ids [R] a row at position `place` [1], written into `slots` [W].

    `past` [B, 1, W, C] and `source_bias` [B, 1, 1, S] are added to the scores of attention: 0, or -inf at what a
    hypothesis does not see; it sees its own slot. Nothing waits for the device, or hangs on what is in a tensor.
    """
    x: Tensor = model.target_embedding(ids, place)
    for layer, own, cross in zip(model.decoder, cache.own, cache.cross, strict=True):
        assert isinstance(layer, DecoderLayer)
        around = layer.self_attention_residual
        mixed = _own_past(layer.self_attention, around.enter(x), own, place=place, slots=slots, past=past)
        x = _leave(around, x, layer.self_attention.output, mixed)
        around = layer.cross_attention_residual
        mixed = _source(layer.cross_attention, around.enter(x), cross, source_bias)
        x = _leave(around, x, layer.cross_attention.output, mixed)
        around = layer.feed_forward_residual
        x = around.leave(x, layer.feed_forward.outer, layer.feed_forward(around.enter(x)))
    hidden: Tensor = model.decoder_norm(x)
    return hidden


def _own_past(module: SelfAttention, x: Tensor, own: Tensor, *, place: Tensor, slots: Tensor, past: Tensor) -> Tensor:
    q, new = module.qkv(x).split([module.heads * module.d_k, own.size(-1)], dim=-1)
    q = q.unflatten(-1, (module.heads, module.d_k))
    if module.rotation is not None:
        k, v = new.split([module.heads * module.d_k, module.heads * module.d_v], dim=-1)
        q = module.rotation(q, place)
        k = module.rotation(k.unflatten(-1, (module.heads, module.d_k)), place)
        new = torch.cat([k.flatten(1), v], dim=-1)
    own.index_copy_(1, slots, new.unflatten(0, (len(own), -1)))
    return _mix(q, own, bias=past, d_v=module.d_v)


def _source(module: CrossAttention, x: Tensor, cross: Tensor, source_bias: Tensor) -> Tensor:
    q = module.q(x).unflatten(-1, (module.heads, module.d_k))
    return _mix(q, cross, bias=source_bias, d_v=module.d_v)


def _mix(q: Tensor, keys_values: Tensor, *, bias: Tensor, d_v: int) -> Tensor:
    """softmax(Q K^T / sqrt(d_k) + bias) V by rows, [R, H * V], for q [R, H, K] and keys_values [B, C, H * (K + V)]."""
    heads, d_k = q.size(1), q.size(2)
    keys, values = keys_values.split([heads * d_k, heads * d_v], dim=-1)
    q_BHWK = q.unflatten(0, (len(keys_values), -1)).transpose(1, 2)
    k_BHCK = keys.unflatten(-1, (heads, d_k)).transpose(1, 2)
    v_BHCV = values.unflatten(-1, (heads, d_v)).transpose(1, 2)
    with sdpa_kernel(_KERNELS):
        mixed_BHWV = F.scaled_dot_product_attention(q_BHWK, k_BHCK, v_BHCV, attn_mask=bias)
    return mixed_BHWV.transpose(1, 2).flatten(0, 1).flatten(1)


def _leave(around: Residual, x: Tensor, linear: nn.Linear, mixed: Tensor) -> Tensor:
    """The new x [R, D] from the old one, which is written over, and the product of `linear` with mixed [R, H * V]."""
    x = x.addmm_(mixed, linear.weight.mT) if linear.bias is None else x + linear(mixed)
    return x if around.is_pre_norm else around.norm(x)


def _self_attention(layer: nn.Module) -> SelfAttention:
    assert isinstance(layer, DecoderLayer)
    return layer.self_attention
