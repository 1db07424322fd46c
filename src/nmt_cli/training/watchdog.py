"""A thread beside each rank's training, which ends it where no rank makes progress or where another has failed."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from nmt_cli import console
from nmt_cli.errors import TrainingError
from nmt_cli.training.bulletin import Bulletin, Failure
from nmt_cli.training.distributed import Ranks

_TICK_SECONDS = 1.0
# For a rank to end by itself, finishing a file that it is writing, after another has failed.
_GRACE_TICKS, _DUMP_TICKS = 10, 3


@contextmanager
def watching(ranks: Ranks, *, seconds: int) -> Iterator[None]:
    """End this process, with the stack of every rank, where none of them makes progress for so long in the block.

    A rank that waits for the others while the first validates or saves is no stall: any rank's progress counts. Where a
    rank has failed, those that cannot notice, since they wait for it within a collective, end as well. One process
    alone is not watched.
    """
    if ranks.bulletin is None:
        yield
        return
    faulthandler.enable()
    done = threading.Event()
    watchdog = _Watchdog(ranks, ranks.bulletin, seconds=seconds)
    thread = threading.Thread(target=watchdog.watch, args=(done,), name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class _Watchdog:
    """Counts its own ticks, not the clock's seconds: a training that was suspended has not stalled."""

    def __init__(self, ranks: Ranks, bulletin: Bulletin, *, seconds: int) -> None:
        self._ranks, self._bulletin, self._seconds = ranks, bulletin, seconds
        self._told, self._seen, self._idle_ticks, self._failed_ticks = 0, 0, 0, 0

    def watch(self, done: threading.Event) -> None:
        """Look once a tick, until `done` is set or the board is gone, which its owner takes with it at the end."""
        while not done.wait(_TICK_SECONDS):
            try:
                failure = self._look()
            except RuntimeError:
                return
            if failure is not None and failure.is_stall:
                time.sleep(0.2 + self._ranks.rank % 16 * 0.05)  # one after the other, and after the message
                _dump_stacks(self._ranks)
                time.sleep(_DUMP_TICKS * _TICK_SECONDS)  # else the others lose the connection before they have dumped
                os._exit(failure.exit_code)
            self._failed_ticks += failure is not None
            if failure is not None and self._failed_ticks > _GRACE_TICKS:
                os._exit(failure.exit_code)

    def _look(self) -> Failure | None:
        beats = self._ranks.pulse.beats
        if beats != self._told:
            self._told = beats
            self._bulletin.beat()
        seen = self._bulletin.beats()
        self._idle_ticks = 0 if seen != self._seen else self._idle_ticks + 1
        self._seen = seen
        failure = self._bulletin.failure()
        if failure is None and self._idle_ticks * _TICK_SECONDS >= self._seconds:
            error = stalled(self._seconds)
            failure = Failure(error.exit_code, is_stall=True)
            if (first := self._bulletin.claim(failure)) is None:
                console.print_error(error)
            return first or failure
        return failure


def stalled(seconds: int) -> TrainingError:
    """The error of a training in which nothing moves any more."""
    return TrainingError(
        f"none of the ranks has made progress for {seconds} seconds: the training hangs",
        where="training.watchdog_seconds",
        hint="see in the stacks below what each rank waits for; the same command continues from the newest checkpoint",
    )


def _dump_stacks(ranks: Ranks) -> None:
    """Write the stacks of all threads of this process to stderr, in one piece beside those of other ranks."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        stacks = file.read()
    title = f"rank {ranks.rank} of {ranks.size}, process {os.getpid()} on {socket.gethostname()}:\n"
    sys.stderr.flush()
    os.write(sys.stderr.fileno(), title.encode() + stacks + b"\n")
