"""How many tokens a device takes at once: the recipe's number or, for `auto`, an estimate that the warm-up checks.

The run's record keeps the number found for `auto`. A training that continues on the same devices splits each update
into the same micro-batches as before.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt_cli.artifacts.run import MeasuredTokens, Run
from nmt_cli.dataset.batches import accumulation
from nmt_cli.devices import Precision
from nmt_cli.errors import DeviceError
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import ModelConfig, Recipe, TrainingConfig
from nmt_cli.training.data_order import DataOrder
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.runs import note_measured_tokens

# The part of the free memory that a micro-batch may fill by the estimate, which may be wrong by a factor of two. On a
# GPU the warm-up checks it. On a CPU nothing does, other programs need memory too, and small micro-batches cost little.
_SHARE_OF_GPU, _SHARE_OF_CPU = 0.9, 1 / 3
_MULTIPLE = 128
logger = logging.getLogger(__name__)


class OutOfMemory(DeviceError):
    """The memory of a device does not hold a micro-batch."""


def max_tokens_of(training: TrainingConfig) -> int:
    """The tokens per side that a device may take at once: the recipe's number; for `auto`, a whole update."""
    return training.batch_tokens if training.max_tokens_per_device == "auto" else training.max_tokens_per_device


def settle_max_tokens(run: Run, order: DataOrder, model: Transformer, *, precision: Precision, ranks: Ranks) -> Run:
    """Limit the order to the tokens that a device takes at once; return the run, with a note of a number just found.

    `model` is on its device, with its optimizer beside it. Raises OutOfMemory if a CPU has too little memory.
    """
    if run.recipe.training.max_tokens_per_device != "auto":
        return run
    name = torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else "CPU"
    place = {"devices": ranks.size, "device": name, "precision": precision}
    noted = run.record.max_tokens_per_device
    is_same_place = noted is not None and noted.model_dump(exclude={"tokens"}) == place
    tokens = int(ranks.of_first(noted.tokens if noted is not None and is_same_place else 0))
    if tokens == 0:
        needs = estimate(
            run.recipe,
            source_vocab=model.source_vocab,
            target_vocab=model.target_vocab,
            precision=precision,
            world_size=ranks.size,
        )
        batch_tokens, longest = run.recipe.training.batch_tokens, order.longest_length
        held = ranks.smallest(int(_room(ranks) / needs.bytes_per_token))
        if held < longest and ranks.device.type == "cpu":
            raise _too_little_memory(ranks.device, longest)
        tokens = even_share(held, batch_tokens=batch_tokens, world_size=ranks.size, longest=longest)
        if ranks.is_first:
            if noted is not None:
                logger.info(
                    "max_tokens_per_device: auto is now %s, found for %d x %s, and was %s, for %d x %s",
                    *(f"{tokens:,}", ranks.size, name),
                    *(f"{noted.tokens:,}", noted.devices, noted.device),
                )
            run = note_measured_tokens(run, MeasuredTokens.model_validate({"tokens": tokens, **place}))
    order.limit(tokens)
    return run


