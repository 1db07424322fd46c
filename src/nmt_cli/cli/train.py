"""`nmt train`: a recipe and prepared data to a run with checkpoints and a model directory."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt_cli.cli.arguments import DebugOption, QuietOption, complete_packaged
from nmt_cli.cli.recipes import prepare_command
from nmt_cli.console import PACKAGE_LOGGER, show_progress
from nmt_cli.devices import TRAINING_SPINS, bound_spinning
from nmt_cli.errors import DataError, NmtError

if TYPE_CHECKING:
    from nmt_cli.dataset.prepared_data import PreparedData
    from nmt_cli.recipe.schema import Recipe
    from nmt_cli.training.start import RunInputs


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A packaged recipe (nmt recipes lists them), or a file.",
            autocompletion=complete_packaged("recipe"),
        ),
    ],
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Prepared data; else data/CORPUS, by the recipe.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Folder to write; else runs/NAME, from RECIPE, --data and --init-from.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the recipe; repeatable.")
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda|cuda:N", help="auto: all GPUs, or else the CPU.")
    ] = "auto",
    precision: Annotated[
        str | None, typer.Option(metavar="auto|bf16|fp32", help="Precision of matrix products; else the recipe's.")
    ] = None,
    no_compile: Annotated[
        bool, typer.Option("--no-compile", help="Do not compile layers: starts sooner, trains slower.")
    ] = False,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, metavar="N", help="Use N GPUs; else all of them.")
    ] = None,
    init_from: Annotated[
        Path | None,
        typer.Option("--init-from", metavar="MODEL", help="Begin with a model's weights (fine-tuning)."),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Remove the run at -o, and begin anew.")] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write RUN/tensorboard for TensorBoard too.")
    ] = False,
    profile: Annotated[  # each update watched takes tens of megabytes
        int | None,
        typer.Option("--profile", min=1, max=100, metavar="N", help="Show where the time of N updates goes."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the whole recipe and its needs; write nothing.")
    ] = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Train a model; the same command continues a run that was stopped.

    Example: nmt train base --set training.updates=50000 -o runs/short
    """
    bound_spinning(TRAINING_SPINS)
    from nmt_cli.interchange.find_model import find_model
    from nmt_cli.recipe.loading import resolve_recipe

    with _as_one_of_several_ranks():
        overrides = [*(settings or []), *([] if precision is None else [f"training.precision={precision}"])]
        overrides += ["training.compile=false"] if no_compile else []
        resolved = resolve_recipe(recipe, overrides=overrides)
        directory = data or _default_data(resolved.recipe, reference=recipe, is_needed=not dry_run)
        if init_from is not None:
            init_from = find_model(init_from, show_progress=show_progress)
        needs_data = not dry_run or data is not None
        prepared = _open_data(directory, resolved.recipe, is_named=data is not None) if needs_data else None
        # All that follows imports torch, which takes seconds.
        from nmt_cli.training import start
        from nmt_cli.training.initial_weights import with_initial_architecture
        from nmt_cli.training.runs import is_restart_repeated, named_after_data_and_model

        is_packaged = not Path(recipe).is_file()
        resolved = named_after_data_and_model(resolved, directory, init_from=init_from, is_packaged=is_packaged)
        output = output or Path("runs", resolved.recipe.name)
        if not dry_run and (code := start.launch_ranks(sys.argv[1:], device=device, gpus=gpus)) is not None:
            raise typer.Exit(code)
        restart = restart and not is_restart_repeated(output)
        resolved = with_initial_architecture(resolved, run=output, init_from=init_from, restart=restart)
        if dry_run or prepared is None:
            inputs = _planned_inputs(directory, resolved.recipe, is_named=data is not None, init_from=init_from)
            world_size = start.world_size(device, gpus)
            typer.echo(start.dry_run_text(resolved, inputs, device=device, world_size=world_size), nl=False)
            return
        code = start.train_run(
            resolved.recipe,
            prepared,
            output,
            device=device,
            restart=restart,
            init_from=init_from,
            command=["nmt", *sys.argv[1:]],
            has_tensorboard=tensorboard,
            profiled_updates=profile or 0,
        )
        raise typer.Exit(code)


