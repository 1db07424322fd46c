"""The training loop: updates, logs, validations, the sanity pass and returns."""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt_cli.artifacts.model_directory import load_saved_config
from nmt_cli.artifacts.weights import read_tensors
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.errors import DataError, DeviceError, ModelError, TrainingError
from nmt_cli.model.transformer import Transformer
from nmt_cli.training import checkpointer
from nmt_cli.training import validation as validation_module
from nmt_cli.training.trainer import Trainer
from nmt_cli.training.update import LaunchedUpdate, Updater, seed_dropout
from nmt_cli.training.validation import Validation, Validator
from tests.preparing.corpus_files import write_prefix
from tests.training.feeding import pairs_of_update
from tests.training.tiny import (
    checkpoint,
    checkpoints,
    events,
    parallel_text,
    prepare_tiny,
    spoil,
    stopped_after,
    train,
)

EVERY_UPDATE = ("training.updates=8", "training.checkpoint_every=1", "training.log_every=1")
PATIENT = (
    "training.updates=20",
    "training.patience=2",
    "validation.every=2",
    "training.checkpoint_every=5",
    "training.keep_last=2",
)
SHORT = ("training.updates=3",)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e30])
def test_one_update_that_is_not_finite_is_skipped_and_training_goes_on(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    spoil(monkeypatch, [5], value=value)  # the norm of 1e30 overflows float32
    run = tmp_path / "run"
    assert train(prepared, run, *EVERY_UPDATE) == 0
    before, at = checkpoint(run, 4), checkpoint(run, 5)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert at[name] == before[name]
    assert checkpoint(run, 6)["model.safetensors"] != at["model.safetensors"]
    states = [json.loads(checkpoint(run, update)["state.json"]) for update in (4, 5, 6)]
    keys = ("update", "applied", "skipped_in_row", "index")
    assert [tuple(state[key] for key in keys) for state in states] == [(4, 4, 0, 4), (5, 4, 1, 5), (6, 5, 0, 6)]
    (skipped,) = events(run, "skipped")
    assert skipped.pop("pairs") == sorted(chain(*pairs_of_update(prepared, 5)))
    assert skipped == {"event": "skipped", "update": 5, "reason": "gradients are not finite", "in_row": 1}
    tensors = read_tensors(run / "model/model.safetensors", hint="")
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    parsed = [json.loads(line, parse_constant=refuse) for line in lines]
    (line,) = (event for event in parsed if event["event"] == "train" and event["update"] == 5)
    assert line["gradient_norm"] is None


def test_a_resume_after_a_skipped_update_is_bitwise_too(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, [1, 2])  # not even the first update is applied
    assert train(prepared, tmp_path / "whole", *EVERY_UPDATE) == 0
    for update in (1, 2, 4):
        with stopped_after(update):
            assert train(prepared, tmp_path / "run", *EVERY_UPDATE) == 75
    assert train(prepared, tmp_path / "run", *EVERY_UPDATE) == 0
    for update in range(1, 9):
        assert checkpoint(tmp_path / "run", update) == checkpoint(tmp_path / "whole", update)


def test_several_updates_in_a_row_that_are_not_finite_end_the_training(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, range(3, 100), value=math.inf)
    run = tmp_path / "run"
    for _ in range(2):  # the same command fails in the same way
        with pytest.raises(TrainingError) as caught:
            train(prepared, run, *EVERY_UPDATE, "training.max_skipped_updates=3")
        error = caught.value
        assert error.exit_code == 7
        assert error.message == (
            "4 updates in a row had gradients that are not finite, the last at update 6;"
            " the last good checkpoint is that of update 2"
        )
        assert error.where == str(run / "metrics.jsonl")
        assert error.hint == (
            "in a new run, lower training.schedule, or set training.clip_norm=1 or --precision fp32;"
            f" for its --init-from: nmt average {run}/checkpoints/update-00000002 -o {run}-at-2"
        )
    assert checkpoints(run) == [1, 2, 3, 4, 5]
    assert checkpoint(run, 5)["model.safetensors"] == checkpoint(run, 2)["model.safetensors"]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let validations measure given values, one after the other; the sanity pass measures nothing."""

    def install(*, loss: list[float], bleu: list[float] | None = None) -> None:
        losses, bleus = iter(loss), iter(bleu or [0.0] * len(loss))

        def measure(self: Validator, *models: object, max_sentences: int | None, beat: object) -> Validation:
            if max_sentences is not None:
                return Validation(9.0, 9.0, 9.0, 0.0, None, 0.0, ())
            return Validation(next(losses), 1.0, math.e, next(bleus), "signature", 0.0, ())

        monkeypatch.setattr(Validator, "measure", measure)

    return install


def test_a_validation_loss_that_is_not_finite_ends_the_training(
    prepared: PreparedData, tmp_path: Path, scripted: Callable[..., None]
) -> None:
    scripted(loss=[2.0, math.nan])
    with pytest.raises(TrainingError, match=r"(?m)^the validation loss after update 4 is not finite$") as caught:
        train(prepared, tmp_path / "run", "validation.every=2", *EVERY_UPDATE)
    assert caught.value.exit_code == 7
    assert "training.schedule" in caught.value.hint


@pytest.mark.parametrize(
    ("metric", "keep_best", "loss", "bleu", "left"),
    [
        ("loss", 0, [5.0, 4.0, 4.5, 4.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0], [6, 8]),
        ("bleu", 1, [5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 3.0, 2.5, 3.0, 9.0], [6, 8]),
    ],
)
def test_patience_ends_training_after_validations_that_are_no_better(
    prepared: PreparedData,
    tmp_path: Path,
    scripted: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    metric: str,
    keep_best: int,
    loss: list[float],
    bleu: list[float],
    left: list[int],
) -> None:
    scripted(loss=loss, bleu=bleu)
    caplog.set_level("INFO")
    run = tmp_path / "run"
    settings = (*PATIENT, f"validation.metric={metric}", f"training.keep_best={keep_best}")
    assert train(prepared, run, *settings) == 0
    # Validated after 2, 4, 6 and 8: after 4 it was best, and after 8 as good, which is no better.
    assert events(run)[-1] == {"event": "end", "reason": "patience", "update": 8}
    assert f"no better {metric} in 2 validations: training ends after update 8; the best was after 8" in caplog.text
    assert [event["update"] for event in events(run, "validation")] == [2, 4, 6, 8]
    assert load_saved_config(run / "model").updates == [8]  # of equally good ones the newer
    assert checkpoints(run) == left


@pytest.mark.parametrize(
    ("loss", "bleu", "end", "best"),
    [
        ([6.0, 5.0, 5.5, 5.6], [0.3, 0.1, 0.9, 0.2], 8, 4),  # noise is no better BLEU
        ([6.0, 5.0, 4.0, 4.5, 3.0, 2.0], [0.0, 0.0, 0.0, 1.0, 0.9, 0.4], 12, 8),  # from 1 on, BLEU decides
    ],
)
def test_while_bleu_tells_nothing_the_loss_decides_and_the_best_is_kept_named_and_used(
    prepared: PreparedData,
    tmp_path: Path,
    scripted: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    loss: list[float],
    bleu: list[float],
    end: int,
    best: int,
) -> None:
    caplog.set_level("INFO")
    run, last = tmp_path / "run", len(loss) * 2
    scripted(loss=loss, bleu=bleu)
    assert train(prepared, run, *PATIENT, f"training.updates={last}") == 0
    assert events(run, "validation")[-1]["update"] == end
    assert load_saved_config(run / "model").updates == [best]
    assert best in checkpoints(run)
    assert caplog.text.count("tells nothing") == 1
    scripted(loss=loss, bleu=bleu)
    stopped = tmp_path / "stopped"
    with stopped_after(5):
        assert train(prepared, stopped, *PATIENT, f"training.updates={last}") == 75
    assert train(prepared, stopped, *PATIENT, f"training.updates={last}") == 0
    assert caplog.text.count("tells nothing") == 2
    assert checkpoints(stopped) == checkpoints(run)
    assert checkpoint(stopped, best) == checkpoint(run, best)


def test_a_training_out_of_patience_ends_again_at_once_and_goes_on_with_more(
    prepared: PreparedData, tmp_path: Path, scripted: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    scripted(loss=[3.0, 4.0, 5.0, 2.0, 6.0, 7.0, 8.0])
    run, settings = tmp_path / "run", (*PATIENT, "validation.metric=loss")
    assert train(prepared, run, *settings) == 0
    assert events(run)[-1] == {"event": "end", "reason": "patience", "update": 6}
    caplog.set_level("INFO")
    caplog.clear()
    assert train(prepared, run, *settings) == 0
    assert f"{run} finished before, after update 6; its model is {run / 'model'}" in caplog.messages
    caplog.clear()
    assert train(prepared, run, *settings, "training.updates=30") == 0
    assert events(run)[-1] == {"event": "end", "reason": "patience", "update": 6}
    assert "training.patience" in caplog.text
    assert train(prepared, run, *settings, "training.patience=3") == 0
    # Update 8 was better, so that the patience began anew: 10, 12 and 14 were not.
    assert events(run)[-1] == {"event": "end", "reason": "patience", "update": 14}
    assert load_saved_config(run / "model").updates == [8]
    assert checkpoints(run) == [8, 12, 14]


def test_the_best_checkpoint_stays_when_it_is_no_longer_the_last(
    prepared: PreparedData, tmp_path: Path, scripted: Callable[..., None]
) -> None:
    scripted(loss=[1.0, 3.0, 2.0])
    run, settings = tmp_path / "run", ("validation.every=8", "validation.metric=loss", "training.keep_best=1")
    for updates in (4, 12):
        assert train(prepared, run, *settings, "training.checkpoint_every=8", f"training.updates={updates}") == 0
    assert checkpoints(run) == [4, 8, 12]
    assert load_saved_config(run / "model").updates == [4]


def test_thirty_sentences_are_learnt_by_heart_averaged_decoded_and_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from nmt_cli.cli.average import average
    from nmt_cli.cli.decode.command import decode
    from nmt_cli.cli.score.command import score

    pairs, run = parallel_text(30, seed=9), tmp_path / "run"
    settings = [
        "model={d_model: 64, d_ff: 128, dropout: 0, d_k: 32, d_v: 32}",
        "training.updates=160",
        "training.label_smoothing=0",
        "training.schedule={name: noam, factor: 0.3, warmup_updates: 40}",
        "training.checkpoint_every=10",
        "validation={every: 160, max_sentences: null}",
        "decoding.max_extra_tokens=10",
    ]
    assert train(prepare_tiny(tmp_path, train=pairs, valid=pairs, name="few"), run, *settings) == 0
    assert [event["bleu"] > 90 for event in events(run, "validation")] == [True]
    average([run], output=None, last=3, best=None, overwrite=False)
    write_prefix(tmp_path / "few", pairs)
    decode(model=[run / "averaged"], source=tmp_path / "few.en", output=tmp_path / "few.hyp", device="cpu")
    translations = (tmp_path / "few.hyp").read_text(encoding="utf-8").splitlines()
    assert sum(found == right for found, (_, right) in zip(translations, pairs, strict=True)) >= 27
    score([str(tmp_path / "few.de")], hypotheses=[str(tmp_path / "few.hyp")], as_json=True)
    assert json.loads(capsys.readouterr().out)["scores"]["BLEU"]["score"] > 90


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the updates that are taken."""
    taken: list[int] = []
    launch = Updater.launch

    def noted(self: Updater, *arguments: Any, number: int, **options: Any) -> LaunchedUpdate:
        taken.append(number)
        return launch(self, *arguments, number=number, **options)

    monkeypatch.setattr(Updater, "launch", noted)
    return taken


def broken(*arguments: object, **options: object) -> None:
    raise RuntimeError("broken")


def test_a_full_disk_is_noticed_before_the_first_update(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, updates: list[int]
) -> None:
    def full_disk(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(checkpointer, "write_tensors", full_disk)
        with pytest.raises(ModelError, match="the disk is full") as caught:
            train(prepared, run, *SHORT)
    assert caught.value.hint == "free some space, then give the same command again"
    assert updates == []
    assert train(prepared, run, *SHORT) == 0
    assert updates == [1, 2, 3]


@pytest.mark.parametrize("name", ["Batches", "bleu", "plain_loss"])
def test_search_score_and_loss_are_tried_before_the_first_update(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, updates: list[int], name: str
) -> None:
    monkeypatch.setattr(validation_module, name, broken)
    with pytest.raises(RuntimeError, match="broken"):
        train(prepared, tmp_path / "run", *SHORT)
    assert updates == []


def test_memory_that_does_not_suffice_is_an_error_whose_hint_helps(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, updates: list[int]
) -> None:
    encode = Transformer.encode

    def with_little_memory(self: Transformer, source: Any) -> Any:
        if source.num_tokens > 160:
            raise torch.OutOfMemoryError
        return encode(self, source)

    monkeypatch.setattr(Transformer, "encode", with_little_memory)
    run = tmp_path / "run"
    with pytest.raises(DeviceError) as caught:
        train(prepared, run, *SHORT)
    error = caught.value
    assert error.exit_code == 6
    slots = int(error.message.removeprefix("the memory of cpu does not hold a micro-batch of ").split()[0])
    assert 160 < slots <= 320
    assert error.where == "training.max_tokens_per_device"
    assert error.hint == "--set training.max_tokens_per_device=auto: the updates stay the same"
    assert updates == []
    setting = error.hint.removeprefix("--set ").partition(":")[0]
    assert train(prepared, run, *SHORT, setting) == 0


def test_memory_that_another_process_takes_is_an_error_too(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried 2.60 GiB.\nMore")

    monkeypatch.setattr(validation_module, "_losses_per_token", without_memory)
    with pytest.raises(DeviceError) as caught:
        train(prepared, tmp_path / "run", *SHORT)
    assert caught.value.message == "the training needs more memory than there is"
    assert caught.value.where == "CUDA out of memory. Tried 2.60 GiB."


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_pass_changes_nothing_of_the_training_and_leaves_no_file(
    prepared: PreparedData,
    finished_run: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
) -> None:
    with_pass = finished_run(*SHORT, precision=precision)
    monkeypatch.setattr(Trainer, "_sanity_pass", lambda self: None)
    monkeypatch.setattr(Updater, "warm_up", lambda self, batches: None)
    assert train(prepared, tmp_path / "run", *SHORT, precision=precision) == 0
    assert checkpoint(with_pass, 3) == checkpoint(tmp_path / "run", 3)
    assert not [path for path in with_pass.iterdir() if path.name.startswith(".")]


def test_no_validation_pair_that_fits_is_an_error(tmp_path: Path) -> None:
    pairs = parallel_text(40, seed=5)
    long = [(" ".join(side for side, _ in pairs), " ".join(side for _, side in pairs))]
    data = prepare_tiny(tmp_path, train=pairs, valid=long)
    with pytest.raises(DataError) as caught:
        train(data, tmp_path / "run", *SHORT)
    assert caught.value.message == "no validation pair is left: all 1 are longer than model.max_positions, 128"
    assert caught.value.where == str(data.directory)
    longest = max(int(side.lengths[0]) for side in (data.split("valid").src, data.split("valid").tgt))
    setting = f"model.max_positions={longest}"
    assert caught.value.hint == f"--set {setting}, or prepare with shorter validation text"
    assert train(data, tmp_path / "run", *SHORT, setting) == 0


def test_keys_of_dropout_differ_in_the_32_bits_that_the_generator_of_a_cpu_takes() -> None:
    keys = set()
    updates = [
        *range(0, 1_048_560, 17),
        *(65_535 * cycle + place for cycle in range(1, 16) for place in range(-20, 20)),
    ]
    for update in set(updates):
        for index in (0, 1, 2, 15, 4095):
            seed_dropout(3, update, index)
            keys.add(torch.initial_seed() % 2**32)
    assert len(keys) == 5 * len(set(updates))
    seed_dropout(4, 17, 0)
    assert torch.initial_seed() % 2**32 not in keys, "another seed has other keys"
