"""Work of a GPU recorded as CUDA graphs, which the host launches at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch

_WARM_UPS = 3


class CudaGraphs:
    """Records on one GPU; all graphs share one pool of memory, because no graph needs the results of another there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._is_warm = False

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        """A graph of the function's work; libraries set themselves up in some runs before the first recording.

        Later recordings use the same libraries on the same stream, and memory beside the pool may be scarce by then.
        """
        if not self._is_warm:
            for _ in range(_WARM_UPS):
                self.run_beside(function)
            self._is_warm = True
        return self.record(function)

    def run_beside(self, function: Callable[[], None]) -> None:
        """Run the function on the recording stream, between earlier and later work of the current stream."""
        present = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(present)
        with torch.cuda.stream(self._stream):
            function()
        present.wait_stream(self._stream)

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """A graph of the function's work, which the recording does not do; run its like with `run_beside` first."""
        graph = torch.cuda.CUDAGraph()

        def recording() -> None:
            # The threads of the loader and of NCCL may call what a recording thread must not.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                function()

        try:
            self.run_beside(recording)
        except RuntimeError:
            self._clear_up(graph)
            raise
        return graph.replay

    def renew(self) -> None:
        """Take another pool from now on: torch refuses a pool that has lost all its graphs and is not yet empty."""
        self._pool = torch.cuda.graph_pool_handle()

    def _clear_up(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a failed recording for torch's allocator and its generator.

        Otherwise the pool keeps its memory, and the allocator keeps all memory that another stream has used since.
        """
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        with suppress(RuntimeError):  # torch 2.13 has already ended the allocation
            torch._C._cuda_endAllocateToPool(index, self._pool)
        if not _has_pool(graph):
            torch._C._cuda_releasePool(index, self._pool)
        try:
            self._record_something()
        except RuntimeError:
            torch.cuda.default_generators[index].graphsafe_set_state(torch.Generator(self._device))

    def _record_something(self) -> None:
        """Complete a small recording, which ends the generator's part in the failed one.

        All graphs of the process use this generator. Otherwise torch 2.11 refuses to replay any of them.
        """
        with torch.cuda.graph(
            torch.cuda.CUDAGraph(), stream=torch.cuda.Stream(self._device), capture_error_mode="thread_local"
        ):
            torch.empty(1, device=self._device).zero_()


def _has_pool(graph: torch.cuda.CUDAGraph) -> bool:
    """Whether the recording was completed: only then does the graph release its share of the pool itself."""
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True
