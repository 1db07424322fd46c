"""The mean of finished models: each weight in the middle, and only for models of one kind and vocabulary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nmt_cli.api import Translator
from nmt_cli.artifacts.average import write_average_of_models
from nmt_cli.artifacts.model_directory import load_model, load_saved_config, save_model
from nmt_cli.artifacts.weights import read_tensors
from nmt_cli.cli.average import average
from nmt_cli.errors import ModelError, UsageError
from nmt_cli.tokenization.sentencepiece_model import read_pieces, with_pieces
from tests.artifacts.builders import save_tiny, spm_bytes, tiny_model, tiny_recipe


def call(*paths: Path, output: Path | None = None, last: int | None = None) -> None:
    average(list(paths), output=output, last=last, best=None, overwrite=False)


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """Two models of one architecture and vocabulary, with other weights."""
    for seed, name in ((1, "first"), (2, "second")):
        recipe = tiny_recipe(model={"dropout": 0.1 * seed})
        model = tiny_model(recipe, seed=seed)
        save_tiny(tmp_path / name, spm_folder=tmp_path, recipe=recipe, model=model)
    return [tmp_path / "first", tmp_path / "second"]


def test_every_weight_is_the_mean_and_all_else_is_the_last_model_s(models: list[Path], tmp_path: Path) -> None:
    call(*models, output=tmp_path / "mean")
    first, second, mean = (read_tensors(path / "model.safetensors", hint="") for path in (*models, tmp_path / "mean"))
    assert first.keys() == mean.keys()
    for name, tensor in mean.items():
        assert torch.equal(tensor, ((first[name].double() + second[name].double()) / 2).float())
    config = load_saved_config(tmp_path / "mean")
    assert (config.updates, config.validation, config.mean) == ([], [], None)
    assert config.recipe == load_saved_config(models[1]).recipe
    card = (tmp_path / "mean" / "README.md").read_text(encoding="utf-8")
    assert f"the mean of 2 models: `{models[0]}`, `{models[1]}`." in card
    load_model(tmp_path / "mean", device=torch.device("cpu"), dtype=torch.float32)
    assert len(Translator.from_pretrained(tmp_path / "mean").translate(["a small house"])) == 1


def test_models_that_do_not_fit_are_refused(models: list[Path], tmp_path: Path) -> None:
    first, _ = models
    wider = tiny_recipe(model={"d_ff": 40})
    save_tiny(tmp_path / "wider", spm_folder=tmp_path, recipe=wider, model=tiny_model(wider))
    cases = {
        first: (f"{first} has the weights of {first}", "name each model once"),
        tmp_path / "wider": ("has model.d_ff 40, and", "average models of one architecture"),
    }
    for path, (message, hint) in cases.items():
        with pytest.raises(ModelError) as caught:
            write_average_of_models([first, path], output=tmp_path / "mean", overwrite=False, command=["nmt"])
        assert message in caught.value.message
        assert caught.value.hint == hint
    assert not (tmp_path / "mean").exists()


def test_tables_of_positions_of_two_lengths_are_refused(tmp_path: Path) -> None:
    for seed, longest in ((1, 32), (2, 64)):
        recipe = tiny_recipe(model={"positions": "learned", "max_positions": longest})
        save_tiny(tmp_path / str(longest), spm_folder=tmp_path, recipe=recipe, model=tiny_model(recipe, seed=seed))
    with pytest.raises(ModelError, match=r"has model\.max_positions 64, and .* 32") as caught:
        call(tmp_path / "32", tmp_path / "64", output=tmp_path / "mean")
    assert caught.value.hint == "average models of one architecture"


def test_another_vocabulary_is_refused(models: list[Path], tmp_path: Path) -> None:
    pieces = read_pieces(spm_bytes())
    spm = tmp_path / "other.spm"
    spm.write_bytes(with_pieces(spm_bytes(), [*pieces[:-1], replace(pieces[-1], text="other")], has_bytes=True))
    save_model(
        tmp_path / "other",
        config=load_saved_config(models[1]),
        weights=read_tensors(models[1] / "model.safetensors", hint=""),
        source_spm=spm,
        target_spm=spm,
        card="",
        overwrite=False,
    )
    paths = [models[0], tmp_path / "other"]
    with pytest.raises(ModelError) as caught:
        write_average_of_models(paths, output=tmp_path / "mean", overwrite=False, command=["nmt"])
    assert caught.value.message == f"{paths[1]} has another source.spm than {paths[0]}"
    assert caught.value.hint == "average models of one vocabulary: a model, and what --init-from made of it"


def test_the_command_says_what_to_type(models: list[Path], tmp_path: Path) -> None:
    first, second = models
    with pytest.raises(UsageError, match="is one model, and a mean is of several") as caught:
        call(first, output=tmp_path / "mean")
    assert caught.value.hint == f"name a second one: nmt average {first} MODEL -o DIR"
    with pytest.raises(UsageError, match="a mean of models needs a folder of its own") as caught:
        call(first, second)
    assert caught.value.hint == f"nmt average {first} {second} -o models/mean"
    with pytest.raises(UsageError, match="--last and --best choose among a run's checkpoints"):
        call(first, second, output=tmp_path / "mean", last=1)
