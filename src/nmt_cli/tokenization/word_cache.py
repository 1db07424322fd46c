"""The ids of large texts, several times faster than sentence by sentence: a word that was met before is looked up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count, islice

import numpy as np
from numpy.typing import NDArray

from nmt_cli.tokenization.tokenizer import EOS, SPACE_MARK, Tokenizer
from nmt_cli.tokenization.training import TokenizerKind

_MAX_WORDS = 150_000
_LINE_END = b"\n"


@dataclass(frozen=True, slots=True)
class EncodedText:
    """The ids of lines end to end, an EOS after each, [T], and the tokens of each line with its EOS, [n]."""

    ids: NDArray[np.integer]
    lengths: NDArray[np.int64]

    def repeated(self, copies: NDArray[np.integer]) -> EncodedText:
        """Each line as often as `copies` says, [n]."""
        starts = np.cumsum(self.lengths) - self.lengths
        lines = np.repeat(np.arange(len(copies)), copies)
        return EncodedText(_gather(self.ids, starts[lines], self.lengths[lines]), self.lengths[lines])


class TextEncoder:
    """Encodes whole texts exactly as `Tokenizer.encode` does.

    If no piece of a byte-pair model continues after a space, no merge reaches from one word into the next. Then the ids
    of a sentence are the ids of its words, and the cache remembers them, up to a bound. Unigram models choose the best
    path through the whole sentence, with sums whose rounding depends on earlier words: they are not cached.
    """

    def __init__(self, tokenizer: Tokenizer, *, kind: TokenizerKind | None) -> None:
        self._tokenizer = tokenizer
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        self._has_independent_words = kind == "bpe" and not any(SPACE_MARK in piece[1:] for piece in pieces)
        self._words = _KnownWords()

    def encode(self, text: bytes) -> EncodedText:
        """The ids of the lines of a text in UTF-8, in which a line feed ends every line."""
        if self._has_independent_words and _has_plain_spaces(text):
            return self._encode_words(text)
        lines = text.decode().split("\n")[:-1]
        rows = self._tokenizer.encode(lines)
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)) + 1
        ids = chain.from_iterable((*row, EOS) for row in rows)
        return EncodedText(np.fromiter(ids, dtype=np.int32, count=int(lengths.sum())), lengths)

    def _encode_words(self, text: bytes) -> EncodedText:
        words = text.replace(_LINE_END, b" \n ").split(b" ")
        words.pop()  # what follows the last line end
        if len(self._words) > _MAX_WORDS:
            self._words = _KnownWords()
        known = self._words
        places = known.places_of(words)
        if new := known.without_ids():
            known.add_ids(self._tokenizer.encode([word.decode() for word in new]))
        sizes = known.sizes[places]
        line_ends = np.cumsum(sizes)[places == 0]
        return EncodedText(_gather(known.ids, known.starts[places], sizes), np.diff(line_ends, prepend=0))


class _KnownWords:
    """Words with the place of each, and for each place where its ids begin in `ids`, and how many they are.

    At first only the line end is known, a word of its own, which is EOS.
    """

    def __init__(self) -> None:
        self._places: defaultdict[bytes, int] = defaultdict(count().__next__)
        self.places_of([_LINE_END])
        self.starts: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        self.sizes: NDArray[np.int64] = np.ones(1, dtype=np.int64)
        self.ids: NDArray[np.integer] = np.array([EOS], dtype=np.int32)

    def __len__(self) -> int:
        return len(self._places)

    def places_of(self, words: Sequence[bytes]) -> NDArray[np.int64]:
        """The place of each word; one that is new gets the next."""
        return np.fromiter(map(self._places.__getitem__, words), dtype=np.int64, count=len(words))

    def without_ids(self) -> list[bytes]:
        """The words that have a place and no ids yet, in the order of their places."""
        return list(islice(self._places, len(self.sizes), None))

    def add_ids(self, rows: Sequence[Sequence[int]]) -> None:
        """Add the ids of the words that had none."""
        sizes = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        self.starts = np.concatenate([self.starts, len(self.ids) + np.cumsum(sizes) - sizes])
        self.sizes = np.concatenate([self.sizes, sizes])
        self.ids = np.concatenate([self.ids, np.fromiter(chain.from_iterable(rows), dtype=np.int32)])


def _has_plain_spaces(text: bytes) -> bool:
    """True where single spaces part the words of every line, and no line is empty: what cleaning leaves."""
    starts_well = not text.startswith((b" ", _LINE_END))
    return starts_well and not any(found in text for found in (b"  ", b" \n", b"\n ", b"\n\n"))


def _gather(ids: NDArray[np.integer], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.integer]:
    """Parts of `ids` end to end, given where each begins and how many ids it has."""
    shifts = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    shifts += np.arange(len(shifts))
    gathered: NDArray[np.integer] = ids[shifts]
    return gathered
