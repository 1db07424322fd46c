"""The weights of a Transformer under MarianMTModel's names: read for an export, and overwritten for an import.

The layers of M2M-100 have the same names.

Marian's position encodings are all sines, then all cosines. The paper's alternate. A Transformer does not depend on the
order of d_model, so one reordering of every matrix along d_model turns one layout into the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from nmt_cli.artifacts.model_directory import SavedModelConfig, new_model
from nmt_cli.artifacts.weights import (
    check_finite,
    check_names_and_shapes,
    load_weights,
    uninitialized_model,
    weights_of,
)
from nmt_cli.interchange.marian_model import FETCH_AGAIN, MASKED_LOGIT, MarianModel, TensorName
from nmt_cli.interchange.marian_vocabulary import VocabularyRow
from nmt_cli.model.layers import CrossAttention, DecoderLayer, EncoderLayer, Residual, SelfAttention
from nmt_cli.model.transformer import Transformer
from nmt_cli.model.weight_layout import Affine, affine_of, attention_projections
from nmt_cli.tokenization.tokenizer import BOS

_ROWS_AT_ONCE = 1 << 13  # rows of a vocabulary that are in memory a third time


def marian_weights(model: Transformer) -> dict[str, Tensor]:
    """The weights as MarianMTModel has them: its names, its shapes, and its order of the dimensions of d_model."""
    weights = _by_marian_names(model)
    is_reordered = model.config.positions == "sinusoidal"
    return _reorder_d_model(weights, marian_order(model.config.d_model)) if is_reordered else weights


def model_from_marian(
    marian: MarianModel, config: SavedModelConfig, *, source: Sequence[VocabularyRow], target: Sequence[VocabularyRow]
) -> Transformer:
    """The model of this description with Marian's weights, in eval mode: rows by our ids, d_model in our order.

    Raises ModelError for the first tensor that is missing, unexpected, of another shape, or not finite.
    """
    architecture, settings = config.recipe.model, marian.settings
    where = str(marian.file if marian.kind == "npz" else marian.directory)
    hint = f"{FETCH_AGAIN}; or use the program that made it"
    theirs = dict(marian.weights)
    if TensorName.SHARED in theirs and not architecture.ties.source:
        theirs[TensorName.SOURCE] = theirs[TensorName.TARGET] = theirs.pop(TensorName.SHARED)
    original = uninitialized_model(architecture, source_vocab=settings.vocab_size, target_vocab=settings.target_rows)
    check_names_and_shapes(theirs, expected=_by_marian_names(original), where=where, hint=hint)
    if architecture.positions == "sinusoidal":
        theirs = _reorder_d_model(theirs, marian_order(architecture.d_model).argsort())
    # Zeros stay in what Marian lacks. All else is written through views of our weights under Marian's names.
    model = new_model(config)
    zeros = {name: torch.zeros(()).expand(parameter.shape) for name, parameter in weights_of(model).items()}
    load_weights(model, zeros, where=where, hint=hint)
    for name, view in _by_marian_names(model).items():
        check_finite(name, theirs[name], where=where, hint=hint)
        if name == TensorName.BIAS:
            _copy_by_our_ids(view[0], theirs[name][0], target, missing=MASKED_LOGIT)
            if settings.decoder_start_token_id == settings.eos_token_id:  # our start is a second row of it
                view[0, BOS] = MASKED_LOGIT
        elif name in (TensorName.SHARED, TensorName.SOURCE, TensorName.TARGET, TensorName.OUTPUT):
            _copy_by_our_ids(view, theirs[name], source if name == TensorName.SOURCE else target, missing=0.0)
        else:
            view.copy_(theirs[name])
    return model.eval()


def marian_order(d_model: int) -> Tensor:
    """The index in our d_model of each of Marian's dimensions, [D]: even ones (sines), then odd ones (cosines)."""
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])


