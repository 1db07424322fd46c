"""Raw text in, raw text out, with a small random model."""

from __future__ import annotations

import gc
import logging
import math
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch

import nmt_cli
from nmt_cli.api import Translator
from nmt_cli.artifacts import model_directory
from nmt_cli.decoding.settings import with_overrides
from nmt_cli.decoding.translation import SplitLine, Translation, in_one_line, without_repetition
from nmt_cli.errors import DataError, DeviceError, ModelError, UsageError
from nmt_cli.recipe.schema import DecodingConfig, DecodingOverrides, LanguagePair, TrainedLines
from nmt_cli.tokenization.pieces import Link
from nmt_cli.tokenization.split_text import SplitText
from tests.artifacts.builders import save_tiny, tiny_recipe
from tests.decoding.reference import CPU, search_in_batches

EN_DE = LanguagePair(source="en", target="de")
RECIPE = tiny_recipe(decoding={"beam": 2, "max_extra_tokens": 5, "length_penalty": 0.5, "batch_tokens": 200})
WORDS = ["a", "small", "house", "stands", "by", "the", "old", "sea", "ein", "kleines", "Haus", "steht", "am", "Meer"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that translates at most 64 positions, at most 5 pieces longer than the source."""
    folder = tmp_path_factory.mktemp("models")
    save_tiny(folder / "model", spm_folder=folder, recipe=RECIPE)
    return folder / "model"


@pytest.fixture(scope="module")
def translator(model: Path) -> Translator:
    return Translator.from_pretrained(model, device="cpu")


def lines_of_words(count: int) -> list[str]:
    """Different lines of 1 to 9 words; every eleventh is blank."""
    lines = []
    for number in range(count):
        words = [WORDS[(number * 7 + place * place) % len(WORDS)] for place in range(number % 9 + 1)]
        lines.append("" if number % 11 == 10 else f"{' '.join(words)} {number}")
    return lines


def test_lines_are_the_same_at_once_by_sevens_and_alone(translator: Translator) -> None:
    lines = lines_of_words(120)
    at_once = translator.translate(lines)
    by_seven = [found for start in range(0, 120, 7) for found in translator.translate(lines[start : start + 7])]
    alone = [found for line in lines[::5] for found in translator.translate([line])]
    texts = [translation.text for translation in at_once]
    assert texts == [translation.text for translation in by_seven]
    assert texts[::5] == [translation.text for translation in alone]
    assert [not text for text in texts] == [not line for line in lines]
    assert len(set(texts)) > 30


def test_settings_are_the_recipes_unless_given(model: Path, translator: Translator) -> None:
    loaded = model_directory.load_model(model, device=CPU, dtype=torch.float32)
    lines = lines_of_words(9)
    rows = loaded.source.encode(lines)
    other = {"beam": 3, "length_penalty": 1, "length_penalty_form": "length", "max_extra_tokens": 2}
    cases: list[dict[str, Any]] = [{}, other]
    for options in cases:
        config = with_overrides(loaded.config.recipe.decoding, options)
        found = search_in_batches(loaded.model, rows, config=config)
        for (best,), translation in zip(found, translator.translate(lines, **options), strict=True):
            # The translator's matrices are laid out for oneDNN, whose float32 sums are in another order.
            assert translation.log_prob == pytest.approx(best.log_prob, abs=1e-5)
            assert translation.score == pytest.approx(best.score, abs=1e-5)
            assert translation.num_pieces == len(best.ids)
            assert " ".join(translation.text.split()) == " ".join(loaded.target.decode([best.ids])[0].split())
    assert with_overrides(loaded.config.recipe.decoding, {"beam": None}) == loaded.config.recipe.decoding


def test_a_beam_for_a_model_that_samples_is_refused_and_the_hint_helps() -> None:
    config, changes = DecodingConfig(samples=4), {"beam": 3}
    with pytest.raises(UsageError, match=r"^sampling has no beam\n") as error:
        with_overrides(config, changes)
    assert error.value.hint == "add `samples: 0`: the model itself samples"
    assert with_overrides(config, changes | {"samples": 0}).num_candidates == 3


def test_alternatives_are_the_next_best(translator: Translator) -> None:
    (one,) = translator.translate(["the old sea"], beam=4)
    (best,) = translator.translate(["the old sea"], beam=4, nbest=4)
    assert (best.text, best.score, best.log_prob) == (one.text, one.score, one.log_prob)
    scores = [best.score, *(alternative.score for alternative in best.alternatives)]
    assert len(scores) > 2  # texts that pieces spell in two ways are there once
    assert scores == sorted(scores, reverse=True)
    assert one.alternatives == ()


def test_blank_lines_are_blank(translator: Translator) -> None:
    blank = Translation("", 0.0, 0.0, 0)
    assert translator.translate(["", "  \t ", "\u00a0"]) == [blank] * 3
    assert translator.translate([]) == []
    (around, bare) = translator.translate(["  the old sea ", "the old sea"])
    assert around == bare


@pytest.mark.parametrize(
    "options", [{"nbest": 2, "alignments": True, "word_scores": True}, {"beam": 1}, {"samples": 3}]
)
def test_a_search_leaves_no_garbage_to_look_for(translator: Translator, options: dict[str, Any]) -> None:
    lines = lines_of_words(20)
    translator.translate(lines, **options)  # what is made once
    gc.collect()
    gc.disable()
    try:
        translator.translate(lines, **options)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_translation_has_no_line_breaks(translator: Translator) -> None:
    target = translator._engine.target
    newline = target.encode(["\n"])[0]
    assert "\n" in target.decode([newline])[0]
    lines = lines_of_words(60)
    assert not any(set("\r\n") & set(translation.text) for translation in translator.translate(lines, beam=1))
    assert in_one_line(*target.decode([[*newline, *target.encode(["sea"])[0]]])).strip() == "sea"


def test_a_line_too_long_for_the_model_is_translated_in_parts(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    sentence = "the old sea stands by a small house. "
    with caplog.at_level(logging.WARNING, logger="nmt_cli"):
        short, long, word = translator.translate(["the sea", sentence * 9, "x" * 200], first_line=41)
    pieces = len(translator._engine.source.encode([(sentence * 9).strip()])[0])
    assert pieces > 64
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2
    assert warnings[0].startswith(f"line 42 has {pieces} pieces, and this model takes 59 at once: it is translated in ")
    assert warnings[1].startswith("line 43 has ")
    assert short.text == translator.translate(["the sea"])[0].text
    # The parts are whole sentences, and translated as if they were lines of their own.
    for count in range(1, 9):
        lines = [(sentence * min(count, 9 - done)).strip() for done in range(0, 9, count)]
        parts = translator.translate(lines)
        if " ".join(part.text for part in parts) == long.text:
            break
    else:
        pytest.fail("the translation is not that of sentences, joined by spaces")
    assert long.log_prob == pytest.approx(math.fsum(part.log_prob for part in parts), abs=1e-4)
    assert long.num_pieces == sum(part.num_pieces for part in parts)
    assert word.text
    assert len(translator.translate([sentence * 9], nbest=2)[0].alternatives) == 1


def test_each_sentence_of_a_line_is_translated(
    translator: Translator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = "Mr. Meer stands by the old sea.", "A small house."
    lines = [f"{first}  {second}", f"{first} {first}", f"{first}\n{second}\r\n\n", second]
    options: dict[str, Any] = {"nbest": 2, "word_scores": True, "alignments": True}
    with caplog.at_level(logging.INFO, logger="nmt_cli"):
        translator.translate([f"♪ {second} ♪"], first_line=7)
        joined, again, broken, single = translator.translate(lines, **options)
    assert [message.split(":")[0] for message in caplog.messages] == ["line 1 has several sentences"]
    parts = translator.translate([first, second], **options)
    assert joined.text == " ".join(part.text for part in parts)
    assert joined.alternatives[0].text == " ".join(part.alternatives[0].text for part in parts)
    assert joined.log_prob == pytest.approx(math.fsum(part.log_prob for part in parts), abs=1e-4)
    assert math.fsum(joined.word_log_probs) == pytest.approx(joined.log_prob, abs=1e-4)
    assert joined.alignment
    assert again.text == f"{parts[0].text} {parts[0].text}"
    assert (broken.text, single.text) == (joined.text, parts[1].text)
    # Nobody knows where a prefix ends.
    whole = {"split_sentences": "never"}
    (begun,), (other,) = (translator.translate(lines[:1], prefixes=["am Meer"], **more) for more in ({}, whole))  # type: ignore[arg-type]
    assert begun.text == other.text


def test_a_line_is_whole_if_training_had_many_such_lines(translator: Translator, tmp_path: Path) -> None:
    line = "The old sea. A small house. The old sea."
    (parts,) = translator.translate([line])
    (whole,) = translator.translate([line], split_sentences="never")
    assert parts.text != whole.text
    num_pieces = len(translator._engine.source.encode([line])[0])
    for share, longest, expected in ((0.3, num_pieces, whole), (0.3, num_pieces - 1, parts), (0.01, 99, parts)):
        trained = TrainedLines(several_sentences=share, usual_longest=longest)
        save_tiny(tmp_path / "model", spm_folder=tmp_path, recipe=RECIPE, trained_lines=trained, overwrite=True)
        knowing = Translator.from_pretrained(tmp_path / "model", device="cpu")
        assert knowing.translate([line])[0].text == expected.text
        assert knowing.translate([line], split_sentences="always")[0].text == parts.text
        # A line break is no part of any training.
        assert knowing.translate([line.replace(". ", ".\n")])[0].text == parts.text


def test_what_has_no_letters_is_copied(translator: Translator) -> None:
    (part,) = translator.translate(["The old sea."])
    emoji, before, text = "👍🏽 ❤️", "12:30!", "The old sea."
    options: dict[str, Any] = {"nbest": 2, "word_scores": True, "alignments": True}
    (line,) = translator.translate([f"{before} {text} {emoji}"], **options)
    assert line.text == f"{before} {part.text} {emoji}"
    assert len(line.alternatives) == 1
    assert len(line.word_log_probs) == len(line.text.split()) + 1
    assert {(0, 0), (4, len(line.text.split()) - 2)} <= {*line.alignment}
    symbols = ["•", " 12:30 ", "---", "😀", "\u200b", "١٢", ""]
    assert [line.text for line in translator.translate(symbols, copy_symbols=True)] == symbols


def test_a_text_is_in_a_list_once(translator: Translator) -> None:
    for line in translator.translate(["the old sea", "a small house", "the sea. A house."], nbest=8, beam=8):
        texts = [line.text, *(other.text for other in line.alternatives)]
        assert len({*texts}) == len(texts)
    twice = [Translation(text, score, score, 1) for text, score in (("a", -1.0), ("b", -2.0), ("a", -3.0))]
    assert without_repetition(twice) == twice[:2]


def test_words_that_a_space_parts_stay_apart_wherever_the_line_was_cut() -> None:
    line = SplitLine(SplitText.of(["xxxx", " y ", "zz", "zz"]), [], EN_DE)
    words = [
        Translation(word, -1.0, -1.0, 1, (), (-1.0, 0.0), (Link(0, length, 0, 4),))
        for word, length in (("eins", 4), ("zwei", 1), ("drei", 2), ("vier", 2))
    ]
    joined = line.join([[word] for word in words])
    assert joined.text == "eins zwei dreivier"
    assert joined.alignment == ((0, 0), (1, 1), (2, 2))
    assert joined.word_log_probs == (-1.0, -1.0, -2.0, 0.0)


def test_half_a_character_is_refused_with_its_line(translator: Translator) -> None:
    with pytest.raises(DataError, match="the text holds half a character") as error:
        translator.translate(["sea", "old \ud83d"], first_line=7)
    assert (error.value.where, error.value.hint) == ("line 8", "write the text in UTF-8, or leave the character out")
    with pytest.raises(DataError, match="the text holds the byte 0xe9, which is not UTF-8") as error:
        translator.translate(["sea", "sea"], prefixes=["", "alt\udce9"], first_line=7)
    assert error.value.where == "the prefix of line 8"


def test_the_longest_source_leaves_room_for_its_output(translator: Translator) -> None:
    # More extra tokens than positions: half of the positions are left to the source.
    (translation,) = translator.translate(["sea " * 15], max_extra_tokens=500, beam=1)
    assert translation.num_pieces <= 64
    (translation,) = translator.translate(["sea " * 200], max_extra_tokens=0, beam=1)
    assert translation.text


def test_public_names_of_the_package(model: Path) -> None:
    translator = nmt_cli.Translator.from_pretrained(str(model), device="cpu", precision="bf16")
    (translation,) = translator.translate(["the sea"])
    assert isinstance(translation, nmt_cli.Translation)
    assert (translator.engine, translator.precision, translator.device) == ("torch", "bf16", "cpu")


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"samples": 2, "top_k": 0}, "top_k"),
        ({"beam": 0}, "beam"),
        ({"length_penalty_form": "gnm"}, "length_penalty_form"),
        ({"nbest": 3}, "nbest"),
        ({"nbest": 0}, "nbest"),
        ({"mbr": "comet"}, "mbr"),
        ({"mbr": "bleu", "beam": 1}, "mbr"),
    ],
)
def test_settings_that_make_no_sense_are_named(translator: Translator, options: dict[str, Any], setting: str) -> None:
    with pytest.raises(UsageError) as error:
        translator.translate([], **options)
    assert error.value.setting == setting


def test_settings_of_a_call_are_those_of_the_schema(translator: Translator) -> None:
    kinds = get_type_hints(DecodingConfig)
    assert get_type_hints(DecodingOverrides) == {name: kinds[name] | None for name in DecodingConfig.model_fields}
    with pytest.raises(TypeError, match="no setting 'beams'"):
        translator.translate([], beams=2)  # type: ignore[call-arg]  # what the test is about


def test_a_config_replaces_the_models_own_settings(translator: Translator) -> None:
    line = ["the old sea"]
    config = translator.settings(beam=1, max_extra_tokens=3)
    assert translator.translate(line, config=config) == translator.translate(line, beam=1, max_extra_tokens=3)
    assert translator.translate(line, config=config, beam=3) == translator.translate(line, beam=3, max_extra_tokens=3)


def test_what_cannot_be_loaded_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no precision called 'int4'"):
        Translator.from_pretrained(model, precision="int4")
    with pytest.raises(UsageError, match="no engine called 'marian'"):
        Translator.from_pretrained(model, engine="marian")
    with pytest.raises(ModelError):
        Translator.from_pretrained(tmp_path)
    with pytest.raises(DeviceError, match="no device called 'tpu'"):
        Translator.from_pretrained(model, device="tpu")


def test_white_space_inside_a_line_is_that_of_training_text(translator: Translator) -> None:
    tidy = ["the old sea", "a small house by the sea"]
    odd = ["  the  old \t sea", "a small   house\tby the\x0b sea "]
    pieces = translator._engine.source.encode(odd)
    assert pieces != translator._engine.source.encode(tidy)  # or there would be nothing to see
    assert translator.translate(odd) == translator.translate(tidy)
    assert [line.text for line in translator.translate(["", "\u00a0"], prefixes=["am Meer", "am"])] == ["", ""]
    assert translator.translate(tidy, prefixes=["ein  Haus", " "]) == translator.translate(
        tidy, prefixes=["ein Haus", ""]
    )
