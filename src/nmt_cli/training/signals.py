"""SIGTERM and Ctrl-C: noted when they come, obeyed at the end of an update."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NUMBERS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """Which signal has asked the process to end; None so far."""

    def __init__(self) -> None:
        self.received: int | None = None

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
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = self.received or number
