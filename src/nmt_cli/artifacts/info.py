"""Descriptions of models, runs and checkpoints for `nmt info`: dictionaries, made without reading weights."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

from nmt_cli.artifacts.checkpoints import Checkpoint, best_first, read_checkpoint
from nmt_cli.artifacts.directory_kinds import kind_of
from nmt_cli.artifacts.history import History
from nmt_cli.artifacts.manifest import DAMAGED_HINT, WEIGHTS, verify_files
from nmt_cli.artifacts.model_card import inherited_values, names_at_head
from nmt_cli.artifacts.model_directory import load_saved_config
from nmt_cli.artifacts.run import Run, command_to_continue, model_of_run
from nmt_cli.errors import DataError, ModelError
from nmt_cli.files import bytes_in
from nmt_cli.recipe.directions import Directions
from nmt_cli.templates.charts import thin

_CURVE_COLUMNS = 50  # of the training loss; a column has up to four points


def describe_model(path: Path) -> dict[str, Any]:
    """A model directory: languages, vocabulary, parameters, size in bytes, updates, validation scores, recipe."""
    from nmt_cli.tokenization.tokenizer import Tokenizer  # loads SentencePiece, which a run or data does not need

    config, damage, tags = load_saved_config(path), _damage(path), list[str]()
    try:
        tags = Tokenizer.load(path / "source.spm").tags
    except DataError as error:
        damage = damage or error.message
    return {
        "kind": "model",
        "path": str(path),
        "name": config.recipe.name,
        "nmt_version": config.nmt_version,
        "languages": config.languages.model_dump(),
        "vocabulary": config.vocabulary.model_dump(),
        "tags": tags,
        "parameters": parameters_in_file(path / WEIGHTS),
        "bytes": bytes_in(path),
        "updates": config.updates,
        "validation": [measured.model_dump() for measured in config.validation],
        "average_losses": None if config.average_losses is None else config.average_losses.model_dump(),
        "trained_lines": config.trained_lines and config.trained_lines.model_dump(),
        "imported_from": config.imported_from,
        "license": names_at_head(inherited_values([path]), "license"),
        "damage": damage,
        "recipe": config.recipe.model_dump(mode="json"),
    }


def describe_run(run: Run, *, history: History) -> dict[str, Any]:
    """A run: its state and progress, its last and best validation, its checkpoints, its models, its recipe."""
    path = run.directory
    measured = [point.measured for point in history.validations]
    losses = [(point.at.update, point.loss) for point in history.training if point.loss is not None]
    checkpoints = run.checkpoints()
    models = [path / name for name in ("model", "averaged") if kind_of(path / name) == "model"]
    best = next(iter(best_first(measured, metric=run.recipe.validation.metric)), None)
    return {
        "kind": "run",
        "path": str(path),
        "name": run.recipe.name,
        **run.record.model_dump(include={"languages", "data", "corpus", "command", "started", "finished"}),
        "state": run.state(history),
        "update": history.last_update,
        "updates": run.recipe.training.updates,
        **{key: history.last_train_event.get(key) for key in ("epoch", "learning_rate", "target_tokens_per_second")},
        "training_seconds": history.seconds,
        "metric": run.recipe.validation.metric,
        "best_validation": best.model_dump() if best else None,
        "last_validation": measured[-1].model_dump() if measured else None,
        "validation_curve": [[result.update, result.loss, result.bleu] for result in measured],
        "training_curve": [[round(update), loss] for update, loss in thin(losses, columns=_CURVE_COLUMNS)],
        "parameters": parameters_in_file(checkpoints[-1].path / WEIGHTS) if checkpoints else None,
        "checkpoints": [
            _checkpoint_values(checkpoint) | {"damage": _damage(checkpoint.path)} for checkpoint in checkpoints
        ],
        "models": [str(model) for model in models],
        "current_model": current_model(path) if models else None,
        "bytes": bytes_in(path),
        "recipe": run.recipe.model_dump(mode="json"),
    }


def summarise_run(run: Run) -> dict[str, Any]:
    """A run in a few values: its state and progress, its best BLEU and lowest loss, its time and size."""
    history = run.history()
    measured = [point.measured for point in history.validations]
    return {
        "name": run.directory.name,
        "path": str(run.directory),
        "corpus": run.record.corpus,
        "state": run.state(history),
        "update": history.last_update,
        "updates": run.recipe.training.updates,
        "best_bleu": max((result.bleu for result in measured if result.bleu is not None), default=None),
        "lowest_loss": min((result.loss for result in measured), default=None),
        "training_seconds": history.seconds,
        "bytes": bytes_in(run.directory),
    }


def next_command(run: dict[str, Any]) -> str:
    """The command to run next for a run of `describe_run`: it trains on, averages or translates."""
    if not run["finished"]:
        return command_to_continue(run["command"])
    if run["current_model"]:
        return Directions.model_validate(run["languages"]).decode_command(run["current_model"])
    return f"nmt average {shlex.quote(run['path'])}"


def describe_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint: its update, validation results, parameters, and size in bytes."""
    return {
        "kind": "checkpoint",
        **_checkpoint_values(read_checkpoint(path)),
        "parameters": parameters_in_file(path / WEIGHTS),
        "bytes": bytes_in(path),
        "damage": _damage(path),
    }


def parameters_in_file(file: Path) -> int | None:
    """The number of parameters in a safetensors file; None if it is missing or damaged.

    Its header is read here, because `nmt info` does not wait for the import of safetensors and torch.
    """
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(min(length, file.stat().st_size)))
        shapes: list[list[int]] = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
        return sum(map(prod, shapes))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def current_model(run: Path) -> str | None:
    """The model that `nmt decode -m RUN` takes; None if there is none, or two whose manifests cannot be compared."""
    try:
        return str(model_of_run(run))
    except ModelError:
        return None


def _checkpoint_values(checkpoint: Checkpoint) -> dict[str, Any]:
    values = asdict(checkpoint) | {"path": str(checkpoint.path)}
    return {key: value for key, value in values.items() if key != "weights_sha256"}


def _damage(path: Path) -> str | None:
    """The first file that is missing or has another size, in words. Hashes are not checked, as loading checks them."""
    try:
        verify_files(path, hint=DAMAGED_HINT, names_to_hash=())
    except ModelError as error:
        return error.message
    return None
