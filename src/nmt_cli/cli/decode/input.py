"""The text that `nmt decode` reads: files and streams in blocks of lines. It refuses TMX, CSV and the like."""

from __future__ import annotations

import codecs
import logging
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shlex import quote
from typing import BinaryIO, Literal

from nmt_cli.decompression import open_bytes
from nmt_cli.errors import DataError
from nmt_cli.text_encoding import (
    STDIN,
    check_encoding,
    decompressor_of,
    not_utf8_error,
    shell_pipe,
    wide_encoding,
)
from nmt_cli.tokenization.tokenised_text import piece_mark_in_text

logger = logging.getLogger(__name__)

STANDARD = Path("-")
_CHUNK_BYTES = 1 << 16
# Lines that are sorted by length and translated together; no line is written before the whole block is done.
_BLOCK_LINES = 1000
# A program that has more lines writes them within this time; a person who types does not notice the wait.
_NEXT_LINE_SECONDS = 0.01
# The longest time for gathering lines that keep coming.
_MAX_GATHERING_SECONDS = 0.3
# TMX, XLIFF, PO, SRT, WebVTT, HTML and XML.
_DOCUMENT = re.compile(
    r"\s*<(?:[?!][^<]*<)*(?:tmx|xliff)\b"
    r'|(?:#.*\n|\s)*msgid ""\s*\nmsgstr "'
    r"|\s*\d+[ \t]*\r?\n[\d:]+:\d\d[,.]\d+ -->|WEBVTT\b(?s:.)*?\n[\d:]+:\d\d\.\d+ -->"
    r"|\s*(?:<\?[^<]*|<!--(?s:.)*?-->\s*)*<(?i:!doctype\s+html\b|(?:html|head|body)\b[^<>]*>\s*<)|\s*<\?xml\s[^<>]*\?>"
)
# Plain text may begin so, too.
_TABLES = {".tsv": re.compile(r"(?:[^\n\t]*\n){0,4}[^\n]*\t"), ".csv": re.compile(r"[\r\n]*[^\n]*[,;\t]")}
# A text may begin with a bracket, but not with the quoted name and the value of a JSON object, or two quoted texts.
_JSON_STRING = r'"(?:[^"\\\n]|\\.)*"'
_JSON_OBJECT = rf'\{{\s*{_JSON_STRING}\s*:\s*(?:["\[{{\d-]|true|false|null)'
_JSON = re.compile(rf'\s*(?:(?:\[\s*)*{_JSON_OBJECT}|(?:\[\s*)+{_JSON_STRING}\s*(?:,\s*"|\]\s*\Z))')

OnInvalidBytes = Literal["strict", "replace"]
"""What is done about bytes that are not UTF-8: DataError, or U+FFFD in their place."""


@contextmanager
def open_input(source: Path, *, is_streamed: bool, errors: OnInvalidBytes) -> Iterator[Iterator[list[str]]]:
    """The lines of a file or of stdin, in blocks; `is_streamed` ends a block as soon as no more input is waiting."""
    if source == STANDARD:
        if sys.stdin.isatty():
            logger.info("type one sentence per line; Ctrl-D ends the input")
        max_wait_seconds = 0.0 if is_streamed else _NEXT_LINE_SECONDS
        yield _live_blocks(sys.stdin.fileno(), max_wait_seconds=max_wait_seconds, name=STDIN, errors=errors)
        return
    name = str(source)
    if os.path.isfile(source):
        with open_bytes(source) as beginning:
            check_unstructured(beginning.read(_CHUNK_BYTES), name=name)
    with open_bytes(source) as stream:
        blocks = file_blocks(stream, name=name, errors=errors)
        if is_streamed and not source.is_file():  # a named pipe
            with suppress(OSError):
                blocks = _live_blocks(stream.fileno(), max_wait_seconds=0.0, name=name, errors=errors)
        yield blocks


def read_blocks(
    chunks: Iterable[bytes], *, has_more: Callable[[], bool], max_lines: int, name: str, errors: OnInvalidBytes
) -> Iterator[list[str]]:
    """The lines in `chunks` without their ends (LF, CR LF or, as on old Macs, CR), in blocks of at most `max_lines`.

    A block ends early if `has_more` says that the next chunk is not there yet. A line that is not UTF-8 raises
    DataError, with `name` and its number, after a block with the lines before it, unless `errors` is replace. The error
    recognises compression and UTF-16.
    """
    first_line, has_replaced = 1, False
    for lines in _undecoded_blocks(chunks, has_more=has_more, max_lines=max_lines, name=name):
        texts: list[str] = []
        for number, line in enumerate(lines, first_line):
            content = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).removesuffix(b"\r")
            try:
                texts.append(content.decode("utf-8"))
            except UnicodeDecodeError as cause:
                if errors == "strict":
                    if texts:
                        yield texts
                    error = not_utf8_error(cause, name=name, number=number)
                    error.hint += "; or --errors replace, which writes U+FFFD for each such byte"
                    raise error from None
                texts.append(content.decode("utf-8", "replace"))
                if not has_replaced:
                    message = "line %d of %s is not UTF-8: such bytes are replaced by U+FFFD, in later lines too"
                    logger.warning(message, number, name)
                has_replaced = True
        if first_line == 1 and (mark := piece_mark_in_text(texts)) is not None:
            file = Path(name) if Path(name).is_file() else None
            message = "%s is cut into pieces (%r in %r), but the model cuts words itself; join them first: %s"
            logger.warning(message, name, mark.mark, mark.around, shell_pipe(file, mark.join_command))
        yield texts
        first_line += len(lines)


