"""Work of a GPU recorded as CUDA graphs, which the host launches at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch

_WARM_UPS = 3


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
        for _ in range(0 if self._is_warm else _WARM_UPS):
            self.run_beside(function)
        self._is_warm = True
        return self.record(function)

    def run_beside(self, function: Callable[[], None]) -> None:
        """Run the function on the stream that records, after what was launched before and before what comes."""
        present = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(present)
        with torch.cuda.stream(self._stream):
            function()
        present.wait_stream(self._stream)

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """A graph of what the function does, which is not done meanwhile; its like was run beside before."""
        graph = torch.cuda.CUDAGraph()

        def recording() -> None:
            # Other threads, of the loader and of NCCL, may call what a recording thread must not.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                function()

        try:
            self.run_beside(recording)
        except RuntimeError:
            self._clear_up(graph)
            raise
        return graph.replay

    def renew(self) -> None:
        """Take another pool from now on; torch allows none that has lost all its graphs and is not yet empty."""
        self._pool = torch.cuda.graph_pool_handle()

    def _clear_up(self, graph: torch.cuda.CUDAGraph) -> None:
        """Take torch's allocator and its generator out of a recording that failed: they still believe in it.

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
        """Make a recording that comes to its end, and with it the generator's part in the one that failed.

        All graphs of the process draw from this generator. Without this, torch 2.11 refuses to replay any of them.
        """
        with torch.cuda.graph(
            torch.cuda.CUDAGraph(), stream=torch.cuda.Stream(self._device), capture_error_mode="thread_local"
        ):
            torch.empty(1, device=self._device).zero_()


def _has_pool(graph: torch.cuda.CUDAGraph) -> bool:
    """Whether the recording came to its end: only then does the graph release its share of the pool itself."""
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True
