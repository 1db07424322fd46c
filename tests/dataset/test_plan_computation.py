"""The planning of an epoch: every pair once, in two classes of length, cut before a side exceeds its budget."""

from __future__ import annotations

import time
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.dataset import plan_computation
from nmt_cli.dataset.plan_computation import EpochPlan, Mixture, TokenBudgets, pairs_in_epoch, token_budgets
from nmt_cli.errors import DataError
from tests.dataset.synthetic import CORPORA, LONGEST, Corpus, as_corpus, realistic

BATCH_TOKENS = st.integers(1, 1000)
SEEDS = st.integers(0, 2**63)


def budgets_of(corpus: Corpus, usable: list[int], *, batch_tokens: int) -> TokenBudgets:
    return token_budgets(
        batch_tokens=batch_tokens,
        num_pairs=len(usable),
        src_tokens=int(corpus.src[usable].sum()),
        tgt_tokens=int(corpus.tgt[usable].sum()),
        max_tokens_in_sentence=int(corpus.sizes[usable].max(initial=0)),
    )


def planned_slowly(
    corpus: Corpus, *, batch_tokens: int, seed: int, epoch: int = 0, max_positions: int = 1 << 20
) -> tuple[list[list[int]], list[int], TokenBudgets]:
    """The updates of an epoch as they are cut, pair by pair, the order in which they are taken, and the budgets.

    The last updates are not evened out.
    """
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1, epoch])))
    usable = [pair for pair in range(len(corpus)) if corpus.sizes[pair] <= max_positions]
    limits = budgets_of(corpus, usable, batch_tokens=batch_tokens)
    in_order: list[int] = []
    for is_long in (True, False):
        of_class = np.array([pair for pair in usable if (corpus.sizes[pair] > 128) == is_long], dtype=np.int64)
        generator.shuffle(of_class)
        in_order += of_class.tolist()
    updates: list[list[int]] = []
    src = tgt = 0
    for pair in in_order:
        src, tgt = src + int(corpus.src[pair]), tgt + int(corpus.tgt[pair])
        if not updates or src > limits.src or tgt > limits.tgt:
            updates.append([])
            src, tgt = int(corpus.src[pair]), int(corpus.tgt[pair])
        updates[-1].append(pair)
    return updates, generator.permutation(len(updates)).tolist(), limits


def pairs_of(plan: EpochPlan) -> list[list[int]]:
    """The pairs of each update."""
    return [plan.pairs_of_update(index).tolist() for index in range(len(plan))]


def as_cut(plan: EpochPlan) -> list[list[int]]:
    """The same in the order in which the updates were cut."""
    return [update.tolist() for update in np.split(plan.pair_order, plan.bounds[1:-1])] if len(plan) else []


@given(CORPORA, BATCH_TOKENS, SEEDS, st.integers(0, 99), st.integers(1, LONGEST + 1))
def test_a_plan_is_that_of_a_slow_loop(
    corpus: Corpus, batch_tokens: int, seed: int, epoch: int, max_positions: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_computation, "_BLOCK_PAIRS", 11)
        plan = corpus.plan(batch_tokens=batch_tokens, seed=seed, epoch=epoch, max_positions=max_positions)
    expected, order, limits = planned_slowly(
        corpus, batch_tokens=batch_tokens, seed=seed, epoch=epoch, max_positions=max_positions
    )
    assert plan.pair_order.tolist() == [pair for update in expected for pair in update]
    assert as_cut(plan)[:-9] == expected[:-9]
    assert plan.update_order.tolist() == order
    assert plan.invariants.budgets == limits
    assert plan.invariants.num_pairs_left_out == len(corpus) - sum(map(len, expected))
    sizes = [len(update) for update in pairs_of(plan)]
    assert not sizes or plan.fullest_update == sizes.index(max(sizes))


@given(CORPORA, BATCH_TOKENS)
def test_the_longest_pairs_up_to_a_budget_are_found_block_by_block(corpus: Corpus, batch_tokens: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_computation, "_BLOCK_PAIRS", 7)
        plan = corpus.plan(batch_tokens=batch_tokens)
    by_size = sorted(range(len(corpus)), key=lambda pair: -corpus.sizes[pair])
    sizes = [max(corpus.src[by_size[:size]].sum(), corpus.tgt[by_size[:size]].sum()) for size in range(len(by_size))]
    assert plan.longest_pairs.tolist() == by_size[: sum(size <= batch_tokens for size in sizes)]


@given(CORPORA, BATCH_TOKENS)
def test_rows_say_where_the_sentences_lie(corpus: Corpus, batch_tokens: int) -> None:
    plan, data = corpus.plan(batch_tokens=batch_tokens), corpus.pairs
    for index in range(len(plan)):
        pairs = plan.pairs_of_update(index)
        for name, side in (("src", corpus.src), ("tgt", corpus.tgt)):
            rows = data.rows(pairs)
            assert rows[f"{name}_length"].tolist() == side[pairs].tolist()
            assert rows[f"{name}_start"].tolist() == [side[:pair].sum() for pair in pairs]


