"""A model in CTranslate2's format: model.bin, vocabularies, config.json, and a copy kept beside the model."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt_cli import files
from nmt_cli.artifacts import model_directory
from nmt_cli.artifacts.manifest import MANIFEST, verify_files, write_manifest
from nmt_cli.artifacts.model_directory import LoadedModel
from nmt_cli.decoding.attention_maps import alignment_heads, alignment_layer
from nmt_cli.devices import Quantization
from nmt_cli.errors import ModelError, NmtError, UsageError, import_package
from nmt_cli.model.layers import CrossAttention, DecoderLayer, EncoderLayer, FeedForward, Residual, SelfAttention
from nmt_cli.model.transformer import Transformer
from nmt_cli.model.weight_layout import (
    Affine,
    affine_of,
    attention_projections,
    check_supported,
    positions_table,
    split,
    stack,
)
from nmt_cli.recipe.schema import DecodingConfig, ModelConfig
from nmt_cli.tokenization.tokenizer import BOS, EOS, UNK

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# CTranslate2 refuses sentences longer than this table. Twice a usual model's positions cost little memory.
_MIN_POSITIONS = 2048
logger = logging.getLogger(__name__)
# The version of the output of `write_ctranslate2`; raise it when the output changes.
_CONVERSION_VERSION = 1
# What CTranslate2 computes. Whatever is not here is refused.
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "swiglu": "SWISH"}
_SUPPORTED = {
    "norm": ("post", "pre"),
    "norm_type": ("layer", "rms"),
    "activation": _ACTIVATIONS,
    "positions": ("sinusoidal", "sinusoidal-halves", "sinusoidal-fairseq", "learned", "rotary"),
    "tying": ("all", "target", "none"),
}


import_ctranslate2 = partial(import_package, "ctranslate2", extra="export")


class _CopyUnavailable(NmtError):
    """The copy beside the model is missing, outdated or damaged, or cannot be written."""


def write_ctranslate2(loaded: LoadedModel, directory: Path, *, quantization: Quantization) -> None:
    """Write `model.bin`, `config.json` and the vocabularies into an existing directory, and replace these files.

    UsageError if CTranslate2 is not installed, ModelError if it does not support the model.
    """
    specs = import_ctranslate2().specs
    model, config = loaded.model, loaded.model.config
    _check_supported(config)
    spec = _empty_spec(specs, model)
    _fill_spec(spec, model)
    source = loaded.source.pieces(range(loaded.config.vocabulary.source))
    target = loaded.target.pieces(range(loaded.config.vocabulary.target))
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.bos_token = spec.config.decoder_start_token = target[BOS]
    spec.config.eos_token, spec.config.unk_token = target[EOS], target[UNK]
    spec.config.add_source_bos, spec.config.add_source_eos = False, True
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.validate()
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    spec.save(str(directory))


def _check_supported(config: ModelConfig) -> None:
    """Raise ModelError for a model that CTranslate2 does not support."""
    hint = "nmt decode with `engine: torch` takes it"
    check_supported(config, program="CTranslate2", supported=_SUPPORTED, hint=hint)
    if config.is_rotary and config.d_k < config.d_v:
        raise ModelError(
            f"CTranslate2 has one width for all of a head, and rotary queries and keys of {config.d_k} cannot be padded"
            f" to the values' {config.d_v}",
            where="model.d_k",
            hint=hint,
        )


def unsupported_setting(config: DecodingConfig) -> UsageError | None:
    """The error for a setting that CTranslate2 does not have; None if it has all of them.

    The random numbers of CTranslate2 depend on the batch. In beam search, CTranslate2 distributes the probability of a
    forbidden end among the other pieces. This favours hypotheses that are likely to end.
    """
    if config.samples:
        return UsageError(
            "the engine ctranslate2 does not sample: its random numbers would depend on the batch",
            setting="samples",
            hint="leave it out, or take `engine: torch`",
        )
    if config.min_tokens and config.beam > 1:
        return UsageError(
            "the engine ctranslate2 has no minimum length in a beam search: "
            "it would prefer hypotheses that are likely to end",
            setting="min_tokens",
            hint="add `beam: 1` or `min_tokens: 0`, or take `engine: torch`",
        )
    return None


def _empty_spec(specs: Any, model: Transformer) -> Any:
    """CTranslate2's specification of this architecture, without weights."""
    config = model.config
    width = max(config.d_k, config.d_v)
    options: dict[str, Any] = {
        "num_heads": config.heads,
        "pre_norm": config.is_pre_norm,
        "activation": specs.common_spec.Activation[_ACTIVATIONS[config.activation]],
        "head_dim": None if config.heads * width == config.d_model else width,
        "rms_norm": config.norm_type == "rms",
        "ffn_glu": config.is_gated,
        "rotary_dim": 0 if config.is_rotary else None,
        "rotary_interleave": False,
    }
    encoder = specs.transformer_spec.TransformerEncoderSpec(num_layers=config.encoder_layers, **options)
    decoder = specs.transformer_spec.TransformerDecoderSpec(
        num_layers=config.decoder_layers,
        alignment_layer=alignment_layer(model),
        alignment_heads=alignment_heads(model),
        **options,
    )
    return specs.TransformerSpec(encoder, decoder)


