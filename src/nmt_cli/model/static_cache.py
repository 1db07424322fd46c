"""A decoder's step in memory of fixed shapes and addresses, so that a GPU can record it and repeat it.

Shapes: B sentences, W hypotheses per sentence, R = B * W rows, S source tokens, L positions, D d_model, H heads,
K = d_k, V = d_v.

The kernels are in Triton (`kernels/search.py`), and look only at the past of a hypothesis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from nmt_cli.model.layers import CrossAttention, DecoderLayer, Norm, SelfAttention
from nmt_cli.model.packing import Packed, to_rectangle
from nmt_cli.model.transformer import Embedding, Transformer

_KEYS_PER_TILE = 64  # keys that a kernel looks at together


@dataclass(frozen=True, slots=True)
class StaticCache:
    """Keys and values of each decoder layer: `own` [B, L * W, H * (K + V)], and `cross` [B, S, H * (K + V)].

    The slot of a token is position * W + number of its hypothesis. Unused slots hold finite numbers,
    because a weight of 0 times infinity is NaN.
    """

    own: list[Tensor]
    cross: list[Tensor]


class StepInputs(NamedTuple):
    """The slots and source tokens that each hypothesis sees at the current position.

    `ancestors` [B, W, L] has the number, below W, of each hypothesis's ancestor at each earlier position.
    `source_lengths` [B] are in tokens.
    """

    ancestors: Tensor
    source_lengths: Tensor
    counters: Tensor


def cache_width(model: Transformer) -> int:
    """H * (K + V), the same in each decoder layer."""
    config = model.config
    return config.heads * (config.d_k + config.d_v)


def write_source(model: Transformer, cache: StaticCache, memory: Tensor, source: Packed) -> None:
    """Put the keys and values of memory [M, D] into the first rows and slots of `cross`."""
    for layer, cross in zip(_layers(model), cache.cross, strict=True):
        cross[: source.num_sentences, : source.max_len] = to_rectangle(layer.cross_attention.kv(memory), source)


def static_step(model: Transformer, ids: Tensor, cache: StaticCache, inputs: StepInputs) -> Tensor:
    """The decoder's output [R, D] for one more token ids [R] per row, whose keys and values go into the cache.

    The host never waits for the device, and no launch depends on the content of a tensor. One kernel adds a sub-layer's
    output and normalises for the next.
    """
    from nmt_cli.model.kernels.residual_norm import add_norm

    x = _embed(model.target_embedding, ids, inputs.counters)
    is_pre_norm = model.config.is_pre_norm
    norms = _norms(model)
    y = next(norms)(x) if is_pre_norm else x

    def add_and_norm(x: Tensor, last: nn.Linear, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The new x after a sub-layer, and the input of the next sub-layer."""
        y = add_norm(x, F.linear(hidden, last.weight), last.bias, next(norms), updates_x=is_pre_norm)
        return (x if is_pre_norm else y), y

    for layer, own, cross in zip(_layers(model), cache.own, cache.cross, strict=True):
        hidden = _self_attend(layer.self_attention, y, cache=own, inputs=inputs)
        x, y = add_and_norm(x, layer.self_attention.output, hidden)
        hidden = _cross_attend(layer.cross_attention, y, cache=cross, inputs=inputs)
        x, y = add_and_norm(x, layer.cross_attention.output, hidden)
        x, y = add_and_norm(x, layer.feed_forward.outer, layer.feed_forward.hidden_on_gpu(y))
    return y


def _layers(model: Transformer) -> Iterator[DecoderLayer]:
    for layer in model.decoder:
        assert isinstance(layer, DecoderLayer)
        yield layer


def _norms(model: Transformer) -> Iterator[Norm]:
    """The norms in the order of their use: post-norm, after each sub-layer; pre-norm, before each and at the end."""
    for layer in _layers(model):
        yield layer.self_attention_residual.norm
        yield layer.cross_attention_residual.norm
        yield layer.feed_forward_residual.norm
    if not isinstance(model.decoder_norm, nn.Identity):
        yield model.decoder_norm


def _embed(embedding: Embedding, ids: Tensor, counters: Tensor) -> Tensor:
    """The input [R, D] of the first layer for ids [R] at position `counters[0]`."""
    from triton import next_power_of_2

    from nmt_cli.model.kernels import search as kernels

    weight, table = embedding.weight, embedding.positions.table if len(embedding.positions.table) else None
    width = weight.size(1)
    out = weight.new_empty(len(ids), width)
    kernels.embed[(len(ids),)](
        ids, weight, table, counters, out, embedding.scale, WIDTH=width, COLUMNS=next_power_of_2(width)
    )
    return out


def _self_attend(module: SelfAttention, x: Tensor, *, cache: Tensor, inputs: StepInputs) -> Tensor:
    """Self-attention [R, H * V] of x [R, D], whose keys and values go into `cache`."""
    from nmt_cli.model.kernels import search as kernels

    qkv: Tensor = module.qkv(x)
    cos, sin = (None, None) if module.rotary is None else (module.rotary.cos, module.rotary.sin)
    out = qkv.new_empty(len(qkv), module.heads * module.d_v)
    kernels.attend_to_past[(len(qkv), module.heads)](
        qkv, cache, inputs.ancestors, inputs.counters, cos, sin, out, *inputs.ancestors.shape[1:], module.d_k**-0.5,
        **_kernel_constants(module),
    )  # fmt: skip
    return out


def _cross_attend(module: CrossAttention, x: Tensor, *, cache: Tensor, inputs: StepInputs) -> Tensor:
    """Attention [R, H * V] of x [R, D] to the source."""
    from nmt_cli.model.kernels import search as kernels

    q: Tensor = module.q(x)
    out = q.new_empty(len(q), module.heads * module.d_v)
    kernels.attend_to_source[(len(q), module.heads)](
        q, cache, inputs.source_lengths, out, inputs.ancestors.size(1), cache.size(1), module.d_k**-0.5,
        **_kernel_constants(module),
    )  # fmt: skip
    return out


def _kernel_constants(module: SelfAttention | CrossAttention) -> dict[str, int]:
    """The constants that a kernel of attention is compiled with."""
    import triton

    return {
        "HEADS": module.heads,
        "D_K": module.d_k,
        "D_V": module.d_v,
        "KEYS": triton.next_power_of_2(module.d_k),
        "VALUES": triton.next_power_of_2(module.d_v),
        "TILE": _KEYS_PER_TILE,
    }
