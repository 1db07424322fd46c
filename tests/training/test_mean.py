"""`nmt average` measures the mean beside the best single model, and a worse mean is not chosen."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from nmt_cli.artifacts.manifest import write_manifest
from nmt_cli.artifacts.model_directory import load_model, load_saved_config
from nmt_cli.artifacts.run import model_of_latest_run, model_of_run, open_run
from nmt_cli.artifacts.weights import read_tensors, write_tensors
from nmt_cli.cli.average import average
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.errors import DataError, ModelError
from nmt_cli.model.packing import pack
from nmt_cli.tokenization.tokenizer import BOS
from nmt_cli.training.validation import measure_average
from tests.dataset.synthetic import sentences
from tests.training.tiny import LEARNT, events

CPU = torch.device("cpu")


@pytest.fixture
def run(finished_run: Callable[..., Path], tmp_path: Path) -> Path:
    """A finished run, `runs/run`. Its loss fell all the time, so a mean with an early part is worse than its end."""
    return shutil.copytree(finished_run(*LEARNT), tmp_path / "runs" / "run")


def slow_loss(model: Path, data: PreparedData) -> float:
    """The smoothed loss per target token over the validation set, pair by pair, by torch's own cross entropy."""
    loaded = load_model(model, device=CPU, dtype=torch.float32)
    pairs, smoothing = data.split("valid"), loaded.config.recipe.training.label_smoothing
    total, tokens = 0.0, 0
    for source, gold in zip(sentences(pairs.src), sentences(pairs.tgt), strict=True):
        packed = pack([source], device=CPU)
        with torch.no_grad():
            hidden = loaded.model.decode(pack([[BOS, *gold[:-1]]], device=CPU), loaded.model.encode(packed), packed)
            logits = loaded.model.logits(hidden)[:, : loaded.target.vocab_size].double()
        wanted = torch.tensor(gold)
        total += float(cross_entropy(logits, wanted, label_smoothing=smoothing, reduction="sum"))
        tokens += len(gold)
    return total / tokens


def call(run: Path, *, last: int) -> None:
    average([run], output=None, last=last, best=None, overwrite=False)


def test_the_mean_is_measured_beside_the_model_of_the_run_and_a_worse_one_is_not_chosen(
    run: Path, prepared: PreparedData, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    call(run, last=3)
    mean = load_saved_config(run / "averaged").average_losses
    assert mean is not None
    assert mean.loss == pytest.approx(slow_loss(run / "averaged", prepared), abs=1e-4)
    assert mean.single_loss == pytest.approx(slow_loss(run / "model", prepared), abs=1e-4)
    (in_training,) = (event["loss"] for event in events(run, "validation") if event["update"] == 60)
    assert mean.single_loss == pytest.approx(in_training, abs=1e-4)
    assert mean.is_worse
    figures = f"{mean.loss:.4f} of the average, {mean.single_loss:.4f} of {run / 'model'}"
    assert f"validation loss: {figures}" in caplog.messages
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    model = run / "model"
    assert warning == f"the average is worse than {model}, which decode and serve take"
    assert caplog.messages[-1] == f"next: nmt decode -m {shlex.quote(str(model))} < input.txt > output.txt"
    card = (run / "averaged" / "README.md").read_text(encoding="utf-8")
    assert f"{mean.loss:.4f} of the average, {mean.single_loss:.4f} of the" in card
    assert "The average is worse: prefer the single model." in card
    assert model_of_run(run) == model
    assert model_of_latest_run(run.parent) == model
    caplog.clear()
    average([run], output=run.parent / "mean", last=3, best=None, overwrite=False)
    assert f"the average is worse than {model}" in caplog.text
    shutil.rmtree(model)
    call(run, last=3)
    newest = run / "checkpoints" / "update-00000060"
    assert caplog.messages[-2] == f"the average is worse than {newest}"
    assert caplog.messages[-1] == f"next: nmt average {shlex.quote(str(newest))}"
    assert model_of_run(run) == run / "averaged"  # there is no other


def test_an_average_whose_outputs_are_not_finite_is_refused(run: Path) -> None:
    newest = run / "checkpoints/update-00000060"
    weights = read_tensors(newest / "model.safetensors", hint="")
    write_tensors(newest / "model.safetensors", {name: tensor * 1e20 for name, tensor in weights.items()})
    manifest = json.loads((newest / "manifest.json").read_text())
    write_manifest(newest, {key: manifest[key] for key in ("kind", "update", "recipe_fingerprint", "validation")})
    with pytest.raises(ModelError, match="not finite"):
        call(run, last=2)
    assert not (run / "averaged").exists()


def test_without_the_data_it_says_that_nothing_was_measured(
    run: Path, prepared: PreparedData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    record = run / "run.json"
    for data, reason in (
        (tmp_path / "gone", "there is no prepared data at"),
        (tmp_path / "other", f"{tmp_path / 'other'} holds other data than the run's"),
    ):
        record.write_text(record.read_text().replace(open_run(run).record.data, str(data)), encoding="utf-8")
        if data.name == "other":
            shutil.copytree(prepared.directory, data)
            manifest = data / "manifest.json"
            manifest.write_text(manifest.read_text().replace(prepared.manifest.fingerprint, "f" * 64), encoding="utf-8")
        call(run, last=2)
        assert f"the average was not measured on the validation set: {reason}" in caplog.text
        assert load_saved_config(run / "averaged").average_losses is None
        assert caplog.messages[-1].startswith(f"next: nmt decode -m {run / 'averaged'} ")
    with pytest.raises(DataError, match="holds other data than the run's") as caught:
        measure_average(open_run(run), {}, single=run / "model")
    assert caught.value.hint == f"prepare the run's corpus again: nmt prepare CORPUS -o {data} --overwrite"


def test_a_better_mean_is_chosen(run: Path) -> None:
    call(run, last=3)
    config = run / "averaged" / "config.yaml"
    mean = load_saved_config(run / "averaged").average_losses
    assert mean is not None
    config.write_text(config.read_text().replace(str(mean.loss), str(mean.single_loss - 0.1)), encoding="utf-8")
    assert model_of_run(run) == run / "averaged"
