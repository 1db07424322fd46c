"""What the comparison of two programs lets pass, and what it refuses, with an engine that is ours in disguise.

conftest.py lowers `NUM_LINES` to 20, except for tests with `a_hundred_lines`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from nmt_cli.artifacts.model_directory import LoadedModel
from nmt_cli.errors import ModelError
from nmt_cli.interchange.verification import random_lines, usable_lines, verify
from nmt_cli.model.teacher_forcing import forced_log_probs
from nmt_cli.tokenization.tokenizer import BOS, EOS
from tests.interchange.builders import CPU, load, save_sharp

Pieces = list[list[str]]


class Mirror:
    """An engine that computes with our own model, but for what a test changes."""

    name = "the mirror"

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        pieces: Callable[[Pieces], Pieces] = lambda rows: rows,
        scores: Callable[[list[float]], list[float]] = lambda row: row,
    ) -> None:
        self._loaded, self._pieces, self._scores = loaded, pieces, scores

    def encode(self, lines: Sequence[str]) -> Pieces:
        source = self._loaded.source
        return self._pieces([source.pieces(row) for row in source.encode(lines)])

    def log_probs(self, sources: Sequence[list[str]], targets: Sequence[list[str]]) -> list[list[float]]:
        rows, wanted = ([[*ids, EOS] for ids in self._ids(side)] for side in (sources, targets))
        found = forced_log_probs(self._loaded.model, rows, wanted, bos=BOS, device=CPU)
        return [self._scores(row) for row in found]

    def _ids(self, rows: Sequence[list[str]]) -> list[list[int]]:
        pieces = self._loaded.source.pieces(range(self._loaded.source.vocab_size))
        ids = {piece: number for number, piece in enumerate(pieces)}
        return [[ids[piece] for piece in row] for row in rows]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(save_sharp(tmp_path_factory.mktemp("models") / "m"))


def test_a_model_agrees_with_itself(loaded: LoadedModel) -> None:
    lines = random_lines(loaded)
    agreement = verify(loaded, Mirror(loaded), lines, is_reduced=False)
    assert (agreement.largest_difference, agreement.num_lines) == (0, len(lines))


def test_scores_that_are_off_are_refused_unless_the_precision_is_reduced(loaded: LoadedModel) -> None:
    lines = random_lines(loaded)

    def off(by: float) -> Mirror:
        return Mirror(loaded, scores=lambda row: [row[0] + by, *row[1:]])

    assert verify(loaded, off(5e-4), lines, is_reduced=False).largest_difference == pytest.approx(5e-4, rel=0.01)
    with pytest.raises(ModelError, match="the mirror is not the same model as ours: it gives other scores") as caught:
        verify(loaded, off(2e-3), lines, is_reduced=False)
    assert "please report it" in caught.value.hint
    verify(loaded, off(0.05), lines, is_reduced=True)
    with pytest.raises(ModelError, match="the mirror changes the model too much"):
        verify(loaded, Mirror(loaded, scores=lambda row: [value + 0.3 for value in row]), lines, is_reduced=True)
    with pytest.raises(ModelError, match="the mirror changes the model too much"):
        verify(loaded, Mirror(loaded, scores=lambda row: [torch.nan] * len(row)), lines, is_reduced=True)
    with pytest.raises(ModelError, match="pieces where there are"):
        verify(loaded, Mirror(loaded, scores=lambda row: row[:-1]), lines, is_reduced=False)


def test_other_pieces_are_refused(loaded: LoadedModel) -> None:
    lines = random_lines(loaded)
    with pytest.raises(ModelError, match="it makes other pieces of the line"):
        verify(loaded, Mirror(loaded, pieces=lambda rows: [row[:-1] for row in rows]), lines, is_reduced=False)


def test_random_lines_are_spelt_in_the_models_pieces(loaded: LoadedModel, a_hundred_lines: int) -> None:
    lines = random_lines(loaded)
    assert lines == random_lines(loaded)
    assert len(set(lines)) == len(lines) == a_hundred_lines
    used = {piece for row in loaded.source.encode(lines) for piece in row}
    assert len(used) > 30


def test_usable_lines_are_spread_and_unusable_lines_left_out(loaded: LoadedModel, a_hundred_lines: int) -> None:
    good = [f"house {number}" for number in range(250)]
    bad = ["", "  ", "a ▁ mark", "a </s> mark", "old " * 80]
    assert usable_lines([*bad, *good, *bad, *good], loaded) == [
        good[index * 250 // a_hundred_lines] for index in range(a_hundred_lines)
    ]
