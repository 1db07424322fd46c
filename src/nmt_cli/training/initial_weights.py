"""The initial weights of a run: random, or from a model whose vocabulary and architecture the run keeps."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt_cli.artifacts.directory_kinds import check_is_model, kind_of
from nmt_cli.artifacts.manifest import DAMAGED_HINT, WEIGHTS, verify_files
from nmt_cli.artifacts.model_card import inherited_values
from nmt_cli.artifacts.model_directory import load_saved_config
from nmt_cli.artifacts.run import InitialModel, open_run
from nmt_cli.artifacts.weights import check_finite, check_names_and_shapes, read_tensors, weights_of
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.errors import DataError, DeviceError, ModelError, RecipeError
from nmt_cli.memory import free_cpu_bytes
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.loading import ResolvedRecipe
from nmt_cli.recipe.mistakes import as_written
from nmt_cli.recipe.schema import ModelConfig, Recipe, num_parameters
from nmt_cli.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


def describe_initial_model(path: Path, recipe: Recipe, data: PreparedData | None) -> InitialModel:
    """Check that a run can begin from the model directory `path`, and return its description for run.json.

    `data` is None if there is none yet. Raises ModelError if `path` is no model, DataError if the data has other
    vocabularies, RecipeError if the recipe has another architecture.
    """
    check_is_model(path)
    config = load_saved_config(path)
    listed = verify_files(path, hint=DAMAGED_HINT, names_to_hash=())["files"]
    if data is not None:
        _check_vocabulary(path, listed, data)
    _check_architecture(path, config.recipe.model, recipe.model)
    return InitialModel(
        path=str(path.resolve()),
        weights_sha256=listed[WEIGHTS]["sha256"],
        updates=config.updates,
        inherited=inherited_values([path]),
    )


def with_initial_architecture(
    resolved: ResolvedRecipe, *, run: Path, init_from: Path | None, restart: bool
) -> ResolvedRecipe:
    """The recipe with the architecture of the model that the run in `run` begins with, or began with.

    Dropout stays the recipe's, and so do `max_positions` without a table of positions. A key that --set gives stays
    too; if it differs, the run is refused later. ModelError if `init_from` is no model.
    """
    if kind_of(run) == "run" and not restart and (begun := open_run(run)).record.init_from is not None:
        architecture, origin = begun.recipe.model, str(run)
    elif init_from is not None:
        check_is_model(init_from)
        architecture, origin = load_saved_config(init_from).recipe.model, f"--init-from {init_from}"
    else:
        return resolved
    model = resolved.recipe.model
    changes = {
        key: getattr(architecture, key)
        for key in architecture.differing_keys(model)
        if not resolved.origins.get(f"model.{key}", "").startswith("--set ")
    }
    if not changes:
        return resolved
    texts = [f"{key} {_as_setting(value)} (not {_as_setting(getattr(model, key))})" for key, value in changes.items()]
    logger.info("architecture of %s: %s", origin.removeprefix("--init-from "), ", ".join(texts))
    recipe = resolved.recipe.model_copy(update={"model": model.model_copy(update=changes)})
    return ResolvedRecipe(recipe, resolved.origins | {f"model.{key}": origin for key in changes})


def read_initial_weights(initial: InitialModel, model: Transformer) -> dict[str, Tensor]:
    """The weights that a run begins from, by name, checked against the names and shapes of `model`.

    Raises ModelError if they are missing, or differ from the weights that the run was begun with.
    """
    path = Path(initial.path)
    check_is_model(path)
    listed = verify_files(path, hint=DAMAGED_HINT, names_to_hash=[WEIGHTS])["files"]
    if listed[WEIGHTS]["sha256"] != initial.weights_sha256:
        raise ModelError(
            f"the model in {path} is not the one that this run was begun from",
            where=str(path),
            hint="begin anew with --restart (removes the run), or give the run another folder with -o",
        )
    tensors = read_tensors(path / WEIGHTS, hint=DAMAGED_HINT)
    where = str(path / WEIGHTS)
    check_names_and_shapes(tensors, expected=weights_of(model), where=where, hint=DAMAGED_HINT)
    for name, tensor in tensors.items():
        check_finite(name, tensor, where=where, hint="begin with another model")
    return tensors


def build_model(recipe: Recipe, data: PreparedData) -> Transformer:
    """A new model for the data's vocabularies, initialised from the recipe's seed.

    Raises RecipeError if they do not fit, and DeviceError if the memory does not hold the weights.
    """
    check_tying(data, recipe)
    tokenizers = data.manifest.tokenizers
    sizes = {"source_vocab": tokenizers.source.vocab_size, "target_vocab": tokenizers.target.vocab_size}
    parameters, free = num_parameters(recipe.model, **sizes), free_cpu_bytes() / 1e9
    if (needed := 4 * parameters / 1e9) > free:
        raise DeviceError(
            f"{parameters:,} parameters need {needed:,.1f} GB of memory, and {free:,.1f} GB are free",
            where="model",
            hint="train a smaller model (nmt recipes lists sizes), or end what else takes memory",
        )
    torch.manual_seed(recipe.training.seed)
    return Transformer(recipe.model, **sizes)


def check_tying(data: PreparedData, recipe: Recipe) -> None:
    """Raise RecipeError if the recipe ties the embeddings of two vocabularies."""
    if recipe.model.ties.source and not _is_one_vocabulary(data):
        raise RecipeError(
            "model.tying is all, but the prepared data has a vocabulary for each language",
            where=str(data.directory),
            hint="--set model.tying=target, or prepare the data with one shared vocabulary",
        )


def _is_one_vocabulary(data: PreparedData) -> bool:
    """True if both languages have the same pieces; an imported model has them in two files."""
    tokenizers = data.manifest.tokenizers
    if tokenizers.source.fingerprint == tokenizers.target.fingerprint:
        return True
    if tokenizers.source.vocab_size != tokenizers.target.vocab_size:
        return False
    ids = range(tokenizers.source.vocab_size)
    files_of_sides = (data.source_tokenizer_file, data.target_tokenizer_file)
    source, target = (Tokenizer.load(file).pieces(ids) for file in files_of_sides)
    return source == target


def _check_vocabulary(path: Path, listed: Mapping[str, Any], data: PreparedData) -> None:
    """Raise DataError unless the data has the model's tokenizers, by the files that the model's manifest lists."""
    tokenizers = data.manifest.tokenizers
    for side, tokenizer in (("source", tokenizers.source), ("target", tokenizers.target)):
        if listed[f"{side}.spm"]["sha256"] != tokenizer.fingerprint:
            raise DataError(
                f"the data in {data.directory} was prepared with another {side} vocabulary than the model's",
                where=str(data.directory),
                hint="prepare it with the model's:"
                f" nmt prepare ... --set tokenizer.taken_from={shlex.quote(str(path))} -o DIR",
            )


def _check_architecture(path: Path, initial: ModelConfig, model: ModelConfig) -> None:
    if keys := initial.differing_keys(model):
        initial_settings, settings = initial.model_dump(mode="json"), model.model_dump(mode="json")
        key = keys[0]
        raise RecipeError(
            f"the model in {path} has model.{key} {as_written(initial_settings[key])}, and the recipe "
            f"{as_written(settings[key])}",
            setting="init_from",
            hint="train with the architecture of the model: "
            + " ".join(f"--set model.{key}={_as_setting(initial_settings[key])}" for key in keys),
        )


def _as_setting(value: Any) -> str:
    return value if isinstance(value, str) else as_written(value)
