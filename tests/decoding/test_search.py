"""Search against exhaustive search, a naive beam search, an argmax loop, and forced scores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt_cli.decoding.search import ensemble
from nmt_cli.decoding.search.hypotheses import Hypothesis, SourceSentence
from nmt_cli.decoding.search.searcher import Searcher
from nmt_cli.decoding.search.topk import first_argmax, topk_continuations
from nmt_cli.errors import ModelError
from nmt_cli.model.decoder_cache import DecoderCache
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization import tokenizer
from tests.decoding import reference
from tests.decoding.reference import (
    CPU,
    EOS,
    TOLERANCE,
    assert_same,
    decoding,
    gnmt,
    in_batches,
    random_model,
    random_rows,
    random_sources,
    search,
    search_in_batches,
)

VOCAB = 23


def limit_of(row: Sequence[int], config: DecodingConfig) -> int:
    return len(row) + config.max_extra_tokens


def run(model: Transformer, rows: list[list[int]], config: DecodingConfig, *, nbest: int = 1) -> list[list[Hypothesis]]:
    return search_in_batches(model, rows, config=config, nbest=nbest)


def assert_forced(
    model: Transformer, row: Sequence[int], found: Hypothesis, config: DecodingConfig, tolerance: float = 1e-5
) -> None:
    """The log-probability of what was found is that of forced decoding."""
    forced = reference.forced_log_prob(model, row, found.ids, limit=limit_of(row, config))
    assert found.log_prob == pytest.approx(forced, abs=tolerance)


PENALTIES: list[tuple[str, float, reference.Penalty]] = [
    ("gnmt", 0.6, gnmt(0.6)),
    ("gnmt", 2.0, gnmt(2.0)),
    ("gnmt", 0.0, lambda length: 1.0),
    ("length", 1.0, float),
    ("none", 0.6, lambda length: 1.0),
]


@pytest.mark.parametrize("prefix", [[], [6], [4, 5]])
@pytest.mark.parametrize("seed", range(3))
def test_beam_that_keeps_every_beginning_is_exhaustive_search(seed: int, prefix: list[int]) -> None:
    vocab, limit, source = 7, 4, [5, 6]
    model = random_model(seed, vocab=vocab, sharpness=1 + seed)
    exact = reference.in_float64(model)
    translations = reference.all_translations(exact, source, vocab=vocab, limit=limit)
    log_prob = reference.forced_log_prob(exact, source, prefix, limit=len(prefix)) if prefix else 0.0
    for form, alpha, penalty in PENALTIES:
        config = decoding(beam=3**limit, length_penalty=alpha, length_penalty_form=form, max_extra_tokens=2)
        assert limit_of(source, config) == limit
        # What all have in common does not count.
        scored = [
            replace(one, score=(one.log_prob - log_prob) / penalty(min(len(one.ids) + 1, limit)))
            for one in translations
            if one.ids[: len(prefix)] == prefix
        ]
        expected = sorted(scored, key=lambda hypothesis: -hypothesis.score)
        for nbest in (1, 5, 81):
            found = search([model], [SourceSentence(source, prefix)], config=config, nbest=nbest)
            assert_same(found, [expected[:nbest]])


@pytest.mark.parametrize("alpha", [0.6, 0.0])
@pytest.mark.parametrize(("seed", "sharpness"), [(0, 2.0), (5, 3.0), (7, 1.0)])
def test_beam_search_is_the_naive_one(alpha: float, seed: int, sharpness: float) -> None:
    model = random_model(seed, vocab=23, sharpness=sharpness)
    rows = random_rows(seed, count=30, vocab=23, longest=9)
    config = decoding(beam=4, length_penalty=alpha)
    limits = [limit_of(row, config) for row in rows]
    exact = reference.in_float64(model)
    expected = reference.naive_beam_searches(exact, rows, beam=4, limits=limits, penalty=gnmt(alpha))
    # The model ends sentences at different lengths, before the limit and at it.
    assert len({len(best[0].ids) for best in expected}) > 2
    for nbest in (1, 4):
        assert_same(run(model, rows, config, nbest=nbest), [ranked[:nbest] for ranked in expected])


@pytest.mark.parametrize("seed", range(3))
def test_greedy_search_is_the_argmax_loop(seed: int) -> None:
    model = random_model(seed, vocab=31, sharpness=2.0)
    rows = random_rows(seed, count=40, vocab=31, longest=8)
    config = decoding(beam=1)
    exact = reference.in_float64(model)
    lengths = set()
    for row, (ours,) in zip(rows, run(model, rows, config), strict=True):
        limit = limit_of(row, config)
        assert ours.ids == reference.greedy_translation(exact, row, limit=limit)
        forced = reference.forced_log_prob(exact, row, ours.ids, limit=limit)
        assert ours.log_prob == pytest.approx(forced, abs=TOLERANCE)
        assert ours.score == pytest.approx(forced / gnmt(0.6)(min(len(ours.ids) + 1, limit)), abs=TOLERANCE)
        lengths.add(len(ours.ids))
    assert len(lengths) > 2


@pytest.mark.parametrize(
    "settings", [{}, {"norm": "pre", "positions": "learned", "tying": "all"}, {"encoder_window": 3}]
)
@pytest.mark.parametrize("beam", [1, 5])
def test_score_is_the_forced_score(settings: dict[str, object], beam: int) -> None:
    model = random_model(3, vocab=40, sharpness=2.0, **settings)
    rows = random_rows(3, count=25, vocab=40, longest=7)
    config = decoding(beam=beam)
    for row, hypotheses in zip(rows, run(model, rows, config, nbest=beam), strict=True):
        for hypothesis in hypotheses:
            assert_forced(model, row, hypothesis, config)


@pytest.mark.parametrize("at_a_time", [1, 12, 25])
def test_sources_encoded_in_parts_are_translated_as_together(monkeypatch: pytest.MonkeyPatch, at_a_time: int) -> None:
    model = random_model(4, vocab=23, sharpness=2)
    sources = random_sources(4, count=7, vocab=23, longest=30)
    together = search([model], sources, config=decoding(beam=3), nbest=3)
    monkeypatch.setattr(ensemble, "_ENCODER_BATCH_TOKENS", at_a_time)
    assert_same(search([model], sources, config=decoding(beam=3), nbest=3), together)


class _Scripted(Transformer):
    """A model whose next-piece logits are a fixed row, and which notes how many rows each step had."""

    def __init__(self, logits: Tensor) -> None:
        config = random_model(0, vocab=8).config
        super().__init__(config, source_vocab=len(logits), target_vocab=len(logits))
        self.fixed = logits
        self.rows_per_step: list[int] = []
        self.eval()

    def step(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        self.rows_per_step.append(len(ids))
        return super().step(ids, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.fixed.expand(len(hidden), -1).clone()


def logits_with(eos: float, *, vocab: int = 9) -> Tensor:
    """Equal logits but for the end's."""
    logits = torch.zeros(vocab)
    logits[EOS] = eos
    return logits


