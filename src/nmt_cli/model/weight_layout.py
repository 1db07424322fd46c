"""What other programs support of a model, and the weights of a layer as they lay them out: heads have one width.

Shapes: D d_model, H heads, K = d_k, V = d_v, W the width that all heads are padded to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nmt_cli.errors import ModelError
from nmt_cli.model.layers import CrossAttention, SelfAttention
from nmt_cli.model.transformer import Transformer, sinusoids
from nmt_cli.recipe.schema import DROPOUTS, ModelConfig

# Settings that are no obstacle, or are checked elsewhere: sizes, biases, and those of training.
_SIZES = frozenset({"encoder_layers", "decoder_layers", "d_model", "d_ff", "heads", "d_k", "d_v", "max_positions"})
_ALWAYS_SUPPORTED = DROPOUTS | _SIZES | {"norm_epsilon", "attention_bias", "output_bias", "embedding_multiple"}


@dataclass(frozen=True, slots=True)
class Affine:
    """A matrix [out, in] and, if the layer has one, a bias [out]."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionProjections:
    """Queries, keys and values [H * W, D], and the output [D, H * W]."""

    q: Affine
    k: Affine
    v: Affine
    output: Affine


def check_supported(
    config: ModelConfig, *, program: str, supported: Mapping[str, Collection[object]], hint: str
) -> None:
    """Raise ModelError for the first setting whose value `program` does not support.

    `supported` has the values that it supports, by setting; of any other setting, also of a new one, the default.
    """
    for key, field in ModelConfig.model_fields.items():
        if key not in _ALWAYS_SUPPORTED and (value := getattr(config, key)) not in supported.get(key, [field.default]):
            message = f"{program} has no place for a model with {key}: {value}"
            raise ModelError(message, where=f"model.{key}", hint=hint)


def affine_of(linear: nn.Linear) -> Affine:
    """The weights of a linear layer."""
    return Affine(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())


def attention_projections(module: SelfAttention | CrossAttention, *, width: int) -> AttentionProjections:
    """The projections of an attention with its heads padded by zeros to `width`.

    Padded queries and keys have the same products. Other programs divide them by the root of the width instead of d_k,
    so queries are scaled up.
    """
    heads, d_k, d_v = module.heads, module.d_k, module.d_v
    if isinstance(module, SelfAttention):
        q, k, v = split(affine_of(module.qkv), [heads * d_k, heads * d_k, heads * d_v])
    else:
        q = affine_of(module.q)
        k, v = split(affine_of(module.kv), [heads * d_k, heads * d_v])
    output = affine_of(module.output)
    return AttentionProjections(
        q=_pad_heads(q, heads, width, scale=(width / d_k) ** 0.5),
        k=_pad_heads(k, heads, width),
        v=_pad_heads(v, heads, width),
        # The output matrix has its heads in columns. The other matrices have them in rows.
        output=Affine(_pad_heads(Affine(output.weight.mT, None), heads, width).weight.mT, output.bias),
    )


def positions_table(model: Transformer, *, side: str, at_least: int) -> Tensor:
    """The position encodings [positions, D] of the `source` or the `target` side; zeros if positions are rotary.

    The paper's sinusoids have `at_least` this many rows; other tables are as they are.
    """
    config = model.config
    if config.positions == "sinusoidal" and config.max_positions < at_least:
        return sinusoids(at_least, config.d_model)
    embedding = model.source_embedding if side == "source" else model.target_embedding
    table = embedding.positions.table.detach()
    return table.new_zeros(at_least, config.d_model) if config.is_rotary else table


def stack(*parts: Affine) -> Affine:
    """Projections of the same input as one."""
    biases = [part.bias for part in parts if part.bias is not None]
    assert len(biases) in (0, len(parts))
    return Affine(torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None)


def split(stacked: Affine, sizes: list[int]) -> list[Affine]:
    """Projections of the same input, with these numbers of rows."""
    biases = [None] * len(sizes) if stacked.bias is None else stacked.bias.split(sizes)
    return [Affine(weight, bias) for weight, bias in zip(stacked.weight.split(sizes), biases, strict=True)]


def _pad_heads(projection: Affine, heads: int, width: int, *, scale: float = 1.0) -> Affine:
    """The projection [H * K, .] with zeros to [H * W, .] after each head's rows, times `scale`; itself if K = W."""
    if len(projection.weight) == heads * width:
        return projection

    def pad(rows: Tensor) -> Tensor:
        by_head = rows.unflatten(0, (heads, -1))
        padded = rows.new_zeros(heads, width, *rows.shape[1:])
        padded[:, : by_head.size(1)] = by_head * scale
        return padded.flatten(0, 1)

    return Affine(pad(projection.weight), None if projection.bias is None else pad(projection.bias))
