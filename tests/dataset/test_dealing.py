"""Micro-batches of an update: they part it, fit the shape on both sides, and leave few slots empty."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nmt_cli.dataset.dealing import fitting, micro_batches
from nmt_cli.dataset.planning import Planned
from nmt_cli.dataset.rows import Rows, sum_lengths
from nmt_cli.dataset.shape import Shape, accumulation, micro_shape
from tests.dataset.lengths import CORPORA, LONGEST, Corpus, as_corpus, realistic

BATCH_TOKENS = st.integers(LONGEST, 2000)
RANKS = [1, 2, 4, 8]


class Dealing:
    """A plan and what its updates are dealt out to."""

    def __init__(self, corpus: Corpus, plan: Planned, *, batch_tokens: int, max_tokens: int, world_size: int) -> None:
        self.plan, self.world_size = plan, world_size
        self.count = world_size * accumulation(batch_tokens=batch_tokens, max_tokens=max_tokens, world_size=world_size)
        self.shape = micro_shape(
            plan.facts.budgets,
            count=self.count,
            pairs_in_update=plan.facts.pairs_in_update,
            longest=int(corpus.sizes.max()),
            max_tokens=max_tokens,
        )

    def update(self, index: int) -> list[Rows]:
        rows = self.plan.rows(self.plan.pairs(index))
        return micro_batches(rows, shape=self.shape, count=self.count, world_size=self.world_size)

    @property
    def empty_share(self) -> float:
        """The share of slots without a token, of both sides and all updates."""
        tokens = slots = 0
        for micro in map(self.update, range(len(self.plan))):
            slots += len(micro) * (self.shape.src_slots + self.shape.tgt_slots)
            tokens += sum(sum_lengths(part, side=side) for part in micro for side in ("src", "tgt"))
        return 1 - tokens / slots


def pairs_of(micro: list[Rows]) -> list[int]:
    """The pairs of an update, ascending."""
    return sorted(np.concatenate(micro)["pair"].tolist())


def is_held(part: Rows, shape: Shape) -> bool:
    src, tgt = (sum_lengths(part, side=side) for side in ("src", "tgt"))
    return shape.holds(src_tokens=src, tgt_tokens=tgt, num_pairs=len(part))


@given(CORPORA, BATCH_TOKENS, st.integers(1, 10), st.sampled_from([1, 2, 3, 8]))
@settings(deadline=None)
def test_micro_batches_part_an_update_fit_and_come_in_rounds_of_all_ranks(
    corpus: Corpus, batch_tokens: int, parts: int, world_size: int
) -> None:
    max_tokens = max(LONGEST, -(-batch_tokens // parts))
    plan = corpus.plan(batch_tokens=batch_tokens)
    dealing = Dealing(corpus, plan, batch_tokens=batch_tokens, max_tokens=max_tokens, world_size=world_size)
    for index in range(len(plan)):
        micro = dealing.update(index)
        assert pairs_of(micro) == sorted(plan.pairs(index).tolist())
        assert len(micro) % world_size == 0
        assert len(micro) >= dealing.count
        for part in micro:
            assert len(part) == 0 or is_held(part, dealing.shape)
            lengths = list(zip(part["tgt_length"].tolist(), part["src_length"].tolist(), strict=True))
            assert lengths == sorted(lengths)


@given(CORPORA, st.integers(LONGEST, 600), st.integers(1, 12), st.sampled_from([1, 2, 8]), st.integers(1, 4))
@settings(deadline=None)
def test_any_pairs_are_dealt_out_whatever_the_shape(
    corpus: Corpus, slots: int, sentences: int, world_size: int, count: int
) -> None:
    # Updates that no plan makes: far more pairs than the shape is meant for, on one side or on both.
    shape = Shape(slots, 2 * LONGEST, sentences=sentences + 5, longest=512)
    rows = corpus.pairs.rows(np.arange(len(corpus)))
    micro = micro_batches(rows, shape=shape, count=count * world_size, world_size=world_size)
    assert pairs_of(micro) == list(range(len(corpus)))
    assert len(micro) % world_size == 0
    assert all(len(part) == 0 or is_held(part, shape) for part in micro)


@given(CORPORA, BATCH_TOKENS, st.integers(LONGEST, 600))
@settings(deadline=None)
def test_the_updates_are_the_same_on_any_number_of_devices(corpus: Corpus, batch_tokens: int, max_tokens: int) -> None:
    plan = corpus.plan(batch_tokens=batch_tokens)
    on = [
        Dealing(corpus, plan, batch_tokens=batch_tokens, max_tokens=max_tokens, world_size=world_size)
        for world_size in RANKS
    ]
    for index in range(len(plan)):
        assert len({tuple(pairs_of(dealing.update(index))) for dealing in on}) == 1


@given(st.integers(0, 2**32), st.integers(256, 285))
@settings(deadline=None)
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


@pytest.mark.parametrize("ratio", [1.0, 0.85, 1.2])
def test_few_slots_of_an_epoch_are_empty(ratio: float) -> None:
    # More than 220 updates, so that a last one that is far from full counts little.
    corpus = realistic(200_000, ratio=ratio)
    plan = corpus.plan(batch_tokens=25_000)
    for world_size, limit in ((1, 0.01), (2, 0.01), (4, 0.015), (8, 0.025)):
        max_tokens = 25_000 // world_size + 128
        dealing = Dealing(corpus, plan, batch_tokens=25_000, max_tokens=max_tokens, world_size=world_size)
        assert dealing.count == world_size
        assert dealing.empty_share < limit


def test_an_update_of_few_pairs_leaves_some_ranks_without_any() -> None:
    rows = as_corpus([(3, 4), (5, 6)]).pairs.rows(np.array([0, 1]))
    micro = micro_batches(rows, shape=Shape(100, 100, sentences=8, longest=128), count=8, world_size=8)
    assert len(micro) == 8
    assert sorted(len(part) for part in micro) == [0] * 6 + [1] * 2


@pytest.mark.parametrize(("world_size", "expected"), [(1, 3), (2, 4), (4, 4)])
@pytest.mark.parametrize("is_long_on_the_target_side", [True, False])
def test_a_round_more_is_taken_where_no_dealing_fits(
    world_size: int, expected: int, is_long_on_the_target_side: bool
) -> None:
    # Of 200 slots, 198 are needed, but no two of the sentences fill the half that has the longest.
    lengths = [(5, 34), (5, 34), (5, 34), (5, 96)]
    corpus = as_corpus(lengths if is_long_on_the_target_side else [(tgt, src) for src, tgt in lengths])
    rows = corpus.pairs.rows(np.arange(4))
    shape = Shape(100, 100, sentences=16, longest=128)
    micro = micro_batches(rows, shape=shape, count=max(2, world_size), world_size=world_size)
    assert len(micro) == expected


def test_rows_are_swapped_until_both_sides_fit() -> None:
    # Dealt to and fro by length, one half has 130 source tokens of 104.
    corpus = as_corpus([(50, 50), (20, 50), (30, 50), (80, 50), (2, 2), (8, 2), (4, 4), (6, 4)])
    rows = corpus.pairs.rows(np.arange(8))
    shape = Shape(104, 110, sentences=8, longest=128)
    assert len(micro_batches(rows, shape=shape, count=2, world_size=1)) == 2


@pytest.mark.parametrize("lengths", [(5, 101), (101, 5)])
def test_a_sentence_longer_than_a_micro_batch_is_refused(lengths: tuple[int, int]) -> None:
    rows = as_corpus([(5, 5), lengths]).pairs.rows(np.array([0, 1]))
    with pytest.raises(ValueError, match="a sentence of 101 pieces does not fit 100 slots"):
        micro_batches(rows, shape=Shape(100, 100, sentences=8, longest=128), count=2, world_size=1)


@given(CORPORA, st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 40))
@settings(deadline=None)
def test_the_first_rows_that_fit_are_as_many_as_do(corpus: Corpus, src_slots: int, tgt_slots: int, more: int) -> None:
    shape = Shape(src_slots, tgt_slots, sentences=-(-max(src_slots, tgt_slots) // 128) + more, longest=512)
    rows = corpus.pairs.rows(np.arange(len(corpus)))
    found = fitting(rows, shape=shape)
    assert found["pair"].tolist() == list(range(len(found)))
    assert len(found) == max((size for size in range(1, len(rows) + 1) if is_held(rows[:size], shape)), default=1)
