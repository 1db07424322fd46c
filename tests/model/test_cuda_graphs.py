"""What a recording that failed leaves behind: nothing. Torch's functions for it are doubles where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from nmt_cli.model.cuda_graphs import CudaGraphs


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
