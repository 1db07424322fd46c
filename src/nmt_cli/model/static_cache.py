"""A decoder's step in memory of fixed shapes and addresses, so that a GPU can record it and repeat it.

Shapes: B sentences, W hypotheses per sentence, R = B * W rows, S source tokens, L positions, D d_model, H heads,
K = d_k, V = d_v.

A GPU runs kernels in Triton (`kernels/decoding.py`), which see the past of a hypothesis only. Without Triton, the
model's own layers do the same with masks over all slots.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from nmt_cli.devices import is_out_of_memory
from nmt_cli.model.layers import CrossAttention, DecoderLayer, FeedForward, SelfAttention, linear_relu
from nmt_cli.model.packing import Packed, to_rectangle
from nmt_cli.model.transformer import Embedding, Transformer

logger = logging.getLogger(__name__)

# The first takes such masks as they are; cuDNN's would be planned anew for each size.
_BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_TILE = 64  # keys that a kernel looks at together


@dataclass(frozen=True, slots=True)
class StaticCache:
    """Keys and values of each decoder layer: `own` [B, L * W, H * (K + V)], and `cross` [B, S, H * (K + V)].

    The slot of a token is position * W + number of its hypothesis. All are finite, written or not.
    """

    own: list[Tensor]
    cross: list[Tensor]


class StepInputs(NamedTuple):
    """Where hypotheses attend: `ancestors` [B, W, L] for their past, `source_lengths` [B] for the sources.

    `ancestors` has the number, below W, of each hypothesis's ancestor at each position before `counters[0]`, the
    current position.
    """

    ancestors: Tensor
    source_lengths: Tensor
    counters: Tensor


class _Biases(NamedTuple):
    """Masks that torch's attention adds to scores: of slots, `past` [B, 1, W, L * W], and `source` [B, 1, 1, S]."""

    past: Tensor
    source: Tensor


def can_use_kernels(device: torch.device) -> bool:
    """Whether the device runs our kernels; a warning says why a GPU does not."""
    if device.type != "cuda":
        return False
    try:
        from nmt_cli.model.kernels import decoding

        decoding.check(device)
    except (ImportError, RuntimeError) as problem:
        if is_out_of_memory(problem):
            raise
        reason = str(problem).strip().partition("\n")[0]
        logger.warning("no kernels in Triton (%s): the search launches more of torch's, and is slower", reason)
        return False
    return True


def cache_widths(model: Transformer) -> list[int]:
    """H * (K + V) of each decoder layer."""
    return [
        layer.self_attention.heads * (layer.self_attention.d_k + layer.self_attention.d_v) for layer in _layers(model)
    ]


def write_source(model: Transformer, cache: StaticCache, memory: Tensor, source: Packed) -> None:
    """Put the keys and values of memory [M, D] into the first places of `cross`."""
    for layer, kept in zip(_layers(model), cache.cross, strict=True):
        kept[: source.num_sentences, : source.max_len] = to_rectangle(layer.cross_attention.kv(memory), source)


def static_step(model: Transformer, ids: Tensor, cache: StaticCache, inputs: StepInputs, *, is_fused: bool) -> Tensor:
    """The decoder's output [R, D] for one more token ids [R] per row, whose keys and values go into the cache.

    Nothing waits for the device, and no launch depends on the content of a tensor. `is_fused` chooses our kernels.
    """
    if is_fused:
        return _fused_step(model, ids, cache, inputs)
    biases = _biases(inputs, cache, like=model.output_weight)
    x: Tensor = model.target_embedding(ids, inputs.counters[:1])
    for layer, own, cross in zip(_layers(model), cache.own, cache.cross, strict=True):
        x = layer(
            x,
            own=partial(_attend_past, kept=own, inputs=inputs, bias=biases.past),
            cross=partial(_attend_source, kept=cross, bias=biases.source),
        )
    hidden: Tensor = model.decoder_norm(x)
    return hidden


def _fused_step(model: Transformer, ids: Tensor, cache: StaticCache, inputs: StepInputs) -> Tensor:
    """The same in our kernels: one adds a sub-layer's output, and normalises for the next sub-layer."""
    from nmt_cli.model.kernels.layers import add_norm

    x = _embed_fused(model.target_embedding, ids, inputs.counters)
    is_pre_norm = model.config.norm == "pre"
    norms = _norms(model)
    y = next(norms)(x) if is_pre_norm else x
    for layer, own, cross in zip(_layers(model), cache.own, cache.cross, strict=True):
        for output, sublayer in (
            (layer.self_attention.output, partial(_attend_past_fused, layer.self_attention, kept=own, inputs=inputs)),
            (
                layer.cross_attention.output,
                partial(_attend_source_fused, layer.cross_attention, kept=cross, inputs=inputs),
            ),
            (layer.feed_forward.outer, partial(_feed_forward_fused, layer.feed_forward)),
        ):
            norm = next(norms)
            assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
            y = add_norm(x, F.linear(sublayer(y), output.weight), output.bias, norm, keeps_sum=is_pre_norm)
            x = x if is_pre_norm else y
    return y


def _layers(model: Transformer) -> Iterator[DecoderLayer]:
    for layer in model.decoder:
        assert isinstance(layer, DecoderLayer)
        yield layer


def _norms(model: Transformer) -> Iterator[nn.Module]:
    """The norms in the order of their use."""
    for layer in _layers(model):
        yield layer.self_attention_residual.norm
        yield layer.cross_attention_residual.norm
        yield layer.feed_forward_residual.norm
    yield model.decoder_norm


