"""Links between target and source: of words in prepared data, and of tokens in a batch.

Prepared data has links of words, because sampled pieces differ from epoch to epoch. A batch derives those of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nmt_cli.dataset.data_manifest import TokenDtype
from nmt_cli.dataset.prepared_data import PreparedData, Rows, TokenizedSide
from nmt_cli.tokenization.tokenizer import Tokenizer
from nmt_cli.tokenization.word_numbers import WordNumbers

if TYPE_CHECKING:
    from torch import Tensor

Integers = NDArray[np.int64]
LINKS = "links"
"""The files of the links are train.links.ids and train.links.offsets, like those of a side."""
WORD_DTYPE: TokenDtype = "uint16"
"""The type of a word's index on disk; a pair with more words has no links."""


@dataclass(frozen=True, slots=True)
class TokenLinks:
    """The L links of a batch. `places` [3, L]: the sentence, the position of the target token, and of the source token.

    `shares` [L], float32: the links of a target token have equal shares, whose sum is 1.
    """

    places: Tensor
    shares: Tensor

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> TokenLinks:
        """The links with the function applied to both tensors."""
        return TokenLinks(function(self.places), function(self.shares))


def has_links(data: PreparedData) -> bool:
    """Whether prepared data has word alignments of its training text."""
    return f"train.{LINKS}.ids" in data.manifest.files


class WordLinks:
    """The links of a training split: for each pair the indices of words, source and target in turn."""

    def __init__(self, data: PreparedData) -> None:
        files = (data.directory / f"train.{LINKS}.{ending}" for ending in ("ids", "offsets"))
        self._words = TokenizedSide(*files, dtype=np.dtype(WORD_DTYPE).newbyteorder("<"))
        self._source, self._target = (
            WordNumbers(Tokenizer.load(file)) for file in (data.source_tokenizer_file, data.target_tokenizer_file)
        )

    def of_tokens(self, rows: Rows, src_ids: NDArray[np.integer], tgt_ids: NDArray[np.integer]) -> TokenLinks:
        """The links of a batch of these rows, given the ids of their sentences end to end.

        Each token of a target word is linked to each token of the source words that the word is linked to.
        """
        starts, stops = (self._words.offsets[rows["pair"] + shift].astype(np.int64) for shift in (0, 1))
        words = self._words.gather(starts, stops - starts).astype(np.int64).reshape(-1, 2)
        sentences = np.repeat(np.arange(len(rows)), (stops - starts) // 2)
        src_first, src_sizes = _tokens_of_words(
            self._source, src_ids, rows["src_length"], sentences=sentences, words=words[:, 0]
        )
        tgt_first, tgt_sizes = _tokens_of_words(
            self._target, tgt_ids, rows["tgt_length"], sentences=sentences, words=words[:, 1]
        )
        sizes = src_sizes * tgt_sizes
        link = np.repeat(np.arange(len(sizes)), sizes)
        number_in_link = np.arange(len(link)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        tgt_tokens = tgt_first[link] + number_in_link // src_sizes[link]
        src_tokens = src_first[link] + number_in_link % src_sizes[link]
        shares = 1 / np.bincount(tgt_tokens)[tgt_tokens] if len(link) else np.zeros(0)
        sentences = sentences[link]
        positions = [
            tokens - (np.cumsum(rows[name]) - rows[name])[sentences]
            for tokens, name in ((tgt_tokens, "tgt_length"), (src_tokens, "src_length"))
        ]
        import torch  # not at the top: the processes of `nmt prepare` need no torch

        places = torch.from_numpy(np.stack([sentences, *positions]))
        return TokenLinks(places, torch.from_numpy(shares.astype(np.float32)))


def _tokens_of_words(
    numbers: WordNumbers, ids: NDArray[np.integer], lengths: Integers, *, sentences: Integers, words: Integers
) -> tuple[Integers, Integers]:
    """The first token and the number of tokens of each word, given by its sentence and its index there."""
    word_of_token = numbers.of_tokens(ids, lengths)
    ends = word_of_token[np.cumsum(lengths) - 1]  # EOS is the last word of each sentence
    wanted = np.concatenate([[0], ends[:-1] + 1])[sentences] + words
    first, last = (np.searchsorted(word_of_token, wanted, side=side) for side in ("left", "right"))
    return first, last - first
