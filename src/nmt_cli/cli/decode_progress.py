"""What `nmt decode` shows in a terminal while it translates: how many lines are done, and how long that has taken."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nmt_cli.cli.decode_files import STANDARD
from nmt_cli.console import is_interactive, log_above, stderr_console

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

logger = logging.getLogger(__name__)


class Progress:
    """Nothing: nobody sees a line on stderr, or it would come between what is typed."""

    def wrote(self, write: Callable[[], object], *, num_lines: int) -> None:
        """Count the lines that `write` writes."""
        write()


class _Shown(Progress):
    """A line on stderr, which is off the screen while translations are written to the same one."""

    def __init__(self, bars: Bars, task: TaskID, *, is_shared: bool) -> None:
        self._bars = bars
        self._task = task
        self._is_shared = is_shared

    def wrote(self, write: Callable[[], object], *, num_lines: int) -> None:
        if self._is_shared:
            self._bars.stop()
        write()
        if self._is_shared:
            self._bars.start()
        self._bars.advance(self._task, num_lines)


@contextmanager
def shown_progress(source: Path, *, is_streamed: bool, lines_done: int) -> Iterator[Progress]:
    """The progress for as long as the context lasts; `lines_done` were translated before."""
    is_typed = is_streamed or (source == STANDARD and sys.stdin.isatty())
    if is_typed or not (is_interactive() and logger.isEnabledFor(logging.INFO)):
        yield Progress()
        return
    from rich.progress import Progress as Bars
    from rich.progress import TextColumn, TimeElapsedColumn

    console = stderr_console()
    columns = (TextColumn("{task.completed:,.0f} lines translated"), TimeElapsedColumn())
    # Translations do not go through sys.stdout, and of Rich's stand-in for it isatty() may be wrong.
    bars = Bars(*columns, console=console, transient=True, refresh_per_second=2, redirect_stdout=False)
    is_shared = sys.stdout.isatty()
    with bars, log_above(console):
        yield _Shown(bars, bars.add_task("", total=None, completed=lines_done), is_shared=is_shared)
