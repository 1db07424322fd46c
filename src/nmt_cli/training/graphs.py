"""The steps of micro-batches, recorded once as CUDA graphs and replayed with new batches in the same memory.

A graph launches thousands of kernels at once, where the host would take longer to launch them than they run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt_cli.dataset.batch import Batch
from nmt_cli.training.compiling import is_out_of_memory

_WARM_UPS = 3
_log = logging.getLogger(__name__)

Step = Callable[[Batch, Tensor], Tensor]
"""Adds the gradients of a batch's loss, divided by a float32 scalar, to a sum; its smoothed loss and its NLL [2]."""

Recorder = Callable[[Callable[[], None]], Callable[[], None]]
"""Makes of a function one that repeats, on the same memory, what it did; RuntimeError where that is impossible."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A replay, the memory that it reads a batch and its divisor from, and where it leaves the losses."""

    batch: Batch
    divisor: Tensor
    losses: Tensor
    replay: Callable[[], None]


class RecordedSteps:
    """One recorded step for each `bound` that batches have; all else of their shapes is the same."""

    def __init__(self, step: Step, recorder: Recorder) -> None:
        self._step, self._recorder = step, recorder
        self._recorded: dict[int, _Recorded] = {}
        self._has_failed = False

    def __contains__(self, batch: Batch) -> bool:
        return batch.source.bound in self._recorded

    def record(self, batch: Batch) -> None:
        """Run the step with a batch, and record it, unless one with that bound was recorded before.

        Where the device cannot, a warning says so, and no step is recorded from then on, nor replayed.
        """
        if self._has_failed or batch in self:
            return
        inputs, device = batch.each(Tensor.clone), batch.gold.device
        divisor, losses = torch.ones((), device=device), torch.zeros(2, device=device)

        def step() -> None:
            losses.copy_(self._step(inputs, divisor))

        try:
            replay = self._recorder(step)
        except RuntimeError as problem:
            if is_out_of_memory(problem):
                raise
            reason = str(problem).strip().partition("\n")[0]
            _log.warning("no CUDA graph can be made (%s): updates take longer to launch", reason)
            self._has_failed = True
            self._recorded.clear()  # they draw from a generator that may have been given up
            return
        self._recorded[batch.source.bound] = _Recorded(inputs, divisor, losses, replay)

    def replay(self, batch: Batch, *, divisor: int) -> Tensor:
        """Take the step with another batch; its smoothed loss and its NLL, [2].

        torch's generators, seeded before, are drawn from as they would be by the step itself.
        """
        recorded = self._recorded[batch.source.bound]
        for kept, new in zip(recorded.batch.tensors(), batch.tensors(), strict=True):
            if kept.shape != new.shape:
                raise ValueError(f"a batch has {list(new.shape)} where the recorded one had {list(kept.shape)}")
            kept.copy_(new, non_blocking=True)
        recorded.divisor.fill_(divisor)
        recorded.replay()
        return recorded.losses.clone()


class CudaGraphs:
    """Records on one GPU; all graphs share one pool of memory, since none needs what another has left there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._is_warm = False

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        """A graph of what the function does; the first, after some runs in which libraries set themselves up.

        Later ones use the same libraries on the same stream, and memory beside the pool may be scarce by then.
        """
        graph = torch.cuda.CUDAGraph()
        present = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(present)
        with torch.cuda.stream(self._stream):
            for _ in range(0 if self._is_warm else _WARM_UPS):
                function()
            self._is_warm = True
            try:
                # Other threads, of the loader and of NCCL, may call what a recording thread must not.
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                    function()
            except RuntimeError:
                self._clear_up()
                raise
        present.wait_stream(self._stream)
        return graph.replay

    def _clear_up(self) -> None:
        """Take torch's allocator and its generator out of a recording that failed: they still believe in it.

        The pool would keep its memory, and the allocator all that another stream has used since.
        """
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        with suppress(RuntimeError):  # where the recording came to its end, and what failed came later
            torch._C._cuda_endAllocateToPool(index, self._pool)
            torch._C._cuda_releasePool(index, self._pool)
        torch.cuda.default_generators[index].graphsafe_set_state(torch.Generator(self._device))
