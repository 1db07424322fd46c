"""Translations without a second occurrence of an n-gram, and without loops: against searches without a beam."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from nmt_cli.decoding.search.hypotheses import SourceSentence
from nmt_cli.decoding.search.repetition import has_cycle
from tests.decoding import reference
from tests.decoding.reference import (
    EOS,
    assert_same,
    decoding,
    gnmt,
    in_float64,
    random_model,
    random_rows,
    search,
    search_in_batches,
)


def repeats_ngram(ids: Sequence[int], length: int) -> bool:
    ngrams = [tuple(ids[start : start + length]) for start in range(len(ids) - length + 1)]
    return len({*ngrams}) < len(ngrams)


def begins_unit_again(ids: Sequence[int], *, times: int = 3) -> bool:
    """Whether some unit stands `times` times in a row, and its first piece once more, as a pattern on text finds it."""
    text = "".join(f"<{piece}>" for piece in ids)
    return re.search(rf"((<\d+>)(?:<\d+>)*?)\1{{{times - 1}}}\2", text) is not None


NO_UNIGRAM, NO_BIGRAM, NO_LOOP = {"no_repeat_ngram": 1}, {"no_repeat_ngram": 2}, {"stop_loops": True}


@pytest.mark.parametrize(
    ("settings", "is_wrong"),
    [
        (NO_UNIGRAM, lambda ids: repeats_ngram(ids, 1)),
        (NO_BIGRAM, lambda ids: repeats_ngram(ids, 2)),
        (NO_LOOP, begins_unit_again),
    ],
)
def test_beam_that_keeps_every_prefix_is_exhaustive_search_without_repetition(
    settings: dict[str, object], is_wrong: Callable[[Sequence[int]], bool]
) -> None:
    limit, vocab = 5, 7
    model = random_model(1, vocab=vocab, sharpness=3)
    source = [5, 6]
    found = reference.all_translations(in_float64(model), source, vocab=vocab, limit=limit)
    scored = [replace(one, score=one.log_prob / gnmt(0.6)(min(len(one.ids) + 1, limit))) for one in found]
    allowed = [one for one in scored if not is_wrong(one.ids)]
    assert 10 < len(allowed) < len(scored)
    expected = sorted(allowed, key=lambda one: -one.score)[:20]
    config = decoding(beam=3**limit, max_extra_tokens=3, **settings)
    assert_same(search([model], [SourceSentence(source)], config=config, nbest=20), [expected])


@pytest.mark.parametrize("settings", [NO_UNIGRAM, NO_BIGRAM, {"no_repeat_ngram": 3}, NO_LOOP, NO_BIGRAM | NO_LOOP])
def test_greedy_search_takes_the_best_piece_that_repeats_nothing(settings: dict[str, int]) -> None:
    model = random_model(2, vocab=31, sharpness=2)
    rows = random_rows(2, count=12, vocab=31, longest=6)
    config = decoding(beam=1, max_extra_tokens=25, **settings)
    free = search_in_batches(model, rows, config=decoding(beam=1, max_extra_tokens=25))
    found = search_in_batches(model, rows, config=config)
    assert found != free
    exact = in_float64(model)
    for row, (ours,) in zip(rows, found, strict=True):
        ids: list[int] = []
        while len(ids) < len(row) + 25:
            (log_probs,) = reference.next_log_probs(exact, row, [ids])
            pieces = sorted(range(EOS, 31), key=lambda piece: -log_probs[piece])
            is_wrong = [
                (settings.get("no_repeat_ngram", 0) > 0 and repeats_ngram([*ids, piece], settings["no_repeat_ngram"]))
                or (settings.get("stop_loops", 0) and begins_unit_again([*ids, piece]))
                for piece in pieces
            ]
            best = pieces[is_wrong.index(False)]
            if best == EOS:
                break
            ids.append(best)
        assert ours.ids == ids


@pytest.mark.parametrize("settings", [{"beam": 4}, {"samples": 3, "temperature": 0.3, "beam": 4}])
def test_no_search_repeats_what_it_may_not_whatever_its_batch(settings: dict[str, object]) -> None:
    model = random_model(5, vocab=23, sharpness=3)
    rows = random_rows(5, count=30, vocab=23, longest=9)
    free = decoding(max_extra_tokens=40, **settings)
    loops = [begins_unit_again(one.ids) for ranked in search_in_batches(model, rows, config=free) for one in ranked]
    assert any(loops)
    bound = decoding(max_extra_tokens=40, **settings, **NO_LOOP)
    together = search_in_batches(model, rows, config=bound, nbest=3)
    assert not any(begins_unit_again(one.ids) for ranked in together for one in ranked)
    bigrams = search_in_batches(model, rows, config=decoding(max_extra_tokens=40, **settings, **NO_BIGRAM), nbest=3)
    assert not any(repeats_ngram(one.ids, 2) for ranked in bigrams for one in ranked)
    for number in (0, 7, 29):
        alone = search([model], [SourceSentence(rows[number], key=str(number))], config=bound, nbest=3)
        assert_same(alone, [together[number]])


@pytest.mark.parametrize(
    ("source", "translation", "loops"),
    [
        ([4, 5, 6], [7, 7, 7], False),
        ([4, 5, 6], [7, 7, 7, 7], True),
        ([4, 5, 6], [9, 7, 8, 7, 8, 7, 8], False),
        ([4, 5, 6], [9, 7, 8, 7, 8, 7, 8, 7], True),
        ([4, 5, 5, 5, 5, 5, 6], [7, 7, 7, 7, 7], False),  # very, very, very, very, very
        ([4, 5, 5, 5, 5, 5, 6], [7, 7, 7, 7, 7, 7], True),
        ([5, 9, 5, 9, 5, 9, 5], [7, 8, 7, 8, 7, 8, 7], False),  # a list: 5, 5, 5, 5
        ([5, 5, 5, 5, 5], [7, 8, 7, 8, 7, 8, 7, 8, 7, 8], False),  # a unit of another length
        ([5, 5, 5, 5, 5], [*range(10, 30)] * 5, True),  # but not of any length
    ],
)
def test_a_translation_has_a_unit_as_often_as_its_source(
    source: list[int], translation: list[int], loops: bool
) -> None:
    assert has_cycle(source, translation) is loops
