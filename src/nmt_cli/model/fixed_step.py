"""A decoder's step in memory of fixed shapes and addresses, so that a GPU can record it and repeat it.

Shapes: B sentences, W hypotheses per sentence, R = B * W rows, S source tokens, L positions, D d_model, H heads,
K = d_k, V = d_v.

A GPU runs kernels in Triton (`kernels/decoding.py`), which see the past of a hypothesis only. Without Triton, torch's
operators do the same with masks over all slots. Each pair stands in one function.
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
from nmt_cli.model.layers import CrossAttention, DecoderLayer, FeedForward, SelfAttention
from nmt_cli.model.packing import Packed, to_rectangle
from nmt_cli.model.transformer import Embedding, Transformer

logger = logging.getLogger(__name__)

# The first takes such masks as they are; cuDNN's would be planned anew for each size.
_BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_TILE = 64  # keys that a kernel looks at together


@dataclass(frozen=True, slots=True)
class FixedCache:
    """Keys and values of each decoder layer: `own` [B, L * W, H * (K + V)], and `cross` [B, S, H * (K + V)].

    The slot of a token is position * W + number of its hypothesis. All are finite, written or not.
    """

    own: list[Tensor]
    cross: list[Tensor]


class Seen(NamedTuple):
    """What the hypotheses attend to: their own past, by `ancestors` [B, W, L], and sources of `source_lengths` [B].

    `ancestors` says which of the W hypotheses each one was at each position before `counters[0]`, the present position.
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


def fixed_widths(model: Transformer) -> list[int]:
    """H * (K + V) of each decoder layer."""
    return [
        layer.self_attention.heads * (layer.self_attention.d_k + layer.self_attention.d_v) for layer in _layers(model)
    ]


def write_source(model: Transformer, cache: FixedCache, memory: Tensor, source: Packed) -> None:
    """Put the keys and values of memory [M, D] into the first places of `cross`."""
    for layer, kept in zip(_layers(model), cache.cross, strict=True):
        kept[: source.num_sentences, : source.max_len] = to_rectangle(layer.cross_attention.kv(memory), source)


def fixed_step(model: Transformer, ids: Tensor, cache: FixedCache, seen: Seen, *, is_fused: bool) -> Tensor:
    """The decoder's output [R, D] for one more token ids [R] per row, whose keys and values go into the cache.

    Nothing waits for the device, and no launch depends on the content of a tensor. `is_fused` chooses the kernels.
    """
    biases = None if is_fused else _biases(seen, cache, like=model.output_weight)
    x = _embed(model.target_embedding, ids, seen.counters, is_fused=is_fused)
    is_pre_norm = model.config.norm == "pre"
    norms = _norms(model)
    y = next(norms)(x) if is_pre_norm else x
    for layer, own, cross in zip(_layers(model), cache.own, cache.cross, strict=True):
        for sublayer in (
            partial(_own_past, layer.self_attention, own, seen, biases),
            partial(_source, layer.cross_attention, cross, seen, biases),
            partial(_feed_forward, layer.feed_forward),
        ):
            out, bias = sublayer(y)
            x, y = _add_norm(x, out, bias, next(norms), is_pre_norm=is_pre_norm, is_fused=is_fused)
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


def _biases(seen: Seen, cache: FixedCache, *, like: Tensor) -> _Biases:
    """0 at what a hypothesis sees, its own slot too, and -inf elsewhere."""
    beam, length = seen.ancestors.shape[1:]
    numbers = torch.arange(beam, device=like.device)
    positions = torch.arange(length, device=like.device)[:, None]
    place = seen.counters[0]
    is_past = (seen.ancestors[..., None] == numbers) & (positions < place)
    is_own = (numbers[:, None, None] == numbers) & (positions == place)
    slots = torch.arange(cache.cross[0].size(1), device=like.device)
    is_source = slots < seen.source_lengths[:, None]
    past, source = (
        torch.zeros_like(mask, dtype=like.dtype).masked_fill_(~mask, -torch.inf)
        for mask in (is_past | is_own, is_source)
    )
    return _Biases(past.flatten(2)[:, None], source[:, None, None])


def _embed(embedding: Embedding, ids: Tensor, counters: Tensor, *, is_fused: bool) -> Tensor:
    """x [R, D] of tokens ids [R] at position `counters[0]`."""
    if not is_fused:
        x: Tensor = embedding(ids, counters[:1])
        return x
    from nmt_cli.model.kernels import decoding

    weight, table = embedding.weight, embedding.positions.table
    out = weight.new_empty(len(ids), weight.size(1))
    width = weight.size(1)
    decoding.embed[(len(ids),)](
        ids,
        weight,
        table if len(table) else None,
        counters,
        out,
        embedding.scale,
        WIDTH=width,
        COLUMNS=_power(width),
    )
    return out


