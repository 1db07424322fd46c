"""Steps of a training, recorded as CUDA graphs and replayed: the forward and backward pass of a micro-batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from nmt_cli.dataset.batches import Batch
from nmt_cli.errors import first_line
from nmt_cli.memory import is_out_of_memory

logger = logging.getLogger(__name__)

Recorder = Callable[[Callable[[], None]], Callable[[], None]]
"""Records a function: returns one that repeats its work on the same memory. RuntimeError if that is impossible."""


class Step(Protocol):
    """Adds the gradients of a batch's loss, divided by a float32 scalar, to their sum."""

    def __call__(self, batch: Batch, divisor: Tensor, *, begins_sum: bool) -> Tensor:
        """The sums of the batch's `Loss`; the first step of an update begins the sum anew."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """Replays of the first step of an update and of later steps, and the memory that they share.

    A replay reads the batch and its divisor from this memory, and writes the sums of its loss into it.
    """

    batch: Batch
    divisor: Tensor
    sums: Tensor
    replay_first: Callable[[], None]
    replay_later: Callable[[], None]


class RecordedSteps:
    """Two recorded steps for each `length_bound`: for the first micro-batch of an update, and for later micro-batches.

    All batches have tensors of the same shapes; only `length_bound` differs.
    """

    def __init__(self, step: Step, recorder: Recorder, *, num_sums: int) -> None:
        self._step, self._recorder, self._num_sums = step, recorder, num_sums
        self._recorded: dict[int, _Recorded] = {}
        self._cannot_record = False

    def can_replay(self, batch: Batch) -> bool:
        """Whether the step was recorded with a batch of this `length_bound`."""
        return batch.source.length_bound in self._recorded

    def record(self, batch: Batch) -> None:
        """Run the step with a batch, and record it, unless a batch with its `length_bound` was recorded before.

        If the device cannot record, a warning says so; from then on, no step is recorded or replayed.
        """
        if self._cannot_record or self.can_replay(batch):
            return
        inputs, device = batch.map_tensors(Tensor.clone), batch.gold.device
        divisor, sums = torch.ones((), device=device), torch.zeros(self._num_sums, device=device)

        def step(*, begins_sum: bool) -> None:
            sums.copy_(self._step(inputs, divisor, begins_sum=begins_sum))

        try:
            first, later = (self._recorder(partial(step, begins_sum=begins_sum)) for begins_sum in (True, False))
        except RuntimeError as error:
            if is_out_of_memory(error, counts_vague_errors=False):
                raise
            logger.warning("no CUDA graph can be made (%s): updates take longer to launch", first_line(error))
            self._cannot_record = True
            self._recorded.clear()  # replays use a generator that may be gone
            return
        self._recorded[batch.source.length_bound] = _Recorded(inputs, divisor, sums, first, later)

    def replay(self, batch: Batch, *, divisor: int, begins_sum: bool) -> Tensor:
        """Replay the step with another batch; return the sums of its `Loss`.

        A replay takes the same random numbers from torch's generators, seeded before, as the step itself.
        """
        recorded = self._recorded[batch.source.length_bound]
        for kept, new in zip(recorded.batch.tensors(), batch.tensors(), strict=True):
            if kept.shape != new.shape:
                raise ValueError(f"a batch has {list(new.shape)} where the recorded one had {list(kept.shape)}")
            kept.copy_(new, non_blocking=True)
        recorded.divisor.fill_(divisor)
        (recorded.replay_first if begins_sum else recorded.replay_later)()
        return recorded.sums.clone()
