"""CTranslate2's search, translation for translation, against a search that is easy to believe."""

from __future__ import annotations

import logging
import os
import re
import socket
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt_cli import files
from nmt_cli.api import Translator
from nmt_cli.artifacts import model_directory
from nmt_cli.decoding.ctranslate2 import engine as ctranslate2_engine
from nmt_cli.decoding.ctranslate2.engine import CTranslate2Engine
from nmt_cli.decoding.engine import Engine, open_engine
from nmt_cli.decoding.search.hypotheses import NO_SYMBOLS, Details, SourceSentence
from nmt_cli.decoding.settings import with_overrides
from nmt_cli.decoding.terms import TermList
from nmt_cli.errors import ModelError
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.scoring.forced_decoding import ForcedDecoder
from nmt_cli.tokenization.tokenizer import EOS
from tests.artifacts.builders import EN_DE, save_tiny, tiny_model, tiny_recipe
from tests.decoding import reference
from tests.decoding.trained import HELD_OUT

pytest.importorskip("ctranslate2")
DETAILS = Details(piece_log_probs=False, alignment=False)


def opened(model: Path, *, engine: str = "ctranslate2", precision: str = "fp32") -> Engine:
    return open_engine([model], engine=engine, device="cpu", precision=precision)


def translated(model: Path) -> str:
    (found,) = Translator.from_pretrained(model, engine="ctranslate2").translate(["the old sea"])
    return found.text


def biased_model(folder: Path, *, specials: float, eos: float) -> Transformer:
    """A random model, saved as `folder`/model, with these biases of the pieces never generated and of the end."""
    recipe = tiny_recipe(model={"output_bias": True}, decoding={"beam": 4, "max_extra_tokens": 4})
    model = tiny_model(recipe)
    assert model.output_bias is not None
    with torch.no_grad():
        model.output_bias[:EOS] = specials
        model.output_bias[EOS] = eos
    save_tiny(folder / "model", spm_folder=folder, recipe=recipe, model=model)
    return reference.in_float64(model)


@pytest.mark.parametrize("eos_bias", [-50.0, 2.0, 4.0])
def test_what_ctranslate2_finds_is_ours_but_for_ends_beyond_the_beam(tmp_path: Path, eos_bias: float) -> None:
    """Flat models: what is best is close to what is not, and special pieces are as likely as others."""
    exact = biased_model(tmp_path, specials=0.0, eos=eos_bias)
    engine = opened(tmp_path / "model")
    rows = reference.random_rows(1, count=12, vocab=300, longest=5)
    found = engine.search([SourceSentence(row) for row in rows], config=engine.decoding, nbest=4, details=DETAILS)
    expected = reference.naive_beam_searches(
        exact,
        rows,
        beam=4,
        limits=[len(row) + 4 for row in rows],
        penalty=reference.gnmt(engine.decoding.length_penalty),
        ending_share=0.5,
    )
    reference.assert_same(found, [ranked[:4] for ranked in expected], tolerance=1e-4)


def test_special_pieces_are_not_generated_however_likely(tmp_path: Path) -> None:
    exact = biased_model(tmp_path, specials=4.0, eos=2.0)
    engine = opened(tmp_path / "model")
    rows = reference.random_rows(1, count=8, vocab=300, longest=5)
    found = engine.search([SourceSentence(row) for row in rows], config=engine.decoding, nbest=2, details=DETAILS)
    for row, ranked in zip(rows, found, strict=True):
        for one in ranked:
            assert min(one.ids, default=EOS + 1) > EOS
            forced = reference.forced_log_prob(exact, row, one.ids, limit=len(row) + 4)
            assert one.log_prob == pytest.approx(forced, abs=1e-4)


@pytest.mark.parametrize("beam", [1, 4])
def test_no_ngram_occurs_twice_and_scores_stay_exact(tmp_path: Path, beam: int) -> None:
    exact = biased_model(tmp_path, specials=0.0, eos=-50.0)
    engine = opened(tmp_path / "model")
    rows = reference.random_rows(1, count=8, vocab=300, longest=5)
    settings = {"beam": beam, "max_extra_tokens": 30, "no_repeat_ngram": 2}
    config = with_overrides(engine.decoding, settings)
    found = engine.search([SourceSentence(row) for row in rows], config=config, nbest=1, details=DETAILS)
    for row, (one,) in zip(rows, found, strict=True):
        bigrams = list(pairwise(one.ids))
        assert len({*bigrams}) == len(bigrams) > 20
        forced = reference.forced_log_prob(exact, row, one.ids, limit=len(row) + 30)
        assert one.log_prob == pytest.approx(forced, abs=1e-3)


