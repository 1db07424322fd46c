"""Lines of UTF-8 text out of a stream of bytes, in blocks that are worth translating together."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence

from nmt_cli.errors import DataError

# How a compressed stream begins (RFC 1952, RFC 8878): by what, how such files are named, and what uncompresses them.
_COMPRESSED = {b"\x1f\x8b": ("gzip", ".gz", "zcat"), b"\x28\xb5\x2f\xfd": ("zstd", ".zst", "zstdcat")}


def read_blocks(
    chunks: Iterable[bytes], *, has_more: Callable[[], bool], max_lines: int, name: str
) -> Iterator[list[str]]:
    """The lines in `chunks` without their ends (LF or CR LF), in blocks of at most `max_lines`.

    A block is closed early where `has_more` says that the next chunk would have to be waited for. Raises DataError at a
    line that is not UTF-8, with `name` and its number, after a block with the lines before it; of compressed bytes it
    says what they are.
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
            if number == 1:
                _refuse_compressed(line, name=name)
            raise DataError(
                f"line {number} is not UTF-8: it has the byte 0x{content[problem.start]:02x}",
                where=f"{name}:{number}",
                hint="convert the text first, for example: iconv -f LATIN1 -t UTF-8; the lines before were translated",
            ) from None
    yield texts


def _refuse_compressed(beginning: bytes, *, name: str) -> None:
    for magic, (program, suffix, reader) in _COMPRESSED.items():
        if beginning.startswith(magic):
            raise DataError(
                f"{name} is compressed by {program}, not text",
                where=name,
                hint=f"give it with -i, as a file whose name ends in {suffix}, or uncompress it first: {reader} FILE",
            )
