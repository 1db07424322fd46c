"""Checkpoints that a thread writes while training goes on, as on a GPU: the same bits, and none is lost."""

from __future__ import annotations

import errno
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt_cli.artifacts.weights import write_tensors
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.errors import ModelError
from nmt_cli.training import checkpointer
from nmt_cli.training.checkpointer import CheckpointWriter
from nmt_cli.training.update import Updater
from tests.forks import run_forked
from tests.training.test_checkpoints import NINE
from tests.training.tiny import arguments_of, checkpoint, events, stopped_after, train
from tests.training.tiny import checkpoints as updates_of

# The first start is killed in the middle of the checkpoint of update 6, while updates go on.
KILLED = """
import os, signal, sys, threading
from nmt_cli.cli.app import main
from nmt_cli.training import checkpointer
from nmt_cli.training.update import Updater

writer = checkpointer.CheckpointWriter
checkpointer.CheckpointWriter = lambda in_background: writer(in_background=True)
write, update, is_beyond = checkpointer.write_tensors, Updater.launch, threading.Event()

def write_half(file, tensors):
    if "update-00000006" in str(file):
        assert threading.current_thread() is not threading.main_thread()
        file.write_bytes(bytes(100))
        assert is_beyond.wait(60)
        os.kill(os.getpid(), signal.SIGKILL)
    write(file, tensors)

def noted(self, *arguments, **options):
    if options["number"] == 8:
        is_beyond.set()
    return update(self, *arguments, **options)

checkpointer.write_tensors, Updater.launch = write_half, noted
main()
"""


