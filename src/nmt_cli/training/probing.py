"""How many tokens a device takes at once: what the recipe says or, where it leaves that open, what memory holds.

That is found before the first update, by trials on GPUs and by arithmetic on CPUs, the same for all ranks, and noted in
the run: a training that goes on there deals its updates out as before.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from nmt_cli.bundle.run import FoundTokens, Run
from nmt_cli.dataset.batch import make_batch
from nmt_cli.dataset.shape import Shape, accumulation
from nmt_cli.dataset.store import TokenPairs
from nmt_cli.devices import Precision, is_out_of_memory
from nmt_cli.errors import DeviceError
from nmt_cli.training.distributed import Ranks
from nmt_cli.training.estimate import estimate
from nmt_cli.training.memory import free_on_cpu, free_on_gpu
from nmt_cli.training.objective import PlainObjective
from nmt_cli.training.order import DataOrder
from nmt_cli.training.runs import note_found
from nmt_cli.training.update import Updater

# Of what is free. The rest is for what no trial sees: the library's own memory, other kernels for other sentences. On a
# CPU the estimate may be off by a factor of two, other programs need memory too, and small micro-batches cost little.
_SHARE_OF_GPU, _SHARE_OF_CPU = 0.9, 1 / 3
_FEW_SLOTS, _TIMES_MORE = 2048, 4  # of the first two trials
_LESS = 0.8
_MULTIPLE = 128
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes that a micro-batch takes beside weights and optimizer, and its slots on the side that has more."""

    slots: int
    num_bytes: int


class Memory(Protocol):
    """The memory of this rank's device, with the weights and the optimizer in it."""

    def room(self) -> int:
        """Bytes for a micro-batch."""

    def measure(self, max_tokens: int) -> Measured | None:
        """What a micro-batch of the longest sentences takes, dealt out by so many tokens; None: more than there is."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens of the longest sentence, and of a device's whole share of an update: no more is of use."""

    smallest: int
    largest: int


def settle_max_tokens(
    run: Run, order: DataOrder, pairs: TokenPairs, updater: Updater, *, precision: Precision, ranks: Ranks
) -> Run:
    """Limit the order to the tokens that a device takes at once; the run, with a note of them where they were found.

    Found anew where the run was last trained on another number of devices, or on other ones. Raises DeviceError where
    the memory does not hold a micro-batch of the longest sentence.
    """
    if run.recipe.training.max_tokens_per_device != "auto":
        return run
    place = {"devices": ranks.size, "device": _name(ranks.device), "precision": precision}
    noted = run.record.max_tokens_per_device
    is_of_here = noted is not None and noted.model_dump(exclude={"tokens"}) == place
    tokens = int(ranks.of_first(noted.tokens if noted is not None and is_of_here else 0))
    if tokens == 0:
        tokens = _find(run, order, pairs, updater, precision=precision, ranks=ranks)
        if ranks.is_first:
            if noted is not None:
                _log.info(
                    "max_tokens_per_device: auto is now %s, found for %d x %s, and was %s, for %d x %s",
                    *(f"{tokens:,}", ranks.size, place["device"]),
                    *(f"{noted.tokens:,}", noted.devices, noted.device),
                )
            run = note_found(run, FoundTokens.model_validate({"tokens": tokens, **place}))
    order.limit(tokens)
    return run


def find_max_tokens(memory: Memory, limits: Limits, *, ranks: Ranks) -> int:
    """The most tokens, within the limits, that the memory of each rank's device holds at once.

    From a line through two trials, and tried. Raises DeviceError.
    """
    few = memory.measure(max(limits.smallest, min(limits.largest, _FEW_SLOTS)))
    tokens = 0 if few is None else _by_line(memory, few, limits)
    tokens = ranks.smallest(min(tokens, limits.largest))
    while tokens >= limits.smallest:
        if not ranks.any(memory.measure(tokens) is None):
            return tokens
        tokens = int(_LESS * tokens)
    raise DeviceError(
        f"the memory of {ranks.device} does not hold a micro-batch of one sentence of {limits.smallest:,} pieces",
        where="training.max_tokens_per_device",
        hint="end what else takes memory there, prepare with a smaller cleaning.max_words, or train a smaller model",
    )


def _by_line(memory: Memory, few: Measured, limits: Limits) -> int:
    """The tokens that fit by a line through what few and more slots take, or, where more do not fit, through zero."""
    more = memory.measure(min(limits.largest, _TIMES_MORE * few.slots))
    if more is None or more.slots <= few.slots:
        few, more = Measured(0, 0), few
    return slots_within(memory.room(), few, more)


