"""The words that pieces spell: their numbers, log-probabilities and alignment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from nmt_cli.tokenization.tokenizer import SPACE_MARK

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


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
