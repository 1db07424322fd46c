"""The recipe: every setting of a system, typed and frozen, with its default.

Two records that a model keeps, and its number of parameters, stand here too: they are read without torch. The defaults
are the base model of Vaswani et al. 2017, arXiv:1706.03762, as in the recipe `base`. The padding of the embedding is
that of the authors' code. Section numbers are the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, assert_never

from pydantic import Field, ValidationInfo, WithJsonSchema, field_validator, model_validator

from nmt_cli.recipe.section import (
    Name,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    Section,
    SettingError,
    Share,
    flatten,
)
from nmt_cli.recipe.training import AveragingConfig, SimCutConfig, TrainingConfig, ValidationConfig

# null in a file, and a number in every validated recipe.
DerivedWidth = Annotated[
    int,
    Field(gt=0, validate_default=True),
    WithJsonSchema({"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "null"}]}),
]
_NULL: Any = None
SplitSentences = Literal["auto", "always", "never"]
DROPOUTS = frozenset({"dropout", "attention_dropout", "ffn_dropout", "word_dropout"})
"""The settings of a model that act in training only."""


class LanguagePair(Section):
    """The codes of the two languages, such as de."""

    source: Name
    target: Name

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


class TrainedLines(Section):
    """The source lines of a training: how often they hold several sentences, how long they are, and their casing."""

    several_sentences: Share = Field(description="share of the lines that hold several sentences")
    in_capitals: Share = Field(0.0, description="share of the lines that are in capitals")
    in_title_case: Share = Field(0.0, description="share of the lines Whose Words Begin With Capitals")
    usual_longest: PositiveInt = Field(description="the pieces, without EOS, of a line longer than 99 % of them")

    @staticmethod
    def combined(records: Sequence[TrainedLines | None]) -> TrainedLines | None:
        """The record of all trainings together, by the lowest figures; None if one is not known."""
        known = [record for record in records if record is not None]
        if len(known) < len(records):
            return None
        return TrainedLines(**{key: min(getattr(one, key) for one in known) for key in TrainedLines.model_fields})


class WordDropoutConfig(Section):
    """Word dropout: in training, whole tokens lose their embedding and keep their position."""

    source: Probability = Field(0.0, description="share of source tokens without embedding")
    target: Probability = Field(0.0, description="share of tokens that the decoder reads without embedding")


class Ties(NamedTuple):
    """Whether the source's embedding, and whether the output matrix, is the target's embedding (3.4)."""

    source: bool
    output: bool


class ModelConfig(Section):
    """The architecture (section 3)."""

    encoder_layers: PositiveInt = Field(6, description="layers of the encoder, N in section 3.1")
    decoder_layers: PositiveInt = Field(6, description="layers of the decoder, N in section 3.1")
    d_model: PositiveInt = Field(512, description="width of embeddings and of every layer's output (3.1)")
    d_ff: PositiveInt = Field(2048, description="inner width of the feed-forward layers (3.3)")
    heads: PositiveInt = Field(8, description="attention heads h (3.2.2)")
    d_k: DerivedWidth = Field(_NULL, description="width of queries and keys, per head; null: d_model / heads (3.2.2)")
    d_v: DerivedWidth = Field(_NULL, description="width of values, per head; null: d_model / heads (3.2.2)")
    dropout: Probability = Field(0.1, description="P_drop, on sub-layers' outputs and on embeddings (5.4)")
    attention_dropout: Probability = Field(0.0, description="dropout of the attention probabilities")
    ffn_dropout: Probability = Field(0.0, description="dropout after the activation of the feed-forward layers")
    word_dropout: WordDropoutConfig = WordDropoutConfig()
    norm: Literal["post", "pre"] = Field(
        "post", description="normalise after the residual sum (3.1), or before sub-layers"
    )
    norm_type: Literal["layer", "rms"] = Field(
        "layer", description="layer normalisation, or division by the root mean square (Zhang and Sennrich 2019)"
    )
    norm_epsilon: PositiveFloat = Field(1e-6, description="added to the variance, or to the mean square")
    activation: Literal["relu", "gelu", "silu", "swiglu"] = Field(
        "relu", description="of the feed-forward layers (3.3); swiglu (Shazeer 2020) has d_ff gates and d_ff values"
    )
    attention_bias: bool = Field(False, description="biases in the attention projections; the paper has none (3.2.2)")
    positions: Literal["sinusoidal", "sinusoidal-halves", "sinusoidal-fairseq", "learned", "rotary"] = Field(
        "sinusoidal",
        description="sinusoids as in section 3.5, tensor2tensor's layout (sine half, cosine half), this layout counted "
        "from 2 as in fairseq and M2M-100, a learned table, or queries and keys of self-attention turned by their "
        "position (Su et al. 2021)",
    )
    # Tables of positions have no weights, so nothing else bounds their memory.
    max_positions: Annotated[int, Field(gt=0, le=100_000)] = Field(
        1024, description="longest side in pieces with EOS that the model takes"
    )
    encoder_window: PositiveInt | None = Field(
        None, description="neighbourhood r of restricted self-attention in the encoder (section 4); null: none"
    )
    tying: Literal["all", "target", "none"] = Field(
        "all",
        description="which of both embeddings and the output matrix are one (3.4): all, target and output, or none",
    )
    output_bias: bool = Field(False, description="a bias for each piece on the output, as in Marian, not in the paper")
    embedding_multiple: PositiveInt = Field(128, description="embedding rows are padded to a multiple of this")

    @property
    def has_dropout(self) -> bool:
        """Whether two passes of training differ by chance."""
        return any(flatten(self.model_dump(include=set(DROPOUTS))).values())

    @property
    def is_pre_norm(self) -> bool:
        """Whether norms come before sub-layers, and one more at the end of encoder and decoder."""
        match self.norm:
            case "pre":
                return True
            case "post":
                return False
            case other:
                assert_never(other)

    @property
    def is_gated(self) -> bool:
        """Whether the first product of a feed-forward layer has d_ff gates and d_ff values."""
        match self.activation:
            case "swiglu":
                return True
            case "relu" | "gelu" | "silu":
                return False
            case other:
                assert_never(other)

    @property
    def is_rotary(self) -> bool:
        """Whether self-attention rotates queries and keys, and the embeddings have no positions."""
        match self.positions:
            case "rotary":
                return True
            case "sinusoidal" | "sinusoidal-halves" | "sinusoidal-fairseq" | "learned":
                return False
            case other:
                assert_never(other)

    @property
    def ties(self) -> Ties:
        """Which matrices are the target's embedding."""
        match self.tying:
            case "all":
                return Ties(source=True, output=True)
            case "target":
                return Ties(source=False, output=True)
            case "none":
                return Ties(source=False, output=False)
            case other:
                assert_never(other)

    def differing_keys(self, other: ModelConfig) -> list[str]:
        """The settings in which another model differs, and so cannot have the same weights."""
        # Learned positions are a table of weights.
        free = DROPOUTS if self.positions == "learned" else DROPOUTS | {"max_positions"}
        keys = [key for key in ModelConfig.model_fields if key not in free]
        return [key for key in keys if getattr(self, key) != getattr(other, key)]

    @field_validator("d_k", "d_v", mode="before")
    @classmethod
    def _derived_from_heads(cls, width: Any, info: ValidationInfo) -> Any:
        d_model, heads = info.data.get("d_model"), info.data.get("heads")
        if width is not None or d_model is None or heads is None:
            return width
        if d_model % heads:
            fix = "write heads that divide it, or give d_k and d_v"
            problem = f"model.d_model is {d_model}, which {heads} heads do not divide"
            raise SettingError(problem, fix, settings=("model.heads", "model.d_model"))
        return d_model // heads

    @model_validator(mode="after")
    def _widths_fit(self) -> ModelConfig:
        if self.positions == "rotary" and self.d_k % 2:
            fix = f"write d_k: {self.d_k + 1}, or positions: sinusoidal"
            problem = f"rotary positions need an even model.d_k, not {self.d_k}"
            settings = ("model.d_k", "model.heads", "model.d_model", "model.positions")
            raise SettingError(problem, fix, settings=settings)
        if self.positions.startswith("sinusoidal") and self.d_model % 2:
            fix = f"write d_model: {self.d_model + 1}, or positions: learned"
            problem = f"sinusoidal positions need an even model.d_model, not {self.d_model}"
            raise SettingError(problem, fix, settings=("model.d_model", "model.positions"))
        return self


