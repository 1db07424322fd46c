"""Files and directories that appear whole or not at all, hashes, and text behind compression."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from nmt_cli.errors import DataError, NmtError

_BLOCK = 1 << 20
_PARTIAL, _RETIRED = ".partial", ".retired"
_ZSTD_BLOCK = 1 << 16


@contextmanager
def new_directory(final: Path, *, error: type[NmtError]) -> Iterator[Path]:
    """A temporary directory that becomes `final` when the block ends well: files and directory are synced, then renamed.

    An existing `final` is replaced. After an exception nothing of the new directory remains; what a kill leaves,
    `clear_interrupted` clears. A full disk, a quota or a read-only target is raised as `error`.
    """
    temporary = final.with_name(f".{final.name}{_PARTIAL}")
    with _disk_errors(final, error):
        final.parent.mkdir(parents=True, exist_ok=True)
        clear_interrupted(final.parent, name=final.name)
        temporary.mkdir()
    try:
        with _disk_errors(final, error):
            yield temporary
            for path in sorted(temporary.rglob("*")):
                _sync(path)
            _sync(temporary)
            retired = final.with_name(f".{final.name}{_RETIRED}")
            if final.exists():
                final.rename(retired)
            temporary.rename(final)
            _sync(final.parent)
            shutil.rmtree(retired, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_directory(path: Path) -> None:
    """Remove a directory so that a kill in the middle leaves no half of it under its name."""
    retired = path.with_name(f".{path.name}{_RETIRED}")
    shutil.rmtree(retired, ignore_errors=True)
    path.rename(retired)
    shutil.rmtree(retired)


def clear_interrupted(parent: Path, *, name: str) -> None:
    """Clear up what a killed writer of directories named like `name`, a pattern, left in `parent`.

    Parts go; an old directory whose successor never came returns.
    """
    for leftover in sorted(parent.glob(f".{name}{_RETIRED}")):
        successor = leftover.with_name(leftover.name.removeprefix(".").removesuffix(_RETIRED))
        partial = leftover.with_name(f".{successor.name}{_PARTIAL}")
        if partial.exists() and not successor.exists():
            leftover.rename(successor)
        else:
            shutil.rmtree(leftover, ignore_errors=True)
    for leftover in sorted(parent.glob(f".{name}{_PARTIAL}")):
        shutil.rmtree(leftover, ignore_errors=True)


def write_file(path: Path, content: str | bytes, *, error: type[NmtError]) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part; parents are made."""
    temporary = path.with_name(f".{path.name}{_PARTIAL}")
    data = content.encode() if isinstance(content, str) else content
    try:
        with _disk_errors(path, error):
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path, *, error: type[NmtError], hint: str) -> Any:
    """The content of a JSON file; `error` with `hint` where it is missing, cut short or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{path.name} is missing", where=str(path), hint=hint) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise error(f"{path.name} is damaged: {problem}", where=str(path), hint=hint) from None


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, uncompressed where its name ends in .gz or .zst; DataError where that cannot be read."""
    try:
        with path.open("rb") as raw:
            if path.suffix == ".gz":
                with gzip.open(raw) as stream:
                    yield io.BufferedReader(stream)  # type: ignore[arg-type]  # GzipFile reads like a raw stream
            elif path.suffix == ".zst":
                yield io.BufferedReader(_ZstdReader(raw))
            else:
                yield raw
    except FileNotFoundError:
        raise DataError(f"no such file: {path}", where=str(path), hint="check the path") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a directory, not a file", where=str(path), hint="name a file in it") from None
    except PermissionError:
        raise DataError(f"{path} may not be read", where=str(path), hint=f"chmod +r {path}") from None
    except (EOFError, gzip.BadGzipFile) as problem:
        kind = "zstd" if path.suffix == ".zst" else "gzip"
        message = f"{path} is not a whole {kind} file: {problem}"
        raise DataError(message, where=str(path), hint="fetch it again") from None
    except Exception as problem:
        if type(problem).__name__ != "ZstdError":
            raise
        raise DataError(f"{path} is not a whole zstd file: {problem}", where=str(path), hint="fetch it again") from None


class _ZstdReader(io.RawIOBase):
    """The uncompressed bytes of zstd frames; the library's own reader takes a file cut short for one that has ended."""

    def __init__(self, compressed: BinaryIO) -> None:
        self._compressed = compressed
        self._block = self._ready = b""
        self._frame: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        import zstandard

        while not self._ready:
            self._block = self._block or self._compressed.read(_ZSTD_BLOCK)
            if not self._block:
                if self._frame is not None:
                    raise EOFError("it ends within a frame")
                return 0
            self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._ready = self._frame.decompress(self._block)
            self._block = self._frame.unused_data if self._frame.eof else b""
            self._frame = None if self._frame.eof else self._frame
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


@contextmanager
def _disk_errors(target: Path, error: type[NmtError]) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            reason, hint = "the disk is full", "free some space, then give the same command again: it continues"
        elif problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            reason, hint = "no permission to write there", "choose another folder with -o"
        else:
            raise
        raise error(f"cannot write {target.name}: {reason}", where=str(target), hint=hint) from problem


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