@pytest.mark.parametrize("beam", [1, 3])
def test_limit_is_each_sentences_own_and_no_more_than_the_positions_of_the_model(beam: int) -> None:
    model = _Scripted(logits_with(-50))
    rows = [[4] * 7, [5], [6] * 3]
    found = run(model, rows, decoding(beam=beam, max_extra_tokens=2))
    assert [len(best.ids) for (best,) in found] == [9, 3, 5]
    # Eight pieces are equally probable, three of them never generated. Cut, so without EOS and its probability.
    for (best,), row in zip(found, rows, strict=True):
        assert best.log_prob == pytest.approx(-(len(row) + 2) * math.log(8), abs=1e-5)
    ((best,),) = run(model, [[4] * 60], decoding(beam=beam, max_extra_tokens=500))
    assert len(best.ids) == model.config.max_positions == 64


@pytest.mark.parametrize("beam", [1, 4])
def test_finished_sentences_leave_the_batch(beam: int) -> None:
    model = _Scripted(logits_with(-50))
    search([model], [SourceSentence([4] * n) for n in (1, 2, 3)], config=decoding(beam=beam, max_extra_tokens=0))
    # The first step has one hypothesis a sentence.
    assert model.rows_per_step == [3, 2 * beam, beam]


def test_search_ends_when_nothing_open_can_win() -> None:
    model = _Scripted(logits_with(20))
    config = decoding(beam=4, length_penalty=0.0)
    ((best,),) = run(model, [[4] * 30], config)
    assert best.ids == []
    assert model.rows_per_step == [1]
    # The second best translation has one piece and EOS, so it takes one step more.
    (both,) = run(model, [[4] * 30], config, nbest=2)
    assert [len(hypothesis.ids) for hypothesis in both] == [0, 1]
    assert model.rows_per_step == [1, 1, 4]


