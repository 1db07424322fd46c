"""Sentences of any number and length, searched in batches of similar length."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from heapq import heapreplace
from itertools import chain
from typing import TypeVar

import torch

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

        def search_batch(batch: list[int]) -> list[list[Hypothesis]]:
            chosen = [sources[index] for index in batch]
            if self._cuda_search is not None and self._cuda_search.supports(chosen, config=config):
                return self._cuda_search.search(chosen, config=config, nbest=nbest)
            return search_together(self._models, chosen, config=config, nbest=nbest, device=self._device)

        lengths = [len(source.ids) + len(source.prefix) if source.ids else 0 for source in sources]
        return self.map_batches(search_batch, lengths, config=config, empty=[EMPTY_HYPOTHESIS])

    def map_batches(
        self, work: Callable[[list[int]], list[T]], lengths: Sequence[int], *, config: DecodingConfig, empty: T
    ) -> list[T]:
        """The results of `work` for each index, in batches of similar length; `empty` if the length is 0.

        Threads share the CPUs; each takes one batch after another. Whole batches in parallel keep CPUs busier than
        parallel operations, whose threads wait for each other.
        """
        threads = torch.get_num_threads() if self._device.type == "cpu" else 1
        # Each source sentence has several hypotheses.
        batches = plan_for_threads(lengths, max_tokens=config.batch_tokens // config.num_candidates, threads=threads)
        run = partial(self._run_in_parts, work, lengths=lengths, config=config)
        workers = min(threads, len(batches))
        if workers <= 1:
            results = dict(chain.from_iterable(map(run, batches)))
        else:
            pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,))
            futures = [pool.submit(run, batch) for batch in batches]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                pool.shutdown(cancel_futures=True)  # after an error no thread begins another batch
                torch.set_num_threads(threads)
            results = dict(chain.from_iterable(future.result() for future in futures))
        return [results.get(index, empty) for index in range(len(lengths))]

    def _run_in_parts(
        self, work: Callable[[list[int]], list[T]], batch: list[int], *, lengths: Sequence[int], config: DecodingConfig
    ) -> list[tuple[int, T]]:
        """The results of a batch with their indices; a batch that does not fit into memory is halved until it does."""
        results: list[tuple[int, T]] = []
        parts = [batch]
        while parts:
            part = parts.pop()
            limit = self._max_tokens_that_fit
            if len(part) == 1 or limit is None or _padded_tokens(part, lengths) <= limit:
                found = _results_unless_out_of_memory(work, part)
                if found is not None:
                    results += zip(part, found, strict=True)
                    continue
                self._shrink(part, lengths=lengths, config=config)
            middle = (len(part) + 1) // 2
            parts += [part[middle:], part[:middle]]
        return results

    def _shrink(self, batch: list[int], *, lengths: Sequence[int], config: DecodingConfig) -> None:
        """Take smaller batches from now on; DeviceError if this batch cannot be smaller."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if len(batch) == 1:
            remedies = ["fewer hypotheses"] if config.num_candidates > 1 else []
            remedies += ["`device: cpu`"] if self._device.type == "cuda" else []
            raise DeviceError(
                f"the memory of {self._device} does not hold a sentence of {lengths[batch[0]]} pieces with"
                f" {config.num_candidates} hypotheses",
                setting="beam" if config.samples == 0 else "samples",
                hint=f"take {', or '.join([*remedies, 'a machine with more memory'])}",
            )
        half = _padded_tokens(batch, lengths) // 2
        # Another thread may have set a smaller maximum in the meantime.
        self._max_tokens_that_fit = half if self._max_tokens_that_fit is None else min(half, self._max_tokens_that_fit)
        logger.warning(
            "out of memory with %d sentences at once: batches are half as large from here on; nothing is lost",
            len(batch),
        )


def _padded_tokens(batch: Sequence[int], lengths: Sequence[int]) -> int:
    """The padded source tokens of a batch, with EOS."""
    return len(batch) * (max(lengths[index] for index in batch) + 1)


def _results_unless_out_of_memory(work: Callable[[list[int]], list[T]], batch: list[int]) -> list[T] | None:
    """The results of a batch; None if memory runs out, and then no exception keeps the tensors of the search."""
    try:
        return work(batch)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error, counts_vague_errors=len(batch) > 1):
            raise
        return None


def search_together(
    models: Sequence[Transformer],
    sources: Sequence[SourceSentence],
    *,
    config: DecodingConfig,
    nbest: int,
    device: torch.device,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each source, at most `nbest`, best first; beam 1 is greedy search.

    The models are in evaluation mode, on `device`, and have one vocabulary. A hypothesis that reaches its sentence's
    limit is cut there and competes without EOS. Among equal scores the hypothesis that was found first is better, then
    the one with the smaller piece id.
    """
    longest = min(model.config.max_positions for model in models)
    limits = [max_output_tokens(source, config=config, max_positions=longest) for source in sources]
    with torch.inference_mode():
        ensemble = Ensemble(models, sources, min_tokens=config.min_tokens, device=device)
        if config.samples == 0 and config.beam > 1:
            return BeamSearch(ensemble, limits=limits, config=config, nbest=nbest, device=device).run()
        keys = [source.key for source in sources]
        found = GreedyOrSamplingSearch(ensemble, limits=limits, keys=keys, config=config, device=device).run()
    return [hypotheses[:nbest] for hypotheses in found]


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
