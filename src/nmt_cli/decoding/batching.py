"""Sentences of any number and length, searched in batches of similar length."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from heapq import heapreplace
from typing import TypeVar

import torch

from nmt_cli.decoding.search.active_search import ActiveSearch, check_search
from nmt_cli.decoding.search.beam import BeamSearch
from nmt_cli.decoding.search.cuda import CudaSearch
from nmt_cli.decoding.search.ensemble import Ensemble
from nmt_cli.decoding.search.greedy_and_sampling import GreedyOrSamplingSearch
from nmt_cli.decoding.search.hypotheses import EMPTY_HYPOTHESIS, Hypothesis, SourceSentence, max_output_tokens
from nmt_cli.errors import DeviceError
from nmt_cli.memory import is_out_of_memory
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig

T = TypeVar("T")

logger = logging.getLogger(__name__)

# The search for a batch size by bisection ends at this share of the size.
_BISECTION_PRECISION = 1 / 64
# The cost of a step, in sentences: 19 with a beam of 4, 35 in greedy search (docs/design/cpu-search.md#batches).
_STEP_COST = 24
# Smaller batches are taken if they need less than this share of the estimated time of the largest batches.
_MAX_TIME_RATIO = 0.95
# A search is set aside when at most this share of its sentences is left.
_STRAGGLER_SHARE = 1 / 4


class BatchedSearch:
    """Searches on one device in batches, which become smaller if memory runs out.

    `cuda_search`, of the same models on the same device, searches the batches that it supports.
    """

    def __init__(self, models: Sequence[Transformer], *, device: torch.device, cuda_search: CudaSearch | None) -> None:
        self._models = models
        self._device = device
        self._cuda_search = cuda_search
        self._max_tokens_that_fit: int | None = None  # padded tokens of a batch; None until memory has run out

    def search(
        self, sources: Sequence[SourceSentence], *, config: DecodingConfig, nbest: int
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, in input order; a source without pieces has the empty one."""
        lengths = [len(source.ids) + len(source.prefix) if source.ids else 0 for source in sources]
        sizes = SentenceSizes(lengths, config)

        def search_batch(batch: list[int], stragglers: Stragglers) -> dict[int, list[Hypothesis]]:
            if not batch:
                return stragglers.finish()
            batch_sources = {index: sources[index] for index in batch}
            chosen = list(batch_sources.values())
            if self._cuda_search is not None and self._cuda_search.supports(chosen, config=config):
                return dict(zip(batch, self._cuda_search.search(chosen, config=config, nbest=nbest), strict=True))
            search = begin_search(self._models, batch_sources, config=config, nbest=nbest, device=self._device)
            return stragglers.run(search)

        def search_all(batches: Iterator[list[int]]) -> Iterator[tuple[int, list[Hypothesis]]]:
            stragglers = Stragglers(sizes)
            work = partial(search_batch, stragglers=stragglers)
            with torch.inference_mode():
                for batch in batches:
                    yield from self._results_of_batch(work, batch, sizes, stragglers=stragglers)
                while stragglers.sentences:
                    yield from self._results_of_batch(work, [], sizes, stragglers=stragglers)

        nbest_lists = self._share_among_threads(search_all, sizes, empty=[EMPTY_HYPOTHESIS])
        return [hypotheses[:nbest] for hypotheses in nbest_lists]

    def map_batches(
        self, work: Callable[[list[int]], list[T]], lengths: Sequence[int], *, config: DecodingConfig, empty: T
    ) -> list[T]:
        """The results of `work` for each index, in batches of similar length; `empty` if the length is 0."""
        sizes = SentenceSizes(lengths, config)

        def work_on_batch(batch: list[int]) -> dict[int, T]:
            return dict(zip(batch, work(batch), strict=True))

        def work_on_batches(batches: Iterator[list[int]]) -> Iterator[tuple[int, T]]:
            for batch in batches:
                yield from self._results_of_batch(work_on_batch, batch, sizes)

        return self._share_among_threads(work_on_batches, sizes, empty=empty)

    def _share_among_threads(
        self, work: Callable[[Iterator[list[int]]], Iterator[tuple[int, T]]], sizes: SentenceSizes, *, empty: T
    ) -> list[T]:
        """The results of `work` for each index; each thread takes one batch after another.

        The threads share the CPUs. Whole batches in parallel keep CPUs busier than parallel operations, whose threads
        wait for each other.
        """
        results = [empty for _ in sizes.lengths]
        threads = torch.get_num_threads() if self._device.type == "cpu" else 1
        remaining = deque(plan_for_threads(sizes.lengths, max_tokens=sizes.max_tokens, threads=threads))

        def batches() -> Iterator[list[int]]:
            with suppress(IndexError):  # another thread may have taken the last one
                while True:
                    yield remaining.popleft()

        def take_batches() -> None:
            try:
                for index, result in work(batches()):
                    results[index] = result
            finally:
                remaining.clear()  # after an error no thread begins another batch

        workers = min(threads, len(remaining))
        if workers <= 1:
            take_batches()
            return results
        pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,))
        try:
            for future in [pool.submit(take_batches) for _ in range(workers)]:
                future.result()
        finally:
            remaining.clear()
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)
        return results

    def _results_of_batch(
        self,
        work: Callable[[list[int]], Mapping[int, T]],
        batch: list[int],
        sizes: SentenceSizes,
        *,
        stragglers: Stragglers | None = None,
    ) -> Iterator[tuple[int, T]]:
        """The results of a batch by index; a batch that does not fit into memory is halved until its parts do.

        If memory runs out, the searches of `stragglers` are given up, and their sentences are searched again.
        """
        parts = [batch]
        while parts:
            part = parts.pop()
            if self._may_fit(part, sizes):
                num_sentences = len(part) + (len(stragglers.sentences) if stragglers else 0)
                results = _results_unless_out_of_memory(work, part, is_single=num_sentences == 1)
                if results is not None:
                    yield from results.items()
                    continue
                part = [*part, *(stragglers.drop() if stragglers else [])]
                self._shrink(part, sizes)
            middle = (len(part) + 1) // 2
            parts += [part[middle:], part[:middle]]

    def _may_fit(self, batch: list[int], sizes: SentenceSizes) -> bool:
        limit = self._max_tokens_that_fit
        return len(batch) <= 1 or limit is None or sizes.padded_tokens(batch) <= limit

    def _shrink(self, batch: list[int], sizes: SentenceSizes) -> None:
        """Take smaller batches from now on; DeviceError if this batch cannot be smaller."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if len(batch) == 1:
            remedies = ["fewer hypotheses"] if sizes.config.num_candidates > 1 else []
            remedies += ["`device: cpu`"] if self._device.type == "cuda" else []
            raise DeviceError(
                f"the memory of {self._device} does not hold a sentence of {sizes.lengths[batch[0]]} pieces with"
                f" {sizes.config.num_candidates} hypotheses",
                setting="beam" if sizes.config.samples == 0 else "samples",
                hint=f"take {', or '.join([*remedies, 'a machine with more memory'])}",
            )
        half = sizes.padded_tokens(batch) // 2
        # Another thread may have set a smaller maximum in the meantime.
        self._max_tokens_that_fit = half if self._max_tokens_that_fit is None else min(half, self._max_tokens_that_fit)
        logger.warning(
            "out of memory with %d sentences at once: batches are half as large from here on; nothing is lost",
            len(batch),
        )


@dataclass(frozen=True, slots=True)
class SentenceSizes:
    """The length of each sentence in pieces, and the settings of their search."""

    lengths: Sequence[int]
    config: DecodingConfig

    @property
    def max_tokens(self) -> int:
        """The maximum number of padded source tokens per batch; each source sentence has several hypotheses."""
        return self.config.batch_tokens // self.config.num_candidates

    def padded_tokens(self, batch: Sequence[int]) -> int:
        """The padded source tokens of a batch, with EOS."""
        return len(batch) * (max((self.lengths[index] for index in batch), default=0) + 1)


class Stragglers:
    """Searches set aside by one thread, each with few open sentences, which are continued together.

    A step for few sentences costs more per sentence than a step for many. The searches fit one batch, or there is a
    single one. Which sentences share a batch does not change their translations.
    """

    def __init__(self, sizes: SentenceSizes) -> None:
        self._sizes = sizes
        self._searches: list[ActiveSearch] = []
        # The sentences of these searches. A search is lost if memory runs out in the middle of it.
        self.sentences: list[int] = []

    def run(self, search: ActiveSearch) -> dict[int, list[Hypothesis]]:
        """Search until few sentences are open, and set the search aside.

        Returns the results of the sentences that are done, by index. They may belong to earlier searches.
        """
        search.run(down_to=int(search.num_sentences * _STRAGGLER_SHARE))
        if not search.is_joinable:
            search.run(down_to=0)
        results = search.take_results()
        earlier_sentences = self.sentences
        try:
            # To make room, the earlier searches continue until few of their sentences are open, or else to their end.
            for share in (_STRAGGLER_SHARE, 0.0):
                if self._sizes.padded_tokens([*self.sentences, *search.sentences]) > self._sizes.max_tokens:
                    results |= self._run_together(share=share)
        except BaseException:
            # `results` is lost, so the earlier sentences must be searched again.
            self.sentences = earlier_sentences
            raise
        if search.num_sentences:
            self._searches.append(search)
            self.sentences += search.sentences
        return results

    def finish(self) -> dict[int, list[Hypothesis]]:
        """Continue the searches to their end."""
        return self._run_together(share=0.0)

    def drop(self) -> list[int]:
        """Give up the searches; returns their sentences."""
        dropped, self._searches, self.sentences = self.sentences, [], []
        return dropped

    def _run_together(self, *, share: float) -> dict[int, list[Hypothesis]]:
        """Continue all searches together until at most this share of the sentences is open; returns the results."""
        if not self._searches:
            return {}
        first = self._searches[0]
        if len(self._searches) > 1:
            first.join(self._searches[1:])
            del self._searches[1:]
        first.run(down_to=int(first.num_sentences * share))
        results = first.take_results()
        self.sentences = first.sentences
        self._searches = [first] if self.sentences else []
        return results


def _results_unless_out_of_memory(
    work: Callable[[list[int]], Mapping[int, T]], batch: list[int], *, is_single: bool
) -> Mapping[int, T] | None:
    """The results of a batch; None if memory runs out, and then no exception keeps the tensors of the search."""
    try:
        return work(batch)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error, counts_vague_errors=not is_single):
            raise
        return None


def begin_search(
    models: Sequence[Transformer],
    sources: Mapping[int, SourceSentence],
    *,
    config: DecodingConfig,
    nbest: int,
    device: torch.device,
) -> ActiveSearch:
    """A search before its first step, of numbered sources that are searched at once; beam 1 is greedy search.

    The models are in evaluation mode, on `device`, and have one vocabulary. A hypothesis that reaches its sentence's
    limit is cut there and competes without EOS. Among equal scores the hypothesis that was found first is better, then
    the one with the smaller piece id.
    """
    sentences = list(sources.values())
    check_search(models, sentences, config=config, nbest=nbest)
    ensemble = Ensemble(models, sentences, min_tokens=config.min_tokens, device=device)
    longest = min(model.config.max_positions for model in models)
    limits = {
        number: max_output_tokens(source, config=config, max_positions=longest) for number, source in sources.items()
    }
    if config.samples == 0 and config.beam > 1:
        return BeamSearch(ensemble, limits=limits, config=config, nbest=nbest, device=device)
    keys = {number: source.key for number, source in sources.items()}
    return GreedyOrSamplingSearch(ensemble, limits=limits, keys=keys, config=config, device=device)


def plan_batches(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Indices of the sources in batches of similar length, longest first, without sources of length 0.

    The number of sentences of a batch times its greatest length, with EOS, is at most `max_tokens`. A longer sentence
    has a batch of its own.
    """
    order = sorted((index for index, length in enumerate(lengths) if length > 0), key=lambda index: -lengths[index])
    batches: list[list[int]] = []
    for index in order:
        # The first of a batch is its longest.
        if batches and (len(batches[-1]) + 1) * (lengths[batches[-1][0]] + 1) <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def plan_for_threads(lengths: Sequence[int], *, max_tokens: int, threads: int) -> list[list[int]]:
    """Batches as in `plan_batches`; if it is faster, smaller batches, of which each thread gets the same number.

    With equal numbers no thread waits while another one searches its last batch. But more batches need more steps in
    total.
    """
    batches = plan_batches(lengths, max_tokens=max_tokens)
    if len(batches) < 2 or threads == 1:
        return batches
    even = batches
    num_batches = math.ceil(len(batches) / threads) * threads
    low, high = 0, max_tokens
    while high - low > max(1, high * _BISECTION_PRECISION):
        middle = (low + high) // 2
        smaller = plan_batches(lengths, max_tokens=middle)
        if len(smaller) <= num_batches:
            even, high = smaller, middle
        else:
            low = middle

    def estimate_time(plan: list[list[int]]) -> int:
        costs = ((lengths[batch[0]] + 1) * (_STEP_COST + len(batch)) for batch in plan)
        return makespan(costs, workers=threads)

    return even if estimate_time(even) < _MAX_TIME_RATIO * estimate_time(batches) else batches


def makespan(costs: Iterable[int], *, workers: int) -> int:
    """The time at which the last worker ends, if each free worker takes the next batch."""
    end_times = [0] * workers
    for cost in costs:
        heapreplace(end_times, end_times[0] + cost)
    return max(end_times)
