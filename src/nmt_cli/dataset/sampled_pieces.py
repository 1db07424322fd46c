"""Sampled pieces: each epoch segments the training text differently, into pieces of the same vocabulary.

BPE-dropout (Provilkov et al. 2020, arXiv:1910.13267) skips merges at random. With a unigram vocabulary, one of all
segmentations is sampled (Kudo 2018, arXiv:1804.10959). The text comes from the ids of the prepared data.

The pieces of a pair depend on the seed, the epoch and the index of the pair. Pairs are sampled in blocks, each with a
generator of its own, so neither the number of processes nor a restart matters.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from nmt_cli import files
from nmt_cli.dataset.prepared_data import SIDES, PreparedData, TokenPairs, TokenWriter, open_pairs
from nmt_cli.devices import num_cpus
from nmt_cli.errors import DataError, RecipeError
from nmt_cli.processes import worker_pool
from nmt_cli.recipe.schema import SubwordSampling
from nmt_cli.tokenization.sentencepiece_model import tokenizer_kind
from nmt_cli.tokenization.subword_sampling import subword_sampler
from nmt_cli.tokenization.text_encoder import EncodedText

SAMPLED = "sampled"
"""The folder of sampled ids in a run, and the split in the names of their files."""
BLOCK_PAIRS = 2048
_SAMPLING_PURPOSE, _COST_PURPOSE = 2, 3  # in keys of generators; the order of pairs has 1
_MEMORY_HINT = "if memory ran out, end other programs, then give the same command again: it continues"
_BYTES_PER_PAIR = 16  # beside its ids: two offsets
_POLL_SECONDS = 0.2
_NICENESS = 5  # of the processes that sample the next epoch: training comes first
_NUM_RANGES, _PAIRS_PER_RANGE = 64, 64  # the sample that the cost is measured on


def check_sampling(data: PreparedData, sampling: SubwordSampling) -> None:
    """Raise RecipeError if the recipe's sampling does not suit the vocabulary of the data."""
    if sampling.alpha is None:
        return
    if sampling.dropout:
        setting, needed = "dropout", "bpe"
        hint = "--set tokenizer.dropout=0 --set tokenizer.sampling=0.2"
    else:
        setting, needed = "sampling", "unigram"
        hint = "--set tokenizer.sampling=null --set tokenizer.dropout=0.05"
    names = {"bpe": "BPE", "unigram": "unigram"}
    for file in (data.source_tokenizer_file, data.target_tokenizer_file):
        if (found := tokenizer_kind(file.read_bytes())) != needed:
            raise RecipeError(
                f"tokenizer.{setting} is for {names[needed]} vocabularies, but the data has a {names[found]} one",
                where=str(file),
                hint=hint,
            )


@dataclass(frozen=True, slots=True)
class SamplingCost:
    """How much longer sampling makes the text, and the disk that an epoch takes.

    `src_growth` and `tgt_growth` are sampled tokens per token of the prepared data. The ids of an epoch take
    `bytes_per_pair` of disk.
    """

    src_growth: float
    tgt_growth: float
    bytes_per_pair: float


def measure_sampling_cost(data: PreparedData, *, alpha: float, seed: int, max_positions: int) -> SamplingCost:
    """The cost of each epoch, measured on a few thousand pairs spread over the training split."""
    sampler, key = _PairSampler(data, alpha=alpha, max_tokens_in_sentence=max_positions), (seed, _COST_PURPOSE)
    ranges = _spread_ranges(len(data.split("train")))
    sampled = [sampler.sample(start, stop, key=key) for start, stop in ranges]
    prepared_tokens = {
        side: sum(len(tokens.ids(*part)) for part in ranges) for side, tokens in sampler.prepared.items()
    }
    sampled_tokens = {side: sum(len(texts[side].ids) for texts in sampled) for side in SIDES}
    src_growth, tgt_growth = (sampled_tokens[side] / max(prepared_tokens[side], 1) for side in SIDES)
    num_pairs = sum(stop - start for start, stop in ranges)
    num_bytes = sum(sampled_tokens.values()) * np.dtype(data.manifest.dtype).itemsize + num_pairs * _BYTES_PER_PAIR
    return SamplingCost(src_growth, tgt_growth, num_bytes / max(num_pairs, 1))


def _spread_ranges(num_pairs: int) -> list[tuple[int, int]]:
    """Short ranges of pairs, (start, stop), spread evenly over all pairs."""
    starts = np.linspace(0, num_pairs, _NUM_RANGES, endpoint=False, dtype=np.int64)
    bounds = [*dict.fromkeys(starts.tolist()), num_pairs]
    return [(start, min(start + _PAIRS_PER_RANGE, next_start)) for start, next_start in pairwise(bounds)]


