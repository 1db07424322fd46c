"""Sampled pieces: for each epoch, the training text is cut anew into pieces of the same vocabulary.

BPE-dropout (Provilkov et al. 2020, arXiv:1910.13267) skips merges at random. Of a unigram vocabulary, one of all
segmentations is sampled (Kudo 2018, arXiv:1804.10959). The text comes from the ids of the prepared data.

The pieces of a pair depend on the seed, the epoch and the place of the pair. SentencePiece has one generator per
thread, so a new thread samples each block of pairs, whose number is part of the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import numpy as np

from nmt_cli.dataset.plan import SAMPLED, PlanFacts, PlanKey, SampledTokens
from nmt_cli.dataset.store import SIDES, PreparedData, TokenWriter
from nmt_cli.errors import RecipeError
from nmt_cli.processes import worker_pool
from nmt_cli.recipe.schema import SubwordSampling
from nmt_cli.tokenization.sentencepiece_model import NORMAL, read_pieces, tokenizer_kind
from nmt_cli.tokenization.tokenizer import EOS, SPACE_MARK, EncodedText, TextEncoder, Tokenizer

_BLOCK_PAIRS = 4096
_EPOCH, _EXPECTATION = 2, 3  # keep these generators apart from each other, and from the order of pairs
_EXPECTATION_PARTS, _EXPECTATION_PAIRS = 64, 128  # the pairs whose growth stands for that of all pairs


def check_sampling(data: PreparedData, sampling: SubwordSampling) -> None:
    """Raise RecipeError if the vocabulary of the data cannot be sampled in this way."""
    if sampling.alpha is None:
        return
    key, wanted, other = (
        ("dropout", "bpe", "sampling=0.2") if sampling.dropout else ("sampling", "unigram", "dropout=0.1")
    )
    off = {"dropout": "--set tokenizer.dropout=0", "sampling": "--set tokenizer.sampling=null"}
    names = {"bpe": "BPE", "unigram": "unigram"}
    for file in (data.source_tokenizer_file, data.target_tokenizer_file):
        model = file.read_bytes()
        if (kind := tokenizer_kind(model)) != wanted:
            raise RecipeError(
                f"tokenizer.{key} is for {names[wanted]} vocabularies, and that of the data is {names[kind]}",
                where=str(file),
                hint=f"{off[key]} --set tokenizer.{other}",
            )
        if not any(piece.kind == NORMAL and len(piece.text) > 1 for piece in read_pieces(model)):
            raise RecipeError(
                f"tokenizer.{key} has nothing to choose: each piece of the vocabulary is a single character",
                where=str(file),
                hint=off[key],
            )


@dataclass(frozen=True, slots=True)
class Growth:
    """By how much sampling makes text longer: tokens of each side per token of the prepared data."""

    src: float
    tgt: float


def expected_growth(data: PreparedData, *, key: PlanKey) -> Growth:
    """The growth of all epochs of a training, from a sample of its own that is the same in each of them."""
    sampler, num_pairs = _Sampler(data, key=key, longest=key.max_positions), len(data.split("train"))
    starts = np.linspace(0, num_pairs, _EXPECTATION_PARTS, endpoint=False, dtype=np.int64)
    bounds = [*dict.fromkeys(starts.tolist()), num_pairs]
    before, after = (dict.fromkeys(SIDES, 0) for _ in range(2))
    for start, end in pairwise(bounds):
        stop = min(start + _EXPECTATION_PAIRS, end)
        for side, text in sampler.sample(start, stop, purpose=_EXPECTATION).items():
            after[side] += len(text.ids)
            before[side] += sampler.num_tokens(side, start, stop)
    src, tgt = (after[side] / max(before[side], 1) for side in SIDES)
    return Growth(src, tgt)


def sample_pieces(
    data: PreparedData, directory: Path, *, key: PlanKey, facts: PlanFacts, num_workers: int
) -> SampledTokens:
    """Write the sampled ids of the training split into a directory.

    A sentence keeps the ids of the prepared data if it would become longer than the longest sentence of the `facts`, or
    if its ids do not follow from their text.
    """
    num_blocks = -(-len(data.split("train")) // _BLOCK_PAIRS)
    job = SamplingJob(data, key, facts.longest or key.max_positions)
    with ExitStack() as stack:
        writers = {
            side: stack.enter_context(TokenWriter(directory, split=SAMPLED, side=side, dtype=data.manifest.dtype))
            for side in SIDES
        }
        run = stack.enter_context(worker_pool([job] * min(num_workers, num_blocks)))
        for sides in run(range(num_blocks)):
            for side, text in sides.items():
                writers[side].append(text.ids, text.lengths)
    source, target = (writers[side].tokens for side in SIDES)
    return SampledTokens(dtype=data.manifest.dtype, source_tokens=source, target_tokens=target)


@dataclass(frozen=True, slots=True)
class SamplingJob:
    """Samples the pieces of a block of pairs, given its number."""

    data: PreparedData
    key: PlanKey
    longest: int

    def start(self) -> Callable[[int], dict[str, EncodedText]]:
        """The function for one block."""
        sampler = _Sampler(self.data, key=self.key, longest=self.longest)
        num_pairs = len(self.data.split("train"))

        def sample(block: int) -> dict[str, EncodedText]:
            start = block * _BLOCK_PAIRS
            return sampler.sample(start, min(start + _BLOCK_PAIRS, num_pairs), purpose=_EPOCH)

        return sample


class _Sampler:
    """Samples the pieces of training pairs that follow each other."""

    def __init__(self, data: PreparedData, *, key: PlanKey, longest: int) -> None:
        assert key.alpha is not None, "a plan without alpha has the pieces of the prepared data"
        self._alpha, self._key, self._longest = key.alpha, key, longest
        pairs = data.split("train")
        self._tokens = dict(zip(SIDES, (pairs.src, pairs.tgt), strict=True))
        files = dict(zip(SIDES, (data.source_tokenizer_file, data.target_tokenizer_file), strict=True))
        self._tokenizers = {side: Tokenizer.load(file) for side, file in files.items()}
        self._encoders = {
            side: TextEncoder(tokenizer, kind=tokenizer_kind(files[side].read_bytes()))
            for side, tokenizer in self._tokenizers.items()
        }

    def num_tokens(self, side: str, start: int, stop: int) -> int:
        """The tokens of some pairs in the prepared data."""
        first, end = self._tokens[side].read_offsets(start, stop + 1)[[0, -1]].tolist()
        return int(end - first)

    def sample(self, start: int, stop: int, *, purpose: int) -> dict[str, EncodedText]:
        """The ids of these pairs, end to end, for each side."""
        epoch = self._key.epoch if purpose == _EPOCH else 0
        seeds = np.random.SeedSequence([self._key.seed, purpose, epoch, start]).generate_state(len(SIDES)) >> 1
        return {
            side: self._sample_side(side, start, stop, seed=int(seed)) for side, seed in zip(SIDES, seeds, strict=True)
        }

    def _sample_side(self, side: str, start: int, stop: int, *, seed: int) -> EncodedText:
        offsets = self._tokens[side].read_offsets(start, stop + 1)
        ids = self._tokens[side].gather(offsets[:1], offsets[-1:] - offsets[:1])
        bounds, flat = (offsets - offsets[0]).tolist(), ids.tolist()
        rows = [flat[first : end - 1] for first, end in pairwise(bounds)]
        texts = self._tokenizers[side].decode(rows)
        places = [place for place in self._places_that_come_back(side, rows, texts) if len(rows[place]) < self._longest]
        lines = [texts[place] for place in places]
        for place, row in zip(places, self._tokenizers[side].sample(lines, alpha=self._alpha, seed=seed), strict=True):
            if len(row) < self._longest:  # EOS follows
                rows[place] = row
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)) + 1
        joined = chain.from_iterable((*row, EOS) for row in rows)
        return EncodedText(np.fromiter(joined, dtype=ids.dtype, count=int(lengths.sum())), lengths)

    def _places_that_come_back(self, side: str, rows: Sequence[list[int]], texts: Sequence[str]) -> list[int]:
        """The places of the sentences whose text is encoded into their very ids."""
        places = [place for place, text in enumerate(texts) if text and "\n" not in text and SPACE_MARK not in text]
        encoded = self._encoders[side].encode("".join(f"{texts[place]}\n" for place in places).encode())
        ends = np.cumsum(encoded.lengths).tolist()
        found = encoded.ids.tolist()
        return [
            place
            for place, (first, end) in zip(places, pairwise([0, *ends]), strict=True)
            if found[first : end - 1] == rows[place]
        ]
