"""How far a preparation is: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from nmt_cli.console import is_interactive, stderr_console

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 30.0


class Progress(Protocol):
    """Called after each chunk with the stage, the pairs done, and the pairs in all where they are known."""

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Show it."""


@contextmanager
def show_progress() -> Iterator[Progress]:
    """A progress on stderr for as long as the context lasts: bars on a terminal, else lines in the log."""
    if not (is_interactive() and logger.isEnabledFor(logging.INFO)):
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=stderr_console(), transient=True) as bars:
        yield _Bars(bars)


class _Lines:
    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            logger.info("%s: %s%s", stage, f"{done:,}", "" if total is None else f" of {total:,}")


class _Bars:
    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if stage not in self._tasks:
            for task in self._tasks.values():
                self._bars.update(task, visible=False)
            self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(self._tasks[stage], completed=done, total=total)
