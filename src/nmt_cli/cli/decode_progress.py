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
    """A line on stderr; none where nobody sees it, or where it would come between what is typed."""

    def __init__(self, bars: Bars | None, task: TaskID | None) -> None:
        self._bars = bars
        self._task = task

    def wrote(self, write: Callable[[], object], *, num_lines: int) -> None:
        """Count what `write` writes; where that is the same terminal, the line is off it meanwhile."""
        if self._bars is None or self._task is None:
            write()
            return
        is_shared = sys.stdout.isatty()
        if is_shared:
            self._bars.stop()
        write()
        if is_shared:
            self._bars.start()
        self._bars.advance(self._task, num_lines)


@contextmanager
def shown_progress(source: Path, *, is_streamed: bool, lines_done: int) -> Iterator[Progress]:
    """The progress for as long as the context lasts; `lines_done` were translated before."""
    is_typed = is_streamed or (source == STANDARD and sys.stdin.isatty())
    if is_typed or not (is_interactive() and logger.isEnabledFor(logging.INFO)):
        yield Progress(None, None)
        return
    from rich.progress import Progress as Bars
    from rich.progress import TextColumn, TimeElapsedColumn

    console = stderr_console()
    columns = (TextColumn("{task.completed:,.0f} lines translated"), TimeElapsedColumn())
    with Bars(*columns, console=console, transient=True, refresh_per_second=2) as bars, log_above(console):
        yield Progress(bars, bars.add_task("", total=None, completed=lines_done))
