"""From the command `nmt train` to a running trainer: prepared data, devices, ranks, the run; and the dry run."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from nmt_cli.artifacts.checkpoints import best_first
from nmt_cli.artifacts.run import InitialModel, Run, open_run
from nmt_cli.dataset.data_manifest import Manifest
from nmt_cli.dataset.plan_computation import pairs_in_epoch
from nmt_cli.dataset.prepared_data import PreparedData, TokenizedSide
from nmt_cli.dataset.sampled_pieces import SamplingCost, check_sampling, measure_sampling_cost
from nmt_cli.devices import choose_device, choose_precision
from nmt_cli.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, DeviceError, UsageError, first_line
from nmt_cli.files import check_names_folder
from nmt_cli.memory import is_out_of_memory
from nmt_cli.recipe.loading import ResolvedRecipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.recipe.section import KeyPath
from nmt_cli.recipe.yaml_files import dump_annotated
from nmt_cli.training.data_order import check_temperature, mixture_of
from nmt_cli.training.guided_alignment import check_alignments
from nmt_cli.training.micro_batch_size import estimate_device_needs
from nmt_cli.training.ranks.launcher import launch
from nmt_cli.training.ranks.ranks import LAUNCHED, is_under_torchrun, join_ranks
from nmt_cli.training.ranks.watchdog import watching
from nmt_cli.training.reporting.training_metrics import estimate_time, matrix_rate
from nmt_cli.training.runs import locked_run, open_or_begin
from nmt_cli.training.stop_signal import StopSignal

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunInputs:
    """The sizes of the vocabularies, and where they come from; prepared data and an initial model, if there are any."""

    source_vocab: int
    target_vocab: int
    origin: str
    data: PreparedData | None
    initial: InitialModel | None


def log_other_corpus(manifest: Manifest, recipe: Recipe) -> None:
    """Log if the data is another corpus than the recipe's, which --data allows."""
    if recipe.corpus not in (None, manifest.name):
        logger.info("data: the corpus %s, where the recipe has %s", manifest.name, recipe.corpus)


def world_size(device: str, gpus: int | None) -> int:
    """How many devices share an update: the ranks that were started, else --gpus, else all GPUs, else the CPU."""
    return _num_started_ranks() or gpus or max(num_gpus(device), 1)


def num_gpus(device: str) -> int:
    """GPUs that --device leaves to choose from."""
    if device == "cpu":
        return 0
    return min(torch.cuda.device_count(), 1) if ":" in device else torch.cuda.device_count()


def launch_ranks(arguments: Sequence[str], *, device: str, gpus: int | None) -> int | None:
    """Run `nmt ARGUMENTS` as a rank per GPU, if there are several to use, and return the exit code.

    None if this process itself is to train: as one of several ranks, or alone.
    """
    if (started := _num_started_ranks()) is not None:
        if gpus is not None and LAUNCHED not in os.environ:
            raise UsageError(
                f"--gpus {gpus} was given to one of {started} process(es) that torchrun, by WORLD_SIZE, has started",
                setting="gpus",
                hint="leave out --gpus and set torchrun's --nproc-per-node, or unset WORLD_SIZE",
            )
        return None
    choose_device(device)
    available = num_gpus(device)
    if gpus is not None and gpus > available:
        seen = f"torch {torch.__version__} sees {available} of them for --device {device}"
        hint = "leave out --gpus or --device, or check nvidia-smi"
        raise DeviceError(f"--gpus {gpus} was asked for, but {seen}", setting="gpus", hint=hint)
    num_ranks = world_size(device, gpus)
    return launch(arguments, num_ranks=num_ranks) if num_ranks > 1 else None


