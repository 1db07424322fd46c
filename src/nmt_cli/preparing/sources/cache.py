"""The folder for what is downloaded, and what is shared by those who write there: locks and errors of a full disk."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nmt_cli.errors import DataError

logger = logging.getLogger(__name__)

_ELSEWHERE = "or name a folder on another disk: export NMT_CACHE=FOLDER"


def cache_folder() -> Path:
    """Where downloads and what is unpacked of them are kept: $NMT_CACHE, else nmt in the user's cache."""
    own, general = os.environ.get("NMT_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return Path(own).expanduser() if own else Path(general or "~/.cache").expanduser() / "nmt"


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Hold a file of the cache, which need not exist, for this process; where another one holds it, wait."""
    with writing_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        stream = file.with_name(f".{file.name}.lock").open("a")
    with stream:
        with writing_errors(file):
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("waiting for another process that fetches %s", file.name)
                fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def writing_errors(file: Path) -> Iterator[None]:
    """Raise DataError where the block cannot write `file` in the cache: no space, no permission, no locks."""
    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = "the disk is full"
            hint = f"free some space, then give the same command again: it continues; {_ELSEWHERE}"
        elif problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            reason, hint = "no permission to write there", f"chmod it, {_ELSEWHERE}"
        elif problem.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            reason, hint = "the disk knows no locks", f"mount it with flock, {_ELSEWHERE}"
        else:
            raise
        raise DataError(f"cannot write {file.name}: {reason}", where=str(file), hint=hint) from problem


def check_space(file: Path, *, needed: int) -> None:
    """DataError where the disk that `file` is to be written to has less than `needed` bytes left."""
    free = shutil.disk_usage(file.parent).free
    if needed > free:
        raise DataError(
            f"{file.name} needs {needed / 1e9:.3f} GB, and {free / 1e9:.3f} GB are free",
            where=str(file),
            hint=f"free some space, then give the same command again: it continues; {_ELSEWHERE}",
        )
