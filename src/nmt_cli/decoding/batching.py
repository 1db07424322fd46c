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
from nmt_cli.decoding.search.hypotheses import Hypothesis, SourceSentence, max_output_tokens
from nmt_cli.errors import DeviceError
from nmt_cli.memory import is_out_of_memory
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig

T = TypeVar("T")

logger = logging.getLogger(__name__)

# The bisection for a batch size ends at this share of the largest size.
_PRECISION = 1 / 64
# The cost of a step, in sentences: 19 with a beam of 4, 35 in greedy search (docs/design/cpu-search.md#batches).
_STEP_COST = 24
# Smaller batches are taken if they need less than this share of the time of the largest batches, by this estimate.
_MAX_TIME_RATIO = 0.95
_EMPTY = Hypothesis([], 0.0, 0.0)
# A search is set aside when at most this share of its sentences is left.
_STRAGGLERS = 1 / 4


def search_batches(
    model: Transformer,
    rows: Sequence[Sequence[int]],
    *,
    config: DecodingConfig,
    nbest: int,
    device: torch.device,
    cuda_search: CudaSearch | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each source, in input order; rows are pieces without EOS.

    `cuda_search`, of the same model, searches the batches that it supports. A row without pieces only has the empty
    hypothesis. DeviceError if memory does not even suffice for a single sentence.
    """
    sources = [SourceSentence(row, key=str(number)) for number, row in enumerate(rows)]
    return BatchedSearch([model], device=device, cuda_search=cuda_search).search(sources, config=config, nbest=nbest)


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
            if not batch:  # there are no more
                return stragglers.finish()
            chosen = {number: sources[number] for number in batch}
            if self._cuda_search is not None and self._cuda_search.supports(list(chosen.values()), config=config):
                found = self._cuda_search.search(list(chosen.values()), config=config, nbest=nbest)
                return dict(zip(batch, found, strict=True))
            return stragglers.run(begin_search(self._models, chosen, config=config, nbest=nbest, device=self._device))

        def search_in_turn(batches: Iterator[list[int]]) -> Iterator[tuple[int, list[Hypothesis]]]:
            stragglers = Stragglers(sizes)
            work = partial(search_batch, stragglers=stragglers)
            with torch.inference_mode():
                for batch in batches:
                    yield from self._results(work, batch, sizes, stragglers=stragglers)
                while stragglers.numbers:
                    yield from self._results(work, [], sizes, stragglers=stragglers)

        found = self._share_among_threads(search_in_turn, sizes, empty=[_EMPTY])
        return [ranked[:nbest] for ranked in found]

    def map(
        self, work: Callable[[list[int]], list[T]], lengths: Sequence[int], *, config: DecodingConfig, empty: T
    ) -> list[T]:
        """The results of `work` for each index, in batches of similar length; `empty` if the length is 0."""
        sizes = SentenceSizes(lengths, config)

        def work_on_batch(batch: list[int]) -> dict[int, T]:
            return dict(zip(batch, work(batch), strict=True))

        def work_in_turn(batches: Iterator[list[int]]) -> Iterator[tuple[int, T]]:
            for batch in batches:
                yield from self._results(work_on_batch, batch, sizes)

        return self._share_among_threads(work_in_turn, sizes, empty=empty)

    def _share_among_threads(
        self, work: Callable[[Iterator[list[int]]], Iterator[tuple[int, T]]], sizes: SentenceSizes, *, empty: T
    ) -> list[T]:
        """The results of `work` for each index; each thread takes one batch after another.

        The threads share the CPUs. Whole batches in parallel keep CPUs busier than parallel operations, whose threads
        wait for each other.
        """
        found = [empty for _ in sizes.lengths]
        threads = torch.get_num_threads() if self._device.type == "cpu" else 1
        waiting = deque(plan_for_threads(sizes.lengths, max_tokens=sizes.max_tokens, threads=threads))

        def batches() -> Iterator[list[int]]:
            with suppress(IndexError):  # another thread may have taken the last one
                while True:
                    yield waiting.popleft()

        def take_batches() -> None:
            try:
                for index, result in work(batches()):
                    found[index] = result
            finally:
                waiting.clear()  # after an error no thread begins another batch

        workers = min(threads, len(waiting))
        if workers <= 1:
            take_batches()
            return found
        pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,))
        try:
            for running in [pool.submit(take_batches) for _ in range(workers)]:
                running.result()
        finally:
            waiting.clear()
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)
        return found

    def _results(
        self,
        work: Callable[[list[int]], Mapping[int, T]],
        batch: list[int],
        sizes: SentenceSizes,
        *,
        stragglers: Stragglers | None = None,
    ) -> Iterator[tuple[int, T]]:
        """The results of a batch; if memory does not hold it, it is halved until memory does.

        The sentences of `stragglers` are then searched again, because their searches are given up.
        """
        parts = [batch]
        while parts:
            part = parts.pop()
            if self._may_fit(part, sizes):
                is_one = len(part) + len(stragglers.numbers if stragglers else []) == 1
                results = None
                try:
                    results = work(part)
                except (RuntimeError, MemoryError) as problem:
                    if not is_out_of_memory(problem, must_name_memory=is_one):
                        raise
                if results is not None:
                    yield from results.items()
                    continue
                # This is outside of the handler, in which the exception still holds the tensors of the search.
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
            raise DeviceError(
                f"the memory of {self._device} does not hold a sentence of {sizes.lengths[batch[0]]} pieces with"
                f" {sizes.config.num_candidates} hypotheses",
                setting="beam" if sizes.config.samples == 0 else "samples",
                hint="take fewer hypotheses, `device: cpu`, or a machine with more memory",
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
    """The lengths of all sentences in pieces, by number, and the settings of their search."""

    lengths: Sequence[int]
    config: DecodingConfig

    @property
    def max_tokens(self) -> int:
        """The padded source tokens of a batch at most; each source sentence has several hypotheses."""
        return self.config.batch_tokens // self.config.num_candidates

    def padded_tokens(self, batch: Sequence[int]) -> int:
        """The padded source tokens of a batch, with EOS."""
        return len(batch) * (max((self.lengths[number] for number in batch), default=0) + 1)


class Stragglers:
    """Searches set aside by one thread, each with few open sentences, which are continued together.

    A step for few sentences costs more per sentence than a step for many. The searches fit one batch, or there is a
    single one. Which sentences share a batch does not change their translations.
    """

    def __init__(self, sizes: SentenceSizes) -> None:
        self._sizes = sizes
        self._searches: list[ActiveSearch] = []
        # The sentences of these searches, which are lost if memory runs out in the middle of a search.
        self.numbers: list[int] = []

    def run(self, search: ActiveSearch) -> dict[int, list[Hypothesis]]:
        """Search until few sentences are open, and set the search aside.

        Returns the results of all sentences that are not set aside, and of some earlier ones, by number.
        """
        search.run(down_to=int(search.num_sentences * _STRAGGLERS))
        if not search.is_joinable:
            search.run(down_to=0)
        found = search.read()
        before = self.numbers
        try:
            for share in (_STRAGGLERS, 0.0):
                if self._sizes.padded_tokens([*self.numbers, *search.sentences]) > self._sizes.max_tokens:
                    found |= self._run_together(share=share)
        except BaseException:
            # The results of earlier sentences are lost with `found`.
            self.numbers = before
            raise
        if search.num_sentences:
            self._searches.append(search)
            self.numbers += search.sentences
        return found

    def finish(self) -> dict[int, list[Hypothesis]]:
        """Continue the searches to their end."""
        return self._run_together(share=0.0)

    def drop(self) -> list[int]:
        """Give up the searches; returns the numbers of their sentences."""
        numbers, self._searches, self.numbers = self.numbers, [], []
        return numbers

    def _run_together(self, *, share: float) -> dict[int, list[Hypothesis]]:
        """Continue all searches together until at most this share of the sentences is open; returns the results."""
        if not self._searches:
            return {}
        first = self._searches[0]
        if len(self._searches) > 1:
            first.join(self._searches[1:])
            del self._searches[1:]
        first.run(down_to=int(first.num_sentences * share))
        found = first.read()
        self.numbers = first.sentences
        self._searches = [first] if self.numbers else []
        return found


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
    chosen = list(sources.values())
    check_search(models, chosen, config=config, nbest=nbest)
    ensemble = Ensemble(models, chosen, min_tokens=config.min_tokens, device=device)
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
    """Batches as in `plan_batches`, or smaller ones, the same number for each of `threads`, if that is faster.

    Equal numbers avoid that one thread has another batch to search while the others wait. But more batches need more
    steps in total.
    """
    batches = plan_batches(lengths, max_tokens=max_tokens)
    if len(batches) < 2 or threads == 1:
        return batches
    even = batches
    num_batches = math.ceil(len(batches) / threads) * threads
    low, high = 0, max_tokens
    while high - low > max(1, high * _PRECISION):
        middle = (low + high) // 2
        smaller = plan_batches(lengths, max_tokens=middle)
        if len(smaller) <= num_batches:
            even, high = smaller, middle
        else:
            low = middle
    before, after = (
        makespan(((lengths[batch[0]] + 1) * (_STEP_COST + len(batch)) for batch in plan), workers=threads)
        for plan in (batches, even)
    )
    return even if after < _MAX_TIME_RATIO * before else batches


def makespan(costs: Iterable[int], *, workers: int) -> int:
    """The time at which the last worker ends, if each free worker takes the next batch."""
    ends = [0] * workers
    for cost in costs:
        heapreplace(ends, ends[0] + cost)
    return max(ends)
