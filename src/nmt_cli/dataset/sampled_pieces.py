"""Sampled pieces: each epoch segments the training text differently, into pieces of the same vocabulary.

BPE-dropout (Provilkov et al. 2020, arXiv:1910.13267) skips merges at random. With a unigram vocabulary, one of all
segmentations is sampled (Kudo 2018, arXiv:1804.10959). The text comes from the ids of the prepared data.

The pieces of a pair depend on the seed, the epoch and the index of the pair. Pairs are sampled in blocks, each with a
generator of its own, so neither the number of processes nor a restart matters.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from nmt_cli.dataset.plan_files import SAMPLED, EpochInvariants, PlanKey
from nmt_cli.dataset.prepared_data import SIDES, PreparedData, TokenWriter
from nmt_cli.errors import RecipeError
from nmt_cli.processes import worker_pool
from nmt_cli.recipe.schema import SubwordSampling
from nmt_cli.tokenization.sentencepiece_model import NORMAL, read_pieces, tokenizer_kind
from nmt_cli.tokenization.subword_sampling import subword_sampler
from nmt_cli.tokenization.tokenizer import EncodedText

BLOCK_PAIRS = 2048
_SAMPLING_PURPOSE, _COST_PURPOSE = 2, 3  # in keys of generators; the order of pairs has 1
_MEMORY_HINT = "if memory ran out, end other programs, then give the same command again: it continues"
_BYTES_PER_PAIR = 30  # beside its ids: two offsets of 8 bytes, and its row of the plan
_NUM_RANGES, _PAIRS_PER_RANGE = 64, 64  # the sample that the cost is measured on


def check_sampling(data: PreparedData, sampling: SubwordSampling) -> None:
    """Raise RecipeError if the recipe's kind of sampling does not suit the vocabulary of the data."""
    if sampling.alpha is None:
        return
    if sampling.dropout:
        setting, kind_needed = "dropout", "bpe"
        off, alternative = "--set tokenizer.dropout=0", "--set tokenizer.sampling=0.2"
    else:
        setting, kind_needed = "sampling", "unigram"
        off, alternative = "--set tokenizer.sampling=null", "--set tokenizer.dropout=0.05"
    names = {"bpe": "BPE", "unigram": "unigram"}
    for file in (data.source_tokenizer_file, data.target_tokenizer_file):
        model = file.read_bytes()
        if (kind := tokenizer_kind(model)) != kind_needed:
            raise RecipeError(
                f"tokenizer.{setting} is for {names[kind_needed]} vocabularies, but the data has a {names[kind]} one",
                where=str(file),
                hint=f"{off} {alternative}",
            )
        if not any(piece.kind == NORMAL and len(piece.text) > 1 for piece in read_pieces(model)):
            raise RecipeError(
                f"tokenizer.{setting} has nothing to choose: each piece of the vocabulary is a single character",
                where=str(file),
                hint=off,
            )


@dataclass(frozen=True, slots=True)
class SamplingCost:
    """How much longer sampling makes the text, and the disk and time that an epoch takes.

    `src_growth` and `tgt_growth` are sampled tokens per token of the prepared data. The ids and the plan of an epoch
    take `bytes_per_pair` of disk. Sampling takes `seconds_per_pair` of one process.
    """

    src_growth: float
    tgt_growth: float
    bytes_per_pair: float
    seconds_per_pair: float


def measure_sampling_cost(data: PreparedData, *, alpha: float, seed: int, max_positions: int) -> SamplingCost:
    """The cost of each epoch, measured on a few thousand pairs spread over the training split."""
    sampler, key = _PairSampler(data, alpha=alpha, max_tokens_in_sentence=max_positions), (seed, _COST_PURPOSE)
    ranges = _spread_ranges(len(data.split("train")))
    first_timed = len(ranges) * 3 // 4
    warm_up, timed = ranges[:first_timed], ranges[first_timed:]  # after the warm-up, frequent words are cached
    sampled = [sampler.sample(start, stop, key=key) for start, stop in warm_up]
    clock = time.process_time()
    sampled += [sampler.sample(start, stop, key=key) for start, stop in timed]
    seconds = time.process_time() - clock
    prepared_tokens = {
        side: sum(len(tokens.ids(*part)) for part in ranges) for side, tokens in sampler.prepared.items()
    }
    sampled_tokens = {side: sum(len(texts[side].ids) for texts in sampled) for side in SIDES}
    src_growth, tgt_growth = (sampled_tokens[side] / max(prepared_tokens[side], 1) for side in SIDES)
    num_pairs, num_timed = (sum(stop - start for start, stop in part) for part in (ranges, timed))
    num_bytes = sum(sampled_tokens.values()) * np.dtype(data.manifest.dtype).itemsize + num_pairs * _BYTES_PER_PAIR
    return SamplingCost(src_growth, tgt_growth, num_bytes / max(num_pairs, 1), seconds / max(num_timed, 1))


