"""Models of many languages: M2M-100, NLLB, OPUS-MT with several targets and our own, here and in transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt_cli.api import Translator
from nmt_cli.artifacts.model_directory import save_model
from nmt_cli.artifacts.weights import weights_of
from nmt_cli.errors import ModelError, UsageError
from nmt_cli.interchange.exporting import export
from nmt_cli.interchange.importing import ImportedModel, import_model
from nmt_cli.languages import match_code
from nmt_cli.recipe.directions import Directions
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.tokenization.sentencepiece_model import CONTROL, Piece, read_pieces, with_pieces
from tests.interchange.builders import edit_json, english, load, save_sharp, write_m2m100, write_marian
from tests.training.tiny import events, parallel_text, prepare_tiny, train

transformers = pytest.importorskip("transformers")


def imported(path: Path, output: Path, languages: LanguagePair | None = None) -> ImportedModel:
    return import_model(path, output, languages=languages, imported_from=None, overwrite=False)


def exported(model: Path, output: Path, to: Any = "huggingface") -> float:
    """The largest difference to the other program."""
    agreement = export(model, output, to=to, quantization="float32", lines=None, overwrite=False)
    assert agreement is not None
    return agreement.largest_difference


def their_texts(model: Any, tokenizer: Any, lines: list[str], **options: Any) -> list[str]:
    """What transformers writes, with a beam of 4 if nothing else is said, without pieces that we never generate."""
    never = [[model.config.pad_token_id], [tokenizer.unk_token_id]]
    search = {"num_beams": 4, "early_stopping": False, "max_new_tokens": 60, "forced_eos_token_id": None} | options
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    rows = model.generate(**batch, **search, bad_words_ids=never)
    return [str(text) for text in tokenizer.batch_decode(rows, skip_special_tokens=True)]


def test_m2m100_translates_a_hundred_lines_as_transformers_does(tmp_path: Path) -> None:
    theirs = write_m2m100(tmp_path / "m2m", num_updates=150)
    made = imported(tmp_path / "m2m", tmp_path / "model")
    assert made.agreement is not None
    assert made.agreement.largest_difference < 1e-4
    assert len(made.languages.offered) == 100 * 99
    ours = Translator.from_pretrained(tmp_path / "model", device="cpu")
    tokenizer = transformers.M2M100Tokenizer.from_pretrained(tmp_path / "m2m")
    lines, texts = [""], [""]
    for side, source, target in ((0, "en", "de"), (1, "de", "en")):
        tokenizer.src_lang = source
        lines = [pair[side] for pair in parallel_text(50, seed=99)]
        # The length of transformers' penalty counts the language, too.
        language = {"forced_bos_token_id": tokenizer.get_lang_id(target), "length_penalty": 0.0}
        texts = their_texts(theirs, tokenizer, lines, **language)
        found = ours.translate(lines, from_=source, to=target, beam=4, length_penalty=0.0)
        assert [one.text for one in found] == texts
        assert len(set(texts)) > 20
    pytest.importorskip("ctranslate2")
    fast = Translator.from_pretrained(tmp_path / "model", engine="ctranslate2")
    assert [one.text for one in fast.translate(lines, from_="de", to="en", beam=4, length_penalty=0.0)] == texts
    with pytest.raises(UsageError, match="the model must know the language of the text"):
        ours.translate(["a"], to="de")


@pytest.mark.parametrize("is_nllb", [False, True], ids=["m2m100", "nllb"])
def test_a_model_of_many_languages_is_imported_and_goes_to_ctranslate2_only(is_nllb: bool, tmp_path: Path) -> None:
    dtype, shard = (torch.float16, "20KB") if is_nllb else (torch.float32, "5GB")
    write_m2m100(tmp_path / "theirs", is_nllb=is_nllb, dtype=dtype, max_shard_size=shard)
    assert len([*(tmp_path / "theirs").glob("*.safetensors")]) == (5 if is_nllb else 1)
    made = imported(tmp_path / "theirs", tmp_path / "model")
    assert made.agreement is not None
    assert made.agreement.largest_difference < 1e-4
    with pytest.raises(ModelError, match="has no place for") as caught:
        exported(tmp_path / "model", tmp_path / "back")
    assert caught.value.hint.startswith("nmt export --to ctranslate2")
    pytest.importorskip("ctranslate2")
    assert exported(tmp_path / "model", tmp_path / "fast", "ctranslate2") < 1e-4


def test_m2m100_is_trained_further(tmp_path: Path) -> None:
    write_m2m100(tmp_path / "m2m")
    imported(tmp_path / "m2m", tmp_path / "model")
    data = prepare_tiny(tmp_path, f"tokenizer.taken_from={tmp_path / 'model'}")
    schedule = "training.schedule={name: constant, peak: 3e-3, warmup_updates: 1}"
    settings = (schedule, "training.updates=12", "training.log_every=1")
    assert train(data, tmp_path / "run", *settings, init_from=tmp_path / "model") == 0
    losses = [event["nll"] for event in events(tmp_path / "run", "train")]
    assert losses[-1] < losses[0] - 1
    pytest.importorskip("ctranslate2")
    assert exported(tmp_path / "run" / "model", tmp_path / "fast", "ctranslate2") < 1e-4


def test_what_is_given_or_found_wrongly_is_refused(tmp_path: Path) -> None:
    write_m2m100(tmp_path / "m2m")
    with pytest.raises(UsageError, match="m2m has its 100 languages in its vocabulary"):
        imported(tmp_path / "m2m", tmp_path / "model", LanguagePair(source="en", target="de"))
    (tmp_path / "m2m" / "sentencepiece.bpe.model").rename(tmp_path / "m2m" / "away")
    with pytest.raises(ModelError, match=r"no sentencepiece\.bpe\.model"):
        imported(tmp_path / "m2m", tmp_path / "model")
    edit_json(tmp_path / "m2m" / "config.json", model_type="nllb-moe")
    with pytest.raises(ModelError, match="is a Hugging Face model of type 'nllb-moe', and nmt import reads") as caught:
        imported(tmp_path / "m2m", tmp_path / "other")
    assert caught.value.hint.endswith("facebook/m2m100_418M or facebook/nllb-200-distilled-600M")


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ("de", "deu_Latn"),
        ("pt-BR", "por_Latn"),
        ("no", "nob_Latn"),
        ("ar", "arb_Arab"),
        ("sr", "srp_Cyrl"),
        ("ko", "kor_Hang"),
        ("zh", "zho_Hans"),
        ("zh-TW", "zho_Hant"),
        ("fa", "pes_Arab"),
        ("sr-Latn", None),
    ],
)
def test_usual_codes_name_the_languages_of_nllb(wanted: str, code: str | None) -> None:
    codes = transformers.models.nllb.tokenization_nllb.FAIRSEQ_LANGUAGE_CODES
    assert match_code(wanted, codes) == code


def test_opus_mt_of_several_targets_takes_a_language_or_its_typed_code(tmp_path: Path) -> None:
    theirs = write_marian(tmp_path / "opus", first=(">>deu<<", ">>nld<<"))
    made = imported(tmp_path / "opus", tmp_path / "model")
    assert made.agreement is not None
    assert str(made.languages) == "en-deu, en-nld"
    ours = Translator.from_pretrained(tmp_path / "model", device="cpu")
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "opus")
    lines = list(english(10))
    never: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 8}
    for target, code in (("de", ">>deu<<"), ("nl", ">>nld<<")):
        texts = their_texts(theirs, tokenizer, [f"{code} {line}" for line in lines], **never)
        found = ours.translate(lines, to=target, beam=1)
        assert all(one.text.startswith(text[:10]) for one, text in zip(found, texts, strict=True))
        typed = ours.translate([f"{code} {line}" for line in lines], beam=1)
        assert [one.text for one in typed] == [one.text for one in found]
    two = [" ".join(lines[:2])]
    assert ours.translate([f">>nld<< {two[0]}"])[0].text == ours.translate(two, to="nl")[0].text
    with pytest.raises(UsageError, match="line 1 does not say the language"):
        ours.translate(lines)
    only = imported(tmp_path / "opus", tmp_path / "only", LanguagePair(source="eng", target="de"))
    assert [str(pair) for pair in only.languages.offered] == ["eng-deu"]
    assert Translator.from_pretrained(tmp_path / "only", device="cpu").translate(two) == ours.translate(two, to="de")
    with pytest.raises(UsageError, match="opus does not translate into 'fr', but deu, nld") as caught:
        imported(tmp_path / "opus", tmp_path / "other", LanguagePair(source="en", target="fr"))
    assert caught.value.hint == "`languages: en-mul` takes all of them"
    of_german = imported(tmp_path / "opus", tmp_path / "german", LanguagePair(source="de", target="mul"))
    assert str(of_german.languages) == "de-nld"
    exported(tmp_path / "model", tmp_path / "back")
    found = ours.translate(lines, to="nl", beam=1)
    assert imported(tmp_path / "back", tmp_path / "again", LanguagePair(source="en", target="mul")).agreement
    again = Translator.from_pretrained(tmp_path / "again", device="cpu").translate(lines, to="nl", beam=1)
    assert [one.text for one in again] == [one.text for one in found]


def test_our_model_of_several_targets_goes_to_marian_with_codes_as_in_opus_mt(tmp_path: Path) -> None:
    model = save_sharp(tmp_path / "one")
    loaded, pairs = load(model), [LanguagePair(source="en", target=code) for code in ("de", "fr")]
    spm = (model / "source.spm").read_bytes()
    pieces = read_pieces(spm)
    pieces[-2:] = [Piece(text, 0.0, CONTROL) for text in ("<2de>", "<2fr>")]
    spm = with_pieces(spm, pieces, has_bytes=True)
    symbols = {"de": "<2de>", "fr": "<2fr>"}
    for side in ("source", "target"):
        languages = Directions.model_validate({"pairs": pairs, "target_symbols": symbols, "target_symbol_on": side})
        save_model(
            tmp_path / side,
            config=loaded.config.model_copy(update={"languages": languages}),
            weights=weights_of(loaded.model),
            source_spm=spm,
            target_spm=spm,
            card="",
            overwrite=False,
        )
    assert exported(tmp_path / "source", tmp_path / "hf") < 2e-4  # Marian's epsilon is another one
    assert {">>de<<", ">>fr<<"} < json.loads((tmp_path / "hf" / "vocab.json").read_text(encoding="utf-8")).keys()
    assert str(imported(tmp_path / "hf", tmp_path / "again").languages) == "en-de, en-fr"
    pytest.importorskip("ctranslate2")
    for side in ("source", "target"):
        assert exported(tmp_path / side, tmp_path / f"fast-{side}", "ctranslate2") < 1e-4
    with pytest.raises(ModelError, match="MarianMTModel takes the target language before the source"):
        exported(tmp_path / "target", tmp_path / "refused")