def _biases(inputs: StepInputs, cache: StaticCache, *, like: Tensor) -> _Biases:
    """0 at what a hypothesis sees, its own slot too, and -inf elsewhere."""
    beam, length = inputs.ancestors.shape[1:]
    numbers = torch.arange(beam, device=like.device)
    positions = torch.arange(length, device=like.device)[:, None]
    place = inputs.counters[0]
    is_past = (inputs.ancestors[..., None] == numbers) & (positions < place)
    is_own = (numbers[:, None, None] == numbers) & (positions == place)
    slots = torch.arange(cache.cross[0].size(1), device=like.device)
    is_source = slots < inputs.source_lengths[:, None]
    past, source = (
        torch.zeros_like(mask, dtype=like.dtype).masked_fill_(~mask, -torch.inf)
        for mask in (is_past | is_own, is_source)
    )
    return _Biases(past.flatten(2)[:, None], source[:, None, None])


def _attend_past(module: SelfAttention, x: Tensor, *, kept: Tensor, inputs: StepInputs, bias: Tensor) -> Tensor:
    """Self-attention of x [R, D], whose keys and values go into `kept`: [R, H * V]."""
    beam, length = inputs.ancestors.shape[1:]
    place = inputs.counters[:1]
    q, new = module.qkv(x).split([module.heads * module.d_k, kept.size(-1)], dim=-1)
    q = q.unflatten(-1, (module.heads, module.d_k))
    if module.rotation is not None:
        k, v = new.split([module.heads * module.d_k, module.heads * module.d_v], dim=-1)
        q = module.rotation(q, place)
        k = module.rotation(k.unflatten(-1, (module.heads, module.d_k)), place)
        new = torch.cat([k.flatten(1), v], dim=-1)
    kept.unflatten(1, (length, beam)).index_copy_(1, place, new.view(-1, 1, beam, new.size(-1)))
    return _mix(q, kept, bias=bias, d_v=module.d_v)


def _attend_source(module: CrossAttention, x: Tensor, *, kept: Tensor, bias: Tensor) -> Tensor:
    """Attention of x [R, D] to the source: [R, H * V]."""
    q: Tensor = module.q(x)
    return _mix(q.unflatten(-1, (module.heads, module.d_k)), kept, bias=bias, d_v=module.d_v)


def _mix(q: Tensor, keys_values: Tensor, *, bias: Tensor, d_v: int) -> Tensor:
    """Attention by rows, softmax(Q K^T / sqrt(d_k) + bias) V.

    q [R, H, K] and keys_values [B, C, H * (K + V)] give [R, H * V].
    """
    heads, d_k = q.size(1), q.size(2)
    keys, values = keys_values.split([heads * d_k, heads * d_v], dim=-1)
    q_BHWK = q.unflatten(0, (len(keys_values), -1)).transpose(1, 2)
    k_BHCK = keys.unflatten(-1, (heads, d_k)).transpose(1, 2)
    v_BHCV = values.unflatten(-1, (heads, d_v)).transpose(1, 2)
    with sdpa_kernel(_BACKENDS):
        mixed_BHWV = F.scaled_dot_product_attention(q_BHWK, k_BHCK, v_BHCV, attn_mask=bias)
    return mixed_BHWV.transpose(1, 2).flatten(0, 1).flatten(1)


def _embed_fused(embedding: Embedding, ids: Tensor, counters: Tensor) -> Tensor:
    """x [R, D] of tokens ids [R] at position `counters[0]`."""
    import triton

    from nmt_cli.model.kernels import decoding

    weight, table = embedding.weight, embedding.positions.table
    width = weight.size(1)
    out = weight.new_empty(len(ids), width)
    decoding.embed[(len(ids),)](
        ids,
        weight,
        table if len(table) else None,
        counters,
        out,
        embedding.scale,
        WIDTH=width,
        COLUMNS=triton.next_power_of_2(width),
    )
    return out


def _attend_past_fused(module: SelfAttention, x: Tensor, *, kept: Tensor, inputs: StepInputs) -> Tensor:
    """Self-attention of x [R, D], whose keys and values go into `kept`: [R, H * V]."""
    from nmt_cli.model.kernels import decoding

    qkv: Tensor = module.qkv(x)
    rotation = module.rotation
    out = qkv.new_empty(len(qkv), module.heads * module.d_v)
    decoding.attend_to_past[(len(qkv), module.heads)](
        qkv,
        kept,
        inputs.ancestors,
        inputs.counters,
        None if rotation is None else rotation.cos,
        None if rotation is None else rotation.sin,
        out,
        *inputs.ancestors.shape[1:],
        module.d_k**-0.5,
        **_widths(module),
    )
    return out


def _attend_source_fused(module: CrossAttention, x: Tensor, *, kept: Tensor, inputs: StepInputs) -> Tensor:
    """Attention of x [R, D] to the source: [R, H * V]."""
    from nmt_cli.model.kernels import decoding

    q: Tensor = module.q(x)
    out = q.new_empty(len(q), module.heads * module.d_v)
    decoding.attend_to_source[(len(q), module.heads)](
        q,
        kept,
        inputs.source_lengths,
        out,
        inputs.ancestors.size(1),
        kept.size(1),
        module.d_k**-0.5,
        **_widths(module),
    )
    return out


def _feed_forward_fused(module: FeedForward, x: Tensor) -> Tensor:
    """The feed-forward network of x [R, D] before its second matrix, [R, F]."""
    if module.activation == "relu":
        return linear_relu(x, module.inner.weight, module.inner.bias)
    hidden: Tensor = module(x)
    return hidden


def _widths(module: SelfAttention | CrossAttention) -> dict[str, int]:
    """The constants that a kernel of attention is compiled with."""
    import triton

    return {
        "HEADS": module.heads,
        "D_K": module.d_k,
        "D_V": module.d_v,
        "KEYS": triton.next_power_of_2(module.d_k),
        "VALUES": triton.next_power_of_2(module.d_v),
        "TILE": _TILE,
    }