def _default_data(recipe: Recipe, *, reference: str, is_needed: bool) -> Path:
    """The directory of the recipe's data; DataError if the data `is_needed`, and the recipe names no corpus."""
    if recipe.corpus is None and is_needed:
        raise DataError(
            f"the recipe {reference} is for your own text, and --data does not name it",
            where="--data",
            hint=f"name a folder that nmt prepare wrote: nmt train {shlex.quote(reference)} --data data/NAME",
        )
    return Path("data") / (recipe.corpus or "")


def _open_data(directory: Path, recipe: Recipe, *, is_named: bool) -> PreparedData:
    """The prepared data in a directory, which --data may have named.

    If there is none, DataError has the command that prepares it, and the name that was probably meant.
    """
    from nmt_cli.artifacts.directory_kinds import did_you_mean
    from nmt_cli.dataset.prepared_data import open_prepared

    if not directory.exists():
        fix = f"{prepare_command(recipe.corpus, directory)}, or name the folder with --data"
        near = did_you_mean(directory, "data") if is_named else ""
        raise DataError(f"there is no prepared data in {directory}", where=str(directory), hint=near + fix)
    return open_prepared(directory)


@contextmanager
def _as_one_of_several_ranks() -> Iterator[None]:
    """Let only the first rank log, and only the first rank that fails report its error."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield
        return
    if os.environ.get("RANK") != "0":
        PACKAGE_LOGGER.setLevel(logging.ERROR)
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        from nmt_cli.training.ranks.ranks import ConnectionLost, report_failure

        code = error.exit_code if isinstance(error, NmtError) else 1
        first_failure = report_failure(code, is_consequence=isinstance(error, ConnectionLost))
        if first_failure is None:
            raise
        raise typer.Exit(first_failure) from None


def _planned_inputs(directory: Path, recipe: Recipe, *, is_named: bool, init_from: Path | None) -> RunInputs:
    """The inputs as far as a dry run knows them: above all the sizes of the vocabulary.

    Prepared data has the sizes. Without data, the sizes come from the model of --init-from, the recipe's packaged
    corpus, or the default of `nmt prepare`, in this order. The model is checked as a training would check it.
    """
    from nmt_cli.artifacts.model_directory import load_saved_config
    from nmt_cli.preparing.corpus import DEFAULT_VOCAB_SIZE
    from nmt_cli.preparing.corpus_loading import load_corpus
    from nmt_cli.recipe.loading import packaged_names

    has_packaged_corpus = recipe.corpus in packaged_names(kind="corpus")
    is_expected = recipe.corpus is not None and (directory.exists() or not has_packaged_corpus)
    data = _open_data(directory, recipe, is_named=is_named) if is_named or is_expected else None
    from nmt_cli.training.initial_weights import describe_initial_model
    from nmt_cli.training.start import RunInputs, log_other_corpus

    if data is not None:
        tokenizers = data.manifest.tokenizers
        log_other_corpus(data.manifest, recipe)
        initial = None if init_from is None else describe_initial_model(init_from, recipe, data)
        return RunInputs(tokenizers.source.vocab_size, tokenizers.target.vocab_size, str(directory), data, initial)
    if init_from is not None:
        initial, sizes = describe_initial_model(init_from, recipe, None), load_saved_config(init_from).vocabulary
        origin = f"of the model; {recipe.corpus or 'your text'} is not prepared yet"
        return RunInputs(sizes.source, sizes.target, origin, None, initial)
    if recipe.corpus is None:
        size = DEFAULT_VOCAB_SIZE
        return RunInputs(size, size, "the default of nmt prepare; --data names your own", None, None)
    size = load_corpus(recipe.corpus, overrides=()).corpus.tokenizer.vocab_size or DEFAULT_VOCAB_SIZE
    return RunInputs(size, size, f"the corpus {recipe.corpus}, not prepared yet", None, None)
