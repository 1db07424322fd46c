"""Forced decoding: the probability that a model gives to translations which somebody else made.

Shapes: N target tokens of a batch, D d_model, V target vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from nmt_cli.bundle import directory as model_directory
from nmt_cli.bundle.directory import LoadedModel
from nmt_cli.devices import choose_device, choose_precision, multiply_float32_fast, parse_precision
from nmt_cli.errors import DeviceError, UsageError
from nmt_cli.model.packing import pack
from nmt_cli.model.transformer import Transformer
from nmt_cli.tokenization.tokenizer import BOS, EOS

logger = logging.getLogger(__name__)

# Pairs that are sorted by length and scored together; none is given out before all of them are done.
_BLOCK_PAIRS = 2000
_CPU_ELEMENTS = 1 << 22
_CUDA_ELEMENTS = 1 << 28


@dataclass(frozen=True, slots=True)
class ForcedScore:
    """A target's natural log-probability given its source, and those of its pieces, of which EOS is the last.

    Both are None for a pair that is too long for the model, of which there are only the pieces. A pair of blank lines
    has no pieces, and log-probability 0, as in decoding.
    """

    log_prob: float | None
    pieces: list[str]
    piece_log_probs: list[float] | None
    num_words: int


@dataclass(slots=True)
class Perplexity:
    """Perplexities of the targets scored so far: EOS counts as a piece of each, and as a word of each."""

    lines: int = 0
    left_out: int = 0
    log_prob: float = 0.0
    pieces: int = 0
    words: int = 0

    def add(self, score: ForcedScore) -> None:
        """Count one target; one without a probability is left out, and blank pairs change nothing."""
        self.lines += 1
        if score.log_prob is None:
            self.left_out += 1
        elif score.pieces:
            self.log_prob += score.log_prob
            self.pieces += len(score.pieces)
            self.words += score.num_words + 1

    @property
    def per_piece(self) -> float | None:
        """exp of the mean negative log-probability of a piece; None where there is none."""
        return _perplexity(self.log_prob, self.pieces)

    @property
    def per_word(self) -> float | None:
        """exp of the mean negative log-probability of a word, which no choice of pieces changes; None: no words."""
        return _perplexity(self.log_prob, self.words)


class ForcedDecoder:
    """Scores pairs of raw lines with one model."""

    def __init__(self, loaded: LoadedModel, *, device: torch.device, batch_tokens: int | None) -> None:
        self._loaded = loaded
        self._device = device
        self._batch_tokens = loaded.config.recipe.decoding.batch_tokens if batch_tokens is None else batch_tokens

    @classmethod
    def from_pretrained(
        cls, directory: str | Path, *, device: str, precision: str, batch_tokens: int | None
    ) -> ForcedDecoder:
        """The scorer of a model directory, with decode's devices and precisions.

        `batch_tokens` bounds the source and target pieces computed at once; None takes the model's own bound for
        decoding. ModelError where the directory is no model, DeviceError where there is no such device.
        """
        choice = parse_precision(precision)
        if batch_tokens is not None and batch_tokens < 1:
            message = f"--batch-tokens is {batch_tokens}, but should be at least 1"
            raise UsageError(message, where="--batch-tokens", hint="leave --batch-tokens out")
        chosen = choose_device(device)
        is_bf16 = choose_precision(choice, device=chosen, training=False) == "bf16"
        if not is_bf16:
            multiply_float32_fast(chosen)
        dtype = torch.bfloat16 if is_bf16 else torch.float32
        loaded = model_directory.load(Path(directory), device=chosen, dtype=dtype)
        return cls(loaded, device=chosen, batch_tokens=batch_tokens)

    def scores(self, sources: Sequence[str], targets: Sequence[str]) -> Iterator[ForcedScore]:
        """The score of each pair, in order, as blocks of them are done.

        Pairs too long for the model are left without a probability, and warned of in the end. DeviceError where the
        memory of a GPU does not suffice.
        """
        too_long: list[int] = []
        for start in range(0, len(sources), _BLOCK_PAIRS):
            block = slice(start, start + _BLOCK_PAIRS)
            for number, score in enumerate(self._block(sources[block], targets[block]), start + 1):
                if score.log_prob is None:
                    too_long.append(number)
                yield score
        if too_long:
            logger.warning(
                "%s of %s pairs have no score, the first of them in line %s: this model takes %s pieces a side",
                f"{len(too_long):,}",
                f"{len(sources):,}",
                f"{too_long[0]:,}",
                f"{self._loaded.model.config.max_positions - 1:,}",
            )

    def _block(self, sources: Sequence[str], targets: Sequence[str]) -> list[ForcedScore]:
        source_rows = self._loaded.source.encode([line.strip() for line in sources])
        target_rows = self._loaded.target.encode([line.strip() for line in targets])
        pairs = [
            ([*source, EOS], [*target, EOS]) if source or target else ([], [])
            for source, target in zip(source_rows, target_rows, strict=True)
        ]
        longest = self._loaded.model.config.max_positions
        lengths = [0 if max(map(len, pair)) > longest else sum(map(len, pair)) for pair in pairs]
        found: list[list[float] | None] = [None if pair[0] else [] for pair in pairs]
        for batch in _batches(lengths, max_tokens=self._batch_tokens):
            log_probs = self._batch([pairs[index] for index in batch])
            for index, of_pair in zip(batch, log_probs, strict=True):
                found[index] = of_pair
        return [
            ForcedScore(
                None if log_probs is None else math.fsum(log_probs),
                self._loaded.target.pieces(pair[1]),
                log_probs,
                len(target.split()),
            )
            for pair, log_probs, target in zip(pairs, found, targets, strict=True)
        ]

    def _batch(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[list[float]]:
        try:
            return forced_log_probs(
                self._loaded.model, [pair[0] for pair in pairs], [pair[1] for pair in pairs], device=self._device
            )
        except torch.OutOfMemoryError:
            raise DeviceError(
                f"the memory of {self._device} does not hold a batch of {len(pairs)} pairs",
                where="--batch-tokens",
                hint=f"--batch-tokens {max(1, self._batch_tokens // 2)}, or --device cpu",
            ) from None


def forced_log_probs(
    model: Transformer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], *, device: torch.device
) -> list[list[float]]:
    """For each pair the natural log-probability of each of the target's ids, in float32 whatever the model's precision.

    The sources end in EOS; a target ends in EOS where that is to be scored too: one that a search cut at its limit has
    none. None is empty. The model is in evaluation mode, on `device`.
    """
    if model.training:
        raise ValueError("forced decoding needs model.eval(): dropout would change the probabilities")
    with torch.inference_mode():
        source = pack(sources, device=device)
        gold = pack(targets, device=device)
        inputs = gold.ids.roll(1)
        inputs[gold.cu_seqlens[:-1].long()] = BOS
        target = replace(gold, ids=inputs)
        hidden_ND = model.decode(target, model.encode(source), source)
        values = _gold_log_probs(model, hidden_ND, gold.ids).tolist()
    ends = gold.cu_seqlens.tolist()
    return [values[start:end] for start, end in pairwise(ends)]


def _gold_log_probs(model: Transformer, hidden_ND: Tensor, gold_N: Tensor) -> Tensor:
    """The log-probabilities [N] of the gold ids; logits exist for a block of rows at a time."""
    rows = max(1, (_CUDA_ELEMENTS if hidden_ND.is_cuda else _CPU_ELEMENTS) // model.target_vocab)
    blocks = []
    for hidden, gold in zip(hidden_ND.split(rows), gold_N.split(rows), strict=True):
        log_probs = model.logits(hidden).log_softmax(dim=-1, dtype=torch.float32)
        blocks.append(log_probs.gather(1, gold[:, None])[:, 0])
    return torch.cat(blocks)


def _batches(lengths: Sequence[int], *, max_tokens: int) -> Iterator[list[int]]:
    """Indices of the pairs in batches of similar length, the longest first; pairs of length 0 are left out."""
    order = sorted((index for index, length in enumerate(lengths) if length), key=lambda index: -lengths[index])
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * lengths[batch[0]] > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _perplexity(log_prob: float, count: int) -> float | None:
    return math.exp(min(-log_prob / count, 700.0)) if count else None
