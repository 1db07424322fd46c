"""A stage as a process of its own: started, passed the signals that come, and waited for."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from nmt_cli.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, DataError
from nmt_cli.files import disk_errors

logger = logging.getLogger(__name__)

_PASSED_ON = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1  # prctl(2)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its exit code, negative for the signal that killed it, and the signal passed on to it."""

    code: int
    signal: int | None

    @property
    def was_stopped(self) -> bool:
        """True where a signal was passed on: a stage may still have come to its end, but no other is to begin."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """What `nmt reproduce` ends with: the code of its stage, or of the signal.

        Under torchrun a training that has stopped and saved ends with 1, not with 75.
        """
        if self.was_stopped:
            return EXIT_PREEMPTED if self.signal == signal.SIGTERM else EXIT_INTERRUPTED
        return 128 - self.code if self.code < 0 else self.code


def run_nmt(arguments: Sequence[str], *, stdout: Path | None) -> Ended:
    """Run `nmt` with these arguments, its stdout into a file that appears when it ends well, and wait for its end.

    SIGTERM and Ctrl-C are passed on, once each time they come: the process is in a group of its own, to which the
    terminal sends nothing. Should this process be killed, the other one is sent SIGTERM.
    """
    quiet = [] if logger.isEnabledFor(logging.INFO) else ["--quiet"]
    command = [sys.executable, "-m", "nmt_cli", *quiet, *arguments]
    if stdout is None:
        return _wait(command, stream=None)
    unfinished = stdout.with_name(f".{stdout.name}.partial")
    try:
        with disk_errors(stdout, DataError), unfinished.open("wb") as stream:
            ended = _wait(command, stream=stream.fileno())
        if ended.code == 0:
            unfinished.replace(stdout)
        return ended
    finally:
        unfinished.unlink(missing_ok=True)


def _wait(command: Sequence[str], *, stream: int | None) -> Ended:
    parent = os.getpid()
    with _holding() as held:
        # Only prctl and getppid are called between fork and exec.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, process_group=0, preexec_fn=lambda: _end_with(parent)
        )
        with held.passing_to(process):
            return Ended(process.wait(), held.received)


class _Held:
    """The signals that have come, and the process that they are passed to."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def passing_to(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        self._process = process
        if self.received is not None:
            process.send_signal(self.received)
        yield
        self._process = None

    def take(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        if self._process is not None:
            self._process.send_signal(number)


@contextmanager
def _holding() -> Iterator[_Held]:
    held = _Held()
    earlier = {number: signal.signal(number, held.take) for number in _PASSED_ON}
    try:
        yield held
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _end_with(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when its parent ends; only Linux can."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    except (AttributeError, OSError):
        return
    if os.getppid() != parent:  # it has ended before the kernel knew
        os.kill(os.getpid(), signal.SIGTERM)
