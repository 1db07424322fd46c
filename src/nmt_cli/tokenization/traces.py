"""Traces that tokenisers and subword segmentation leave in text, which is no longer as people write it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# Blocks of rising height are a legitimate use of U+2581: a bar chart is no trace.
_SENTENCEPIECE = re.compile("(?<![\u2580-\u259f])▁(?![\u2580-\u259f])")
_SUBWORD_NMT = re.compile(r"\S@@(?: |$)")
# Traces of tokenizer.perl (the second one of its option -a), subword-nmt and SentencePiece.
_TOKENISED = re.compile(rf"&(?:apos|quot|#91|#93|#124);| @-@ |##AT##|{_SUBWORD_NMT.pattern}|{_SENTENCEPIECE.pattern}")
# Raw text has an escape or a stray full stop here and there, too.
_TOKENISED_SHARE = 0.02
_MIN_SHARE_IN_PIECES = 0.1
_MIN_LINES_IN_PIECES = 3
_CONTEXT_CHARACTERS = 10

JOIN_SUBWORD_NMT = "sed -r 's/@@( |$)//g'"
JOIN_SENTENCEPIECE = "sed 's/ //g; s/▁/ /g; s/^ //'"
"""Commands that make words of pieces again, from stdin or a file to stdout."""


@dataclass(frozen=True, slots=True)
class PieceMark:
    """The mark of a piece in a line: of subword-nmt (`@@ `) or of SentencePiece (`▁`), and the text around it."""

    mark: Literal["@@ ", "▁"]
    around: str

    @property
    def join_command(self) -> str:
        """The command that makes words of the pieces."""
        return JOIN_SUBWORD_NMT if self.mark == "@@ " else JOIN_SENTENCEPIECE


def find_piece_mark(line: str) -> PieceMark | None:
    """The first mark of a piece in a line, or None if the line holds words."""
    for mark, pattern in (("▁", _SENTENCEPIECE), ("@@ ", _SUBWORD_NMT)):
        if mark.strip() in line and (found := pattern.search(line)):
            around = line[max(found.start() - _CONTEXT_CHARACTERS, 0) : found.end() + _CONTEXT_CHARACTERS]
            return PieceMark("▁" if mark == "▁" else "@@ ", around)
    return None


def mark_of_text_in_pieces(lines: Sequence[str]) -> PieceMark | None:
    """The first mark of a piece in a text of which many lines have one; None if they are a few, which are noise."""
    marks = [mark for line in lines if (mark := find_piece_mark(line)) is not None]
    is_in_pieces = len(marks) >= max(_MIN_LINES_IN_PIECES, _MIN_SHARE_IN_PIECES * len(lines))
    return marks[0] if is_in_pieces else None


def sign_of_tokenisation(lines: Sequence[str]) -> str | None:
    """The sign by which a text looks tokenised; None if it does not."""
    stops = [line for line in lines if line.endswith(".")]
    apart = sum(line.endswith(" .") for line in stops)
    if apart * 2 > len(stops) and apart > _TOKENISED_SHARE * len(lines):
        return f"{apart:,} of its {len(stops):,} final full stops stand apart"
    marks = [found[0].strip() for line in lines if (found := _TOKENISED.search(line))]
    if len(marks) > _TOKENISED_SHARE * len(lines):
        return f"{len(marks):,} of its {len(lines):,} lines hold marks such as {marks[0]!r}"
    return None
