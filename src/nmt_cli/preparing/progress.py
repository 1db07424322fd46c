"""How far a preparation is: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from nmt_cli.console import is_interactive, log_above, stderr_console

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 30.0


class Progress(Protocol):
    """Called after each piece of work with the stage, the pairs done, and the pairs in all where they are known."""

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Show it."""


@contextmanager
def show_progress() -> Iterator[Progress]:
    """A progress on stderr for as long as the context lasts: bars on a terminal, else lines in the log."""
    if not (is_interactive() and logger.isEnabledFor(logging.INFO)):
        yield Lines(time.monotonic)
        return
    console = stderr_console()
    columns = (TextColumn("{task.description}"), BarColumn(), _Amount(), _Speed(), TimeElapsedColumn(), _TimeLeft())
    with Bars(*columns, console=console, transient=True) as bars, log_above(console):
        yield _Bars(bars)


class Lines:
    """A line in the log every half minute: how much is done, how fast since the line before, and how long it takes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._stage: str | None = None
        self._since = 0.0
        self._done = 0

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Note how much is done, and say it where it is time."""
        now = self._clock()
        if stage == self._stage and now - self._since < _SECONDS_BETWEEN_LINES:
            return
        if stage == self._stage:
            speed = (done - self._done) / (now - self._since)
            amount = f"{done:,}" if total is None else f"{done:,} of {total:,}"
            left = "" if total is None or speed <= 0 else f", {time_left((total - done) / speed)} left"
            logger.info("%s: %s, %s a second%s", stage, amount, f"{speed:,.0f}", left)
        self._stage, self._since, self._done = stage, now, done


def time_left(seconds: float) -> str:
    """Hours, minutes and seconds, as in 1:02:03."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


class _Bars:
    """A bar for the stage at hand; those of the stages before are hidden."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if stage not in self._tasks:
            for task in self._tasks.values():
                self._bars.update(task, visible=False)
            self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(self._tasks[stage], completed=done, total=total)


class _Amount(ProgressColumn):
    def render(self, task: Task) -> Text:
        """What is done, and of how much where that is known; nothing for a stage that does not count."""
        amount = f"{int(task.completed):,}"
        if task.total is None:
            return Text(amount if task.completed else "")
        return Text(f"{amount} of {int(task.total):,}")


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        """How much is done in a second."""
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


class _TimeLeft(ProgressColumn):
    def render(self, task: Task) -> Text:
        """How long the rest takes, where that is known."""
        left = task.time_remaining
        return Text("" if left is None else f"{time_left(left)} left")