@given(CORPORA, BATCH_TOKENS, SEEDS)
def test_every_pair_comes_once_updates_keep_the_budget_and_at_most_one_mixes_the_classes(
    corpus: Corpus, batch_tokens: int, seed: int
) -> None:
    updates = pairs_of(corpus.plan(batch_tokens=batch_tokens, seed=seed))
    assert sorted(np.concatenate(updates).tolist()) == list(range(len(corpus)))
    assert sum(len(set((corpus.sizes[pairs] > 128).tolist())) == 2 for pairs in updates) <= 1
    for pairs in updates:
        tokens = max(corpus.src[pairs].sum(), corpus.tgt[pairs].sum())
        assert tokens <= batch_tokens or len(pairs) == 1


def test_the_last_update_is_about_as_full_as_the_others() -> None:
    # Ten updates of 100 pairs would leave 10 pairs to an eleventh.
    corpus = Corpus(np.full(1010, 10, dtype=np.int64), np.full(1010, 10, dtype=np.int64))
    assert sorted(map(len, pairs_of(corpus.plan(batch_tokens=1000)))) == [91] * 4 + [92] * 5 + [93] * 2


@given(CORPORA, BATCH_TOKENS, SEEDS)
def test_an_even_end_keeps_every_pair_once_and_both_budgets(corpus: Corpus, batch_tokens: int, seed: int) -> None:
    even = as_cut(corpus.plan(batch_tokens=batch_tokens, seed=seed))
    uneven, _, budgets = planned_slowly(corpus, batch_tokens=batch_tokens, seed=seed)
    assert sorted(pair for update in even for pair in update) == list(range(len(corpus)))
    assert len(even) == len(uneven)
    for update in even:
        src, tgt = (sum(int(side[pair]) for pair in update) for side in (corpus.src, corpus.tgt))
        assert (src <= budgets.src and tgt <= budgets.tgt) or len(update) == 1
    cut_anew = [fullness(corpus, update, budgets) for update in even if update not in uneven]
    assert not cut_anew or min(cut_anew) > fullness(corpus, uneven[-1], budgets)


def fullness(corpus: Corpus, update: list[int], budgets: TokenBudgets) -> float:
    """The share of its budget that the fuller side has."""
    return float(max(corpus.src[update].sum() / budgets.src, corpus.tgt[update].sum() / budgets.tgt))


@pytest.mark.parametrize(("num_pairs", "ratio"), [(29_000, 1.0), (29_000, 1.1), (60_000, 0.9), (2_500, 1.0)])
def test_no_update_is_nearly_empty(num_pairs: int, ratio: float) -> None:
    corpus = realistic(num_pairs, ratio=ratio)
    plans = [corpus.plan(batch_tokens=25_000, epoch=epoch) for epoch in range(16)]
    emptiest = min(fullness(corpus, update, plan.invariants.budgets) for plan in plans for update in pairs_of(plan))
    assert emptiest > (0.6 if num_pairs < 10_000 else 0.85)


@given(CORPORA, BATCH_TOKENS, SEEDS, st.integers(0, 99))
def test_a_plan_follows_from_seed_and_epoch_and_its_invariants_from_neither(
    corpus: Corpus, batch_tokens: int, seed: int, epoch: int
) -> None:
    np.random.seed(1)  # numpy's own generator must not matter
    plan = corpus.plan(batch_tokens=batch_tokens, seed=seed, epoch=epoch)
    np.random.seed(2)
    again, other = (corpus.plan(batch_tokens=batch_tokens, seed=seed, epoch=number) for number in (epoch, epoch + 1))
    assert pairs_of(plan) == pairs_of(again)
    assert plan.invariants == other.invariants
    assert plan.longest_pairs.tolist() == other.longest_pairs.tolist()


def test_pairs_in_an_update_are_those_of_the_class_with_most() -> None:
    corpus = realistic(200_000)  # so that few of its updates are cut evenly in the end
    plan = corpus.plan(batch_tokens=25_000)
    of_short = [len(pairs) for pairs in map(plan.pairs_of_update, range(len(plan))) if corpus.sizes[pairs].max() <= 128]
    assert plan.invariants.pairs_in_update == pytest.approx(np.median(of_short), rel=0.01)
    assert as_corpus([(5, 5)] * 7).plan(batch_tokens=1000).invariants.pairs_in_update == 7


SIZES_AND_TEMPERATURES = [
    ([900, 90, 10], 1, [900, 90, 10]),
    ([10_000, 1], 2, [9902, 99]),  # 100 : 1
    ([700, 0, 300], 1e9, [500, 0, 500]),
]


@pytest.mark.parametrize(("sizes", "temperature", "expected"), SIZES_AND_TEMPERATURES)
def test_pairs_of_an_epoch_are_in_proportion_to_roots_of_sizes(
    sizes: list[int], temperature: float, expected: list[int]
) -> None:
    assert pairs_in_epoch(sizes, temperature=temperature) == expected


