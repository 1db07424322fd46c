"""The work folder of a preparation: stages that are finished or absent, so that an interrupted one continues."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import IO

from nmt_cli.errors import DataError
from nmt_cli.files import new_directory

logger = logging.getLogger(__name__)

_RECORD = "stage.json"
_LOCK = "lock"


class WorkFolder:
    """A folder beside the output with a directory for each finished stage, and the key that it was made for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def has(self, stage: str, *, key: str) -> bool:
        """True where the stage is finished, and was made for this key."""
        try:
            record = json.loads((self.path / stage / _RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return bool(record == {"key": key})

    def stage(self, name: str, *, key: str, build: Callable[[Path], None]) -> Path:
        """The directory of a stage: the finished one where it has this key, else what `build` writes."""
        directory = self.path / name
        if self.has(name, key=key):
            logger.info("%s: finished before, kept", name)
            return directory
        with new_directory(directory, error=DataError) as temporary:
            build(temporary)
            (temporary / _RECORD).write_text(json.dumps({"key": key}), encoding="utf-8")
        return directory

    def discard_stages(self) -> None:
        """Remove all stages, finished or not."""
        for directory in [entry for entry in self.path.iterdir() if entry.is_dir()]:
            shutil.rmtree(directory)


@contextmanager
def open_work_folder(output: Path) -> Iterator[WorkFolder]:
    """The work folder of an output, locked against a second process; what a killed one left half-written is removed.

    The folder stays if stages are finished in it.
    """
    path = work_path(output)
    with _make(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(
                f"another nmt prepare is writing {output.name}",
                where=str(path),
                hint="wait for it, or choose another -o",
            ) from None
        hidden = f".{escape(output.name)}.*"
        beside = [*output.parent.glob(f"{hidden}.partial"), *output.parent.glob(f"{hidden}.retired")]
        for leftover in [*path.glob(".*.partial"), *beside]:
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            yield WorkFolder(path)
        finally:
            if [entry.name for entry in path.glob("*")] == [_LOCK]:
                shutil.rmtree(path)


def work_path(output: Path) -> Path:
    """Where the work folder of an output lies."""
    return output.with_name(f"{output.name}.partial")


def place(file: Path, target: Path) -> None:
    """Make `file` appear at `target` too, without copying where the file system has hard links."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def _make(path: Path) -> IO[str]:
    """Make the work folder, and open its lock file."""
    if path.is_dir() and any(path.iterdir()) and not (path / _LOCK).exists():
        raise DataError(
            f"{path} is in the way: nmt prepare would work there, and did not make it",
            where=str(path),
            hint="move it away, or choose another -o",
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
        return (path / _LOCK).open("w")
    except OSError as problem:
        raise DataError(
            f"cannot make {path}: {problem.strerror}", where=str(path), hint="choose another folder with -o"
        ) from None
