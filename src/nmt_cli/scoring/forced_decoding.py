"""Forced decoding: the probability that a model gives to existing translations, and the words that it aligns."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from nmt_cli.decoding.attention_maps import align
from nmt_cli.decoding.batching import Batches
from nmt_cli.decoding.search.hypotheses import SourceSentence, SymbolIds, not_finite_error
from nmt_cli.decoding.torch_engine import TorchEngine
from nmt_cli.devices import choose_device, choose_precision, parse_precision
from nmt_cli.memory import return_freed_memory
from nmt_cli.model.teacher_forcing import forced_log_probs
from nmt_cli.recipe.directions import Direction
from nmt_cli.tokenization.pieces import piece_links, word_alignment
from nmt_cli.tokenization.tokenizer import BOS, EOS

logger = logging.getLogger(__name__)

T = TypeVar("T")
_Pair: TypeAlias = tuple[list[int], list[int]]
# Pairs that are sorted by length and scored together; no score comes before the whole block is done.
_BLOCK_PAIRS = 2000
_MAX_EXPONENT = 700.0  # exp of more than 709 overflows


@dataclass(frozen=True, slots=True)
class ForcedScore:
    """The natural log-probability of a target given its source, and of each piece; the last piece is EOS.

    Both are None if the pair is too long for the model. A pair of blank lines has no pieces, and log-probability 0, as
    in decoding.
    """

    log_prob: float | None
    pieces: list[str]
    piece_log_probs: list[float] | None
    num_words: int


@dataclass(slots=True)
class PerplexitySums:
    """The sums over the targets scored so far, and their perplexities. EOS counts as a piece and as a word of each."""

    num_left_out: int = 0
    log_prob: float = 0.0
    num_pieces: int = 0
    num_words: int = 0

    def add(self, score: ForcedScore) -> None:
        """Count a line. Without a probability it is left out; a blank pair adds no pieces."""
        if score.log_prob is None:
            self.num_left_out += 1
        elif score.pieces:
            self.log_prob += score.log_prob
            self.num_pieces += len(score.pieces)
            self.num_words += score.num_words + 1

    @property
    def per_piece(self) -> float | None:
        """exp of the mean negative log-probability per piece; None if there are no pieces."""
        return perplexity(-self.log_prob / self.num_pieces) if self.num_pieces else None

    @property
    def per_word(self) -> float | None:
        """exp of the mean negative log-probability per word; None if there are no words.

        Models with different vocabularies can be compared by it.
        """
        return perplexity(-self.log_prob / self.num_words) if self.num_words else None


def perplexity(nll: float) -> float:
    """The perplexity of a negative log-likelihood in nats per token, with a limit that floats can hold."""
    return math.exp(min(nll, _MAX_EXPONENT))


class ForcedDecoder:
    """Scores pairs of raw lines with the model of a directory, with decode's devices and precisions."""

    def __init__(
        self,
        directory: Path,
        *,
        direction: Direction,
        device: str,
        precision: str,
        max_tokens: int | None,
    ) -> None:
        """Load the model, which has this direction.

        `max_tokens` bounds the source and target pieces computed at once; None takes the model's own bound for
        decoding. ModelError if the directory is no model, DeviceError if the device does not exist.
        """
        choice = parse_precision(precision)
        self._device = choose_device(device)
        chosen = choose_precision(choice, device=self._device, training=False)
        engine = TorchEngine.load([directory], device=self._device, precision=chosen)
        (self._loaded,) = engine.loaded
        self._symbols = SymbolIds.of(direction, source=engine.source, target=engine.target)
        self._batches = Batches(self._device)
        limits = {"batch_tokens": max_tokens or engine.decoding.batch_tokens, "beam": 1, "samples": 0}
        self._config = engine.decoding.model_copy(update=limits)

    def scores(self, sources: Sequence[str], targets: Sequence[str]) -> Iterator[ForcedScore]:
        """The score of each pair, in order, as blocks of them are done.

        Pairs too long for the model have no probability, and a warning counts them in the end. DeviceError if a pair
        exhausts the memory.
        """
        computed = self._compute(sources, targets, self._log_probs, lack="score")
        for text, ((_, ids), log_probs) in zip(targets, computed, strict=True):
            log_prob = None if log_probs is None else math.fsum(log_probs)
            yield ForcedScore(log_prob, self._loaded.target.pieces(ids), log_probs, len(text.split()))

    def alignments(self, sources: Sequence[str], targets: Sequence[str]) -> Iterator[list[tuple[int, int]]]:
        """The pairs of words that `nmt decode --alignments` finds, for each pair of lines, in order.

        Pairs too long for the model have none, and a warning counts them in the end. DeviceError as for `scores`.
        """
        computed = self._compute(sources, targets, self._align, lack="alignment")
        for source, target, ((source_ids, target_ids), aligned) in zip(sources, targets, computed, strict=True):
            source_pieces = self._loaded.source.pieces(source_ids[:-1])
            target_pieces = self._loaded.target.pieces(target_ids[:-1])
            links = piece_links(source_pieces, target_pieces, aligned or [], (source, target))
            yield word_alignment(links, source, target)

    def _compute(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        compute: Callable[[list[_Pair]], list[list[T]]],
        *,
        lack: str,
    ) -> Iterator[tuple[_Pair, list[T] | None]]:
        """The ids of each pair of lines, and what `compute` gives for each token of its target.

        This is None for a pair that is too long for the model; a warning counts these pairs in the end.
        """
        longest = self._loaded.model.config.max_positions - max(map(len, self._symbols))
        too_long: list[int] = []
        for start in range(0, len(sources), _BLOCK_PAIRS):
            block, nothing = slice(start, start + _BLOCK_PAIRS), list[T]()
            pairs = self._encode(sources[block], targets[block])
            fits = [max(map(len, pair)) <= longest for pair in pairs]
            # A batch adds an EOS to each length: the target's. Pairs of length 0 are not computed.
            lengths = [len(pair[0]) + len(pair[1][:-1]) if fit else 0 for pair, fit in zip(pairs, fits, strict=True)]
            results = self._batches.map(compute, pairs, lengths, config=self._config, empty=nothing)
            return_freed_memory()
            too_long += [number for number, fit in enumerate(fits, start + 1) if not fit]
            yield from zip(pairs, (one if fit else None for one, fit in zip(results, fits, strict=True)), strict=True)
        if too_long:
            logger.warning(
                "%s of %s pairs have no %s, the first of them in line %s: this model takes %s pieces per side",
                f"{len(too_long):,}",
                f"{len(sources):,}",
                lack,
                f"{too_long[0]:,}",
                f"{self._loaded.model.config.max_positions - 1:,}",
            )

    def _encode(self, sources: Sequence[str], targets: Sequence[str]) -> list[_Pair]:
        """The ids of each pair with EOS; none for two blank lines."""
        source_rows = self._loaded.source.encode_source(sources)
        target_rows = self._loaded.target.encode_target(targets)
        return [
            ([*source, EOS], [*target, EOS]) if source or target else ([], [])
            for source, target in zip(source_rows, target_rows, strict=True)
        ]

    def _align(self, pairs: Sequence[_Pair]) -> list[list[tuple[int, int]]]:
        sentences = [SourceSentence(source[:-1], symbols=self._symbols) for source, _ in pairs]
        return align([self._loaded.model], sentences, [target[:-1] for _, target in pairs], device=self._device)

    def _log_probs(self, pairs: Sequence[_Pair]) -> list[list[float]]:
        before_source, before_target = self._symbols
        log_probs = forced_log_probs(
            self._loaded.model,
            [[*before_source, *source] for source, _ in pairs],
            [[*before_target, *target] for _, target in pairs],
            bos=BOS,
            device=self._device,
        )
        log_probs = [row[len(before_target) :] for row in log_probs]
        if any(map(math.isnan, itertools.chain(*log_probs))):
            raise not_finite_error()
        return log_probs