def _spread_ranges(num_pairs: int) -> list[tuple[int, int]]:
    """Short ranges of pairs, (start, stop), spread evenly over all pairs."""
    starts = np.linspace(0, num_pairs, _NUM_RANGES, endpoint=False, dtype=np.int64)
    bounds = [*dict.fromkeys(starts.tolist()), num_pairs]
    return [(start, min(start + _PAIRS_PER_RANGE, next_start)) for start, next_start in pairwise(bounds)]


def sample_pieces(
    data: PreparedData,
    directory: Path,
    *,
    key: PlanKey,
    invariants: EpochInvariants,
    num_workers: int,
    beat: Callable[[], None],
) -> None:
    """Write the sampled ids of the training split into a directory; `beat` is called after each block.

    A sentence keeps the ids of the prepared data if it would have more than `invariants.max_tokens_in_sentence`. A word
    keeps its ids if they are not the encoding of its text.
    """
    num_blocks = math.ceil(len(data.split("train")) / BLOCK_PAIRS)
    job = _SamplingJob(data, key, invariants.max_tokens_in_sentence)
    with ExitStack() as stack:
        writers = {
            side: stack.enter_context(TokenWriter(directory, split=SAMPLED, side=side, dtype=data.manifest.dtype))
            for side in SIDES
        }
        run = stack.enter_context(worker_pool([job] * min(num_workers, num_blocks), hint=_MEMORY_HINT))
        for sides in run(range(num_blocks)):
            for side, text in sides.items():
                writers[side].append(text.ids, text.lengths)
            beat()


@dataclass(frozen=True, slots=True)
class _SamplingJob:
    """Samples the pieces of a block of pairs, given its number."""

    data: PreparedData
    key: PlanKey
    max_tokens_in_sentence: int

    def start(self) -> Callable[[int], dict[str, EncodedText]]:
        """The function for one block."""
        assert self.key.alpha is not None
        sampler = _PairSampler(self.data, alpha=self.key.alpha, max_tokens_in_sentence=self.max_tokens_in_sentence)
        num_pairs, key = len(self.data.split("train")), (self.key.seed, _SAMPLING_PURPOSE, self.key.epoch)

        def sample(block: int) -> dict[str, EncodedText]:
            start = block * BLOCK_PAIRS
            return sampler.sample(start, min(start + BLOCK_PAIRS, num_pairs), key=key)

        return sample


class _PairSampler:
    """Samples the pieces of consecutive training pairs."""

    def __init__(self, data: PreparedData, *, alpha: float, max_tokens_in_sentence: int) -> None:
        self._max_tokens_in_sentence = max_tokens_in_sentence
        pairs = data.split("train")
        self.prepared = {"source": pairs.src, "target": pairs.tgt}
        files = {"source": data.source_tokenizer_file, "target": data.target_tokenizer_file}
        self._samplers = {side: subword_sampler(file.read_bytes(), alpha=alpha) for side, file in files.items()}

    def sample(self, start: int, stop: int, *, key: tuple[int, ...]) -> dict[str, EncodedText]:
        """The sampled ids of these pairs, end to end, for each side; they follow from `key` and `start`."""
        sampled = {}
        for side, seed in zip(SIDES, np.random.SeedSequence([*key, start]).spawn(len(SIDES)), strict=True):
            ids, generator = self.prepared[side].ids(start, stop), np.random.default_rng(seed)
            sampled[side] = self._samplers[side].sample(ids, longest=self._max_tokens_in_sentence, generator=generator)
        return sampled