@given(st.lists(CORPORA, min_size=2, max_size=4), BATCH_TOKENS, st.sampled_from([1.5, 5, 1e9]), SEEDS)
def test_pairs_of_a_direction_come_equally_often_and_updates_keep_the_budgets_of_all_epochs(
    directions: list[Corpus], batch_tokens: int, temperature: float, seed: int
) -> None:
    corpus = Corpus(*(np.concatenate([getattr(one, side) for one in directions]) for side in ("src", "tgt")))
    mixture = Mixture([*map(len, directions)], temperature)
    options: dict[str, Any] = {"batch_tokens": batch_tokens, "max_positions": 200, "seed": seed, "mixture": mixture}
    bounds = np.cumsum([0, *mixture.sizes])
    usable = [np.flatnonzero(corpus.sizes[start:stop] <= 200) + start for start, stop in pairwise(bounds.tolist())]
    in_epoch = pairs_in_epoch([*map(len, usable)], temperature=temperature)
    counts = np.zeros(len(corpus), dtype=np.int64)
    plans = [corpus.plan(epoch=epoch, **options) for epoch in range(6)]
    for plan in plans:
        assert plan.invariants == plans[0].invariants
        assert plan.longest_pairs.tolist() == plans[0].longest_pairs.tolist()
        counts_in_epoch = np.bincount(np.concatenate([[], *pairs_of(plan)]).astype(np.int64), minlength=len(corpus))
        for pairs, wanted in zip(usable, in_epoch, strict=True):
            assert counts_in_epoch[pairs].sum() == wanted
            assert not len(pairs) or np.ptp(counts_in_epoch[pairs]) <= 1
        counts += counts_in_epoch
        budgets = plan.invariants.budgets
        for update in pairs_of(plan):
            assert len(update) == 1 or corpus.src[update].sum() <= budgets.src
            assert len(update) == 1 or corpus.tgt[update].sum() <= budgets.tgt
        assert sum(len(set((corpus.sizes[update] > 128).tolist())) == 2 for update in pairs_of(plan)) <= 1
    assert all(np.ptp(counts[pairs]) <= 1 for pairs in usable if len(pairs))  # they take turns
    assert counts[corpus.sizes > 200].sum() == 0


def test_updates_are_about_equally_full_at_any_temperature() -> None:
    # The directions have sentences of other lengths, so the tokens of an epoch depend on the temperature.
    large, small = realistic(20_000), Corpus(np.full(2000, 60, dtype=np.int64), np.full(2000, 90, dtype=np.int64))
    corpus = Corpus(np.concatenate([large.src, small.src]), np.concatenate([large.tgt, small.tgt]))
    mixture = Mixture([len(large), len(small)], 5)
    plans = [corpus.plan(batch_tokens=25_000, epoch=epoch, mixture=mixture) for epoch in range(4)]
    fills = [fullness(corpus, update, plan.invariants.budgets) for plan in plans for update in pairs_of(plan)]
    assert min(fills) > 0.85


def test_other_epochs_and_other_seeds_have_other_plans() -> None:
    corpus = realistic(2000)
    plans = [pairs_of(corpus.plan(batch_tokens=500, seed=seed, epoch=epoch)) for seed in (1, 2) for epoch in (0, 1, 2)]
    # (seed, epoch) is a pair, not a sum: all are different.
    assert all(one != other for one, other in combinations(plans, 2))


def test_updates_are_not_in_the_order_of_their_lengths() -> None:
    corpus = realistic(5000)
    means = [corpus.tgt[pairs].mean() for pairs in pairs_of(corpus.plan(batch_tokens=1000))]
    # Of independent values, a correlation within 4 / sqrt(number) but for one seed in fifteen thousand.
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 4 / np.sqrt(len(means))


def test_which_pairs_share_an_update_changes_from_epoch_to_epoch() -> None:
    corpus = Corpus(np.full(3000, 20, dtype=np.int64), np.full(3000, 22, dtype=np.int64))
    first, second = (corpus.plan(batch_tokens=2200, epoch=epoch) for epoch in (0, 1))
    together = [set(first.pairs_of_update(index).tolist()) for index in range(len(first))]
    largest = max(
        len(set(second.pairs_of_update(index).tolist()) & pairs) for index in range(len(second)) for pairs in together
    )
    # An update of 100 among 3000 shares three pairs with another by chance.
    assert largest < 20


def test_a_million_pairs_are_planned_in_seconds() -> None:
    corpus = realistic(1_000_000)
    start = time.process_time()
    plan = corpus.plan(batch_tokens=25_000)
    # Half a second on an idle core.
    assert time.process_time() - start < 5
    assert len(plan) == pytest.approx(max(corpus.src.sum(), corpus.tgt.sum()) / 25_000, rel=0.05)


def test_a_numpy_that_shuffles_in_another_order_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_computation, "_ORDER_PURPOSE", 9)  # another stream stands for another algorithm
    with pytest.raises(DataError, match="shuffles in another order: a run would repeat some pairs and skip others"):
        realistic(100).plan(batch_tokens=500)