def warm_up_in_memory(
    run: Run, order: DataOrder, warm_up: Callable[[], None], *, release: Callable[[], None], ranks: Ranks
) -> Run:
    """Warm up; for `auto`, with half the tokens at once each time that the memory of a rank does not suffice.

    `release` gives back the memory of a failed warm-up. Returns the run, with a note of a smaller number. Raises
    OutOfMemory if the longest sentence, or the recipe's number, does not fit.
    """
    if run.recipe.training.max_tokens_per_device != "auto":
        warm_up()
        return run
    while True:
        problem: OutOfMemory | None = None
        try:
            warm_up()
        except OutOfMemory as error:
            problem = error
        if not ranks.any(problem is not None):
            return run
        release()
        failed, longest = order.max_tokens, order.longest_length
        if failed <= longest:
            raise _too_little_memory(ranks.device, longest)
        batch_tokens = run.recipe.training.batch_tokens
        order.limit(even_share(failed // 2, batch_tokens=batch_tokens, world_size=ranks.size, longest=longest))
        if ranks.is_first:
            logger.info("memory does not hold %s tokens at once: trying %s", f"{failed:,}", f"{order.max_tokens:,}")
            noted = run.record.max_tokens_per_device
            assert noted is not None, "a number was settled before the warm-up"
            run = note_measured_tokens(run, noted.model_copy(update={"tokens": order.max_tokens}))


def even_share(max_tokens: int, *, batch_tokens: int, world_size: int, longest: int) -> int:
    """Tokens that a device needs at once, at most `max_tokens`, to take its share of an update in equal parts.

    At least `longest`, even above `max_tokens`: a device takes the longest sentence whole.
    """
    max_tokens = max(max_tokens, longest)
    steps = accumulation(batch_tokens=batch_tokens, max_tokens=max_tokens, world_size=world_size)
    part = -(-batch_tokens // (steps * world_size))
    return min(max_tokens, max(longest, -(-part // _MULTIPLE) * _MULTIPLE))


@dataclass(frozen=True, slots=True)
class Estimate:
    """Parameters, micro-batches per device and update, tokens per side of a full one, and bytes on each device."""

    num_parameters: int
    accumulation_steps: int
    tokens: int
    weight_bytes: int
    activation_bytes: int

    @property
    def bytes_per_token(self) -> float:
        """Bytes of activations for a source token and a target token."""
        return self.activation_bytes / self.tokens


def estimate(
    recipe: Recipe, *, source_vocab: int, target_vocab: int, precision: Precision, world_size: int
) -> Estimate:
    """The needs of a recipe with vocabularies of these sizes on `world_size` devices.

    The weights' memory includes gradients and moments; with an average of the weights, also the average and a copy of
    the weights. The activations are those that one full micro-batch keeps for its backward pass; for `auto`, a device's
    whole share of an update. Memory of libraries and of the allocator comes on top.
    """
    with torch.device("meta"):
        model = Transformer(recipe.model, source_vocab=source_vocab, target_vocab=target_vocab)
    num_parameters = model.num_parameters()
    training = recipe.training
    has_average = training.ema is not None or training.optimizer.name == "schedule_free"
    bytes_each = 4 + 4 + 8 + (2 + 2 if precision == "bf16" else 0) + (8 if has_average else 0)
    tokens = min(max_tokens_of(training), -(-training.batch_tokens // world_size))
    element = 2 if precision == "bf16" else 4
    per_pair = _kept_per_token(recipe.model) * element + model.output_weight.size(0) * element
    return Estimate(
        num_parameters,
        accumulation(batch_tokens=training.batch_tokens, max_tokens=tokens, world_size=world_size),
        tokens,
        num_parameters * bytes_each,
        tokens * per_pair,
    )


def _kept_per_token(model: ModelConfig) -> int:
    """Elements kept for backward for one source and one target token, without attention weights and logits.

    Attention: projections, mixed values, output; each sub-layer: dropout mask, residual sum, norm; feed-forward: twice
    d_ff, and four times with gates.
    """
    heads_width = model.heads * (2 * model.d_k + 2 * model.d_v)
    around = 4 * model.d_model
    feed_forward = (4 if model.activation == "swiglu" else 2) * model.d_ff
    encoder = heads_width + 2 * around + feed_forward
    decoder = 2 * heads_width + 3 * around + feed_forward
    return model.encoder_layers * encoder + model.decoder_layers * decoder + 2 * around


def _too_little_memory(device: torch.device, longest: int) -> OutOfMemory:
    return OutOfMemory(
        f"the memory of {device} does not hold a micro-batch of one sentence of {longest:,} pieces",
        where="training.max_tokens_per_device",
        hint="end what else takes memory there, prepare with a smaller cleaning.max_words, or train a smaller model",
    )


def _room(ranks: Ranks) -> int:
    """Bytes that a micro-batch of this rank may fill; the ranks of one machine share its memory on a CPU."""
    if ranks.device.type == "cuda":
        return int(_SHARE_OF_GPU * free_on_gpu(ranks.device))
    return int(_SHARE_OF_CPU * free_on_cpu()) // int(os.environ.get("LOCAL_WORLD_SIZE", ranks.size))


def free_on_gpu(device: torch.device) -> int:
    """Bytes that this process can still allocate on a GPU, including memory that torch keeps for reuse."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def free_on_cpu(root: Path = Path("/")) -> int:
    """Bytes that this process can still allocate, within the limits of its container or job.

    `root` is the folder that holds proc and sys.
    """
    return min([_free_of_machine(root), *_free_of_groups(root)])


def _free_of_machine(root: Path) -> int:
    """Memory that Linux reports as available without swapping; elsewhere the whole memory."""
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free_of_groups(root: Path) -> Iterator[int]:
    """The memory that each control group of this process, version 2 or 1, leaves of its limit."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            base = root / "sys/fs/cgroup/memory"
        else:
            continue
        group = base / path.strip("/")
        for folder in (group, *group.parents):
            yield from _free_of_group(folder, *names)
            if folder == base:
                break


def _free_of_group(folder: Path, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    """The memory that a group leaves of its limit, without cached files; nothing if the group has no limit."""
    most, used = ("".join(_lines(folder / name)) for name in (limit, usage))
    if not (most.isdecimal() and used.isdecimal()):
        return
    cached = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat")).get(reclaimable, "0")
    yield max(int(most) - int(used) + int(cached), 0)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
