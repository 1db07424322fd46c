"""What takes seconds to make is made once for all test processes of a session."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def shared_folder(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that `make` has filled, in this process or in another of the session; no test may change it."""
    is_one_of_several = "PYTEST_XDIST_WORKER" in os.environ
    root = factory.getbasetemp().parent if is_one_of_several else factory.getbasetemp()
    folder, made = root / name, root / f"{name}.made"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder.mkdir()
            make(folder)
            made.touch()
    return folder
