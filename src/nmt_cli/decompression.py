"""Files that are read uncompressed and in UTF-8, by their first bytes: gzip, bzip2, zstd, xz, UTF-16 and UTF-32."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from nmt_cli.errors import DataError
from nmt_cli.files import reading_errors

DECOMPRESSION_ERRORS = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)


def _open_zstd(raw: io.BufferedReader) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(raw, "zstd")


class Compression(NamedTuple):
    """A program that compresses, a pattern of the first bytes that it writes, and the command that decompresses.

    `ending` is the ending of its files, and `open` reads them, if nmt reads them.
    """

    program: str
    magic: bytes
    decompressor: str
    ending: str | None = None
    open: Callable[[io.BufferedReader], Any] | None = None


COMPRESSIONS = (
    Compression("gzip", rb"\x1f\x8b", "zcat", ".gz", gzip.open),
    Compression("zstd", rb"\x28\xb5\x2f\xfd", "zstdcat", ".zst", _open_zstd),
    Compression("xz", rb"\xfd7zXZ\x00", "xzcat", ".xz", lzma.open),
    Compression("bzip2", rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", "bzcat", ".bz2", bz2.open),
    Compression("zip", rb"PK(\x03\x04|\x05\x06)", "unzip -p"),
)
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # begins like UTF-16
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


@contextmanager
def open_bytes(path: Path, *, in_utf8: bool = True) -> Iterator[io.BufferedReader]:
    """The bytes of a file, uncompressed if it is compressed by gzip, bzip2, xz or zstd.

    With `in_utf8`, text that has a mark of UTF-16 or UTF-32 is UTF-8 instead. Raises DataError if the file cannot be
    read.
    """
    with reading_errors(path):  # only of opening: an OSError of the caller's block has other causes
        opened = path.open("rb")
    with opened as raw:
        beginning = raw.peek(16) if path.is_file() else b""  # of a pipe, the caller may read what is not buffered
        by_name = next((known for known in COMPRESSIONS if known.ending == path.suffix), None)
        found = next((known for known in COMPRESSIONS if known.ending and re.match(known.magic, beginning)), by_name)
        try:
            stream: io.BufferedReader[Any] = io.BufferedReader(found.open(raw)) if found and found.open else raw
            if in_utf8 and path.is_file():
                beginning = stream.peek(8)
                encoding = next((known for mark, known in BYTE_ORDER_MARKS.items() if beginning.startswith(mark)), None)
                stream = stream if encoding is None else io.BufferedReader(_Utf8Reader(stream, encoding))
            yield stream
        except (OSError, *DECOMPRESSION_ERRORS) as error:
            if isinstance(error, OSError) and (error.errno is not None or found is None):
                raise
            message = f"{path} is not a whole {found.program if found else 'compressed'} file: {error}"
            raise DataError(message, where=str(path), hint="fetch it again") from None


class _Utf8Reader(io.RawIOBase):
    """The text of a stream in another encoding as UTF-8; what is broken becomes U+FFFD."""

    def __init__(self, stream: io.BufferedReader, encoding: str) -> None:
        self._text = io.TextIOWrapper(stream, encoding, errors="replace", newline="")
        self._encoded = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._encoded = self._encoded or self._text.read(len(buffer)).encode("utf-8", "replace")
        size = min(len(buffer), len(self._encoded))
        buffer[:size], self._encoded = self._encoded[:size], self._encoded[size:]
        return size
