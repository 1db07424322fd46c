"""One optimizer update: forward and backward over its micro-batches, the sum over ranks, clipping, and the step."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from nmt_cli.dataset.batches import Batch
from nmt_cli.devices import Precision
from nmt_cli.errors import OutOfMemory
from nmt_cli.memory import is_out_of_memory
from nmt_cli.model.cuda_graphs import CudaGraphs
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training.consistency import Consistency
from nmt_cli.training.master_weights import MasterWeights
from nmt_cli.training.objective import CompiledObjective, Objective, compiling, plain_loss, reason_not_to_compile
from nmt_cli.training.optimizers_and_schedules import Optimizer, scheduled_rate
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.recorded_steps import RecordedSteps

# Sums over the ranks: the norm, which only the first rank adds; the ranks that received each signal; then the losses.
_NORM, _INTERRUPTED, _TERMINATED, _FIRST_LOSS = range(4)


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Losses summed over the update's target tokens on all ranks, in nats.

    If a gradient is not finite, the update is not applied, and `suspects` are the micro-batches with losses that are
    not finite, or all micro-batches if all losses are finite. `signal` is a signal that a rank had received when the
    update was summed: SIGTERM, else SIGINT. `kl` is the divergence of both passes, 0 if each pair passes once.
    """

    smoothed: float
    nll: float
    kl: float
    gradient_norm: float
    learning_rate: float
    is_applied: bool
    suspects: list[int]
    signal: int | None


class LaunchedUpdate:
    """An update given to the device. `result` waits for its values."""

    def __init__(self, sums: Tensor, *, num_micro_batches: int, learning_rate: float, ranks: Ranks) -> None:
        """`sums` are the sums of `launch`, on the device."""
        self._num_micro_batches, self._learning_rate, self._ranks = num_micro_batches, learning_rate, ranks
        self._event: torch.cuda.Event | None = None
        if sums.device.type == "cpu":
            self._sums = sums
        else:
            self._sums = torch.empty(sums.shape, pin_memory=True)
            self._sums.copy_(sums, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(sums.device))

    def result(self) -> UpdateResult:
        """The result of the update. Raises ConnectionLost."""
        if self._event is not None:
            with self._ranks.collective():
                self._event.synchronize()
        norm, interrupted, terminated = self._sums[:_FIRST_LOSS].tolist()
        smoothed, nll, *kl = self._sums[_FIRST_LOSS:].view(-1, self._num_micro_batches).tolist()
        is_applied, suspects = math.isfinite(norm), list[int]()
        if not is_applied:
            not_finite = [index for index, loss in enumerate(smoothed) if not math.isfinite(loss)]
            suspects = not_finite or list(range(len(smoothed)))
        received = signal.SIGTERM if terminated else signal.SIGINT if interrupted else None
        return UpdateResult(
            smoothed=sum(smoothed),
            nll=sum(nll),
            kl=sum(kl[0]) if kl else 0.0,
            gradient_norm=norm,
            learning_rate=self._learning_rate,
            is_applied=is_applied,
            suspects=suspects,
            signal=received,
        )


