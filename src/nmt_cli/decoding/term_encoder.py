"""Terms as a search is told of them: in the pieces of the target language.

The server reads lists of terms, and never imports torch. So this is a file of its own.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from nmt_cli.decoding.search.hypotheses import Term
from nmt_cli.decoding.terms import IS_IN_WORD, IS_WITHOUT_SPACES, Occurrence
from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK, Tokenizer


class TermEncoder:
    """Makes terms for a search, in the pieces of the target language."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, occurrence: Occurrence) -> Term:
        """The term of a search; it has no alternative if the vocabulary cannot spell it."""
        rows: dict[tuple[int, ...], None] = {}
        for target in occurrence.targets:
            # A word begins with the mark of a space; in a script without spaces it does so at most at the beginning.
            for before in ("", "a") if IS_WITHOUT_SPACES.match(target) else ("a ",):
                rows[self._row_after(before, target)] = None
        is_word = all(IS_IN_WORD.match(target[-1]) for target in occurrence.targets)
        alternatives = tuple(row for row in rows if row and {PAD, UNK, BOS, EOS}.isdisjoint(row))
        return Term(alternatives, self._after_word if is_word else None)

    def _row_after(self, before: str, target: str) -> tuple[int, ...]:
        """The pieces of a target after other text; none if a piece would belong to both."""
        first, row = self._tokenizer.encode([before.strip(), before + target])
        return tuple(row[len(first) :]) if row[: len(first)] == first else ()

    @cached_property
    def _after_word(self) -> Tensor:
        """Whether a piece [V] may follow a word: it begins another one, or with a mark."""
        pieces = self._tokenizer.pieces(range(self._tokenizer.vocab_size))
        byte_ids = set(self._tokenizer.byte_ids)
        may_follow = [IS_IN_WORD.match(piece) is None and number not in byte_ids for number, piece in enumerate(pieces)]
        return torch.from_numpy(np.array(may_follow))
