"""What some updates amount to: sums, rates by a fake clock, shares, and the figures of the last ones."""

from __future__ import annotations

import math
import mmap
from dataclasses import replace

import pytest
import torch

from nmt_cli.training.figures import Figures, Meter, Stopwatch, Sums, memory_gb
from nmt_cli.training.speed import Speed

SPEED = Speed(flops_per_source_token=100, flops_per_target_token=300, matrix_rate=1e6)
UPDATE = Sums(smoothed=900.0, nll=600.0, source_tokens=500, target_tokens=300, slots=1000)


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_stopwatch_leaves_out_what_lies_between_stop_and_run() -> None:
    clock = FakeClock()
    stopwatch = Stopwatch(clock)
    clock.now += 50
    assert stopwatch.seconds == 0
    stopwatch.run()
    clock.now += 3
    stopwatch.run()  # no new start
    clock.now += 4
    assert stopwatch.seconds == 7
    stopwatch.stop()
    clock.now += 100
    assert stopwatch.seconds == 7
    stopwatch.run()
    clock.now += 1.5
    assert stopwatch.seconds == 8.5


def test_figures_are_sums_over_sums() -> None:
    figures = Figures.of(replace(UPDATE, seconds=0.5, waited=0.02), speed=SPEED)
    assert figures.loss == 3.0
    assert figures.nll == 2.0
    assert figures.perplexity == math.exp(2)
    assert figures.target_tokens_per_second == 600.0
    # 500 x 100 + 300 x 300 operations in half a second, of a million a second.
    assert figures.matrix_rate_share == pytest.approx(0.28)
    assert figures.padding == pytest.approx(0.2)
    assert figures.waiting == pytest.approx(0.04)


def test_where_no_update_was_applied_there_is_nothing_to_tell() -> None:
    figures = Figures.of(Sums(seconds=2.0, waited=1.0), speed=SPEED)
    assert math.isnan(figures.loss)
    assert math.isnan(figures.padding)
    assert figures.target_tokens_per_second == 0.0
    assert figures.waiting == 0.5
    assert math.isnan(Figures.of(Sums(), speed=SPEED).target_tokens_per_second)


def test_a_line_is_about_the_updates_since_the_last_one() -> None:
    meter = Meter(SPEED)
    meter.add(UPDATE, seconds=10.0, waited=1.0)
    meter.add(UPDATE, seconds=14.0, waited=1.0)
    sums, figures = meter.line()
    assert (sums.source_tokens, sums.target_tokens) == (1000, 600)
    assert figures.target_tokens_per_second == pytest.approx(600 / 14)
    meter.add(UPDATE, seconds=17.0, waited=1.6)
    sums, figures = meter.line()
    assert sums.target_tokens == 300
    assert figures.target_tokens_per_second == pytest.approx(100.0)
    assert figures.waiting == pytest.approx(0.2)


def test_what_is_forgotten_is_in_no_line() -> None:
    meter = Meter(SPEED)
    meter.add(replace(UPDATE, smoothed=1e9), seconds=10.0, waited=5.0)
    meter.forget()
    meter.add(UPDATE, seconds=12.0, waited=5.0)
    assert meter.recent().loss == 3.0
    _, figures = meter.line()
    assert (figures.loss, figures.target_tokens_per_second, figures.waiting) == (3.0, 150.0, 0.0)


def test_recent_updates_are_the_last_fifty_marks() -> None:
    meter = Meter(SPEED)
    for number in range(60):
        update = replace(UPDATE, smoothed=9000.0) if number < 10 else UPDATE
        meter.add(update, seconds=100 + number / 2, waited=0.0)
    recent = meter.recent()
    assert recent.loss == 3.0
    assert recent.target_tokens_per_second == pytest.approx(600.0)


def test_memory_on_a_cpu_is_what_the_process_holds() -> None:
    before = memory_gb(torch.device("cpu"))
    pages = mmap.mmap(-1, 100_000_000)  # not from the allocator, which may have some to spare
    pages[:: mmap.PAGESIZE] = b"x" * -(-len(pages) // mmap.PAGESIZE)
    assert memory_gb(torch.device("cpu")) - before == pytest.approx(0.1, abs=0.02)
    pages.close()
