"""The shape of micro-batches, and pairs dealt into them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nmt_cli.dataset.micro_batches import (
    MicroBatchShape,
    accumulation_steps,
    deal_micro_batches,
    first_rows_that_fit,
    micro_batch_shape,
)
from nmt_cli.dataset.plan_computation import EpochPlan, TokenBudgets, token_budgets
from nmt_cli.dataset.prepared_data import Rows, count_tokens
from tests.dataset.synthetic import CORPORA, LONGEST, Corpus, as_corpus, realistic

BATCH_TOKENS = st.integers(LONGEST, 2000)


@st.composite
def budgets_of_data(draw: st.DrawFn) -> tuple[TokenBudgets, int, int]:
    """Budgets, with the tokens of a batch and the longest sentence that they are of."""
    batch_tokens = draw(st.integers(1, 50_000))
    num_pairs = draw(st.integers(1, 10**8))
    src, tgt = (num_pairs * draw(st.integers(1, 60)) for _ in range(2))
    longest = draw(st.integers(1, 2 * batch_tokens))
    budgets = token_budgets(
        batch_tokens=batch_tokens, num_pairs=num_pairs, src_tokens=src, tgt_tokens=tgt, max_tokens_in_sentence=longest
    )
    return budgets, batch_tokens, longest


@given(budgets_of_data())
def test_budgets_are_at_most_the_tokens_of_a_batch_and_take_the_longest_sentence(
    data: tuple[TokenBudgets, int, int],
) -> None:
    budgets, batch_tokens, longest = data
    assert max(budgets.src, budgets.tgt) <= batch_tokens
    assert min(budgets.src, budgets.tgt) >= min(longest, batch_tokens)


@pytest.mark.parametrize(
    ("num_pairs", "src_tokens", "tgt_tokens", "longest", "expected"),
    [
        (0, 0, 0, 0, TokenBudgets(0, 0)),
        # All in one update.
        (10, 100, 200, 30, TokenBudgets(101, 200)),
        # Pairs of 10 tokens: 15 are left open of 1,000, so 11 updates of 909.1 and 15.
        (1000, 10_000, 10_000, 30, TokenBudgets(925, 925)),
        # 1,016 updates; half the tokens on the other side, and 0.3 % more.
        (100_000, 500_000, 1_000_000, 30, TokenBudgets(502, 1000)),
        (100_000, 1_000_000, 500_000, 30, TokenBudgets(1000, 502)),
    ],
)
def test_budgets_by_arithmetic(
    num_pairs: int, src_tokens: int, tgt_tokens: int, longest: int, expected: TokenBudgets
) -> None:
    found = token_budgets(
        batch_tokens=1000,
        num_pairs=num_pairs,
        src_tokens=src_tokens,
        tgt_tokens=tgt_tokens,
        max_tokens_in_sentence=longest,
    )
    assert found == expected


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
    assert accumulation_steps(batch_tokens=batch_tokens, max_tokens=max_tokens, world_size=world_size) == expected


@given(budgets_of_data(), st.integers(1, 10), st.sampled_from([1, 2, 3, 8]), st.integers(0, 3000))
def test_slots_hold_an_update_and_the_longest_sentence_and_a_device_holds_them(
    data: tuple[TokenBudgets, int, int], parts: int, world_size: int, pairs_in_update: int
) -> None:
    budgets, batch_tokens, longest = data
    longest = min(longest, batch_tokens)
    max_tokens = max(longest, math.ceil(batch_tokens / parts))
    count = world_size * accumulation_steps(batch_tokens=batch_tokens, max_tokens=max_tokens, world_size=world_size)
    shape = micro_batch_shape(
        budgets,
        num_micro_batches=count,
        pairs_in_update=pairs_in_update,
        max_tokens_in_sentence=longest,
        max_tokens=max_tokens,
    )
    for slots, limit in ((shape.src_slots, budgets.src), (shape.tgt_slots, budgets.tgt)):
        assert longest <= slots <= max_tokens
        assert count * slots >= limit
        # Rounding costs at most 7 slots where few are needed, and a 400th part where many are.
        assert slots <= max(longest, math.ceil(limit / count) + 7, 1.0025 * math.ceil(limit / count) + 1)
    assert shape.length_bound >= max(128, longest)
    assert shape.length_bound.bit_count() == 1
    assert shape.length_bound == 128 or shape.length_bound < 2 * longest
    # A single pair always fits, with its dummies.
    assert shape.holds(src_tokens=1, tgt_tokens=1, num_pairs=1)
    assert shape.holds(src_tokens=longest, tgt_tokens=longest, num_pairs=1)


@pytest.mark.parametrize(
    ("count", "max_tokens", "expected"),
    [
        # 913 pairs and 121, a fiftieth of 196 dummies, and 2; then to a multiple of 8.
        (1, 25_000, MicroBatchShape(22_144, 24_992, 1040, 512)),
        (1, 24_990, MicroBatchShape(22_144, 24_990, 1040, 512)),
        (2, 12_512, MicroBatchShape(11_072, 12_496, 520, 512)),
        (8, 3200, MicroBatchShape(2768, 3128, 136, 512)),
    ],
)
def test_shapes_by_arithmetic(count: int, max_tokens: int, expected: MicroBatchShape) -> None:
    budgets = TokenBudgets(22_120, 24_988)
    found = micro_batch_shape(
        budgets, num_micro_batches=count, pairs_in_update=913, max_tokens_in_sentence=300, max_tokens=max_tokens
    )
    assert found == expected


@given(st.integers(1, 3000), st.integers(1, 3000), st.data())
def test_as_few_dummies_as_cover_the_empty_slots_of_both_sides(
    src_slots: int, tgt_slots: int, data: st.DataObject
) -> None:
    shape = MicroBatchShape(src_slots, tgt_slots, max_sentences=100, length_bound=128)
    src, tgt = (data.draw(st.integers(0, slots)) for slots in (src_slots, tgt_slots))
    number = shape.num_dummies(src_tokens=src, tgt_tokens=tgt)
    most_empty = max(src_slots - src, tgt_slots - tgt)
    assert 128 * (number - 1) < most_empty <= 128 * number


def test_a_shape_holds_what_fits_both_sides_and_the_sentences() -> None:
    shape = MicroBatchShape(src_slots=256, tgt_slots=300, max_sentences=8, length_bound=128)
    assert shape.holds(src_tokens=256, tgt_tokens=300, num_pairs=8)
    assert not shape.holds(src_tokens=256, tgt_tokens=300, num_pairs=9)
    assert not shape.holds(src_tokens=257, tgt_tokens=10, num_pairs=1)
    assert not shape.holds(src_tokens=10, tgt_tokens=301, num_pairs=1)
    # One empty slot takes a dummy, and 129 take two.
    assert shape.holds(src_tokens=255, tgt_tokens=300, num_pairs=7)
    assert not shape.holds(src_tokens=255, tgt_tokens=300, num_pairs=8)
    assert shape.holds(src_tokens=256, tgt_tokens=171, num_pairs=6)
    assert not shape.holds(src_tokens=256, tgt_tokens=171, num_pairs=7)


class Dealing:
    """A plan and what its updates are dealt out to."""

    def __init__(self, corpus: Corpus, plan: EpochPlan, *, batch_tokens: int, max_tokens: int, world_size: int) -> None:
        self.plan, self.pairs, self.world_size = plan, corpus.pairs, world_size
        self.count = world_size * accumulation_steps(
            batch_tokens=batch_tokens, max_tokens=max_tokens, world_size=world_size
        )
        self.shape = micro_batch_shape(
            plan.invariants.budgets,
            num_micro_batches=self.count,
            pairs_in_update=plan.invariants.pairs_in_update,
            max_tokens_in_sentence=int(corpus.sizes.max()),
            max_tokens=max_tokens,
        )

    def update(self, index: int) -> list[Rows]:
        rows = self.pairs.rows(self.plan.pairs_of_update(index))
        return deal_micro_batches(rows, shape=self.shape, num_micro_batches=self.count, world_size=self.world_size)

    @property
    def empty_share(self) -> float:
        """The share of slots without a token, of both sides and all updates."""
        tokens = slots = 0
        for micro_batches in map(self.update, range(len(self.plan))):
            slots += len(micro_batches) * (self.shape.src_slots + self.shape.tgt_slots)
            tokens += sum(count_tokens(part, side=side) for part in micro_batches for side in ("src", "tgt"))
        return 1 - tokens / slots


def pairs_of(micro_batches: list[Rows]) -> list[int]:
    """The pairs of an update, ascending."""
    return sorted(np.concatenate(micro_batches)["pair"].tolist())


def is_held(part: Rows, shape: MicroBatchShape) -> bool:
    src, tgt = (count_tokens(part, side=side) for side in ("src", "tgt"))
    return shape.holds(src_tokens=src, tgt_tokens=tgt, num_pairs=len(part))


@given(CORPORA, BATCH_TOKENS, st.integers(1, 10), st.sampled_from([1, 2, 3, 4, 8]))
def test_micro_batches_part_an_update_fit_and_come_in_rounds_of_all_ranks(
    corpus: Corpus, batch_tokens: int, parts: int, world_size: int
) -> None:
    max_tokens = max(LONGEST, math.ceil(batch_tokens / parts))
    plan = corpus.plan(batch_tokens=batch_tokens)
    dealing = Dealing(corpus, plan, batch_tokens=batch_tokens, max_tokens=max_tokens, world_size=world_size)
    for index in range(len(plan)):
        micro_batches = dealing.update(index)
        assert pairs_of(micro_batches) == sorted(plan.pairs_of_update(index).tolist())
        assert len(micro_batches) % world_size == 0
        assert len(micro_batches) >= dealing.count
        for part in micro_batches:
            assert len(part) == 0 or is_held(part, dealing.shape)
            lengths = list(zip(part["tgt_length"].tolist(), part["src_length"].tolist(), strict=True))
            assert lengths == sorted(lengths)


@given(CORPORA, st.integers(LONGEST, 600), st.integers(1, 12), st.sampled_from([1, 2, 8]), st.integers(1, 4))
def test_any_pairs_are_dealt_out_whatever_the_shape(
    corpus: Corpus, slots: int, sentences: int, world_size: int, count: int
) -> None:
    # Updates that no plan makes: far more pairs than the shape is meant for, on one side or on both.
    shape = MicroBatchShape(slots, 2 * LONGEST, max_sentences=sentences + 5, length_bound=512)
    rows = corpus.pairs.rows(np.arange(len(corpus)))
    micro_batches = deal_micro_batches(rows, shape=shape, num_micro_batches=count * world_size, world_size=world_size)
    assert pairs_of(micro_batches) == list(range(len(corpus)))
    assert len(micro_batches) % world_size == 0
    assert all(len(part) == 0 or is_held(part, shape) for part in micro_batches)


@given(st.integers(0, 2**32), st.integers(256, 285))
def test_eight_micro_batches_are_the_same_on_one_two_and_eight_devices(seed: int, max_tokens: int) -> None:
    # An eighth of 2,000 tokens is 250, and up to 285 one device needs eight rounds.
    length = np.random.default_rng(seed).integers(1, 11, 2000)
    corpus = Corpus(length, length)
    plan = corpus.plan(batch_tokens=2000, seed=seed)
    on_one, on_two, on_eight = (
        Dealing(corpus, plan, batch_tokens=2000, max_tokens=max_tokens, world_size=world_size).update(0)
        for world_size in (1, 2, 8)
    )
    assume(len(on_one) == 8)
    assert [part.tolist() for part in on_one] == [part.tolist() for part in on_two]
    assert [part.tolist() for part in on_one] == [part.tolist() for part in on_eight]


@pytest.mark.parametrize(
    ("ratio", "world_size", "limit"), [(1.0, 1, 0.01), (0.85, 2, 0.01), (1.2, 4, 0.015), (1.0, 8, 0.025)]
)
def test_few_slots_of_an_epoch_are_empty(ratio: float, world_size: int, limit: float) -> None:
    # More than 220 updates, so that a last one that is far from full counts little.
    corpus = realistic(200_000, ratio=ratio)
    max_tokens = 25_000 // world_size + 128
    plan = corpus.plan(batch_tokens=25_000)
    dealing = Dealing(corpus, plan, batch_tokens=25_000, max_tokens=max_tokens, world_size=world_size)
    assert dealing.count == world_size
    assert dealing.empty_share < limit


def test_an_update_of_few_pairs_leaves_some_ranks_without_any() -> None:
    rows = as_corpus([(3, 4), (5, 6)]).pairs.rows(np.array([0, 1]))
    micro_batches = deal_micro_batches(
        rows, shape=MicroBatchShape(100, 100, max_sentences=8, length_bound=128), num_micro_batches=8, world_size=8
    )
    assert len(micro_batches) == 8
    assert sorted(len(part) for part in micro_batches) == [0] * 6 + [1] * 2


@pytest.mark.parametrize(("world_size", "expected"), [(1, 3), (2, 4), (4, 4)])
@pytest.mark.parametrize("is_long_on_the_target_side", [True, False])
def test_a_round_more_is_taken_where_no_dealing_fits(
    world_size: int, expected: int, is_long_on_the_target_side: bool
) -> None:
    # Of 200 slots, 198 are needed, but no two of the sentences fill the half that has the longest.
    lengths = [(5, 34), (5, 34), (5, 34), (5, 96)]
    corpus = as_corpus(lengths if is_long_on_the_target_side else [(tgt, src) for src, tgt in lengths])
    rows = corpus.pairs.rows(np.arange(4))
    shape = MicroBatchShape(100, 100, max_sentences=16, length_bound=128)
    micro_batches = deal_micro_batches(rows, shape=shape, num_micro_batches=max(2, world_size), world_size=world_size)
    assert len(micro_batches) == expected


def test_rows_are_swapped_until_both_sides_fit() -> None:
    # Dealt to and fro by length, one half has 130 source tokens of 104.
    corpus = as_corpus([(50, 50), (20, 50), (30, 50), (80, 50), (2, 2), (8, 2), (4, 4), (6, 4)])
    rows = corpus.pairs.rows(np.arange(8))
    shape = MicroBatchShape(104, 110, max_sentences=8, length_bound=128)
    assert len(deal_micro_batches(rows, shape=shape, num_micro_batches=2, world_size=1)) == 2


@pytest.mark.parametrize("lengths", [(5, 101), (101, 5)])
def test_a_sentence_longer_than_a_micro_batch_is_refused(lengths: tuple[int, int]) -> None:
    rows = as_corpus([(5, 5), lengths]).pairs.rows(np.array([0, 1]))
    with pytest.raises(ValueError, match="a sentence of 101 pieces does not fit 100 slots"):
        deal_micro_batches(
            rows, shape=MicroBatchShape(100, 100, max_sentences=8, length_bound=128), num_micro_batches=2, world_size=1
        )


@given(CORPORA, st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 40))
def test_the_first_rows_that_fit_are_as_many_as_do(corpus: Corpus, src_slots: int, tgt_slots: int, more: int) -> None:
    shape = MicroBatchShape(
        src_slots, tgt_slots, max_sentences=math.ceil(max(src_slots, tgt_slots) / 128) + more, length_bound=512
    )
    rows = corpus.pairs.rows(np.arange(len(corpus)))
    found = first_rows_that_fit(rows, shape=shape)
    assert found["pair"].tolist() == list(range(len(found)))
    assert len(found) == max((size for size in range(1, len(rows) + 1) if is_held(rows[:size], shape)), default=1)
