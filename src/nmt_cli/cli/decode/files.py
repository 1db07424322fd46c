"""Files and streams of `nmt decode`, read and written in blocks of lines."""

from __future__ import annotations

import codecs
import io
import logging
import os
import select
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from nmt_cli.errors import DataError, UsageError

logger = logging.getLogger(__name__)

STANDARD = Path("-")
_CHUNK_BYTES = 1 << 16
# Lines that are sorted by length and translated together; no line is written before the whole block is done.
_BLOCK_LINES = 1000
# A program that has more lines writes them within this time; a person who types does not notice the wait.
_PATIENCE_SECONDS = 0.01
# The longest time for gathering lines that keep coming.
_LONGEST_WAIT_SECONDS = 0.3
_COMPRESSORS = {".gz": "gzip", ".zst": "zstd"}
_LIKE_THE_TEXT = "give one line of prefixes for each line of text; an empty one leaves its translation free"
# The first bytes of a compressed stream (RFC 1952, RFC 8878): its program, the suffix of its files, and its reader.
_COMPRESSED = {b"\x1f\x8b": ("gzip", ".gz", "zcat"), b"\x28\xb5\x2f\xfd": ("zstd", ".zst", "zstdcat")}


def check_output(output: Path, *, source: Path, prefix: Path | None, overwrite: bool) -> None:
    """Raise UsageError if the output is also an input, exists already, or is named as a compressed file."""
    if compressor := _COMPRESSORS.get(output.suffix):
        plain = shlex.quote(str(output.with_suffix("")))
        hint = f"-o {plain}, and compress it afterwards: {compressor} {plain}"
        raise UsageError(f"the output is plain text, which {output} is not by its name", where="--output", hint=hint)
    if os.path.isdir(output) and output != STANDARD:
        raise UsageError(f"{output} is a directory, not a file", where="--output", hint=f"-o {output / 'FILE'}")
    if output == STANDARD:
        return
    from nmt_cli.cli.decode.partial_output import PartialOutput

    for read in (source, prefix or STANDARD):
        # Devices may be read and written.
        for written in (*([output] if os.path.isfile(output) else []), *PartialOutput(output.resolve()).files):
            if read != STANDARD and _are_same(read, written):
                hint = "give another file with -o"
                raise UsageError(f"{read} would be written, and is read as well", where="--output", hint=hint)
    _check_free(output, overwrite=overwrite)


@contextmanager
def opened_input(source: Path, *, is_streamed: bool) -> Iterator[Iterator[list[str]]]:
    """The lines of a file or of stdin, in blocks; `is_streamed` closes a block as soon as no more input is waiting."""
    from nmt_cli.files import open_bytes

    if source != STANDARD:
        with open_bytes(source) as stream:
            read, has_more = _reader(source, stream, is_streamed=is_streamed)
            yield _blocks(read, has_more, str(source))
        return
    if sys.stdin is None:
        raise UsageError("there is nothing to read: stdin is closed", where="stdin", hint="give a file with -i")
    descriptor = sys.stdin.fileno()
    if os.isatty(descriptor):
        logger.info("type a sentence a line; Ctrl-D ends")
    patience = 0.0 if is_streamed else _PATIENCE_SECONDS
    yield _blocks(partial(os.read, descriptor), _Patience(descriptor, seconds=patience).has_more, "stdin")


@contextmanager
def opened_prefixes(file: Path | None, *, source: Path) -> Iterator[Callable[[int], list[str] | None]]:
    """A function that takes a number and gives as many next lines of `file`; it gives None if there is no file.

    DataError if `source` has another number of lines: at once if both are files, otherwise at its end.
    """
    from nmt_cli.files import open_bytes

    if file is None:
        yield lambda count: None
        return
    if os.path.isfile(source) and os.path.isfile(file):
        _check_same_length(source, file)
    with open_bytes(file) as stream:
        lines = (line for block in _blocks(stream.read, lambda: True, str(file)) for line in block)
        yield lambda count: list(islice(lines, count))
        if next(lines, None) is not None:
            raise DataError(f"{file} has more lines than the text", where="--prefix", hint=_LIKE_THE_TEXT)


class Output:
    """The file or stream of the translations, and how many lines of the input it already has."""

    def __init__(self, stream: io.FileIO, *, name: str, lines_done: int) -> None:
        self._stream = stream
        self._name = name
        self.lines_done = lines_done

    def write(self, text: str) -> None:
        """Write all of the text at once; DataError if that fails."""
        rest = memoryview(text.encode())
        with _writing(self._name):
            while rest:
                rest = rest[self._stream.write(rest) or 0 :]