def _fill_spec(spec: Any, model: Transformer) -> None:
    """Copy the weights of the model into the specification."""
    encoder, decoder = spec.encoder, spec.decoder
    encoder.embeddings[0].weight = _array(model.source_embedding.weight[: model.source_vocab])
    decoder.embeddings.weight = _array(model.target_embedding.weight[: model.target_vocab])
    decoder.projection.weight = _array(model.output_weight[: model.target_vocab])
    if model.output_bias is not None:
        decoder.projection.bias = _array(model.output_bias[: model.target_vocab])
    for side, name in ((encoder, "source"), (decoder, "target")):
        side.scale_embeddings = True
        if hasattr(side, "position_encodings"):  # a rotary decoder has none, a rotary encoder takes zeros
            # Forced decoding adds EOS, also to a translation that was cut at the last position: one more position.
            needed = model.config.max_positions + 1
            table = positions_table(model, side=name, at_least=max(_MIN_POSITIONS, needed))
            # `positions_table` does not extend a learned table, so zeros fill it up.
            missing = max(0, needed - len(table))
            side.position_encodings.encodings = _array(F.pad(table, (0, 0, 0, missing)))
    if model.config.is_pre_norm:
        _fill_norm(encoder.layer_norm, model.encoder_norm)
        _fill_norm(decoder.layer_norm, model.decoder_norm)
    layer_specs, layers = [*encoder.layer, *decoder.layer], [*model.encoder, *model.decoder]
    for layer_spec, layer in zip(layer_specs, layers, strict=True):
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        _fill_attention(layer_spec.self_attention, layer.self_attention, layer.self_attention_residual)
        if isinstance(layer, DecoderLayer):
            _fill_attention(layer_spec.attention, layer.cross_attention, layer.cross_attention_residual)
        _fill_feed_forward(layer_spec.ffn, layer.feed_forward, layer.feed_forward_residual)


def _fill_attention(spec: Any, module: SelfAttention | CrossAttention, residual: Residual) -> None:
    parts = attention_projections(module, width=max(module.d_k, module.d_v))
    is_self = isinstance(module, SelfAttention)
    stacked = [stack(parts.q, parts.k, parts.v)] if is_self else [parts.q, stack(parts.k, parts.v)]
    for linear, projection in zip(spec.linear, [*stacked, parts.output], strict=True):
        _fill_linear(linear, projection)
    _fill_norm(spec.layer_norm, residual.norm)


def _fill_feed_forward(spec: Any, module: FeedForward, residual: Residual) -> None:
    inner = affine_of(module.inner)
    width = module.outer.in_features
    if len(inner.weight) > width:
        inner, values = split(inner, [width, width])
        _fill_linear(spec.linear_0_noact, values)
    _fill_linear(spec.linear_0, inner)
    _fill_linear(spec.linear_1, affine_of(module.outer))
    _fill_norm(spec.layer_norm, residual.norm)


def _fill_linear(spec: Any, projection: Affine) -> None:
    spec.weight = _array(projection.weight)
    if projection.bias is not None:
        spec.bias = _array(projection.bias)


def _fill_norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    spec.gamma = _array(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _array(norm.bias)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    """A copy of a tensor: CTranslate2 quantises in place, which would change our model."""
    array: NDArray[np.float32] = tensor.detach().float().cpu().contiguous().numpy().copy()
    return array


@contextmanager
def converted_model(model: Path, *, version: str) -> Iterator[Path]:
    """The folder with a model in CTranslate2's format; a temporary folder is removed when the block ends."""
    resolved = model.resolve()
    folder = resolved.with_name(f".{resolved.name}.ctranslate2")
    key = {"conversion": _CONVERSION_VERSION, "ctranslate2": version, "model": files.sha256(model / MANIFEST)}
    if _is_up_to_date(folder, key):
        yield folder
        return
    loaded = model_directory.load_model(model, device=torch.device("cpu"), dtype=torch.float32)
    with ExitStack() as stack:
        try:
            with files.lock_path(folder, busy=f"{folder.name} is being written", error=_CopyUnavailable):
                if not _is_up_to_date(folder, key):  # another process may have just written it, and may be reading it
                    with files.new_directory(folder, error=_CopyUnavailable) as unfinished:
                        write_ctranslate2(loaded, unfinished, quantization="float32")
                        write_manifest(unfinished, key)
                    logger.info("converted for CTranslate2: %s, which later runs take", folder)
        except _CopyUnavailable as error:
            logger.info("converted for CTranslate2, for this once: %s", error.message)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nmt-ctranslate2-")))
            write_ctranslate2(loaded, folder, quantization="float32")
        del loaded  # the block takes as much memory again
        yield folder


def _is_up_to_date(folder: Path, key: Mapping[str, object]) -> bool:
    """Whether the folder exists, was written with this key, and has files of the right sizes."""
    try:
        return key.items() <= verify_files(folder, hint="", names_to_hash=()).items()
    except (ModelError, OSError):  # OSError: another user's folder, which we may not read
        return False
