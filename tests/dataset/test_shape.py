"""Budgets of an update and the shape of its micro-batches: slots, sentences, dummies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.dataset.shape import Budgets, Shape, accumulation, budgets, micro_shape


@st.composite
def limits_of_data(draw: st.DrawFn) -> tuple[Budgets, int, int]:
    """Budgets, with the tokens of a batch and the longest sentence that they are of."""
    batch_tokens = draw(st.integers(1, 50_000))
    num_pairs = draw(st.integers(1, 10**8))
    src, tgt = (num_pairs * draw(st.integers(1, 60)) for _ in range(2))
    longest = draw(st.integers(1, 2 * batch_tokens))
    limits = budgets(batch_tokens=batch_tokens, num_pairs=num_pairs, src_tokens=src, tgt_tokens=tgt, longest=longest)
    return limits, batch_tokens, longest


@given(limits_of_data())
def test_budgets_are_at_most_the_tokens_of_a_batch_and_take_the_longest_sentence(
    data: tuple[Budgets, int, int],
) -> None:
    limits, batch_tokens, longest = data
    assert max(limits.src, limits.tgt) <= batch_tokens
    assert min(limits.src, limits.tgt) >= min(longest, batch_tokens)


@pytest.mark.parametrize(
    ("num_pairs", "src_tokens", "tgt_tokens", "expected"),
    [
        # All in one update.
        (10, 100, 200, Budgets(101, 200)),
        # Pairs of 10 tokens: 15 are left open of 1,000, so 11 updates of 909.1 and 15.
        (1000, 10_000, 10_000, Budgets(925, 925)),
        # 1,016 updates; half the tokens on the other side, and 0.3 % more.
        (100_000, 500_000, 1_000_000, Budgets(502, 1000)),
        (100_000, 1_000_000, 500_000, Budgets(1000, 502)),
    ],
)
def test_budgets_by_arithmetic(num_pairs: int, src_tokens: int, tgt_tokens: int, expected: Budgets) -> None:
    found = budgets(batch_tokens=1000, num_pairs=num_pairs, src_tokens=src_tokens, tgt_tokens=tgt_tokens, longest=30)
    assert found == expected


def test_budgets_of_no_data_are_those_of_no_sentence() -> None:
    assert budgets(batch_tokens=1000, num_pairs=0, src_tokens=0, tgt_tokens=0, longest=0) == Budgets(0, 0)


@pytest.mark.parametrize(
    ("batch_tokens", "max_tokens", "world_size", "expected"),
    [
        (25_000, 25_600, 1, 1),
        (25_000, 25_600, 8, 1),
        (25_000, 12_500, 1, 2),
        (25_000, 12_499, 1, 3),
        (25_000, 3200, 2, 4),
    ],
)
def test_accumulation_is_the_budget_over_what_the_devices_hold_rounded_up(
    batch_tokens: int, max_tokens: int, world_size: int, expected: int
) -> None:
    assert accumulation(batch_tokens=batch_tokens, max_tokens=max_tokens, world_size=world_size) == expected


@given(limits_of_data(), st.integers(1, 10), st.sampled_from([1, 2, 3, 8]), st.integers(0, 3000))
def test_slots_hold_an_update_and_the_longest_sentence_and_a_device_holds_them(
    data: tuple[Budgets, int, int], parts: int, world_size: int, pairs_in_update: int
) -> None:
    limits, batch_tokens, longest = data
    longest = min(longest, batch_tokens)
    max_tokens = max(longest, -(-batch_tokens // parts))
    count = world_size * accumulation(batch_tokens=batch_tokens, max_tokens=max_tokens, world_size=world_size)
    shape = micro_shape(limits, count=count, pairs_in_update=pairs_in_update, longest=longest, max_tokens=max_tokens)
    for slots, limit in ((shape.src_slots, limits.src), (shape.tgt_slots, limits.tgt)):
        assert longest <= slots <= max_tokens
        assert count * slots >= limit
        # Rounding costs at most 7 slots where few are needed, and a 400th part where many are.
        assert slots <= max(longest, -(-limit // count) + 7, 1.0025 * -(-limit // count) + 1)
    assert shape.longest >= max(128, longest)
    assert shape.longest.bit_count() == 1
    assert shape.longest == 128 or shape.longest < 2 * longest
    # A single pair always fits, with its dummies.
    assert shape.holds(src_tokens=1, tgt_tokens=1, num_pairs=1)
    assert shape.holds(src_tokens=longest, tgt_tokens=longest, num_pairs=1)


@pytest.mark.parametrize(
    ("count", "max_tokens", "expected"),
    [
        # 913 pairs and 121, a fiftieth of 196 dummies, and 2; then to a multiple of 8.
        (1, 25_000, Shape(22_144, 24_992, 1040, 512)),
        (1, 24_990, Shape(22_144, 24_990, 1040, 512)),
        (2, 12_512, Shape(11_072, 12_496, 520, 512)),
        (8, 3200, Shape(2768, 3128, 136, 512)),
    ],
)
def test_shapes_by_arithmetic(count: int, max_tokens: int, expected: Shape) -> None:
    limits = Budgets(22_120, 24_988)
    found = micro_shape(limits, count=count, pairs_in_update=913, longest=300, max_tokens=max_tokens)
    assert found == expected


@given(st.integers(1, 3000), st.integers(1, 3000), st.data())
def test_as_few_dummies_as_cover_the_empty_slots_of_both_sides(
    src_slots: int, tgt_slots: int, data: st.DataObject
) -> None:
    shape = Shape(src_slots, tgt_slots, sentences=100, longest=128)
    src, tgt = (data.draw(st.integers(0, slots)) for slots in (src_slots, tgt_slots))
    number = shape.num_dummies(src_tokens=src, tgt_tokens=tgt)
    most_empty = max(src_slots - src, tgt_slots - tgt)
    assert 128 * (number - 1) < most_empty <= 128 * number


def test_a_shape_holds_what_fits_both_sides_and_the_sentences() -> None:
    shape = Shape(src_slots=256, tgt_slots=300, sentences=8, longest=128)
    assert shape.holds(src_tokens=256, tgt_tokens=300, num_pairs=8)
    assert not shape.holds(src_tokens=256, tgt_tokens=300, num_pairs=9)
    assert not shape.holds(src_tokens=257, tgt_tokens=10, num_pairs=1)
    assert not shape.holds(src_tokens=10, tgt_tokens=301, num_pairs=1)
    # One empty slot takes a dummy, and 129 take two.
    assert shape.holds(src_tokens=255, tgt_tokens=300, num_pairs=7)
    assert not shape.holds(src_tokens=255, tgt_tokens=300, num_pairs=8)
    assert shape.holds(src_tokens=256, tgt_tokens=171, num_pairs=6)
    assert not shape.holds(src_tokens=256, tgt_tokens=171, num_pairs=7)