@contextmanager
def opened_output(
    output: Path, *, job: Mapping[str, Any] | None, overwrite: bool, rows_are_numbered: bool
) -> Iterator[Output]:
    """The output, open for writing; DataError if that fails.

    The file appears when the block ends well. Until then, and after an error, the text is in FILE.partial beside it.
    The same `job` continues that file; a job that is None cannot be continued.
    """
    final = output.resolve()
    if output == STANDARD or (os.path.exists(final) and not os.path.isfile(final)):  # stdout, a device, a pipe
        if output == STANDARD and sys.stdout is None:
            raise UsageError("there is nowhere to write: stdout is closed", where="stdout", hint="give a file with -o")
        name = "stdout" if output == STANDARD else str(output)
        with _writing(name):
            to_stdout = output == STANDARD
            stream = io.FileIO(sys.stdout.fileno(), "w", closefd=False) if to_stdout else io.FileIO(final, "w")
        with stream:
            yield Output(stream, name=name, lines_done=0)
        return
    from nmt_cli.cli.decode.partial_output import PartialOutput
    from nmt_cli.files import locked

    unfinished = PartialOutput(final)
    with locked(unfinished.path, busy="another nmt decode writes this file", error=DataError):
        _check_free(final, overwrite=overwrite)  # another command may have written it since this one began
        with _writing(str(output)):
            done = 0
            if job is None:
                unfinished.begin_anew(may_replace=overwrite)
            else:
                done = unfinished.begin(job, may_replace=overwrite, rows_are_numbered=rows_are_numbered)
            stream = io.FileIO(unfinished.path, "a")
        if done:
            logger.info("%s has %s lines: going on after them", unfinished.path, f"{done:,}")
        with stream:
            try:
                yield Output(stream, name=str(output), lines_done=done)
            except BaseException:
                _keep_what_there_is(unfinished.path, may_continue=job is not None)
                if not unfinished.path.exists():
                    unfinished.forget()
                raise
            with _writing(str(output)):
                os.fsync(stream.fileno())
                unfinished.path.replace(final)
                unfinished.forget()


def without_first(blocks: Iterator[list[str]], count: int, *, skip: Callable[[int], object]) -> Iterator[list[str]]:
    """The blocks without the first `count` lines; `skip` is called with each number of lines left out."""
    for lines in blocks:
        done = min(count, len(lines))
        if done:
            skip(done)
            count -= done
        if lines[done:]:
            yield lines[done:]


def read_blocks(
    chunks: Iterable[bytes], *, has_more: Callable[[], bool], max_lines: int, name: str
) -> Iterator[list[str]]:
    """The lines in `chunks` without their ends (LF or CR LF), in blocks of at most `max_lines`.

    A block is closed early if `has_more` says that the next chunk is not there yet. A line that is not UTF-8 raises
    DataError, with `name` and its number, after a block with the lines before it. The error recognises compression.
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


def _are_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there
        return False


def _check_free(output: Path, *, overwrite: bool) -> None:
    if os.path.isfile(output) and not overwrite:
        raise UsageError(
            f"{output} exists already", where=str(output), hint="add --overwrite, or give another file with -o"
        )


class _Patience:
    """Waits shortly for more input from a descriptor, but not longer than a block may be gathered."""

    def __init__(self, descriptor: int, *, seconds: float) -> None:
        self._descriptor = descriptor
        self._seconds = seconds
        self._since: float | None = None

    def has_more(self) -> bool:
        now = time.monotonic()
        self._since = self._since or now
        is_soon = now - self._since < _LONGEST_WAIT_SECONDS
        if is_soon and select.select([self._descriptor], [], [], self._seconds)[0]:
            return True
        self._since = None
        return False


def _reader(source: Path, stream: BinaryIO, *, is_streamed: bool) -> tuple[Callable[[int], bytes], Callable[[], bool]]:
    """Two functions, for reading a file and for asking if more is there; a named pipe gives what has come so far."""
    with suppress(OSError):
        if is_streamed and not source.is_file():
            return partial(os.read, stream.fileno()), _Patience(stream.fileno(), seconds=0.0).has_more
    return stream.read, lambda: True


def _blocks(read: Callable[[int], bytes], has_more: Callable[[], bool], name: str) -> Iterator[list[str]]:

    chunks: Iterable[bytes] = iter(partial(read, _CHUNK_BYTES), b"")
    return read_blocks(chunks, has_more=has_more, max_lines=_BLOCK_LINES, name=name)


def _check_same_length(source: Path, prefixes: Path) -> None:
    counts = [_count_lines(path) for path in (source, prefixes)]
    if counts[0] != counts[1]:
        raise DataError(
            f"{source} has {counts[0]:,} lines, {prefixes} has {counts[1]:,}",
            where="--prefix",
            hint=_LIKE_THE_TEXT,
        )


def _count_lines(path: Path) -> int:
    from nmt_cli.files import open_bytes

    count, last = 0, b"\n"
    with open_bytes(path) as stream:
        while chunk := stream.read(1 << 20):
            count, last = count + chunk.count(b"\n"), chunk[-1:]
    return count + (last != b"\n")


def _keep_what_there_is(unfinished: Path, *, may_continue: bool) -> None:
    if unfinished.stat().st_size:
        more = "; the same command continues" if may_continue else ""
        logger.warning("what was translated until then is in %s%s", unfinished, more)
    else:
        unfinished.unlink()


@contextmanager
def _writing(name: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise DataError(
            f"cannot write the translations: {problem.strerror}",
            where=name,
            hint="free some space, or give another file with -o",
        ) from None


def _decoded(lines: Sequence[bytes], *, first_line: int, name: str) -> Iterator[list[str]]:
    """The lines as one block of text; the block ends before a line that is not UTF-8, and DataError follows."""
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
