"""The lines of a file, plain or compressed, in chunks. Their length is bounded, and other encodings are refused."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from nmt_cli.decompression import open_bytes
from nmt_cli.errors import DataError
from nmt_cli.preparing.chunks import batched
from nmt_cli.preparing.sources.base import empty_error
from nmt_cli.text_encoding import check_encoding, conversion

LONGEST_LINE = 1 << 20
"""Bytes of the longest line, and characters of the longest text of other formats."""

_BEGINNING = 1 << 10  # bytes by which an encoding is recognised
_BREAKS = re.compile(r"[\t\r\n]+")


def line_chunks(file: Path, *, skip: int = 0) -> Iterator[tuple[int, list[str]]]:
    """The lines of a file after the first `skip` in chunks, as text, each time with the first line's number."""
    number = 1 + skip
    for lines in batched(text_lines(file, skip=skip), size=len):
        yield number, lines
        number += len(lines)


def text_lines(file: Path, *, skip: int = 0) -> Iterator[str]:
    """The lines of `read_lines` as text without their ends (LF or CR LF). Wrong bytes are surrogate escapes."""
    for line in read_lines(file, skip=skip):
        yield line.decode("utf-8", "surrogateescape").removesuffix("\n").removesuffix("\r")


def without_tabs(texts: Sequence[str]) -> list[str]:
    """The texts with a space for each tab."""
    return [text.replace("\t", " ") for text in texts]


def read_lines(file: Path, *, skip: int = 0) -> Iterator[bytes]:
    """The lines of a file after the first `skip`, with their ends, without a byte-order mark.

    DataError if there are none, if a line is longer than `LONGEST_LINE`, or if the file is compressed or UTF-16, or
    ends its lines with CR alone.
    """
    with open_bytes(file) as stream:
        check_encoding(stream.peek(_BEGINNING)[:_BEGINNING], name=str(file))
        number = 0
        for number, line in enumerate(iter(partial(stream.readline, LONGEST_LINE + 1), b""), start=1):
            if number == 1 and not line.endswith(b"\n") and b"\r" in line.rstrip(b"\r"):
                message = f"the lines of {file.name} end with CR alone, as on old Macs"
                raise DataError(message, where=f"{file}:1", hint=conversion(file, r"tr '\r' '\n'", new="lf"))
            if len(line) > LONGEST_LINE and not line.endswith(b"\n"):
                message = f"line {number:,} of {file.name} is longer than {LONGEST_LINE:,} bytes"
                raise DataError(message, where=f"{file}:{number}", hint="give text with one sentence a line")
            if number > skip:
                yield line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if number <= skip:
            raise empty_error(file, below_header=skip > 0)


def join_lines(text: str) -> str:
    """The text as one line: each line break or tab becomes a space, and white space at both ends is removed."""
    if "\n" in text or "\t" in text or "\r" in text:
        text = " ".join(filter(None, (line.strip(" ") for line in _BREAKS.split(text))))
    return text.strip()
