"""Random Marian models of OPUS-MT's shape: what becomes of them here is what transformers computes, there and back."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from torch import Tensor

from nmt_cli.api import Translator
from nmt_cli.artifacts.model_directory import LoadedModel
from nmt_cli.errors import ModelError, UsageError
from nmt_cli.interchange.exporting import export
from nmt_cli.interchange.importing import ImportedModel, import_model
from nmt_cli.model.packing import pack
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.tokenization.tokenizer import BOS, EOS
from tests.interchange.builders import (
    CPU,
    edit_json,
    english,
    load,
    recipe_with,
    save_sharp,
    spm,
    write_marian,
)

SHAPES: dict[str, dict[str, Any]] = {
    "OPUS-MT's": {},
    "relu, fewer decoder layers": {"activation_function": "relu", "decoder_layers": 1},
    "a vocabulary for each side": {"share_encoder_decoder_embeddings": False},
    "nothing tied": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    "another first piece": {"decoder_start_token_id": 3},
}


def imported(folder: Path, *, name: str = "opus", **options: Any) -> ImportedModel:
    values: dict[str, Any] = {"languages": None, "imported_from": None, "overwrite": False, **options}
    return import_model(folder / name, folder / "model", **values)


def refusal(folder: Path) -> ModelError:
    """The error of an import that writes nothing, and names a file or folder in the directory."""
    with pytest.raises(ModelError) as caught:
        imported(folder)
    assert not (folder / "model").exists()
    assert str(caught.value.where).startswith(str(folder / "opus"))
    assert caught.value.hint
    return caught.value


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("marian") / "opus"
    write_marian(folder)
    return folder


@pytest.fixture
def opus(written: Path, tmp_path: Path) -> Path:
    """A Marian directory that a test may change."""
    return Path(shutil.copytree(written, tmp_path / "opus"))


def their_logits(model: Any, source: list[int], target: list[int]) -> Tensor:
    """Of a MarianMTModel for the pieces after each of `target`, whose first is what the decoder starts with."""
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([target])).logits[0]
    return logits


def our_logits(loaded: LoadedModel, source: list[int], target: list[int]) -> Tensor:
    with torch.inference_mode():
        packed = pack([source], device=CPU)
        model = loaded.model
        return model.logits(model.decode(pack([target], device=CPU), model.encode(packed), packed))


def vocabulary(folder: Path) -> dict[str, int]:
    content: dict[str, int] = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    return content


def our_id(loaded: LoadedModel, piece: str) -> int:
    pieces = loaded.target.pieces(range(loaded.target.vocab_size))
    return pieces.index(piece)


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_the_same_here_and_after_a_round_trip(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = write_marian(tmp_path / "opus", **SHAPES[name])
    agreement = imported(tmp_path).agreement
    assert agreement is not None
    assert agreement.largest_difference < 1e-5
    export(tmp_path / "model", tmp_path / "back", to="huggingface", quantization="float32", lines=None, overwrite=False)
    back = transformers.MarianMTModel.from_pretrained(tmp_path / "back").eval()
    loaded, there, here = load(tmp_path / "model"), vocabulary(tmp_path / "opus"), vocabulary(tmp_path / "back")
    start = theirs.config.decoder_start_token_id
    pieces = [piece for piece, number in there.items() if number != start and piece not in ("</s>", "<pad>")]
    source, target = pieces[5:20], pieces[40:50]
    expected = their_logits(theirs, [*(there[p] for p in source), 0], [start, *(there[p] for p in target)])
    ours = our_logits(loaded, [*(our_id(loaded, p) for p in source), EOS], [BOS, *(our_id(loaded, p) for p in target)])
    again = their_logits(back, [*(here[p] for p in source), EOS], [BOS, *(here[p] for p in target)])
    columns = expected[:, [there[piece] for piece in pieces]]
    torch.testing.assert_close(ours[:, [our_id(loaded, p) for p in pieces]], columns, rtol=0, atol=1e-5)
    torch.testing.assert_close(again[:, [here[p] for p in pieces]], columns, rtol=0, atol=1e-5)
    model = loaded.config.recipe.model
    assert (model.attention_dropout, model.ffn_dropout) == (0.1, 0.2)
    assert (back.config.attention_dropout, back.config.activation_dropout) == (0.1, 0.2)
    # So is the probability of the end, whatever else our vocabulary has.
    torch.testing.assert_close(ours.log_softmax(1)[:, EOS], expected.log_softmax(1)[:, 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("model_type", "byte_fallback"), [("unigram", False), ("unigram", True), ("bpe", False)])
def test_text_is_cut_into_the_same_pieces(model_type: str, byte_fallback: bool, tmp_path: Path) -> None:
    source, target = (spm(side, model_type=model_type, byte_fallback=byte_fallback) for side in (0, 1))
    write_marian(tmp_path / "opus", source=source, target=target)
    imported(tmp_path)
    loaded, there = load(tmp_path / "model"), vocabulary(tmp_path / "opus")
    lines = [*english(50), "  two  spaces ", "Ünknown ☃ characters, mühelos", "<s> </s> <unk>"]
    tokenizer = pytest.importorskip("transformers").MarianTokenizer.from_pretrained(tmp_path / "opus")
    names = {number: piece for piece, number in there.items()}
    for line in lines[:-1]:
        theirs = [names[number] for number in tokenizer(line)["input_ids"][:-1]]
        assert loaded.source.pieces(loaded.source.encode([line])[0]) == theirs
    processor = sentencepiece.SentencePieceProcessor(model_proto=target)
    for line in (pair for pair in lines if processor.unk_id() not in processor.encode(pair)):
        assert loaded.target.decode(loaded.target.encode([line])) == [processor.decode(processor.encode(line))]
    # A piece of the other language, which the joint vocabulary lets the decoder write, is text as well.
    row = [our_id(loaded, piece) for piece in ("▁house", "▁moon")]
    assert loaded.target.decode([row]) == ["house moon"]


def test_an_imported_model_translates_as_transformers_does(tmp_path: Path) -> None:
    theirs = write_marian(tmp_path / "opus")
    settings = {"num_beams": 2, "length_penalty": 0.7, "min_new_tokens": 3, "no_repeat_ngram_size": 2}
    edit_json(tmp_path / "opus" / "generation_config.json", **settings)
    imported(tmp_path)
    config = load(tmp_path / "model").config
    decoding = config.recipe.decoding
    assert (decoding.beam, decoding.length_penalty, decoding.length_penalty_form) == (2, 0.7, "length")
    assert (decoding.min_tokens, decoding.no_repeat_ngram) == (3, 2)
    assert (config.languages.pairs[0].source, config.languages.pairs[0].target, config.updates) == ("en", "de", [])
    tokenizer = pytest.importorskip("transformers").MarianTokenizer.from_pretrained(tmp_path / "opus")
    lines = list(english(10))
    found = Translator.from_pretrained(tmp_path / "model", device="cpu").translate(lines, beam=1, max_extra_tokens=0)
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    never = [[theirs.config.pad_token_id], [1]]
    output = theirs.generate(
        **batch,
        num_beams=1,
        do_sample=False,
        min_new_tokens=3,
        no_repeat_ngram_size=2,
        max_new_tokens=60,
        forced_eos_token_id=None,
        bad_words_ids=never,
    )
    for ours, row, source in zip(found, output[:, 1:].tolist(), batch["attention_mask"].sum(1).tolist(), strict=True):
        cut = row[: row.index(0)] if 0 in row else row
        theirs_text = tokenizer.decode(cut[: source - 1], skip_special_tokens=True)
        assert ours.text == theirs_text


def test_old_directories_have_pickled_tensors_and_half_precision(tmp_path: Path) -> None:
    theirs = write_marian(tmp_path / "opus")
    (tmp_path / "opus" / "model.safetensors").unlink()
    torch.save(theirs.half().state_dict(), tmp_path / "opus" / "pytorch_model.bin")
    made = imported(tmp_path)
    assert made.agreement is not None
    assert load(tmp_path / "model").model.output_weight.dtype == torch.float32


def test_pieces_that_the_vocabulary_lacks_are_spelt_in_smaller_ones(tmp_path: Path) -> None:
    write_marian(tmp_path / "opus", without="▁flowers")
    imported(tmp_path)
    pieces = load(tmp_path / "model").source.pieces(load(tmp_path / "model").source.encode(["two flowers"])[0])
    assert "".join(pieces) == "▁two▁flowers"
    assert "▁flowers" not in pieces


def test_learned_positions_and_separate_vocabularies_come_back(tmp_path: Path) -> None:
    model = save_sharp(tmp_path / "ours", recipe_with({"positions": "learned", "tying": "target"}))
    export(model, tmp_path / "opus", to="huggingface", quantization="float32", lines=None, overwrite=False)
    imported(tmp_path)
    before, after = load(model), load(tmp_path / "model")
    assert after.config.recipe.model.positions == "learned"
    assert after.config.vocabulary == before.config.vocabulary.model_copy(update={"shared": True})
    rows = ([4, 9, 17, EOS], [BOS, 30, 21])
    # Marian's epsilon is another one.
    torch.testing.assert_close(our_logits(after, *rows), our_logits(before, *rows), rtol=0, atol=2e-4)


@pytest.mark.parametrize("given", [None, LanguagePair(source="xx", target="yy")])
def test_languages_are_given_or_read_or_asked_for(given: LanguagePair | None, opus: Path, tmp_path: Path) -> None:
    edit_json(opus / "tokenizer_config.json", source_lang=None)
    if given is not None:
        assert imported(tmp_path, languages=given).languages.pairs == [given]
        return
    with pytest.raises(UsageError, match=r"the languages of .*opus are not known") as caught:
        imported(tmp_path)
    assert caught.value.hint == "add `languages: en-de`, the source's first"
    opus.rename(tmp_path / "opus-mt-en-fi")
    assert str(imported(tmp_path, name="opus-mt-en-fi").languages) == "en-fi"


@pytest.mark.usefixtures("opus")
def test_without_transformers_a_model_is_imported_and_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    made = imported(tmp_path)
    assert made.agreement is None
    needed = (
        'the package transformers is not installed; pip install "nmt-cli[huggingface]", or pip install transformers'
    )
    assert made.comparison == f"not compared with the original: {needed}"


def test_a_pointer_of_git_lfs_is_called_so(opus: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 298\n"
    weights = (opus / "model.safetensors").read_bytes()
    (opus / "model.safetensors").unlink()
    (opus / "pytorch_model.bin").write_bytes(pointer)
    error = refusal(opus.parent)
    assert error.message == "pytorch_model.bin is a pointer of Git LFS, not the file itself"
    assert error.hint == f"git -C {opus} lfs pull, or nmt import OWNER/NAME -o MODEL"
    (opus / "model.safetensors").write_bytes(weights)
    (opus / "source.spm").write_bytes(pointer)
    assert refusal(opus.parent).message == "source.spm is a pointer of Git LFS, not the file itself"


@pytest.mark.usefixtures("opus")
def test_a_model_that_computes_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt_cli.interchange.huggingface._NORM_EPSILON", 0.1)
    with pytest.raises(ModelError, match="transformers is not the same model as ours: it gives other scores"):
        imported(tmp_path)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "bart"},
            "is a Hugging Face model of type 'bart', and nmt import reads Marian, M2M-100 and dense",
        ),
        ({"model_type": None}, "is no Hugging Face model, and nmt import reads Marian, M2M-100 and dense"),
        ({"d_model": None}, "config.json: d_model: Field required"),
        ({"activation_function": "tanh"}, "has activation_function 'tanh', which nmt's model does not support"),
        ({"scale_embedding": False}, "has embeddings that are not scaled"),
        ({"decoder_ffn_dim": 96}, "has different feed-forward widths in encoder and decoder"),
        ({"decoder_attention_heads": 2}, "has different heads in encoder and decoder"),
        ({"encoder_ffn_dim": 64, "decoder_ffn_dim": 64}, r"has shape \[48, 32\], but should have \[64, 32\]"),
        ({"encoder_layers": 3}, "the tensor model.encoder.layers.2.self_attn.q_proj.weight is missing"),
        (
            {"vocab_size": 50, "decoder_vocab_size": 50, "pad_token_id": 3, "decoder_start_token_id": 3},
            r"vocab.json has ids up to \d+, and the model 50 rows",
        ),
        ({"length_penalty": -1.0}, "has length_penalty: -1.0, which nmt's model cannot have"),
        ({"bad_words_ids": 5}, "config.json: bad_words_ids: Input should be a valid list"),
        ({"pad_token_id": 9999}, "config.json has the id 9999, and the model"),
    ],
)
def test_a_directory_that_is_no_marian_model_of_ours_is_refused(
    opus: Path, changes: dict[str, Any], message: str
) -> None:
    for name in ("config.json", "generation_config.json"):
        edit_json(opus / name, **changes)
    assert re.search(message, refusal(opus.parent).message)


@pytest.mark.parametrize(
    ("settings", "ignored"),
    [
        ({"encoder_repetition_penalty": 2.0, "min_length": 4}, ["encoder_repetition_penalty", "min_length"]),
        ({"do_sample": True, "bad_words_ids": [[5]]}, ["do_sample", "bad_words_ids"]),
        ({"early_stopping": True}, ["early_stopping"]),
        ({"no_repeat_ngram_size": 0, "repetition_penalty": 1.0, "num_beams": 3}, []),
        ({"eos_token_id": [0]}, []),
    ],
)
def test_settings_of_the_search_that_nmt_lacks_are_named(
    opus: Path, settings: dict[str, Any], ignored: list[str]
) -> None:
    edit_json(opus / "generation_config.json", **settings)
    result = imported(opus.parent)
    assert result.ignored_settings == ignored
    assert result.agreement is not None


def test_the_first_id_may_stand_in_either_file_but_not_in_none(opus: Path) -> None:
    generation = (opus / "generation_config.json").read_text(encoding="utf-8")
    for name in ("config.json", "generation_config.json"):
        edit_json(opus / name, decoder_start_token_id=None)
    assert "decoder_start_token_id: Field required" in refusal(opus.parent).message
    (opus / "generation_config.json").write_text(generation, encoding="utf-8")
    assert imported(opus.parent).agreement is not None


@pytest.mark.parametrize("name", ["config.json", "vocab.json", "source.spm", "target.spm", "model.safetensors"])
def test_missing_and_damaged_files_are_named(opus: Path, name: str) -> None:
    file = opus / name
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    error = refusal(opus.parent)
    assert error.where == str(file)
    assert re.search("damaged|no SentencePiece model", error.message)
    file.unlink()
    if name == "model.safetensors":
        (opus / "pytorch_model.bin").write_bytes(content[:1000])
        assert refusal(opus.parent).message.startswith("pytorch_model.bin cannot be read: ")
        return
    assert re.fullmatch(f"{name} (is missing|cannot be read: No such file or directory)", refusal(opus.parent).message)


@pytest.mark.parametrize("content", ["[]", '{"a": "b"}', "5"])
def test_a_vocabulary_of_another_form_is_named(opus: Path, content: str) -> None:
    (opus / "vocab.json").write_text(content, encoding="utf-8")
    assert refusal(opus.parent).message == "vocab.json is not one id for each piece"


def test_weights_in_several_files(opus: Path) -> None:
    index = opus / "model.safetensors.index.json"
    (opus / "model.safetensors").rename(opus / "model-00001-of-00002.safetensors")
    assert refusal(opus.parent).message == f"{opus} has no weights: neither model.safetensors nor pytorch_model.bin"
    index.write_text('{"weight_map": {"a": "../x"}}')
    assert refusal(opus.parent).message == f"{index.name} does not say which file has which tensor"
    index.write_text(
        '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    )
    assert refusal(opus.parent).message == "model-00002-of-00002.safetensors is missing"


class Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this code is run",)


def test_code_in_old_weights_is_refused_and_not_run(opus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (opus / "model.safetensors").unlink()
    torch.save({"final_logits_bias": Malicious()}, opus / "pytorch_model.bin")
    assert refusal(opus.parent).message == "pytorch_model.bin cannot be read: Weights only load failed"
    assert "this code is run" not in capsys.readouterr().out
    torch.save([1, 2], opus / "pytorch_model.bin")
    assert "holds something else than tensors" in refusal(opus.parent).message


def test_the_unknown_piece_may_be_an_object(opus: Path) -> None:
    """As older versions of transformers write it."""
    unknown = {"__type": "AddedToken", "content": "<unk>", "lstrip": False, "normalized": True}
    edit_json(opus / "tokenizer_config.json", unk_token=unknown)
    agreement = imported(opus.parent).agreement
    assert agreement is not None
    assert agreement.largest_difference < 1e-5
    edit_json(opus / "tokenizer_config.json", unk_token="<UNK>")
    shutil.rmtree(opus.with_name("model"))
    assert refusal(opus.parent).message == "the vocabulary has no <UNK>"


@pytest.mark.usefixtures("opus")
def test_the_output_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    imported(tmp_path)
    with pytest.raises(ModelError, match="exists already"):
        imported(tmp_path)
    (tmp_path / "opus" / "LICENSE").write_text("CC-BY")
    imported(tmp_path, overwrite=True)
    assert (tmp_path / "model" / "LICENSE").read_text() == "CC-BY"
    with pytest.raises(ModelError, match="is not a model directory, so it is not replaced"):
        import_model(tmp_path / "opus", tmp_path / "opus", languages=None, imported_from=None, overwrite=True)


def test_a_model_directory_of_ours_needs_no_import(tmp_path: Path) -> None:
    model = save_sharp(tmp_path / "m")
    with pytest.raises(ModelError, match="is a model of nmt already") as caught:
        imported(tmp_path, name="m")
    assert caught.value.where == str(model)
    assert caught.value.hint == f"use it as it is: nmt decode -m {model}"
