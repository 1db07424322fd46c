"""Translation by a model of several directions: the symbols that it reads, and how lines name their language."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nmt_cli.api import Translator
from nmt_cli.artifacts.model_directory import load_model
from nmt_cli.decoding.attention_maps import attention_between_words
from nmt_cli.decoding.search.hypotheses import Details, SourceSentence, SymbolIds
from nmt_cli.errors import DataError, UsageError
from nmt_cli.model.teacher_forcing import forced_log_probs
from nmt_cli.recipe.directions import Directions
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.tokenization.tokenizer import BOS, EOS
from tests.artifacts.builders import save_tiny, spm_bytes, tiny_recipe

CPU = torch.device("cpu")
LINES = ["a small house", "the old sea stands by a house", "", "sea", "a <2de> house"]
ENGINES = ["torch", "ctranslate2"]
PAIRS = [LanguagePair(source=source, target=target) for source, target in (("en", "de"), ("de", "en"), ("en", "fr"))]
BEFORE_SOURCE = Directions(pairs=PAIRS, target_symbols={code: f"<2{code}>" for code in ("de", "en", "fr")})
CODES = {code: f"__{code}__" for code in ("de", "en", "fr")}
BEFORE_TRANSLATION = Directions(source_symbols=CODES, target_symbols=CODES, target_symbol_on="target")
OPUS = Directions(pairs=[PAIRS[0], PAIRS[2]], target_symbols={"de": ">>deu<<", "fr": ">>fra<<"})


def open_model(folder: Path, directions: Directions, **options: Any) -> Translator:
    recipe = tiny_recipe(decoding={"max_extra_tokens": 5, "beam": 3})
    if not (folder / "model").is_dir():
        save_tiny(folder / "model", spm_folder=folder, recipe=recipe, languages=directions)
    return Translator.from_pretrained(folder / "model", device="cpu", **options)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("directions", [BEFORE_SOURCE, BEFORE_TRANSLATION], ids=["source", "target"])
def test_the_model_reads_the_symbols_and_the_translation_has_none(
    directions: Directions, engine: str, tmp_path: Path
) -> None:
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    translator = open_model(tmp_path, directions, engine=engine)
    loaded, searches = load_model(tmp_path / "model", device=CPU, dtype=torch.float32), translator._engine
    details = Details(piece_log_probs=True, alignment=True)
    for code in ("de", "fr"):
        direction = directions.find("en", code)
        symbols = SymbolIds.of(direction, source=loaded.source, target=loaded.target)
        ids = loaded.source.encode(["the old sea stands by a house"])[0]
        sentence = SourceSentence(ids, symbols=symbols)
        ((found,),) = searches.search([sentence], config=searches.decoding, nbest=1, details=details)
        assert loaded.source.pieces(symbols.source) == ([f"<2{code}>"] if directions is BEFORE_SOURCE else ["__en__"])
        gold = [*symbols.target, *found.ids, EOS]
        (log_probs,) = forced_log_probs(loaded.model, [[*symbols.source, *ids, EOS]], [gold], bos=BOS, device=CPU)
        assert found.piece_log_probs == pytest.approx(
            log_probs[len(symbols.target) :][: len(found.piece_log_probs)], abs=1e-4
        )
        assert all(source < len(ids) and target < len(found.ids) for source, target in found.alignment)
        assert len(found.ids) <= len(ids) + 5


@pytest.mark.parametrize("directions", [BEFORE_SOURCE, BEFORE_TRANSLATION], ids=["source", "target"])
def test_a_batch_mixes_directions(directions: Directions, tmp_path: Path) -> None:
    translator, to = open_model(tmp_path, directions), ["fr", "de", "de", "fr", "fr"]
    found = translator.translate(LINES, from_="en", to=to, samples=0, nbest=2)
    for line, code, translation in zip(LINES, to, found, strict=True):
        (alone,) = translator.translate([line], from_="en", to=code, samples=0, nbest=2)
        assert translation.text == alone.text
        assert translation.log_prob == pytest.approx(alone.log_prob, abs=1e-4)
    assert found[1].log_prob != translator.translate(LINES[1:2], from_="en", to="fr")[0].log_prob


@pytest.mark.parametrize("directions", [BEFORE_SOURCE, BEFORE_TRANSLATION], ids=["source", "target"])
def test_attention_is_shown_up_to_the_last_position(directions: Directions, tmp_path: Path) -> None:
    open_model(tmp_path, directions)
    loaded, direction = load_model(tmp_path / "model", device=CPU, dtype=torch.float32), directions.find("en", "fr")
    piece = loaded.source.pieces(loaded.source.encode(["sea"])[0])[0].lstrip("▁")
    longest = loaded.model.config.max_positions - 2
    for number in (longest, longest + 1):
        text = " ".join([piece] * number)
        assert len(loaded.source.encode([text])[0]) == number
        if number > longest:
            with pytest.raises(DataError, match="pieces"):
                attention_between_words(loaded, text, "sea", direction=direction, device=CPU)
        else:
            assert attention_between_words(loaded, text, "sea", direction=direction, device=CPU).rows


def test_a_symbol_that_is_typed_stays_text(tmp_path: Path) -> None:
    translator = open_model(tmp_path, BEFORE_SOURCE)
    typed, not_typed = translator.translate(["<2de> sea", "sea"], to="fr")
    assert typed != not_typed
    tokenizer = load_model(tmp_path / "model", device=CPU, dtype=torch.float32).source
    assert not set(tokenizer.encode(["<2de> sea"])[0]) & set(tokenizer.symbol_ids(["<2de>"]))


def test_opus_mts_language_before_a_line_holds_for_all_its_sentences(tmp_path: Path) -> None:
    translator = open_model(tmp_path, OPUS)
    line = "The old sea. A small house."
    expected, other = (translator.translate([line], to=code)[0] for code in ("fr", "de"))
    assert translator.translate([f">>fra<< {line}"])[0] == expected != other
    assert translator.translate([f">>fra<<{line}"], to="de")[0] == expected
    assert [one.text for one in translator.translate([f">>fr<< {line}", " "])] == [expected.text, ""]
    for wrong in (line, f">>ita<< {line}"):
        with pytest.raises(UsageError, match="line 2"):
            translator.translate([f">>fra<< {line}", wrong])


def test_a_direction_that_was_not_trained_is_translated_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    translator = open_model(tmp_path, BEFORE_SOURCE)
    assert translator.translate(["das alte Meer"], from_="de", to="fr")[0].text
    assert "was not trained for de-fr" in caplog.text


def test_a_tag_stands_behind_the_target_language(tmp_path: Path) -> None:
    spm = spm_bytes(symbols=("<2de>", "<domain:news>"))
    save_tiny(tmp_path / "model", spm_folder=tmp_path, spm=spm, recipe=tiny_recipe())
    translator = Translator.from_pretrained(tmp_path / "model", device="cpu")
    with_tag, without = (translator.translate(["the sea"], tags=tags)[0] for tags in ({"domain": "news"}, None))
    assert with_tag.log_prob != without.log_prob
    with pytest.raises(UsageError, match=r"(?s)without the tag domain=chat.*domain=news"):
        translator.translate(["the sea"], tags={"domain": "chat"})
