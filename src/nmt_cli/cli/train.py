"""`nmt train`: a recipe and prepared data to a run with checkpoints and a model directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt_cli.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, DataError, DeviceError

if TYPE_CHECKING:
    from nmt_cli.dataset.store import PreparedData
    from nmt_cli.recipe.loading import ResolvedRecipe
    from nmt_cli.recipe.schema import Recipe


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe by name (base, demo, ...) or file.")],
    data: Annotated[Path | None, typer.Option("--data", help="Prepared data; else data/CORPUS.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The run's folder; else runs/RECIPE.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of the recipe; repeatable.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str | None, typer.Option("--precision", help="auto, bf16 or fp32; else the recipe's.")] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", min=1, help="GPUs to use; else all of them.")] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Remove the run that stands there and begin anew.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved recipe and its needs, and stop.")
    ] = False,
) -> None:
    """Train a model; the same command continues a run that was stopped.

    Example: nmt train multi30k --data data/multi30k
    """
    from nmt_cli.recipe.loading import resolve_recipe

    overrides = [*(settings or []), *([] if precision is None else [f"training.precision={precision}"])]
    resolved = resolve_recipe(recipe, overrides=overrides)
    directory = data or Path("data") / Path(resolved.recipe.corpus).stem
    if dry_run:
        _print_plan(resolved, directory, device=device, gpus=gpus)
        return
    prepared = _open(directory, resolved.recipe)
    _spread_over_gpus(device, gpus)
    _train(resolved.recipe, prepared, output or Path("runs") / resolved.recipe.name, device=device, restart=restart)


def _train(recipe: Recipe, data: PreparedData, directory: Path, *, device: str, restart: bool) -> None:
    from nmt_cli.bundle.run import open_run
    from nmt_cli.devices import choose_precision
    from nmt_cli.training.distributed import join
    from nmt_cli.training.runs import open_or_begin
    from nmt_cli.training.trainer import Trainer

    ranks = join(device)
    precision = choose_precision(recipe.training.precision, device=ranks.device, training=True)
    command = ["nmt", *sys.argv[1:]]
    if ranks.is_first:
        open_or_begin(directory, recipe, data, command=command, restart=restart)
    ranks.wait()
    run = open_run(directory)
    ending = Trainer(run, data, ranks=ranks, precision=precision, command=command).train()
    ranks.leave()
    if ending in ("preempted", "interrupted"):
        raise typer.Exit(EXIT_PREEMPTED if ending == "preempted" else EXIT_INTERRUPTED)
    if ranks.is_first:
        typer.echo(f"next: nmt average {directory} && nmt decode < input.txt > output.txt", err=True)


def _open(directory: Path, recipe: Recipe) -> PreparedData:
    from nmt_cli.dataset.store import open_prepared

    if not directory.exists():
        raise DataError(
            f"there is no prepared data in {directory}",
            where=str(directory),
            hint=f"nmt prepare {recipe.corpus}, or name the folder with --data",
        )
    return open_prepared(directory)


def _spread_over_gpus(device: str, gpus: int | None) -> None:
    """Replace this process by torchrun where several GPUs are to be used; under torchrun it has done its work."""
    if "WORLD_SIZE" in os.environ:
        return
    import torch

    available = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    if gpus is not None and gpus > max(available, 1):
        raise DeviceError(
            f"--gpus {gpus}, but there are {available} here", where="--gpus", hint="nvidia-smi lists them"
        )
    wanted = available if gpus is None else gpus
    if wanted > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={wanted}", "-m", "nmt_cli"]
        os.execv(sys.executable, [sys.executable, *launcher, *sys.argv[1:]])


def _print_plan(resolved: ResolvedRecipe, directory: Path, *, device: str, gpus: int | None) -> None:
    """The resolved recipe with the origin of each value, then what it needs, on stdout: it is what was asked for."""
    import yaml

    from nmt_cli.devices import choose_device, choose_precision
    from nmt_cli.recipe.loading import flatten
    from nmt_cli.training.estimate import estimate

    recipe = resolved.recipe
    lines = [(".".join(path), value) for path, value in flatten(recipe.model_dump(mode="json")).items()]
    texts = [
        f"{key}: {yaml.safe_dump(value, default_flow_style=True, width=1000).splitlines()[0]}" for key, value in lines
    ]
    width = min(60, max(len(text) for text in texts))
    for (key, _), text in zip(lines, texts, strict=True):
        typer.echo(f"{text:<{width}}  # {resolved.origins[key]}")
    chosen = choose_device(device)
    world_size = gpus or 1
    precision = choose_precision(recipe.training.precision, device=chosen, training=True)
    source_vocab, target_vocab, whence = _vocabularies(directory, recipe)
    needs = estimate(
        recipe, source_vocab=source_vocab, target_vocab=target_vocab, precision=precision, world_size=world_size
    )
    total = needs.weight_bytes + needs.activation_bytes
    typer.echo(f"\nvocabulary: {source_vocab:,} source and {target_vocab:,} target pieces ({whence})")
    typer.echo(f"parameters: {needs.num_parameters:,} ({needs.num_parameters / 1e6:.1f} million)")
    typer.echo(
        f"device: {chosen.type}, {precision}, {world_size} of them"
        if world_size > 1
        else f"device: {chosen.type}, {precision}"
    )
    typer.echo(
        f"batch: {recipe.training.batch_tokens:,} tokens an update = {world_size} device(s) x {needs.accumulation}"
        f" micro-batch(es) of at most {recipe.training.max_tokens_per_device:,}"
    )
    typer.echo(
        f"memory a device: about {total / 1e9:.1f} GB ({needs.weight_bytes / 1e9:.1f} weights and optimizer,"
        f" {needs.activation_bytes / 1e9:.1f} activations)"
    )


def _vocabularies(directory: Path, recipe: Recipe) -> tuple[int, int, str]:
    """Pieces of source and target: of the prepared data where it is there, else as its corpus file asks."""
    if directory.exists():
        tokenizers = _open(directory, recipe).manifest.tokenizers
        return tokenizers.source.vocab_size, tokenizers.target.vocab_size, str(directory)
    from nmt_cli.preparing.corpora import load_corpus

    corpus = load_corpus(recipe.corpus, overrides=()).corpus
    size = corpus.tokenizer.vocab_size
    return size, size, f"the corpus {recipe.corpus}, not prepared yet"
