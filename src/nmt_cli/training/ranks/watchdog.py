"""The watchdog: a thread in each rank that ends the process if no rank makes progress or another rank has failed."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nmt_cli import console
from nmt_cli.errors import TrainingError
from nmt_cli.training.ranks.ranks import CONTINUES, FailureBoard, Ranks

# Ticks are counted, not seconds of the clock: a suspended training is no stall.
_TICK_SECONDS = 1.0
# Ticks for a rank to end by itself after another has failed, so that it can finish writing a file.
_GRACE_TICKS = 10
# How long ranks that hang write their stacks, one after the other, and then keep the connection for the last one.
_TURN_SECONDS, _NUM_TURNS, _DUMP_SECONDS = 0.1, 16, 3.0


@contextmanager
def watching(ranks: Ranks, *, seconds: int) -> Iterator[None]:
    """End this process, with the stacks of every rank, if no rank makes progress for `seconds` in the block.

    Progress of any rank counts, so ranks may wait while the first validates or saves. If a rank has failed, ranks that
    wait for it within a collective, and so cannot notice, end as well. A single process is not watched.
    """
    if ranks.board is None:
        yield
        return
    faulthandler.enable()
    done = threading.Event()
    thread = threading.Thread(target=_watch, args=(ranks, ranks.board, seconds, done), name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _watch(ranks: Ranks, board: FailureBoard, seconds: int, done: threading.Event) -> None:
    """Check once per tick, until `done` is set."""
    own_beats, beats, idle_ticks, failed_ticks = 0, 0, 0, 0
    with suppress(RuntimeError):  # the board has ended with its owner
        while not done.wait(_TICK_SECONDS):
            before, own_before, own_beats = beats, own_beats, ranks.beats
            beats = board.beat(is_progress=own_beats != own_before)
            idle_ticks = idle_ticks + 1 if beats == before else 0
            if idle_ticks * _TICK_SECONDS >= seconds:
                os._exit(_report_stall(ranks, board, seconds))
            if (exit_code := board.failure()) is not None:
                failed_ticks += 1
                if failed_ticks > _GRACE_TICKS:
                    os._exit(exit_code)


def _report_stall(ranks: Ranks, board: FailureBoard, seconds: int) -> int:
    """Print the stacks of this process, after a message of the first rank that comes here; return the exit code."""
    error = TrainingError(
        f"none of the ranks has made progress for {seconds} seconds: the training hangs",
        where="training.watchdog_seconds",
        hint=f"the stacks below show what each rank waits for; {CONTINUES}",
    )
    if (first := board.claim(error.exit_code)) is None:
        console.print_error(error)
    time.sleep((1 + ranks.rank % _NUM_TURNS) * _TURN_SECONDS)
    with suppress(OSError):  # the terminal is closed
        title = f"rank {ranks.rank} of {ranks.size}, process {os.getpid()} on {socket.gethostname()}:\n"
        os.write(sys.stderr.fileno(), title.encode())
        faulthandler.dump_traceback()
    time.sleep(_DUMP_SECONDS)
    return first or error.exit_code
