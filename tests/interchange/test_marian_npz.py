"""Marian's own .npz files: read as transformers and CTranslate2's converter read them, or refused by option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import yaml

from nmt_cli.api import Translator
from nmt_cli.errors import ModelError, UsageError
from nmt_cli.interchange.importing import ImportedModel, import_model
from nmt_cli.interchange.marian_npz import SETTINGS, find_npz, read_npz
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.tokenization.sentencepiece_model import NORMAL, Piece, read_pieces, with_pieces
from tests.interchange.builders import english, load
from tests.tokenization.models import train_spm
from tests.training.tiny import parallel_text

WIDTH, INNER, HEADS = 32, 48, 4
OPTIONS: dict[str, Any] = {
    "type": "transformer",
    "dim-emb": WIDTH,
    "enc-depth": 2,
    "dec-depth": 1,
    "transformer-heads": HEADS,
    "transformer-dim-ffn": INNER,
    "transformer-ffn-depth": 2,
    "transformer-ffn-activation": "swish",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-guided-alignment-layer": "last",
    "transformer-no-projection": False,
    "transformer-train-position-embeddings": False,
    "transformer-tied-layers": [],
    "transformer-dropout": 0.1,
    "transformer-dropout-attention": 0.2,
    "transformer-dropout-ffn": 0.3,
    "tied-embeddings": False,
    "tied-embeddings-all": True,
    "tied-embeddings-src": False,
    "right-left": False,
    "version": "v1.11.0",
}
PRE_NORM = {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}
SEPARATE = {"tied-embeddings-all": False, "tied-embeddings": True}


def marian_spm(*, vocab_size: int = 200, sides: tuple[int, ...] = (0, 1)) -> bytes:
    """A SentencePiece vocabulary as Marian trains it: the end is 0, and there is no start."""
    lines = [pair[side] for pair in parallel_text(600, seed=5) for side in sides]
    return train_spm(lines, vocab_size=vocab_size, bos_id=-1, eos_id=0, unk_id=1, hard_vocab_limit=False)


def sizes_of(*models: bytes) -> list[int]:
    return [len(sentencepiece.SentencePieceProcessor(model_proto=model)) for model in models]


def random_tensors(options: dict[str, Any], sizes: list[int]) -> dict[str, Any]:
    """Tensors by Marian's names: matrices [in, out], biases and norms [1, n]."""
    generator = np.random.default_rng(7)

    def matrix(rows: int, columns: int) -> Any:
        return (generator.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    def vector(size: int, *, around: float = 0.0) -> Any:
        return (around + 0.3 * generator.standard_normal((1, size))).astype(np.float32)

    def norm(name: str) -> dict[str, Any]:
        suffix = "_pre" if options["transformer-preprocess"] == "n" else ""
        return {f"{name}_ln_scale{suffix}": vector(WIDTH, around=1.0), f"{name}_ln_bias{suffix}": vector(WIDTH)}

    tensors: dict[str, Any] = {}
    if options["tied-embeddings-all"] or options["tied-embeddings-src"]:
        tensors["Wemb"] = matrix(sizes[0], WIDTH) * 2
    else:
        tensors |= {"encoder_Wemb": matrix(sizes[0], WIDTH), "decoder_Wemb": matrix(sizes[1], WIDTH) * 2}
    if not (options["tied-embeddings-all"] or options["tied-embeddings"]):
        tensors["decoder_ff_logit_out_W"] = matrix(WIDTH, sizes[1])
    tensors["decoder_ff_logit_out_b"] = vector(sizes[1])
    tensors["decoder_ff_logit_out_b"][0, 0] = 3  # so that translations end
    for side, depth in (("encoder", options["enc-depth"]), ("decoder", options["dec-depth"])):
        for number in range(1, depth + 1):
            layer = f"{side}_l{number}"
            for kind in ("self", "context")[: 1 + (side == "decoder")]:
                for letter in "qkvo":
                    tensors |= {
                        f"{layer}_{kind}_W{letter}": matrix(WIDTH, WIDTH),
                        f"{layer}_{kind}_b{letter}": vector(WIDTH),
                    }
                tensors |= norm(f"{layer}_{kind}_Wo")
            tensors |= {f"{layer}_ffn_W1": matrix(WIDTH, INNER), f"{layer}_ffn_b1": vector(INNER)}
            tensors |= {f"{layer}_ffn_W2": matrix(INNER, WIDTH), f"{layer}_ffn_b2": vector(WIDTH)}
            tensors |= norm(f"{layer}_ffn_ffn")
        if options["transformer-postprocess-top"] == "n":
            tensors |= {f"{side}_top_ln_scale": vector(WIDTH, around=1.0), f"{side}_top_ln_bias": vector(WIDTH)}
    return tensors


def write_npz(file: Path, tensors: dict[str, Any], options: dict[str, Any]) -> Path:
    """A model as Marian writes it: its options are bytes of YAML that end in NUL."""
    text = yaml.safe_dump(options).encode() + b"\0"
    arrays: dict[str, Any] = {**tensors, SETTINGS: np.frombuffer(text, dtype=np.int8)}
    np.savez(file, **arrays)
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "marian").mkdir()
    return tmp_path / "marian"


