"""Sums over updates, and the figures that the log and the live view make of them."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

from nmt_cli.training.speed import Speed

Clock = Callable[[], float]
_RECENT_UPDATES = 50
_GB = 1e9


class Stopwatch:
    """Seconds of training alone: it stands still while something else, such as a validation, is done."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._since: float | None = None
        self._seconds = 0.0

    def run(self) -> None:
        """Start, or go on."""
        if self._since is None:
            self._since = self._clock()

    def stop(self) -> None:
        """Stand still."""
        self._seconds = self.seconds
        self._since = None

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._seconds + (0.0 if self._since is None else self._clock() - self._since)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a training stands after an update: its epoch, from 0, what the update had, and the seconds of training."""

    update: int
    epoch: int
    learning_rate: float
    gradient_norm: float
    memory_gb: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over updates: of those applied, the losses in nats, the tokens with EOS, and the slots of both sides.

    `seconds` are those of training, `waited` those among them in which it waited for data.
    """

    smoothed: float = 0.0
    nll: float = 0.0
    source_tokens: int = 0
    target_tokens: int = 0
    slots: int = 0
    seconds: float = 0.0
    waited: float = 0.0

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def __sub__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, field.name) - getattr(other, field.name) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Figures:
    """What some updates amount to; losses in nats per target token, shares from 0 to 1, NaN where there is nothing.

    `padding` is the share of slots that held no token, `waiting` that of the time in which training waited for data,
    `matrix_rate_share` the model's floating-point operations a second over those of a large matrix product.
    """

    loss: float
    nll: float
    target_tokens_per_second: float
    matrix_rate_share: float
    padding: float
    waiting: float

    @classmethod
    def of(cls, sums: Sums, *, speed: Speed) -> Figures:
        """The figures of the updates that were summed, on devices of that speed."""
        flops = speed.flops(source_tokens=sums.source_tokens, target_tokens=sums.target_tokens)
        return cls(
            loss=_ratio(sums.smoothed, sums.target_tokens),
            nll=_ratio(sums.nll, sums.target_tokens),
            target_tokens_per_second=_ratio(sums.target_tokens, sums.seconds),
            matrix_rate_share=_ratio(flops, sums.seconds * speed.matrix_rate),
            padding=1 - _ratio(sums.source_tokens + sums.target_tokens, sums.slots),
            waiting=_ratio(sums.waited, sums.seconds),
        )

    @property
    def perplexity(self) -> float:
        """Per target token, of the negative log-likelihood."""
        return math.exp(min(self.nll, 700.0))


class Meter:
    """Adds up the updates of a training, and tells the figures of those since the last line, and of the last ones."""

    def __init__(self, speed: Speed) -> None:
        self._speed = speed
        self._total = self._at_line = Sums()
        # The first of them only marks when the second began.
        self._recent: deque[Sums] = deque([self._total], maxlen=_RECENT_UPDATES)

    def add(self, update: Sums, *, seconds: float, waited: float) -> None:
        """Take an update into the sums; the seconds are those of the whole training, after it."""
        self._total = replace(self._total + update, seconds=seconds, waited=waited)
        self._recent.append(self._total)

    def recent(self) -> Figures:
        """The figures of the last updates."""
        return Figures.of(self._recent[-1] - self._recent[0], speed=self._speed)

    def line(self) -> tuple[Sums, Figures]:
        """The sums since the last line, or since `forget`, and their figures; the next line begins here."""
        sums, self._at_line = self._total - self._at_line, self._total
        return sums, Figures.of(sums, speed=self._speed)

    def forget(self) -> None:
        """Leave what was added so far out of all that is told."""
        self._at_line = self._total
        self._recent = deque([self._total], maxlen=_RECENT_UPDATES)


def memory_gb(device: torch.device) -> float:
    """Gigabytes that this process has needed at most on a GPU, or holds on a CPU; NaN where the system tells none."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / _GB
    try:
        fields_of_status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(fields_of_status["VmRSS"].split()[0]) * 1024 / _GB
    except (OSError, KeyError):
        return math.nan


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan
