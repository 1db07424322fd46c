"""Sampled subwords: text that is given as ids gets a random segmentation into pieces of the same vocabulary.

BPE-dropout skips each merge at its turn with a probability. A skipped merge is not tried again, as in SentencePiece.
Provilkov et al. 2020 (arXiv:1910.13267, algorithm 1) try it again at each step: their 0.1 makes text about as long as
0.05 here. A unigram vocabulary samples one of a word's best segmentations, in proportion to a power of their
probabilities (Kudo 2018, arXiv:1804.10959). SentencePiece samples too, but not reproducibly: it adds a random number of
its process to the seed. Here the ids follow from a generator of numpy.

Each word is sampled by itself. Words and their segmentations are cached, and numbered as they occur. In shapes, T is
the number of tokens in a text, W that of its words, and L that of its lines.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate, chain, pairwise
from typing import NamedTuple, assert_never

import numpy as np
from numpy.typing import NDArray

from nmt_cli.tokenization.pieces import SPACE_MARK, byte_pieces
from nmt_cli.tokenization.sentencepiece_model import BYTE, CONTROL, NORMAL, read_pieces, tokenizer_kind
from nmt_cli.tokenization.text_encoder import EncodedText, WordCache
from nmt_cli.tokenization.tokenizer import EOS, Tokenizer

_NUM_BEST = 64  # segmentations of a word that a unigram vocabulary chooses from
_MAX_MERGES = 4096  # of a word; later merges are never skipped
_MAX_BPE_SEGMENTATIONS, _MAX_UNIGRAM_SEGMENTATIONS = 250_000, 2_000_000  # in the cache: about 100 MB
_RANDOM_RANGE = 1 << 32  # the segmentations of a word share the numbers below it by their probabilities
_NOT_COMPUTED = -1


def subword_sampler(model: bytes, *, alpha: float) -> SubwordSampler:
    """The sampler of a SentencePiece model. `alpha`, as in SentencePiece, is a probability in BPE, and else a power."""
    match tokenizer_kind(model):
        case "bpe":
            return BpeDropout(model, probability=alpha)
        case "unigram":
            return UnigramSampler(model, power=alpha)
        case other:
            assert_never(other)


class SubwordSampler(ABC):
    """Samples segmentations of lines; a word whose ids do not follow from its text keeps its ids."""

    def __init__(self, model: bytes, *, max_cached_segmentations: int) -> None:
        self._pieces = read_pieces(model)
        self._max_cached_segmentations = max_cached_segmentations
        # If a piece continues after a space, words are not independent, and each line counts as one word.
        texts = [piece.text if piece.kind == NORMAL else "" for piece in self._pieces]
        has_words = not any(SPACE_MARK in text[1:] for text in texts)
        self._begins_word = np.array([has_words and text.startswith(SPACE_MARK) for text in texts])
        self._begins_word[EOS] = True
        self._is_symbol = np.array([piece.kind == CONTROL for piece in self._pieces])  # before a line
        self._is_symbol[EOS] = True
        self._clear_cache()

    def sample(self, ids: NDArray[np.unsignedinteger], *, longest: int, generator: np.random.Generator) -> EncodedText:
        """Other ids for the text of `ids` [T], which are lines with EOS; a line over `longest` ids keeps its ids."""
        if len(self._segmentations.sizes) > self._max_cached_segmentations:
            self._clear_cache()
        begins_word = self._begins_word[ids]  # [T]
        begins_word[1:] |= self._is_symbol[ids[:-1]]
        begins_word[:1] = True
        starts = np.flatnonzero(begins_word)  # [W]
        last_words = np.flatnonzero(ids[starts] == EOS)  # [L], because the EOS of a line is a word
        words = self._look_up_words(ids, starts)  # [W]
        originals = np.asarray(self._first_segmentations)[words]  # [W]
        samples = self._sample_segmentations(words, generator)  # [W]
        sizes = np.asarray(self._segmentations.sizes)
        original_lengths, sampled_lengths = (  # [L]
            np.diff(np.cumsum(sizes[segmentations])[last_words], prepend=0) for segmentations in (originals, samples)
        )
        is_kept = np.maximum(original_lengths, sampled_lengths) > longest  # [L]
        words_per_line = np.diff(last_words, prepend=-1)  # [L]
        chosen = np.where(np.repeat(is_kept, words_per_line), originals, samples)  # [W]
        lengths = np.where(is_kept, original_lengths, sampled_lengths)  # [L]
        return EncodedText(self._segmentations.ids_of(chosen).astype(ids.dtype), lengths)

    def _look_up_words(self, ids: NDArray[np.unsignedinteger], starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of each word [W], given the positions in `ids` [T] at which words begin; new words are added."""
        content = ids.tobytes()
        bounds = [*(starts * ids.itemsize).tolist(), len(content)]
        numbers = self._segmentations.numbers_of([content[start:stop] for start, stop in pairwise(bounds)])
        for new_word in self._segmentations.words_from(len(self._first_segmentations)):
            self._first_segmentations.append(len(self._segmentations.sizes))
            self._add_word(np.frombuffer(new_word, dtype=ids.dtype).tolist())
        return numbers

    @abstractmethod
    def _add_word(self, ids: list[int]) -> None:
        """Add segmentations of a new word; the first has the word's own ids."""

    @abstractmethod
    def _sample_segmentations(self, words: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        """The number of a segmentation for each word [W], given by number."""

    def _clear_cache(self) -> None:
        """Empty the cache."""
        self._segmentations, self._first_segmentations = WordCache(), array("q")


class _Derivation(NamedTuple):
    """The symbols of a word before all merges, the skipped merges, and the first merge that a child may skip."""

    symbols: list[str]
    skipped: tuple[int, ...]
    next_merge: int


class BpeDropout(SubwordSampler):
    """Skips merges of byte-pair encoding with a probability, as SentencePiece does.

    The segmentations of a word form a tree, and the root skips no merge. A child skips one more merge than its parent,
    after the parent's last one: child 0 the next merge, child 1 the one after. If this skip leaves a symbol without a
    piece or bytes, the child does the merge after all.

    `_children[_children_starts[p] + i]` is the number of child i of segmentation p, or `_NOT_COMPUTED`. `_num_children`
    counts the children of p, and `_derivations` says how p came about.
    """

    def __init__(self, model: bytes, *, probability: float) -> None:
        super().__init__(model, max_cached_segmentations=_MAX_BPE_SEGMENTATIONS)
        self._scores: Mapping[str, float] = {
            piece.text: piece.score for piece in self._pieces if piece.kind == NORMAL and len(piece.text) > 1
        }
        self._id_of = {piece.text: piece_id for piece_id, piece in enumerate(self._pieces)}
        self._has_bytes = any(piece.kind == BYTE for piece in self._pieces)
        # The probabilities that the next 1, 2, ... merges are all kept. They are negative, so that they rise.
        self._negative_probabilities = -np.cumprod(np.full(_MAX_MERGES, 1.0 - probability))

    def _sample_segmentations(self, words: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        segmentations = np.asarray(self._first_segmentations)[words]  # [W]
        active = np.arange(len(segmentations))  # [A], words whose segmentation a child may still replace
        while len(active):
            parents = segmentations[active]  # [A]
            num_kept = np.searchsorted(self._negative_probabilities, -generator.random(len(active)))  # [A]
            skips_a_merge = (num_kept < _MAX_MERGES) & (num_kept < np.asarray(self._num_children)[parents])
            active = active[skips_a_merge]
            slots = np.asarray(self._children_starts)[parents[skips_a_merge]] + num_kept[skips_a_merge]  # in _children
            for slot in np.unique(slots[np.asarray(self._children)[slots] == _NOT_COMPUTED]).tolist():
                self._add_child(slot)
            segmentations[active] = np.asarray(self._children)[slots]
        return segmentations

    def _add_child(self, slot: int) -> None:
        """Add the segmentation for an index of `_children`."""
        parent = bisect_right(self._children_starts, slot) - 1
        symbols, skipped, next_merge = self._derivations[parent]
        merge = next_merge + slot - self._children_starts[parent]
        ids, num_merges = self._merge(symbols, (*skipped, merge))
        if ids:
            skipped = (*skipped, merge)
        else:
            ids, num_merges = self._merge(symbols, skipped)
        self._children[slot] = len(self._segmentations.sizes)
        self._add_segmentation(ids, _Derivation(symbols, skipped, merge + 1), num_merges=num_merges)

    def _add_word(self, ids: list[int]) -> None:
        symbols = [symbol for piece_id in ids for symbol in self._symbols_of(piece_id)]
        merged_ids, num_merges = self._merge(symbols, ())
        num_merges = num_merges if merged_ids == ids else 0  # else the word has no other segmentations
        self._add_segmentation(ids, _Derivation(symbols, (), 0), num_merges=num_merges)

    def _add_segmentation(self, ids: list[int], derivation: _Derivation, *, num_merges: int) -> None:
        """Add a segmentation, and room for its children. `num_merges` counts the skipped merges too."""
        self._segmentations.add_rows([ids])
        self._derivations.append(derivation)
        self._num_children.append(num_merges - derivation.next_merge)
        self._children_starts.append(len(self._children))
        self._children.extend([_NOT_COMPUTED] * self._num_children[-1])

    def _symbols_of(self, piece_id: int) -> Sequence[str]:
        """The characters of a piece; a byte is a symbol of its own, which is never merged."""
        piece = self._pieces[piece_id]
        return piece.text if piece.kind == NORMAL else [piece.text]

    def _merge(self, unmerged: Sequence[str], skipped: Sequence[int]) -> tuple[list[int], int]:
        """The ids after all merges except the skipped ones, and the number of merges, with the skipped ones.

        There are no ids if a symbol can be neither found nor spelt.
        """
        symbols, score_of, skipped_merges = list(unmerged), self._scores.get, set(skipped)
        # The indices of the symbols before and after each symbol. A merge leaves its right symbol empty.
        before, after = list(range(-1, len(symbols))), list(range(1, len(symbols) + 1))
        queue = [  # of pairs, as the index of the left symbol, of the right one, and of the one after both
            (-score, left, left + 1, left + 2)
            for left, pair in enumerate(pairwise(symbols))
            if (score := score_of("".join(pair))) is not None
        ]
        heapify(queue)
        num_merges = 0
        while queue:
            _, left, right, end = heappop(queue)
            if after[left] != right or after[right] != end:
                continue  # one of the two symbols has been merged with another
            if num_merges not in skipped_merges:
                symbols[left], symbols[right] = symbols[left] + symbols[right], ""
                after[left], after[right], before[end] = end, 0, left
                for first, second in ((before[left], left), (left, end)):
                    is_pair = first >= 0 and second < len(symbols)
                    if is_pair and (score := score_of(symbols[first] + symbols[second])) is not None:
                        heappush(queue, (-score, first, second, after[second]))
            num_merges += 1
        ids = [self._ids_of(symbol) for symbol in symbols if symbol]
        return list(chain.from_iterable(ids)) if all(ids) else [], num_merges

    def _ids_of(self, symbol: str) -> list[int]:
        """The id of a piece; a character without a piece is spelt in bytes, if the model has them."""
        if symbol in self._id_of:
            return [self._id_of[symbol]]
        return [self._id_of[piece] for piece in byte_pieces(symbol)] if self._has_bytes else []

    def _clear_cache(self) -> None:
        super()._clear_cache()
        self._derivations: list[_Derivation] = []
        self._children, self._children_starts, self._num_children = array("q"), array("q"), array("q")


class UnigramSampler(SubwordSampler):
    """Samples one of the best segmentations of a word, in proportion to a power of its probability."""

    def __init__(self, model: bytes, *, power: float) -> None:
        super().__init__(model, max_cached_segmentations=_MAX_UNIGRAM_SEGMENTATIONS)
        self._tokenizer, self._power = Tokenizer(model), power

    def _sample_segmentations(self, words: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        random_numbers = words * _RANDOM_RANGE + generator.integers(0, _RANDOM_RANGE, len(words))  # [W]
        return np.searchsorted(np.asarray(self._bounds), random_numbers, side="right")

    def _add_word(self, ids: list[int]) -> None:
        (text,) = self._tokenizer.decode([ids])
        best = self._tokenizer.nbest(text, number=_NUM_BEST) if text and SPACE_MARK not in text else []
        segmentations = [ids, *(other for other in best if other != ids and best[0] == ids)]
        log_probs = [sum(self._pieces[piece_id].score for piece_id in segmentation) for segmentation in segmentations]
        weights = [math.exp(self._power * (log_prob - max(log_probs))) for log_prob in log_probs]
        sums = list(accumulate(weights))
        start = self._bounds[-1] if self._bounds else 0
        self._bounds.extend(start + round(weight_sum / sums[-1] * _RANDOM_RANGE) for weight_sum in sums)
        self._segmentations.add_rows(segmentations)

    def _clear_cache(self) -> None:
        super()._clear_cache()
        # Word w has the numbers from w * _RANDOM_RANGE on, and each of its segmentations those below its bound.
        self._bounds = array("q")
