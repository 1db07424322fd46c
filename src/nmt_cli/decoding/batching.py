"""Batches of sentences of similar length: how they are planned, shared by threads, and made smaller."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from heapq import heapreplace
from itertools import chain
from threading import Barrier, Lock
from typing import TypeVar

import torch

from nmt_cli.errors import DeviceError
from nmt_cli.memory import is_out_of_memory
from nmt_cli.recipe.schema import DecodingConfig

S = TypeVar("S")
T = TypeVar("T")

logger = logging.getLogger(__name__)

# The search for a batch size by bisection ends at this share of the size.
_BISECTION_PRECISION = 1 / 64
# The cost of a step, in sentences: 19 with a beam of 4, 35 in greedy search (docs/design/cpu-search.md#batches).
_STEP_COST = 24
# After memory ran out, batches grow by this share at each call: other programs may have freed some.
_GROWTH = 1 / 64
# Smaller batches are taken if they need less than this share of the estimated time of the largest batches.
_MAX_TIME_RATIO = 0.95
# While it is held, torch's number of threads may not be the process's own.
_SETTING_THREADS = Lock()


class Batches:
    """Work on one device in batches of similar length, which become smaller for a while if memory runs out."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._max_tokens_that_fit = math.inf  # padded tokens of a batch; less after memory has run out

    def map(
        self,
        work: Callable[[list[S]], list[T]],
        items: Sequence[S],
        lengths: Sequence[int],
        *,
        config: DecodingConfig,
        empty: T,
    ) -> list[T]:
        """The result of `work`, which takes batches, for each item; `empty` for an item of length 0.

        Threads share the CPUs; each takes one batch after another. Whole batches in parallel keep CPUs busier than
        parallel operations, whose threads wait for each other.
        """
        self._max_tokens_that_fit *= 1 + _GROWTH
        with _SETTING_THREADS:
            threads = torch.get_num_threads() if self._device.type == "cpu" else 1
        # Each source sentence has several hypotheses.
        max_tokens = config.batch_tokens // config.num_candidates
        batches = plan_for_workers(lengths, max_tokens=max_tokens, workers=threads, step_cost=_STEP_COST)
        run = partial(self._run, work, items, lengths, config)
        workers = min(threads, len(batches))
        if workers <= 1:
            results = list(map(run, batches))
        else:
            all_threads = Barrier(workers + 1)
            pool = ThreadPoolExecutor(workers, initializer=_begin_thread, initargs=(threads // workers, all_threads))
            try:
                with _SETTING_THREADS:
                    futures = [pool.submit(run, batch) for batch in batches]
                    all_threads.wait()
                    torch.set_num_threads(threads)  # what torch gives to threads that use it for the first time
                    all_threads.wait()
                wait(futures, return_when=FIRST_EXCEPTION)
            except BaseException:  # a thread cannot be started, or Ctrl-C: the others wait no more
                all_threads.abort()
                raise
            finally:
                pool.shutdown(cancel_futures=True)  # after an error no thread begins another batch
            results = [future.result() for future in futures]
        by_index = dict(zip(chain(*batches), chain(*results), strict=True))
        return [by_index.get(index, empty) for index in range(len(items))]

    def _run(
        self,
        work: Callable[[list[S]], list[T]],
        items: Sequence[S],
        lengths: Sequence[int],
        config: DecodingConfig,
        batch: list[int],
    ) -> list[T]:
        """The results of a batch, given by its indices; one that does not fit into memory is halved until it does."""
        longest = max(lengths[index] for index in batch)
        num_tokens = len(batch) * (longest + 1)  # padded, with EOS
        if len(batch) == 1 or num_tokens <= self._max_tokens_that_fit:
            try:
                return work([items[index] for index in batch])
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error, counts_vague_errors=len(batch) > 1):
                    raise
            # From here on, no exception keeps the tensors of the work.
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            if len(batch) == 1:
                raise self._too_long_error(longest, config=config)
            # Another thread may have set a smaller maximum in the meantime.
            self._max_tokens_that_fit = min(num_tokens / 2, self._max_tokens_that_fit)
            logger.warning(
                "out of memory with %d sentences at once: batches are half as large for a while; nothing is lost",
                len(batch),
            )
        middle = (len(batch) + 1) // 2
        halves = (batch[:middle], batch[middle:])
        return [result for half in halves for result in self._run(work, items, lengths, config, half)]

    def _too_long_error(self, length: int, *, config: DecodingConfig) -> DeviceError:
        remedies = ["fewer hypotheses"] if config.num_candidates > 1 else []
        remedies += ["`device: cpu`"] if self._device.type == "cuda" else []
        return DeviceError(
            f"the memory of {self._device} does not hold a sentence of {length} pieces with"
            f" {config.num_candidates} hypotheses",
            setting=("samples" if config.samples else "beam") if config.num_candidates > 1 else None,
            hint=f"take {', or '.join([*remedies, 'a machine with more memory'])}",
        )


def _begin_thread(num_threads: int, all_threads: Barrier) -> None:
    """Let torch share the work of this thread among `num_threads`, while no thread of the pool works."""
    torch.set_num_threads(num_threads)
    torch.get_num_threads()  # without it, torch would set the number at the first work, to that of the process
    all_threads.wait()
    all_threads.wait()


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


def plan_for_workers(
    lengths: Sequence[int], *, max_tokens: int, workers: int, step_cost: int, min_sentences: int | None = None
) -> list[list[int]]:
    """Batches as in `plan_batches`; if it is faster, smaller batches, of which each worker gets the same number.

    With equal numbers no worker waits while another one searches its last batch. But more batches need more steps in
    total, and a step costs as much as `step_cost` sentences, beside its own. A single batch is split if the parts have
    `min_sentences` or more on average.
    """
    batches = plan_batches(lengths, max_tokens=max_tokens)
    num_batches = math.ceil(len(batches) / workers) * workers
    if len(batches) < 2:
        num_batches = 1 if min_sentences is None else min(workers, len(lengths) // min_sentences)
    if num_batches < 2 or workers == 1:
        return batches
    even = batches
    low, high = 0, max_tokens
    while high - low > max(1, high * _BISECTION_PRECISION):
        middle = (low + high) // 2
        smaller = plan_batches(lengths, max_tokens=middle)
        if len(smaller) <= num_batches:
            even, high = smaller, middle
        else:
            low = middle

    def estimate_time(plan: list[list[int]]) -> int:
        costs = ((lengths[batch[0]] + 1) * (step_cost + len(batch)) for batch in plan)
        return _makespan(costs, workers=workers)

    return even if estimate_time(even) < _MAX_TIME_RATIO * estimate_time(batches) else batches


def _makespan(costs: Iterable[int], *, workers: int) -> int:
    """The time at which the last worker ends, if each free worker takes the next batch."""
    end_times = [0] * workers
    for cost in costs:
        heapreplace(end_times, end_times[0] + cost)
    return max(end_times)
