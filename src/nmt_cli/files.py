"""Files and directories that are written whole or not at all; locks, hashes and sizes.

A lock is a file beside what it guards, so it also guards what is being made or replaced.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nmt_cli.errors import DataError, ModelError, NmtError, UsageError

_PARTIAL, _RETIRED, _REMOVED = ".partial", ".retired", ".removed"
_OTHER_FOLDER_HINT = "choose another folder with -o"
_BUSY_HINT = f"wait until it ends, or {_OTHER_FOLDER_HINT}"
FREE_SPACE_HINT = "free some space, then give the same command again"
# A lock is asked for this long, because `is_locked` of another process holds it for a moment.
_SECONDS_FOR_LOCK = 0.5
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
# The error numbers of a file that cannot be written, the reason in words, and a fix besides choosing another folder.
_WRITING_ERRORS = (
    ((errno.ENOSPC, errno.EDQUOT), "the disk is full", FREE_SPACE_HINT),
    ((errno.EACCES, errno.EPERM, errno.EROFS), "no permission to write there", None),
    ((errno.ENOTDIR, errno.EEXIST), "a file stands where a folder must be", None),
    ((errno.ENAMETOOLONG,), "its name is too long for this disk", "choose a shorter one with -o"),
    ((errno.EFBIG,), "it would be larger than files may be here", "ulimit -f unlimited, then the same command"),
    ((errno.ENOTEMPTY,), "a process still reads the version before it", "stop that process"),
    ((errno.EISDIR,), "a folder stands where a file must be", None),
    ((errno.EBUSY, errno.EXDEV), "it is a mount point, or belongs to the image of a container", None),
    (_NO_LOCKS, "the disk knows no locks", "mount it with flock"),
)


@contextmanager
def new_directory(final: Path, *, error: type[NmtError]) -> Iterator[Path]:
    """A temporary directory that becomes `final`, synced and renamed, when the block ends well.

    An existing `final` is replaced; if it is a link, the target of the link is. After an exception nothing of the new
    directory remains. After a kill, `clear_partial_directories` clears the rest. A full disk, a quota, a read-only
    target or another process that writes `final` is raised as `error`.
    """
    final = Path(os.path.realpath(final)) if final.is_symlink() else final
    temporary, retired = (final.with_name(f".{final.name}{suffix}") for suffix in (_PARTIAL, _RETIRED))
    with disk_errors(final, error):
        final.parent.mkdir(parents=True, exist_ok=True)
        clear_partial_directories(final.parent, name=escape(final.name))
    with lock_path(temporary, busy=f"another process is writing {final.name}", error=error, is_optional=True):
        try:
            with disk_errors(final, error):
                temporary.mkdir()
                yield temporary
                for path in sorted(temporary.rglob("*")):
                    _sync(path)
                _sync(temporary)
                if final.exists():
                    final.rename(retired)
                temporary.rename(final)
                _sync(final.parent)
                _remove(retired)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        finally:
            if retired.exists() and not final.exists():
                retired.rename(final)


def check_replaceable(path: Path, *, kind_name: str, is_same_kind: bool, overwrite: bool) -> None:
    """Raise ModelError unless `path` may be written: it is new, empty, or, with `overwrite`, of the same kind.

    `kind_name` names the kind, and `is_same_kind` says that `path` is of it. UsageError if the path names no folder.
    """
    check_names_folder(path, example="models/mine")
    check_no_mount_point(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not is_same_kind:
        message = f"{path} exists and is not {kind_name}, so it is not replaced"
        raise ModelError(message, where=str(path), hint=_OTHER_FOLDER_HINT)
    if not overwrite:
        hint = "add --overwrite to replace it, or choose another folder with -o"
        raise ModelError(f"{path} exists already: {kind_name}", where=str(path), hint=hint)


def check_names_folder(path: Path, *, example: str) -> None:
    """Raise UsageError unless the path that -o gives names a folder."""
    if path.name in ("", ".."):
        raise UsageError(f"-o {path} names no folder", where="--output", hint=f"for example -o {example}")


def check_no_mount_point(path: Path) -> None:
    """Raise UsageError if the directory at `path`, which is to be replaced, is a mount point."""
    if os.path.ismount(os.path.realpath(path)):
        hint = f"name a folder in it: -o {shlex.quote(str(path / 'NAME'))}"
        raise UsageError(f"{path} is a mount point, which cannot be replaced", where="--output", hint=hint)


def remove_directory(path: Path) -> None:
    """Remove a directory, or a link but not its target.

    A kill in the middle leaves nothing under its name.
    """
    removed = path.with_name(f".{path.name}{_REMOVED}")
    _remove(removed)
    with suppress(FileNotFoundError):
        path.rename(removed)
    _remove(removed)


def clear_partial_directories(parent: Path, *, name: str) -> None:
    """Clear the leftovers of a killed writer of directories whose names match the pattern `name` in `parent`.

    Partial directories that no process writes are removed. An old directory without a successor gets its name back.
    """
    for leftover in sorted(parent.glob(f".{name}{_RETIRED}")):
        successor = leftover.with_name(leftover.name.removeprefix(".").removesuffix(_RETIRED))
        if successor.exists():
            _remove(leftover)
        else:
            leftover.rename(successor)
    for leftover in sorted(path for suffix in (_PARTIAL, _REMOVED) for path in parent.glob(f".{name}{suffix}")):
        _remove(leftover)


@contextmanager
def lock_path(path: Path, *, busy: str, error: type[NmtError], is_optional: bool = False) -> Iterator[None]:
    """Hold the lock of a path while the block runs: a file beside it, the same for every path to it.

    Raises `error` with the message `busy` if another process holds it, and `error` if the disk has no locks, unless
    the lock `is_optional`. The kernel releases it when the process ends, by whatever means.
    """
    file = _lock_file(path)
    lock = FileLock(file, timeout=_SECONDS_FOR_LOCK, thread_local=False)
    try:
        with disk_errors(file, error):
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire()
                file.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
            except Timeout:
                holder = file.read_text(encoding="utf-8").strip() if file.exists() else ""
                raise error(f"{busy}: {holder}" if holder else busy, where=str(path), hint=_BUSY_HINT) from None
            except OSError as cause:
                if cause.errno not in _NO_LOCKS:
                    raise
                file.unlink(missing_ok=True)
                if not is_optional:
                    raise  # `disk_errors` tells it
        yield
    finally:
        if lock.is_locked:
            file.unlink(missing_ok=True)  # while it is still held, so it cannot be another process's file
            lock.release()


def is_locked(directory: Path) -> bool:
    """Whether a process holds the lock of `directory`, on any machine if the disk is shared."""
    try:
        with _lock_file(directory).open(encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:  # or no lock file, none that this user may read, or a disk without locks
        return isinstance(error, BlockingIOError)
    return False


def write_file(path: Path, content: str | bytes, *, error: type[NmtError]) -> None:
    """Write a file, or the target of a link, so that a reader sees the old content or the new one.

    Missing parents are made.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{_PARTIAL}")  # two processes may write one file
    try:
        with disk_errors(path, error):
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as stream:
                stream.write(content.encode() if isinstance(content, str) else content)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
    finally:
        with suppress(OSError):  # the error of writing says more
            temporary.unlink(missing_ok=True)