class SubwordSampling(Section):
    """Other pieces for the training text in each epoch. Validation and decoding never sample."""

    dropout: Probability = Field(
        0.0,
        description="BPE vocabularies: probability of skipping a merge for good, as in SentencePiece; 0.05 is about "
        "0.1 of Provilkov et al. 2020, who try skipped merges again; 0: off",
    )
    sampling: PositiveFloat | None = Field(
        None, description="unigram vocabularies: alpha of subword regularisation (Kudo 2018); null: off"
    )

    @property
    def alpha(self) -> float | None:
        """The strength of sampling: `dropout` of BPE, or `sampling` of unigram; None if both are off."""
        return self.dropout or self.sampling

    @model_validator(mode="after")
    def _at_most_one(self) -> SubwordSampling:
        if self.dropout and self.sampling is not None:
            problem = "tokenizer.dropout is for BPE and tokenizer.sampling for unigram vocabularies, and both are on"
            settings = ("tokenizer.dropout", "tokenizer.sampling")
            raise SettingError(problem, "write dropout: 0, or sampling: null", settings=settings)
        return self


LengthPenaltyForm = Literal["gnmt", "length", "none"]


class DecodingConfig(Section):
    """Search, the same in validation, decode, serve and export (section 6.1)."""

    beam: PositiveInt = Field(4, description="beam width, 1 for greedy search")
    length_penalty: Annotated[float, Field(ge=0, le=10)] = Field(
        0.6, description="alpha: a larger one favours longer translations; 0: off"
    )
    length_penalty_form: LengthPenaltyForm = Field(
        "gnmt", description="divide log P by ((5 + n) / 6)^alpha (Wu et al. 2016), by n^alpha, or by nothing"
    )
    max_extra_tokens: NonNegativeInt = Field(
        50, description="how many pieces longer than its source a translation may be, without EOS"
    )
    min_tokens: NonNegativeInt = Field(0, description="fewest pieces of a translation, without EOS")
    no_repeat_ngram: NonNegativeInt = Field(
        0, description="number of pieces in a row that a translation does not repeat; 0: it may repeat any"
    )
    stop_loops: bool = Field(
        False,
        description="a translation does not repeat the same few pieces again and again, unless its source does; nmt "
        "serve always has it",
    )
    split_sentences: SplitSentences = Field(
        "auto", description="translate each sentence of a line by itself; auto: unless training had many such lines"
    )
    batch_tokens: PositiveInt = Field(12_288, description="tokens per batch of the search: source pieces times beam")
    samples: NonNegativeInt = Field(0, description="translations to sample for each line; 0: search")
    temperature: Annotated[float, Field(gt=0, le=100)] = Field(
        1.0, description="temperature of sampling: above 1 evens probabilities out, below 1 sharpens them"
    )
    top_k: PositiveInt | None = Field(None, description="sample from the K most probable pieces; null: all")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="sample from the smallest set of pieces whose probabilities sum to P"
    )
    seed: NonNegativeInt = Field(1, description="seed of sampling; samples depend on it and on the line's number")

    @property
    def length_exponent(self) -> float:
        """The power of the length by which other programs divide a log-probability: 0 if the penalty has no form."""
        return 0.0 if self.length_penalty_form == "none" else self.length_penalty

    @property
    def num_candidates(self) -> int:
        """Hypotheses per sentence that grow together: the beam, or the samples."""
        return self.samples or self.beam

    def longest_source(self, positions: int) -> int:
        """The most pieces of a source that a model with this number of positions translates whole.

        A translation may be longer than its source. So positions are kept free for it, but at most half of them.
        """
        return positions - max(1, min(self.max_extra_tokens, positions // 2))


class DecodingOverrides(TypedDict, total=False):
    """Settings of `DecodingConfig` for one call; None leaves a setting as it is."""

    beam: int | None
    length_penalty: float | None
    length_penalty_form: LengthPenaltyForm | None
    max_extra_tokens: int | None
    min_tokens: int | None
    no_repeat_ngram: int | None
    stop_loops: bool | None
    split_sentences: SplitSentences | None
    batch_tokens: int | None
    samples: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None


class Recipe(Section):
    """A whole system: data, model, training, averaging, decoding."""

    name: Name = Field(
        description="the run is runs/NAME; if left out, the file's name without its ending",
        json_schema_extra={"shown_default": "the file's name"},
    )
    description: str = Field("", description="what the system is, for people")
    corpus: Name | None = Field(
        "wmt14-en-de", description="its prepared data is data/CORPUS, or --data says where; null: always --data says"
    )
    model: ModelConfig = ModelConfig()
    tokenizer: SubwordSampling = SubwordSampling()
    training: TrainingConfig = TrainingConfig()
    validation: ValidationConfig = ValidationConfig()
    averaging: AveragingConfig = AveragingConfig()
    decoding: DecodingConfig = DecodingConfig()

    @model_validator(mode="after")
    def _passes_differ(self) -> Recipe:
        consistency = self.training.consistency
        cuts_tokens = isinstance(consistency, SimCutConfig) and consistency.cut > 0
        if self.training.num_passes > 1 and not cuts_tokens and not self.model.has_dropout:
            problem = "training.consistency compares equal passes without dropout"
            settings = ("training.consistency.name", "model.dropout")
            raise SettingError(problem, "write model.dropout: 0.1", settings=settings)
        return self

    @model_validator(mode="after")
    def _averaged_checkpoints_are_kept(self) -> Recipe:
        for key in ("last", "best"):
            wanted, kept = getattr(self.averaging, key), getattr(self.training, f"keep_{key}")
            if wanted is not None and wanted > kept:
                problem = f"averaging.{key} is {wanted}, but training.keep_{key} keeps only {kept} checkpoints"
                fix = f"raise training.keep_{key} to {wanted}, or lower averaging.{key}"
                raise SettingError(problem, fix, settings=(f"averaging.{key}", f"training.keep_{key}"))
        return self


def num_parameters(model: ModelConfig, *, source_vocab: int, target_vocab: int) -> int:
    """The parameters of a model with vocabularies of these sizes; tied embeddings count once."""
    width, keys, values = model.d_model, model.heads * model.d_k, model.heads * model.d_v
    attention = 2 * width * (keys + values) + (2 * keys + values + width if model.attention_bias else 0)
    inner = model.d_ff * (2 if model.is_gated else 1)  # gates are a second inner matrix
    feed_forward = (width + 1) * inner + (model.d_ff + 1) * width
    norm = width * (2 if model.norm_type == "layer" else 1)  # a gain and, in layer normalisation, a bias
    encoder = model.encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = model.decoder_layers * (2 * attention + feed_forward + 3 * norm)
    last_norms = 2 * norm if model.is_pre_norm else 0
    positions = 2 * model.max_positions * width if model.positions == "learned" else 0
    source, target = (num_embedding_rows(n, multiple=model.embedding_multiple) for n in (source_vocab, target_vocab))
    rows = target + (0 if model.ties.source else source) + (0 if model.ties.output else target)
    output_bias = target if model.output_bias else 0
    return encoder + decoder + last_norms + positions + rows * width + output_bias


def num_embedding_rows(vocab: int, *, multiple: int) -> int:
    """The rows of the table of a vocabulary, rounded up to a multiple."""
    return math.ceil(vocab / multiple) * multiple
