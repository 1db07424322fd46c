"""The lines of a file, plain or compressed, in chunks. Their length is bounded, and other encodings are refused."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from nmt_cli.errors import DataError
from nmt_cli.files import open_bytes
from nmt_cli.preparing.chunks import batched
from nmt_cli.preparing.sources.base import empty_error
from nmt_cli.text_encoding import check_encoding, conversion

LONGEST_LINE = 1 << 20
"""Bytes of the longest line, and characters of the longest text of other formats."""

_BUFFER = 1 << 18
_BEGINNING = 1 << 10
_BREAKS = re.compile(r"[\t\r\n]+")


def line_chunks(file: Path, *, skip: int = 0) -> Iterator[tuple[int, list[bytes]]]:
    """The lines of a file after the first `skip` in chunks, each time with the first line's number."""
    number = 1 + skip
    for lines in batched(read_lines(file, skip=skip), size=len):
        yield number, lines
        number += len(lines)


def read_lines(file: Path, *, skip: int = 0) -> Iterator[bytes]:
    """The lines of a file after the first `skip`, with their ends.

    DataError if there are none, if a line is longer than `LONGEST_LINE`, or if the file is compressed or UTF-16, or
    ends its lines with CR alone.
    """
    with open_bytes(file) as stream:
        lines = islice(io.BufferedReader(_BoundedLines(stream, file), buffer_size=_BUFFER), skip, None)
        first = next(lines, None)
        if first is None:
            raise empty_error(file, below_header=skip > 0)
        yield first
        yield from lines


def read_beginning(file: Path) -> bytes:
    """The beginning of a file, by which its encoding is recognised."""
    with open_bytes(file) as stream:
        return stream.read(_BEGINNING)


def join_lines(text: str) -> str:
    """The text as one line: each line break or tab becomes a space, and white space at both ends is removed."""
    if "\n" in text or "\t" in text or "\r" in text:
        text = " ".join(filter(None, (line.strip(" ") for line in _BREAKS.split(text))))
    return text.strip()


def too_long_error(file: Path, line: int, *, text: str, unit: str) -> DataError:
    """The error for a text that is too long to be a sentence."""
    message = f"{text} of {file.name} is longer than {LONGEST_LINE:,} {unit}"
    return DataError(message, where=f"{file}:{line}", hint="give text with one sentence a line")


def _old_line_ends_error(file: Path) -> DataError:
    message = f"the lines of {file.name} end with CR alone, as on old Macs"
    return DataError(message, where=f"{file}:1", hint=conversion(file, r"tr '\r' '\n'", new="lf"))


class _BoundedLines(io.RawIOBase):
    """The bytes of a stream; DataError as soon as a line is too long, so that no reader keeps the line."""

    def __init__(self, stream: BinaryIO, file: Path) -> None:
        self._stream = stream
        self._file = file
        self._num_lines = 0
        self._length = 0  # of the part of the last line that was read
        self._is_at_start = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._stream.read(len(buffer))
        if self._is_at_start:
            check_encoding(block, name=str(self._file))
            if b"\n" not in block and b"\r" in block.rstrip(b"\r"):
                raise _old_line_ends_error(self._file)
        self._is_at_start = False
        first_line = block.partition(b"\n")[0]
        if self._length + len(first_line) > LONGEST_LINE:
            number = self._num_lines + 1
            raise too_long_error(self._file, number, text=f"line {number:,}", unit="bytes")
        num_line_ends = block.count(b"\n")
        self._num_lines += num_line_ends
        self._length = len(block) - block.rfind(b"\n") - 1 if num_line_ends else self._length + len(block)
        buffer[: len(block)] = block
        return len(block)
