"""What a person reads: the log, errors and progress on stderr, and the forms of lines, sizes and times."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from io import UnsupportedOperation
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

from nmt_cli.errors import NmtError, spell_settings

if TYPE_CHECKING:
    from rich.console import Console

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called after each piece of work with the stage, the amount done, and the whole amount if it is known."""

_SECONDS_BETWEEN_LINES = 30.0
_RED, _PLAIN = "\033[31m", "\033[0m"
_COMMAND = re.compile(
    r"\bnmt [a-z]+|--set |\bpip install |\b(?:sed|awk|rm|mv|jq|perl|iconv|cut -f1|python3 -c) |^next:"
)
_C0_AND_C1_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
_DIRECTION_CONTROLS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ESCAPES = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*_C0_AND_C1_CONTROLS, *_DIRECTION_CONTROLS)
    if chr(code) not in "\t\n"
}
logger = logging.getLogger(__name__)
PACKAGE_LOGGER = logging.getLogger("nmt_cli")


def stderr_console() -> Console:
    """A Rich console on stderr, without colours and cursor moves if stderr is not a terminal."""
    from rich.console import Console

    return Console(file=cast("IO[str]", _Stderr()), highlight=False, soft_wrap=not is_interactive())


def is_interactive() -> bool:
    """True if stderr is a terminal that can move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"


def configure_logging(*, quiet: bool) -> None:
    """Send the log of `nmt_cli` to stderr, one plain line per event; `quiet` keeps warnings and errors."""
    handler = logging.StreamHandler(_Stderr())
    handler.setFormatter(_Formatter())
    PACKAGE_LOGGER.handlers[:] = [handler]
    PACKAGE_LOGGER.propagate = False
    PACKAGE_LOGGER.setLevel(logging.WARNING if quiet else logging.INFO)


@contextmanager
def log_to_console(console: Console) -> Iterator[None]:
    """Print the log through a console while the block runs, so that its lines go above the console's live view."""
    usual_handlers = PACKAGE_LOGGER.handlers[:]
    PACKAGE_LOGGER.handlers[:] = [_ConsoleHandler(console)]
    try:
        yield
    finally:
        PACKAGE_LOGGER.handlers[:] = usual_handlers


