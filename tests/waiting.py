"""Waiting for other processes, and whether they live."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def wait_until(
    is_so: Callable[[], object],
    *,
    process: subprocess.Popen[Any] | None = None,
    seconds: float = 60,
    told: Callable[[], str] = str,
) -> None:
    """Wait until it is so; an error with the text of `told` if the time is over, or `process` ends first."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert process is None or process.poll() is None, told()
        assert time.monotonic() < deadline, told()
        time.sleep(0.02)


def state_of(process: int) -> str:
    """The letter that Linux gives the state of a process; FileNotFoundError or ProcessLookupError if there is none."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def is_alive(process: int) -> bool:
    """True if a process has not ended, whether or not its parent knows."""
    try:
        return state_of(process) != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends between the opening and the reading
        return False


def children(process: int) -> set[int]:
    """What a process has started, by any of its threads; FileNotFoundError or ProcessLookupError if there is none."""
    while True:
        try:
            return {
                int(child)
                for thread in Path(f"/proc/{process}/task").iterdir()
                for child in (thread / "children").read_text().split()
            }
        except (FileNotFoundError, ProcessLookupError):  # a thread has ended, and another one has its children now
            state_of(process)