def train_run(
    recipe: Recipe,
    data: PreparedData,
    directory: Path,
    *,
    device: str,
    restart: bool,
    init_from: Path | None,
    command: Sequence[str],
    has_tensorboard: bool,
    profiled_updates: int,
) -> int:
    """Begin or continue the run in `directory`, as one of several ranks or alone, and return the exit code."""
    # Torch's slow parts take a second: a launcher and a dry run do without.
    from nmt_cli.training.checkpointer import check_precision
    from nmt_cli.training.reporting.reporter import check_tensorboard
    from nmt_cli.training.trainer import Trainer

    if has_tensorboard:
        check_tensorboard()
    check_names_folder(directory, example="runs/mine")
    check_sampling(data, recipe.tokenizer)
    check_alignments(data, recipe)
    check_temperature(data, recipe)
    ranks, stop = join_ranks(device), StopSignal(comes_twice=is_under_torchrun())
    precision = choose_precision(recipe.training.precision, device=ranks.device, training=True)
    with (
        locked_run(directory) if ranks.is_first else nullcontext(),
        watching(ranks, seconds=recipe.training.watchdog_seconds),
        stop.listening(),
        _out_of_memory_as_device_error(),
    ):
        if ranks.is_first:
            log_other_corpus(data.manifest, recipe)
            if not restart:
                check_precision(directory, precision)
            open_or_begin(directory, recipe, data, command=command, restart=restart, init_from=init_from)
        ranks.barrier()
        trainer = Trainer(
            open_run(directory),
            data,
            ranks=ranks,
            precision=precision,
            command=command,
            stop=stop,
            has_tensorboard=has_tensorboard,
            profiled_updates=profiled_updates,
        )
        ending = trainer.train()
        ranks.leave()
    if ending in ("preempted", "interrupted"):
        return EXIT_PREEMPTED if ending == "preempted" else EXIT_INTERRUPTED
    if ranks.is_first:
        logger.info("next: %s", _next_command(open_run(directory)))
    return 0


def dry_run_text(resolved: ResolvedRecipe, inputs: RunInputs, *, device: str, world_size: int) -> str:
    """The recipe as YAML with the origin of each value as a comment, then its needs, as comments too."""
    origins: dict[KeyPath, str] = {tuple(key.split(".")): origin for key, origin in resolved.origins.items()}
    recipe = dump_annotated(resolved.recipe.model_dump(mode="json"), origins)
    needs = _describe_needs(resolved.recipe, inputs, device=device, world_size=world_size)
    return recipe + "\n" + "".join(f"# {line}\n" for line in needs)


