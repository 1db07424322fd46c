"""Large texts encoded fast: the ids of known words are looked up."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count, islice

import numpy as np
from numpy.typing import NDArray

from nmt_cli.tokenization.pieces import SPACE_MARK
from nmt_cli.tokenization.sentencepiece_model import normalization, tokenizer_kind
from nmt_cli.tokenization.tokenizer import EOS, Tokenizer
from nmt_cli.tokenization.white_space import PLAIN_SPACES, normalize_spaces

_MAX_CACHED_WORDS = 150_000
_LINE_END = b"\n"


@dataclass(frozen=True, slots=True)
class EncodedText:
    """Encoded lines.

    `ids`: the ids of all lines, [T], with EOS after each line. `lengths`: the number of ids per line with its EOS, [n].
    """

    ids: NDArray[np.integer]
    lengths: NDArray[np.int64]

    def repeat(self, copies: NDArray[np.integer]) -> EncodedText:
        """A text with as many copies of each line as `copies` says, [n]."""
        starts = np.cumsum(self.lengths) - self.lengths
        lines = np.repeat(np.arange(len(copies)), copies)
        return EncodedText(gather(self.ids, starts[lines], self.lengths[lines]), self.lengths[lines])


class TextEncoder:
    """Encodes large texts as `Tokenizer.encode` does, and several times faster: known words are looked up.

    In a byte-pair model that takes text as it is, and whose pieces never continue after a space, words are encoded
    independently. The ids of a word are then cached. Unigram models choose a path through the whole sentence, so they
    are not cached. If `is_source`, odd characters that the vocabulary lacks are replaced.
    """

    def __init__(self, tokenizer: Tokenizer, *, is_source: bool) -> None:
        self._tokenizer, self._is_source = tokenizer, is_source
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        alone, twice = tokenizer.encode(["a", "a a"])
        begin_alike = twice == [*alone, *alone]  # unless the model marks no space before the first word
        has_spaces_inside = any(SPACE_MARK in piece[1:] for piece in pieces)
        is_plain_bpe = tokenizer_kind(tokenizer.model) == "bpe" and not normalization(tokenizer.model)
        self._has_independent_words = is_plain_bpe and begin_alike and not has_spaces_inside
        self._cache = WordCache()  # a word and its row have the same number

    def encode(self, text: bytes) -> EncodedText:
        """The ids of the lines of a text in UTF-8, in which a line feed ends every line."""
        if self._has_independent_words and _has_plain_spaces(text):
            return self._encode_words(text)
        rows = self._encode_known(text.decode().split("\n")[:-1])
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)) + 1
        ids = chain.from_iterable((*row, EOS) for row in rows)
        return EncodedText(np.fromiter(ids, dtype=np.int32, count=int(lengths.sum())), lengths)

    def _encode_words(self, text: bytes) -> EncodedText:
        words = text.replace(_LINE_END, b" \n ").split(b" ")
        words.pop()  # what follows the last line end
        if len(self._cache.sizes) > _MAX_CACHED_WORDS:
            self._cache = WordCache()
        cache = self._cache
        numbers = cache.numbers_of(words)
        if new_words := cache.words_from(len(cache.sizes)):
            rows = self._encode_known([word.decode() for word in new_words])
            cache.add_rows([[EOS] if word == _LINE_END else row for word, row in zip(new_words, rows, strict=True)])
        is_line_end = numbers == cache.numbers_of([_LINE_END])
        line_ends = np.cumsum(np.asarray(cache.sizes)[numbers])[is_line_end]
        return EncodedText(cache.ids_of(numbers), np.diff(line_ends, prepend=0))

    def _encode_known(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts, in which characters are replaced."""
        if self._is_source:
            texts = [text if text.isascii() else self._with_known_characters(text) for text in texts]
        return self._tokenizer.encode(texts)

    def _with_known_characters(self, text: str) -> str:
        known = self._tokenizer.with_known_characters(text.translate(PLAIN_SPACES))
        return text if known == text else normalize_spaces(known)


class WordCache:
    """Words and rows of ids, both numbered as they come in; `sizes` are the lengths of the rows."""

    def __init__(self) -> None:
        # A look-up gives a new word the next number, at the speed of C. The keys are in the order of their numbers.
        self._number_of: defaultdict[bytes, int] = defaultdict(count().__next__)
        # numpy shares their memory; they cannot grow while such a view is in use.
        self._ids, self._starts, self.sizes = array("i"), array("q"), array("q")

    def numbers_of(self, words: Sequence[bytes]) -> NDArray[np.int64]:
        """The number of each word; a new word gets the next number."""
        return np.fromiter(map(self._number_of.__getitem__, words), dtype=np.int64, count=len(words))

    def words_from(self, number: int) -> list[bytes]:
        """The words with this number and with higher ones."""
        return list(islice(self._number_of, number, None))

    def add_rows(self, rows: Sequence[Sequence[int]]) -> None:
        """Add rows of ids. Lists, because sampling adds one short row at a time."""
        sizes = list(map(len, rows))
        self._starts.extend(accumulate(sizes[:-1], initial=len(self._ids)))
        self.sizes.extend(sizes)
        self._ids.extend(chain.from_iterable(rows))

    def ids_of(self, rows: NDArray[np.int64]) -> NDArray[np.integer]:
        """The ids of these rows, given by number, end to end."""
        return gather(np.asarray(self._ids), np.asarray(self._starts)[rows], np.asarray(self.sizes)[rows])


def _has_plain_spaces(text: bytes) -> bool:
    """True if single spaces separate the words of every line, and no line is empty, as in cleaned text."""
    has_space_first = text.startswith((b" ", _LINE_END))
    return not has_space_first and not any(spaces in text for spaces in (b"  ", b" \n", b"\n ", b"\n\n"))


def gather(ids: NDArray[np.integer], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.integer]:
    """Parts of `ids` end to end, given the start and the size of each part."""
    shifts = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    shifts += np.arange(len(shifts))
    gathered: NDArray[np.integer] = ids[shifts]
    return gathered
