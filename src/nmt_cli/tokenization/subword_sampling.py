"""Sampled subwords: text that is given as ids gets a random segmentation into pieces of the same vocabulary.

BPE-dropout skips each merge at its turn with a probability. A skipped merge is not tried again, as in SentencePiece.
Provilkov et al. 2020 (arXiv:1910.13267, algorithm 1) try it again at each step: their 0.1 makes text about as long as
0.05 here. A unigram vocabulary samples one of a word's best segmentations, in proportion to a power of their
probabilities (Kudo 2018, arXiv:1804.10959). SentencePiece samples too, but not reproducibly: it adds a random number of
its process to the seed. Here the ids follow from a generator of numpy.

Each word is sampled by itself. Words and their segmentations are cached, and numbered as they occur.
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
from nmt_cli.tokenization.sentencepiece_model import BYTE, NORMAL, read_pieces, tokenizer_kind
from nmt_cli.tokenization.tokenizer import EOS, EncodedText, Tokenizer, WordCache

_NUM_BEST = 64  # segmentations of a word that a unigram vocabulary chooses from
_MAX_MERGES = 4096  # of a word; later merges are never skipped
_MAX_BPE_SEGMENTATIONS, _MAX_UNIGRAM_SEGMENTATIONS = 250_000, 2_000_000  # in the cache: about 100 MB
_RANDOM_RANGE = 1 << 32  # the segmentations of a word share the numbers below it by their probabilities
_NOT_COMPUTED = -1


def subword_sampler(model: bytes, *, alpha: float) -> SubwordSampler:
    """The sampler of a SentencePiece model; `alpha` is the probability of skipping a merge, or the power."""
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
        self._clear_cache()

    def sample(self, ids: NDArray[np.unsignedinteger], *, longest: int, generator: np.random.Generator) -> EncodedText:
        """Other ids for the text of `ids`, which are lines with EOS; a line over `longest` ids keeps its ids."""
        if len(self._segmentations.sizes) > self._max_cached_segmentations:
            self._clear_cache()
        begins = self._begins_word[ids]
        begins[1:] |= ids[:-1] == EOS
        begins[:1] = True
        starts = np.flatnonzero(begins)
        words = self._look_up_words(ids, starts)
        originals = np.asarray(self._first_segmentations)[words]
        segmentations = self._sample_segmentations(words, generator)
        line_ends = np.flatnonzero(ids[starts] == EOS)
        sizes = np.asarray(self._segmentations.sizes)
        original_lengths, lengths = (
            np.diff(np.cumsum(sizes[rows])[line_ends], prepend=0) for rows in (originals, segmentations)
        )
        is_kept = (lengths > longest) | (original_lengths > longest)
        words_per_line = np.diff(line_ends, prepend=-1)
        chosen = np.where(np.repeat(is_kept, words_per_line), originals, segmentations)
        sampled = self._segmentations.ids_of(chosen)
        return EncodedText(sampled.astype(ids.dtype), np.where(is_kept, original_lengths, lengths))

    def _look_up_words(self, ids: NDArray[np.unsignedinteger], starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of each word, given the positions in `ids` at which words begin; new words are added."""
        content = ids.tobytes()
        bounds = [*(starts * ids.itemsize).tolist(), len(content)]
        words = [content[start:stop] for start, stop in pairwise(bounds)]
        numbers = self._segmentations.numbers_of(words)
        for new_word in self._segmentations.words_from(len(self._first_segmentations)):
            self._first_segmentations.append(len(self._segmentations.sizes))
            self._add_word(np.frombuffer(new_word, dtype=ids.dtype).tolist())
        return numbers

    @abstractmethod
    def _add_word(self, ids: list[int]) -> None:
        """Add segmentations of a new word; the first has the word's own ids."""

    @abstractmethod
    def _sample_segmentations(self, words: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        """The number of a segmentation for each of these words, given by number."""

    def _clear_cache(self) -> None:
        """Empty the cache."""
        self._segmentations, self._first_segmentations = WordCache(), array("q")


class _Derivation(NamedTuple):
    """The symbols of a segmentation before all merges, the skipped merges, and the first merge to skip next."""

    symbols: list[str]
    skipped: tuple[int, ...]
    first_remaining: int


class BpeDropout(SubwordSampler):
    """Skips merges of byte-pair encoding with a probability, as SentencePiece does.

    The segmentations of a word form a tree, and the root skips no merge. A child skips one more merge than its parent,
    after the parent's last one: child 0 the next merge, child 1 the one after. If this skip leaves a symbol without a
    piece or bytes, the child does the merge after all.

    `_children[_children_starts[p] + i]` is the number of child i of segmentation p, or `_NOT_COMPUTED`. The number of
    children of p is `_num_remaining_merges[p]`.
    """

    def __init__(self, model: bytes, *, probability: float) -> None:
        super().__init__(model, max_cached_segmentations=_MAX_BPE_SEGMENTATIONS)
        self._scores: Mapping[str, float] = {
            piece.text: piece.score for piece in self._pieces if piece.kind == NORMAL and len(piece.text) > 1
        }
        self._id_of = {piece.text: piece_id for piece_id, piece in enumerate(self._pieces)}
        self._has_bytes = any(piece.kind == BYTE for piece in self._pieces)
        # The probabilities that the next 1, 2, ... merges are all kept, with a minus sign, so that they rise.
        self._minus_all_kept = -np.cumprod(np.full(_MAX_MERGES, 1.0 - probability))

    def _sample_segmentations(self, words: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        segmentations = np.asarray(self._first_segmentations)[words]
        active = np.arange(len(segmentations))  # the words whose next merges may be skipped
        while len(active):
            parents = segmentations[active]
            num_kept = np.searchsorted(self._minus_all_kept, -generator.random(len(active)))
            skips_a_merge = (num_kept < _MAX_MERGES) & (num_kept < np.asarray(self._num_remaining_merges)[parents])
            active = active[skips_a_merge]
            child_slots = np.asarray(self._children_starts)[parents[skips_a_merge]] + num_kept[skips_a_merge]
            for child_slot in np.unique(child_slots[np.asarray(self._children)[child_slots] == _NOT_COMPUTED]).tolist():
                self._add_child(child_slot)
            segmentations[active] = np.asarray(self._children)[child_slots]
        return segmentations

    def _add_child(self, child_slot: int) -> None:
        """Add the segmentation for an index of `_children`."""
        parent = bisect_right(self._children_starts, child_slot) - 1
        symbols, skipped, first_remaining = self._derivations[parent]
        merge = first_remaining + child_slot - self._children_starts[parent]
        self._children[child_slot] = len(self._segmentations.sizes)
        ids, num_merges = self._merge(symbols, (*skipped, merge))
        if ids:
            skipped = (*skipped, merge)
        else:
            ids, num_merges = self._merge(symbols, skipped)
        self._add_with_children(ids, _Derivation(symbols, skipped, merge + 1), num_merges=num_merges)

    def _add_word(self, ids: list[int]) -> None:
        symbols = [symbol for piece_id in ids for symbol in self._symbols_of(piece_id)]
        merged_ids, num_merges = self._merge(symbols, ())
        num_merges = num_merges if merged_ids == ids else 0  # else the word has no other segmentations
        self._add_with_children(ids, _Derivation(symbols, (), 0), num_merges=num_merges)

    def _add_with_children(self, ids: list[int], derivation: _Derivation, *, num_merges: int) -> None:
        """Add a segmentation, and room for its children. `num_merges` counts the skipped merges too."""
        self._segmentations.add_rows([ids])
        self._derivations.append(derivation)
        num_children = num_merges - derivation.first_remaining
        self._num_remaining_merges.append(num_children)
        self._children_starts.append(len(self._children))
        self._children.extend([_NOT_COMPUTED] * num_children)

    def _symbols_of(self, piece_id: int) -> Sequence[str]:
        """The characters of a piece; a byte is a symbol of its own, which is never merged."""
        piece = self._pieces[piece_id]
        return piece.text if piece.kind == NORMAL else [piece.text]

    def _merge(self, symbols: Sequence[str], skipped: Sequence[int]) -> tuple[list[int], int]:
        """The ids after all merges except the skipped ones, and the number of merges, with the skipped ones.

        There are no ids if a symbol can be neither found nor spelt.
        """
        symbols, score_of, to_skip = list(symbols), self._scores.get, set(skipped)
        # A merge leaves its right symbol empty. `ends` has the index after each symbol, and `begins` is its inverse.
        begins, ends = list(range(-1, len(symbols))), list(range(1, len(symbols) + 1))
        queue = [
            (-score, left, left + 1, left + 2)
            for left, pair in enumerate(pairwise(symbols))
            if (score := score_of("".join(pair))) is not None
        ]
        heapify(queue)
        num_merges = 0
        while queue:
            _, left, right, end = heappop(queue)
            if ends[left] != right or ends[right] != end:
                continue  # one of the two symbols has been merged with another
            if num_merges not in to_skip:
                symbols[left], symbols[right] = symbols[left] + symbols[right], ""
                ends[left], ends[right], begins[end] = end, 0, left
                for first, second in ((begins[left], left), (left, end)):
                    is_inside = first >= 0 and second < len(symbols)
                    if is_inside and (score := score_of(symbols[first] + symbols[second])) is not None:
                        heappush(queue, (-score, first, second, ends[second]))
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
        self._num_remaining_merges, self._children, self._children_starts = array("q"), array("q"), array("q")


class UnigramSampler(SubwordSampler):
    """Samples one of the best segmentations of a word, in proportion to a power of its probability."""

    def __init__(self, model: bytes, *, power: float) -> None:
        super().__init__(model, max_cached_segmentations=_MAX_UNIGRAM_SEGMENTATIONS)
        self._tokenizer, self._power = Tokenizer(model), power

    def _sample_segmentations(self, words: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        random_numbers = generator.integers(0, _RANDOM_RANGE, len(words))
        return np.searchsorted(np.asarray(self._range_ends), words * _RANDOM_RANGE + random_numbers, side="right")

    def _add_word(self, ids: list[int]) -> None:
        (text,) = self._tokenizer.decode([ids])
        segmentations = self._tokenizer.nbest(text, number=_NUM_BEST) if text and SPACE_MARK not in text else []
        if segmentations[:1] == [ids]:
            segmentations = [ids, *(other for other in segmentations if other != ids)]
        else:
            segmentations = [ids]
        log_probs = [sum(self._pieces[piece_id].score for piece_id in segmentation) for segmentation in segmentations]
        weights = [math.exp(self._power * (log_prob - max(log_probs))) for log_prob in log_probs]
        sums = list(accumulate(weights))
        start = self._range_ends[-1] if self._range_ends else 0
        self._range_ends.extend(start + round(weight_sum / sums[-1] * _RANDOM_RANGE) for weight_sum in sums)
        self._segmentations.add_rows(segmentations)

    def _clear_cache(self) -> None:
        super()._clear_cache()
        # Word w has the numbers from w * _RANDOM_RANGE on, and each of its segmentations a range that ends here.
        self._range_ends = array("q")
