"""Learning rates against equation 3 and the shape of a cosine."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from nmt_cli.recipe.schema import ConstantConfig, CosineConfig, NoamConfig, WsdConfig
from nmt_cli.training.schedules import cosine, learning_rate, noam


def paper(update: int) -> float:
    """The base model's rate."""
    return noam(update, factor=1.0, warmup_updates=4000, d_model=512)


@pytest.mark.parametrize(
    ("update", "rate"),
    [
        (1, 1.746928e-07),  # 512^-0.5 * 4000^-1.5
        (1000, 1.746928e-04),
        (4000, 6.987712e-04),  # 512^-0.5 * 4000^-0.5
        (16_000, 3.493856e-04),  # half of it: four times as many updates
        (100_000, 1.397542e-04),
    ],
)
def test_the_paper_s_schedule_is_equation_3(update: int, rate: float) -> None:
    # The figures were worked out by hand, to seven digits.
    assert paper(update) == pytest.approx(rate, rel=1e-6)


def test_the_paper_s_schedule_rises_to_its_peak_at_the_end_of_warm_up_and_falls_ever_after() -> None:
    rates = [paper(update) for update in range(1, 12_001)]
    assert rates.index(max(rates)) + 1 == 4000
    assert all(before < after for before, after in pairwise(rates[:4000]))
    assert all(before > after for before, after in pairwise(rates[3999:]))


def test_the_paper_s_schedule_scales_with_its_factor_and_with_the_width() -> None:
    assert noam(700, factor=2.5, warmup_updates=4000, d_model=512) == pytest.approx(2.5 * paper(700))
    assert noam(700, factor=1.0, warmup_updates=4000, d_model=2048) == pytest.approx(paper(700) / 2)


def test_a_cosine_rises_in_a_line_and_falls_to_zero_behind_the_last_update() -> None:
    rates = [cosine(update, peak=1e-3, warmup_updates=100, updates=1000) for update in range(1, 1002)]
    assert rates[:100] == pytest.approx([1e-5 * update for update in range(1, 101)])
    assert rates.index(max(rates)) + 1 == 100
    assert rates[99] == 1e-3
    assert all(before > after for before, after in pairwise(rates[99:]))
    assert rates[999] > 0
    assert rates[1000] == pytest.approx(0, abs=1e-18)


def test_a_cosine_is_at_half_its_peak_half_way_down() -> None:
    assert cosine(150, peak=1e-3, warmup_updates=100, updates=199) == pytest.approx(0.5e-3)
    assert cosine(125, peak=1e-3, warmup_updates=100, updates=199) == pytest.approx(1e-3 * (0.5 + math.sqrt(0.125)))


def test_a_cosine_with_one_update_behind_its_warm_up_is_served() -> None:
    assert cosine(10, peak=1.0, warmup_updates=9, updates=10) == pytest.approx(0.5)


def test_a_cosine_never_rises_again_behind_its_end() -> None:
    assert cosine(5000, peak=1.0, warmup_updates=9, updates=1000) == 0


def test_the_recipe_s_schedule_is_taken() -> None:
    rate = learning_rate(NoamConfig(factor=2.0, warmup_updates=300), update=77, updates=900, d_model=256)
    assert rate == noam(77, factor=2.0, warmup_updates=300, d_model=256)
    rate = learning_rate(CosineConfig(peak=3e-4, warmup_updates=300), update=577, updates=900, d_model=256)
    assert rate == cosine(577, peak=3e-4, warmup_updates=300, updates=900)


def test_wsd_rises_stays_and_falls_to_zero_after_the_last_update() -> None:
    schedule = WsdConfig(peak=0.5, warmup_updates=4, decay_updates=4)
    rates = [learning_rate(schedule, update=update, updates=12, d_model=512) for update in range(1, 14)]
    assert rates == pytest.approx([0.125, 0.25, 0.375, *[0.5] * 5, 0.4, 0.3, 0.2, 0.1, 0.0])


def test_constant_rises_and_stays() -> None:
    schedule = ConstantConfig(peak=0.5, warmup_updates=4)
    assert [learning_rate(schedule, update=update, updates=9, d_model=1) for update in (1, 2, 4, 5, 900)] == [
        0.125,
        0.25,
        0.5,
        0.5,
        0.5,
    ]
