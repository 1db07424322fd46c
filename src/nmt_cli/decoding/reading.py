"""Lines of UTF-8 text out of a stream of bytes, in blocks that are worth translating together."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence

from nmt_cli.errors import DataError


def read_blocks(
    chunks: Iterable[bytes], *, has_more: Callable[[], bool], max_lines: int, name: str
) -> Iterator[list[str]]:
    """The lines in `chunks` without their ends (LF or CR LF), in blocks of at most `max_lines`.

    A block is closed early where `has_more` says that the next chunk would have to be waited for. Raises DataError at a
    line that is not UTF-8, with `name` and its number, after a block with the lines before it.
    """
    lines: list[bytes] = []
    unfinished = bytearray()
    num_read = 0
    for chunk in chunks:
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            lines += (bytes(unfinished) + head).split(b"\n")
            unfinished.clear()
        unfinished += tail
        while len(lines) >= max_lines or (lines and not has_more()):
            yield from _decoded(lines[:max_lines], first_line=num_read + 1, name=name)
            num_read += len(lines[:max_lines])
            del lines[:max_lines]
    if unfinished:
        lines.append(bytes(unfinished))
    if lines:
        yield from _decoded(lines, first_line=num_read + 1, name=name)


def _decoded(lines: Sequence[bytes], *, first_line: int, name: str) -> Iterator[list[str]]:
    """The lines as one block of text; where one is not UTF-8 the block ends before it, and DataError follows."""
    texts: list[str] = []
    for number, line in enumerate(lines, first_line):
        content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        try:
            texts.append(content.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError as problem:
            if texts:
                yield texts
            raise DataError(
                f"line {number} is not UTF-8: it has the byte 0x{content[problem.start]:02x}",
                where=f"{name}:{number}",
                hint="convert the text first, for example: iconv -f LATIN1 -t UTF-8; the lines before were translated",
            ) from None
    yield texts
