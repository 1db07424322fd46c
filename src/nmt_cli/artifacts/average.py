"""The average of the checkpoints of a run (section 6.1), or of finished models, in float64.

The average of a model before and after fine-tuning forgets less of the first model than fine-tuning alone (Wortsman et
al. 2022, arXiv:2109.01903).
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from nmt_cli import __version__, files
from nmt_cli.artifacts.checkpoints import Checkpoint, best_first
from nmt_cli.artifacts.manifest import DAMAGED_HINT, MANIFEST, WEIGHTS, licence_files, verify_files
from nmt_cli.artifacts.model_card import (
    front_matter,
    inherited_values,
    names_at_head,
    render_card,
    with_front_matter,
)
from nmt_cli.artifacts.model_directory import (
    AverageLosses,
    SavedModelConfig,
    check_replaceable,
    load_saved_config,
    save_model,
)
from nmt_cli.artifacts.run import CHECKPOINTS, Run, command_to_continue
from nmt_cli.artifacts.weights import check_finite, check_names_and_shapes, read_tensors
from nmt_cli.errors import ModelError, UsageError
from nmt_cli.recipe.directions import Direction, Directions
from nmt_cli.recipe.schema import TrainedLines
from nmt_cli.templates.render import render

logger = logging.getLogger(__name__)

_LEAVE_OUT = "average the others: nmt average CHECKPOINT CHECKPOINT ..."
_OLD_CARD = "README.old.md"
_TOKENIZERS = ("source.spm", "target.spm")


def choose_checkpoints(run: Run, *, by: Literal["last", "best"], number: int) -> list[Checkpoint]:
    """The `number` newest checkpoints of a run, or the best as `best_first` ranks them; oldest first.

    The weights that the run began with are not among the newest. Raises ModelError if the run has too few.
    """
    checkpoints = run.checkpoints()
    if not checkpoints:
        hint = f"train it: {command_to_continue(run.record.command)}"
        raise ModelError("the run has no checkpoint yet", where=str(run.directory / CHECKPOINTS), hint=hint)
    ranked = [checkpoint for checkpoint in reversed(checkpoints) if checkpoint.update > 0]
    if by == "best":
        ranked = best_first(checkpoints, metric=run.recipe.validation.metric)
    if len(ranked) < number:
        raise _too_few_error(run, option=by, number=number, num_found=len(ranked))
    return sorted(ranked[:number], key=lambda checkpoint: checkpoint.update)


def write_average_of_checkpoints(
    run: Run,
    checkpoints: Sequence[Checkpoint],
    *,
    output: Path,
    overwrite: bool,
    command: Sequence[str],
    measure: Callable[[Mapping[str, Tensor]], AverageLosses | None] | None,
) -> AverageLosses | None:
    """Write the average of these checkpoints of `run` as the model directory `output`; its card shows `command`.

    Returns the losses that `measure` finds for the averaged weights. The run's own averaged/ is replaced without
    `overwrite`, because averaging again after more training is normal.
    """
    may_replace = overwrite or output.resolve() == (run.directory / "averaged").resolve()
    check_replaceable(output, overwrite=may_replace)
    source_spm, target_spm = run.read_tokenizer("source"), run.read_tokenizer("target")
    weights = average_checkpoints(checkpoints)
    losses = None if measure is None else measure(weights)
    config = run.saved_config_of([checkpoint.update for checkpoint in checkpoints]).model_copy(
        update={"average_losses": losses}
    )
    num_parameters = sum(tensor.numel() for tensor in weights.values())
    # `nmt train` makes model/ by this function too, with its own command.
    commands = [run.record.command] if list(command) == run.record.command else [run.record.command, command]
    card = render_card(run, config=config, num_parameters=num_parameters, commands=commands)
    save_model(
        output,
        config=config,
        weights=weights,
        source_spm=source_spm,
        target_spm=target_spm,
        card=card,
        overwrite=may_replace,
        unlisted=licence_files([run.directory])
        | (_files_of_user(output) if output.parent.resolve() == run.directory.resolve() else {}),
    )
    return losses


def average_checkpoints(checkpoints: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """The mean of the weights of some checkpoints; in any order it has the same bits.

    Raises ModelError if a checkpoint is given twice, is damaged, has another shape, or holds values that are not
    finite.
    """
    checkpoints = sorted(checkpoints, key=lambda checkpoint: (checkpoint.update, checkpoint.weights_sha256))
    paths = [checkpoint.path for checkpoint in checkpoints]
    _check_no_duplicates(paths, [checkpoint.weights_sha256 for checkpoint in checkpoints], noun="checkpoint")
    for checkpoint in checkpoints:
        verify_files(checkpoint.path, hint=_LEAVE_OUT, names_to_hash=(WEIGHTS,))
        loss = "" if checkpoint.loss is None else f"validation loss {checkpoint.loss:.4f}"
        bleu = "" if checkpoint.bleu is None else f"BLEU {checkpoint.bleu:.2f}"
        figures = "  ".join(filter(None, (loss, bleu)))
        logger.info("update %9s  %s", f"{checkpoint.update:,}", figures or "not validated")
    return _mean_of_weights(paths, hint=_LEAVE_OUT)


def write_average_of_models(paths: Sequence[Path], *, output: Path, overwrite: bool, command: Sequence[str]) -> None:
    """Write the average of these model directories as the model directory `output`; its card shows `command`.

    It has the tokenizers and the recipe of the last model, and the directions of the model that has the most. Raises
    ModelError if a model is damaged or given twice, if architectures or vocabularies differ, or if a direction of
    another model is missing there.
    """
    check_replaceable(output, overwrite=overwrite)
    configs = [load_saved_config(path) for path in paths]
    used = (WEIGHTS, *_TOKENIZERS)
    listed = [verify_files(path, hint=DAMAGED_HINT, names_to_hash=used)["files"] for path in paths]
    _check_no_duplicates(paths, [entries[WEIGHTS]["sha256"] for entries in listed], noun="model")
    _check_same_tokenizers(paths, listed)
    _check_same_architecture(paths, configs)
    languages = _directions_of_all(paths, configs)
    weights = _mean_of_weights(paths, hint=DAMAGED_HINT)
    last = configs[-1]
    config = last.model_copy(
        update={
            "nmt_version": __version__,
            "languages": languages,
            "updates": [],
            "validation": [],
            "average_losses": None,
            "imported_from": None,
            "trained_lines": TrainedLines.combined([config.trained_lines for config in configs]),
        }
    )
    inherited = inherited_values(paths)
    licence = names_at_head(inherited, "license")
    body = render("average_model_card.md", config=config, paths=paths, command=shlex.join(command), licence=licence)
    source_spm, target_spm = ((paths[-1] / name).read_bytes() for name in _TOKENIZERS)
    save_model(
        output,
        config=config,
        weights=weights,
        source_spm=source_spm,
        target_spm=target_spm,
        card=with_front_matter(front_matter(config.languages) | inherited, body),
        overwrite=overwrite,
        unlisted=licence_files(paths),
    )


def _too_few_error(run: Run, *, option: Literal["last", "best"], number: int, num_found: int) -> ModelError:
    """The error if `--last` or `--best` asks for more checkpoints than the `num_found` that can be chosen."""
    measured = "" if option == "last" else f" with a validation {run.recipe.validation.metric}"
    hint = f"nmt average {shlex.quote(str(run.directory))} --{option} {num_found}"
    return ModelError(
        f"{number} were asked for, but the run has {num_found} checkpoint{'' if num_found == 1 else 's'}{measured}",
        where=str(run.directory / CHECKPOINTS),
        hint=hint if num_found else f"average the newest: nmt average {shlex.quote(str(run.directory))} --last 1",
    )


def _files_of_user(model: Path) -> dict[str, bytes]:
    """The licence that a user added to a model and, under the name README.old.md, the card that a user edited."""
    card, manifest = model / "README.md", model / MANIFEST  # which has the hash of the card that nmt wrote
    is_edited = card.is_file() and manifest.is_file() and files.sha256(card).encode() not in manifest.read_bytes()
    old_card = card if is_edited else model / _OLD_CARD
    return licence_files([model]) | ({_OLD_CARD: old_card.read_bytes()} if old_card.is_file() else {})


def _mean_of_weights(directories: Sequence[Path], *, hint: str) -> dict[str, Tensor]:
    """The mean of each tensor over the weights in these directories, computed in float64 and returned in float32.

    Memory holds the means and one tensor in float64, because the files are mapped. Raises ModelError with `hint` if
    weights are damaged, or if their names or shapes differ.
    """
    weights = {str(path / WEIGHTS): read_tensors(path / WEIGHTS, hint=hint) for path in directories}
    first = next(iter(weights.values()))
    for where, tensors in weights.items():
        check_names_and_shapes(tensors, expected=first, where=where, hint=hint)
    return {name: _mean_of_tensor(name, weights, hint=hint) for name in first}


def _mean_of_tensor(name: str, weights: Mapping[str, Mapping[str, Tensor]], *, hint: str) -> Tensor:
    """The mean of the tensors of this name in `weights`, which has the tensors of each file."""
    for where, tensors in weights.items():
        check_finite(name, tensors[name], where=where, hint=hint)
    first, *others = (tensors[name] for tensors in weights.values())
    total = first.double()
    for tensor in others:
        total.add_(tensor)
    return total.div_(len(weights)).float()


def _check_no_duplicates(paths: Sequence[Path], hashes: Sequence[str], *, noun: Literal["checkpoint", "model"]) -> None:
    """Raise ModelError if two paths have the same weights, of which `hashes` has the SHA-256."""
    path_of_hash: dict[str, Path] = {}
    for path, weights_sha256 in zip(paths, hashes, strict=True):
        if earlier := path_of_hash.get(weights_sha256):
            fault = "is given twice" if earlier.resolve() == path.resolve() else f"has the weights of {earlier}"
            raise ModelError(f"{path} {fault}", where=str(path), hint=f"name each {noun} once")
        path_of_hash[weights_sha256] = path


def _check_same_tokenizers(paths: Sequence[Path], listed: Sequence[Mapping[str, Any]]) -> None:
    """Raise ModelError if a model has another tokenizer than the first, by the files that manifests list."""
    for path, entries in zip(paths, listed, strict=True):
        for name in _TOKENIZERS:
            if entries[name]["sha256"] != listed[0][name]["sha256"]:
                hint = "average models of one vocabulary: a model, and what --init-from made of it"
                raise ModelError(f"{path} has another {name} than {paths[0]}", where=str(path), hint=hint)


def _check_same_architecture(paths: Sequence[Path], configs: Sequence[SavedModelConfig]) -> None:
    first, *others = (config.recipe.model for config in configs)
    for path, model in zip(paths[1:], others, strict=True):
        for key in first.differing_keys(model):
            message = f"{path} has model.{key} {getattr(model, key)}, and {paths[0]} {getattr(first, key)}"
            raise ModelError(message, where=str(path), hint="average models of one architecture")


def _directions_of_all(paths: Sequence[Path], configs: Sequence[SavedModelConfig]) -> Directions:
    """The directions of the model with the most; ModelError if another has one that it lacks, or other symbols."""
    widest, most = max(zip(paths, configs, strict=True), key=lambda model: len(model[1].languages.offered))
    for path, config in zip(paths, configs, strict=True):
        languages = config.languages
        own = [] if languages == most.languages else map(languages.direction, languages.offered)
        if lacking := next((direction for direction in own if not _includes(most.languages, direction)), None):
            message = f"{path} was trained on {lacking.languages}, and {widest} was not, or with other symbols"
            hint = "average models of the same directions, or with the model of more directions that they come from"
            raise ModelError(message, where=str(path), hint=hint)
    return most.languages


def _includes(directions: Directions, other: Direction) -> bool:
    """Whether the direction is one of these, perhaps under other codes, and has the same symbols."""
    try:
        found = directions.find(other.languages.source, other.languages.target)
    except UsageError:
        return False
    return directions.is_trained(found.languages) and replace(found, languages=other.languages) == other