class SampledPieces:
    """The sampled ids of the training split, epoch by epoch, in a folder that all ranks of a run share.

    A sentence keeps the ids of the prepared data if it would have more than `max_tokens_in_sentence`. A word keeps its
    ids if they are not the encoding of its text. `beat` is called while the training waits for an epoch.
    """

    def __init__(
        self,
        data: PreparedData,
        folder: Path,
        *,
        alpha: float,
        seed: int,
        max_tokens_in_sentence: int,
        beat: Callable[[], None],
    ) -> None:
        self._data, self._folder, self._beat = data, folder, beat
        self._alpha, self._seed, self._max_tokens_in_sentence = alpha, seed, max_tokens_in_sentence
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nmt-sample-ahead")
        self._ahead: tuple[int, Future[None]] | None = None  # an epoch, and the end of its sampling
        self._is_awaited = self._is_closed = False

    def open(self, epoch: int) -> TokenPairs:
        """The sampled pairs of an epoch: found, waited for, or sampled by all CPUs.

        Raises DataError if they cannot be written, and SamplingStopped if this is closed before they are there.
        """
        self._is_awaited = True
        try:
            if self._ahead is not None and self._ahead[0] == epoch:
                self._ahead[1].result()
            self._sample_once(epoch, num_workers=num_cpus(), niceness=0)
        finally:
            self._is_awaited = False
        return open_pairs(self._directory(epoch), SAMPLED, dtype=self._data.manifest.dtype)

    def sample_ahead(self, epoch: int, *, num_workers: int) -> None:
        """Begin to sample an epoch by other processes, unless that has begun; `open` waits for them."""
        if self._ahead is None or self._ahead[0] != epoch:
            future = self._thread.submit(self._sample_once, epoch, num_workers=num_workers, niceness=_NICENESS)
            self._ahead = epoch, future

    def close(self) -> None:
        """Sample no more; unfinished files are removed."""
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _directory(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch:05}"

    def _sample_once(self, epoch: int, *, num_workers: int, niceness: int) -> None:
        """Sample an epoch, unless this or another process has done so."""
        directory = self._directory(epoch)
        if directory.exists():
            return
        with self._lock(directory):
            if not directory.exists():
                for other in self._folder.glob("epoch-*"):
                    if other.name < self._directory(epoch - 1).name:  # no rank is that far behind
                        files.remove_directory(other)
                with files.new_directory(directory, error=DataError) as temporary:
                    self._sample(temporary, epoch, num_workers=num_workers, niceness=niceness)

    @contextmanager
    def _lock(self, directory: Path) -> Iterator[None]:
        """Wait until no other process samples, and hold the lock while the block runs."""
        with files.disk_errors(self._folder, DataError):
            self._folder.mkdir(parents=True, exist_ok=True)
        lock, size = FileLock(self._folder / ".lock", timeout=_POLL_SECONDS, thread_local=False), -1
        while not lock.is_locked:
            self._raise_if_closed()
            if size != (size := files.bytes_in(directory.with_name(f".{directory.name}.partial"))):
                self._beat_if_awaited()  # the other process makes progress
            with suppress(Timeout):
                lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _sample(self, directory: Path, epoch: int, *, num_workers: int, niceness: int) -> None:
        """Write the sampled ids of an epoch into a directory."""
        num_blocks = math.ceil(len(self._data.split("train")) / BLOCK_PAIRS)
        key = (self._seed, _SAMPLING_PURPOSE, epoch)
        job = _SamplingJob(self._data, self._alpha, key, self._max_tokens_in_sentence, niceness)
        with ExitStack() as stack:
            dtype = self._data.manifest.dtype
            writers = {
                side: stack.enter_context(TokenWriter(directory, split=SAMPLED, side=side, dtype=dtype))
                for side in SIDES
            }
            run = stack.enter_context(worker_pool([job] * min(num_workers, num_blocks), hint=_MEMORY_HINT))
            for sides in run(range(num_blocks)):
                for side, text in sides.items():
                    writers[side].append(text.ids, text.lengths)
                self._raise_if_closed()
                self._beat_if_awaited()

    def _beat_if_awaited(self) -> None:
        """Call `beat` if the training waits: sampling ahead must not hide a training that hangs."""
        if self._is_awaited:
            self._beat()

    def _raise_if_closed(self) -> None:
        if self._is_closed:
            raise SamplingStopped


class SamplingStopped(Exception):  # not an error that users see: nobody waits for the epoch
    """Sampling was closed before an epoch was there."""


@dataclass(frozen=True, slots=True)
class _SamplingJob:
    """Samples the pieces of a block of pairs, given its number."""

    data: PreparedData
    alpha: float
    key: tuple[int, ...]
    max_tokens_in_sentence: int
    niceness: int

    def start(self) -> Callable[[int], dict[str, EncodedText]]:
        """The function for one block."""
        os.nice(self.niceness)
        sampler = _PairSampler(self.data, alpha=self.alpha, max_tokens_in_sentence=self.max_tokens_in_sentence)
        num_pairs = len(self.data.split("train"))

        def sample_block(block: int) -> dict[str, EncodedText]:
            start = block * BLOCK_PAIRS
            return sampler.sample(start, min(start + BLOCK_PAIRS, num_pairs), key=self.key)

        return sample_block


class _PairSampler:
    """Samples the pieces of consecutive training pairs."""

    def __init__(self, data: PreparedData, *, alpha: float, max_tokens_in_sentence: int) -> None:
        self._max_tokens_in_sentence = max_tokens_in_sentence
        pairs = data.split("train")
        self.prepared = {"source": pairs.src, "target": pairs.tgt}
        models = {"source": data.source_tokenizer_file, "target": data.target_tokenizer_file}
        self._samplers = {side: subword_sampler(model.read_bytes(), alpha=alpha) for side, model in models.items()}

    def sample(self, start: int, stop: int, *, key: tuple[int, ...]) -> dict[str, EncodedText]:
        """The sampled ids of these pairs, end to end, for each side; they follow from `key` and `start`."""
        sampled = {}
        for side, seed in zip(SIDES, np.random.SeedSequence([*key, start]).spawn(len(SIDES)), strict=True):
            ids, generator = self.prepared[side].ids(start, stop), np.random.default_rng(seed)
            sampled[side] = self._samplers[side].sample(ids, longest=self._max_tokens_in_sentence, generator=generator)
        return sampled