class Updater:
    """Takes one update at a time, with the model, its master weights and its optimizer.

    On a GPU, if all batches have one shape, micro-batches are recorded and replayed.

    The device clips, and skips the step if the norm is not finite. So if the updater `reads_late`, the host does not
    wait: it reads the result of an update after it has launched the next. All ranks use the norm of the first rank, so
    they decide alike.
    """

    def __init__(self, recipe: Recipe, model: Transformer, *, precision: Precision, ranks: Ranks) -> None:
        self.model, self.precision = model, precision
        self._recipe, self._ranks = recipe, ranks
        self.weights = MasterWeights(model, precision=precision)
        self.optimizer = self._new_optimizer()
        smoothing, dtype = recipe.training.label_smoothing, model.output_weight.dtype
        self.reason_not_to_compile = reason_not_to_compile(recipe, device=ranks.device, dtype=dtype)
        consistency = Consistency.of(recipe.training)
        self._num_sums = 2 if consistency is None else 3
        self._objective: Objective = partial(
            plain_loss,
            model,
            smoothing,
            consistency=consistency,
            guided_alignment=recipe.training.guided_alignment or 0.0,
        )
        self._recorded: RecordedSteps | None = None
        if self.reason_not_to_compile is None:
            self._objective = CompiledObjective(model, smoothing=smoothing, consistency=consistency)
            self._recorded = self._new_recorded_steps()

    @property
    def reads_late(self) -> bool:
        """Whether to read the result of an update after the next update was launched."""
        return self._ranks.device.type == "cuda"

    def evaluated(self) -> AbstractContextManager[None]:
        """A context in which the model has the weights that are validated, saved and averaged."""
        return self.weights.replaced_by(self.optimizer.average)

    def warm_up(self, batches: Sequence[Batch]) -> None:
        """Run batches forward and backward, and drop their gradients: failures come early, and later batches are fast.

        Compiles and records, if the model is compiled, for all batches of their shape and `length_bound`. Recording
        comes last, because a recorded graph keeps its memory. Raises OutOfMemory, or DeviceError if compiling fails.
        """
        self.model.train()
        for batch in batches:
            with compiling(self._ranks.device):
                self._run_and_drop(batch)
        if self._recorded is not None:
            for batch in batches:
                with self._explaining_out_of_memory(batch):
                    self._recorded.record(batch)
                self._run_and_drop(batch)

    def release(self) -> None:
        """Give back the memory of a warm-up that did not fit, and forget what was compiled and recorded for it."""
        self.weights.drop_gradients()
        if self._recorded is not None:
            self._recorded = self._new_recorded_steps()
            torch.compiler.reset()
        if self._ranks.device.type == "cuda":
            torch.cuda.empty_cache()

    def launch(
        self,
        batches: Sequence[tuple[int, Batch]],
        *,
        number: int,
        num_micro_batches: int,
        target_tokens: int,
        received_signal: Callable[[], int | None],
    ) -> LaunchedUpdate:
        """Begin update `number`, from 1, with this rank's batches and their indices among all `num_micro_batches`.

        The targets have `target_tokens` on all ranks together. `received_signal` returns the signal that this rank has
        received. It is called after the backward passes, so a late signal still counts. The sums of the update tell all
        ranks of the signal.

        If a gradient is not finite, every rank skips the update and drops the gradients.
        """
        if not self.model.training:
            self.model.train()
        sums = torch.zeros(_FIRST_LOSS + self._num_sums * num_micro_batches, device=self._ranks.device)
        losses = sums[_FIRST_LOSS:].view(self._num_sums, num_micro_batches)
        for position, (index, batch) in enumerate(batches):
            losses[:, index] = self.accumulate(
                batch, key=(number, index), target_tokens=target_tokens, begins_sum=position == 0
            )
        if not batches:
            self.weights.gradients.zero_()
        self._ranks.sum(self.weights.gradients)
        if self._ranks.is_first:
            sums[_NORM] = self.weights.gradients.norm()
        if (signal_number := received_signal()) is not None:
            sums[_TERMINATED if signal_number == signal.SIGTERM else _INTERRUPTED] = 1
        self._ranks.sum(sums)
        rate = scheduled_rate(
            self._recipe.training.schedule,
            update=number,
            num_updates=self._recipe.training.updates,
            d_model=self._recipe.model.d_model,
        )
        self._apply(sums[_NORM], learning_rate=rate)
        return LaunchedUpdate(sums, num_micro_batches=num_micro_batches, learning_rate=rate, ranks=self._ranks)

    def accumulate(self, batch: Batch, *, key: tuple[int, int], target_tokens: int, begins_sum: bool) -> Tensor:
        """Add the gradients of one micro-batch, and return the sums of its `Loss`.

        `key`, its update and its index in the update, sets the dropout masks. The first micro-batch of this rank begins
        a new sum.
        """
        seed_dropout(self._recipe.training.seed, *key)
        with self._explaining_out_of_memory(batch):
            if self._recorded is not None and self._recorded.can_replay(batch):
                sums = self._recorded.replay(batch, divisor=target_tokens, begins_sum=begins_sum)
            else:
                divisor = torch.full((), target_tokens, dtype=torch.float32, device=self._ranks.device)
                sums = self._step(batch, divisor, begins_sum=begins_sum)
        self._ranks.beat()
        return sums

    def begin_from(self, weights: dict[str, Tensor]) -> None:
        """Begin from weights by parameter name, with a new optimizer."""
        self.weights.load(self.weights.values, weights)
        self.weights.copy_to_model()
        del self.optimizer  # a GPU may have no memory for the moments of two
        self.optimizer = self._new_optimizer()

    def _run_and_drop(self, batch: Batch) -> None:
        """Run the forward and the backward pass of a batch, and drop its gradients."""
        self.accumulate(batch, key=(0, 0), target_tokens=1, begins_sum=True)
        self.weights.drop_gradients()

    def _step(self, batch: Batch, divisor: Tensor, *, begins_sum: bool) -> Tensor:
        """Add the gradients of a batch's loss, divided by a scalar; return the sums of the loss."""
        loss = self._objective(batch)
        with self.weights.collecting(begins_sum=begins_sum):
            (loss.smoothed / divisor).backward()
        return loss.stacked()

    def _new_optimizer(self) -> Optimizer:
        return Optimizer(self.weights, self._recipe.training.optimizer, ema=self._recipe.training.ema)

    def _new_recorded_steps(self) -> RecordedSteps:
        graphs = CudaGraphs(self._ranks.device)
        return RecordedSteps(self._step, graphs.warm_up_and_record, num_sums=self._num_sums)

    def _apply(self, norm: Tensor, *, learning_rate: float) -> None:
        """If the norm, a float32 scalar, is finite, clip the gradients and take the optimizer's step."""
        if (clip_norm := self._recipe.training.clip_norm) is not None:
            self.weights.gradients.mul_((clip_norm / norm.double()).clamp(max=1).float())
        self.optimizer.step(learning_rate=learning_rate, skip=norm.isfinite().logical_not().float())
        self.weights.copy_to_model()

    @contextmanager
    def _explaining_out_of_memory(self, batch: Batch) -> Iterator[None]:
        """Raise OutOfMemory if the device's memory does not hold what a batch needs."""
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error, counts_vague_errors=False):
                raise
            num_passes = self._recipe.training.num_passes
            num_tokens = max(batch.source.ids.numel(), batch.target.ids.numel()) // num_passes
            fix = "--set training.max_tokens_per_device=auto"  # half might not hold the longest sentence
            if self._recipe.training.max_tokens_per_device == "auto":  # it fitted at the start
                fix = f"end what else takes memory there, or --set training.max_tokens_per_device={num_tokens // 2}"
            raise OutOfMemory(
                f"the memory of {self._ranks.device} does not hold a micro-batch of {num_tokens:,} tokens",
                where="training.max_tokens_per_device",
                hint=f"{fix}: the updates stay the same",
            ) from None


def seed_dropout(seed: int, update: int, index: int) -> None:
    """Key torch's generators by (seed, update, micro-batch): the same masks on any rank and after any resume.

    `torch.manual_seed` gives the same streams, but takes 0.1 ms: it formats a stack trace if CUDA is there.
    """
    # The generator of a CPU takes the lowest 32 bits. They are distinct for all updates under 16 * 65,535, a million,
    # and all micro-batches under 4,096: 65,535 * 65,537 is 2^32 - 1.
    cycle, place = divmod(update, 65_535)
    key = ((seed * 1_000_003 + place) * 65_537 + cycle * 4_096 + index) % 2**63
    for generator in (torch.default_generator, *torch.cuda.default_generators):  # none of CUDA before its first use
        generator.manual_seed(key)
