"""Fine-tuning: a run that begins with a model's weights, where data and recipe fit it, and never reads it again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nmt_cli.artifacts.info import describe_model
from nmt_cli.artifacts.model_card import read_card
from nmt_cli.artifacts.model_directory import load_saved_config
from nmt_cli.artifacts.run import model_of_run, open_run
from nmt_cli.artifacts.weights import read_tensors
from nmt_cli.cli.average import average
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.errors import DataError, RecipeError, UsageError
from tests.training.tiny import (
    LEARNT,
    RECIPE,
    checkpoint,
    checkpoints,
    events,
    prepare_tiny,
    stopped_after,
    train,
)

SHORT = ("training.updates=6", "training.checkpoint_every=2", "training.log_every=1")
# So small a rate that the first update leaves the weights as good as they are.
STILL = "training.schedule={name: constant, peak: 1e-9, warmup_updates: 1}"


@pytest.fixture(scope="module")
def trained(finished_run: Callable[..., Path]) -> Path:
    """A model after 60 updates."""
    return finished_run(*LEARNT) / "model"


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(trained, tmp_path / "model")


def test_a_fine_tuned_model_has_the_licence_of_the_model_that_it_was_made_of(
    prepared: PreparedData, model: Path, tmp_path: Path
) -> None:
    card = "---\nlicense: cc-by-nc-4.0\nbase_model: facebook/nllb-200-distilled-600M\n---\n\n# NLLB-200\n"
    (model / "README.md").write_text(card, encoding="utf-8")
    (model / "LICENSE").write_text("not for sale", encoding="utf-8")
    assert train(prepared, tmp_path / "tuned", STILL, "training.updates=1", init_from=model) == 0
    shutil.rmtree(model)
    tuned = tmp_path / "tuned" / "model"
    assert train(prepared, tmp_path / "again", STILL, "training.updates=1", init_from=tuned) == 0
    average([tmp_path / "again"], output=tmp_path / "average", last=1, best=None, overwrite=False)
    for made in (tuned, tmp_path / "again" / "model", tmp_path / "average"):
        assert describe_model(made)["license"] == "cc-by-nc-4.0", made
        values, text = read_card(made)
        assert values["base_model"] == "facebook/nllb-200-distilled-600M"
        assert "cc-by-nc-4.0" in text
        assert (made / "LICENSE").read_text(encoding="utf-8") == "not for sale"


@pytest.mark.parametrize("is_named", [True, False], ids=["the model", "its run"])
def test_a_run_begins_with_the_weights_of_the_model_and_says_so(
    prepared: PreparedData, trained: Path, tmp_path: Path, is_named: bool
) -> None:
    run, model = tmp_path / "run", trained if is_named else trained.parent
    assert train(prepared, run, STILL, *SHORT, "model.dropout=0.3", init_from=model) == 0
    before, after = (read_tensors(path / "model.safetensors", hint="") for path in (trained, run / "model"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.allclose(after[name], tensor, atol=1e-7)
    losses = [event["nll"] for event in events(run, "train")]
    assert losses[0] < 3  # with random weights: log 400
    sha256 = json.loads((trained / "manifest.json").read_text())["files"]["model.safetensors"]["sha256"]
    record = open_run(run).record.init_from
    assert record is not None
    assert (record.path, record.weights_sha256, record.updates) == (str(trained.resolve()), sha256, [60])


def test_a_resume_does_not_read_the_model_again_and_ends_in_the_same_bits(
    prepared: PreparedData, model: Path, tmp_path: Path
) -> None:
    settings = ["training.schedule={name: constant, peak: 1e-3, warmup_updates: 2}"]
    assert train(prepared, tmp_path / "whole", *settings, *SHORT, init_from=model) == 0
    with stopped_after(3):
        assert train(prepared, tmp_path / "run", *settings, *SHORT, init_from=model) == 75
    shutil.rmtree(model)
    with stopped_after(4):
        assert train(prepared, tmp_path / "run", *settings, *SHORT, init_from=model) == 75
    assert train(prepared, tmp_path / "run", *settings, *SHORT) == 0
    assert checkpoint(tmp_path / "run", 6) == checkpoint(tmp_path / "whole", 6)


# So high a rate that no update is better than the start.
WORSE = ("training.schedule={name: constant, peak: 0.05, warmup_updates: 1}", "validation.every=2", *SHORT)


@pytest.mark.parametrize("keeping", ["training.keep_best=0", "training.patience=2"])
def test_the_start_is_validated_and_stays_the_best_if_training_makes_it_worse(
    prepared: PreparedData, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, keeping: str
) -> None:
    caplog.set_level("INFO")
    run = tmp_path / "run"
    assert train(prepared, run, *WORSE, "training.keep_last=2", keeping, init_from=model) == 0
    assert events(run, "validation")[0]["update"] == 0
    assert caplog.messages[-1] == f"next: nmt decode -m {run} < input.txt > output.txt"
    before, after = (read_tensors(path / "model.safetensors", hint="") for path in (model, run / "model"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    average([run], output=None, last=1, best=None, overwrite=False)
    losses = load_saved_config(run / "averaged").average_losses
    assert losses is not None
    assert losses.is_worse
    assert model_of_run(run) == run / "model"


def test_a_restart_keeps_the_run_whose_model_it_would_begin_with(prepared: PreparedData, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(prepared, run, "training.updates=2") == 0
    with pytest.raises(UsageError) as caught:
        train(prepared, run, "training.updates=2", init_from=run, restart=True)
    assert caught.value.message == f"--restart would remove {run / 'model'}, with which the new run is to begin"
    assert caught.value.hint == "give the new run another folder with -o"
    other = prepare_tiny(tmp_path / "other", "tokenizer.vocab_size=380")
    shutil.copytree(run / "model", tmp_path / "model")
    with pytest.raises(DataError, match="was prepared with another source vocabulary"):
        train(other, run, "training.updates=2", init_from=tmp_path / "model", restart=True)
    assert checkpoints(run) == [2]


def test_data_with_another_vocabulary_are_refused(model: Path, tmp_path: Path) -> None:
    other = prepare_tiny(tmp_path / "other", "tokenizer.vocab_size=380")
    model = model.rename(tmp_path / "my model")
    with pytest.raises(DataError) as caught:
        train(other, tmp_path / "run", *SHORT, init_from=model)
    error = caught.value
    assert error.exit_code == 4
    assert error.message == (
        f"the data in {other.directory} was prepared with another source vocabulary than the model's"
    )
    assert error.where == str(other.directory)
    assert error.hint == (f"prepare it with the model's: nmt prepare ... --set tokenizer.taken_from='{model}' -o DIR")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "said", "fix"),
    [
        ("heads=4", "heads 2, and the recipe 4", "heads=2"),
        ("norm=pre", "norm 'post', and the recipe 'pre'", "norm=post"),
        ("attention_bias=true", "attention_bias false, and the recipe true", "attention_bias=false"),
        ("encoder_window=3", "encoder_window null, and the recipe 3", "encoder_window=null"),
    ],
)
def test_another_architecture_is_refused_and_the_fix_helps(
    prepared: PreparedData, model: Path, tmp_path: Path, setting: str, said: str, fix: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        train(prepared, tmp_path / "run", *SHORT, f"model.{setting}", init_from=model)
    error = caught.value
    assert error.message == f"the model in {model} has model.{said}"
    assert error.setting == "init_from"
    assert error.hint == f"train with the architecture of the model: --set model.{fix}"
    assert (
        train(prepared, tmp_path / "run", "training.updates=1", f"model.{setting}", f"model.{fix}", init_from=model)
        == 0
    )


def test_the_architecture_is_that_of_the_model_whatever_the_recipe_has(
    prepared: PreparedData, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    other = RECIPE.replace("d_ff: 64", "d_ff: 96, norm: pre").replace("dropout: 0.1", "dropout: 0.2")
    for name in ("run", "own"):
        (tmp_path / f"{name}.yaml").write_text(other, encoding="utf-8")
    with stopped_after(3):
        assert train(prepared, tmp_path / "run", *SHORT, init_from=model) == 75
    assert f"architecture of {model}: d_ff 64 (not 96), norm post (not pre)" in caplog.text
    shutil.rmtree(model)
    assert train(prepared, tmp_path / "run", *SHORT) == 0  # continues without --init-from, and without the model
    begun = open_run(tmp_path / "run").recipe.model
    assert (begun.d_ff, begun.norm, begun.dropout) == (64, "post", 0.2)
    assert train(prepared, tmp_path / "own", "training.updates=1") == 0
    assert open_run(tmp_path / "own").recipe.model.d_ff == 96


def test_another_beginning_than_that_of_the_run_is_refused(prepared: PreparedData, model: Path, tmp_path: Path) -> None:
    run = tmp_path / "my runs" / "run"
    with stopped_after(3):
        assert train(prepared, run, *SHORT) == 75
    with pytest.raises(RecipeError, match=f"was begun from random weights, not from {model}"):
        train(prepared, run, *SHORT, init_from=model)
