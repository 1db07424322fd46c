"""The texts to be scored: one segment a line, read without touching a character.

A line ends at a line feed and nowhere else; the last one may lack it. A carriage return stays in its line, where no
metric sees it: BLEU and TER strip and chrF skips white space.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nmt_cli import files
from nmt_cli.errors import DataError

logger = logging.getLogger(__name__)

# Blocks of rising height are a legitimate use of U+2581: a bar chart is no leftover.
_SENTENCEPIECE = re.compile("(?<![\u2580-\u259f])▁(?![\u2580-\u259f])")
_SUBWORD_NMT = re.compile(r"\S@@(?: |$)")


@dataclass(frozen=True, slots=True)
class Segments:
    """The lines of a text, what it is called in errors, and the SHA-256 of its bytes, uncompressed."""

    name: str
    lines: list[str]
    sha256: str


def read_segments(name: str, *, stdin: BinaryIO) -> Segments:
    """The segments of a file, of a .gz or .zst file, or of stdin where the name is `-`.

    Raises DataError for a file that is not there, for one without any line, and for text that is not UTF-8.
    """
    if name == "-":
        name, content = "stdin", stdin.read()
    else:
        with files.open_bytes(Path(name)) as stream:
            content = stream.read()
    if not content:
        hint = "look at the command before the pipe" if name == "stdin" else "check the path, or write the file again"
        raise DataError(f"{name} is empty: there is nothing to score", where=name, hint=hint)
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        byte = content[problem.start]
        message = f"line {line:,} of {name} is not UTF-8: byte 0x{byte:02x}"
        hint = f"convert it, for example iconv -f latin1 -t utf-8 {'' if name == 'stdin' else name}".rstrip()
        raise DataError(message, where=f"{name}:{line}", hint=hint) from None
    if lines[-1] == "":
        lines.pop()
    return Segments(name, lines, hashlib.sha256(content).hexdigest())


def check_segments(hypothesis: Segments, references: Sequence[Segments]) -> None:
    """Raise DataError where the texts do not fit together, or where the hypothesis is in pieces instead of words.

    A hypothesis that looks tokenised gets a warning: sacreBLEU tokenises by itself, and its scores compare to none.
    """
    for reference in references:
        if len(reference.lines) != len(hypothesis.lines):
            raise DataError(
                f"{hypothesis.name} has {len(hypothesis.lines):,} lines, {reference.name} has {len(reference.lines):,}",
                where=hypothesis.name,
                hint="give a hypothesis of the same test set, with one line for each line of the reference",
            )
    for number, line in enumerate(hypothesis.lines, start=1):
        _refuse_pieces(line, where=f"{hypothesis.name}:{number}")
    stops = [line for line in hypothesis.lines if line.endswith(".")]
    apart = sum(line.endswith(" .") for line in stops)
    if apart * 2 > len(stops):
        logger.warning(
            "%s looks tokenised: %s of its %s final full stops stand apart; score detokenised text",
            *(hypothesis.name, f"{apart:,}", f"{len(stops):,}"),
        )


def _refuse_pieces(line: str, *, where: str) -> None:
    """Raise DataError for a line with the marks that SentencePiece and subword-nmt leave in undecoded output."""
    for pattern, mark, command in (
        (_SENTENCEPIECE, "▁", "spm_decode --model=..., or nmt decode, which writes plain text"),
        (_SUBWORD_NMT, "@@ ", "sed -r 's/@@( |$)//g', then detokenise the text"),
    ):
        if found := pattern.search(line):
            around = line[max(found.start() - 10, 0) : found.end() + 10]
            message = f"the hypothesis holds pieces instead of words: {mark!r} in {around!r}"
            raise DataError(message, where=where, hint=f"join the pieces: {command}")
