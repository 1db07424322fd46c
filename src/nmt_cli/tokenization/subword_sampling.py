"""Sampled subwords: text that is given as ids is cut at random into other pieces of the same vocabulary.

BPE-dropout skips each merge at its turn with a probability (Provilkov et al. 2020, arXiv:1910.13267). A unigram
vocabulary samples one of a word's best segmentations, in proportion to a power of their probabilities (Kudo 2018,
arXiv:1804.10959). SentencePiece samples too, but not reproducibly: it adds a random number of its process to the seed.
Here the ids follow from a generator of numpy.

Each word is sampled by itself. A way to cut it is a choice. Words and choices are cached and numbered as they occur.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate, count, islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt_cli.tokenization.pieces import SPACE_MARK
from nmt_cli.tokenization.sentencepiece_model import NORMAL, read_pieces, tokenizer_kind
from nmt_cli.tokenization.tokenizer import EOS, EncodedText, Tokenizer, gather

_NUM_BEST = 64  # segmentations of a word that a unigram vocabulary chooses from
_MAX_MERGES = 4096  # of a word; later merges are never skipped
_MOST_BPE_CHOICES, _MOST_UNIGRAM_CHOICES = 250_000, 2_000_000  # before the cache is emptied: about 100 MB
_RANDOM_RANGE = 1 << 32  # the choices of a word share the numbers below it, in proportion to their probabilities
_NO_MERGE = -math.inf  # the score of a pair that is no piece
_NOT_COMPUTED = -1


def subword_sampler(model: bytes, *, alpha: float) -> SubwordSampler:
    """The sampler of a SentencePiece model; `alpha` is the probability of skipping a merge, or the power."""
    match tokenizer_kind(model):
        case "bpe":
            return BpeDropout(model, probability=alpha)
        case "unigram":
            return UnigramSampler(model, power=alpha)


class SubwordSampler(ABC):
    """Cuts lines into other pieces; a word whose ids do not follow from its text keeps its ids."""

    def __init__(self, model: bytes, *, most_choices: int) -> None:
        self._pieces = read_pieces(model)
        self._most_choices = most_choices
        # If a piece continues after a space, words are not independent, and each line counts as one word.
        texts = [piece.text if piece.kind == NORMAL else "" for piece in self._pieces]
        has_words = not any(SPACE_MARK in text[1:] for text in texts)
        self._begins_word = np.array([has_words and text.startswith(SPACE_MARK) for text in texts])
        self._begins_word[EOS] = True
        self._clear_cache()

    def sample(self, ids: NDArray[np.unsignedinteger], *, longest: int, generator: np.random.Generator) -> EncodedText:
        """Other ids for the text of `ids`, which are lines with EOS; a line over `longest` ids keeps its ids."""
        if len(self._sizes) > self._most_choices:
            self._clear_cache()
        begins = self._begins_word[ids]
        begins[1:] |= ids[:-1] == EOS
        begins[:1] = True
        starts = np.flatnonzero(begins)
        words = self._word_numbers(ids, starts)
        originals = self._first_choices.values[words]
        choices = self._choose(words, generator)
        line_ends = np.flatnonzero(ids[starts] == EOS)
        original_lengths = _line_lengths(self._sizes.values[originals], line_ends)
        lengths = _line_lengths(self._sizes.values[choices], line_ends)
        is_kept = (lengths > longest) | (original_lengths > longest)
        words_per_line = np.diff(line_ends, prepend=-1)
        choices = np.where(np.repeat(is_kept, words_per_line), originals, choices)
        sampled = gather(self._ids.values, self._starts.values[choices], self._sizes.values[choices])
        return EncodedText(sampled.astype(ids.dtype), np.where(is_kept, original_lengths, lengths))

    def _word_numbers(self, ids: NDArray[np.unsignedinteger], starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of each word, given the positions in `ids` at which words begin."""
        content = ids.tobytes()
        bounds = [*(starts * ids.itemsize).tolist(), len(content)]
        words = [content[start:stop] for start, stop in pairwise(bounds)]
        numbers = np.fromiter(map(self._number_of_word.__getitem__, words), dtype=np.int64, count=len(words))
        for new_word in islice(self._number_of_word, len(self._first_choices), None):
            self._first_choices.extend([len(self._sizes)])
            self._add_word(np.frombuffer(new_word, dtype=ids.dtype).tolist())
        return numbers

    @abstractmethod
    def _add_word(self, ids: list[int]) -> None:
        """Add choices of a new word; the first choice has the word's own ids."""

    @abstractmethod
    def _choose(self, words: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        """A choice for each of these words, given by number."""

    def _add_choice(self, ids: Sequence[int]) -> None:
        self._starts.extend([len(self._ids)])
        self._sizes.extend([len(ids)])
        self._ids.extend(ids)

    def _clear_cache(self) -> None:
        """Empty the cache."""
        # A look-up gives a new word the next number.
        self._number_of_word: defaultdict[bytes, int] = defaultdict(count().__next__)
        self._first_choices, self._starts, self._sizes, self._ids = (_GrowingArray(np.int64) for _ in range(4))


class BpeDropout(SubwordSampler):
    """Skips merges of byte-pair encoding with a probability, as SentencePiece does.

    A choice is a word with some of its merges skipped. Merges are numbered from 0 in the order in which they come up.
    The choices of a word form a tree. Child k of a choice also skips merge f + k, counted from 0: f is the first merge
    after its last skipped one, or 0.
    """

    def __init__(self, model: bytes, *, probability: float) -> None:
        super().__init__(model, most_choices=_MOST_BPE_CHOICES)
        self._scores: Mapping[str, float] = {
            piece.text: piece.score for piece in self._pieces if piece.kind == NORMAL and len(piece.text) > 1
        }
        self._id_of = {piece.text: piece_id for piece_id, piece in enumerate(self._pieces)}
        # The probabilities that the next 1, 2, ... merges are all kept, with a minus sign, so that they rise.
        self._minus_all_kept = -np.array(list(accumulate([1 - probability] * _MAX_MERGES, float.__mul__)))

    def _choose(self, words: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        choices = self._first_choices.values[words]
        active = np.arange(len(choices))  # the words whose next merges may be skipped
        while len(active):
            parents = choices[active]
            num_kept = np.searchsorted(self._minus_all_kept, -generator.random(len(active)))
            skips_a_merge = (num_kept < _MAX_MERGES) & (num_kept < self._num_remaining_merges.values[parents])
            active = active[skips_a_merge]
            slots = self._children_starts.values[parents[skips_a_merge]] + num_kept[skips_a_merge]
            for slot in np.unique(slots[self._children.values[slots] == _NOT_COMPUTED]).tolist():
                self._add_child(slot)
            choices[active] = self._children.values[slots]
        return choices

    def _add_child(self, slot: int) -> None:
        """Add the choice for a slot of `_children`."""
        parent = int(np.searchsorted(self._children_starts.values, slot, side="right")) - 1
        symbols, skipped = self._symbols_and_skips[parent]
        merge = _first_remaining(skipped) + slot - int(self._children_starts.values[parent])
        self._children.values[slot] = len(self._sizes)
        self._add_merged(symbols, (*skipped, merge))

    def _add_word(self, ids: list[int]) -> None:
        symbols = [symbol for piece_id in ids for symbol in self._symbols_of(piece_id)]
        merged_ids, _ = self._merge(symbols, ())
        if merged_ids == ids:
            self._add_merged(symbols, ())
        else:
            self._add_with_children(ids, [], (), num_merges=0)

    def _add_merged(self, symbols: list[str], skipped: tuple[int, ...]) -> None:
        ids, num_merges = self._merge(symbols, skipped)
        self._add_with_children(ids, symbols, skipped, num_merges=num_merges)

    def _add_with_children(
        self, ids: list[int], symbols: list[str], skipped: tuple[int, ...], *, num_merges: int
    ) -> None:
        """Add a choice, and slots for its children; `num_merges` counts the skipped merges too."""
        num_remaining = num_merges - _first_remaining(skipped)
        self._add_choice(ids)
        self._symbols_and_skips.append((symbols, skipped))
        self._num_remaining_merges.extend([num_remaining])
        self._children_starts.extend([len(self._children)])
        self._children.extend([_NOT_COMPUTED] * num_remaining)

    def _symbols_of(self, piece_id: int) -> Sequence[str]:
        """The characters of a piece; a byte is a symbol of its own, which is never merged."""
        piece = self._pieces[piece_id]
        return piece.text if piece.kind == NORMAL else [piece.text]

    def _merge(self, symbols: Sequence[str], skipped: Sequence[int]) -> tuple[list[int], int]:
        """The ids after all merges except the skipped ones, and the number of merges, with the skipped ones."""
        symbols, score = list(symbols), self._scores.get
        pair_scores = [score(left + right, _NO_MERGE) for left, right in pairwise(symbols)]
        num_merges = 0
        while pair_scores and (best := max(pair_scores)) > _NO_MERGE:
            index = pair_scores.index(best)
            if num_merges in skipped:
                pair_scores[index] = _NO_MERGE  # until one of the two symbols has become longer
            else:
                symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]
                del pair_scores[index]
                for pair in range(max(index - 1, 0), min(index + 1, len(pair_scores))):
                    pair_scores[pair] = score(symbols[pair] + symbols[pair + 1], _NO_MERGE)
            num_merges += 1
        return [piece_id for symbol in symbols for piece_id in self._ids_of(symbol)], num_merges

    def _ids_of(self, symbol: str) -> list[int]:
        """The id of a piece; a character without a piece is spelt in bytes."""
        if symbol in self._id_of:
            return [self._id_of[symbol]]
        return [self._id_of[f"<0x{byte:02X}>"] for byte in symbol.encode()]

    def _clear_cache(self) -> None:
        super()._clear_cache()
        self._symbols_and_skips: list[tuple[list[str], tuple[int, ...]]] = []
        self._num_remaining_merges = _GrowingArray(np.int64)
        # The children of all choices, parent by parent, and the slot of each parent's first child.
        self._children = _GrowingArray(np.int64)
        self._children_starts = _GrowingArray(np.int64)


class UnigramSampler(SubwordSampler):
    """Chooses one of the best segmentations of a word, with a probability proportional to a power of its own."""

    def __init__(self, model: bytes, *, power: float) -> None:
        super().__init__(model, most_choices=_MOST_UNIGRAM_CHOICES)
        self._tokenizer, self._power = Tokenizer(model), power

    def _choose(self, words: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        random_numbers = generator.integers(0, _RANDOM_RANGE, len(words))
        return np.searchsorted(self._range_ends.values, words * _RANDOM_RANGE + random_numbers, side="right")

    def _add_word(self, ids: list[int]) -> None:
        (text,) = self._tokenizer.decode([ids])
        segmentations = self._tokenizer.nbest(text, number=_NUM_BEST) if text and SPACE_MARK not in text else []
        if ids in segmentations[:1]:
            segmentations = [ids, *(other for other in segmentations if other != ids)]
        else:
            segmentations = [ids]
        log_probs = [sum(self._pieces[piece_id].score for piece_id in choice) for choice in segmentations]
        weights = [math.exp(self._power * (log_prob - max(log_probs))) for log_prob in log_probs]
        sums = list(accumulate(weights))
        start = (len(self._first_choices) - 1) * _RANDOM_RANGE
        self._range_ends.extend([start + round(weight_sum / sums[-1] * _RANDOM_RANGE) for weight_sum in sums])
        for choice in segmentations:
            self._add_choice(choice)

    def _clear_cache(self) -> None:
        super()._clear_cache()
        # Word w has the numbers from w * _RANDOM_RANGE on. Each of its choices has a range of them, with this end.
        self._range_ends = _GrowingArray(np.int64)


class _GrowingArray:
    """An array to which values are added at the end."""

    def __init__(self, dtype: Any) -> None:
        self._buffer, self._size = np.empty(1024, dtype=dtype), 0

    def __len__(self) -> int:
        return self._size

    @property
    def values(self) -> NDArray[Any]:
        """All values so far."""
        return self._buffer[: self._size]

    def extend(self, values: Sequence[int]) -> None:
        """Add values."""
        size = self._size + len(values)
        if size > len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty(size, dtype=self._buffer.dtype)])
        self._buffer[self._size : size] = values
        self._size = size


def _line_lengths(word_sizes: NDArray[np.int64], line_ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of ids of each line, given the index of its last word."""
    return np.diff(np.cumsum(word_sizes)[line_ends], prepend=0)


def _first_remaining(skipped: Sequence[int]) -> int:
    """The first merge that a child may skip: the merge after the last skipped one."""
    return skipped[-1] + 1 if skipped else 0
