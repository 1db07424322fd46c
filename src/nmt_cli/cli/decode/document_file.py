"""The document that `nmt decode` translates: its blocks as lines, and the file that their translations make."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nmt_cli.cli.decode.input import STANDARD, check_unstructured
from nmt_cli.errors import UsageError
from nmt_cli.files import reading_errors

if TYPE_CHECKING:
    from nmt_cli.decoding.parallel import LineBlock
    from nmt_cli.decoding.translation import Translation
    from nmt_cli.documents.formats import DocumentInBlocks
    from nmt_cli.documents.marked_text import MarkedText

logger = logging.getLogger(__name__)

_BLOCKS_TOGETHER = 1000
_BEGINNING = 1 << 16  # by which a page or a table is known that is called .txt


def choose_source(file: Path | None, source: Path) -> tuple[Path, bool]:
    """The file to translate, and whether it is a document by the ending of its name."""
    from nmt_cli.documents.formats import ending_of

    if file is None:
        return source, False
    if source != STANDARD:
        message = f"{file} and {source} are both given to translate"
        raise UsageError(message, where="--input", hint="give one: a document or text as FILE, or text with -i FILE")
    return file, ending_of(file.name) != ""


def check_document(source: Path, *, output: Path, refused: Sequence[str]) -> None:
    """Raise UsageError if a document is written where it cannot be read, or has options for lines of text.

    DataError if there is no such file, before a model is looked for.
    """
    from nmt_cli.documents.formats import check_kind_of_output, ending_of, is_binary

    with reading_errors(source), source.open("rb"):
        pass
    for flag in refused:
        message = f"{flag} is for lines of text, and {source.name} is a document"
        raise UsageError(message, where=flag, hint=f"leave {flag} out, or give lines of text with -i")
    ending = ending_of(source.name)
    named = shlex.quote(str(source.with_name(f"translated{ending}")))
    if output == STANDARD and is_binary(source.name) and sys.stdout.isatty():
        message = f"a translated {ending} file is nothing to read on a terminal"
        raise UsageError(message, where="--output", hint=f"write it to a file: -o {named}")
    check_kind_of_output(source, output)


@dataclass(frozen=True, slots=True)
class DocumentFile:
    """A document and its blocks. FILE.partial has a line for each translated block: its text, and where marks are."""

    unit: ClassVar[str] = "blocks"
    options: ClassVar[dict[str, Any]] = {"alignments": True, "copy_symbols": True}

    document: DocumentInBlocks
    blocks: Sequence[MarkedText]

    @classmethod
    def read(cls, source: Path, *, model: Path, from_: str | None, to: str | None, column: str | None) -> DocumentFile:
        """The document in a file, to be translated by a model from one language to another."""
        from nmt_cli.artifacts.model_directory import load_saved_config
        from nmt_cli.documents.formats import COMMAND_LINE_LIMITS, ending_of, read_document

        languages = load_saved_config(model).languages.find(from_, to).languages
        limits = COMMAND_LINE_LIMITS
        with reading_errors(source), source.open("rb") as stream:
            content = stream.read(limits.max_bytes + 1)
        if ending_of(source.name) == ".txt":
            check_unstructured(content[:_BEGINNING], name=str(source))
        document = read_document(content, str(source), languages=languages, limits=limits, column=column)
        blocks = document.blocks
        if not blocks:
            logger.warning("%s has no text to translate", source)
        return cls(document, blocks)

    def total(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    def place(self, number: int) -> str:
        """What messages call a block."""
        from nmt_cli.documents.marked_text import beginning_of

        return f"the text {beginning_of(self.blocks[number - 1].text)!r}"

    def line_blocks(self, *, lines_done: int) -> Iterator[LineBlock]:
        """The texts of the blocks that are not done, many at a time."""
        from nmt_cli.decoding.parallel import LineBlock

        for start in range(lines_done, len(self.blocks), _BLOCKS_TOGETHER):
            blocks = self.blocks[start : start + _BLOCKS_TOGETHER]
            yield LineBlock(start + 1, [block.text for block in blocks], kept=[block.kept for block in blocks])

    def render(self, translations: Sequence[Translation], *, first_line: int) -> str:
        """The lines of FILE.partial for the translations of consecutive blocks."""
        rows = []
        for number, translation in enumerate(translations, first_line):
            translated = self.blocks[number - 1].translated(translation.text, translation.links)
            places = [(mark.start, mark.end) for mark in translated.marks]
            rows.append(json.dumps([translated.text, places], ensure_ascii=False) + "\n")
        return "".join(rows)

    def finish(self, rows: str) -> bytes:
        """The translated file."""
        translated = []
        for block, row in zip(self.blocks, rows.split("\n"), strict=False):
            text, places = json.loads(row)
            marks = (
                replace(mark, start=start, end=end) for mark, (start, end) in zip(block.marks, places, strict=True)
            )
            translated.append(replace(block, text=text, marks=tuple(marks)))
        return self.document.write(translated)