def _by_marian_names(model: Transformer) -> dict[str, Tensor]:
    """The weights by MarianMTModel's names, with d_model in our order.

    They share memory with the model, except for what it lacks and zeros stand for: biases, and the rest of narrow
    heads.
    """
    config = model.config
    source = model.source_embedding.weight.detach()[: model.source_vocab]
    target = model.target_embedding.weight.detach()[: model.target_vocab]
    weights = (
        {TensorName.SHARED: source} if config.ties.source else {TensorName.SOURCE: source, TensorName.TARGET: target}
    )
    if not config.ties.output:
        weights[TensorName.OUTPUT] = model.output_weight.detach()[: model.target_vocab]
    bias = torch.zeros(model.target_vocab) if model.output_bias is None else model.output_bias.detach()
    weights[TensorName.BIAS] = bias[None, : model.target_vocab]
    if config.positions in ("sinusoidal-halves", "learned"):
        tables = (embedding.positions.table.detach() for embedding in (model.source_embedding, model.target_embedding))
        weights |= zip(TensorName.POSITIONS, tables, strict=True)
    for side, layers, norm in (
        ("encoder", model.encoder, model.encoder_norm),
        ("decoder", model.decoder, model.decoder_norm),
    ):
        for number, layer in enumerate(layers):
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            weights |= _layer_weights(layer, f"model.{side}.layers.{number}", width=config.d_model // config.heads)
        if config.is_pre_norm:
            weights |= _norm(f"model.{side}.layer_norm", norm)
    return weights


def _layer_weights(layer: EncoderLayer | DecoderLayer, prefix: str, *, width: int) -> dict[str, Tensor]:
    """One layer's weights by MarianMTModel's names, with heads of this width."""
    attentions: dict[str, tuple[SelfAttention | CrossAttention, Residual]]
    attentions = {"self_attn": (layer.self_attention, layer.self_attention_residual)}
    if isinstance(layer, DecoderLayer):
        attentions["encoder_attn"] = (layer.cross_attention, layer.cross_attention_residual)
    weights: dict[str, Tensor] = {}
    for name, (attention, residual) in attentions.items():
        parts = attention_projections(attention, width=width)
        for kind, projection in (("q", parts.q), ("k", parts.k), ("v", parts.v), ("out", parts.output)):
            weights |= _linear(f"{prefix}.{name}.{kind}_proj", projection)
        weights |= _norm(f"{prefix}.{name}_layer_norm", residual.norm)
    weights |= _linear(f"{prefix}.fc1", affine_of(layer.feed_forward.inner))
    weights |= _linear(f"{prefix}.fc2", affine_of(layer.feed_forward.outer))
    return weights | _norm(f"{prefix}.final_layer_norm", layer.feed_forward_residual.norm)


def _linear(name: str, projection: Affine) -> dict[str, Tensor]:
    """A projection by Marian's names; a missing bias becomes zeros."""
    bias = projection.bias if projection.bias is not None else projection.weight.new_zeros(len(projection.weight))
    return {f"{name}.weight": projection.weight, f"{name}.bias": bias}


def _norm(name: str, norm: nn.Module) -> dict[str, Tensor]:
    assert isinstance(norm, nn.LayerNorm)
    return {f"{name}.weight": norm.weight.detach(), f"{name}.bias": norm.bias.detach()}


def _copy_by_our_ids(ours: Tensor, theirs: Tensor, rows: Sequence[VocabularyRow], *, missing: float) -> None:
    """Copy the rows (or elements) of `theirs` in our order; a row that they lack is filled with `missing`."""
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        ours[part] = theirs[[row.marian_id or 0 for row in rows[part]]]
    for number, row in enumerate(rows):
        if row.marian_id is None:
            ours[number] = missing


def _reorder_d_model(weights: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """The weights with d_model in another order [D]: the output of norms, out_proj and fc2, the input of others."""

    def reorder(name: str, tensor: Tensor) -> Tensor:
        if name == TensorName.BIAS:
            return tensor
        module, kind = name.split(".")[-2:]
        if module.endswith("layer_norm") or module in ("out_proj", "fc2"):
            return tensor[order]
        return tensor[:, order] if kind == "weight" else tensor

    return {name: reorder(name, tensor) for name, tensor in weights.items()}
