"""The one console: progress, tables and errors on stderr; logging; stdout is left to data."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nmt_cli.errors import NmtError

if TYPE_CHECKING:
    from rich.console import Console


def stderr_console() -> Console:
    """A Rich console on stderr; without colours and cursor moves where stderr is not a terminal."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=not is_interactive())


def is_interactive() -> bool:
    """True where a live view makes sense: stderr is a terminal that is not dumb."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"


def configure_logging(*, quiet: bool) -> None:
    """Send the log of `nmt_cli` to stderr, plain, one line an event; `quiet` keeps warnings and errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter())
    logger = logging.getLogger("nmt_cli")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.WARNING if quiet else logging.INFO)


@contextmanager
def log_above(console: Console) -> Iterator[None]:
    """Print the log through a console while the block runs, so that its lines go above the console's live view."""
    logger = logging.getLogger("nmt_cli")
    before = logger.handlers[:]
    logger.handlers[:] = [_ConsoleHandler(console)]
    try:
        yield
    finally:
        logger.handlers[:] = before


def print_error(error: NmtError) -> None:
    """Write the three lines of an error to stderr: what, where, what to type next."""
    lines = [("error", error.message), ("at", error.where), ("fix", error.hint)]
    red, plain = ("\033[31m", "\033[0m") if is_interactive() and "NO_COLOR" not in os.environ else ("", "")
    for label, text in lines:
        if text:
            colour = red if label == "error" else ""
            sys.stderr.write(f"{colour}{label + ':':<7}{plain if colour else ''}{text}\n")
    sys.stderr.flush()


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
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"
