"""Text that was tokenised or cut into pieces by a program, where words should be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nmt_cli.tokenization.pieces import SPACE_MARK

# Blocks of rising height are a legitimate use of U+2581: a bar chart is no trace.
_SENTENCEPIECE = re.compile(f"(?<![\u2580-\u259f]){SPACE_MARK}(?![\u2580-\u259f])")
_SUBWORD_NMT = re.compile(r"\S@@(?: |$)")
# Traces of tokenizer.perl (the last one of its option -a), subword-nmt and SentencePiece. HTML has no spaces beside its
# apostrophes and inside its quotes.
_TOKENISED = re.compile(
    r" &apos;|&apos; |(?:^| )&quot;(?: |$)|&#(?:91|93|124);| @-@ |##AT##|"
    rf"{_SUBWORD_NMT.pattern}|{_SENTENCEPIECE.pattern}"
)
# Raw text has an escape or a stray full stop here and there, too.
_TOKENISED_SHARE = 0.02
_MIN_SHARE_IN_PIECES = 0.1
_MIN_LINES_IN_PIECES = 3
_CONTEXT_CHARACTERS = 10
# Commands that make words of pieces again, from stdin or a file to stdout.
_JOIN_SUBWORD_NMT = "sed -r 's/@@( |$)//g'"
_JOIN_SENTENCEPIECE = f"sed 's/ //g; s/{SPACE_MARK}/ /g; s/^ //'"


@dataclass(frozen=True, slots=True)
class PieceMark:
    """The mark of a piece in a line: of subword-nmt (`@@ `) or of SentencePiece (`▁`), and the text around it."""

    line_number: int
    mark: Literal["@@ ", "▁"]
    around: str

    @property
    def join_command(self) -> str:
        """The command that makes words of the pieces."""
        return _JOIN_SUBWORD_NMT if self.mark == "@@ " else _JOIN_SENTENCEPIECE


def piece_mark_in_text(lines: Sequence[str]) -> PieceMark | None:
    """The first piece mark of a text in which many lines have one; None if few have, because a few are noise."""
    marks = [mark for number, line in enumerate(lines, 1) if (mark := _piece_mark_in_line(line, number)) is not None]
    is_in_pieces = len(marks) >= max(_MIN_LINES_IN_PIECES, _MIN_SHARE_IN_PIECES * len(lines))
    return marks[0] if is_in_pieces else None


def _piece_mark_in_line(line: str, number: int) -> PieceMark | None:
    if SPACE_MARK in line and (match := _SENTENCEPIECE.search(line)):
        return PieceMark(number, SPACE_MARK, _text_around(match))
    if "@@" in line and (match := _SUBWORD_NMT.search(line)):
        return PieceMark(number, "@@ ", _text_around(match))
    return None


def _text_around(match: re.Match[str]) -> str:
    return match.string[max(match.start() - _CONTEXT_CHARACTERS, 0) : match.end() + _CONTEXT_CHARACTERS]


def sign_of_tokenisation(lines: Sequence[str]) -> str | None:
    """The sign by which a text looks tokenised; None if it does not."""
    lines = [line.rstrip() for line in lines]  # a line may end in a carriage return
    num_stops = sum(line.endswith(".") for line in lines)
    num_apart = sum(line.endswith(" .") for line in lines)
    if num_apart * 2 > num_stops and num_apart > _TOKENISED_SHARE * len(lines):
        return f"{num_apart:,} of its {num_stops:,} final full stops stand apart"
    marks = [match[0].strip() for line in lines if (match := _TOKENISED.search(line))]
    if len(marks) > _TOKENISED_SHARE * len(lines):
        return f"{len(marks):,} of its {len(lines):,} lines hold marks such as {marks[0]!r}"
    return None
