"""Launches a training as one process (rank) per GPU of this machine, passes signals on, and ends all ranks together."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented there, and not declared

from nmt_cli import console
from nmt_cli.devices import num_cpus
from nmt_cli.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, TrainingError
from nmt_cli.training.ranks.ranks import Failure, FailureBoard

LAUNCHER_VARIABLE = "NMT_LAUNCHER"
_POLL_SECONDS = 0.05
# How long the other ranks may take to end by themselves, after a rank has ended or a second Ctrl-C.
_GRACE_SECONDS, _HASTE_SECONDS = 15.0, 3.0
_EXPECTED = (0, EXIT_PREEMPTED, EXIT_INTERRUPTED)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def launch(arguments: Sequence[str], *, num_ranks: int) -> int:
    """Run `nmt ARGUMENTS` as `num_ranks` processes, and return their exit code.

    SIGTERM and Ctrl-C are passed on to the ranks, which may take as long as they need to save. A rank that fails ends
    the others: its message is on stderr, and its code is returned. Raises TrainingError if the rank could not write a
    message, for example because the kernel killed it.
    """
    # The store belongs to the launcher: it outlives every rank, and no other process can take its port.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = _RankProcesses(arguments, num_ranks=num_ranks, port=store.port, board=FailureBoard(store))
    try:
        with ranks.passing_signals_on():
            return ranks.wait()
    finally:
        ranks.kill()
        if console.is_interactive():
            console.stderr_console().show_cursor(True)  # a killed first rank may have hidden it for its live view


def end_with_launcher() -> None:
    """In a rank: let the kernel end this process as soon as its launcher has ended, in whatever way."""
    launcher = os.environ.get(LAUNCHER_VARIABLE)
    if launcher is None:
        return
    with suppress(AttributeError, OSError):  # not on Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != int(launcher):
        os.kill(os.getpid(), signal.SIGKILL)


class _RankProcesses:
    """The processes of the ranks. Each has a process group of its own, so Ctrl-C reaches it once, from the launcher."""

    def __init__(self, arguments: Sequence[str], *, num_ranks: int, port: int, board: FailureBoard) -> None:
        self._board = board
        self._signals: list[int] = []
        self._deadline: float | None = None
        self._lost: TrainingError | None = None
        self._noticed: set[int] = set()
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(num_ranks):
            environment = _environment(rank, num_ranks=num_ranks, port=port)
            # -P: like the command `nmt`, a rank imports no modules from the working directory.
            command = [sys.executable, "-P", "-m", "nmt_cli", *arguments]
            self._processes.append(
                subprocess.Popen(command, env=environment, process_group=0, stdin=subprocess.DEVNULL)
            )

    @contextmanager
    def passing_signals_on(self) -> Iterator[None]:
        """Pass SIGTERM, Ctrl-C and Ctrl-Z on to the ranks while the block runs."""
        earlier = {number: signal.signal(number, self._receive) for number in (signal.SIGTERM, signal.SIGINT)}
        earlier[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._suspend)
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    def wait(self) -> int:
        """Wait until no rank is left, kill ranks that outlive a failure, and return the exit code of the training."""
        while self._running():
            self._notice_failures()
            if self._deadline is not None and time.monotonic() > self._deadline:
                self.kill()
            time.sleep(_POLL_SECONDS)
        self._notice_failures()
        if self._lost is not None:
            raise self._lost
        failure = self._board.failure()
        return self._agreed_code() if failure is None else failure.exit_code

    def kill(self) -> None:
        """Kill the ranks that still run."""
        for rank in self._running():
            self._noticed.add(rank)
            self._processes[rank].kill()
            self._processes[rank].wait()

    def _running(self) -> list[int]:
        return [rank for rank, process in enumerate(self._processes) if process.poll() is None]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)
        if self._signals.count(signal.SIGINT) > 1:
            self._hurry(_HASTE_SECONDS)
        self._send(number)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Stop this process and all ranks until this process is continued, for example by the shell's `fg`."""
        self._send(signal.SIGSTOP)
        _stop_this_process()
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        for process in self._processes:
            process.send_signal(number)

    def _hurry(self, seconds: float) -> None:
        """Set the deadline for all ranks, unless there is an earlier one."""
        self._deadline = min(self._deadline or math.inf, time.monotonic() + seconds)

    def _notice_failures(self) -> None:
        """Set a deadline if a rank has ended, and record its failure if it could not do so itself.

        Ranks end together when all are done. If a rank is stopped before it has joined, the others wait in vain.
        """
        for rank, process in enumerate(self._processes):
            code = process.returncode
            if code is None or rank in self._noticed:
                continue
            self._noticed.add(rank)
            self._hurry(_GRACE_SECONDS)
            if code in _EXPECTED:
                continue
            if -code in self._signals:  # before the rank listened for signals: the others need not report it
                self._board.claim(Failure(self._code_of_signals(), is_stall=False))
                continue
            error = _lost(rank, process, num_ranks=len(self._processes))
            if self._board.claim(Failure(error.exit_code, is_stall=False)) is None:
                self._lost = error

    def _agreed_code(self) -> int:
        """The exit code without a failure. Ranks that a signal or the launcher ended have negative codes."""
        codes = [process.returncode for process in self._processes if process.returncode >= 0]
        return max(codes) if codes else self._code_of_signals()

    def _code_of_signals(self) -> int:
        return EXIT_PREEMPTED if signal.SIGTERM in self._signals else EXIT_INTERRUPTED


def _stop_this_process() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _lost(rank: int, process: subprocess.Popen[bytes], *, num_ranks: int) -> TrainingError:
    code, hint = process.returncode, "the same command continues from the newest checkpoint"
    if code == -signal.SIGKILL:
        hint = f"look for a lack of memory with dmesg, or find what killed it; {hint}"
    end = f"ended with code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
    return TrainingError(f"rank {rank} of {num_ranks} {end}", where=f"process {process.pid}", hint=hint)


def _environment(rank: int, *, num_ranks: int, port: int) -> dict[str, str]:
    """The environment that torchrun would set for a rank on one machine, and the launcher's process id."""
    threads = max(1, num_cpus() // num_ranks)
    inherited = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_RUN_ID"}
    return {
        "OMP_NUM_THREADS": str(threads),
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # else torch reports a lost rank in its own words, too
        **inherited,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the launcher has the store: no rank opens one
        LAUNCHER_VARIABLE: str(os.getpid()),
    }
