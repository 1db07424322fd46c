"""`nmt average`: one model directory out of several checkpoints."""

from __future__ import annotations

import logging
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt_cli.cli.arguments import DebugOption, QuietOption
from nmt_cli.errors import DataError, ModelError, UsageError
from nmt_cli.memory import is_out_of_memory

if TYPE_CHECKING:
    from torch import Tensor

    from nmt_cli.artifacts.checkpoints import Checkpoint
    from nmt_cli.artifacts.model_directory import AverageLosses
    from nmt_cli.artifacts.run import Run

logger = logging.getLogger(__name__)


def average(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|CHECKPOINT|MODEL", help="A run, checkpoints of one run, or models.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder to write; else RUN/averaged, renewed.")
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Take the newest N; else what the recipe says.")
    ] = None,
    best: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Take the best N by validation.metric of the recipe.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model at -o.")] = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Average checkpoints of a run, or models, into a model directory.

    Example: nmt average runs/base --last 5
    """
    from nmt_cli.artifacts.directory_kinds import kind_of
    from nmt_cli.artifacts.run import open_run

    if last is not None and best is not None:
        raise UsageError("--last and --best exclude each other", where="--last, --best", hint="give one of them")
    has_choice = last is not None or best is not None
    are_models = all(kind_of(path) == "model" for path in paths)
    runs = [path for path in paths if kind_of(path) == "run"]
    if runs and len(paths) > 1:
        hint = "name one run, or checkpoints of one run: runs/NAME/checkpoints/update-*"
        raise UsageError(f"{runs[0]} is a run, and there are other arguments", where=str(runs[0]), hint=hint)
    if not runs and has_choice:
        hint = "name the run instead, or leave the option out: all that is named is averaged"
        raise UsageError("--last and --best choose among a run's checkpoints", where="--last, --best", hint=hint)
    if are_models:
        _average_models(paths, output, overwrite=overwrite)
        return
    if not runs:
        _average_checkpoints(*_open_checkpoints(paths), output, overwrite=overwrite)
        return
    run = open_run(runs[0])
    from nmt_cli.artifacts.average import choose_checkpoints  # imports torch: seconds
    from nmt_cli.recipe.training import AveragingConfig

    averaging = AveragingConfig(last=last, best=best) if has_choice else run.recipe.averaging
    by, number = averaging.choice
    _average_checkpoints(run, choose_checkpoints(run, by=by, number=number), output, overwrite=overwrite)


def _average_checkpoints(run: Run, checkpoints: Sequence[Checkpoint], output: Path | None, *, overwrite: bool) -> None:
    """Write the average of checkpoints of a run, and say which model `nmt decode` takes."""
    from nmt_cli.artifacts.average import write_average_of_checkpoints
    from nmt_cli.artifacts.checkpoints import best_first
    from nmt_cli.artifacts.directory_kinds import kind_of
    from nmt_cli.artifacts.info import current_model
    from nmt_cli.artifacts.model_directory import load_saved_config

    model = output if output is not None else run.directory / "averaged"
    single, updates = run.directory / "model", [checkpoint.update for checkpoint in checkpoints]
    if kind_of(single) != "model":
        validated = best_first(run.checkpoints(), metric=run.recipe.validation.metric)
        single = validated[0].path if validated else checkpoints[-1].path
    is_single = kind_of(single) == "model" and load_saved_config(single).updates == updates
    losses = write_average_of_checkpoints(
        run,
        checkpoints,
        output=model,
        overwrite=overwrite,
        command=["nmt", *sys.argv[1:]],
        measure=None if is_single else lambda weights: _validation_losses(run, weights, single=single),
    )
    origin = "1 checkpoint" if len(checkpoints) == 1 else f"the average of {len(checkpoints)} checkpoints"
    logger.info("%s: %s", model, origin)
    languages = run.record.languages
    command = languages.decode_command(str(model))
    if losses is not None and losses.is_worse:
        is_model = kind_of(single) == "model"
        who_takes = ", which decode and serve take" if current_model(run.directory) == str(single) else ""
        logger.warning("the average is worse than %s%s", single, who_takes)
        command = languages.decode_command(str(single)) if is_model else f"nmt average {shlex.quote(str(single))}"
    elif model.resolve() == (run.directory / "averaged").resolve() and current_model(run.directory) == str(single):
        logger.warning("the average is of earlier updates than %s, which decode and serve take", single)
    logger.info("next: %s", command)


def _validation_losses(run: Run, weights: Mapping[str, Tensor], *, single: Path) -> AverageLosses | None:
    """The validation losses of the average and of the best single model, which are logged too.

    None if the data is missing or too little memory is free. ModelError if the average's is not finite.
    """
    from nmt_cli.training.validation import measure_average

    try:
        losses = measure_average(run, weights, single=single)
    except (DataError, RuntimeError) as error:
        if not isinstance(error, DataError) and not is_out_of_memory(error, counts_vague_errors=True):
            raise
        reason = error.message if isinstance(error, DataError) else "too little memory is free"
        logger.info("the average was not measured on the validation set: %s", reason)
        return None
    if not math.isfinite(losses.loss):
        hint = "average checkpoints from before the training diverged: nmt average CHECKPOINT CHECKPOINT ..."
        raise ModelError("the validation loss of the average is not finite", where=str(run.directory), hint=hint)
    logger.info("validation loss: %.4f of the average, %.4f of %s", losses.loss, losses.single_loss, single)
    return losses


def _average_models(paths: Sequence[Path], output: Path | None, *, overwrite: bool) -> None:
    """Write the average of model directories."""
    from nmt_cli.artifacts.average import write_average_of_models
    from nmt_cli.artifacts.model_directory import load_saved_config

    arguments = " ".join(shlex.quote(str(path)) for path in paths)
    if len(paths) < 2:
        hint = f"name a second one: nmt average {arguments} MODEL -o DIR"
        raise UsageError(f"{paths[0]} is one model, and an average is of several", where=str(paths[0]), hint=hint)
    if output is None:
        hint = f"nmt average {arguments} -o models/average"
        raise UsageError("an average of models needs a folder of its own", where="--output", hint=hint)
    write_average_of_models(paths, output=output, overwrite=overwrite, command=["nmt", *sys.argv[1:]])
    logger.info("%s: the average of %d models; measure it: nmt score", output, len(paths))
    logger.info("next: %s", load_saved_config(output).languages.decode_command(str(output)))


def _open_checkpoints(paths: Sequence[Path]) -> tuple[Run, list[Checkpoint]]:
    """The checkpoints at `paths` and the run that they belong to."""
    from nmt_cli.artifacts.checkpoints import read_checkpoint
    from nmt_cli.artifacts.directory_kinds import did_you_mean, kind_of
    from nmt_cli.artifacts.run import open_run

    for path in paths:
        if kind_of(path) != "checkpoint":
            fault = "is neither a run nor a checkpoint" if path.exists() else "does not exist"
            near = "" if path.exists() else did_you_mean(path, "model", "run", "checkpoint")
            hint = f"{near}nmt average runs/NAME, or its checkpoints/update-*"
            raise ModelError(f"{path} {fault}", where=str(path), hint=hint)
    paths_by_run = {path.resolve().parents[1]: path for path in paths}
    if len(paths_by_run) > 1:
        first, second, *_ = paths_by_run.values()
        raise ModelError(
            f"{first} and {second} belong to different runs", where=str(second), hint="average checkpoints of one run"
        )
    (run_directory,) = paths_by_run
    run_directory = run_directory.relative_to(Path.cwd()) if run_directory.is_relative_to(Path.cwd()) else run_directory
    return open_run(run_directory), sorted(map(read_checkpoint, paths), key=lambda checkpoint: checkpoint.update)
