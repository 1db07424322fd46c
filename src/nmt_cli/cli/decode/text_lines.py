"""The lines of text that `nmt decode` translates, with their prefixes, and what is written for them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nmt_cli.cli.decode.input import OnInvalidBytes, count_lines, file_blocks, open_input
from nmt_cli.cli.decode.output import OutputFormat
from nmt_cli.decompression import open_bytes
from nmt_cli.errors import DataError

if TYPE_CHECKING:
    from nmt_cli.decoding.parallel import LineBlock
    from nmt_cli.decoding.translation import Translation


@dataclass(frozen=True, slots=True)
class TextLines:
    """Lines of text, in blocks, and the format of their translations."""

    unit: ClassVar[str] = "lines"
    options: ClassVar[dict[str, Any]] = {}
    finish: ClassVar[None] = None

    source: Path
    blocks: Iterator[list[str]]
    prefix_file: Path | None
    prefixes: Iterator[str] | None
    formatting: OutputFormat

    def total(self) -> int | None:
        """The number of lines; None if it cannot be known."""
        with suppress(DataError):  # of a damaged file: its lines before the damage are translated first
            return count_lines(self.source) if self.source.is_file() else None
        return None

    def place(self, number: int) -> str:
        """What messages call a line."""
        return f"line {number:,}"

    def line_blocks(self, *, lines_done: int) -> Iterator[LineBlock]:
        """The blocks, without the lines that are done, with the number of the first line and the prefixes of the lines.

        DataError after the end of the shorter one if there is another number of lines than of prefixes.
        """
        from nmt_cli.decoding.parallel import LineBlock

        number = 1
        for lines in self.blocks:
            taken = None if self.prefixes is None else list(islice(self.prefixes, len(lines)))
            num_lines = len(lines) if taken is None else len(taken)
            done = max(lines_done + 1 - number, 0)
            if done < num_lines:
                yield LineBlock(number + done, lines[done:num_lines], None if taken is None else taken[done:])
            if num_lines < len(lines):
                raise _prefix_error(f"{self.prefix_file} has fewer lines than the text")
            number += num_lines
        if self.prefixes is not None and next(self.prefixes, None) is not None:
            raise _prefix_error(f"{self.prefix_file} has more lines than the text")

    def render(self, translations: Sequence[Translation], *, first_line: int) -> str:
        """The rows for the translations of consecutive lines."""
        return self.formatting.render(translations, first_line=first_line)


@contextmanager
def open_lines(
    source: Path, *, prefix_file: Path | None, is_streamed: bool, errors: OnInvalidBytes, formatting: OutputFormat
) -> Iterator[TextLines]:
    """The lines of a file or of stdin. DataError if both paths are files, and have different numbers of lines."""
    with open_input(source, is_streamed=is_streamed, errors=errors) as blocks:
        if prefix_file is None:
            yield TextLines(source, blocks, None, None, formatting)
            return
        if os.path.isfile(source) and os.path.isfile(prefix_file):
            num_lines, num_prefixes = map(count_lines, (source, prefix_file))
            if num_lines != num_prefixes:
                raise _prefix_error(f"{source} has {num_lines:,} lines, {prefix_file} has {num_prefixes:,}")
        with open_bytes(prefix_file) as stream:
            prefixes = (line for block in file_blocks(stream, name=str(prefix_file), errors=errors) for line in block)
            yield TextLines(source, blocks, prefix_file, prefixes, formatting)


def _prefix_error(message: str) -> DataError:
    hint = "give one line of prefixes for each line of text; an empty one leaves its translation free"
    return DataError(message, where="--prefix", hint=hint)
