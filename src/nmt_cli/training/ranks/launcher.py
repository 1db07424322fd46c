"""Launches a training as one process (rank) per GPU of this machine, passes signals on, and ends all ranks together."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Sequence
from subprocess import Popen

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented there, and not declared

from nmt_cli.devices import num_cpus
from nmt_cli.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, TrainingError
from nmt_cli.processes import NmtCommands
from nmt_cli.training.ranks.ranks import CONTINUES, LAUNCHED, FailureBoard

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
    deadline, lost = math.inf, None
    with NmtCommands() as commands:
        processes = [
            commands.start(
                arguments,
                ends_by=signal.SIGKILL,
                environment=rank_environment(rank, num_ranks=num_ranks, port=store.port),
            )
            for rank in range(num_ranks)
        ]
        running = dict(enumerate(processes))
        while running and time.monotonic() < deadline:
            for rank in [rank for rank, process in running.items() if process.poll() is not None]:
                code = running.pop(rank).returncode
                if -code in commands.signals:  # before it listened for signals: the others need not report its loss
                    board.claim(_exit_code_of(commands.signals))
                elif code not in _EXPECTED_CODES and board.claim(TrainingError.exit_code) is None:
                    lost = _error_of(processes[rank], rank, num_ranks=num_ranks)
                # Ranks end together when all are done. If one is stopped before it has joined, the others wait in vain.
                deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
            if commands.signals.count(signal.SIGINT) > 1:
                deadline = min(deadline, time.monotonic() + _HASTE_SECONDS)
            time.sleep(_POLL_SECONDS)
    if lost is not None:
        raise lost
    if (failure := board.failure()) is not None:
        return failure
    # Ranks that a signal or the launcher ended have negative codes.
    codes = [process.returncode for process in processes if process.returncode >= 0]
    return max(codes, default=_exit_code_of(commands.signals))


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
