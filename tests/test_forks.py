"""A fork is what subprocess would have started, but for the time that it takes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

from tests.forks import Forked, run_forked

TELL = "import os, sys; print(os.getppid(), os.getcwd(), os.environ['A'], sys.argv, sys.stdin.read())"


def test_it_is_a_child_with_its_own_folder_environment_arguments_and_stdin(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TELL, "one", "two"]
    environment = {**os.environ, "A": "ä"}
    forked = run_forked(command, cwd=tmp_path, env=environment, input="text")
    begun_anew = subprocess.run(command, cwd=tmp_path, env=environment, input="text", capture_output=True, text=True)
    assert forked.stdout == begun_anew.stdout == f"{os.getpid()} {tmp_path} ä ['-c', 'one', 'two'] text\n"
    assert (forked.returncode, forked.stderr) == (0, "")


def test_exit_codes_and_signals_are_its_own() -> None:
    assert run_forked([sys.executable, "-c", "import sys; sys.exit(75)"]).returncode == 75
    failed = run_forked([sys.executable, "-c", "1 / 0"])
    assert (failed.returncode, failed.stderr.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")
    sleeps = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"]
    with Forked[bytes](sleeps, stdout=PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_what_was_printed_and_registered_is_done_at_the_end(tmp_path: Path) -> None:
    program = (
        "import atexit, threading\natexit.register(print, 'c')\nprint('a')\nthreading.Timer(0.1, print, 'b').start()"
    )
    done = run_forked([sys.executable, "-c", program])
    assert (done.stdout, done.stderr) == ("a\nb\nc\n", "")
    with (tmp_path / "out").open("wb") as stream:
        run_forked([sys.executable, "-c", "print('whole')"], stdout=stream.fileno())
    assert (tmp_path / "out").read_text() == "whole\n"


def test_modules_are_run_as_by_python() -> None:
    done = run_forked([sys.executable, "-m", "nmt_cli", "--version"])
    assert done.stdout.startswith("nmt ")
    assert run_forked([sys.executable, "-m", "nmt_cli", "trian"]).returncode == 2
