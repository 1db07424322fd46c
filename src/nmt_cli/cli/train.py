"""`nmt train`: a recipe and prepared data to a run with checkpoints and a model directory."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from nmt_cli.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, DataError, DeviceError, NmtError, UsageError

if TYPE_CHECKING:
    from nmt_cli.cli.dry_run import Pieces
    from nmt_cli.dataset.manifest import Manifest
    from nmt_cli.dataset.store import PreparedData
    from nmt_cli.recipe.schema import Recipe
    from nmt_cli.training.distributed import Ranks
    from nmt_cli.training.ending import Ending

logger = logging.getLogger(__name__)


class Seen(NamedTuple):
    """Whether files for TensorBoard are written, and how many updates are profiled."""

    by_tensorboard: bool
    profiled_updates: int


_Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="A packaged recipe (base, demo, ...), or a file.")]
_Data = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Prepared data; else data/CORPUS, by the recipe.")
]
_Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder to write; else runs/NAME.")]
_Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the recipe; repeatable.")
]
_Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda|cuda:N", help="auto: the GPUs where there are any.")]
_Precision = Annotated[
    str | None, typer.Option(metavar="auto|bf16|fp32", help="Of matrix products; else the recipe's.")
]
_NoCompile = Annotated[bool, typer.Option("--no-compile", help="On GPUs, run layers as they are: slower, but at once.")]
_Gpus = Annotated[int | None, typer.Option("--gpus", min=1, metavar="N", help="Use N GPUs; else all of them.")]
_InitFrom = Annotated[
    Path | None, typer.Option("--init-from", metavar="MODEL", help="Begin with a model's weights (fine-tuning).")
]
_Restart = Annotated[bool, typer.Option("--restart", help="Remove the run that stands at -o, and begin anew.")]
_Tensorboard = Annotated[
    bool, typer.Option("--tensorboard", help="Also write files for TensorBoard, into RUN/tensorboard.")
]
_Profile = Annotated[  # each update watched takes tens of megabytes
    int | None, typer.Option("--profile", min=1, max=100, metavar="N", help="Tell where the time of N updates goes.")
]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the whole recipe, with origins, and its needs; write nothing.")
]


def train(
    recipe: _Recipe,
    data: _Data = None,
    output: _Output = None,
    settings: _Settings = None,
    device: _Device = "auto",
    precision: _Precision = None,
    no_compile: _NoCompile = False,
    gpus: _Gpus = None,
    init_from: _InitFrom = None,
    restart: _Restart = False,
    tensorboard: _Tensorboard = False,
    profile: _Profile = None,
    dry_run: _DryRun = False,
) -> None:
    """Train a model; the same command continues a run that was stopped.

    Example: nmt train base --set training.updates=50000 -o runs/short
    """
    from nmt_cli.bundle.directory import model_of_run
    from nmt_cli.bundle.kinds import kind_of
    from nmt_cli.recipe.loading import resolve_recipe

    with _one_message():
        overrides = [*(settings or []), *([] if precision is None else [f"training.precision={precision}"])]
        overrides += ["training.compile=false"] if no_compile else []
        resolved = resolve_recipe(recipe, overrides=overrides)
        directory = data or Path("data") / resolved.recipe.corpus
        if init_from is not None and kind_of(init_from) == "run":
            init_from = model_of_run(init_from)
        if dry_run:
            from nmt_cli.cli.dry_run import describe_plan

            pieces = _pieces(directory, resolved.recipe, is_named=data is not None, init_from=init_from)
            typer.echo(describe_plan(resolved, pieces, device=device, world_size=_world_size(device, gpus)), nl=False)
            return
        if tensorboard:
            from nmt_cli.training.tensorboard import require_tensorboard

            require_tensorboard()
        prepared = _open(directory, resolved.recipe)
        _spread_over_gpus(device, gpus)
        place = output or Path("runs") / resolved.recipe.name
        seen = Seen(tensorboard, profile or 0)
        _train(resolved.recipe, prepared, place, device=device, restart=restart, init_from=init_from, seen=seen)


@contextmanager
def _one_message() -> Iterator[None]:
    """Where this process is one of several ranks, let the first that fails say why, and the others end in silence."""
    if _world_size("cpu", None) == 1:
        yield
        return
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        from nmt_cli.training.bulletin import failure_before
        from nmt_cli.training.distributed import ConnectionLost

        code = error.exit_code if isinstance(error, NmtError) else 1
        first = failure_before(code, is_consequence=isinstance(error, ConnectionLost))
        if first is None:
            raise
        raise typer.Exit(first.exit_code) from None


def _train(
    recipe: Recipe,
    data: PreparedData,
    directory: Path,
    *,
    device: str,
    restart: bool,
    init_from: Path | None,
    seen: Seen,
) -> None:
    from nmt_cli.training.distributed import join
    from nmt_cli.training.launcher import end_with_launcher
    from nmt_cli.training.lock import locked
    from nmt_cli.training.runs import check_place, open_or_begin
    from nmt_cli.training.watchdog import watching

    end_with_launcher()
    check_place(directory)
    ranks = join(device)
    command = ["nmt", *sys.argv[1:]]
    with (
        locked(directory) if ranks.is_first else nullcontext(),
        watching(ranks, seconds=recipe.training.watchdog_seconds),
    ):
        if ranks.is_first:
            _name_corpus(data.manifest, recipe)
            is_first_attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"  # of those that torchrun makes
            begin_anew = restart and is_first_attempt
            open_or_begin(directory, recipe, data, command=command, restart=begin_anew, init_from=init_from)
        ranks.wait()
        ending = _run_trainer(directory, data, ranks, command=command, seen=seen)
        ranks.leave()
    if ending in ("preempted", "interrupted"):
        raise typer.Exit(EXIT_PREEMPTED if ending == "preempted" else EXIT_INTERRUPTED)
    if ranks.is_first:
        logger.info("next: nmt average %s && nmt decode < input.txt > output.txt", _averaging(directory))


def _averaging(directory: Path) -> str:
    """What `nmt average` is given: the run, and a number where the recipe asks for more checkpoints than there are."""
    from nmt_cli.bundle.run import open_run

    run = open_run(directory)
    num_there, asked = len(run.checkpoints()), run.recipe.averaging.last
    option = f" --last {num_there}" if asked is not None and asked > num_there else ""
    return shlex.quote(str(directory)) + option


def _run_trainer(directory: Path, data: PreparedData, ranks: Ranks, *, command: list[str], seen: Seen) -> Ending:
    from nmt_cli.bundle.run import open_run
    from nmt_cli.devices import choose_precision
    from nmt_cli.training.trainer import Trainer

    run = open_run(directory)
    precision = choose_precision(run.recipe.training.precision, device=ranks.device, training=True)
    trainer = Trainer(
        run,
        data,
        ranks=ranks,
        precision=precision,
        command=command,
        by_tensorboard=seen.by_tensorboard,
        profiled_updates=seen.profiled_updates,
    )
    return trainer.train()


def _open(directory: Path, recipe: Recipe) -> PreparedData:
    from nmt_cli.dataset.store import open_prepared
    from nmt_cli.recipe.loading import packaged_names

    if not directory.exists():
        corpus = recipe.corpus if recipe.corpus in packaged_names(kind="corpus") else "FILE.yaml"
        is_usual = directory == Path("data") / corpus
        prepare = f"nmt prepare {corpus}" if is_usual else f"nmt prepare {corpus} -o {shlex.quote(str(directory))}"
        raise DataError(
            f"there is no prepared data in {directory}",
            where=str(directory),
            hint=f"{prepare}, or name the folder with --data",
        )
    return open_prepared(directory)


def _name_corpus(manifest: Manifest, recipe: Recipe) -> None:
    """Say so where the data is another corpus than the recipe's, which --data allows."""
    if manifest.name != recipe.corpus:
        logger.info("data: the corpus %s, where the recipe has %s", manifest.name, recipe.corpus)


