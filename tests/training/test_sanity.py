"""The sanity pass before the first update: what would fail after hours fails at once, and it leaves no trace."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt_cli.dataset.store import PreparedData
from nmt_cli.errors import DataError, DeviceError, ModelError
from nmt_cli.model.transformer import Transformer
from nmt_cli.training import checkpoints as checkpoints_module
from nmt_cli.training import validation as validation_module
from nmt_cli.training.trainer import Trainer
from nmt_cli.training.update import Launched, Updater
from tests.training.tiny import checkpoint, checkpoints, events, parallel_text, prepare_tiny, stopped_after, train

SHORT = ("training.updates=3",)


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the updates that are taken."""
    taken: list[int] = []
    launch = Updater.launch

    def noted(self: Updater, *arguments: Any, number: int, **options: Any) -> Launched:
        taken.append(number)
        return launch(self, *arguments, number=number, **options)

    monkeypatch.setattr(Updater, "launch", noted)
    return taken


def full_disk(*arguments: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def broken(*arguments: object, **options: object) -> None:
    raise RuntimeError("broken")


def test_a_full_disk_is_noticed_before_the_first_update(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, updates: list[int]
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints_module, "write_tensors", full_disk)
        with pytest.raises(ModelError, match="the disk is full") as caught:
            train(prepared, run, *SHORT)
    assert caught.value.hint == "free some space, then give the same command again: it continues"
    assert updates == []
    assert train(prepared, run, *SHORT) == 0
    assert updates == [1, 2, 3]


@pytest.mark.parametrize("name", ["search_batches", "bleu", "smoothed_cross_entropy"])
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
    assert error.hint == f"--set training.max_tokens_per_device={slots // 2}: the updates stay the same"
    assert updates == []
    setting = error.hint.removeprefix("--set ").partition(":")[0]
    assert train(prepared, run, *SHORT, setting) == 0


def test_the_pass_changes_nothing_of_the_training_and_leaves_no_file(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for precision in ("fp32", "bf16"):
        with_it, without = tmp_path / f"with-{precision}", tmp_path / f"without-{precision}"
        assert train(prepared, with_it, *SHORT, precision=precision) == 0
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_sanity_pass", lambda self, reporter: None)
            patch.setattr(Updater, "warm_up", lambda self, batches: None)
            assert train(prepared, without, *SHORT, precision=precision) == 0
        assert checkpoint(with_it, 3) == checkpoint(without, 3)
        assert not [path for path in with_it.iterdir() if path.name.startswith(".")]
    assert caplog.messages.count("sanity pass done: train, validate, decode, score, save") == 2


def test_what_a_killed_pass_left_is_cleared(prepared: PreparedData, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with _killed_while_saving(), pytest.raises(KeyboardInterrupt):
        train(prepared, run, *SHORT)
    assert (run / ".sanity").exists()
    assert train(prepared, run, *SHORT) == 0
    assert not (run / ".sanity").exists()
    assert checkpoints(run) == [3]


@contextmanager
def _killed_while_saving() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints_module, "write_manifest", _leave_and_interrupt)
        yield


def _leave_and_interrupt(directory: Path, fields: object) -> None:
    (directory.parent / "left").mkdir()
    raise KeyboardInterrupt


def test_a_run_that_goes_on_needs_no_pass(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stopped_after(2):
        assert train(prepared, tmp_path / "run", *SHORT) == 75
    monkeypatch.setattr(Trainer, "_sanity_pass", broken)
    assert train(prepared, tmp_path / "run", *SHORT) == 0
    assert events(tmp_path / "run", "validation")[-1]["update"] == 3


def test_no_validation_pair_that_fits_is_an_error(tmp_path: Path) -> None:
    pairs = parallel_text(40, seed=5)
    long = [(" ".join(side for side, _ in pairs), " ".join(side for _, side in pairs))]
    data = prepare_tiny(tmp_path, train=pairs, valid=long)
    with pytest.raises(DataError) as caught:
        train(data, tmp_path / "run", *SHORT)
    assert caught.value.message == "no validation pair is left: all 1 are longer than model.max_positions, 128"
    assert caught.value.where == str(data.directory)
    assert caught.value.hint == "prepare with shorter validation text, or raise model.max_positions"
