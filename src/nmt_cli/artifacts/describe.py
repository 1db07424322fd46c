"""Descriptions of a model directory, a run or a checkpoint as dictionaries; weights are never read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

from nmt_cli.artifacts.manifest import DAMAGED, WEIGHTS, kind_of, verify_files
from nmt_cli.artifacts.model_directory import Measurement, load_saved_config, model_of_run
from nmt_cli.artifacts.run import Checkpoint, Run, open_run, read_checkpoint
from nmt_cli.errors import ModelError


def describe_model(path: Path) -> dict[str, Any]:
    """A model directory: languages, vocabulary, parameters, size in bytes, updates, validation scores, recipe."""
    config = load_saved_config(path)
    return {
        "kind": "model",
        "path": str(path),
        "name": config.recipe.name,
        "nmt_version": config.nmt_version,
        "languages": config.languages.model_dump(),
        "vocabulary": config.vocabulary.model_dump(),
        "parameters": num_parameters(path / WEIGHTS),
        "bytes": _size(path),
        "updates": config.updates,
        "validation": [measured.model_dump() for measured in config.validation],
        "longest_source": config.longest_source,
        "damage": _damage(path),
        "recipe": config.recipe.model_dump(mode="json"),
    }


def describe_run(path: Path) -> dict[str, Any]:
    """A run: its progress, its last and best validation, its checkpoints, its models, its recipe."""
    run = open_run(path)
    measured = run.validations()
    checkpoints = run.checkpoints()
    newest = checkpoints[-1].path / WEIGHTS if checkpoints else None
    models = [path / name for name in ("model", "averaged") if kind_of(path / name) == "model"]
    best = best_validation(run, measured)
    return {
        "kind": "run",
        "path": str(path),
        "name": run.recipe.name,
        "languages": run.record.languages.model_dump(),
        "corpus": run.record.corpus,
        "data": run.record.data,
        "command": run.record.command,
        "started": run.record.started,
        "finished": run.record.finished,
        **_progress(run),
        "metric": run.recipe.validation.metric,
        "best_validation": best.model_dump() if best else None,
        "last_validation": measured[-1].model_dump() if measured else None,
        "validation_curve": [[one.update, one.loss, one.bleu] for one in measured],
        "parameters": num_parameters(newest) if newest else None,
        "checkpoints": [{**_checkpoint(one), "damage": _damage(one.path)} for one in checkpoints],
        "models": [str(model) for model in models],
        "current_model": str(model_of_run(path)) if models else None,
        "bytes": _size(path),
        "recipe": run.recipe.model_dump(mode="json"),
    }


def describe_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint: its update, validation results, parameters, and size in bytes."""
    return {
        "kind": "checkpoint",
        **_checkpoint(read_checkpoint(path)),
        "parameters": num_parameters(path / WEIGHTS),
        "bytes": _size(path),
        "damage": _damage(path),
    }


def best_validation(run: Run, measured: Sequence[Measurement]) -> Measurement | None:
    """The best result by the recipe's validation.metric, the newer of equal ones; None if there is none."""
    if run.recipe.validation.metric == "loss":
        return min(measured, key=lambda one: (one.loss, -one.update), default=None)
    with_bleu = [(one.bleu, one.update, one) for one in measured if one.bleu is not None]
    return max(with_bleu, key=lambda found: found[:2])[2] if with_bleu else None


def num_parameters(file: Path) -> int | None:
    """The count of numbers in a safetensors file, from its header; None if it is missing or damaged."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(min(length, file.stat().st_size)))
        shapes: list[list[int]] = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
        return sum(map(prod, shapes))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _progress(run: Run) -> dict[str, Any]:
    """The last update, its epoch and its rates, from the last lines of metrics.jsonl."""
    last: dict[str, Any] = {}
    for event in run.events():
        kept = ("update", "epoch", "learning_rate", "target_tokens_per_second")
        last.update({key: event[key] for key in kept if event.get(key) is not None})
    return {
        "update": last.get("update", 0),
        "updates": run.recipe.training.updates,
        "epoch": last.get("epoch"),
        "learning_rate": last.get("learning_rate"),
        "target_tokens_per_second": last.get("target_tokens_per_second"),
    }


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "path": str(checkpoint.path),
        "update": checkpoint.update,
        "recipe_fingerprint": checkpoint.recipe_fingerprint,
        "loss": checkpoint.loss,
        "bleu": checkpoint.bleu,
    }


def _size(path: Path) -> int:
    total = 0
    for file in path.rglob("*"):
        with suppress(FileNotFoundError):  # a training run removes old checkpoints at any moment
            total += file.lstat().st_size if file.is_file() else 0
    return total


def _damage(path: Path) -> str | None:
    """The first problem with the names and sizes of the files; hashes are checked on loading."""
    try:
        verify_files(path, error=ModelError, hint=DAMAGED, hashed=())
    except ModelError as problem:
        return problem.message
    return None
