"""The export to a Hugging Face directory: MarianMTModel and MarianTokenizer, whose architecture is the paper's.

Marian's position encodings are all sines, then all cosines. The paper's alternate. A Transformer does not depend on the
order of d_model, so one reordering of every matrix along d_model turns the paper's layout into Marian's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nmt_cli.artifacts.manifest import WEIGHTS
from nmt_cli.artifacts.model_directory import LoadedModel
from nmt_cli.artifacts.weights import write_tensors
from nmt_cli.errors import ModelError
from nmt_cli.interchange.sentencepiece_model import their_piece
from nmt_cli.model.layers import DecoderLayer, EncoderLayer
from nmt_cli.model.transformer import Transformer
from nmt_cli.model.weight_layout import Affine, affine_of, attention_weights
from nmt_cli.recipe.schema import DecodingConfig, ModelConfig
from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK, Tokenizer

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "swish"}
# What Marian's LayerNorm adds to the variance; the configuration has no key for it.
_NORM_EPSILON = 1e-5
_MAX_NORM_EPSILON = 3e-5


def write_huggingface(loaded: LoadedModel, directory: Path, *, source_spm: Path, target_spm: Path) -> None:
    """Write the weights, both tokenizers and four JSON files into an existing directory.

    Raises ModelError for a model that MarianMTModel cannot express.
    """
    config = loaded.model.config
    _check(config)
    weights = {name: tensor.float().contiguous() for name, tensor in marian_weights(loaded.model).items()}
    write_tensors(directory / WEIGHTS, weights)
    shutil.copyfile(source_spm, directory / "source.spm")
    shutil.copyfile(target_spm, directory / "target.spm")
    is_joint = config.tying == "all"
    files: dict[str, Any] = {
        "config.json": _config(loaded),
        "generation_config.json": _generation(loaded.config.recipe.decoding, config),
        "tokenizer_config.json": _tokenizer_config(loaded),
        "vocab.json": _vocabulary(loaded.source),
    }
    if not is_joint:
        files["target_vocab.json"] = _vocabulary(loaded.target)
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def marian_weights(model: Transformer) -> dict[str, Tensor]:
    """The weights by the names, in the shapes and in the order of d_model of MarianMTModel."""
    config = model.config
    found: dict[str, Tensor] = {}
    source = model.source_embedding.weight.detach()[: model.source_vocab]
    target = model.target_embedding.weight.detach()[: model.target_vocab]
    if config.tying == "all":
        found["model.shared.weight"] = source
    else:
        found |= {"model.encoder.embed_tokens.weight": source, "model.decoder.embed_tokens.weight": target}
    if config.tying == "none":
        found["lm_head.weight"] = model.output_weight.detach()[: model.target_vocab]
    bias = torch.zeros(model.target_vocab) if model.output_bias is None else model.output_bias.detach()
    found["final_logits_bias"] = bias[None, : model.target_vocab]
    if config.positions != "sinusoidal":
        found["model.encoder.embed_positions.weight"] = model.source_embedding.positions.table.detach()
        found["model.decoder.embed_positions.weight"] = model.target_embedding.positions.table.detach()
    for side, layers in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, layer in enumerate(layers):
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            for name, tensor in _layer(layer, width=config.d_model // config.heads).items():
                found[f"model.{side}.layers.{number}.{name}"] = tensor
    return reordered(found, marian_order(config.d_model)) if config.positions == "sinusoidal" else found


def marian_order(d_model: int) -> Tensor:
    """For each of Marian's dimensions, the one of ours, [D]: the even ones (sines), then the odd ones (cosines)."""
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])