@contextmanager
def _out_of_memory_as_device_error() -> Iterator[None]:
    """Raise DeviceError if memory does not suffice: another process may fill a GPU or the machine at any time."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error, counts_vague_errors=False):
            raise
        raise DeviceError(
            "the training needs more memory than there is",
            where=first_line(error),
            hint="end what else takes memory (nvidia-smi or top shows it), take another `device`,"
            " or set a smaller training.max_tokens_per_device",
        ) from error


def _next_command(run: Run) -> str:
    """The command that translates with the run's best model; `nmt average` compares the average with `model/`.

    After fine-tuning the best checkpoint is a matter of few updates, and the newest checkpoints are worse.
    """
    directory, (by, number) = shlex.quote(str(run.directory)), run.recipe.averaging.choice
    decode = run.record.languages.decode_command(str(run.directory))
    if run.record.init_from is not None:
        return decode
    checkpoints = [checkpoint for checkpoint in run.checkpoints() if checkpoint.update > 0]
    if by == "best":
        checkpoints = best_first(checkpoints, metric=run.recipe.validation.metric)
    choice = f" --{by} {len(checkpoints)}" if number > len(checkpoints) else ""
    return f"nmt average {directory}{choice} && {decode}"


def _num_started_ranks() -> int | None:
    """The number of ranks that our launcher or torchrun has started; None in a process on its own.

    A container may have a WORLD_SIZE of 1 without any launcher.
    """
    value = os.environ.get("WORLD_SIZE", "1")
    return int(value) if value != "1" or "LOCAL_RANK" in os.environ else None


def _describe_needs(recipe: Recipe, inputs: RunInputs, *, device: str, world_size: int) -> Iterator[str]:
    """Lines on the vocabulary, the parameters, the devices, a batch, an epoch and the memory."""
    chosen, training = choose_device(device), recipe.training
    precision = choose_precision(training.precision, device=chosen, training=True)
    needs = estimate_device_needs(
        recipe,
        source_vocab=inputs.source_vocab,
        target_vocab=inputs.target_vocab,
        precision=precision,
        world_size=world_size,
    )
    yield f"vocabulary: {inputs.source_vocab:,} source and {inputs.target_vocab:,} target pieces ({inputs.origin})"
    if inputs.initial is not None:
        yield f"begins with: the weights of {inputs.initial.path}"
    yield f"parameters: {needs.num_parameters:,} ({needs.num_parameters / 1e6:.1f} million)"
    yield f"device: {chosen.type}, {precision}" + (f", {world_size} of them" if world_size > 1 else "")
    if training.max_tokens_per_device == "auto":
        share = f"x {needs.tokens:,}, at once where memory holds them, else in equal parts: found at the start (auto)"
    else:
        share = f"x {needs.accumulation_steps} micro-batch(es) of at most {training.max_tokens_per_device:,}"
    yield f"batch: {training.batch_tokens:,} tokens per update = {world_size} device(s) {share}"
    if inputs.data is not None:
        yield from _describe_epoch(recipe, inputs.data)
    rate = matrix_rate(chosen, torch.bfloat16 if precision == "bf16" else torch.float32)
    time = estimate_time(
        training,
        num_parameters=needs.num_parameters,
        flops_per_second=rate * world_size,
        is_gpu=chosen.type == "cuda",
    )
    sooner = "" if training.patience is None else "; training.patience may end it sooner"
    yield f"time: {time}; validations not counted{sooner}"
    yield (
        f"memory per device: about {(needs.weight_bytes + needs.activation_bytes) / 1e9:.1f} GB"
        f" ({needs.weight_bytes / 1e9:.1f} weights and optimizer,"
        f" {needs.activation_bytes / 1e9:.1f} activations of {needs.tokens:,} tokens)"
    )


def _describe_epoch(recipe: Recipe, data: PreparedData) -> Iterator[str]:
    """Lines on the updates of an epoch, and on the cost of sampled pieces."""
    from nmt_cli.training.initial_weights import check_tying

    check_tying(data, recipe)
    counts = data.manifest.splits["train"]
    check_sampling(data, recipe.tokenizer)
    check_alignments(data, recipe)
    check_temperature(data, recipe)
    mixture, sizes = mixture_of(data, recipe), counts.by_direction or [counts.pairs]
    numbers = sizes if mixture is None else pairs_in_epoch(sizes, temperature=mixture.temperature)
    cost, alpha = SamplingCost(src_growth=1, tgt_growth=1, bytes_per_pair=0), recipe.tokenizer.alpha
    if alpha is not None:
        seed, max_positions = recipe.training.seed, recipe.model.max_positions
        cost = measure_sampling_cost(data, alpha=alpha, seed=seed, max_positions=max_positions)

    def tokens_of(side: TokenizedSide) -> float:
        ends = [side.read_offsets(own.stop, own.stop + 1)[0] for own in counts.ranges]
        return float(np.diff(ends, prepend=0) / np.maximum(sizes, 1) @ numbers)

    pairs = data.split("train")
    tokens = (tokens_of(pairs.src) * cost.src_growth, tokens_of(pairs.tgt) * cost.tgt_growth)
    # An update closes before either side has more than its tokens.
    updates = max(1, round(max(tokens) / recipe.training.batch_tokens))
    epochs = recipe.training.updates / updates
    yield f"epoch: about {updates:,} updates of {counts.pairs:,} pairs; {epochs:.1f} epochs"
    if counts.by_direction is not None:
        directions = data.manifest.languages.pairs
        of_all = "" if mixture is None else f" by temperature {mixture.temperature:g}"
        shares = [f"{pair} {number:,}" for pair, number in zip(directions, numbers, strict=True)]
        yield f"pairs of each direction in an epoch{of_all}: {', '.join(shares)}"
    if alpha is not None:
        megabytes = cost.bytes_per_pair * counts.pairs / 1e6
        yield (
            f"sampled pieces: {cost.src_growth:.2f} times the source tokens,"
            f" {cost.tgt_growth:.2f} times the target tokens;"
            f" an epoch takes about {megabytes:,.1f} MB of disk"
        )