def test_open_hypotheses_are_weighed_by_the_penalty_at_the_limit() -> None:
    # After one step EOS is ahead of what is open at its present length, but a long translation wins in the end.
    logits = torch.full((9,), -50.0)
    logits[EOS], logits[4] = -0.4, 0.0
    config = decoding(beam=2, length_penalty=2.0, max_extra_tokens=20)
    ((best,),) = run(_Scripted(logits), [[4] * 5], config)
    assert best.ids == [4] * 25


def test_padding_bos_and_unknown_are_never_generated() -> None:
    assert (tokenizer.PAD, tokenizer.UNK, tokenizer.BOS, tokenizer.EOS) == (0, 1, 2, 3)
    logits = torch.zeros(9)
    logits[:3] = 30.0
    for beam in (1, 4):
        for hypotheses in run(_Scripted(logits), [[4] * 4, [5]], decoding(beam=beam), nbest=beam):
            for hypothesis in hypotheses:
                assert min(hypothesis.ids, default=EOS + 1) > EOS


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_of_equal_pieces_the_first_is_taken(beam: int) -> None:
    found = run(_Scripted(logits_with(-50, vocab=1000)), [[4]], decoding(beam=beam, max_extra_tokens=0), nbest=beam)
    assert [hypothesis.ids for hypothesis in found[0]] == [[4 + rank] for rank in range(beam)]


def test_bfloat16_logits_are_scored_in_float32() -> None:
    logits = torch.linspace(-1.0, 2.1, 9).bfloat16()
    logits[EOS] = -50.0
    best_piece = logits.double().log_softmax(-1).max().item()
    for beam in (1, 4):
        ((best,),) = run(_Scripted(logits), [[4] * 4], decoding(beam=beam))
        assert best.log_prob == pytest.approx(10 * best_piece, abs=1e-5)


def test_bfloat16_model_is_searched() -> None:
    model = random_model(7, vocab=50, sharpness=3.0).to(torch.bfloat16)
    exact = reference.in_float64(model)
    rows = random_rows(7, count=10, vocab=50, longest=6)
    config = decoding(beam=4)
    for row, hypotheses in zip(rows, run(model, rows, config, nbest=4), strict=True):
        for hypothesis in hypotheses:
            # A bfloat16 logit of size 8 is off by up to 0.03, and so are the layers below.
            assert_forced(exact, row, hypothesis, config, tolerance=0.1 * (len(hypothesis.ids) + 1))


def test_rows_without_pieces_are_not_searched() -> None:
    model = _Scripted(torch.zeros(9))
    assert run(model, [[], []], decoding()) == [[Hypothesis([], 0.0, 0.0)]] * 2
    assert model.rows_per_step == []


