"""Metrics of a training: sums over updates, and the rates and shares computed from them."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
from torch import nn

from nmt_cli.console import duration_text
from nmt_cli.devices import kernel_text
from nmt_cli.model.layers import CrossAttention
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.training import TrainingConfig
from nmt_cli.scoring.forced_decoding import perplexity
from nmt_cli.training.ranks.ranks import Ranks

Clock = Callable[[], float]
_RECENT_UPDATES = 50
_GB = 1e9
# A multiplication and an addition for each weight, in the forward pass and for both gradients of the backward pass.
_FLOPS_PER_WEIGHT = 6
# The least and the greatest share of the rate of plain matrix products that training reaches: on GPUs in published
# systems, and on CPUs roughly.
_GPU_TRAINING_SHARES, _CPU_TRAINING_SHARES = (0.2, 0.5), (0.1, 0.5)
_NUM_PRODUCTS = 6


class Stopwatch:
    """Seconds of training alone: it stops during other work, such as a validation."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._since: float | None = None
        self._seconds = 0.0

    def start(self) -> None:
        """Start or continue."""
        if self._since is None:
            self._since = self._clock()

    def stop(self) -> None:
        """Stop."""
        self._seconds, self._since = self.seconds, None

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._seconds + (0.0 if self._since is None else self._clock() - self._since)


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """The status of a training after an update; the epoch counts from 0."""

    update: int
    epoch: int
    learning_rate: float
    gradient_norm: float
    memory_gb: float
    seconds: float


