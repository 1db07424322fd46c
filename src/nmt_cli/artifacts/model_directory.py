"""The model directory: everything that decode, serve and export need, written whole and read strictly.

It holds config.yaml, model.safetensors (float32), source.spm, target.spm, README.md (the model card) and manifest.json.
torch is imported only to load or save a model, so that finding and describing one is quick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from nmt_cli import __version__, files
from nmt_cli.artifacts.directory_kinds import check_is_model, kind_of
from nmt_cli.artifacts.manifest import CONFIG, DAMAGED_HINT, WEIGHTS, verify_files, write_manifest
from nmt_cli.errors import DataError, DeviceError, ModelError, RecipeError
from nmt_cli.memory import is_out_of_memory
from nmt_cli.recipe.directions import Directions
from nmt_cli.recipe.mistakes import validate
from nmt_cli.recipe.schema import Recipe, TrainedLines
from nmt_cli.recipe.section import NonNegativeInt, PositiveInt, Section, SettingError
from nmt_cli.recipe.yaml_files import dump_values, parse_document

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from nmt_cli.model.transformer import Transformer
    from nmt_cli.tokenization.tokenizer import Tokenizer

NOT_FINITE_HINT = "take another model, or an earlier checkpoint: nmt average runs/NAME/checkpoints/update-NUMBER"
_NEEDED_FILES = (CONFIG, WEIGHTS, "source.spm", "target.spm")


class Vocabulary(Section):
    """The number of pieces of each side, and the ids of the special pieces; other ids are SentencePiece's."""

    source: PositiveInt
    target: PositiveInt
    shared: bool = Field(description="source.spm and target.spm are one file")
    pad: Literal[0] = 0
    unk: Literal[1] = 1
    bos: Literal[2] = Field(2, description="what the decoder starts with; the source has none")
    eos: Literal[3] = Field(3, description="what ends the source and the target")


class DirectionResult(Section):
    """The results of one of several directions in a validation."""

    loss: float
    bleu: float | None = None


class ValidationResult(Section):
    """The results of one validation in training; of several directions, the means."""

    update: NonNegativeInt
    loss: float = Field(description="smoothed, nats per target token")
    perplexity: float | None = None
    bleu: float | None = None
    signature: str | None = Field(None, description="sacreBLEU's")
    by_direction: dict[str, DirectionResult] = Field({}, description="such as en-de; empty: there is one direction")

    @model_serializer(mode="wrap")
    def _leave_out_one_direction(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        return {key: value for key, value in values.items() if key != "by_direction" or value}


class AverageLosses(Section):
    """The validation losses of an average, and of the best single model of its run; smoothed, nats per target token.

    `nmt average` measures both in the same way.
    """

    loss: float
    single_loss: float

    @property
    def is_worse(self) -> bool:
        """Whether the single model has a lower loss."""
        return self.loss > self.single_loss


class SavedModelConfig(Section):
    """config.yaml, the description of a model: languages, vocabulary, recipe, scores."""

    format: Literal[1] = 1
    nmt_version: str
    languages: Directions
    vocabulary: Vocabulary
    updates: list[NonNegativeInt] = Field(
        description="updates of the checkpoint, or of those averaged, rising; empty: imported or an average of models"
    )
    validation: list[ValidationResult] = Field([], description="what training measured at those updates")
    average_losses: AverageLosses | None = Field(
        None, description="what nmt average measured; null: it measured nothing"
    )
    trained_lines: TrainedLines | None = Field(None, description="the source lines of its training; null: not known")
    guided_layer: PositiveInt | None = Field(
        None, description="decoder layer, from 1, whose first head was trained to align words; null: none"
    )
    imported_from: str | None = Field(
        None, description="OWNER/NAME@COMMIT of the model on the hub; null: not from there"
    )
    recipe: Recipe

    @model_validator(mode="after")
    def _vocabulary_fits_tying(self) -> SavedModelConfig:
        source, target = self.vocabulary.source, self.vocabulary.target
        if self.recipe.model.ties.source and source != target:
            raise SettingError(f"tying: all needs one vocabulary, not {source} and {target} pieces", DAMAGED_HINT)
        return self


def dump_saved_config(config: SavedModelConfig) -> str:
    """The text of config.yaml, with every value but three that are null for most models."""
    left_out = {key for key in ("average_losses", "guided_layer", "imported_from") if getattr(config, key) is None}
    return dump_values(config.model_dump(mode="json", exclude=left_out))


def load_saved_config(path: Path) -> SavedModelConfig:
    """The configuration of the model directory `path`.

    Raises ModelError with file and line if it cannot be read.
    """
    file = path / CONFIG
    text, values = files.read_text(file, error=ModelError, hint=DAMAGED_HINT), dict[str, Any]()
    try:
        document = parse_document(text, source=str(file))
        values = document.values
        return validate(document, SavedModelConfig, source=str(file), fix=DAMAGED_HINT)
    except RecipeError as error:
        version = values.get("nmt_version", __version__)
        if version != __version__:
            message = f"{CONFIG} was written by nmt {version}, and this is {__version__}: {error.message}"
            raise ModelError(message, where=error.where, hint=f"pip install nmt-cli=={version}") from None
        raise ModelError(error.message, where=error.where, hint=error.hint) from None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to translate: the Transformer in eval mode, its tokenizers, and its config.yaml."""

    model: Transformer
    source: Tokenizer
    target: Tokenizer
    config: SavedModelConfig


def load_model(path: Path, *, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """The model in the directory `path`, in `dtype` on `device`.

    Sizes and hashes of all files that are read are checked first. Raises ModelError if the directory is no model,
    if a file is missing or damaged, and if weights or tokenizers do not fit config.yaml. DeviceError if memory does not
    suffice.
    """
    check_is_model(path)
    verify_files(path, hint=DAMAGED_HINT, names_to_hash=_NEEDED_FILES)
    config = load_saved_config(path)
    vocabulary = config.vocabulary
    source = load_tokenizer(path / "source.spm", num_pieces=vocabulary.source)
    target = load_tokenizer(path / "target.spm", num_pieces=vocabulary.target)

    from nmt_cli.artifacts.weights import load_weights, read_tensors

    with memory_errors(path, device):
        model = new_model(config)
        for parameter in model.parameters():  # tables of positions stay in float32
            parameter.data = parameter.data.to(dtype)
        tensors = read_tensors(path / WEIGHTS, hint=DAMAGED_HINT)
        load_weights(model, tensors, where=str(path / WEIGHTS), hint=NOT_FINITE_HINT)
        model.to(device)
    return LoadedModel(model.eval(), source, target, config)


@contextmanager
def memory_errors(path: Path, device: torch.device) -> Iterator[None]:
    """Raise DeviceError if the block exhausts the memory of `device` with the model at `path`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error, counts_vague_errors=False):
            raise
        setting, hint = None, "end other programs, or take a machine with more memory"
        if device.type == "cuda":
            setting, hint = "device", "end other programs, which nvidia-smi lists, or take another GPU or `device: cpu`"
        message = f"the memory of {device} does not hold the model"
        raise DeviceError(message, where=str(path), setting=setting, hint=hint) from None


def save_model(
    path: Path,
    *,
    config: SavedModelConfig,
    weights: Mapping[str, Tensor],
    source_spm: bytes,
    target_spm: bytes,
    card: str,
    overwrite: bool,
    unlisted: Mapping[str, bytes] | None = None,
) -> None:
    """Write a model directory, whole or not at all, with weights in float32; its manifest leaves `unlisted` files out.

    Raises ModelError if the weights do not fit the recipe, if the disk is full, or if `path` exists. `overwrite`
    lets it replace another model directory, and nothing else.
    """
    from nmt_cli.artifacts.weights import check_names_and_shapes, weights_of, write_tensors

    check_replaceable(path, overwrite=overwrite)
    check_names_and_shapes(
        weights,
        expected=weights_of(new_model(config)),
        where=str(path),
        hint="save the weights of the model that this recipe and these vocabularies make",
    )
    with files.new_directory(path, error=ModelError) as temporary:
        (temporary / CONFIG).write_text(dump_saved_config(config), encoding="utf-8")
        write_tensors(temporary / WEIGHTS, {name: tensor.float() for name, tensor in weights.items()})
        (temporary / "source.spm").write_bytes(source_spm)
        (temporary / "target.spm").write_bytes(target_spm)
        (temporary / "README.md").write_text(card, encoding="utf-8", errors="replace")  # a path may be no UTF-8
        card_sha256 = files.sha256(temporary / "README.md")
        write_manifest(temporary, {"kind": "model", "updates": config.updates, "card_sha256": card_sha256})
        for name, content in (unlisted or {}).items():
            (temporary / name).write_bytes(content)


def check_replaceable(path: Path, *, overwrite: bool) -> None:
    """Raise ModelError unless `path` is missing or empty or, with `overwrite`, a model directory."""
    is_model = kind_of(path) == "model"
    files.check_replaceable(path, kind_name="a model directory", is_same_kind=is_model, overwrite=overwrite)


def load_tokenizer(file: Path, *, num_pieces: int) -> Tokenizer:
    """The tokenizer of a model directory; ModelError if it is damaged, or has another number of pieces."""
    from nmt_cli.tokenization.tokenizer import Tokenizer

    try:
        tokenizer = Tokenizer.load(file)
    except DataError as error:
        raise ModelError(error.message, where=error.where, hint=DAMAGED_HINT) from None
    if tokenizer.vocab_size != num_pieces:
        message = f"{file.name} has {tokenizer.vocab_size:,} pieces, but {CONFIG} says {num_pieces:,}"
        raise ModelError(message, where=str(file), hint=DAMAGED_HINT)
    return tokenizer


def new_model(config: SavedModelConfig) -> Transformer:
    """A model of this description, without weights: see `load_weights`."""
    from nmt_cli.artifacts.weights import uninitialized_model

    vocabulary = config.vocabulary
    model = uninitialized_model(config.recipe.model, source_vocab=vocabulary.source, target_vocab=vocabulary.target)
    model.guided_layer = None if config.guided_layer is None else config.guided_layer - 1
    return model
