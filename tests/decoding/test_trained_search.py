"""Search by a trained model: the naive search's lists and scores, whatever the batch and the threads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nmt_cli.api import Translator
from nmt_cli.artifacts import model_directory
from nmt_cli.artifacts.model_directory import LoadedModel
from nmt_cli.recipe.schema import DecodingConfig
from tests.decoding import reference
from tests.decoding.reference import CPU, search_in_batches
from tests.decoding.trained import TEST

BEAM, EXTRA = 4, 5
# Float32 sums of some ten log-probabilities against float64.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def loaded(trained: Path) -> LoadedModel:
    return model_directory.load_model(trained, device=CPU, dtype=torch.float32)


@pytest.fixture(scope="module")
def rows(loaded: LoadedModel) -> list[list[int]]:
    return loaded.source.encode([source for source, _ in TEST[:100]])


def config(**settings: object) -> DecodingConfig:
    return DecodingConfig.model_validate({"beam": BEAM, "max_extra_tokens": EXTRA, **settings})


def test_nbest_lists_of_100_sentences_are_the_naive_ones(loaded: LoadedModel, rows: list[list[int]]) -> None:
    expected = reference.naive_beam_searches(
        reference.in_float64(loaded.model),
        rows,
        beam=BEAM,
        limits=[len(row) + EXTRA for row in rows],
        penalty=reference.gnmt(0.6),
    )
    found = search_in_batches(loaded.model, rows, config=config(), nbest=BEAM)
    assert len(found) == 100
    num_same = 0
    for ours, wanted in zip(found, expected, strict=True):
        for got, want in zip(ours, wanted[:BEAM], strict=True):
            assert got.score == pytest.approx(want.score, abs=TOLERANCE)
            assert got.log_prob == pytest.approx(want.log_prob, abs=TOLERANCE) or got.ids != want.ids
        num_same += [one.ids for one in ours] == [one.ids for one in wanted[:BEAM]]
    # Where two scores are the same to 1e-6, float32 may order them otherwise.
    assert num_same >= 99
    assert len({len(one.ids) for ranked in found for one in ranked}) > 5


def test_threads_change_nothing(trained: Path) -> None:
    translator = Translator.from_pretrained(trained, device="cpu")
    lines = [source for source, _ in TEST[:100]]
    before = torch.get_num_threads()
    by_one = translator.translate(lines, batch_tokens=400, alignments=True)
    try:
        torch.set_num_threads(2)
        by_two = translator.translate(lines, batch_tokens=400, alignments=True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert [(one.text, one.alignment) for one in by_one] == [(one.text, one.alignment) for one in by_two]
    for one, other in zip(by_one, by_two, strict=True):
        assert one.score == pytest.approx(other.score, abs=TOLERANCE)


def test_piece_log_probs_are_the_terms_of_the_forced_score(loaded: LoadedModel, rows: list[list[int]]) -> None:
    exact = reference.in_float64(loaded.model)
    found = search_in_batches(loaded.model, rows[:20], config=config(), nbest=2)
    for row, ranked in zip(rows[:20], found, strict=True):
        for one in ranked:
            limit = len(row) + EXTRA
            assert len(one.piece_log_probs) == min(len(one.ids) + 1, limit)
            for length in range(1, len(one.ids)):
                forced = reference.forced_log_prob(exact, row, one.ids[:length], limit=length)
                assert sum(one.piece_log_probs[:length]) == pytest.approx(forced, abs=TOLERANCE)
            assert sum(one.piece_log_probs) == pytest.approx(one.log_prob, abs=TOLERANCE)