def slots_within(num_bytes: int, few: Measured, more: Measured) -> int:
    """The slots that take so many bytes, by the line through two measurements."""
    of_one = max((more.num_bytes - few.num_bytes) / (more.slots - few.slots), 1.0)
    return max(int(few.slots + (num_bytes - few.num_bytes) / of_one), 0)


def evenly(max_tokens: int, *, batch_tokens: int, world_size: int, longest: int) -> int:
    """What a device needs of so many tokens to take its share of an update in equal parts, rounded up a little.

    At least a sentence of `longest` tokens, which a device takes whole.
    """
    rounds = accumulation(batch_tokens=batch_tokens, max_tokens=max_tokens, world_size=world_size)
    part = -(-batch_tokens // (rounds * world_size))
    return min(max_tokens, max(longest, -(-part // _MULTIPLE) * _MULTIPLE))


class MemoryOfGpu:
    """Measured with the model itself, its layers as they are: compiled ones need less."""

    def __init__(self, order: DataOrder, pairs: TokenPairs, updater: Updater, *, smoothing: float, ranks: Ranks):
        self._order, self._pairs, self._updater, self._ranks = order, pairs, updater, ranks
        self._objective = PlainObjective(updater.model, smoothing=smoothing)
        self._is_warm = False

    def room(self) -> int:
        """Most of what is free."""
        return int(_SHARE_OF_GPU * free_on_gpu(self._ranks.device))

    def measure(self, max_tokens: int) -> Measured | None:
        """What a micro-batch of the longest sentences takes; None: more than there is."""
        device = self._ranks.device
        try:
            if not self._is_warm:  # libraries take memory of their own with their first work
                self._step(max_tokens)
                self._is_warm = True
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            slots = self._step(max_tokens)
            return Measured(slots, torch.cuda.max_memory_allocated(device) - before)
        except RuntimeError as problem:
            if not is_out_of_memory(problem, is_told=True):
                raise
            return None
        finally:
            self._clean_up()

    def _step(self, max_tokens: int) -> int:
        """Forward and backward for a micro-batch; its slots."""
        self._order.limit(max_tokens)
        shape = self._order.shape
        batch = make_batch(self._order.longest, self._pairs, device=self._ranks.device, shape=shape, pinned=False)
        self._objective(batch).smoothed.backward()
        self._updater.weights.collect()
        self._ranks.pulse.beat()
        return _slots(shape)

    def _clean_up(self) -> None:
        """Leave the gradients zero, and to others the memory that the trial took."""
        self._updater.weights.drop_gradients()
        torch.cuda.empty_cache()


class MemoryOfCpu:
    """Estimated: a machine that runs out of memory ends the process, or another one."""

    def __init__(self, order: DataOrder, *, bytes_a_slot: float, num_local_ranks: int) -> None:
        self._order, self._bytes_a_slot, self._num_local_ranks = order, bytes_a_slot, num_local_ranks

    def room(self) -> int:
        """A share of what is free now, in equal parts for the ranks of the machine."""
        return int(_SHARE_OF_CPU * free_on_cpu()) // self._num_local_ranks

    def measure(self, max_tokens: int) -> Measured:
        """What a micro-batch is estimated to take."""
        self._order.limit(max_tokens)
        slots = _slots(self._order.shape)
        return Measured(slots, int(self._bytes_a_slot * slots))


def _find(
    run: Run, order: DataOrder, pairs: TokenPairs, updater: Updater, *, precision: Precision, ranks: Ranks
) -> int:
    """What the devices hold, as far as their share of an update needs it."""
    training, model = run.recipe.training, updater.model
    order.open()
    memory: Memory
    if ranks.device.type == "cuda":
        model.train()
        memory = MemoryOfGpu(order, pairs, updater, smoothing=training.label_smoothing, ranks=ranks)
    else:
        needs = estimate(
            run.recipe,
            source_vocab=model.source_vocab,
            target_vocab=model.target_vocab,
            precision=precision,
            world_size=ranks.size,
        )
        num_local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.size))
        memory = MemoryOfCpu(order, bytes_a_slot=needs.bytes_a_token, num_local_ranks=num_local_ranks)
    order.limit(1)
    share = partial(evenly, batch_tokens=training.batch_tokens, world_size=ranks.size, longest=_slots(order.shape))
    limits = Limits(_slots(order.shape), share(sys.maxsize))
    return share(find_max_tokens(memory, limits, ranks=ranks))


def _slots(shape: Shape) -> int:
    return max(shape.src_slots, shape.tgt_slots)


def _name(device: torch.device) -> str:
    """What kind of device it is."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
