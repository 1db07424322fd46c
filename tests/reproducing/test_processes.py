"""Stages as processes: codes, output, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Timer

import pytest

from nmt_cli.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED
from nmt_cli.reproducing.processes import Ended, run_nmt

# Says that it is ready, and ends with 75 at the first SIGTERM or SIGINT.
OBEDIENT = """
import signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: sys.exit(75))
open(sys.argv[1], "w").close()
time.sleep(300)
"""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    """`nmt CODE ARGUMENTS` is a Python program here."""
    interpreter = sys.executable
    real = subprocess.Popen

    def popen(arguments: list[str], **options: object) -> object:
        assert arguments[:3] == [interpreter, "-m", "nmt_cli"]
        rest = [argument for argument in arguments[3:] if argument != "--quiet"]
        return real([interpreter, "-c", *rest], **options)  # type: ignore[call-overload]  # options of any kind

    monkeypatch.setattr(subprocess, "Popen", popen)


@pytest.mark.usefixtures("command")
def test_the_code_of_the_process_is_told() -> None:
    assert run_nmt(["raise SystemExit(6)"], stdout=None) == Ended(6, None)
    assert Ended(6, None).exit_code == 6
    assert run_nmt([""], stdout=None) == Ended(0, None)
    killed = run_nmt(["import os; os.kill(os.getpid(), 9)"], stdout=None)
    assert killed == Ended(-9, None)
    assert killed.exit_code == 137


@pytest.mark.usefixtures("command")
def test_output_appears_when_the_process_ends_well(tmp_path: Path) -> None:
    file = tmp_path / "scores.json"
    assert run_nmt(["print('half'); raise SystemExit(1)"], stdout=file).code == 1
    assert list(tmp_path.iterdir()) == []
    assert run_nmt(["print('whole')"], stdout=file).code == 0
    assert file.read_text() == "whole\n"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.usefixtures("command")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, EXIT_PREEMPTED), (signal.SIGINT, EXIT_INTERRUPTED)])
def test_a_signal_is_passed_on_and_waited_for(tmp_path: Path, number: int, code: int) -> None:
    ready, before = tmp_path / "ready", signal.getsignal(number)

    def send() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    timer = Timer(0, send)
    timer.start()
    ended = run_nmt([OBEDIENT, str(ready)], stdout=None)
    timer.join()
    assert ended == Ended(75, number)
    assert ended.was_stopped
    assert ended.exit_code == code
    assert signal.getsignal(number) is before


def test_a_signal_counts_though_the_stage_has_ended_well() -> None:
    assert Ended(0, signal.SIGTERM).exit_code == EXIT_PREEMPTED
    assert Ended(0, signal.SIGINT).exit_code == EXIT_INTERRUPTED
    assert Ended(0, None).exit_code == 0


def test_no_stage_outlives_a_reproduction_that_is_killed(tmp_path: Path) -> None:
    ready, left = tmp_path / "ready", tmp_path / "left"
    stage = OBEDIENT.replace("sys.exit(75)", f"(open({str(left)!r}, 'w').close(), sys.exit(75))")
    program = (
        "import sys; from nmt_cli.reproducing import processes;"
        "processes._wait([sys.executable, '-c', sys.argv[1], sys.argv[2]], stream=None)"
    )
    with subprocess.Popen([sys.executable, "-c", program, stage, str(ready)]) as parent:
        _wait_for(ready)
        parent.kill()
    _wait_for(left)


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + 120
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