def _undecoded_blocks(
    chunks: Iterable[bytes], *, has_more: Callable[[], bool], max_lines: int, name: str
) -> Iterator[list[bytes]]:
    """The blocks of `read_blocks`, whose lines may end in CR."""
    lines: list[bytes] = []
    incomplete_line = bytearray()
    for number, chunk in enumerate(_with_line_feeds(chunks)):
        if number == 0:
            if name == STDIN:
                check_unstructured(chunk, name=STDIN)
            check_encoding(chunk, name=name)
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            lines += (bytes(incomplete_line) + head).split(b"\n")
            incomplete_line.clear()
        incomplete_line += tail
        while len(lines) >= max_lines or (lines and not has_more()):
            yield lines[:max_lines]
            del lines[:max_lines]
    if incomplete_line:
        lines.append(bytes(incomplete_line))
    if lines:
        yield lines


def file_blocks(stream: BinaryIO, *, name: str, errors: OnInvalidBytes) -> Iterator[list[str]]:
    """The lines of a file, in blocks."""
    chunks = iter(partial(stream.read, _CHUNK_BYTES), b"")
    return read_blocks(chunks, has_more=lambda: True, max_lines=_BLOCK_LINES, name=name, errors=errors)


def _live_blocks(descriptor: int, *, max_wait_seconds: float, name: str, errors: OnInvalidBytes) -> Iterator[list[str]]:
    """The blocks of a stream; a block ends if nothing comes for `max_wait_seconds`, or after the longest gathering."""
    block_started: float | None = None

    def read() -> bytes:
        select.select([descriptor], [], [])  # another program may have set the stream to non-blocking
        return os.read(descriptor, _CHUNK_BYTES)

    def has_more() -> bool:
        nonlocal block_started
        now = time.monotonic()
        block_started = block_started or now
        may_wait = now - block_started < _MAX_GATHERING_SECONDS
        return may_wait and bool(select.select([descriptor], [], [], max_wait_seconds)[0])

    for block in read_blocks(iter(read, b""), has_more=has_more, max_lines=_BLOCK_LINES, name=name, errors=errors):
        yield block
        block_started = None  # the time until the next block is needed is no time of gathering


def count_lines(path: Path) -> int:
    """The number of lines of a file, the last of which may have no line break."""
    with open_bytes(path) as stream:
        count, last = 0, b"\n"
        for chunk in _with_line_feeds(iter(partial(stream.read, _CHUNK_BYTES), b"")):
            count, last = count + chunk.count(b"\n"), chunk[-1:]
        return count + (last != b"\n")


def check_unstructured(beginning: bytes, *, name: str) -> None:
    """Raise DataError if a text is a file of TMX, CSV or the like, by its first bytes or, for tables, by its name."""
    from nmt_cli.documents.formats import ending_of, is_binary

    file = Path(name)
    ending = Path(file.stem if decompressor_of(file) else file.name).suffix.lower()
    text = beginning.decode(wide_encoding(beginning) or "utf-8", "replace").removeprefix("\ufeff")
    is_table = ending in _TABLES and bool(_TABLES[ending].match(text))
    if is_table or _DOCUMENT.match(text) or (beginning.startswith(b"PK\x03\x04") and is_binary(name)):
        known = quote(name) if ending_of(name) not in ("", ".txt") else "FILE"
        kind, hint = "a document", f"give it as a document, with its ending: nmt decode {known} -o NEW"
    elif _JSON.match(text):
        kind, hint = "JSON", "give its text alone, with one sentence per line"
    else:
        return
    message = f"{STDIN if name == STDIN else file.name} is {kind}, not lines of text"
    raise DataError(message, where=name, hint=hint)


def _with_line_feeds(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks. If the first line ends in CR, as on old Macs, line feeds replace all carriage returns."""
    beginning, has_carriage_returns = bytearray(), None
    for chunk in chunks:
        if has_carriage_returns is None:
            # At the end, CR may be half of CR LF.
            is_ended = b"\n" in chunk or b"\r" in (beginning[-1:] + chunk)[:-1]
            beginning += chunk
            if not is_ended:
                continue
            chunk, has_carriage_returns = bytes(beginning), b"\n" not in chunk
        yield chunk.replace(b"\r", b"\n") if has_carriage_returns else chunk
    if has_carriage_returns is None and beginning:
        yield bytes(beginning)
