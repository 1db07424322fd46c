"""The planning of an epoch: every pair once, updates of the budget's size, micro-batches that fit."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nmt_cli.dataset import planning
from nmt_cli.dataset.plan import PlanKey, accumulation, fitting, micro_batches
from nmt_cli.dataset.planning import Planned, plan_epoch
from nmt_cli.dataset.rows import Array, row_type
from nmt_cli.dataset.store import TokenFile, TokenPairs


@dataclass(frozen=True)
class Corpus:
    """Lengths of the two sides, in pieces with EOS."""

    src: Array
    tgt: Array

    @property
    def pairs(self) -> TokenPairs:
        return TokenPairs(*(token_file(side) for side in (self.src, self.tgt)))

    def plan(self, *, batch_tokens: int, seed: int = 1, epoch: int = 0, max_positions: int = 1 << 20) -> Planned:
        key = PlanKey(
            data="x",
            num_pairs=len(self.src),
            src_tokens=int(self.src.sum()),
            tgt_tokens=int(self.tgt.sum()),
            batch_tokens=batch_tokens,
            max_positions=max_positions,
            seed=seed,
            epoch=epoch,
        )
        return plan_epoch(self.pairs, key=key)

    def micro(self, pairs: Array, *, batch_tokens: int, max_tokens: int, world_size: int) -> list[Array]:
        rows = self.pairs.rows(pairs)
        micro = micro_batches(rows, batch_tokens=batch_tokens, max_tokens=max_tokens, world_size=world_size)
        return [part["pair"].astype(np.int64) for part in micro]

    def reaches(self, pairs: Array, batch_tokens: int) -> bool:
        return max(int(self.src[pairs].sum()), int(self.tgt[pairs].sum())) >= batch_tokens


def token_file(lengths: Array) -> TokenFile:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return TokenFile(np.zeros(offsets[-1], dtype=np.uint16), offsets)


def as_corpus(pairs: list[tuple[int, int]]) -> Corpus:
    src, tgt = np.array(pairs, dtype=np.int64).T
    return Corpus(src, tgt)


def realistic(num_pairs: int, *, seed: int = 1) -> Corpus:
    """Lengths like those of WMT14: 28 pieces a side on average, up to 256, the sides alike."""
    generator = np.random.default_rng(seed)
    src = np.clip(generator.lognormal(3.1, 0.7, num_pairs), 2, 256)
    tgt = np.clip(src * generator.lognormal(0.0, 0.2, num_pairs), 2, 256)
    return Corpus(src.astype(np.int64), tgt.astype(np.int64))


def planned_slowly(
    corpus: Corpus, *, batch_tokens: int, seed: int, epoch: int, max_positions: int, pool_pairs: int
) -> list[list[int]]:
    """The updates of an epoch, pair by pair, as docs/architecture.md describes them."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1, epoch])))
    usable = [pair for pair in range(len(corpus.src)) if max(corpus.src[pair], corpus.tgt[pair]) <= max_positions]
    shuffled = [usable[place] for place in generator.permutation(len(usable))]
    in_order: list[int] = []
    for number, start in enumerate(range(0, len(shuffled), pool_pairs)):
        pool = sorted(shuffled[start : start + pool_pairs], key=lambda pair: (corpus.tgt[pair], corpus.src[pair]))
        in_order += reversed(pool) if number % 2 else pool
    updates: list[list[int]] = [[]]
    for pair in in_order:
        updates[-1].append(pair)
        if corpus.reaches(np.array(updates[-1]), batch_tokens):
            updates.append([])
    updates = [update for update in updates if update]
    return [updates[number] for number in generator.permutation(len(updates))]


def pairs_of(plan: Planned) -> list[list[int]]:
    """The pairs of each update."""
    return [plan.pairs(index).tolist() for index in range(len(plan))]


LONGEST = 30
CORPORA = st.lists(st.tuples(st.integers(1, LONGEST), st.integers(1, LONGEST)), min_size=1, max_size=80).map(as_corpus)
BUDGETS = st.integers(1, 300)
SEEDS = st.integers(0, 2**63)


