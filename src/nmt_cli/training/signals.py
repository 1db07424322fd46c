"""SIGTERM and Ctrl-C: noted when they come, obeyed at the end of an update."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NUMBERS = (signal.SIGTERM, signal.SIGINT)
_ONE_CTRL_C_SECONDS = 1.0


class StopSignal:
    """Which signal has asked the process to end; None so far.

    Under torchrun a Ctrl-C `comes_twice`: from the terminal, and from torchrun, which has had it as well.
    """

    def __init__(self, *, comes_twice: bool) -> None:
        self.received: int | None = None
        self._deaf_seconds, self._since = _ONE_CTRL_C_SECONDS if comes_twice else 0.0, 0.0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals while the block runs; a second Ctrl-C does not wait and raises KeyboardInterrupt."""
        earlier = {number: signal.signal(number, self._receive) for number in _NUMBERS}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._since = number, now
        elif number == signal.SIGINT and now - self._since >= self._deaf_seconds:
            raise KeyboardInterrupt