def test_a_search_that_stops_loops_has_no_three_pieces_twice(tmp_path: Path) -> None:
    biased_model(tmp_path, specials=0.0, eos=-50.0)
    engine = opened(tmp_path / "model")
    sources = [SourceSentence(row) for row in reference.random_rows(1, count=8, vocab=300, longest=5)]
    settings = {"beam": 1, "max_extra_tokens": 60}
    texts = []
    for config in (with_overrides(engine.decoding, settings | {"stop_loops": stops}) for stops in (False, True)):
        found = engine.search(sources, config=config, nbest=1, details=DETAILS)
        texts.append(["".join(f"<{piece}>" for piece in one.ids) for (one,) in found])
    has_cycle = re.compile(r"((?:<\d+>)+?)\1\1\1")
    assert any(map(has_cycle.search, texts[0]))
    assert not any(map(has_cycle.search, texts[1]))


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
@pytest.mark.parametrize("beam", [1, 4])
def test_no_text_has_an_empty_translation(tmp_path: Path, engine: str, beam: int) -> None:
    biased_model(tmp_path, specials=0.0, eos=50.0)
    translator = Translator.from_pretrained(tmp_path / "model", engine=engine)
    text, blank = translator.translate(["the old sea", " "], beam=beam)
    assert text.text
    assert not blank.text


def test_terms_are_in_the_translation(trained: Path) -> None:
    translator = Translator.from_pretrained(trained, engine="ctranslate2")
    terms = TermList({"dog": ["Köter"]})
    (translation,) = translator.translate(["the dog sees a house"], terms=terms)
    assert "Köter" in translation.text.split()
    assert translation.unmet_terms == ()