@dataclass(frozen=True, slots=True)
class UpdateSums:
    """Sums over applied updates: losses in nats, tokens with EOS, slots of both sides of one pass.

    `kl` is the divergence of both passes, 0 if each pair passes once. `seconds` is the time of training, `waited` the
    time spent waiting for data.
    """

    smoothed: float = 0.0
    nll: float = 0.0
    kl: float = 0.0
    source_tokens: int = 0
    target_tokens: int = 0
    slots: int = 0
    seconds: float = 0.0
    waited: float = 0.0

    def __add__(self, other: UpdateSums) -> UpdateSums:
        return UpdateSums(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def __sub__(self, other: UpdateSums) -> UpdateSums:
        return UpdateSums(*(getattr(self, field.name) - getattr(other, field.name) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """Metrics of some updates: losses in nats per target token, shares from 0 to 1, NaN without data.

    `kl` is the divergence of both passes, None if each pair passes once. `padding` is the share of slots without a
    token, and `waiting` the share of time spent waiting for data. `matrix_rate_share` is the model FLOPs utilization
    (MFU), with the measured rate of a large matrix product as the peak.
    """

    loss: float
    nll: float
    kl: float | None
    target_tokens_per_second: float
    matrix_rate_share: float
    padding: float
    waiting: float

    @classmethod
    def of(cls, sums: UpdateSums, *, cost: ComputeCost, num_passes: int) -> UpdateMetrics:
        """The metrics of summed updates in which each pair passed `num_passes` times through the model."""
        flops = num_passes * cost.flops(source_tokens=sums.source_tokens, target_tokens=sums.target_tokens)
        return cls(
            loss=_ratio(sums.smoothed, sums.target_tokens),
            nll=_ratio(sums.nll, sums.target_tokens),
            kl=None if num_passes == 1 else _ratio(sums.kl, sums.target_tokens),
            target_tokens_per_second=_ratio(sums.target_tokens, sums.seconds),
            matrix_rate_share=_ratio(flops, sums.seconds * cost.matrix_rate),
            padding=1 - _ratio(sums.source_tokens + sums.target_tokens, sums.slots),
            waiting=_ratio(sums.waited, sums.seconds),
        )

    @property
    def perplexity(self) -> float:
        """Per target token, of the negative log-likelihood."""
        return perplexity(self.nll)


class Meter:
    """Adds up the updates of a training, for the metrics since the last report and of the last few updates."""

    def __init__(self, cost: ComputeCost, *, num_passes: int) -> None:
        self._metrics_of = partial(UpdateMetrics.of, cost=cost, num_passes=num_passes)
        self._total = self._total_at_report = UpdateSums()
        # Totals after each update: two of them differ by the updates in between.
        self._recent = deque([self._total], maxlen=_RECENT_UPDATES + 1)

    def add(self, update: UpdateSums, *, seconds: float, waited: float) -> None:
        """Add an update; the seconds count from the beginning of the training."""
        self._total = replace(self._total + update, seconds=seconds, waited=waited)
        self._recent.append(self._total)

    def recent(self) -> UpdateMetrics:
        """The metrics of the last updates."""
        return self._metrics_of(self._recent[-1] - self._recent[0])

    def report(self) -> tuple[UpdateSums, UpdateMetrics]:
        """The sums since the last report, and their metrics; the next report begins here."""
        sums, self._total_at_report = self._total - self._total_at_report, self._total
        return sums, self._metrics_of(sums)


def memory_gb(device: torch.device) -> float:
    """Peak gigabytes of this process on a GPU, current gigabytes on a CPU; NaN if the system does not report them."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / _GB
    resident = re.search(r"^VmRSS:\s*(\d+) kB", kernel_text("/proc/self/status"), flags=re.MULTILINE)
    return math.nan if resident is None else int(resident[1]) * 1024 / _GB


@dataclass(frozen=True, slots=True)
class ComputeCost:
    """FLOPs per source and per target token of one pass, and the measured FLOP/s of all devices of a training."""

    flops_per_source_token: int
    flops_per_target_token: int
    matrix_rate: float

    def flops(self, *, source_tokens: int, target_tokens: int) -> int:
        """The model's floating-point operations in the forward and backward passes of these tokens."""
        return self.flops_per_source_token * source_tokens + self.flops_per_target_token * target_tokens


def measure_compute(model: Transformer, ranks: Ranks) -> ComputeCost:
    """The cost of a training of `model`: all ranks measure at once, in the model's precision, and add up their rates.

    Each weight of a matrix counts 6 operations for each token that it multiplies: in projections, in feed-forward
    layers, and in the output's rows of pieces. Attention scores, about 1 %, and everything else are left out.
    """
    ranks.barrier()
    rate = torch.tensor(matrix_rate(ranks.device, model.output_weight.dtype), device=ranks.device)
    ranks.sum(rate)
    cross_attentions = [module for module in model.decoder.modules() if isinstance(module, CrossAttention)]
    source_keys_values = sum(_num_matrix_weights(module.kv) for module in cross_attentions)
    output = model.target_vocab * model.config.d_model
    return ComputeCost(
        flops_per_source_token=_FLOPS_PER_WEIGHT * (_num_matrix_weights(model.encoder) + source_keys_values),
        flops_per_target_token=_FLOPS_PER_WEIGHT * (_num_matrix_weights(model.decoder) - source_keys_values + output),
        matrix_rate=rate.item(),
    )


@torch.no_grad()
def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a large matrix product on `device`: the best of a few.

    Other work on the machine can only slow a product down. On a GPU, the memory of the matrices is given back and does
    not count in `memory_gb`.
    """
    size = 8192 if device.type == "cuda" else 1024
    # Random numbers, as in training: a GPU multiplies constants faster, because they take less power.
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.empty(size, size, device=device).normal_(generator=generator).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else torch.cpu.synchronize
    seconds = []
    for _ in range(_NUM_PRODUCTS):  # the first also sets up the library
        synchronize(device)
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    if device.type == "cuda":
        del left, right, out
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return 2 * size**3 / min(seconds)


def estimate_time(training: TrainingConfig, *, num_parameters: int, flops_per_second: float, is_gpu: bool) -> str:
    """The time of all updates, without validations, as a range, and what it is based on."""
    flops = _FLOPS_PER_WEIGHT * training.num_passes * num_parameters * training.batch_tokens * training.updates
    seconds = flops / flops_per_second
    min_share, max_share = _GPU_TRAINING_SHARES if is_gpu else _CPU_TRAINING_SHARES
    shortest, longest = duration_text(seconds / max_share), duration_text(seconds / min_share)
    teraflops = f"{flops_per_second / 1e12:,.{0 if flops_per_second >= 1e13 else 2}f}"
    return (
        f"{shortest} to {longest} ({100 * min_share:.0f} to {100 * max_share:.0f} %"
        f" of the {teraflops} TFLOP/s of matrix products measured here)"
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan


def _num_matrix_weights(module: nn.Module) -> int:
    """Weights of the matrices in a module."""
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))
