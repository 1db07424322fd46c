"""A Marian model, read from either form: its settings, its vocabularies, and its weights by transformers' names.

Marian's position encodings are all sines, then all cosines. The paper's alternate. A Transformer does not depend on the
order of d_model, so one reordering of every matrix along d_model turns one layout into the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, PositiveInt
from torch import Tensor

from nmt_cli.artifacts.weights import check_names_and_shapes, shapes_of
from nmt_cli.errors import ModelError
from nmt_cli.recipe.schema import DecodingConfig, LanguagePair

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
FETCH_AGAIN = "fetch the directory again, all its files"
NormPlacement = Literal["post", "pre"]
POSITION_TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
MASKED_LOGIT = -100.0  # is never the largest, and adds nothing to a softmax


class MarianConfig(BaseModel):
    """The settings that an import needs, by the names of config.json.

    Transformers has the same defaults, except for `num_beams`, which has the default of our recipe.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    vocab_size: PositiveInt
    decoder_vocab_size: PositiveInt | None = None
    d_model: PositiveInt
    encoder_layers: PositiveInt
    decoder_layers: PositiveInt
    encoder_attention_heads: PositiveInt
    decoder_attention_heads: PositiveInt
    encoder_ffn_dim: PositiveInt
    decoder_ffn_dim: PositiveInt
    max_position_embeddings: PositiveInt = 1024
    activation_function: str = "gelu"
    scale_embedding: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int
    eos_token_id: int
    decoder_start_token_id: int
    num_beams: PositiveInt = DecodingConfig().beam
    length_penalty: float = 1.0
    min_new_tokens: int = 0
    bad_words_ids: list[list[int]] = []

    @property
    def target_rows(self) -> int:
        """The rows of the target's embedding."""
        return self.decoder_vocab_size or self.vocab_size


@dataclass(frozen=True, slots=True, kw_only=True)
class MarianModel:
    """A Marian model of either form; the weights have transformers' names in both.

    `file` is the file with the settings: config.json or, in Marian's own form, a .npz file (`is_npz`). A vocabulary has
    the row of each piece.
    `languages` is None if the files do not say them. `ignored_settings` are settings of the search that nmt lacks.
    """

    directory: Path
    file: Path
    is_npz: bool
    settings: MarianConfig
    unknown_piece: str
    languages: LanguagePair | None
    weights: dict[str, Tensor]
    source_vocabulary: dict[str, int]
    target_vocabulary: dict[str, int]
    source_spm: bytes
    target_spm: bytes
    has_own_positions: bool
    ignored_settings: list[str]
    norm: NormPlacement
    norm_epsilon: float


def damaged_error(message: str, *, where: Path) -> ModelError:
    """The error for a model with a damaged or missing file."""
    return ModelError(message, where=str(where), hint=FETCH_AGAIN)


def marian_order(d_model: int) -> Tensor:
    """The index in our d_model of each of Marian's dimensions, [D]: even ones (sines), then odd ones (cosines)."""
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])


def reorder_d_model(weights: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """The weights of MarianMTModel, by name, with d_model in another order [D]."""
    return {name: _reorder_tensor(name, tensor, order) for name, tensor in weights.items()}


def _reorder_tensor(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    """One tensor with d_model in another order: the output of norms, out_proj and fc2, the input of other matrices."""
    if name == "final_logits_bias":
        return tensor
    module, kind = name.split(".")[-2:]
    if module.endswith("layer_norm") or module in ("out_proj", "fc2"):
        return tensor[order]
    return tensor[:, order] if kind == "weight" else tensor


def check_shapes(marian: MarianModel) -> None:
    """Raise ModelError for a missing tensor, an unexpected tensor or a wrong shape."""
    where = str(marian.file if marian.is_npz else marian.directory)
    hint = f"{FETCH_AGAIN}; or use the program that made it"
    check_names_and_shapes(shapes_of(marian.weights), expected=_shapes(marian), where=where, hint=hint)


def _shapes(marian: MarianModel) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor that the model must have."""
    settings = marian.settings
    width, inner = settings.d_model, settings.encoder_ffn_dim
    shapes: dict[str, tuple[int, ...]] = {"final_logits_bias": (1, settings.target_rows)}
    if settings.share_encoder_decoder_embeddings:
        shapes["model.shared.weight"] = (settings.vocab_size, width)
    else:
        shapes["model.encoder.embed_tokens.weight"] = (settings.vocab_size, width)
        shapes["model.decoder.embed_tokens.weight"] = (settings.target_rows, width)
    if not settings.tie_word_embeddings:
        shapes["lm_head.weight"] = (settings.target_rows, width)
    if marian.has_own_positions:
        shapes |= dict.fromkeys(POSITION_TABLES, (settings.max_position_embeddings, width))
    for side, count in (("encoder", settings.encoder_layers), ("decoder", settings.decoder_layers)):
        attentions = ["self_attn", "encoder_attn"] if side == "decoder" else ["self_attn"]
        parts: dict[str, tuple[int, ...]] = {}
        parts |= {f"{name}.{part}_proj": (width, width) for name in attentions for part in ("q", "k", "v", "out")}
        parts |= {"fc1": (inner, width), "fc2": (width, inner), "final_layer_norm": (width,)}
        parts |= {f"{name}_layer_norm": (width,) for name in attentions}
        if marian.norm == "pre":
            shapes |= {f"model.{side}.layer_norm.{kind}": (width,) for kind in ("weight", "bias")}
        for layer in range(count):
            prefix = f"model.{side}.layers.{layer}"
            for name, shape in parts.items():
                shapes |= {f"{prefix}.{name}.weight": shape, f"{prefix}.{name}.bias": shape[:1]}
    return shapes
