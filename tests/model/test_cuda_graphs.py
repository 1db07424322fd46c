"""What a recording that failed leaves behind: nothing. Torch's functions for it are doubles where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nmt_cli.model.cuda_graphs import CudaGraphs

POOL = (0, 1)


class Torch:
    """Notes what is asked of torch. `ends` and `releases` are the calls for the pool."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, has_ended: bool, has_pool: bool, records: bool) -> None:
        self.has_ended, self.has_pool, self.records = has_ended, has_pool, records
        self.ends, self.releases, self.recorded, self.new_states = 0, 0, 0, 0
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self._end, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", self._release, raising=False)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(pool=self._pool, replay=None))
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(wait_stream=lambda other: None))
        monkeypatch.setattr(torch.cuda, "current_stream", torch.cuda.Stream)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: self._graph(None))
        monkeypatch.setattr(torch.cuda, "graph", self._graph)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: POOL)
        generator = SimpleNamespace(graphsafe_set_state=self._set_state)
        monkeypatch.setattr(torch.cuda, "default_generators", [generator])
        monkeypatch.setattr(torch, "Generator", lambda device: "a new state")
        empty = torch.empty
        monkeypatch.setattr(torch, "empty", lambda *sizes, device: empty(*sizes))

    def _end(self, device: int, pool: tuple[int, int]) -> None:
        assert (device, pool) == (0, POOL)
        self.ends += 1
        if self.has_ended:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    def _release(self, device: int, pool: tuple[int, int]) -> None:
        assert (device, pool) == (0, POOL)
        assert self.ends == 1
        self.releases += 1

    def _pool(self) -> tuple[int, int]:
        if not self.has_pool:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return POOL

    @contextmanager
    def _graph(self, graph: Any, pool: Any = None, **_: Any) -> Iterator[None]:
        if graph is not None and pool is None and not self.records:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        yield
        self.recorded += graph is not None

    def _set_state(self, state: object) -> None:
        assert state == "a new state"
        self.new_states += 1


def fails() -> None:
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize(
    ("has_ended", "has_pool", "releases"),
    [(False, False, 1), (True, False, 1), (True, True, 0)],
    ids=["as in torch 2.11", "as in torch 2.13", "after the end of the recording"],
)
def test_a_recording_that_failed_releases_its_pool_once(
    monkeypatch: pytest.MonkeyPatch, has_ended: bool, has_pool: bool, releases: int
) -> None:
    double = Torch(monkeypatch, has_ended=has_ended, has_pool=has_pool, records=True)
    with pytest.raises(RuntimeError, match=r"^operation not permitted when stream is capturing$"):
        CudaGraphs(torch.device("cuda:0")).record(fails)
    assert (double.ends, double.releases) == (1, releases)


@pytest.mark.parametrize("records", [True, False])
def test_a_recording_that_failed_leaves_the_generator_able_to_replay(
    monkeypatch: pytest.MonkeyPatch, records: bool
) -> None:
    double = Torch(monkeypatch, has_ended=False, has_pool=False, records=records)
    with pytest.raises(RuntimeError, match=r"^operation not permitted when stream is capturing$"):
        CudaGraphs(torch.device("cuda:0")).record(fails)
    # A small recording ends what the failed one began. A device that cannot even do that gets another state.
    assert (double.recorded, double.new_states) == ((1, 0) if records else (0, 1))


@pytest.mark.gpu
def test_on_a_gpu_graphs_of_other_recorders_are_replayed_after_a_recording_that_failed() -> None:
    device = torch.device("cuda")
    drawn = torch.zeros(8, device=device)

    def draw() -> None:
        drawn.copy_(torch.rand(8, device=device))

    def waits_for_the_device() -> None:
        draw()
        drawn.sum().item()

    def replayed(replay: Callable[[], None]) -> list[float]:
        torch.manual_seed(3)
        replay()
        return drawn.tolist()

    earlier = CudaGraphs(device).warm_up_and_record(draw)
    before = replayed(earlier)
    with pytest.raises(RuntimeError):
        CudaGraphs(device).warm_up_and_record(waits_for_the_device)
    assert replayed(earlier) == before
    assert replayed(CudaGraphs(device).warm_up_and_record(draw)) == before