def _own_past(
    module: SelfAttention, own: Tensor, seen: Seen, biases: _Biases | None, x: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Self-attention of x [R, D], whose keys and values go into `own`: [R, D], and a bias that is yet to be added."""
    qkv = module.qkv(x)
    beam, length = seen.ancestors.shape[1:]
    if biases is not None:
        q, new = qkv.split([module.heads * module.d_k, own.size(-1)], dim=-1)
        q = q.unflatten(-1, (module.heads, module.d_k))
        place = seen.counters[:1]
        if module.rotation is not None:
            k, v = new.split([module.heads * module.d_k, module.heads * module.d_v], dim=-1)
            q = module.rotation(q, place)
            k = module.rotation(k.unflatten(-1, (module.heads, module.d_k)), place)
            new = torch.cat([k.flatten(1), v], dim=-1)
        own.unflatten(1, (length, beam)).index_copy_(1, place, new.view(-1, 1, beam, new.size(-1)))
        return _output(module, _mix(q, own, bias=biases.past, d_v=module.d_v))
    from nmt_cli.model.kernels import decoding

    out = qkv.new_empty(len(qkv), module.heads * module.d_v)
    rotation = module.rotation
    decoding.attend_to_past[(len(qkv), module.heads)](
        qkv,
        own,
        seen.ancestors,
        seen.counters,
        None if rotation is None else rotation.cos,
        None if rotation is None else rotation.sin,
        out,
        beam,
        length,
        module.d_k**-0.5,
        HEADS=module.heads,
        D_K=module.d_k,
        D_V=module.d_v,
        KEYS=_power(module.d_k),
        VALUES=_power(module.d_v),
        TILE=_TILE,
    )
    return _output(module, out)


def _source(
    module: CrossAttention, cross: Tensor, seen: Seen, biases: _Biases | None, x: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Attention of x [R, D] to the source: [R, D], and a bias that is yet to be added."""
    q: Tensor = module.q(x)
    if biases is not None:
        q = q.unflatten(-1, (module.heads, module.d_k))
        return _output(module, _mix(q, cross, bias=biases.source, d_v=module.d_v))
    from nmt_cli.model.kernels import decoding

    out = q.new_empty(len(q), module.heads * module.d_v)
    decoding.attend_to_source[(len(q), module.heads)](
        q,
        cross,
        seen.source_lengths,
        out,
        seen.ancestors.size(1),
        cross.size(1),
        module.d_k**-0.5,
        HEADS=module.heads,
        D_K=module.d_k,
        D_V=module.d_v,
        KEYS=_power(module.d_k),
        VALUES=_power(module.d_v),
        TILE=_TILE,
    )
    return _output(module, out)


def _mix(q: Tensor, keys_values: Tensor, *, bias: Tensor, d_v: int) -> Tensor:
    """softmax(Q K^T / sqrt(d_k) + bias) V by rows, [R, H * V], for q [R, H, K] and keys_values [B, C, H * (K + V)]."""
    heads, d_k = q.size(1), q.size(2)
    keys, values = keys_values.split([heads * d_k, heads * d_v], dim=-1)
    q_BHWK = q.unflatten(0, (len(keys_values), -1)).transpose(1, 2)
    k_BHCK = keys.unflatten(-1, (heads, d_k)).transpose(1, 2)
    v_BHCV = values.unflatten(-1, (heads, d_v)).transpose(1, 2)
    with sdpa_kernel(_BACKENDS):
        mixed_BHWV = F.scaled_dot_product_attention(q_BHWK, k_BHCK, v_BHCV, attn_mask=bias)
    return mixed_BHWV.transpose(1, 2).flatten(0, 1).flatten(1)


def _output(module: SelfAttention | CrossAttention, mixed: Tensor) -> tuple[Tensor, Tensor | None]:
    return F.linear(mixed, module.output.weight), module.output.bias


def _feed_forward(module: FeedForward, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """The feed-forward network of x [R, D]: [R, D], and a bias that is yet to be added."""
    if module.activation == "relu":
        # On CUDA the product adds the bias and applies ReLU before it writes its result.
        hidden = torch._addmm_activation(module.inner.bias, x, module.inner.weight.mT)
    else:
        hidden = module(x)
    return F.linear(hidden, module.outer.weight), module.outer.bias


def _add_norm(
    x: Tensor, out: Tensor, bias: Tensor | None, norm: nn.Module, *, is_pre_norm: bool, is_fused: bool
) -> tuple[Tensor, Tensor]:
    """The new x [R, D] after a sub-layer, and what the next one is given; the same if norms come after sub-layers.

    The old x may be written over.
    """
    if not is_fused:
        x = x + (out if bias is None else out + bias)
        y: Tensor = norm(x)
        return (x if is_pre_norm else y), y
    from nmt_cli.model.kernels import decoding

    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    y = torch.empty_like(x)
    is_rms = isinstance(norm, nn.RMSNorm)
    decoding.add_norm[(len(x),)](
        x,
        out,
        bias,
        norm.weight,
        None if is_rms else norm.bias,
        y,
        norm.eps,
        WIDTH=x.size(1),
        COLUMNS=_power(x.size(1)),
        IS_RMS=is_rms,
        KEEPS_SUM=is_pre_norm,
    )
    return (x if is_pre_norm else y), y


def _power(number: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << (number - 1).bit_length()
