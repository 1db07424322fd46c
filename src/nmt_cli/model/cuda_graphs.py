"""Kernel launches recorded as CUDA graphs: the host then launches each graph in one call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress

import torch

_WARM_UPS = 3


class CudaGraphs:
    """Records graphs on one GPU, on a stream of their own.

    All graphs share one pool of memory: a graph may overwrite it, because no graph reads the results of another there.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._is_warm = False

    def warm_up_and_record(self, function: Callable[[], None]) -> Callable[[], None]:
        """A graph of the function's work, to be called; before the first recording, the function runs a few times.

        In these runs libraries allocate their workspaces. Later recordings use the same libraries on the same stream,
        so they need no such runs. Memory outside the pool may be scarce by then.
        """
        if not self._is_warm:
            for _ in range(_WARM_UPS):
                self.run_on_recording_stream(function)
            self._is_warm = True
        return self.record(function)

    def run_on_recording_stream(self, function: Callable[[], None]) -> None:
        """Run the function on the recording stream, after earlier and before later work of the current stream."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            function()
        current.wait_stream(self._stream)

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """A graph of the function's work, to be called; recording it does none of the work.

        The same kind of work has run with `run_on_recording_stream` before.
        """
        graph = torch.cuda.CUDAGraph()

        def record_function() -> None:
            # "thread_local" lets other threads, of the loader and of NCCL, make calls that a recording thread must not.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                function()

        try:
            self.run_on_recording_stream(record_function)
        except RuntimeError:
            self._end_failed_recording(graph)
            raise
        return graph.replay

    def use_new_pool(self) -> None:
        """Record into another pool from now on, after all graphs have been dropped.

        torch refuses to record into a pool that has lost all its graphs while some of its memory is in use.
        """
        self._pool = torch.cuda.graph_pool_handle()

    def _end_failed_recording(self, graph: torch.cuda.CUDAGraph) -> None:
        """Tell torch's allocator and its generator that the recording is over.

        Otherwise neither the pool nor the allocator frees memory: memory that a second stream used stays taken too.
        """
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        with suppress(RuntimeError):  # torch 2.13 has already ended the allocation
            torch._C._cuda_endAllocateToPool(index, self._pool)
        if not _has_pool(graph):
            torch._C._cuda_releasePool(index, self._pool)
        try:
            self._record_small_graph()
        except RuntimeError:
            torch.cuda.default_generators[index].graphsafe_set_state(torch.Generator(self._device))

    def _record_small_graph(self) -> None:
        """Complete a small recording: it ends the generator's part in the failed recording.

        All graphs of the process use this generator. Without this, torch 2.11 refuses to replay any of them.
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


def launching_on(device: torch.device) -> AbstractContextManager[object]:
    """A context in which Triton launches kernels on this device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
