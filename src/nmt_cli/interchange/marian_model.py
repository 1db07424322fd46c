"""A model of another program, read: its settings, its vocabularies, and its weights by transformers' names.

It is a Marian model of either form, or an M2M-100 or NLLB model, whose layers have the names of Marian's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveInt
from torch import Tensor

from nmt_cli.errors import ModelError
from nmt_cli.recipe.schema import DecodingConfig, LanguagePair

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
FETCH_AGAIN = "fetch the directory again, all its files"
HuggingFaceKind = Literal["marian", "m2m100", "nllb"]
# Transformers' classes of a model and of its tokenizer.
CLASSES: Mapping[HuggingFaceKind, tuple[str, str]] = {
    "marian": ("MarianMTModel", "MarianTokenizer"),
    "m2m100": ("M2M100ForConditionalGeneration", "M2M100Tokenizer"),
    "nllb": ("M2M100ForConditionalGeneration", "NllbTokenizer"),
}
NormPlacement = Literal["post", "pre"]
MASKED_LOGIT = -100.0  # is never the largest, and adds nothing to a softmax


class TensorName:
    """Transformers' names of the tensors outside the layers. The output bias is [1, rows]; the others are matrices."""

    SHARED = "model.shared.weight"
    SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
    OUTPUT, BIAS = "lm_head.weight", "final_logits_bias"
    POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


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
    no_repeat_ngram_size: int = 0
    bad_words_ids: list[list[int]] = []

    @property
    def target_rows(self) -> int:
        """The rows of the target's embedding."""
        return self.decoder_vocab_size or self.vocab_size


@dataclass(frozen=True, slots=True, kw_only=True)
class MarianModel:
    """A Marian model of either form, or an M2M-100 or NLLB model; the weights have transformers' names in all.

    `file` is the file with the settings: config.json or, in Marian's own form (`npz`), a .npz file. A vocabulary has
    the row of each piece.
    `languages` is None if the files do not say them. `symbols` has the piece of each language that the model is told.
    Marian's tell the target language, before the source. Those of M2M-100 and NLLB tell both, each on its side.
    `ignored_settings` are settings of the search that nmt lacks.
    """

    directory: Path
    file: Path
    kind: HuggingFaceKind | Literal["npz"]
    settings: MarianConfig
    unknown_piece: str
    languages: LanguagePair | None
    symbols: Mapping[str, str]
    weights: dict[str, Tensor]
    source_vocabulary: dict[str, int]
    target_vocabulary: dict[str, int]
    source_spm: bytes
    target_spm: bytes
    has_own_positions: bool
    ignored_settings: list[str]
    norm: NormPlacement
    norm_epsilon: float

    @property
    def is_m2m100(self) -> bool:
        """Whether it has the layers of M2M-100, as NLLB has."""
        return self.kind in ("m2m100", "nllb")


def damaged_error(message: str, *, where: Path) -> ModelError:
    """The error for a model with a damaged or missing file."""
    return ModelError(message, where=str(where), hint=FETCH_AGAIN)
