"""Files that are read uncompressed: gzip, zstd and xz, by the end of their names."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from nmt_cli.errors import DataError
from nmt_cli.files import reading_errors

DECOMPRESSION_ERRORS = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
_ZSTD_WINDOW = 1 << 31  # the largest of `zstd --ultra --long=31`
_ZSTD_BLOCK = 1 << 10  # of compressed bytes: even a bomb makes less than 64 MB of it


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, uncompressed if its name ends in .gz, .zst or .xz.

    Raises DataError if the file cannot be read.
    """
    kind = {".zst": "zstd", ".xz": "xz"}.get(path.suffix, "gzip")
    try:
        with reading_errors(path):  # only of opening: an OSError of the caller's block has other causes
            opened = path.open("rb")
        with opened as raw:
            if path.suffix in (".gz", ".xz"):
                with gzip.open(raw) if path.suffix == ".gz" else lzma.open(raw) as stream:
                    yield io.BufferedReader(stream)
            elif path.suffix == ".zst":
                yield io.BufferedReader(_ZstdReader(raw))
            else:
                yield raw
    except DECOMPRESSION_ERRORS as error:
        message = f"{path} is not a whole {kind} file: {error}"
        raise DataError(message, where=str(path), hint="fetch it again") from None


class _ZstdReader(io.RawIOBase):
    """The uncompressed bytes of zstd frames; EOFError if they are damaged or end within a frame.

    The library's own reader takes a truncated file for a complete one.
    """

    def __init__(self, compressed: BinaryIO) -> None:
        self._compressed = compressed
        self._block = b""
        self._decompressed = memoryview(b"")  # a view, so that no read copies the rest of the block
        self._frame: Any = None  # the decompressor of a frame that has begun

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        import zstandard

        while not self._decompressed:
            self._block = self._block or self._compressed.read(_ZSTD_BLOCK)
            if not self._block:
                if self._frame is not None:
                    raise EOFError("it ends within a frame")
                return 0
            self._frame = self._frame or zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()
            try:
                self._decompressed = memoryview(self._frame.decompress(self._block))
            except zstandard.ZstdError as error:
                raise EOFError(str(error)) from None
            self._block = b""
            if self._frame.eof:
                self._block, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._decompressed))
        buffer[:size], self._decompressed = self._decompressed[:size], self._decompressed[size:]
        return size