def write_model(
    folder: Path, *, without: tuple[str, ...] = (), extra: dict[str, Any] | None = None, **changes: Any
) -> Path:
    """A random model with a SentencePiece vocabulary; `__` stands for a hyphen in an option."""
    options = OPTIONS | {name.replace("__", "-"): value for name, value in changes.items()}
    vocabulary = marian_spm()
    (folder / "vocab.spm").write_bytes(vocabulary)
    (folder / "decoder.yml").write_text("vocabs: [vocab.spm]\n", encoding="utf-8")
    sizes = sizes_of(vocabulary) * 2
    tensors = random_tensors(OPTIONS | {name: options[name] for name in PRE_NORM}, sizes) | (extra or {})
    tensors = {name: array for name, array in tensors.items() if name not in without}
    return write_npz(folder / "model.npz", tensors, options | {"dim-vocabs": sizes})


def imported(path: Path, output: Path) -> ImportedModel:
    pair = LanguagePair(source="en", target="de")
    return import_model(path, output, languages=pair, imported_from=None, overwrite=False)


def refusal(path: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        imported(path, path.parent / "out")
    assert not (path.parent / "out").exists()
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, (200, 200)),
        ({"transformer-ffn-activation": "relu", "enc-depth": 1, "dec-depth": 3}, (200, 200)),
        (PRE_NORM, (200, 200)),
        (SEPARATE, (200, 120)),
        ({"tied-embeddings-all": False}, (120, 200)),
        ({"tied-embeddings-all": False, "tied-embeddings-src": True}, (200, 200)),
    ],
    ids=["as OPUS-MT", "relu, other depths", "pre-norm", "two vocabularies", "nothing tied", "embeddings tied"],
)
def test_a_model_is_what_ctranslate2_s_own_converter_makes_of_it(
    folder: Path, tmp_path: Path, changes: dict[str, Any], sizes: tuple[int, int]
) -> None:
    pytest.importorskip("ctranslate2")
    sides = ((0, 1), (0, 1)) if sizes[0] == sizes[1] else ((0,), (1,))
    models = [marian_spm(vocab_size=size, sides=side) for size, side in zip(sizes, sides, strict=True)]
    for name, model in zip(("en", "de"), models, strict=True):
        (folder / f"{name}.spm").write_bytes(model)
    options = OPTIONS | changes | {"dim-vocabs": sizes_of(*models)}
    write_npz(folder / "model.npz", random_tensors(options, sizes_of(*models)), options)
    decoder = {"vocabs": ["/home/trainer/en.spm", "de.spm"], "beam-size": 6, "normalize": 0.6}
    (folder / "model.npz.decoder.yml").write_text(yaml.safe_dump(decoder), encoding="utf-8")
    found = imported(folder / "model.npz", tmp_path / "model")
    assert found.agreement is not None
    assert found.agreement.largest_difference < 1e-3
    assert found.agreement.num_lines > 10
    recipe = load(tmp_path / "model").config.recipe
    assert (recipe.decoding.beam, recipe.decoding.length_penalty, recipe.decoding.length_penalty_form) == (
        6,
        0.6,
        "length",
    )
    assert recipe.model.norm_epsilon == 1e-6
    assert (recipe.model.attention_dropout, recipe.model.ffn_dropout) == (0.2, 0.3)
    assert len(Translator.from_pretrained(tmp_path / "model").translate(list(english(3)))) == 3


