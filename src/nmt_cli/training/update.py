"""One optimizer update: forward and backward over its micro-batches, the sum over ranks, clipping, and the step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from nmt_cli.dataset.batch import Batch
from nmt_cli.devices import Precision
from nmt_cli.errors import DeviceError
from nmt_cli.model.recording import CudaGraphs
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training.compiling import compiling, is_out_of_memory, reason_not_to_compile
from nmt_cli.training.distributed import Ranks
from nmt_cli.training.graphs import RecordedSteps
from nmt_cli.training.loss import Loss
from nmt_cli.training.objective import CompiledObjective, Objective, PlainObjective
from nmt_cli.training.optimizers import build_optimizer
from nmt_cli.training.schedules import learning_rate
from nmt_cli.training.weights import MasterWeights


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Losses summed over the update's target tokens on all ranks, in nats; not applied if gradients are not finite.

    `suspects` then are the micro-batches whose losses were not finite, or all, where none was.
    """

    smoothed: float
    nll: float
    gradient_norm: float
    learning_rate: float
    is_applied: bool
    suspects: list[int]


class Updater:
    """The model, its master weights and its optimizer, moved on by one update at a time.

    On a GPU, where all batches have one shape, micro-batches are recorded and replayed; but for the last of an update
    on several ranks, whose sums are to overlap with its backward pass.
    """

    def __init__(self, recipe: Recipe, model: Transformer, *, precision: Precision, ranks: Ranks) -> None:
        self.model = model
        self._recipe, self._ranks = recipe, ranks
        self.weights = MasterWeights(model, precision=precision)
        self.optimizer = build_optimizer(self.weights, recipe)
        smoothing, dtype = recipe.training.label_smoothing, model.output_weight.dtype
        self.reason_not_to_compile = reason_not_to_compile(recipe, device=ranks.device, dtype=dtype)
        self._objective: Objective = PlainObjective(model, smoothing=smoothing)
        self._recorded: RecordedSteps | None = None
        if self.reason_not_to_compile is None:
            self._objective = CompiledObjective(model, smoothing=smoothing)
            self._recorded = RecordedSteps(partial(self._step, is_last=False), CudaGraphs(ranks.device))

    def evaluated(self) -> AbstractContextManager[None]:
        """A context in which the weights are those that are validated, saved and averaged."""
        return self.weights.replaced_by(self.optimizer.evaluation_values())

    def warm_up(self, batches: Sequence[Batch]) -> None:
        """Take batches, and drop their gradients, so that what would fail fails now, and what comes is quick.

        Compiles and records, where that is done, for all batches of their shape and `bound`; records last, as what is
        recorded keeps the memory that it needs. Raises DeviceError where the memory does not suffice, or compiling
        fails.
        """
        self.model.train()
        for batch in batches:
            with compiling(self._ranks.device):
                self.accumulate(batch, key=(0, 0), target_tokens=1, is_last=False)
            self.weights.drop_gradients()
        for batch in batches:
            if self._recorded is not None and self._replays(batch):
                with self._told_of_memory(batch):
                    self._recorded.record(batch)
                self.accumulate(batch, key=(0, 0), target_tokens=1, is_last=False)
                self.weights.drop_gradients()

    def update(
        self, batches: Sequence[tuple[int, Batch]], *, number: int, num_micro: int, target_tokens: int
    ) -> UpdateResult:
        """Take update `number`, from 1, given this rank's batches, each with its place among the `num_micro` of all.

        The targets hold `target_tokens` on all ranks together.

        Skipped, with the gradients dropped, where one of them is not finite; every rank decides alike.
        """
        training = self._recipe.training
        self.model.train()
        losses = torch.zeros(2, num_micro, device=self._ranks.device)
        for place, (index, batch) in enumerate(batches, start=1):
            is_last = place == len(batches)
            loss = self.accumulate(batch, key=(number, index), target_tokens=target_tokens, is_last=is_last)
            losses[:, index] = torch.stack([loss.smoothed, loss.nll])
        if not batches:
            with self._summing():
                pass
        rate = learning_rate(
            training.schedule, update=number, updates=training.updates, d_model=self._recipe.model.d_model
        )
        norm, (smoothed, nll) = self._read(losses)
        is_finite = math.isfinite(norm)
        if is_finite:
            if training.clip_norm is not None and norm > training.clip_norm:
                self.weights.gradients.mul_(training.clip_norm / norm)
            self.optimizer.step(learning_rate=rate)
            self.weights.publish()
        self.weights.gradients.zero_()
        suspects = [] if is_finite else _not_finite(smoothed) or list(range(num_micro))
        return UpdateResult(sum(smoothed), sum(nll), norm, rate, is_finite, suspects)

    def accumulate(self, batch: Batch, *, key: tuple[int, int], target_tokens: int, is_last: bool) -> Loss:
        """Add the gradients of one micro-batch; `key`, its update and its index in it, sets the dropout masks.

        With the last one of this rank come those of the other ranks.
        """
        seed_dropout(self._recipe.training.seed, *key)
        with self._told_of_memory(batch):
            sums_up = is_last and self._ranks.size > 1
            if self._recorded is not None and batch in self._recorded and not sums_up:
                losses = self._recorded.replay(batch, divisor=target_tokens)
            else:
                divisor = torch.full((), target_tokens, dtype=torch.float32, device=self._ranks.device)
                losses = self._step(batch, divisor, is_last=is_last)
        self._ranks.pulse.beat()
        return Loss(losses[0], losses[1])

    def begin_with(self, values: dict[str, Tensor]) -> None:
        """Start anew from weights by parameter name, with an optimizer that knows of no update."""
        self.weights.load(self.weights.values, values)
        self.weights.publish()
        self.optimizer = build_optimizer(self.weights, self._recipe)

    def _step(self, batch: Batch, divisor: Tensor, *, is_last: bool) -> Tensor:
        """Add the gradients of a batch's loss, divided by a scalar; its smoothed loss and its NLL, [2]."""
        loss = self._objective(batch)
        with self._summing() if is_last else nullcontext():
            (loss.smoothed / divisor).backward()
        if not is_last:
            self.weights.collect()
        return torch.stack([loss.smoothed.detach(), loss.nll])

    def _replays(self, batch: Batch) -> bool:
        """Whether a rank takes batches of such a size that are not the last of an update on several."""
        slots = max(batch.source.ids.numel(), batch.target.ids.numel())
        return self._ranks.size == 1 or self._recipe.training.batch_tokens > slots * self._ranks.size

    def _summing(self) -> AbstractContextManager[None]:
        return self.weights.summing(self._ranks, precision=self._recipe.training.sum_gradients_in)

    def _read(self, losses: Tensor) -> tuple[float, list[list[float]]]:
        """The norm of the gradients, which all ranks take from the first, and the losses summed over them.

        Waits for the device, the only time in an update.
        """
        norm = self.weights.gradients.norm().view(1)
        read = torch.cat([norm if self._ranks.is_first else torch.zeros_like(norm), losses.flatten()])
        self._ranks.sum(read)
        first, *rest = read.tolist()
        return first, [rest[: len(rest) // 2], rest[len(rest) // 2 :]]

    @contextmanager
    def _told_of_memory(self, batch: Batch) -> Iterator[None]:
        """DeviceError where the device's memory does not hold what a batch needs."""
        try:
            yield
        except RuntimeError as problem:
            if not is_out_of_memory(problem):
                raise
            limit = max(batch.source.ids.numel(), batch.target.ids.numel())
            raise DeviceError(
                f"the memory of {self._ranks.device} does not hold a micro-batch of {limit:,} tokens",
                where="training.max_tokens_per_device",
                hint=f"--set training.max_tokens_per_device={limit // 2}: the updates stay the same",
            ) from None


def _not_finite(losses: list[float]) -> list[int]:
    """The places of the losses that are not finite."""
    return [index for index, loss in enumerate(losses) if not math.isfinite(loss)]


def seed_dropout(seed: int, update: int, index: int) -> None:
    """Key torch's generators by (seed, update, micro-batch): the same masks on any rank and after any resume."""
    torch.manual_seed(((seed * 1_000_003 + update) * 65_537 + index) % 2**63)