@pytest.mark.parametrize("beam", [1, 3])
def test_translations_begin_with_their_prefix_and_go_on_as_the_best_do(beam: int) -> None:
    model, config = random_model(1, vocab=VOCAB, sharpness=2.0), decoding(beam=beam)
    rows = random_rows(1, count=12, vocab=VOCAB, longest=8)
    prefixes = [[4 + (number * 5 + place) % 19 for place in range(number % 4)] for number in range(12)]
    found = search(
        [model], [SourceSentence(row, prefix) for row, prefix in zip(rows, prefixes, strict=True)], config=config
    )
    for row, prefix, (best,) in zip(rows, prefixes, found, strict=True):
        assert best.ids[: len(prefix)] == prefix
        assert_forced(model, row, best, config)
    if beam == 1:
        free = search([model], [SourceSentence(row) for row in rows], config=config)
        own = [SourceSentence(row, best.ids[:2]) for row, (best,) in zip(rows, free, strict=True)]
        begun = search([model], own, config=config)
        assert_same(
            [[replace(one, score=free_one.score)] for (one,), (free_one,) in zip(begun, free, strict=True)], free
        )


@pytest.mark.parametrize("beam", [1, 3])
def test_a_prefix_beyond_the_limit_is_kept_whole(beam: int) -> None:
    prefix = [5, 6, 7, 8, 9]
    config = decoding(beam=beam, max_extra_tokens=1)
    ((best,),) = search([random_model(2, vocab=VOCAB)], [SourceSentence([4], prefix)], config=config)
    assert best.ids[:5] == prefix
    assert len(best.ids) <= 6


@pytest.mark.parametrize("beam", [1, 4])
def test_no_translation_ends_before_min_tokens(beam: int) -> None:
    model, config = random_model(3, vocab=VOCAB, sharpness=3.0), decoding(beam=beam)
    rows = random_rows(3, count=20, vocab=VOCAB, longest=6)
    assert min(len(best.ids) for (best,) in run(model, rows, config)) < 4
    for row, (best,) in zip(rows, run(model, rows, decoding(beam=beam, min_tokens=4)), strict=True):
        assert len(best.ids) >= 4
        assert_forced(model, row, best, config)


@pytest.mark.parametrize("beam", [1, 4])
def test_an_ensemble_is_the_mean_of_probabilities(beam: int) -> None:
    models, config = [random_model(seed, vocab=VOCAB, sharpness=2.0) for seed in (4, 5, 6)], decoding(beam=beam)
    sources = random_sources(4, count=15, vocab=VOCAB, longest=7)
    for source, (best,) in zip(sources, search(models, sources, config=config), strict=True):
        gold = best.ids + ([EOS] if len(best.ids) < limit_of(source.ids, config) else [])
        total = 0.0
        for place, piece in enumerate(gold):
            each = [reference.next_log_probs(model, source.ids, [gold[:place]])[0][piece] for model in models]
            total += math.log(sum(map(math.exp, each)) / 3)
        assert best.log_prob == pytest.approx(total, abs=1e-4)
    assert_same(search([models[0]] * 2, sources, config=config), search(models[:1], sources, config=config))


@pytest.mark.parametrize("settings", [{"beam": 3}, {"beam": 1}, {"samples": 2}, {"samples": 2, "top_k": 5}])
def test_outputs_that_are_not_finite_are_an_error(settings: dict[str, Any]) -> None:
    model = random_model(7, vocab=VOCAB)
    with torch.no_grad():
        model.output_weight.fill_(torch.nan)
    with pytest.raises(ModelError, match="not finite"):
        search([model], random_sources(7, count=3, vocab=VOCAB, longest=7), config=decoding(**settings))