def test_a_model_that_ctranslate2_does_not_convert_is_imported_and_says_so(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    write_model(folder)
    with np.load(folder / "model.npz") as content:
        tensors = {name: content[name] for name in content.files if name != SETTINGS}
    options = {name: value for name, value in OPTIONS.items() if name != "transformer-no-projection"}
    write_npz(folder / "model.npz", tensors, options)  # as versions of Marian without the option write it
    found = imported(folder, tmp_path / "model")
    assert found.agreement is None
    reason = "loading it in CTranslate2 failed: 'transformer-no-projection'"
    assert found.comparison == f"not compared with the original: {reason}"
    assert found.ignored_settings == []
    (folder / "decoder.yml").write_text("vocabs: [vocab.spm]\nword-penalty: 0.5\n", encoding="utf-8")
    assert imported(folder, tmp_path / "penalised").ignored_settings == ["word-penalty"]


def test_a_vocabulary_of_yaml_is_read_as_one_of_sentencepiece(folder: Path, tmp_path: Path) -> None:
    file = write_model(folder)
    imported(file, tmp_path / "by spm")
    vocabulary = (folder / "vocab.spm").read_bytes()
    (folder / "vocab.spm").unlink()
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(vocabulary)
    pieces = enumerate(read_pieces(vocabulary))
    listed = "".join(f"{json.dumps(piece.text, ensure_ascii=False)}: {number}\n" for number, piece in pieces)
    (folder / "x.vocab.yml").write_text(listed, encoding="utf-8")
    (folder / "decoder.yml").write_text("vocabs: [x.vocab.yml]\n", encoding="utf-8")
    imported(file, tmp_path / "by yaml")
    for name in ("model.safetensors", "source.spm", "target.spm"):
        assert (tmp_path / "by yaml" / name).read_bytes() == (tmp_path / "by spm" / name).read_bytes()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("type", "s2s"),
        ("transformer-decoder-autoreg", "rnn"),
        ("transformer-ffn-activation", "gelu"),
        ("transformer-postprocess", "da"),
        ("transformer-preprocess", "n"),
        ("transformer-no-projection", True),
        ("transformer-tied-layers", [1, 1]),
        ("transformer-decoder-dim-ffn", 64),
    ],
)
def test_what_our_model_has_not_is_refused_by_the_name_of_the_option(folder: Path, option: str, value: Any) -> None:
    file = write_model(folder)
    tensors = dict(np.load(file))
    settings = yaml.safe_load(tensors.pop(SETTINGS).tobytes().rstrip(b"\0"))
    write_npz(file, tensors, settings | {option: value})
    named = {"transformer-preprocess": "transformer-postprocess dan"}.get(
        option, f"{option} {str(value).lower() if value is True else value}"
    )
    error = refusal(file)
    assert error.message == f"model.npz was trained with --{named}"
    assert error.hint == "translate with Marian itself: nmt's model has no such part"


def test_damaged_and_foreign_files_are_named(folder: Path) -> None:
    file = write_model(folder, without=("encoder_l1_self_Wq",))
    assert refusal(file).message == "the tensor encoder_l1_self_Wq is missing"
    file = write_model(folder, extra={"Wpos": np.zeros((9, WIDTH), np.float32)})
    assert refusal(file).message == "the tensor Wpos has no place in nmt's model"
    file = write_model(folder, extra={"encoder_l1_ffn_W1": np.zeros((WIDTH, INNER), np.int8)})
    assert "the model was quantised by marian-conv" in refusal(file).message
    np.savez(file, a=np.zeros(3))
    assert refusal(file).message == "model.npz is no Marian model: it has no special:model.yml"
    np.savez(file, a=np.array([{}], dtype=object))
    assert (
        "cannot be read: Object arrays cannot be loaded" in refusal(file).message
        or "no Marian model" in refusal(file).message
    )
    file.write_bytes(b"PK\x03\x04 nothing")
    assert "model.npz cannot be read" in refusal(file).message


