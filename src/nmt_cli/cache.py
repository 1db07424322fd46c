"""The cache of nmt: its folder, its locks, and the check of a file in it by size and SHA-256."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path

from filelock import FileLock, Timeout

from nmt_cli.errors import DataError
from nmt_cli.files import disk_errors, sha256

logger = logging.getLogger(__name__)

OTHER_CACHE_HINT = "name a folder on another disk: export NMT_CACHE=FOLDER"


def cache_folder() -> Path:
    """The folder of downloads, unpacked archives and models of the hub: $NMT_CACHE, or else nmt in the user's cache."""
    chosen = os.environ.get("NMT_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "nmt")
    try:
        return Path(chosen).expanduser()
    except RuntimeError:
        raise DataError("this user has no home folder for the cache", hint="export NMT_CACHE=FOLDER") from None


@contextmanager
def cache_lock(file: Path) -> Iterator[None]:
    """Lock a file of the cache, which need not exist, for this process; wait while another process holds it."""
    lock = FileLock(file.with_name(f".{file.name}.lock"), thread_local=False)
    with writing_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.info("waiting for another process that writes %s to the cache", file.name)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def writing_errors(file: Path) -> AbstractContextManager[None]:
    """Raise DataError if the block cannot write `file` in the cache."""
    return disk_errors(file, DataError, elsewhere=OTHER_CACHE_HINT)


def mismatch(file: Path, *, expected_size: int | None, expected_sha256: str | None) -> str | None:
    """The difference of a file from the expected size and hash, in words; None if there is none."""
    actual_size = file.stat().st_size
    if expected_size not in (None, actual_size):
        return f"it has {actual_size:,} bytes, not {expected_size:,}"
    if expected_sha256 is not None and expected_sha256 != (digest := file_hash(file)):
        return f"its SHA-256 is {digest}, not {expected_sha256}"
    return None


def file_hash(path: Path) -> str:
    """The SHA-256 of a file, computed once unless the file changes."""
    status = path.stat()
    return _hash(path, status.st_size, status.st_mtime_ns)


# Size and time are part of the key of the cache.
@lru_cache(maxsize=4096)
def _hash(path: Path, size: int, modified_at: int) -> str:
    return sha256(path)
