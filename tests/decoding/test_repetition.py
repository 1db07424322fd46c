"""Translations without a second occurrence of an n-gram, and without loops: against searches without a beam."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nmt_cli.api import Translator
from nmt_cli.decoding.search.hypotheses import SourceSentence
from nmt_cli.decoding.search.repetition import allowed_runs, has_loop
from tests.artifacts.builders import save_tiny, tiny_recipe
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
from tests.decoding.trained import HELD_OUT


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
        ("very good", "sehr sehr sehr gut", False),
        ("very good", "sehr sehr sehr sehr gut", True),
        ("a b", "ein, ein, ein, ein, Haus", True),
        ("very very very very very good", "sehr sehr sehr sehr sehr gut", False),
        ("very very very very very good", "sehr sehr sehr sehr sehr sehr gut", True),
        ("one trillion", "1 000 000 000 000 oder 1000000000000", True),
        ("one billion", "1 000 000 000 oder 1000000000", False),
        ("well" + "." * 30, "nun" + "." * 30, False),
        ("well...", "nun" + "." * 30, True),
        ("magazines", "Zeitschriftenschriftenschriftenschriften", True),
        ("hahahahahahahahahaha", "hahahahahahahahahaha", False),
        ("今天天气很好", "天气天气天气天气天气天气天气天气", True),
        ("", "", False),
    ],
)
def test_a_translation_repeats_no_more_than_its_source(source: str, translation: str, loops: bool) -> None:
    assert has_loop(source, translation) is loops


@pytest.mark.parametrize(
    ("source", "length", "allowed"),
    [
        ([4, 5, 6], 1, 2),
        ([4, 5, 6], 2, 4),
        ([4, 5, 5, 5, 5, 5, 6], 1, 4),  # very, very, very, very, very
        ([5, 9, 5, 9, 5, 9, 5], 2, 5),  # a list: 5, 5, 5, 5
        ([5, 5, 5, 5, 5], 2, 8),  # a unit of another length
        ([5, 5, 5, 5, 5], 20, 40),  # but not of any length
    ],
)
def test_a_search_allows_a_unit_as_often_as_its_source_has_one(source: list[int], length: int, allowed: int) -> None:
    assert allowed_runs(source)[length - 1] == allowed


def test_what_has_no_loop_stays_in_a_list_where_another_has_one(tmp_path: Path) -> None:
    save_tiny(tmp_path / "model", spm_folder=tmp_path, recipe=tiny_recipe(), seed=3)
    translator = Translator.from_pretrained(tmp_path / "model", device="cpu")
    lines = [" ".join(source.split()[:3]) for source, _ in HELD_OUT[:60]]
    free, bound = (
        [
            [one.text for one in (best, *best.alternatives)]
            for best in translator.translate(lines, nbest=6, beam=6, max_extra_tokens=4, stop_loops=stops)
        ]
        for stops in (False, True)
    )
    num_mixed = 0
    for line, before, after in zip(lines, free, bound, strict=True):
        without = [text for text in before if not has_loop(line, text)]
        num_mixed += 0 < len(without) < len(before)
        assert {*without} <= {*after}
    assert num_mixed > 5