@pytest.fixture(scope="module")
def direct(finished_run: Callable[..., Path]) -> Path:
    """A run whose checkpoints were written at once."""
    return finished_run(*NINE)


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a thread write, as on a GPU; no checkpoint is complete until two more updates are taken, or one waits."""
    beyond, join, update = threading.Event(), threading.Thread.join, Updater.launch
    taken = 0

    def write_late(file: Path, tensors: Any) -> None:
        nonlocal taken
        if file.name == "model.safetensors" and ".sanity" not in str(file):
            taken = 0
            beyond.clear()
            assert beyond.wait(60)
        write_tensors(file, tensors)

    def counted(self: Updater, *arguments: Any, **options: Any) -> Any:
        nonlocal taken
        result = update(self, *arguments, **options)
        taken += 1
        if taken >= 2:
            beyond.set()
        return result

    def joined(self: threading.Thread, timeout: float | None = None) -> None:
        while self.name == "nmt-checkpoint" and self.is_alive():
            beyond.set()
            join(self, 0.01)
        join(self, timeout)

    monkeypatch.setattr(checkpointer, "CheckpointWriter", lambda in_background: CheckpointWriter(in_background=True))
    monkeypatch.setattr(checkpointer, "write_tensors", write_late)
    monkeypatch.setattr(Updater, "launch", counted)
    monkeypatch.setattr(threading.Thread, "join", joined)


def told(run: Path) -> list[tuple[str, int]]:
    return [(event["event"], event["update"]) for event in events(run)]


@pytest.mark.usefixtures("slowly")
def test_training_goes_on_while_a_checkpoint_is_written_and_changes_no_bit_of_it(
    prepared: PreparedData, direct: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train(prepared, run, *NINE) == 0
    assert updates_of(run) == [3, 6, 9]
    for update in (3, 6, 9):
        assert checkpoint(run, update) == checkpoint(direct, update)
    order = told(run)
    assert order.index(("train", 5)) < order.index(("checkpoint", 3)) < order.index(("train", 8))
    assert order.index(("train", 8)) < order.index(("checkpoint", 6)) < order.index(("checkpoint", 9))
    assert order.index(("checkpoint", 9)) < order.index(("end", 9))


@pytest.fixture(params=["training.ema=0.9", "training.optimizer={name: adamw}"])
def other(request: pytest.FixtureRequest, finished_run: Callable[..., Path]) -> tuple[str, Path]:
    """A setting that saves something besides or in place of the weights, and its run written at once."""
    return request.param, finished_run(*NINE, request.param)


def test_what_is_saved_besides_or_in_place_of_the_weights_is_that_of_its_update(
    prepared: PreparedData, tmp_path: Path, other: tuple[str, Path], slowly: None
) -> None:
    setting, direct = other
    assert train(prepared, tmp_path / "run", *NINE, setting) == 0
    for update in (3, 6, 9):
        assert checkpoint(tmp_path / "run", update) == checkpoint(direct, update)


@pytest.mark.usefixtures("slowly")
def test_a_stop_waits_for_the_checkpoint_before_it_says_that_it_saved(
    prepared: PreparedData, direct: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with stopped_after(4):  # the checkpoint of update 3 is being written
        train(prepared, run, *NINE)
    assert told(run)[-3:] == [("checkpoint", 3), ("checkpoint", 4), ("end", 4)]
    assert updates_of(run) == [3, 4]
    assert not list(run.rglob(".*"))
    assert train(prepared, run, *NINE) == 0
    assert updates_of(run) == [3, 6, 9]
    assert checkpoint(run, 9) == checkpoint(direct, 9)


def test_a_kill_while_the_thread_writes_leaves_the_checkpoint_before(
    prepared: PreparedData, direct: Path, tmp_path: Path
) -> None:
    arguments = arguments_of(prepared, tmp_path, *NINE)
    killed = run_forked([sys.executable, "-c", KILLED, "--quiet", *arguments], cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    run = tmp_path / "run"
    left = {path.name for path in (run / "checkpoints").iterdir() if path.suffix != ".lock"}
    assert left == {".update-00000006.partial", "update-00000003"}
    assert ("train", 7) in told(run)
    assert ("checkpoint", 6) not in told(run)
    assert train(prepared, run, *NINE) == 0
    assert events(run, "resume") == [{"event": "resume", "update": 3}]
    for update in (3, 6, 9):
        assert checkpoint(run, update) == checkpoint(direct, update)


@pytest.mark.usefixtures("slowly")
@pytest.mark.parametrize("update", [6, 9])
def test_a_full_disk_is_the_error_of_the_checkpoint_that_did_not_fit(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: int
) -> None:
    write: Callable[[Path, Any], None] = vars(checkpointer)["write_tensors"]

    def full(file: Path, tensors: Any) -> None:
        write(file, tensors)
        if f"update-{update:08}" in str(file):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpointer, "write_tensors", full)
    run = tmp_path / "run"
    with pytest.raises(ModelError) as caught:
        train(prepared, run, *NINE)
    left = f"the checkpoint of update {update - 3} is complete"
    assert caught.value.message == f"cannot write update-{update:08}: the disk is full; {left}"
    assert updates_of(run) == [*range(3, update, 3)]
    assert ("checkpoint", update) not in told(run)
    assert "end" not in dict(told(run))


@pytest.mark.usefixtures("slowly")
def test_an_error_of_the_training_waits_for_the_checkpoint_and_stays_the_error(
    prepared: PreparedData, direct: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Updater.launch

    def failing(self: Updater, *arguments: Any, **options: Any) -> Any:
        if options["number"] == 7:
            raise RuntimeError("the device is gone")
        return update(self, *arguments, **options)

    monkeypatch.setattr(Updater, "launch", failing)
    with pytest.raises(RuntimeError, match=r"^the device is gone$"):
        train(prepared, tmp_path / "run", *NINE)
    assert checkpoint(tmp_path / "run", 6) == checkpoint(direct, 6)
    assert told(tmp_path / "run")[-1] == ("checkpoint", 6)


@pytest.mark.gpu
def test_on_a_gpu_copies_are_pinned_and_those_of_their_moment() -> None:
    writer, tensor, found = CheckpointWriter(in_background=True), torch.ones(16 << 20, device="cuda"), []
    kept = writer.snapshot({"file": {"name": tensor}})["file"]["name"]
    tensor.zero_()
    writer.begin(lambda: found.append((float(kept.min()), kept.is_pinned())))
    writer.finish()
    assert found == [(1.0, True)]
