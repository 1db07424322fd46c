"""Pieces and words: the word that each piece belongs to, and the links between the words of two texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from typing import Final, NamedTuple

SPACE_MARK: Final = "\u2581"
"""SentencePiece writes a space as this character, and cannot tell the two apart in its input."""

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def byte_pieces(text: str) -> list[str]:
    """The pieces that spell a text in bytes."""
    return [f"<0x{byte:02X}>" for byte in text.encode()]


def word_ids(pieces: Sequence[str]) -> list[int | None]:
    """The index of the word in which each piece ends; None for a piece that is only space.

    Whitespace separates words, as in `str.split`.
    """
    num_words, is_inside_word = 0, False
    words: list[int | None] = []
    for text in _texts_of_pieces(pieces):
        is_later_byte = not text  # of a character that is spelt in several bytes
        word = num_words - 1 if is_later_byte and is_inside_word else None
        for character in text:
            if character.isspace():
                is_inside_word = False
                continue
            if not is_inside_word:
                is_inside_word = True
                num_words += 1
            word = num_words - 1
        words.append(word)
    return words


def word_log_probs(pieces: Sequence[str], piece_log_probs: Sequence[float]) -> list[float]:
    """The log-probability of each word, and last that of EOS if it has one.

    They sum to the translation's log-probability. Without words, EOS has it all; without EOS too, the list is empty.
    """
    words, end = word_ids(pieces), list(piece_log_probs[len(pieces) :])
    num_words = max((word for word in words if word is not None), default=-1) + 1
    if num_words == 0:
        return [sum(piece_log_probs)] if end else []
    sums = [0.0] * num_words
    word_after = num_words - 1
    for word, log_prob in reversed(list(zip(words, piece_log_probs, strict=False))):
        # Space goes to the word after it; at the end, to the last word.
        word_after = word_after if word is None else word
        sums[word_after] += log_prob
    return sums + end


Range = tuple[int, int]
"""Characters of a text, from the first number to before the second."""


class Link(NamedTuple):
    """Characters of a source text, and those of its translation that were made from them; both ends are exclusive."""

    source_start: int
    source_end: int
    target_start: int
    target_end: int

    def shifted(self, source: int, target: int) -> Link:
        """The link in texts that begin so many characters earlier."""
        return Link(
            self.source_start + source, self.source_end + source, self.target_start + target, self.target_end + target
        )


def piece_links(
    source: Sequence[str], target: Sequence[str], pairs: Iterable[tuple[int, int]], texts: tuple[str, str]
) -> list[Link]:
    """Links between the characters of both texts, given their pieces, and pairs of a source and a target piece.

    A piece that is only space has no link.
    """
    source_ranges, target_ranges = (_ranges(*side) for side in zip((source, target), texts, strict=True))
    links = [Link(*source_ranges[source_index], *target_ranges[target_index]) for source_index, target_index in pairs]
    return [link for link in links if link.source_start < link.source_end and link.target_start < link.target_end]


def _ranges(pieces: Sequence[str], text: str) -> list[Range]:
    """The characters of the text that each piece spells, without the space around them.

    If the tokenizer changed the text, the range is about there.
    """
    texts = _texts_of_pieces(pieces)
    visible = [index for index, character in enumerate(text) if not character.isspace()]
    ends = list(accumulate(sum(not character.isspace() for character in piece) for piece in texts))
    ratio = 1.0 if not ends or ends[-1] == len(visible) else len(visible) / max(1, ends[-1])
    ranges = []
    for piece, start, end in zip(texts, [0, *ends], ends, strict=False):
        first = max(0, start - 1) if not piece else start  # a later byte stands for its character
        first, last = int(first * ratio), int(end * ratio)
        ranges.append((visible[first], visible[last - 1] + 1) if first < last else (0, 0))
    return ranges


def word_alignment(links: Iterable[Link], source: str, target: str) -> list[tuple[int, int]]:
    """Pairs of source and target words, sorted; white space separates words, as in `str.split`."""
    source_words, target_words = _word_at(source), _word_at(target)
    return sorted({(source_words[link.source_end - 1], target_words[link.target_end - 1]) for link in links})


def _word_at(text: str) -> list[int]:
    """The index of the word at each character; of the last word at a space."""
    begins = (index == 0 or text[index - 1].isspace() for index in range(len(text)))
    return list(accumulate((b and not c.isspace() for b, c in zip(begins, text, strict=True)), initial=-1))[1:]


def _texts_of_pieces(pieces: Sequence[str]) -> list[str]:
    """The text of each piece. A character spelt in several bytes belongs to its first byte."""
    texts: list[str] = []
    for is_byte, group in groupby(pieces, key=lambda piece: _BYTE.fullmatch(piece) is not None):
        neighbours = list(group)
        if not is_byte:
            texts += [piece.replace(SPACE_MARK, " ") for piece in neighbours]
            continue
        spelling = bytes(int(piece[3:5], 16) for piece in neighbours)
        for character in spelling.decode("utf-8", errors="surrogateescape"):
            num_bytes = len(character.encode("utf-8", errors="surrogateescape"))
            texts += [character, *[""] * (num_bytes - 1)]
    return texts