def updates_of(corpus: Corpus, *, batch_tokens: int, seed: int = 1, pool_pairs: int = 1 << 17) -> list[Array]:
    """The pairs of each update of a plan that is sorted in pools of this size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_POOL_PAIRS", pool_pairs)
        plan = corpus.plan(batch_tokens=batch_tokens, seed=seed)
    return [plan.pairs(index) for index in range(len(plan))]


@pytest.mark.parametrize("pool_pairs", [7, 1 << 17])
@given(CORPORA, BUDGETS, SEEDS, st.integers(0, 99), st.integers(1, LONGEST + 1))
@settings(deadline=None)
def test_a_plan_is_that_of_a_slow_loop(
    pool_pairs: int, corpus: Corpus, batch_tokens: int, seed: int, epoch: int, max_positions: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_POOL_PAIRS", pool_pairs)
        patch.setattr(planning, "_BLOCK_PAIRS", 11)
        plan = corpus.plan(batch_tokens=batch_tokens, seed=seed, epoch=epoch, max_positions=max_positions)
        blocks = list(plan.blocks())
    expected = planned_slowly(
        corpus,
        batch_tokens=batch_tokens,
        seed=seed,
        epoch=epoch,
        max_positions=max_positions,
        pool_pairs=pool_pairs,
    )
    assert pairs_of(plan) == expected
    assert plan.sizes().tolist() == [len(update) for update in expected]
    assert plan.num_left_out == len(corpus.src) - sum(map(len, expected))
    assert [pair for block in blocks for pair in block["pair"].tolist()] == [
        pair for update in expected for pair in update
    ]
    ends = np.cumsum(plan.sizes())
    assert all(end in ends for end in np.cumsum([len(block) for block in blocks]))


@given(CORPORA, BUDGETS, st.integers(1, 300))
@settings(deadline=None)
def test_the_longest_pairs_that_fit_a_budget_are_found_block_by_block(
    corpus: Corpus, batch_tokens: int, max_tokens: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_BLOCK_PAIRS", 7)
        plan = corpus.plan(batch_tokens=batch_tokens)
    budget = min(batch_tokens, max_tokens)
    found = fitting(plan.rows(plan.longest), max_tokens=budget)["pair"].tolist()
    by_size = sorted(range(len(corpus.src)), key=lambda pair: -max(corpus.src[pair], corpus.tgt[pair]))
    fits = [size for size in range(1, len(by_size) + 1) if not corpus.reaches(np.array(by_size[:size]), budget + 1)]
    assert found == by_size[: max(fits, default=1)]


@given(CORPORA, BUDGETS)
@settings(deadline=None)
def test_rows_say_where_the_sentences_lie(corpus: Corpus, batch_tokens: int) -> None:
    plan = corpus.plan(batch_tokens=batch_tokens)
    for index in range(len(plan)):
        pairs = plan.pairs(index)
        for name, side in (("src", corpus.src), ("tgt", corpus.tgt)):
            rows = plan.rows(pairs)
            assert rows[f"{name}_length"].tolist() == side[pairs].tolist()
            assert rows[f"{name}_start"].tolist() == [side[:pair].sum() for pair in pairs]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((65_535, 65_535, 255), 10), ((65_536, 1 << 31, 65_535), 16), ((1 << 31, 1 << 32, 1 << 16), 28)],
)
def test_rows_are_as_narrow_as_the_data_allows(sizes: tuple[int, int, int], expected: int) -> None:
    num_pairs, num_tokens, longest = sizes
    assert row_type(num_pairs=num_pairs, num_tokens=num_tokens, longest=longest).itemsize == expected


@pytest.mark.parametrize("pool_pairs", [7, 1 << 17])
@given(corpus=CORPORA, batch_tokens=BUDGETS, seed=SEEDS)
@settings(deadline=None)
def test_every_pair_comes_exactly_once(corpus: Corpus, batch_tokens: int, seed: int, pool_pairs: int) -> None:
    updates = updates_of(corpus, batch_tokens=batch_tokens, seed=seed, pool_pairs=pool_pairs)
    assert sorted(np.concatenate(updates).tolist()) == list(range(len(corpus.src)))
    assert all(len(pairs) > 0 for pairs in updates)


@pytest.mark.parametrize("pool_pairs", [7, 1 << 17])
@given(corpus=CORPORA, batch_tokens=BUDGETS, seed=SEEDS)
@settings(deadline=None)
def test_each_update_closes_with_the_pair_by_which_a_side_reaches_the_budget_but_one(
    corpus: Corpus, batch_tokens: int, seed: int, pool_pairs: int
) -> None:
    updates = updates_of(corpus, batch_tokens=batch_tokens, seed=seed, pool_pairs=pool_pairs)
    assert sum(not corpus.reaches(pairs, batch_tokens) for pairs in updates) <= 1
    assert not any(corpus.reaches(pairs[:-1], batch_tokens) for pairs in updates)


@given(CORPORA, BUDGETS, SEEDS, st.integers(0, 99))
@settings(deadline=None)
def test_a_plan_is_a_pure_function_of_seed_and_epoch(corpus: Corpus, batch_tokens: int, seed: int, epoch: int) -> None:
    np.random.seed(1)  # numpy's own generator must not matter
    first = corpus.plan(batch_tokens=batch_tokens, seed=seed, epoch=epoch)
    np.random.seed(2)
    second = corpus.plan(batch_tokens=batch_tokens, seed=seed, epoch=epoch)
    assert pairs_of(first) == pairs_of(second)


def test_other_epochs_and_other_seeds_have_other_plans() -> None:
    corpus = realistic(2000)
    plans = [pairs_of(corpus.plan(batch_tokens=500, seed=seed, epoch=epoch)) for seed in (1, 2) for epoch in (0, 1, 2)]
    # (seed, epoch) is a pair, not a sum: all are different.
    assert all(one != other for one, other in combinations(plans, 2))


def test_updates_are_not_in_the_order_of_their_lengths() -> None:
    corpus = realistic(5000)
    means = [corpus.tgt[pairs].mean() for pairs in updates_of(corpus, batch_tokens=1000)]
    # Of independent values, a correlation within 4 / sqrt(number) but for one seed in fifteen thousand.
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 4 / np.sqrt(len(means))


def test_which_pairs_share_an_update_changes_from_epoch_to_epoch() -> None:
    # Of pairs alike in length there must be many, else sorting decides alone.
    corpus = Corpus(np.full(3000, 20, dtype=np.int64), np.full(3000, 22, dtype=np.int64))
    first, second = (corpus.plan(batch_tokens=2200, epoch=epoch) for epoch in (0, 1))
    together = [set(first.pairs(index).tolist()) for index in range(len(first))]
    largest = max(len(set(second.pairs(index).tolist()) & pairs) for index in range(len(second)) for pairs in together)
    # An update of 100 among 3000 shares three pairs with another by chance.
    assert largest < 20


def test_a_pair_longer_than_the_budget_is_an_update_of_its_own_or_ends_one() -> None:
    corpus = as_corpus([(5, 5), (900, 3), (5, 5), (4, 800)])
    updates = [pairs.tolist() for pairs in updates_of(corpus, batch_tokens=100)]
    assert all(update[-1] == pair for update in updates for pair in update if pair in (1, 3))


def test_neighbours_are_alike_in_length() -> None:
    corpus = realistic(100_000)
    updates = updates_of(corpus, batch_tokens=25_000)

    def padding(side: Array) -> float:
        """The share of padding, were each update one rectangle."""
        return 1 - int(side.sum()) / sum(len(pairs) * int(side[pairs].max()) for pairs in updates)

    # Unsorted it would be 0.87: some of 256 pieces are in every update. Sources are sorted only among equal targets.
    assert padding(corpus.tgt) < 0.03
    assert padding(corpus.src) < 0.5


def test_pools_meet_at_like_lengths() -> None:
    lengths = np.random.default_rng(1).integers(10, 51, 10_000)
    updates = updates_of(Corpus(lengths, lengths), batch_tokens=2500, pool_pairs=1000)
    # An update takes at most a quarter of a pool, 10 of its 40 lengths; were all pools sorted upwards, lengths of 50
    # and 10 would meet.
    assert max(lengths[pairs].max() - lengths[pairs].min() for pairs in updates) < 25


def test_a_million_pairs_are_planned_in_seconds() -> None:
    corpus = realistic(1_000_000)
    start = time.process_time()
    plan = corpus.plan(batch_tokens=25_000)
    # Half a second on an idle core.
    assert time.process_time() - start < 5
    assert len(plan) == pytest.approx(max(corpus.src.sum(), corpus.tgt.sum()) / 25_000, rel=0.05)


@given(CORPORA, BUDGETS, st.integers(1, 10), st.sampled_from([1, 2, 3, 8]))
@settings(deadline=None)
def test_micro_batches_part_an_update_fit_and_come_in_rounds_of_all_ranks(
    corpus: Corpus, batch_tokens: int, parts: int, world_size: int
) -> None:
    # A tight fit, so that the last pair of an update often takes a round more.
    max_tokens = max(LONGEST, -(-batch_tokens // parts))
    for pairs in updates_of(corpus, batch_tokens=batch_tokens):
        micro = corpus.micro(pairs, batch_tokens=batch_tokens, max_tokens=max_tokens, world_size=world_size)
        assert np.concatenate(micro).tolist() == pairs.tolist()
        assert all(corpus.src[part].sum() <= max_tokens and corpus.tgt[part].sum() <= max_tokens for part in micro)
        assert len(micro) % world_size == 0
        least = accumulation(batch_tokens=batch_tokens, max_tokens=max_tokens, world_size=world_size)
        assert len(micro) >= least * world_size


@given(CORPORA, BUDGETS, st.sampled_from([1, 2, 8]))
@settings(deadline=None)
def test_the_updates_are_the_same_on_any_number_of_devices(corpus: Corpus, batch_tokens: int, world_size: int) -> None:
    for pairs in updates_of(corpus, batch_tokens=batch_tokens):
        micro = corpus.micro(pairs, batch_tokens=batch_tokens, max_tokens=100, world_size=world_size)
        assert sorted(np.concatenate(micro).tolist()) == sorted(pairs.tolist())


@given(st.integers(0, 2**32), st.integers(250, 285))
@settings(deadline=None)
def test_eight_micro_batches_are_the_same_on_one_two_and_eight_devices(seed: int, max_tokens: int) -> None:
    # An eighth of the budget is 250 tokens, and up to 285 one device needs eight rounds.
    length = np.random.default_rng(seed).integers(1, 11, 2000)
    corpus = Corpus(length, length)
    pairs = corpus.plan(batch_tokens=2000, seed=seed).pairs(0)
    assume(corpus.reaches(pairs, 2000))
    on_one, on_two, on_eight = (
        corpus.micro(pairs, batch_tokens=2000, max_tokens=max_tokens, world_size=world_size) for world_size in (1, 2, 8)
    )
    assume(len(on_one) == 8)
    assert [part.tolist() for part in on_one] == [part.tolist() for part in on_two]
    assert [part.tolist() for part in on_one] == [part.tolist() for part in on_eight]


def test_micro_batches_of_an_update_are_about_equal() -> None:
    corpus = realistic(20_000)
    for pairs in updates_of(corpus, batch_tokens=25_000)[:20]:
        if corpus.reaches(pairs, 25_000):
            micro = corpus.micro(pairs, batch_tokens=25_000, max_tokens=4096, world_size=1)
            tokens = [max(corpus.src[part].sum(), corpus.tgt[part].sum()) for part in micro]
            assert max(tokens) < 1.1 * np.mean(tokens)


def test_an_update_of_few_pairs_leaves_some_ranks_without_any() -> None:
    corpus = as_corpus([(3, 4), (5, 6)])
    micro = corpus.micro(np.array([0, 1]), batch_tokens=100, max_tokens=100, world_size=8)
    assert len(micro) == 8
    assert sorted(len(part) for part in micro) == [0] * 6 + [1] * 2


@pytest.mark.parametrize(("world_size", "expected"), [(1, 3), (2, 4), (4, 4), (5, 5)])
@pytest.mark.parametrize("is_long_on_the_target_side", [True, False])
def test_a_round_more_is_taken_where_the_last_pair_goes_over_the_budget(
    world_size: int, expected: int, is_long_on_the_target_side: bool
) -> None:
    lengths = [(40, 50), (40, 50), (40, 50), (40, 60)]
    corpus = as_corpus(lengths if is_long_on_the_target_side else [(tgt, src) for src, tgt in lengths])
    micro = corpus.micro(np.arange(4), batch_tokens=200, max_tokens=100, world_size=world_size)
    assert len(micro) == expected


@pytest.mark.parametrize("lengths", [(5, 101), (101, 5)])
def test_a_sentence_longer_than_a_micro_batch_is_refused(lengths: tuple[int, int]) -> None:
    corpus = as_corpus([(5, 5), lengths])
    with pytest.raises(ValueError, match="a sentence of 101 pieces does not fit 100 tokens"):
        corpus.micro(np.array([0, 1]), batch_tokens=200, max_tokens=100, world_size=1)


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