def test_a_wrong_option_is_named(folder: Path) -> None:
    file = write_model(folder)
    (folder / "decoder.yml").write_text("vocabs: vocab.spm\nnormalize: much\n", encoding="utf-8")
    assert "length_penalty: Input should be a valid number" in refusal(file).message
    (folder / "decoder.yml").write_text("since: 2026-99-99\n", encoding="utf-8")  # YAML reads a date
    assert refusal(file).message.startswith("decoder.yml cannot be read: ")


def test_without_an_output_bias_no_row_that_marian_lacks_can_be_predicted(folder: Path) -> None:
    models = [marian_spm(sides=(1,)), marian_spm(sides=(0,))]
    for name, model in zip(("source", "target"), models, strict=True):
        (folder / f"{name}.spm").write_bytes(model)
    sizes = sizes_of(*models)
    tensors = random_tensors(OPTIONS | SEPARATE, sizes)
    del tensors["decoder_ff_logit_out_b"]
    (folder / "decoder.yml").write_text("vocabs: [source.spm, target.spm]\n", encoding="utf-8")
    found = read_npz(write_npz(folder / "model.npz", tensors, OPTIONS | SEPARATE | {"dim-vocabs": sizes}))
    assert found.settings.target_rows == sizes[0] + 1 > sizes[1] + 1
    assert found.weights["final_logits_bias"][0].tolist() == [0.0] * sizes[1] + [-100.0] * (sizes[0] + 1 - sizes[1])


def test_vocabularies_are_found_and_named(folder: Path, tmp_path: Path) -> None:
    file = write_model(folder)
    with pytest.raises(UsageError, match=r"the languages of .* are not known"):
        import_model(file, tmp_path / "out", languages=None, imported_from=None, overwrite=False)
    (folder / "decoder.yml").write_text("vocabs: [gone.yml, gone.yml]\n", encoding="utf-8")
    assert refusal(file).message == "there is no vocabulary gone.yml"
    (folder / "decoder.yml").unlink()
    error = refusal(file)
    assert error.message == "nothing names the vocabularies of model.npz"
    assert error.hint == "put decoder.yml beside model.npz, with vocabs: [SOURCE, TARGET] in it"
    (folder / "decoder.yml").write_text("vocabs: [vocab.spm]\n", encoding="utf-8")
    vocabulary = (folder / "vocab.spm").read_bytes()
    pieces = [Piece(piece.text.replace("<unk>", "unk"), piece.score, NORMAL) for piece in read_pieces(vocabulary)]
    (folder / "vocab.spm").write_bytes(with_pieces(vocabulary, pieces, has_bytes=False))
    assert refusal(file).message == "vocab.spm is no SentencePiece model"  # it would not load
    (folder / "decoder.yml").write_text("vocabs: [x.vocab.yml, x.vocab.yml]\n", encoding="utf-8")
    (folder / "x.vocab.yml").write_text("</s>: 0\n<unk>: 1\n▁the: 2\n", encoding="utf-8")
    assert refusal(file).message == "x.vocab.yml lists pieces, and there is no source.spm that makes them"
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(vocabulary)
    (folder / "x.vocab.yml").write_text("</s>: 0\n▁a: 1\n▁the: 2\n", encoding="utf-8")
    assert refusal(file).message == "the vocabulary has no <unk>"
    (folder / "x.vocab.yml").write_text("</s>: 0\n<unk>: 1\n▁the: 2\n", encoding="utf-8")
    assert "the vocabularies have 3 and 3 pieces" in refusal(file).message
    (folder / "y.vocab.yml").write_text("<unk>: 0\n</s>: 1\n▁the: 2\n", encoding="utf-8")
    (folder / "decoder.yml").write_text("vocabs: [x.vocab.yml, y.vocab.yml]\n", encoding="utf-8")
    assert refusal(file).message == "the vocabularies give </s> two ids, 0 and 1"
    (folder / "x.vocab.yml").write_text("- a\n- b\n", encoding="utf-8")
    assert refusal(file).message == "x.vocab.yml is not one id for each piece"
    (folder / "other.npz").write_bytes(file.read_bytes())
    two = folder.rename(folder.with_name("two models"))
    with pytest.raises(ModelError, match="has 2 models") as caught:
        find_npz(two)
    command = f"nmt import '{two / 'model.npz'}' --languages en-de -o models/model"
    assert caught.value.hint == f"name the file: {command}, with its languages"
