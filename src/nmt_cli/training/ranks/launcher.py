"""Launches a training as one process (rank) per GPU of this machine, passes signals on, and ends all ranks together."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Sequence
from subprocess import Popen

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented there, and not declared

from nmt_cli import console
from nmt_cli.devices import num_cpus
from nmt_cli.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, TrainingError
from nmt_cli.processes import NmtCommands
from nmt_cli.training.ranks.ranks import CONTINUES, LAUNCHED, Failure, FailureBoard

_POLL_SECONDS = 0.05
# How long the other ranks may take to end by themselves, after a rank has ended or a second Ctrl-C.
_GRACE_SECONDS, _HASTE_SECONDS = 15.0, 3.0
_EXPECTED_CODES = (0, EXIT_PREEMPTED, EXIT_INTERRUPTED)


def launch(arguments: Sequence[str], *, num_ranks: int) -> int:
    """Run `nmt ARGUMENTS` as `num_ranks` processes, and return their exit code.

    The launcher passes SIGTERM and Ctrl-C on to the ranks, which may take as long as they need to save. If a rank
    fails, the launcher ends the others and returns its exit code; the rank has written its message. Raises
    TrainingError if the rank could not write a message, for example because the kernel killed it.
    """
    store = open_store()
    board = FailureBoard(store)
    try:
        with NmtCommands() as commands:
            processes = [
                commands.start(
                    arguments,
                    ends_by=signal.SIGKILL,
                    environment=rank_environment(rank, num_ranks=num_ranks, port=store.port),
                )
                for rank in range(num_ranks)
            ]
            lost = _wait_for_ranks(processes, commands.signals, board)
    finally:
        if console.is_interactive():
            console.stderr_console().show_cursor(True)  # a killed first rank may have hidden it for its live view
    if lost is not None:
        raise lost
    if (failure := board.failure()) is not None:
        return failure.exit_code
    # Ranks that a signal or the launcher ended have negative codes.
    codes = [process.returncode for process in processes if process.returncode >= 0]
    return max(codes, default=_exit_code_of(commands.signals))


def _wait_for_ranks(
    processes: Sequence[Popen[bytes]], signals: Sequence[int], board: FailureBoard
) -> TrainingError | None:
    """Return when no rank is left, or when ranks that outlive a failure have used up their time.

    Returns the error of a rank that failed first and could not report its failure.
    """
    running = dict(enumerate(processes))
    deadline, lost = math.inf, None
    while running and time.monotonic() < deadline:
        ended = [rank for rank, process in running.items() if process.poll() is not None]
        for rank in ended:
            error = _report_failure(running.pop(rank), rank, num_ranks=len(processes), signals=signals, board=board)
            lost = lost or error
            # Ranks end together when all are done. If one is stopped before it has joined, the others wait in vain.
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        if signals.count(signal.SIGINT) > 1:
            deadline = min(deadline, time.monotonic() + _HASTE_SECONDS)
        time.sleep(_POLL_SECONDS)
    return lost


def _report_failure(
    process: Popen[bytes], rank: int, *, num_ranks: int, signals: Sequence[int], board: FailureBoard
) -> TrainingError | None:
    """Put the failure of an ended rank on the board, unless another failure is there; return its error if it is new."""
    if process.returncode in _EXPECTED_CODES:
        return None
    if -process.returncode in signals:  # before the rank listened for signals: the others need not report it
        board.claim(Failure(_exit_code_of(signals), is_stall=False))
        return None
    error = _error_of(process, rank, num_ranks=num_ranks)
    return error if board.claim(Failure(error.exit_code, is_stall=False)) is None else None


def _exit_code_of(signals: Sequence[int]) -> int:
    return EXIT_PREEMPTED if signal.SIGTERM in signals else EXIT_INTERRUPTED


def _error_of(process: Popen[bytes], rank: int, *, num_ranks: int) -> TrainingError:
    code, hint = process.returncode, CONTINUES
    if code == -signal.SIGKILL:
        hint = f"look for a lack of memory with dmesg, or find what killed it; {hint}"
    end = f"ended with code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
    return TrainingError(f"rank {rank} of {num_ranks} {end}", where=f"process {process.pid}", hint=hint)


def open_store() -> TCPStore:
    """The store in which the ranks meet. It outlives every rank, and no other process can take its port."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def rank_environment(rank: int, *, num_ranks: int, port: int) -> dict[str, str]:
    """The variables that torchrun would set for a rank on one machine, and one that names this launcher."""
    threads = max(1, num_cpus() // num_ranks)
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        # Otherwise torch reports a lost rank in its own words, too.
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the launcher has the store: no rank opens one
        LAUNCHED: "1",
    }