def _world_size(device: str, gpus: int | None) -> int:
    """How many devices share an update: the ranks that were started, else --gpus, else all GPUs, else the CPU."""
    return _num_started() or gpus or max(_num_gpus(device), 1)


def _num_started() -> int | None:
    """The processes of this training, as our launcher or torchrun tells each of them; None where it is on its own."""
    value = os.environ.get("WORLD_SIZE")
    if value is not None and not (value.isdecimal() and int(value)):
        raise DeviceError(
            f"WORLD_SIZE is {value!r}, and no number of processes",
            where="environment",
            hint="unset WORLD_SIZE, or start the ranks with torchrun -m nmt_cli train ...",
        )
    return None if value is None else int(value)


def _num_gpus(device: str) -> int:
    """GPUs that --device leaves to choose from."""
    import torch

    return min(torch.cuda.device_count(), 1 if ":" in device else sys.maxsize) if device != "cpu" else 0


def _spread_over_gpus(device: str, gpus: int | None) -> None:
    """Where several GPUs are to be used, let a rank for each train, and end with their code; in a rank, do nothing."""
    from nmt_cli.devices import choose_device
    from nmt_cli.training.launcher import LAUNCHER, launch

    if (started := _num_started()) is not None:
        if gpus is not None and LAUNCHER not in os.environ:
            raise UsageError(
                f"--gpus {gpus} was given to one of {started} process(es) that torchrun, by WORLD_SIZE, has started",
                where="--gpus",
                hint="leave out --gpus and set torchrun's --nproc-per-node, or unset WORLD_SIZE",
            )
        return
    choose_device(device)
    available = _num_gpus(device)
    if gpus is not None and gpus > available:
        raise _too_few_gpus(gpus, available, device=device)
    if (num_ranks := _world_size(device, gpus)) > 1:
        raise typer.Exit(launch(sys.argv[1:], num_ranks=num_ranks))


