"""A model trained in the test: its exports agree, in translations and in BLEU, and int8 costs next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import sentencepiece

from nmt_cli.api import Translator
from nmt_cli.interchange.exporting import export
from nmt_cli.scoring.metrics import bleu
from tests.decoding.trained import HELD_OUT, shared_model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that translates such sentences well, though not perfectly."""
    return shared_model(tmp_path_factory)


def score(texts: Sequence[str]) -> float:
    return bleu(texts, [target for _, target in HELD_OUT], target_language="de").value


def by_ctranslate2(model: Path) -> list[str]:
    """The test sentences' translations as in docs/how-to/export.md: GNMT's penalty over CTranslate2's n-best lists."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(model / f"{side}.spm")) for side in ("source", "target")
    )
    pieces = source.encode([src for src, _ in HELD_OUT], out_type=str)
    translator = ctranslate2.Translator(str(model), device="cpu", intra_threads=1)
    found = translator.translate_batch(
        pieces, beam_size=4, patience=2, num_hypotheses=8, length_penalty=0.6, return_scores=True, disable_unk=True
    )
    texts = []
    for result in found:
        lengths = [len(hypothesis) + 1 for hypothesis in result.hypotheses]  # with EOS
        log_probs = [score * length**0.6 for score, length in zip(result.scores, lengths, strict=True)]
        scores = [value / ((5 + length) / 6) ** 0.6 for value, length in zip(log_probs, lengths, strict=True)]
        texts.append(str(target.decode(result.hypotheses[scores.index(max(scores))])))
    return texts


def test_ctranslate2_has_the_models_bleu_in_int8(trained: Path, tmp_path: Path, a_hundred_lines: int) -> None:
    pytest.importorskip("ctranslate2")
    ours = score([found.text for found in Translator.from_pretrained(trained).translate([src for src, _ in HELD_OUT])])
    assert ours > 60
    lines = [src for src, _ in HELD_OUT]
    agreement = export(trained, tmp_path / "x", to="ctranslate2", quantization="int8", lines=lines, overwrite=False)
    assert agreement is not None
    assert agreement.num_lines == a_hundred_lines
    assert abs(score(by_ctranslate2(tmp_path / "x")) - ours) <= 0.5
    assert agreement.mean_difference < 0.1


def test_transformers_translates_as_we_do(trained: Path, tmp_path: Path, a_hundred_lines: int) -> None:
    pytest.importorskip("transformers")
    agreement = export(trained, tmp_path / "x", to="huggingface", quantization="float32", lines=None, overwrite=False)
    assert agreement is not None
    assert agreement.num_lines == a_hundred_lines
    assert agreement.largest_difference < 2e-4  # Marian's epsilon of 1e-5 and ours of 1e-6
    lines = [src for src, _ in HELD_OUT[:100]]
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "x")
    model = transformers.MarianMTModel.from_pretrained(tmp_path / "x")
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    theirs = tokenizer.batch_decode(model.generate(**batch, num_beams=1), skip_special_tokens=True)
    ours = Translator.from_pretrained(trained, device="cpu").translate(lines, beam=1)
    # Where the model goes on without an end, both stop it at limits of their own.
    ended = [(text, found.text) for text, found in zip(theirs, ours, strict=True) if found.num_pieces < 35]
    assert len(ended) >= 95
    assert [text for text, _ in ended] == [text for _, text in ended]