def test_no_penalty_is_none(tmp_path: Path) -> None:
    """CTranslate2 ends a search otherwise where it has no penalty of its own."""
    recipe = tiny_recipe(decoding={"beam": 3, "max_extra_tokens": 3, "length_penalty_form": "none"})
    save_tiny(tmp_path / "model", spm_folder=tmp_path, recipe=recipe)
    rows = reference.random_rows(2, count=12, vocab=300, longest=6)
    both = [
        engine.search([SourceSentence(row) for row in rows], config=engine.decoding, nbest=3, details=DETAILS)
        for engine in (opened(tmp_path / "model", engine=name) for name in ("torch", "ctranslate2"))
    ]
    for ours, theirs in zip(*both, strict=True):
        assert [one.ids for one in ours] == [one.ids for one in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert other.score == other.log_prob == pytest.approx(one.log_prob, abs=1e-4)


@pytest.mark.parametrize("engine", ["ctranslate2", "torch"])
def test_finite_weights_whose_outputs_are_not_finite_are_an_error(tmp_path: Path, engine: str) -> None:
    model = tiny_model(tiny_recipe())
    with torch.no_grad():
        model.output_weight.fill_(1e38)
    save_tiny(tmp_path / "model", spm_folder=tmp_path, model=model)
    with pytest.raises(ModelError, match="outputs are not finite"):
        Translator.from_pretrained(tmp_path / "model", engine=engine).translate(["the old sea"])
    forced = ForcedDecoder(tmp_path / "model", direction=EN_DE, device="cpu", precision="fp32", max_tokens=None)
    with pytest.raises(ModelError, match="outputs are not finite"):
        list(forced.scores(["the old sea"], ["the sea"]))


@pytest.mark.parametrize(("beam", "tokens"), [(1, 4096), (4, 1024)])
def test_batches_hold_64_sentences_of_like_length(trained: Path, beam: int, tokens: int) -> None:
    config = DecodingConfig(beam=beam, batch_tokens=8192)
    lengths = [3 + place * 7 % 40 for place in range(250)]
    engine = CTranslate2Engine(trained, precision="fp32")
    batches = engine._plan(lengths, [[length] for length in lengths], config=config)
    in_order = [lengths[index] for batch in batches for index in batch]
    assert in_order == sorted(lengths, reverse=True)
    assert max(map(len, batches)) <= 64
    assert all(len(batch) * (1 + max(lengths[index] for index in batch)) <= tokens for batch in batches)


def test_other_batches_change_no_translation(trained: Path) -> None:
    engine = opened(trained)
    sources = [SourceSentence(row) for row in engine.source.encode([source for source, _ in HELD_OUT[:60]])]
    config = engine.decoding.model_copy(update={"max_extra_tokens": 0})  # which cuts many, each at its own length
    found = [
        engine.search(
            sources, config=config.model_copy(update={"batch_tokens": tokens, "beam": beam}), nbest=1, details=DETAILS
        )
        for beam in (1, 4)
        for tokens in (8192, 300)
    ]
    for some, others in (found[:2], found[2:]):
        for (one,), (other,) in zip(some, others, strict=True):
            assert one.ids == other.ids
            assert one.score == pytest.approx(other.score, abs=1e-4)


def test_in_int8_short_sentences_are_not_padded_to_long_ones(tmp_path: Path) -> None:
    """Across 16 columns attention is rounded otherwise, which 8 bits magnify."""
    save_tiny(tmp_path / "model", spm_folder=tmp_path)
    lengths = [3 + place * 7 % 40 for place in range(100)]
    asked = [ctranslate2_engine._Sentence(["a"] * length, ["b"], NO_SYMBOLS, 99) for length in lengths]
    mixed = {}
    for precision in ("fp32", "int8"):
        engine = opened(tmp_path / "model", precision=precision)
        assert isinstance(engine, CTranslate2Engine)
        batches = list(engine._batches(asked, config=engine.decoding))
        assert sorted(len(one.pieces) for batch in batches for one in batch) == sorted(lengths)
        mixed[precision] = sum(len({len(one.pieces) + 1 < 16 for one in batch}) == 2 for batch in batches)
    assert mixed == {"fp32": 1, "int8": 0}


def test_in_int8_short_pairs_are_not_scored_or_aligned_with_long_ones(tmp_path: Path) -> None:
    save_tiny(tmp_path / "model", spm_folder=tmp_path)
    engine = CTranslate2Engine(tmp_path / "model", precision="int8")
    lengths = [3 + place * 7 % 30 for place in range(40)]
    rows = [[20] * length for length in lengths]
    pairs = [(engine.source.pieces(row), other) for row, other in zip(rows, rows[7:] + rows[:7], strict=True)]
    widths: list[set[tuple[bool, bool]]] = []

    def score(sources: list[list[str]], targets: list[list[str]], **options: Any) -> Any:
        both = zip(sources, targets, strict=True)
        widths.append({(len(source) + 1 < 16, len(target) + 1 < 16) for source, target in both})
        return engine._translator.score_batch(sources, targets, **options)

    found = list(engine._run_on_pairs(score, pairs, config=engine.decoding))
    assert all(len(some) == 1 for some in widths)
    assert len(set.union(*widths)) == 4
    assert [len(one.log_probs) for one in found] == [1 + len(ids) for _, ids in pairs]


def test_a_model_is_converted_once_and_anew_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "model"
    save_tiny(path, spm_folder=tmp_path)
    with caplog.at_level(logging.INFO, logger="nmt_cli"):
        texts = [translated(path), translated(path)]
        save_tiny(path, spm_folder=tmp_path, seed=2, overwrite=True)
        texts.append(translated(path))
    told = f"converted for CTranslate2: {tmp_path / '.model.ctranslate2'}, which later runs take"
    assert [record.getMessage() for record in caplog.records] == [told, told]
    assert texts[0] == texts[1] != texts[2]
    # Our own engine does not mind what lies beside the model.
    assert Translator.from_pretrained(path, device="cpu").translate(["the old sea"])[0].text == texts[2]


def test_a_copy_that_another_process_has_just_made_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one may be reading it: replaced under its eyes, its files would be missing for a moment."""
    path, copy = tmp_path / "model", tmp_path / ".model.ctranslate2" / "model.bin"
    save_tiny(path, spm_folder=tmp_path)
    load = model_directory.load_model
    written: list[int] = []

    def load_late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        translated(path)
        written.append(copy.stat().st_ino)
        return load(*arguments, **options)

    monkeypatch.setattr(model_directory, "load_model", load_late)
    assert translated(path)
    assert written == [copy.stat().st_ino]


def test_a_temporary_copy_is_gone_when_the_model_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny(tmp_path / "model", spm_folder=tmp_path)
    temporaries, copy = tmp_path / "temporaries", tmp_path / ".model.ctranslate2"
    temporaries.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporaries))
    caplog.set_level(logging.INFO, logger="nmt_cli")
    with files.lock_path(copy, busy="busy", error=ModelError):  # as if another process were writing it
        translator = Translator.from_pretrained(tmp_path / "model", engine="ctranslate2")
    assert list(temporaries.iterdir()) == []
    by_process = f"process {os.getpid()} on {socket.gethostname()}"
    assert caplog.messages == [
        f"converted for CTranslate2, for this once: .model.ctranslate2 is being written: {by_process}"
    ]
    (found,) = translator.translate(["the old sea"])
    assert found.text == translated(tmp_path / "model")
