"""Prefixes, minimum lengths, ensembles and draws, by small random models."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from nmt_cli.decoding.batches import Batches
from nmt_cli.decoding.hypotheses import Hypothesis
from nmt_cli.decoding.search import Source, search
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig
from tests.decoding import reference
from tests.decoding.reference import CPU, random_model, random_rows

VOCAB = 23


def decoding(**settings: Any) -> DecodingConfig:
    return DecodingConfig.model_validate({"max_extra_tokens": 6, "beam": 3, **settings})


def run(
    models: list[Transformer], sources: list[Source], config: DecodingConfig, *, nbest: int = 1
) -> list[list[Hypothesis]]:
    return search(models, sources, config=config, nbest=nbest, device=CPU)


@pytest.mark.parametrize("beam", [1, 3])
def test_translations_begin_with_their_prefix_and_go_on_as_the_best_do(beam: int) -> None:
    model = random_model(1, vocab=VOCAB, sharpness=2.0)
    rows = random_rows(1, count=12, vocab=VOCAB, longest=8)
    prefixes = [[4 + (number * 5 + place) % 19 for place in range(number % 4)] for number in range(12)]
    found = run([model], [Source(row, prefix) for row, prefix in zip(rows, prefixes, strict=True)], decoding(beam=beam))
    for row, prefix, (best,) in zip(rows, prefixes, found, strict=True):
        limit = len(row) + 6
        assert best.ids[: len(prefix)] == prefix
        forced = reference.forced_log_prob(model, row, best.ids, limit=limit)
        assert best.log_prob == pytest.approx(forced, abs=1e-5)
    free = run([model], [Source(row) for row in rows], decoding(beam=beam))
    own = [Source(row, best.ids[:2]) for row, (best,) in zip(rows, free, strict=True)]
    if beam == 1:
        assert [best.ids for (best,) in run([model], own, decoding(beam=beam))] == [best.ids for (best,) in free]


def test_a_prefix_beyond_the_limit_is_kept_whole() -> None:
    model = random_model(2, vocab=VOCAB)
    prefix = [5, 6, 7, 8, 9]
    for beam in (1, 3):
        ((best,),) = run([model], [Source([4], prefix)], decoding(beam=beam, max_extra_tokens=1))
        assert best.ids[:5] == prefix
        assert len(best.ids) <= 6


@pytest.mark.parametrize("beam", [1, 4])
def test_no_translation_ends_before_min_tokens(beam: int) -> None:
    model = random_model(3, vocab=VOCAB, sharpness=3.0)
    sources = [Source(row) for row in random_rows(3, count=20, vocab=VOCAB, longest=6)]
    free = run([model], sources, decoding(beam=beam))
    assert min(len(best.ids) for (best,) in free) < 4
    for source, (best,) in zip(sources, run([model], sources, decoding(beam=beam, min_tokens=4)), strict=True):
        limit = len(source.row) + 6
        assert len(best.ids) >= 4
        assert best.log_prob == pytest.approx(
            reference.forced_log_prob(model, source.row, best.ids, limit=limit), abs=1e-5
        )


@pytest.mark.parametrize("beam", [1, 4])
def test_an_ensemble_is_the_mean_of_probabilities(beam: int) -> None:
    models = [random_model(seed, vocab=VOCAB, sharpness=2.0) for seed in (4, 5, 6)]
    rows = random_rows(4, count=15, vocab=VOCAB, longest=7)
    for row, (best,) in zip(rows, run(models, [Source(row) for row in rows], decoding(beam=beam)), strict=True):
        limit = len(row) + 6
        gold = best.ids + ([3] if len(best.ids) < limit else [])
        total = 0.0
        for place, piece in enumerate(gold):
            each = [reference.next_log_probs(model, row, [gold[:place]])[0][piece] for model in models]
            total += math.log(sum(map(math.exp, each)) / 3)
        assert best.log_prob == pytest.approx(total, abs=1e-4)
    alone = run(models[:1], [Source(row) for row in rows], decoding(beam=beam))
    twice = run([models[0], models[0]], [Source(row) for row in rows], decoding(beam=beam))
    assert [best.ids for (best,) in alone] == [best.ids for (best,) in twice]


def test_draws_hang_on_the_key_and_the_seed_alone() -> None:
    model = random_model(7, vocab=VOCAB)
    rows = random_rows(7, count=30, vocab=VOCAB, longest=7)
    sources = [Source(row, key=str(number)) for number, row in enumerate(rows)]
    config = decoding(samples=3, seed=5)
    together = run([model], sources, config, nbest=3)
    alone = [run([model], [source], config, nbest=3)[0] for source in sources]
    mixed = Batches([model], device=CPU, fixed=None).search(
        sources[::-1], config=decoding(samples=3, seed=5, batch_tokens=90), nbest=3
    )
    for ours, single, other in zip(together, alone, mixed[::-1], strict=True):
        assert [one.ids for one in ours] == [one.ids for one in single] == [one.ids for one in other]
    again = run([model], sources, decoding(samples=3, seed=6), nbest=3)
    assert [one.ids for (one, *_) in again] != [one.ids for (one, *_) in together]
    other_keys = run([model], [Source(row, key="x") for row in rows], config, nbest=3)
    assert [one.ids for (one, *_) in other_keys] != [one.ids for (one, *_) in together]


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
def test_draws_have_the_models_distribution(settings: dict[str, Any], num_possible: int | None) -> None:
    model = random_model(8, vocab=VOCAB, sharpness=1.5)
    row, count = [5, 6, 7], 1000
    config = decoding(samples=count, max_extra_tokens=0, **settings)
    (drawn,) = run([model], [Source(row, key="1")], config, nbest=count)
    first = Counter(one.ids[0] if one.ids else 3 for one in drawn)
    log_probs = torch.tensor(reference.next_log_probs(model, row, [[]])[0]).double()
    log_probs[:3] = -math.inf
    weights = (log_probs / settings.get("temperature", 1.0)).softmax(0)
    ranked = weights.sort(descending=True)
    kept = torch.ones(VOCAB, dtype=torch.bool)
    if "top_k" in settings:
        kept[ranked.indices[settings["top_k"] :]] = False
        weights = weights.where(kept, 0) / weights.where(kept, 0).sum()
        ranked = weights.sort(descending=True)
    if "top_p" in settings:
        is_beyond = ranked.values.cumsum(0) - ranked.values >= settings["top_p"]
        kept[ranked.indices[is_beyond]] = False
    weights = weights.where(kept, 0) / weights.where(kept, 0).sum()
    if num_possible is not None:
        assert len(first) <= num_possible
    for piece in range(VOCAB):
        # Five standard deviations of a frequency of 1,000 draws.
        p = float(weights[piece])
        assert abs(first[piece] / count - p) <= 5 * math.sqrt(p * (1 - p) / count) + 1e-9
    for one in drawn[:50]:
        assert one.log_prob == pytest.approx(reference.forced_log_prob(model, row, one.ids, limit=3), abs=1e-4)
