"""SIGTERM and Ctrl-C: noted at once, obeyed at the end of an update; and one process a run."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.dataset.sampled_pieces import SampledPieces
from nmt_cli.errors import ModelError
from nmt_cli.files import is_locked
from nmt_cli.training import data_order
from nmt_cli.training.loader import Loader
from nmt_cli.training.runs import locked_run
from nmt_cli.training.stop_signal import StopSignal
from nmt_cli.training.update import Updater
from tests.forks import Forked
from tests.training.feeding import order_of
from tests.training.tiny import arguments_of, checkpoint, checkpoints, events, stopped_after, tiny_recipe, train
from tests.waiting import wait_until


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_noted_and_interrupts_nothing_before_a_second_ctrl_c(number: int) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    stop = StopSignal(comes_twice=False)
    with stop.listening():
        assert stop.received is None
        send(number)
        send(signal.SIGTERM)  # may come twice: from a scheduler, and from torchrun
        assert stop.received == (signal.SIGTERM if number == signal.SIGHUP else number)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


def test_under_torchrun_a_ctrl_c_that_comes_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, now = StopSignal(comes_twice=True), time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now)
    with stop.listening():
        send(signal.SIGINT)
        send(signal.SIGINT)
        monkeypatch.setattr("time.monotonic", lambda: now + 1)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_a_second_ctrl_c_ends_a_training_at_once_and_loses_no_checkpoint(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with stopped_after(3):
        assert train(prepared, run) == 75
    accumulate = Updater.accumulate

    def twice(self: Updater, *arguments: Any, key: tuple[int, int], **options: Any) -> object:
        if key == (5, 0):
            send(signal.SIGINT)
        if key == (5, 1):
            send(signal.SIGINT)
        return accumulate(self, *arguments, key=key, **options)

    monkeypatch.setattr(Updater, "accumulate", twice)
    with pytest.raises(KeyboardInterrupt):
        train(prepared, run)
    assert checkpoints(run) == [3]


def test_the_lock_is_of_one_run_and_ends_with_its_holder(tmp_path: Path) -> None:
    run = tmp_path / "runs/small"
    with locked_run(run):
        assert sorted(path.name for path in run.parent.iterdir()) == [".small.lock"]
        with locked_run(tmp_path / "runs/other"):
            pass
        with pytest.raises(ModelError) as caught, locked_run(run):
            pass
    error = caught.value
    assert error.exit_code == 5
    assert error.message.startswith(f"another nmt train is at work in {run}: process {os.getpid()} on ")
    assert error.where == str(run)
    assert error.hint == "wait until it ends, or choose another folder with -o"
    assert list(run.parent.iterdir()) == []
    (tmp_path / "runs/.small.lock").write_text("process 1 on a machine that was switched off")
    with locked_run(run):
        pass


def test_all_paths_to_a_run_lead_to_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "disk/small"
    (run / "model").mkdir(parents=True)
    (tmp_path / "link").symlink_to(run)
    monkeypatch.chdir(run)
    paths = [run, Path(), Path("model/.."), tmp_path / "link"]
    with locked_run(paths[-1]):
        for path in paths:
            assert is_locked(path)
            with pytest.raises(ModelError, match="another nmt train is at work in"), locked_run(path):
                pass
    assert not any(is_locked(path) for path in paths)


def test_a_run_is_trained_by_one_process_which_saves_when_it_is_told_to_end(
    prepared: PreparedData, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    arguments = arguments_of(prepared, tmp_path, "training.updates=100000", "training.keep_last=3")
    process = Forked[str](
        [sys.executable, "-m", "nmt_cli", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: any(run.glob("checkpoints/update-*/manifest.json")), process=process, seconds=300)
        for restart in (False, True):
            with pytest.raises(ModelError, match=f"another nmt train is at work in .*: process {process.pid} on "):
                train(prepared, run, "training.updates=100000", restart=restart)
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 75
    assert stdout == ""
    last = checkpoints(run)[-1]
    assert stderr.splitlines()[-1] == f"stopped after update {last:,}, saved: the same command continues"
    assert train(prepared, run, f"training.updates={last + 2}") == 0
    assert checkpoints(run)[-1] == last + 2


def test_a_signal_ends_a_training_that_waits_for_the_pieces_of_an_epoch(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, wait_for_next, sample = tmp_path / "run", Loader.next, SampledPieces._sample
    recipe = tiny_recipe("tokenizer.dropout=0.1")
    num_updates = len(order_of(prepared, recipe, run=tmp_path).open())
    every = [f"{name}={num_updates}" for name in ("validation.every", "training.checkpoint_every")]
    settings = ["tokenizer.dropout=0.1", f"training.updates={num_updates + 2}", *every]

    def interrupted(self: Loader, *, num_left: int) -> object:
        if num_left == 2:
            send(signal.SIGTERM)
        return wait_for_next(self, num_left=num_left)

    def for_ever(self: SampledPieces, directory: Path, epoch: int, **options: int) -> None:
        if epoch == 1:
            wait_until(lambda: self._is_closed)
        sample(self, directory, epoch, **options)

    saved = []
    with monkeypatch.context() as patch:
        patch.setattr(Loader, "next", interrupted)
        patch.setattr(SampledPieces, "_sample", for_ever)
        for _ in range(2):
            assert train(prepared, run, *settings) == 75
            assert checkpoints(run) == [num_updates]
            saved.append(checkpoint(run, num_updates))
    assert saved[0] == saved[1]
    assert train(prepared, run, *settings) == 0
    assert checkpoints(run)[-1] == num_updates + 2


@pytest.mark.parametrize("tokens", ["320", "auto"])
def test_a_signal_ends_a_training_whose_first_plan_is_being_made(
    prepared: PreparedData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tokens: str,
) -> None:
    caplog.set_level("INFO")

    def interrupted(*arguments: object, **options: object) -> None:
        send(signal.SIGTERM)
        time.sleep(60)

    run = tmp_path / "run"
    settings = ("tokenizer.dropout=0.1", "training.updates=6", f"training.max_tokens_per_device={tokens}")
    with monkeypatch.context() as patch:
        patch.setattr(SampledPieces, "_sample", interrupted)
        assert train(prepared, run, *settings, profile=1) == 75
    assert events(run) == [{"event": "end", "reason": "preempted", "update": 0}]
    assert caplog.messages[-1] == "stopped before the first update: the same command continues"
    assert not any("--profile" in message for message in caplog.messages)
    assert [path.name for path in (run / "sampled").iterdir()] == [".lock"]
    with stopped_after(3):
        assert train(prepared, run, *settings) == 75
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "max_tokens_per_device": None}))
    with monkeypatch.context() as patch:
        patch.setattr(data_order, "compute_plan", interrupted)
        assert train(prepared, run, *settings) == 75
    assert caplog.messages[-1] == "stopped after update 3, saved: the same command continues"
    assert train(prepared, run, *settings) == 0
    assert checkpoints(run) == [6]


def test_a_signal_before_the_first_update_saves_nothing(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Loader, "next", lambda *_, **__: send(signal.SIGTERM))  # the signal comes while it waits
        assert train(prepared, run, "training.updates=6") == 75
    assert checkpoints(run) == []
    assert train(prepared, run, "training.updates=6") == 0
    assert checkpoints(run) == [6]


@pytest.mark.parametrize("is_ignored", [False, True], ids=["", "under nohup"])
def test_a_training_whose_terminal_is_closed_saves(prepared: PreparedData, tmp_path: Path, is_ignored: bool) -> None:
    run, (ours, theirs) = tmp_path / "run", pty.openpty()
    program = "import signal, sys; from nmt_cli.cli.app import main; "
    program += f"signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if is_ignored else 'SIG_DFL'}); "
    updates = "training.updates=30" if is_ignored else "training.updates=100000"
    process = Forked[bytes](
        [sys.executable, "-c", f"{program}main()", *arguments_of(prepared, tmp_path, updates, "training.keep_last=3")],
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm-256color"},
        stderr=theirs,
    )
    os.close(theirs)
    try:
        wait_until(lambda: any(run.glob("checkpoints/update-*/manifest.json")), process=process, seconds=300)
        os.close(ours)
        time.sleep(0.3)  # several times the interval at which the view is drawn
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=300) == (0 if is_ignored else 75)
    finally:
        process.kill()
    end = events(run)[-1]
    assert (end["event"], end["reason"]) == ("end", "finished" if is_ignored else "preempted")
    assert checkpoints(run)[-1] == end["update"]
