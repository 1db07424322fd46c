"""Sums over updates, their rates and shares, and the floating-point operations of a model."""

from __future__ import annotations

import math
import mmap
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nmt_cli.model.packing import pack
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import ModelConfig
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.reporting import training_metrics
from nmt_cli.training.reporting.training_metrics import (
    ComputeCost,
    Meter,
    Stopwatch,
    UpdateMetrics,
    UpdateSums,
    matrix_rate,
    measure_compute,
    memory_gb,
)

COST = ComputeCost(flops_per_source_token=100, flops_per_target_token=300, matrix_rate=1e6)
UPDATE = UpdateSums(smoothed=900.0, nll=600.0, source_tokens=500, target_tokens=300, slots=1000)
CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "d_k": 8,
    "d_v": 8,
    "dropout": 0.0,
    "embedding_multiple": 1,
}


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_stopwatch_leaves_out_what_lies_between_stop_and_start() -> None:
    clock = FakeClock()
    stopwatch = Stopwatch(clock)
    clock.now += 50
    assert stopwatch.seconds == 0
    stopwatch.start()
    clock.now += 3
    stopwatch.start()  # no new start
    clock.now += 4
    assert stopwatch.seconds == 7
    stopwatch.stop()
    clock.now += 100
    assert stopwatch.seconds == 7
    stopwatch.start()
    clock.now += 1.5
    assert stopwatch.seconds == 8.5


def test_figures_are_sums_over_sums() -> None:
    figures = UpdateMetrics.of(replace(UPDATE, seconds=0.5, waited=0.02), cost=COST, num_passes=1)
    assert figures.loss == 3.0
    assert figures.nll == 2.0
    assert figures.perplexity == math.exp(2)
    assert figures.target_tokens_per_second == 600.0
    # 500 x 100 + 300 x 300 operations in half a second, of a million a second.
    assert figures.matrix_rate_share == pytest.approx(0.28)
    assert figures.padding == pytest.approx(0.2)
    assert figures.waiting == pytest.approx(0.04)


def test_two_passes_take_twice_the_operations_and_have_a_divergence() -> None:
    sums = replace(UPDATE, kl=75.0, seconds=0.5)
    one, two = (UpdateMetrics.of(sums, cost=COST, num_passes=number) for number in (1, 2))
    assert (one.kl, two.kl) == (None, 0.25)
    assert two.matrix_rate_share == 2 * one.matrix_rate_share
    assert (two.loss, two.target_tokens_per_second) == (one.loss, one.target_tokens_per_second)


def test_without_an_applied_update_metrics_are_nan() -> None:
    figures = UpdateMetrics.of(UpdateSums(seconds=2.0, waited=1.0), cost=COST, num_passes=1)
    assert math.isnan(figures.loss)
    assert math.isnan(figures.padding)
    assert figures.kl is None
    assert figures.target_tokens_per_second == 0.0
    assert figures.waiting == 0.5
    assert math.isnan(UpdateMetrics.of(UpdateSums(), cost=COST, num_passes=1).target_tokens_per_second)


def test_a_line_is_about_the_updates_since_the_last_one() -> None:
    meter = Meter(COST, num_passes=1)
    meter.add(UPDATE, seconds=10.0, waited=1.0)
    meter.add(UPDATE, seconds=14.0, waited=1.0)
    sums, figures = meter.report()
    assert (sums.source_tokens, sums.target_tokens) == (1000, 600)
    assert figures.target_tokens_per_second == pytest.approx(600 / 14)
    meter.add(UPDATE, seconds=17.0, waited=1.6)
    sums, figures = meter.report()
    assert sums.target_tokens == 300
    assert figures.target_tokens_per_second == pytest.approx(100.0)
    assert figures.waiting == pytest.approx(0.2)


def test_recent_updates_are_the_last_fifty() -> None:
    meter = Meter(COST, num_passes=1)
    for number_from_last in range(60, 0, -1):
        smoothed = {50: 900.0 + 15_000, 51: 1e9}.get(number_from_last, 900.0)
        meter.add(replace(UPDATE, smoothed=smoothed), seconds=100 - number_from_last / 2, waited=0.0)
    recent = meter.recent()
    assert recent.loss == 4.0  # of the 50th, one nat more per token, and nothing of the 51st
    assert recent.target_tokens_per_second == pytest.approx(600.0)


def test_memory_on_a_cpu_is_what_the_process_holds() -> None:
    before = memory_gb(torch.device("cpu"))
    pages = mmap.mmap(-1, 100_000_000)  # not from the allocator, which may have some to spare
    pages[:: mmap.PAGESIZE] = b"x" * math.ceil(len(pages) / mmap.PAGESIZE)
    assert memory_gb(torch.device("cpu")) - before == pytest.approx(0.1, abs=0.02)
    pages.close()


def counted(model: Transformer, sources: list[list[int]], targets: list[list[int]]) -> int:
    """What torch counts in the forward and backward passes, without the products of batches: those of attention."""
    source, target = pack(sources, device=CPU), pack(targets, device=CPU)
    with FlopCounterMode(display=False) as counter:
        model.logits(model.decode(target, model.encode(source), source)).sum().backward()
    return sum(count for kind, count in counter.get_flop_counts()["Global"].items() if "bmm" not in str(kind))


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"activation": "swiglu", "norm": "pre", "norm_type": "rms", "positions": "rotary"},
        {"d_k": 4, "d_v": 12, "encoder_layers": 4, "decoder_layers": 1, "tying": "none"},
    ],
)
def test_operations_are_those_that_torch_counts(variant: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_metrics, "matrix_rate", lambda device, dtype: 1.0)
    model = Transformer(ModelConfig.model_validate({**SMALL, **variant}), source_vocab=40, target_vocab=40)
    found = measure_compute(model, Ranks(0, 1, CPU))
    sources, targets = [[5, 6, 7, 3], [8, 3], [9, 10, 3]], [[2, 11], [2, 12, 13, 14, 15], [2, 16]]
    expected = counted(model, sources, targets)
    assert found.flops(source_tokens=9, target_tokens=9) == expected
    assert found.flops(source_tokens=9, target_tokens=0) < expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_measuring_the_rate_takes_no_random_number_of_the_training(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    assert 1e8 < matrix_rate(CPU, dtype) < 1e15
    assert torch.equal(torch.rand(4), expected)
