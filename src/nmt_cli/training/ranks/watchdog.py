"""The watchdog: a thread in each rank that ends the process if no rank makes progress or another rank has failed."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nmt_cli import console
from nmt_cli.errors import TrainingError
from nmt_cli.training.ranks.ranks import CONTINUES, Failure, FailureBoard, Ranks

_TICK_SECONDS = 1.0
# Ticks for a rank to end by itself after another has failed, so that it can finish writing a file.
_GRACE_TICKS, _DUMP_TICKS = 10, 3
# Ranks take turns in writing their stacks, after the message.
_MESSAGE_SECONDS, _TURN_SECONDS, _NUM_TURNS = 0.2, 0.05, 16


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
    watchdog = _Watchdog(ranks, ranks.board, seconds=seconds)
    thread = threading.Thread(target=watchdog.watch, args=(done,), name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class _Watchdog:
    """Ends a rank that stalls. It counts its own ticks, not seconds of the clock: a suspended training is no stall."""

    def __init__(self, ranks: Ranks, board: FailureBoard, *, seconds: int) -> None:
        self._ranks, self._board, self._seconds = ranks, board, seconds
        self._reported_beats, self._seen_beats, self._idle_ticks, self._failed_ticks = 0, 0, 0, 0

    def watch(self, done: threading.Event) -> None:
        """Check once per tick, until `done` is set."""
        while not done.wait(_TICK_SECONDS):
            try:
                failure = self._check_progress()
            except RuntimeError:
                return  # the board has ended with its owner
            if failure is None:
                continue
            if failure.is_stall:
                time.sleep(_MESSAGE_SECONDS + self._ranks.rank % _NUM_TURNS * _TURN_SECONDS)
                _dump_stacks(self._ranks)
                time.sleep(_DUMP_TICKS * _TICK_SECONDS)  # keep the connection until all have written
                os._exit(failure.exit_code)
            self._failed_ticks += 1
            if self._failed_ticks > _GRACE_TICKS:
                os._exit(failure.exit_code)

    def _check_progress(self) -> Failure | None:
        """Report this rank's progress; return the failure that ends the training, if there is one by now."""
        beats = self._ranks.beats
        if beats != self._reported_beats:
            self._reported_beats = beats
            self._board.beat()
        beats_of_all = self._board.beats()
        self._idle_ticks = 0 if beats_of_all != self._seen_beats else self._idle_ticks + 1
        self._seen_beats = beats_of_all
        failure = self._board.failure()
        if failure is None and self._idle_ticks * _TICK_SECONDS >= self._seconds:
            return self._report_stall()
        return failure

    def _report_stall(self) -> Failure:
        """Print that the training hangs, unless another rank has reported a failure; return the first failure."""
        error = TrainingError(
            f"none of the ranks has made progress for {self._seconds} seconds: the training hangs",
            where="training.watchdog_seconds",
            hint=f"the stacks below show what each rank waits for; {CONTINUES}",
        )
        failure = Failure(error.exit_code, is_stall=True)
        first = self._board.claim(failure)
        if first is None:
            console.print_error(error)
        return first or failure


def _dump_stacks(ranks: Ranks) -> None:
    """Write the stacks of all threads of this process to stderr in one piece."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        stacks = file.read()
    title = f"rank {ranks.rank} of {ranks.size}, process {os.getpid()} on {socket.gethostname()}:\n"
    with suppress(OSError):  # the terminal is closed
        os.write(sys.stderr.fileno(), title.encode() + stacks + b"\n")
