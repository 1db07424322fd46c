"""The signal that asks a training to end, and the endings of a training."""

from __future__ import annotations

import signal
import time
from contextlib import AbstractContextManager
from typing import Literal

from nmt_cli.processes import receiving_signals

Ending = Literal["finished", "patience", "preempted", "interrupted"]
ENDINGS_BY_SIGNAL: dict[int, Ending] = {signal.SIGTERM: "preempted", signal.SIGINT: "interrupted"}
_ONE_CTRL_C_SECONDS = 1.0


class StopSignal:
    """The signal that has asked the process to end; None if there was none. If it `interrupts`, it raises StopAsked.

    Under torchrun a Ctrl-C `comes_twice`: from the terminal, and from torchrun, which passes it on.
    """

    def __init__(self, *, comes_twice: bool) -> None:
        self.received: int | None = None
        self._ignoring_seconds, self._since = _ONE_CTRL_C_SECONDS if comes_twice else 0.0, 0.0
        self.interrupts = False

    def listening(self) -> AbstractContextManager[None]:
        """Note signals while the block runs; a second Ctrl-C raises KeyboardInterrupt at once."""
        return receiving_signals(self._receive)

    def _receive(self, number: int) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._since = number, now
            if self.interrupts:
                raise StopAsked
        elif number == signal.SIGINT and now - self._since >= self._ignoring_seconds:
            raise KeyboardInterrupt


class StopAsked(Exception):
    """A signal came during a validation, or before the first plan was open."""