def read_text(path: Path, *, error: type[NmtError], hint: str) -> str:
    """The text of a file; raises `error` with `hint` if it is missing, unreadable or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise error(f"{path.name} is missing", where=str(path), hint=hint) from None
    except PermissionError:
        raise unreadable_error(path, name=path.name, error=error) from None
    except OSError as cause:
        raise error(f"{path.name} cannot be read: {cause.strerror}", where=str(path), hint=hint) from None
    except UnicodeDecodeError as cause:
        raise error(f"{path.name} is damaged: {cause}", where=str(path), hint=hint) from None


def read_json(path: Path, *, error: type[NmtError], hint: str) -> Any:
    """The content of a JSON file; raises `error` as `read_text` does, and if it is not JSON."""
    try:
        return json.loads(read_text(path, error=error, hint=hint))
    except json.JSONDecodeError as cause:
        raise error(f"{path.name} is damaged: {cause}", where=str(path), hint=hint) from None


def nearest_existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists and may be seen."""
    absolute = path.resolve()
    return next(folder for folder in (absolute, *absolute.parents) if os.path.exists(folder))  # Path.exists may raise


def free_bytes(path: Path) -> int:
    """Free bytes on the disk that a path, which need not exist yet, lies or would lie on."""
    return shutil.disk_usage(nearest_existing(path)).free


def bytes_in(path: Path) -> int:
    """The bytes of the files at or below a path; 0 if there are none.

    A training run removes old checkpoints at any moment: a file or a folder that is gone has no bytes.
    """
    files = [path, *(Path(folder, name) for folder, _, names in os.walk(path) for name in names)]
    total = 0
    for file in files:
        with suppress(FileNotFoundError):
            total += file.lstat().st_size if file.is_file() else 0
    return total


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Raise DataError if the block finds the file at `path` missing, a directory, or unreadable."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"no such file: {path}", where=str(path.absolute()), hint="check the path") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a directory, not a file", where=str(path), hint="name a file in it") from None
    except PermissionError:
        raise unreadable_error(path, name=str(path), error=DataError) from None
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
            raise
        hint = f"check the path: {error.strerror}"
        raise DataError(f"no such file: {path}", where=str(path.absolute()), hint=hint) from None


def unreadable_error(path: Path, *, name: str, error: type[NmtError]) -> NmtError:
    """The `error` for a file that this user may not read."""
    return error(f"{name} may not be read", where=str(path), hint=f"chmod +r {shlex.quote(str(path))}")


@contextmanager
def disk_errors(target: Path, error: type[NmtError], *, elsewhere: str | None = None) -> Iterator[None]:
    """Raise `error` if the block cannot write `target`: no space, no permission, no locks, or a limit of file size.

    `elsewhere` is the hint that names another place, if that is not the option -o.
    """
    try:
        yield
    except OSError as cause:
        user_error = writing_error(cause, target, error, elsewhere=elsewhere)
        if user_error is None:
            raise
        try:
            raise user_error from cause
        finally:
            del user_error  # the error and this frame would hold each other, and all that the callers' frames hold


def writing_error(cause: OSError, target: Path, error: type[NmtError], *, elsewhere: str | None) -> NmtError | None:
    """The `error` for a `target` that cannot be written; None if the cause may be another one."""
    for codes, reason, fix in _WRITING_ERRORS:
        if cause.errno in codes:
            hint = ", or ".join(filter(None, (fix, elsewhere))) or _OTHER_FOLDER_HINT
            return error(f"cannot write {target.name}: {reason}", where=str(target), hint=hint)
    return None


def _lock_file(path: Path) -> Path:
    """The hidden lock file beside a path, as every process names it."""
    resolved = Path(os.path.realpath(path))
    return resolved.with_name(f".{resolved.name.removeprefix('.')}.lock")


def _remove(path: Path) -> None:
    """Remove a link, or a directory that nobody locks. Files that NFS keeps open stay, and so does their folder."""
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        with suppress(DataError), lock_path(path, busy="it is in use", error=DataError, is_optional=True):
            shutil.rmtree(path, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some disks, such as shared folders of VirtualBox, sync no directories
            raise
    finally:
        os.close(descriptor)