def shows_live_views() -> bool:
    """True if a live view may be shown: stderr is a terminal, and the log is not quiet."""
    return is_interactive() and PACKAGE_LOGGER.isEnabledFor(logging.INFO)


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Show progress on stderr while the block runs: a bar on a terminal, elsewhere a line in the log now and then.

    The bar is that of the current stage. The log goes above it, and at the end it disappears.
    """
    if not shows_live_views():
        yield ProgressLines(time.monotonic)
        return
    from rich import progress as view

    counts = view.BarColumn(), view.MofNCompleteColumn(separator=" of ")
    columns = "{task.description}", *counts, view.TimeElapsedColumn(), view.TimeRemainingColumn()
    console = stderr_console()
    # Data does not go through sys.stdout, and isatty() of Rich's replacement for it may be wrong.
    bars = view.Progress(*columns, console=console, transient=True, refresh_per_second=4, redirect_stdout=False)
    tasks: dict[str, view.TaskID] = {}

    def show(stage: str, done: int, total: int | None) -> None:
        if stage not in tasks:
            for earlier in tasks.values():
                bars.update(earlier, visible=False)
            tasks[stage] = bars.add_task(stage, total=total)
        bars.update(tasks[stage], completed=done, total=total)

    with bars, log_to_console(console):
        yield show


class ProgressLines:
    """A line in the log every half minute: the amount done, the rate since the last line, and the time left."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._stage: str | None = None
        self._logged_at, self._logged_done = 0.0, 0

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Note the amount done, and log it if it is time."""
        now = self._clock()
        if stage == self._stage and done >= self._logged_done:
            if now - self._logged_at < _SECONDS_BETWEEN_LINES:
                return
            rate = (done - self._logged_done) / (now - self._logged_at)
            left = "" if total is None or rate <= 0 else f", {duration_text(max(0, total - done) / rate)} left"
            amount = f"{done:,}" if total is None else f"{done:,} of {total:,}"
            logger.info("%s: %s, %s per second%s", stage, amount, f"{rate:,.0f}", left)
        self._stage, self._logged_at, self._logged_done = stage, now, done


def wrap(text: str, *, width: int, indent: int) -> list[str]:
    """The lines of a text, broken between words at `width`, each but the first behind `indent` spaces.

    A line with a command of ours stays whole, so that it can be copied.
    """
    lines: list[str] = []
    for line in text.splitlines() or [""]:
        if len(line) <= width or _COMMAND.search(line):
            lines.append(line)
            continue
        indentation = " " * indent
        lines += textwrap.wrap(
            line, max(width, 1), subsequent_indent=indentation, break_long_words=False, break_on_hyphens=False
        )
    return lines


def without_controls(text: str) -> str:
    """The text with control characters as escapes, except tabs and line ends.

    The name of a file or a language may come from a stranger, and terminals obey control characters.
    """
    return text if text.isprintable() else text.translate(_ESCAPES)


def size_text(num_bytes: float) -> str:
    """A number of bytes as a person reads it: `7.5 GB`, `818.5 MB`, `70.6 kB`, `999 bytes`."""
    from rich.filesize import decimal

    return decimal(round(num_bytes))


def time_text(iso: str) -> str:
    """A time of ISO 8601 as a person reads it: `2026-05-01 14:30 UTC`; any other text as it is."""
    try:
        return datetime.fromisoformat(iso).strftime("%Y-%m-%d %H:%M %Z").rstrip()
    except ValueError:
        return iso


def duration_text(seconds: float) -> str:
    """A time in its two largest units: `45 s`, `3 min 20 s`, `2 h 5 min`, `4 d 7 h`."""
    whole = round(seconds)
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    for (unit, size), (next_unit, next_size) in pairwise(units):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {unit}" + (f" {rest} {next_unit}" if rest else "")
    return f"{whole} s"


def print_error(error: NmtError) -> None:
    """Write the three lines of an error to stderr: what, where, and what to type next.

    Settings are shown as flags.
    """
    where = ", ".join(filter(None, (error.setting and f"`{error.setting}`", error.where)))
    has_colour = is_interactive() and "NO_COLOR" not in os.environ
    for label, text in (("error:", error.message), ("at:", where), ("fix:", error.hint)):
        if text:
            shown = _on_screen(f"{label:<7}{spell_settings(text, _as_flag)}", indent=7)
            if has_colour and label == "error:":
                shown = f"{_RED}{label}{_PLAIN}{shown.removeprefix(label)}"
            _Stderr().write(f"{shown}\n")


def _as_flag(name: str, value: str | None) -> str:
    """A flag of the command line: --to huggingface."""
    flag = f"--{name.replace('_', '-')}"
    return flag if value is None else f"{flag} {value}"


class _Stderr:
    """stderr for errors, the log and Rich's views. Once it cannot be written, they go nowhere, and change no result."""

    def __init__(self) -> None:
        self._stream = sys.stderr

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        try:
            with suppress(UnsupportedOperation):  # a stream of Python's without a descriptor
                os.set_blocking(self._stream.fileno(), True)  # another program may have changed it: text would be lost
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            # What is still in the buffer goes there too: Python would end with 120 if it could not write it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


class _ConsoleHandler(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self.setFormatter(_Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(self.format(record), markup=False, emoji=False, highlight=False, soft_wrap=True)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        label = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return _on_screen(f"{label}{text}", indent=len(label))


def _on_screen(text: str, *, indent: int) -> str:
    """A text for stderr without control characters, and broken between words if a terminal shows it."""
    text = without_controls(text)
    if not is_interactive():
        return text
    return "\n".join(wrap(text, width=shutil.get_terminal_size().columns, indent=indent))
