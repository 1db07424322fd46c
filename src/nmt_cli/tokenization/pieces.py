"""Pieces and words: the word that each piece belongs to, and text that has pieces or tokens where words should be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

SPACE_MARK = "\u2581"
"""SentencePiece writes a space as this character, and cannot tell the two apart in its input."""

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
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
# Commands that make words of pieces again, from stdin or a file to stdout.
_JOIN_SUBWORD_NMT = "sed -r 's/@@( |$)//g'"
_JOIN_SENTENCEPIECE = "sed 's/ //g; s/▁/ /g; s/^ //'"


def word_ids(pieces: Sequence[str]) -> list[int | None]:
    """The number, from 0, of the word in which each piece ends; None for a piece that is only space.

    Whitespace separates words, as in `str.split`.
    """
    number, is_inside = -1, False
    words: list[int | None] = []
    for text in _texts_of_pieces(pieces):
        is_byte_continuation = is_inside and not text  # a later byte of a character
        word = number if is_byte_continuation else None
        for character in text:
            if character.isspace():
                is_inside = False
                continue
            number += not is_inside
            is_inside = True
            word = number
        words.append(word)
    return words


def word_log_probs(pieces: Sequence[str], piece_log_probs: Sequence[float]) -> list[float]:
    """The log-probability of each word, then of EOS if it is scored; their sum is that of the translation."""
    words = word_ids(pieces)
    num_words = max((word for word in words if word is not None), default=-1) + 1
    summed = [0.0] * num_words
    following = num_words - 1
    for word, log_prob in reversed(list(zip(words, piece_log_probs, strict=False))):
        # Space goes to the word after it; at the end, to the last one.
        following = following if word is None else word
        if num_words:
            summed[following] += log_prob
    return summed + list(piece_log_probs[len(pieces) :])


def word_alignment(
    source_pieces: Sequence[str], target_pieces: Sequence[str], places: Sequence[int]
) -> list[tuple[int, int]]:
    """Pairs of source and target words, sorted, from the source place of each target piece."""
    sources, targets = word_ids(source_pieces), word_ids(target_pieces)
    pairs = {(sources[place], target) for place, target in zip(places, targets, strict=True)}
    return sorted((source, target) for source, target in pairs if source is not None and target is not None)


@dataclass(frozen=True, slots=True)
class PieceMark:
    """The mark of a piece in a line: of subword-nmt (`@@ `) or of SentencePiece (`▁`), and the text around it."""

    mark: Literal["@@ ", "▁"]
    around: str

    @property
    def join_command(self) -> str:
        """The command that makes words of the pieces."""
        return _JOIN_SUBWORD_NMT if self.mark == "@@ " else _JOIN_SENTENCEPIECE


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


def _texts_of_pieces(pieces: Sequence[str]) -> list[str]:
    """The text of each piece. A character spelt in several bytes belongs to its first byte."""
    texts: list[str] = []
    for is_byte, group in groupby(pieces, key=lambda piece: bool(_BYTE.fullmatch(piece))):
        run = list(group)
        if not is_byte:
            texts += [piece.replace(SPACE_MARK, " ") for piece in run]
            continue
        spelt = bytes(int(piece[3:5], 16) for piece in run)
        placed = [""] * len(run)
        start = 0
        for character in spelt.decode("utf-8", errors="surrogateescape"):
            placed[start] = character
            start += len(character.encode("utf-8", errors="surrogateescape"))
        texts += placed
    return texts
