"""The average of checkpoints or models: which are taken, that it is their mean, and what is refused."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from nmt_cli.api import Translator
from nmt_cli.artifacts.average import (
    average_checkpoints,
    choose_checkpoints,
    write_average_of_checkpoints,
    write_average_of_models,
)
from nmt_cli.artifacts.checkpoints import read_checkpoint
from nmt_cli.artifacts.info import describe_model
from nmt_cli.artifacts.manifest import read_manifest, verify_files, write_manifest
from nmt_cli.artifacts.model_directory import dump_saved_config, load_model, load_saved_config, save_model
from nmt_cli.artifacts.run import open_run
from nmt_cli.artifacts.weights import read_tensors, weights_of
from nmt_cli.cli.average import average
from nmt_cli.cli.info import _model_facts
from nmt_cli.errors import ModelError
from nmt_cli.files import remove_directory
from nmt_cli.recipe.directions import Directions
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.recipe.training import AveragingConfig
from nmt_cli.tokenization.sentencepiece_model import read_pieces, with_pieces
from tests.artifacts.builders import (
    save_tiny,
    spm_bytes,
    tiny_config,
    tiny_model,
    tiny_recipe,
    write_checkpoint,
    write_run,
)

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
ARRAYS = st.lists(hnp.arrays(np.float32, (2, 3), elements=FLOATS), min_size=1, max_size=6)


def write(run: Path, arrays: list[np.ndarray]) -> list[Path]:
    """Checkpoints of one tensor each, which differ in a second one: two equal ones would be refused as copies."""
    return [
        write_checkpoint(run, update, weights={"w": torch.from_numpy(array), "number": torch.tensor([float(update)])})
        for update, array in enumerate(arrays, start=1)
    ]


def mean_of(paths: list[Path]) -> dict[str, Tensor]:
    return average_checkpoints([read_checkpoint(path) for path in paths])


@settings(max_examples=40)
@given(arrays=ARRAYS)
def test_the_average_is_numpys_float64_mean(arrays: list[np.ndarray]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mean = mean_of(write(Path(folder), arrays))["w"]
    total = np.zeros((2, 3))
    for array in arrays:
        total += array.astype(np.float64)
    assert mean.dtype == torch.float32
    np.testing.assert_array_equal(mean.numpy(), (total / len(arrays)).astype(np.float32))


@settings(max_examples=20)
@given(arrays=ARRAYS, data=st.data())
def test_the_order_of_checkpoints_changes_no_bit(arrays: list[np.ndarray], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder), arrays)
        shuffled = data.draw(st.permutations(paths))
        assert torch.equal(mean_of(paths)["w"], mean_of(shuffled)["w"])


def test_a_whole_model_is_averaged_tensor_by_tensor(tmp_path: Path) -> None:
    write_run(tmp_path / "x", updates=3)
    found = mean_of(sorted((tmp_path / "x" / "checkpoints").iterdir()))
    models = [weights_of(tiny_model(tiny_recipe(), seed=seed)) for seed in (1, 2, 3)]
    assert found.keys() == models[0].keys()
    for name, tensor in found.items():
        expected = np.mean([model[name].double().numpy() for model in models], axis=0)
        np.testing.assert_array_equal(tensor.numpy(), expected.astype(np.float32))


def updates(run: Path, *, last: int | None = None, best: int | None = None) -> list[int]:
    by, number = AveragingConfig(last=last, best=best).choice
    return [checkpoint.update for checkpoint in choose_checkpoints(open_run(run), by=by, number=number)]


def test_the_newest_are_chosen_in_order(tmp_path: Path) -> None:
    write_run(tmp_path / "x", updates=12)
    assert updates(tmp_path / "x", last=3) == [1000, 1100, 1200]
    (tmp_path / "x" / "checkpoints" / ".update-00001300.77.partial").mkdir()
    assert updates(tmp_path / "x", last=1) == [1200]


def test_the_best_go_by_the_metric_of_the_recipe(tmp_path: Path) -> None:
    # BLEU: 11, 12, 40, 14 (the last but one is best); the loss falls throughout.
    write_run(tmp_path / "bleu", updates=4)
    assert updates(tmp_path / "bleu", best=2) == [300, 400]
    assert updates(tmp_path / "bleu", best=1) == [300]
    write_run(tmp_path / "loss", updates=4, recipe=tiny_recipe(validation={"metric": "loss"}))
    assert updates(tmp_path / "loss", best=1) == [400]


def test_a_checkpoint_that_a_training_removes_meanwhile_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "x", updates=4)
    removed = tmp_path / "x" / "checkpoints" / "update-00000200"

    def late(directory: Path, *, hint: str) -> dict[str, Any]:
        if directory == removed:
            remove_directory(removed)
        return read_manifest(directory, hint=hint)

    monkeypatch.setattr("nmt_cli.artifacts.checkpoints.read_manifest", late)
    assert updates(tmp_path / "x", last=3) == [100, 300, 400]
    (removed.with_name("update-00000300") / "manifest.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match=r"manifest\.json is damaged"):
        updates(tmp_path / "x", last=2)


def test_too_few_checkpoints_say_how_many_there_are(tmp_path: Path) -> None:
    write_run(tmp_path / "x", updates=2)
    with pytest.raises(ModelError, match=r"^5 were asked for, but the run has 2 checkpoints\n") as caught:
        updates(tmp_path / "x", last=5)
    assert caught.value.where == str(tmp_path / "x" / "checkpoints")
    assert caught.value.hint == f"nmt average {tmp_path / 'x'} --last 2"
    write_checkpoint(tmp_path / "x", 300, weights={"w": torch.zeros(1)})
    with pytest.raises(ModelError, match="but the run has 2 checkpoints with a validation bleu"):
        updates(tmp_path / "x", best=3)


def test_a_run_without_a_checkpoint_is_trained_on_and_not_begun_anew(tmp_path: Path) -> None:
    write_run(tmp_path / "new")
    record = tmp_path / "new" / "run.json"
    record.write_text(record.read_text().replace('"tiny.yaml",', '"tiny.yaml", "--restart",'), encoding="utf-8")
    with pytest.raises(ModelError, match="the run has no checkpoint yet") as caught:
        updates(tmp_path / "new", last=1)
    assert caught.value.hint == "train it: nmt train tiny.yaml --data data/mini"


def test_a_checkpoint_given_twice_is_refused(tmp_path: Path) -> None:
    first = write_checkpoint(tmp_path, 1, weights={"w": torch.zeros(2)})
    with pytest.raises(ModelError, match="update-00000001 is given twice") as caught:
        mean_of([first, first.parent / "." / first.name])
    assert caught.value.hint == "name each checkpoint once"
    copy = write_checkpoint(tmp_path, 2, weights={"w": torch.zeros(2)})
    with pytest.raises(ModelError, match=r"update-00000002 has the weights of .*update-00000001"):
        mean_of([first, copy])


def pair(run: Path, weights: dict[str, Tensor]) -> list[Path]:
    first = write_checkpoint(run, 1, weights={"v": torch.zeros(2), "w": torch.zeros(2)})
    return [first, write_checkpoint(run, 2, weights=weights)]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    paths = pair(tmp_path, {"v": torch.zeros(2), "w": torch.tensor([0.0, value])})
    with pytest.raises(ModelError) as caught:
        mean_of(paths)
    assert caught.value.message == "the tensor w has values that are not finite"
    assert caught.value.where == str(paths[1] / "model.safetensors")
    assert "average the others: nmt average CHECKPOINT" in caught.value.hint


def test_another_shape_is_refused(tmp_path: Path) -> None:
    paths = pair(tmp_path, {"v": torch.zeros(2), "w": torch.zeros(3)})
    with pytest.raises(ModelError, match=r"the tensor w has shape \[3\], but should have \[2\]") as caught:
        mean_of(paths)
    assert caught.value.where == str(paths[1] / "model.safetensors")


def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    paths = pair(tmp_path, {"v": torch.ones(2), "w": torch.ones(2)})
    file = paths[1] / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"model\.safetensors is cut short") as caught:
        mean_of(paths)
    assert caught.value.where == str(file)
    (paths[1] / "manifest.json").write_text("{")
    with pytest.raises(ModelError, match=r"manifest\.json is damaged") as caught:
        mean_of(paths)
    assert f"rm -r {paths[1]}" in caught.value.hint


def test_the_model_is_whole_and_its_own_average_is_renewed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_run(path, updates=4)
    run = open_run(path)
    for last in (4, 2):  # the second replaces the first
        write_average_of_checkpoints(
            run,
            choose_checkpoints(run, by="last", number=last),
            output=path / "averaged",
            overwrite=False,
            command=["nmt", "average"],
            measure=None,
        )
    loaded = load_model(path / "averaged", device=torch.device("cpu"), dtype=torch.float32)
    assert loaded.config.updates == [300, 400]
    assert [measured.bleu for measured in loaded.config.validation] == [40.0, 14.0]
    expected = mean_of([path / "checkpoints" / f"update-00000{update}" for update in (300, 400)])
    for name, tensor in weights_of(loaded.model).items():
        assert torch.equal(tensor, expected[name]), name


def test_a_new_average_keeps_the_licence_and_an_edited_card(tmp_path: Path) -> None:
    write_run(tmp_path / "x", updates=4)
    averaged = tmp_path / "x" / "averaged"
    call(tmp_path / "x", last=2)
    averaged.rename(tmp_path / "elsewhere")
    averaged.symlink_to(tmp_path / "elsewhere")
    (averaged / "LICENSE").write_text("mine", encoding="utf-8")
    os.utime(averaged / "README.md")  # as a copy in another order leaves it
    call(tmp_path / "x", last=3)
    assert not (averaged / "README.old.md").exists()
    (averaged / "README.md").write_text("my own words", encoding="utf-8")
    os.utime(averaged / "manifest.json")  # as a copy may leave it
    for last in (2, 3):  # the second finds the old card, and a card that nobody edited
        call(tmp_path / "x", last=last)
        assert (averaged / "LICENSE").read_text(encoding="utf-8") == "mine"
        assert (averaged / "README.old.md").read_text(encoding="utf-8") == "my own words"
        assert f"the average of {last} checkpoints" in (averaged / "README.md").read_text(encoding="utf-8")
    verify_files(averaged, hint="")
    call(tmp_path / "x" / "checkpoints" / "update-00000400", output=tmp_path / "else")
    assert not (tmp_path / "else" / "LICENSE").exists()


def test_the_tokenizers_of_the_run_are_checked_first(tmp_path: Path) -> None:
    write_run(tmp_path / "x", updates=1)
    run = open_run(tmp_path / "x")
    chosen = choose_checkpoints(run, by="last", number=1)
    (run.directory / "target.spm").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"target\.spm is not the tokenizer that this run was trained with") as caught:
        write_average_of_checkpoints(run, chosen, output=tmp_path / "m", overwrite=False, command=["nmt"], measure=None)
    assert caught.value.hint == "copy the right one from data/mini"
    (run.directory / "source.spm").unlink()
    with pytest.raises(ModelError, match=r"source\.spm is missing"):
        write_average_of_checkpoints(run, chosen, output=tmp_path / "m", overwrite=False, command=["nmt"], measure=None)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("run.json", None, "is not a run: it has no run.json"),
        ("run.json", json.dumps({"languages": {"source": "en"}}), "run.json is damaged: languages.pairs.0.target"),
        ("recipe.yaml", None, "recipe.yaml is missing"),
        ("recipe.yaml", "name: x\nmodell: {}\n", "recipe.yaml: unknown key"),
    ],
)
def test_a_damaged_run_is_named(tmp_path: Path, file: str, content: str | None, message: str) -> None:
    write_run(tmp_path / "x")
    if content is None:
        (tmp_path / "x" / file).unlink()
    else:
        (tmp_path / "x" / file).write_text(content)
    with pytest.raises(ModelError) as caught:
        open_run(tmp_path / "x")
    assert message in caught.value.message
    assert caught.value.hint


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
    of_hub = load_saved_config(models[1]).model_copy(update={"imported_from": "Helsinki-NLP/opus-mt-en-de@abc"})
    (models[1] / "config.yaml").write_text(dump_saved_config(of_hub), encoding="utf-8")
    write_manifest(models[1], {"kind": "model", "updates": of_hub.updates})
    for model, licence in zip(models, ("cc-by-4.0", "cc-by-nc-4.0"), strict=True):
        (model / "README.md").write_text(f"---\nlicense: {licence}\n---\n", encoding="utf-8")
        (model / "LICENSE").write_text(f"all of {licence}", encoding="utf-8")
    call(*models, output=tmp_path / "mean")
    first, second, mean = (read_tensors(path / "model.safetensors", hint="") for path in (*models, tmp_path / "mean"))
    assert first.keys() == mean.keys()
    for name, tensor in mean.items():
        assert torch.equal(tensor, ((first[name].double() + second[name].double()) / 2).float())
    config = load_saved_config(tmp_path / "mean")
    assert (config.updates, config.validation, config.average_losses, config.imported_from) == ([], [], None, None)
    facts = dict(_model_facts(describe_model(tmp_path / "mean"), name="mean"))
    assert facts["weights"] == "imported from another program or an average of models"
    assert facts["licence"] == "cc-by-4.0, cc-by-nc-4.0: for non-commercial use only"
    assert (tmp_path / "mean" / "LICENSE").read_text(encoding="utf-8") == "all of cc-by-4.0\nall of cc-by-nc-4.0"
    assert config.recipe == load_saved_config(models[1]).recipe
    card = (tmp_path / "mean" / "README.md").read_text(encoding="utf-8")
    assert f"the average of 2 models: `{models[0]}`, `{models[1]}`." in card
    load_model(tmp_path / "mean", device=torch.device("cpu"), dtype=torch.float32)
    assert len(Translator.from_pretrained(tmp_path / "mean").translate(["a small house"])) == 1


def test_a_path_that_is_not_utf8_can_be_averaged_to(models: list[Path], tmp_path: Path) -> None:
    output = tmp_path / os.fsdecode(b"gr\xf6\xdfe")
    command = ["nmt", "average", "-o", str(output)]
    write_average_of_models(models, output=output, overwrite=False, command=command)
    assert "gr??e" in (output / "README.md").read_text(encoding="utf-8")


def test_models_that_do_not_fit_are_refused(models: list[Path], tmp_path: Path) -> None:
    first, _ = models
    wider = tiny_recipe(model={"d_ff": 40})
    save_tiny(tmp_path / "wider", spm_folder=tmp_path, recipe=wider, model=tiny_model(wider))
    save_tiny(tmp_path / "back", spm_folder=tmp_path, languages="de-en", seed=3)
    cases = {
        first: (f"{first} is given twice", "name each model once"),
        tmp_path / "wider": ("has model.d_ff 40, and", "average models of one architecture"),
        tmp_path / "back": (f"was trained on de-en, and {first} was not", "average models of the same directions, or"),
    }
    for path, (message, hint) in cases.items():
        with pytest.raises(ModelError) as caught:
            write_average_of_models([first, path], output=tmp_path / "mean", overwrite=False, command=["nmt"])
        assert message in caught.value.message
        assert caught.value.hint.startswith(hint)
    assert not (tmp_path / "mean").exists()


@pytest.mark.parametrize("tuned_on", ["en-de", "en-fr", "de-en"])
def test_a_model_and_its_fine_tuned_copy_keep_all_directions(tmp_path: Path, tuned_on: str) -> None:
    symbols = {code: f"<2{code}>" for code in ("de", "en")}
    pairs = [LanguagePair(source="en", target="de"), LanguagePair(source="de", target="en")]
    whole = Directions(pairs=pairs, target_symbols=symbols)
    source, target = tuned_on.split("-")
    tuned = Directions(
        pairs=[LanguagePair(source=source, target=target)], target_symbols={target: symbols.get(target, "<2de>")}
    )
    paths = [tmp_path / "whole", tmp_path / "tuned"]
    recipe, spm = tiny_recipe(), spm_bytes(symbols=("<2de>", "<2en>"))
    for seed, (path, languages) in enumerate(zip(paths, (whole, tuned), strict=True)):
        model = tiny_model(recipe, seed=seed)
        config = tiny_config(recipe, updates=[7], languages=languages)
        save_model(
            path, config=config, weights=weights_of(model), source_spm=spm, target_spm=spm, card="", overwrite=False
        )
    if tuned_on == "en-fr":
        with pytest.raises(ModelError, match=r"tuned was trained on en-fr, and .*whole was not"):
            call(*paths, output=tmp_path / "mean")
    else:
        call(*paths, output=tmp_path / "mean")
        assert load_saved_config(tmp_path / "mean").languages == whole


def test_another_vocabulary_is_refused(models: list[Path], tmp_path: Path) -> None:
    pieces = read_pieces(spm_bytes())
    spm = with_pieces(spm_bytes(), [*pieces[:-1], replace(pieces[-1], text="other")], has_bytes=True)
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