def reordered(weights: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """The weights of MarianMTModel, by name, with d_model in another order [D]."""
    return {name: _reordered(name, tensor, order) for name, tensor in weights.items()}


def _reordered(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    module, _, kind = name.rpartition(".")
    module = module.rpartition(".")[2]
    if module.endswith("layer_norm") or (module in ("out_proj", "fc2") and kind == "bias"):
        return tensor[order]
    if module in ("out_proj", "fc2"):
        return tensor[order, :]
    has_d_model_columns = kind == "weight" and module != ""
    return tensor[:, order] if has_d_model_columns else tensor


def _check(config: ModelConfig) -> None:
    width, rest = divmod(config.d_model, config.heads)
    problems = {
        f"norm: {config.norm}": config.norm != "post",
        f"norm_type: {config.norm_type}": config.norm_type != "layer",
        f"positions: {config.positions}": config.positions == "rotary",
        f"activation: {config.activation}": config.activation == "swiglu",
        f"encoder_window: {config.encoder_window}": config.encoder_window is not None,
        f"heads: {config.heads}, which do not divide d_model: {config.d_model}": rest != 0,
        f"d_k: {config.d_k} and d_v: {config.d_v} beyond d_model / heads = {width}": max(config.d_k, config.d_v)
        > width,
        f"norm_epsilon: {config.norm_epsilon:g}, where Marian's is 1e-05": config.norm_epsilon > _MAX_NORM_EPSILON,
    }
    for problem, is_so in problems.items():
        if is_so:
            raise ModelError(
                f"MarianMTModel has no place for a model with {problem}",
                where=f"model.{problem.partition(':')[0]}",
                hint="nmt export --to ctranslate2 may take it; nmt decode does",
            )


def _layer(layer: EncoderLayer | DecoderLayer, *, width: int) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    norms = {"self_attn_layer_norm": layer.self_attention_residual.norm}
    attentions = {"self_attn": attention_weights(layer.self_attention, width=width)}
    if isinstance(layer, DecoderLayer):
        norms["encoder_attn_layer_norm"] = layer.cross_attention_residual.norm
        attentions["encoder_attn"] = attention_weights(layer.cross_attention, width=width)
    norms["final_layer_norm"] = layer.feed_forward_residual.norm
    for name, parts in attentions.items():
        for kind, projection in (("q", parts.q), ("k", parts.k), ("v", parts.v), ("out", parts.output)):
            weights |= _linear(f"{name}.{kind}_proj", projection)
    weights |= _linear("fc1", affine_of(layer.feed_forward.inner)) | _linear("fc2", affine_of(layer.feed_forward.outer))
    for name, norm in norms.items():
        assert isinstance(norm, nn.LayerNorm)
        weights |= {f"{name}.weight": norm.weight.detach(), f"{name}.bias": norm.bias.detach()}
    return weights


def _linear(name: str, projection: Affine) -> dict[str, Tensor]:
    bias = projection.bias if projection.bias is not None else projection.weight.new_zeros(len(projection.weight))
    return {f"{name}.weight": projection.weight, f"{name}.bias": bias}


def _config(loaded: LoadedModel) -> dict[str, Any]:
    config, vocabulary = loaded.model.config, loaded.config.vocabulary
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": vocabulary.source,
        "decoder_vocab_size": vocabulary.target,
        "d_model": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "activation_function": ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "scale_embedding": True,
        "max_position_embeddings": config.max_positions,
        "share_encoder_decoder_embeddings": config.tying == "all",
        "tie_word_embeddings": config.tying != "none",
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        "dtype": "float32",
    }


def _generation(decoding: DecodingConfig, config: ModelConfig) -> dict[str, Any]:
    return {
        "num_beams": decoding.beam,
        "length_penalty": decoding.length_penalty if decoding.length_penalty_form != "none" else 0.0,
        "early_stopping": False,  # with True the first finished hypotheses end a search, not the best
        "max_length": config.max_positions,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        "bad_words_ids": [[PAD], [UNK], [BOS]],
    }


def _tokenizer_config(loaded: LoadedModel) -> dict[str, Any]:
    languages, config = loaded.config.languages, loaded.model.config
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": languages.source,
        "target_lang": languages.target,
        "unk_token": loaded.target.pieces([UNK])[0],
        "eos_token": loaded.target.pieces([EOS])[0],
        "pad_token": loaded.target.pieces([PAD])[0],
        "model_max_length": config.max_positions,
        "separate_vocabs": config.tying != "all",
        "clean_up_tokenization_spaces": False,
    }


def _vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    return {their_piece(piece): number for number, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))}
