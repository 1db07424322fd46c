"""The word that each token belongs to, for large texts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nmt_cli.tokenization.pieces import SPACE_MARK
from nmt_cli.tokenization.tokenizer import EOS, Tokenizer


class WordNumbers:
    """Finds the words of encoded sentences, which whitespace separates as in `str.split`.

    The symbols before a sentence belong to no word of it. A byte counts as a letter. So a sentence in which bytes spell
    other white space has fewer words here.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        bytes_of_characters = {*tokenizer.byte_ids}
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        texts = ["x" if number in bytes_of_characters else piece for number, piece in enumerate(pieces)]
        texts = [text.replace(SPACE_MARK, " ") for text in texts]
        for symbol in tokenizer.control_ids:
            texts[symbol] = " "
        self._num_words = np.array([len(text.split()) for text in texts], dtype=np.int64)
        self._is_space = self._num_words == 0
        self._is_space[tokenizer.control_ids] = False  # a symbol is no part of the word that follows
        self._begins_in_word = np.array([not text[:1].isspace() for text in texts])
        self._ends_in_word = np.array([not text[-1:].isspace() for text in texts])
        self._num_words[EOS], self._begins_in_word[EOS] = 1, False  # EOS is a word of its own

    def of_tokens(self, ids: NDArray[np.integer], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the word in which each token ends, [N], for sentences of these lengths, end to end.

        The words of all sentences are numbered together, from 0, and EOS counts as a word. Space before a word belongs
        to it.
        """
        numbers: NDArray[np.int64] = np.cumsum(self._begun(ids, lengths)) - 1 + self._is_space[ids]
        return numbers

    def count(self, ids: NDArray[np.integer], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of words in each sentence, without EOS, [n]."""
        counts: NDArray[np.int64] = np.add.reduceat(self._begun(ids, lengths), np.cumsum(lengths) - lengths) - 1
        return counts

    def _begun(self, ids: NDArray[np.integer], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many words begin in each token, [N]."""
        is_word_open = np.roll(self._ends_in_word[ids], 1)
        is_word_open[np.cumsum(lengths) - lengths] = False
        begun: NDArray[np.int64] = self._num_words[ids] - (self._begins_in_word[ids] & is_word_open)
        return begun
