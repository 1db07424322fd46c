"""Steps of micro-batches, recorded once as CUDA graphs and replayed with new batches in the same memory.

A graph launches thousands of kernels at once. Without one, the host takes longer to launch them than they run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from nmt_cli.dataset.batches import Batch
from nmt_cli.devices import is_out_of_memory

_log = logging.getLogger(__name__)


class Step(Protocol):
    """Adds the gradients of a batch's loss, divided by a float32 scalar, to their sum."""

    def __call__(self, batch: Batch, divisor: Tensor, *, is_first: bool) -> Tensor:
        """The batch's smoothed loss and its NLL [2]; the first step of an update begins the sum anew."""


Recorder = Callable[[Callable[[], None]], Callable[[], None]]
"""Records a function: returns one that repeats its work on the same memory. RuntimeError if that is impossible."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """Replays of the first step of an update and of later steps, and the memory that they share.

    A replay reads the batch and its divisor from this memory, and writes the losses into it.
    """

    batch: Batch
    divisor: Tensor
    losses: Tensor
    first: Callable[[], None]
    later: Callable[[], None]


class RecordedSteps:
    """Two recorded steps for each `bound` of batches, which are otherwise of one shape.

    One is for the first micro-batch of an update, the other for later micro-batches.
    """

    def __init__(self, step: Step, recorder: Recorder) -> None:
        self._step, self._recorder = step, recorder
        self._recorded: dict[int, _Recorded] = {}
        self._has_failed = False

    def __contains__(self, batch: Batch) -> bool:
        return batch.source.bound in self._recorded

    def record(self, batch: Batch) -> None:
        """Run the step with a batch, and record it, unless one with that bound was recorded before.

        If the device cannot record, a warning says so; from then on, no step is recorded or replayed.
        """
        if self._has_failed or batch in self:
            return
        inputs, device = batch.each(Tensor.clone), batch.gold.device
        divisor, losses = torch.ones((), device=device), torch.zeros(2, device=device)

        def step(*, is_first: bool) -> None:
            losses.copy_(self._step(inputs, divisor, is_first=is_first))

        try:
            first, later = (self._recorder(partial(step, is_first=is_first)) for is_first in (True, False))
        except RuntimeError as problem:
            if is_out_of_memory(problem, is_told=True):
                raise
            reason = str(problem).strip().partition("\n")[0]
            _log.warning("no CUDA graph can be made (%s): updates take longer to launch", reason)
            self._has_failed = True
            self._recorded.clear()  # they use a generator that may be gone
            return
        self._recorded[batch.source.bound] = _Recorded(inputs, divisor, losses, first, later)

    def replay(self, batch: Batch, *, divisor: int, is_first: bool) -> Tensor:
        """Replay the step with another batch; return its smoothed loss and its NLL, [2].

        A replay takes the same random numbers from torch's generators, seeded before, as the step itself.
        """
        recorded = self._recorded[batch.source.bound]
        for kept, new in zip(recorded.batch.tensors(), batch.tensors(), strict=True):
            if kept.shape != new.shape:
                raise ValueError(f"a batch has {list(new.shape)} where the recorded one had {list(kept.shape)}")
            kept.copy_(new, non_blocking=True)
        recorded.divisor.fill_(divisor)
        (recorded.first if is_first else recorded.later)()
        return recorded.losses.clone()
