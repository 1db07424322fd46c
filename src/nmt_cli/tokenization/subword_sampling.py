"""Sampled subwords: text that is given as ids is cut at random into other pieces of the same vocabulary.

BPE-dropout skips each merge at its turn with a probability (Provilkov et al. 2020, arXiv:1910.13267). A unigram
vocabulary gives a word one of its best segmentations, with a probability that is proportional to a power of its own
(Kudo 2018, arXiv:1804.10959). SentencePiece samples too, but not reproducibly: it adds a random number of its process
to the seed. Here the ids follow from a generator of numpy.

Each word is sampled by itself. All ways to cut it that have occurred are cached, and have numbers: its choices.
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
_DRAW_RANGE = 1 << 32  # the choices of a word share these numbers, of which one is drawn
_NEVER = -math.inf


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
        words = self._words_of(ids, starts)
        firsts = self._first_choices.values[words]
        choices = self._choose(words, generator)
        line_ends = np.flatnonzero(ids[starts] == EOS)
        lengths, original = (_sums(self._sizes.values[chosen], line_ends) for chosen in (choices, firsts))
        is_kept = (lengths > longest) | (original > longest)
        choices = np.where(np.repeat(is_kept, np.diff(line_ends, prepend=-1)), firsts, choices)
        sizes = self._sizes.values[choices]
        sampled = gather(self._ids.values, self._starts.values[choices], sizes)
        return EncodedText(sampled.astype(ids.dtype), np.where(is_kept, original, lengths))

    def _words_of(self, ids: NDArray[np.unsignedinteger], starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of each word, given where the words begin in `ids`."""
        content, width = ids.tobytes(), ids.itemsize
        bounds = [*(starts * width).tolist(), len(content)]
        found = [content[start:stop] for start, stop in pairwise(bounds)]
        words = np.fromiter(map(self._words.__getitem__, found), dtype=np.int64, count=len(found))
        for word in islice(self._words, len(self._first_choices), None):
            self._first_choices.extend([len(self._sizes)])
            self._add_word(np.frombuffer(word, dtype=ids.dtype).tolist())
        return words

    @abstractmethod
    def _add_word(self, ids: list[int]) -> None:
        """Add the choices of a new word; the first of them are its own ids."""

    @abstractmethod
    def _choose(self, words: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        """A choice for each occurrence of a word."""

    def _add_choice(self, ids: Sequence[int]) -> None:
        self._starts.extend([len(self._ids)])
        self._sizes.extend([len(ids)])
        self._ids.extend(ids)

    def _clear_cache(self) -> None:
        """Empty the cache."""
        # Looking up a new word numbers it.
        self._words: defaultdict[bytes, int] = defaultdict(count().__next__)
        self._first_choices, self._starts, self._sizes, self._ids = (_GrowingArray(np.int64) for _ in range(4))


class BpeDropout(SubwordSampler):
    """Skips merges of byte-pair encoding with a probability, as SentencePiece does.

    A choice is a word and its skipped merges: their places in the order in which merges come up. The choices of a word
    form a tree. Child k of a choice also skips its k-th remaining merge, counted from 0.
    """

    def __init__(self, model: bytes, *, probability: float) -> None:
        super().__init__(model, most_choices=_MOST_BPE_CHOICES)
        self._scores: Mapping[str, float] = {
            piece.text: piece.score for piece in self._pieces if piece.kind == NORMAL and len(piece.text) > 1
        }
        self._id_of = {piece.text: number for number, piece in enumerate(self._pieces)}
        kept = accumulate([1 - probability] * _MAX_MERGES, float.__mul__)
        self._minus_all_kept = -np.array(list(kept))  # the probability that the next 1, 2, ... merges are kept

    def _choose(self, words: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        choices = self._first_choices.values[words]
        active = np.arange(len(choices))
        while len(active):
            current = choices[active]
            kept = np.searchsorted(self._minus_all_kept, -generator.random(len(active)))
            is_skipped = (kept < _MAX_MERGES) & (kept < self._num_remaining_merges.values[current])
            active = active[is_skipped]
            places = self._children_starts.values[current[is_skipped]] + kept[is_skipped]
            for place in np.unique(places[self._children.values[places] < 0]).tolist():
                self._add_child(place)
            choices[active] = self._children.values[places]
        return choices

    def _add_child(self, place: int) -> None:
        """Add the choice that belongs at a place of `_children`."""
        parent = int(np.searchsorted(self._children_starts.values, place, side="right")) - 1
        symbols, skipped = self._symbols_and_skips[parent]
        merge = _first_remaining(skipped) + place - int(self._children_starts.values[parent])
        self._children.values[place] = len(self._sizes)
        self._add_merged(symbols, (*skipped, merge))

    def _add_word(self, ids: list[int]) -> None:
        symbols = [symbol for number in ids for symbol in self._symbols_of(number)]
        if self._merge(symbols, ())[0] == ids:
            self._add_merged(symbols, ())
        else:
            self._add_with_children(ids, [], (), num_merges=0)

    def _add_merged(self, symbols: list[str], skipped: tuple[int, ...]) -> None:
        ids, num_merges = self._merge(symbols, skipped)
        self._add_with_children(ids, symbols, skipped, num_merges=num_merges)

    def _add_with_children(
        self, ids: list[int], symbols: list[str], skipped: tuple[int, ...], *, num_merges: int
    ) -> None:
        """Add a choice, and places for its children; `num_merges` come up in all, with the skipped ones."""
        num_remaining = num_merges - _first_remaining(skipped)
        self._add_choice(ids)
        self._symbols_and_skips.append((symbols, skipped))
        self._num_remaining_merges.extend([num_remaining])
        self._children_starts.extend([len(self._children)])
        self._children.extend([-1] * num_remaining)

    def _symbols_of(self, number: int) -> Sequence[str]:
        """The characters of a piece; a byte is a symbol of its own, which is never merged."""
        piece = self._pieces[number]
        return piece.text if piece.kind == NORMAL else [piece.text]

    def _merge(self, symbols: Sequence[str], skipped: Sequence[int]) -> tuple[list[int], int]:
        """The ids after all merges except the skipped ones, and how many merges came up, with the skipped ones."""
        symbols, score = list(symbols), self._scores.get
        scores = [score(left + right, _NEVER) for left, right in pairwise(symbols)]
        num_merges = 0
        while scores and (best := max(scores)) > _NEVER:
            place = scores.index(best)
            if num_merges in skipped:
                scores[place] = _NEVER  # until one of the two has become longer
            else:
                symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
                del scores[place]
                for pair in range(max(place - 1, 0), min(place + 1, len(scores))):
                    scores[pair] = score(symbols[pair] + symbols[pair + 1], _NEVER)
            num_merges += 1
        return [number for symbol in symbols for number in self._ids_of(symbol)], num_merges

    def _ids_of(self, symbol: str) -> list[int]:
        """The id of a piece; a character without a piece is spelt in bytes."""
        number = self._id_of.get(symbol)
        return [self._id_of[f"<0x{byte:02X}>"] for byte in symbol.encode()] if number is None else [number]

    def _clear_cache(self) -> None:
        super()._clear_cache()
        self._symbols_and_skips: list[tuple[list[str], tuple[int, ...]]] = []
        self._num_remaining_merges = _GrowingArray(np.int64)
        # The choices that are children, parent by parent; -1 if a choice is not computed yet.
        self._children = _GrowingArray(np.int64)
        # The place in `_children` where the children of each choice begin.
        self._children_starts = _GrowingArray(np.int64)


class UnigramSampler(SubwordSampler):
    """Chooses one of the best segmentations of a word, with a probability proportional to a power of its own."""

    def __init__(self, model: bytes, *, power: float) -> None:
        super().__init__(model, most_choices=_MOST_UNIGRAM_CHOICES)
        self._tokenizer, self._power = Tokenizer(model), power

    def _choose(self, words: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        draws = generator.integers(0, _DRAW_RANGE, len(words))
        return np.searchsorted(self._ends.values, words * _DRAW_RANGE + draws, side="right")

    def _add_word(self, ids: list[int]) -> None:
        (text,) = self._tokenizer.decode([ids])
        found = self._tokenizer.nbest(text, number=_NUM_BEST) if text and SPACE_MARK not in text else []
        found = [ids, *(other for other in found if other != ids)] if ids in found[:1] else [ids]
        totals = [sum(self._pieces[number].score for number in choice) for choice in found]
        weights = [math.exp(self._power * (total - max(totals))) for total in totals]
        sums = list(accumulate(weights))
        start = (len(self._first_choices) - 1) * _DRAW_RANGE
        self._ends.extend([start + round(one / sums[-1] * _DRAW_RANGE) for one in sums])
        for choice in found:
            self._add_choice(choice)

    def _clear_cache(self) -> None:
        super()._clear_cache()
        # Word w has the numbers from w * _DRAW_RANGE on, and each of its choices a part of them; here the parts end.
        self._ends = _GrowingArray(np.int64)


class _GrowingArray:
    """An array to which values are added at the end."""

    def __init__(self, dtype: Any) -> None:
        self._space, self._size = np.empty(1024, dtype=dtype), 0

    def __len__(self) -> int:
        return self._size

    @property
    def values(self) -> NDArray[Any]:
        """All values so far."""
        return self._space[: self._size]

    def extend(self, values: Sequence[int]) -> None:
        """Add values."""
        size = self._size + len(values)
        if size > len(self._space):
            self._space = np.concatenate([self._space, np.empty(size, dtype=self._space.dtype)])
        self._space[self._size : size] = values
        self._size = size


def _sums(sizes: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of the sizes of each line, given the place of its last word."""
    return np.diff(np.cumsum(sizes)[ends], prepend=0)


def _first_remaining(skipped: Sequence[int]) -> int:
    """The first merge that a child may skip: the merge after the last skipped one."""
    return skipped[-1] + 1 if skipped else 0
