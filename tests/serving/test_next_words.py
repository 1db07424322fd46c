"""The words that may come next, and the best translation with each of them."""

from __future__ import annotations

import pytest
import torch

from nmt_cli.artifacts.model_directory import LoadedModel, load_model
from nmt_cli.decoding.translation import Translation
from nmt_cli.model.packing import pack
from nmt_cli.serving.worker_model import best_by_next_word, likely_next_pieces
from nmt_cli.tokenization.tokenizer import BOS, EOS
from tests.artifacts.builders import EN_DE, save_tiny, tiny_recipe

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("words")
    save_tiny(folder / "model", spm_folder=folder, recipe=tiny_recipe(model={"output_bias": True}))
    return load_model(folder / "model", device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("prefix", ["", "das alte"])
def test_beginnings_of_words_come_by_probability_and_unlikely_ones_not_at_all(loaded: LoadedModel, prefix: str) -> None:
    model, tokenizer = loaded.model, loaded.target
    source, begun = loaded.source.encode(["the old sea"])[0], tokenizer.encode([prefix])[0]
    starts = {piece[1:]: number for number, piece in enumerate(tokenizer.pieces(range(300))) if piece[0] == "\u2581"}
    del starts[""]
    assert len(starts) == 3
    bias = model.output_bias
    assert bias is not None
    packed, target = pack([[*source, EOS]], device=CPU), pack([[BOS, *begun]], device=CPU)
    with torch.no_grad():
        # Three pieces with 60, 40 and 0.01 % of what all have together.
        logits = model.logits(model.decode(target, model.encode(packed), packed))[-1]
        bias[: len(logits)].sub_(logits + 20)
        for number, share in zip(starts.values(), (0.4, 0.6, 1e-4), strict=True):
            bias[number] += 20 + torch.tensor(share).log()
    likely = list(starts)[1::-1]
    found = likely_next_pieces(loaded, "the old sea", prefix, direction=EN_DE, count=9, device=CPU)
    assert found == likely
    assert likely_next_pieces(loaded, "the old sea", prefix, direction=EN_DE, count=1, device=CPU) == likely[:1]


def test_of_each_word_the_best_translation_counts() -> None:
    def made(text: str, score: float) -> Translation:
        return Translation(text, score, score, 3)

    given = [made("a b c", -3), made("a x c", -2), made("a b d", -1), made("y b", -0.5), made("a", -0.1)]
    best = best_by_next_word(given, " a ")
    assert [(word, one.text) for word, one in best.items()] == [("b", "a b d"), ("x", "a x c")]
    assert best_by_next_word(given, "z") == {}
