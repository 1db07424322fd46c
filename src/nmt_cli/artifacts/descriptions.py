"""Descriptions of artifacts: the model card for people, and dictionaries for `nmt info`; weights are never read.

The card is README.md of a model directory, in Markdown with the front matter that model hubs read.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import yaml

from nmt_cli.artifacts.manifest import DAMAGED, WEIGHTS, kind_of, verify_files
from nmt_cli.artifacts.model_directory import Measurement, SavedModelConfig, load_saved_config, model_of_run
from nmt_cli.artifacts.run import Checkpoint, Run, best_first, open_run, read_checkpoint
from nmt_cli.errors import ModelError
from nmt_cli.files import bytes_in
from nmt_cli.templates.render import render

_MAX_ROWS = 12
_MAX_BARS = 60
_BARS = "▁▂▃▄▅▆▇█"


def render_card(run: Run, *, config: SavedModelConfig, num_parameters: int, commands: Sequence[Sequence[str]]) -> str:
    """The card of a model that was made of `run`; `commands` made the model, each as a list of arguments."""
    summary = run.record.data_summary
    measured = run.validations()
    body = render(
        "model_card.md",
        run=run,
        config=config,
        num_parameters=num_parameters,
        commands=[shlex.join(command) for command in commands],
        corpus=_corpus(summary),
        splits=summary.get("splits") or {},
        files=[entry for entry in summary.get("inputs", []) if entry.get("sha256")],
        measured=_thinned(measured),
        curve=_curve(measured),
        scores=[one.bleu for one in config.validation if one.bleu is not None],
        signatures=sorted({one.signature for one in config.validation if one.signature}),
    )
    return join_front_matter(_front_matter(run, config), body)


def sparkline(values: Sequence[float]) -> str:
    """One bar per value; the lowest value gets the lowest bar."""
    low, high = min(values), max(values)
    steps = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * steps)] for value in values)


def without_usage_section(card: str) -> str:
    """A card without its section on how nmt uses the model, which needs the model directory."""
    return re.sub(r"^## Use\n.*?(?=^## |\Z)", "", card, count=1, flags=re.MULTILINE | re.DOTALL)


def split_front_matter(card: str) -> tuple[dict[str, Any], str]:
    """The values at the head of a card, and the rest; no values if the head is not YAML."""
    parts = card.split("---\n", 2)
    if len(parts) < 3 or parts[0]:
        return {}, card
    try:
        values = yaml.safe_load(parts[1])
    except yaml.YAMLError:
        values = None
    return values if isinstance(values, dict) else {}, parts[2].lstrip("\n")


def join_front_matter(values: Mapping[str, Any], body: str) -> str:
    """A card of the values at its head and the rest."""
    return f"---\n{yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)}---\n\n{body}"


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
        "bytes": bytes_in(path),
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
    best = next(iter(best_first(measured, metric=run.recipe.validation.metric)), None)
    return {
        "kind": "run",
        "path": str(path),
        "name": run.recipe.name,
        **run.record.model_dump(include={"languages", "data", "corpus", "command", "started", "finished"}),
        **_progress(run),
        "metric": run.recipe.validation.metric,
        "best_validation": best.model_dump() if best else None,
        "last_validation": measured[-1].model_dump() if measured else None,
        "validation_curve": [[one.update, one.loss, one.bleu] for one in measured],
        "parameters": num_parameters(newest) if newest else None,
        "checkpoints": [{**_checkpoint(one), "damage": _damage(one.path)} for one in checkpoints],
        "models": [str(model) for model in models],
        "current_model": str(model_of_run(path)) if models else None,
        "bytes": bytes_in(path),
        "recipe": run.recipe.model_dump(mode="json"),
    }


def describe_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint: its update, validation results, parameters, and size in bytes."""
    return {
        "kind": "checkpoint",
        **_checkpoint(read_checkpoint(path)),
        "parameters": num_parameters(path / WEIGHTS),
        "bytes": bytes_in(path),
        "damage": _damage(path),
    }


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


def _front_matter(run: Run, config: SavedModelConfig) -> dict[str, Any]:
    values: dict[str, Any] = {
        "language": [config.languages.source, config.languages.target],
        "library_name": "nmt-cli",
        "pipeline_tag": "translation",
        "tags": ["translation", "transformer"],
    }
    if repositories := _hub_repositories(run.record.data_summary):
        values["datasets"] = repositories
    measured = config.validation[0] if len(config.updates) == 1 and config.validation else None
    if measured is not None and measured.bleu is not None:
        values["metrics"] = ["bleu"]
        result = {
            "task": {"type": "translation"},
            "dataset": {"name": f"{run.record.corpus}, validation", "type": run.record.corpus},
            "metrics": [{"type": "bleu", "value": round(measured.bleu, 2), "name": measured.signature or "sacreBLEU"}],
        }
        values["model-index"] = [{"name": config.recipe.name, "results": [result]}]
    return values


def _curve(measured: Sequence[Measurement]) -> dict[str, Any] | None:
    """BLEU over the run, or the loss if BLEU was never measured."""
    if not measured:
        return None
    with_bleu = [one.bleu for one in measured if one.bleu is not None]
    name, values = ("BLEU", with_bleu) if with_bleu else ("loss", [one.loss for one in measured])
    bars = sparkline(values[:: -(-len(values) // _MAX_BARS)])
    return {"name": name, "bars": bars, "low": min(values), "high": max(values)}


def _thinned(measured: Sequence[Measurement]) -> list[Measurement]:
    """At most a dozen measurements, evenly over the run, with the last and the best."""
    if not measured:
        return []
    every = -(-len(measured) // (_MAX_ROWS - 2))
    best = max(measured, key=lambda one: (one.bleu if one.bleu is not None else -1.0, -one.loss))
    kept = {one.update for one in measured[every - 1 :: every]} | {measured[-1].update, best.update}
    return [one for one in measured if one.update in kept]


def _corpus(summary: Mapping[str, Any]) -> dict[str, Any]:
    corpus = summary.get("corpus")
    return {"description": "", "licence": "", **(corpus if isinstance(corpus, dict) else {})}


def _hub_repositories(summary: Mapping[str, Any]) -> list[str]:
    """The data sets of a hub that the corpus is made of; folders on this machine are left out."""
    sources = [source for split in ("train", "valid", "test") for source in _corpus(summary).get(split) or []]
    names = [source["repository"] for source in sources if source.get("kind") == "hub"]
    return list(dict.fromkeys(name for name in names if not name.startswith((".", "/"))))


def _progress(run: Run) -> dict[str, Any]:
    """The last update, its epoch and its rates, from the last lines of metrics.jsonl."""
    last = dict.fromkeys(("update", "updates", "epoch", "learning_rate", "target_tokens_per_second"))
    last |= {"update": 0, "updates": run.recipe.training.updates}
    for event in run.events():
        last |= {key: event[key] for key in last if key != "updates" and event.get(key) is not None}
    return last


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    values = asdict(checkpoint)
    del values["weights_sha256"]
    return values | {"path": str(checkpoint.path)}


def _damage(path: Path) -> str | None:
    """The first problem with the names and sizes of the files; hashes are checked on loading."""
    try:
        verify_files(path, error=ModelError, hint=DAMAGED, hashed=())
    except ModelError as problem:
        return problem.message
    return None