def _too_few_gpus(gpus: int, available: int, *, device: str) -> DeviceError:
    import torch

    asked = f"--gpus {gpus} was asked for, but"
    if device not in ("auto", "cuda"):
        message, hint = f"{asked} --device is {device}", "leave out --device, or --gpus"
    elif available:
        message, hint = (
            f"{asked} torch {torch.__version__} sees only {available} here",
            f"give --gpus {available}, or check nvidia-smi",
        )
    else:
        message = f"{asked} torch {torch.__version__} sees no GPU here"
        hint = "leave out --gpus to train on the CPU, or install a torch build with CUDA and check nvidia-smi"
    return DeviceError(message, where="--gpus", hint=hint)


def _pieces(directory: Path, recipe: Recipe, *, is_named: bool, init_from: Path | None) -> Pieces:
    """Pieces of source and target: of the prepared data where it is there, else as its packaged corpus asks.

    A model to begin with is looked at as a training would do, and without data its vocabulary counts.
    """
    from nmt_cli.bundle.config import load_config
    from nmt_cli.cli.dry_run import Pieces
    from nmt_cli.preparing.corpora import load_corpus
    from nmt_cli.recipe.loading import packaged_names
    from nmt_cli.training.initial import describe_model

    if is_named or directory.exists() or recipe.corpus not in packaged_names(kind="corpus"):
        data = _open(directory, recipe)
        manifest, tokenizers = data.manifest, data.manifest.tokenizers
        _name_corpus(manifest, recipe)
        initial = None if init_from is None else describe_model(init_from, recipe, data)
        return Pieces(tokenizers.source.vocab_size, tokenizers.target.vocab_size, str(directory), manifest, initial)
    if init_from is not None:
        initial, sizes = describe_model(init_from, recipe, None), load_config(init_from).vocabulary
        return Pieces(sizes.source, sizes.target, f"of the model; {recipe.corpus} is not prepared yet", None, initial)
    size = load_corpus(recipe.corpus, overrides=()).corpus.tokenizer.vocab_size
    return Pieces(size, size, f"the corpus {recipe.corpus}, not prepared yet", None, None)