def test_samples_depend_on_the_key_and_the_seed_alone() -> None:
    model = random_model(7, vocab=VOCAB)
    sources = random_sources(7, count=30, vocab=VOCAB, longest=7)
    config = decoding(samples=3, seed=5)

    def ids(found: list[list[Hypothesis]]) -> list[list[list[int]]]:
        return [[one.ids for one in ranked] for ranked in found]

    together = ids(search([model], sources, config=config, nbest=3))
    assert together == [ids(search([model], [source], config=config, nbest=3))[0] for source in sources]
    in_small = decoding(samples=3, seed=5, batch_tokens=90)
    mixed = in_batches(Searcher([model], device=CPU), sources[::-1], config=in_small, nbest=3)
    assert together == ids(mixed[::-1])
    assert together != ids(search([model], sources, config=decoding(samples=3, seed=6), nbest=3))
    with_one_key = [SourceSentence(source.ids, key="x") for source in sources]
    assert together != ids(search([model], with_one_key, config=config, nbest=3))


@pytest.mark.parametrize(
    ("settings", "num_possible"),
    [
        ({}, 20),
        ({"top_k": 3}, 3),
        ({"temperature": 0.5}, 20),
        ({"top_p": 0.5}, None),
        ({"top_k": 5, "top_p": 0.9}, None),
    ],
)
def test_samples_have_the_models_distribution(settings: dict[str, Any], num_possible: int | None) -> None:
    model = random_model(8, vocab=VOCAB, sharpness=1.5)
    row, count = [5, 6, 7], 1000
    config = decoding(samples=count, max_extra_tokens=0, **settings)
    (found,) = search([model], [SourceSentence(row, key="1")], config=config, nbest=count)
    first = Counter(one.ids[0] if one.ids else EOS for one in found)
    log_probs = torch.tensor(reference.next_log_probs(model, row, [[]])[0]).double()
    log_probs[:EOS] = -math.inf
    weights, order = (log_probs / config.temperature).softmax(0).sort(descending=True)
    weights[config.top_k or VOCAB :] = 0
    weights /= weights.sum()
    weights[weights.cumsum(0) - weights >= config.top_p] = 0
    weights /= weights.sum()
    if num_possible is not None:
        assert len(first) <= num_possible
    for piece, p in zip(order.tolist(), weights.tolist(), strict=True):
        # Five standard deviations of a frequency of 1,000 samples.
        assert abs(first[piece] / count - p) <= 5 * math.sqrt(p * (1 - p) / count) + 1e-9
    for one in found[:50]:
        assert_forced(model, row, one, config, tolerance=1e-4)


@pytest.mark.parametrize("vocabulary", [9, 127, 1000, 2048])
def test_the_most_probable_is_the_first_of_the_largest(vocabulary: int) -> None:
    log_probs = torch.randn(50, vocabulary, generator=torch.Generator().manual_seed(vocabulary)).round()
    log_probs[1] = -torch.inf
    log_probs[2, -1], log_probs[3, -5:] = 9.0, 9.0
    expected = [row.index(max(row)) for row in log_probs.tolist()]
    assert first_argmax(log_probs).tolist() == expected


@pytest.mark.parametrize("vocabulary", [9, 1000, 2048])
@pytest.mark.parametrize("width", [1, 3])
def test_continuations_are_the_first_of_a_stable_sort(vocabulary: int, width: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary + width)
    # Rounded so coarsely that most values come many times; some are -inf, and one is +0.0.
    log_probs = (torch.randn(7 * width, vocabulary, generator=generator) * 2).round().sub(5)
    log_probs[:, :3] = -torch.inf
    log_probs[0, 4], log_probs[-1] = 0.0, -torch.inf
    before = -torch.rand(7, width, generator=generator).mul(4).round()
    count = min(8, width * (vocabulary - 3))
    totals, tokens, hypotheses = topk_continuations(log_probs, before, count=count)
    places = hypotheses * vocabulary + tokens
    everything = (log_probs.view(7, width, vocabulary) + before[:, :, None]).flatten(1)
    values, order = everything.sort(dim=1, descending=True, stable=True)
    assert torch.equal(totals, values[:, :count])
    assert torch.equal(places, order[:, :count])
