"""One training at a time in a run's directory."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from nmt_cli import files
from nmt_cli.errors import ModelError


def locked(directory: Path) -> AbstractContextManager[None]:
    """Hold the run in `directory`, which need not exist yet; ModelError where another process holds it."""
    return files.locked(directory, busy=f"another nmt train is at work in {directory}", error=ModelError)
