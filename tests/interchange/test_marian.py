"""Marian directories that are odd in some way: read where they can be, else refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.artifacts.weights import read_tensors, write_tensors
from nmt_cli.errors import ModelError
from nmt_cli.interchange.importing import import_marian
from nmt_cli.recipe.schema import LanguagePair
from tests.interchange.builders import edit_json, write_marian


@pytest.fixture(scope="module")
def opus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("marian") / "opus"
    write_marian(folder)
    return folder


def refusal(folder: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        import_marian(
            folder, folder.with_name("model"), languages=LanguagePair(source="en", target="de"), overwrite=False
        )
    assert not folder.with_name("model").exists()
    assert caught.value.where is not None
    assert caught.value.where.startswith(str(folder))
    return caught.value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length_penalty": -1.0}, "has length_penalty: -1.0, which nmt's model cannot have"),
        ({"dropout": 1.0}, "has dropout: 1.0, which nmt's model cannot have"),
        ({"decoder_layers": 0}, "config.json: decoder_layers: Input should be greater than 0"),
        ({"eos_token_id": 3, "decoder_start_token_id": 3}, "ends sentences with the piece that it begins or pads them"),
        ({"tie_word_embeddings": False}, "the tensor lm_head.weight is missing"),
    ],
)
def test_settings_that_we_have_no_model_for(opus: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    shutil.copytree(opus, tmp_path / "opus")
    for name in ("config.json", "generation_config.json"):
        edit_json(tmp_path / "opus" / name, **changes)
    error = refusal(tmp_path / "opus")
    assert message in error.message
    assert error.hint


@pytest.mark.parametrize("name", ["config.json", "vocab.json", "source.spm"])
def test_a_folder_in_place_of_a_file(opus: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(opus, tmp_path / "opus")
    (tmp_path / "opus" / name).unlink()
    (tmp_path / "opus" / name).mkdir()
    assert refusal(tmp_path / "opus").message == f"{name} cannot be read: Is a directory"


def test_weights_in_several_files(opus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "opus"
    shutil.copytree(opus, folder)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    assert refusal(folder).hint == "fetch the directory again, all its files"
    (folder / "model.safetensors.index.json").write_text("{}")
    error = refusal(folder)
    assert error.message == f"{folder} has no weights: neither model.safetensors nor pytorch_model.bin"
    assert error.hint.startswith(
        "they are in several files: load it with transformers, and save it with max_shard_size"
    )


def test_the_unknown_piece_may_be_an_object(opus: Path, tmp_path: Path) -> None:
    """As older versions of transformers write it."""
    shutil.copytree(opus, tmp_path / "opus")
    unknown = {"__type": "AddedToken", "content": "<unk>", "lstrip": False, "normalized": True}
    edit_json(tmp_path / "opus" / "tokenizer_config.json", unk_token=unknown)
    made = import_marian(tmp_path / "opus", tmp_path / "model", languages=None, overwrite=False)
    assert made.agreement is not None
    assert made.agreement.largest_difference < 1e-5
    edit_json(tmp_path / "opus" / "tokenizer_config.json", unk_token="<UNK>")
    shutil.rmtree(tmp_path / "model")
    assert refusal(tmp_path / "opus").message == "the vocabulary has no <UNK>"


def test_copies_of_an_embedding_that_differ(opus: Path, tmp_path: Path) -> None:
    """Whichever of them was taken, without transformers nobody would notice that it is the wrong one."""
    shutil.copytree(opus, tmp_path / "opus")
    file = tmp_path / "opus" / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in read_tensors(file, hint="").items()}
    tensors["model.decoder.embed_tokens.weight"] = tensors["model.shared.weight"].clone()
    write_tensors(file, tensors)
    made = import_marian(tmp_path / "opus", tmp_path / "model", languages=None, overwrite=False)
    assert made.agreement is not None
    shutil.rmtree(tmp_path / "model")
    tensors["model.decoder.embed_tokens.weight"][5, 5] += 1
    write_tensors(file, tensors)
    assert "the tensor model.shared.weight has copies that are other ones" in refusal(tmp_path / "opus").message
