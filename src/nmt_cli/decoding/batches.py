"""Sources of any number and length, searched in batches of similar length."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from heapq import heapreplace
from typing import TypeVar

import torch

from nmt_cli.decoding.fixed_beam import FixedBeam
from nmt_cli.decoding.hypotheses import Hypothesis
from nmt_cli.decoding.search import Source, begin
from nmt_cli.decoding.tails import Tails
from nmt_cli.devices import is_out_of_memory
from nmt_cli.errors import DeviceError
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig

T = TypeVar("T")

logger = logging.getLogger(__name__)

# Batches that threads share are of the same size to within such a share of the largest.
_SHARES = 64
# What a step takes beside the sentences in it, in sentences (docs/LOG.md: 19 with a beam of 4, 35 in greedy search).
_STEP_COST = 24
# Others than the largest are taken where the end comes so much earlier by this reckoning.
_GAIN = 0.95
_NOTHING = Hypothesis([], 0.0, 0.0)


def search_batches(
    model: Transformer,
    rows: Sequence[Sequence[int]],
    *,
    config: DecodingConfig,
    nbest: int,
    device: torch.device,
    fixed: FixedBeam | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each source, in input order, as `search` finds them; rows are pieces without EOS.

    `fixed`, of the same model, searches the batches that it takes. A row without pieces is not searched: its only
    hypothesis is the empty one. DeviceError where memory does not even suffice for a sentence by itself.
    """
    sources = [Source(row, key=str(number)) for number, row in enumerate(rows)]
    return Batches([model], device=device, fixed=fixed).search(sources, config=config, nbest=nbest)


class Batches:
    """Searches by models on one device; where memory does not suffice, batches are smaller from then on.

    `fixed` does what it takes of them, by the same models on the same device.
    """

    def __init__(self, models: Sequence[Transformer], *, device: torch.device, fixed: FixedBeam | None) -> None:
        self._models = models
        self._device = device
        self._fixed = fixed
        self._most_tokens: int | None = None

    def search(self, sources: Sequence[Source], *, config: DecodingConfig, nbest: int) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, in input order; of one without pieces the empty one."""
        lengths = [len(source.row) + len(source.prefix) if source.row else 0 for source in sources]
        most_tokens = config.batch_tokens // config.num_candidates

        def search_some(planned: Iterator[list[int]]) -> Iterator[tuple[int, list[Hypothesis]]]:
            tails = Tails(lengths, max_tokens=most_tokens)

            def search_batch(batch: list[int]) -> dict[int, list[Hypothesis]]:
                chosen = {number: sources[number] for number in batch}
                if self._fixed is not None and self._fixed.takes(list(chosen.values()), config=config):
                    found = self._fixed.search(list(chosen.values()), config=config, nbest=nbest)
                    return dict(zip(batch, found, strict=True))
                return tails.run(begin(self._models, chosen, config=config, nbest=nbest, device=self._device))

            with torch.inference_mode():
                for batch in planned:
                    yield from self._results(search_batch, batch, lengths, config=config, aside=tails)
                while tails.numbers:
                    found = _unless_full(tails.finish, is_one=len(tails.numbers) == 1)
                    if found is not None:
                        yield from found.items()
                        continue
                    again = tails.drop()
                    self._shrink(again, lengths, config=config)
                    yield from self._results(search_batch, again, lengths, config=config, aside=tails)

        found = self._share(search_some, lengths, config=config, otherwise=[_NOTHING])
        return [ranked[:nbest] for ranked in found]

    def map(
        self, work: Callable[[list[int]], list[T]], lengths: Sequence[int], *, config: DecodingConfig, otherwise: T
    ) -> list[T]:
        """What `work` makes of each index, in batches of similar length; `otherwise` where the length is 0."""

        def work_on(batch: list[int]) -> dict[int, T]:
            return dict(zip(batch, work(batch), strict=True))

        def work_on_some(planned: Iterator[list[int]]) -> Iterator[tuple[int, T]]:
            for batch in planned:
                yield from self._results(work_on, batch, lengths, config=config)

        return self._share(work_on_some, lengths, config=config, otherwise=otherwise)

    def _share(
        self,
        work: Callable[[Iterator[list[int]]], Iterator[tuple[int, T]]],
        lengths: Sequence[int],
        *,
        config: DecodingConfig,
        otherwise: T,
    ) -> list[T]:
        """What `work` makes of each index, by as many threads as there are, each of which takes batch after batch."""
        found = [otherwise for _ in lengths]
        threads = torch.get_num_threads() if self._device.type == "cpu" else 1
        planned = plan_shared(lengths, max_tokens=config.batch_tokens // config.num_candidates, threads=threads)
        waiting = deque(planned)

        def work_on(_: int) -> None:
            try:
                for index, result in work(_until_empty(waiting)):
                    found[index] = result
            finally:
                waiting.clear()  # after an error nobody begins another batch

        with _threads(min(threads, len(planned))) as in_threads:
            try:
                in_threads(work_on)
            finally:
                waiting.clear()
        return found

    def _results(
        self,
        work: Callable[[list[int]], Mapping[int, T]],
        planned: list[int],
        lengths: Sequence[int],
        *,
        config: DecodingConfig,
        aside: Tails | None = None,
    ) -> Iterator[tuple[int, T]]:
        """The results of a batch, of which each half comes by itself where memory does not hold the whole.

        So do those that are `aside`, which are given up then.
        """
        waiting = [planned]
        while waiting:
            batch = waiting.pop()
            results = None
            if self._fits(batch, lengths):
                results = _unless_full(partial(work, batch), is_one=len(batch) == 1 and not (aside and aside.numbers))
                if results is None:
                    batch = [*batch, *(aside.drop() if aside else [])]
                    self._shrink(batch, lengths, config=config)
            if results is None:
                middle = (len(batch) + 1) // 2
                waiting += [batch[middle:], batch[:middle]]
                continue
            yield from results.items()

    def _fits(self, batch: list[int], lengths: Sequence[int]) -> bool:
        return len(batch) == 1 or self._most_tokens is None or _tokens(batch, lengths) <= self._most_tokens

    def _shrink(self, batch: list[int], lengths: Sequence[int], *, config: DecodingConfig) -> None:
        """Take smaller batches from now on; DeviceError where this one cannot be smaller."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if len(batch) == 1:
            raise DeviceError(
                f"the memory of {self._device} does not hold a sentence of {lengths[batch[0]]} pieces with"
                f" {config.num_candidates} hypotheses",
                where="--beam" if config.samples == 0 else "--samples",
                hint="take fewer hypotheses, --device cpu, or a machine with more memory",
            )
        half = _tokens(batch, lengths) // 2
        # Another thread may have found less room meanwhile.
        self._most_tokens = half if self._most_tokens is None else min(half, self._most_tokens)
        logger.warning(
            "out of memory with %d sentences at once: batches are half as large from here on; nothing is lost",
            len(batch),
        )


def plan_batches(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Indices of the sources in batches of similar length, the longest first; sources without pieces are left out.

    A batch's sentences times the longest of them, EOS counted, are at most `max_tokens`; a sentence beyond is alone.
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


def plan_shared(lengths: Sequence[int], *, max_tokens: int, threads: int) -> list[list[int]]:
    """Batches as of `plan_batches`; or more of like cost, as many for each of `threads`, where that is faster.

    Else the last thread may have a batch more to do than the others. More batches have more steps in all.
    """
    planned = plan_batches(lengths, max_tokens=max_tokens)
    if len(planned) < 2 or threads == 1:
        return planned
    alike = planned
    number = -(-len(planned) // threads) * threads
    low, high = 0, max_tokens
    while high - low > max(1, high // _SHARES):
        middle = (low + high) // 2
        smaller = plan_batches(lengths, max_tokens=middle)
        if len(smaller) <= number:
            alike, high = smaller, middle
        else:
            low = middle
    before, after = (
        last_end(((lengths[batch[0]] + 1) * (_STEP_COST + len(batch)) for batch in batches), workers=threads)
        for batches in (planned, alike)
    )
    return alike if after < _GAIN * before else planned


def last_end(costs: Iterable[int], *, workers: int) -> int:
    """When the last of the workers has nothing left to do, where each that is free takes the next batch."""
    ends = [0] * workers
    for cost in costs:
        heapreplace(ends, ends[0] + cost)
    return max(ends)


@contextmanager
def _threads(number: int) -> Iterator[Callable[[Callable[[int], None]], None]]:
    """Has work done by `number` threads, whose operations take their share of the CPUs.

    Whole batches side by side keep CPUs busier than the threads of each operation, which wait for each other.
    """
    if number <= 1:
        yield lambda work: work(0)
        return
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(number, initializer=torch.set_num_threads, initargs=(before // number,))
    try:
        yield lambda work: _exhaust(pool.map(work, range(number)))
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


def _tokens(batch: Sequence[int], lengths: Sequence[int]) -> int:
    return len(batch) * (max(lengths[index] for index in batch) + 1)


def _unless_full(work: Callable[[], T], *, is_one: bool) -> T | None:
    """What `work` gives; None where memory does not suffice. `is_one`: no smaller work can be asked for."""
    try:
        return work()
    except (RuntimeError, MemoryError) as problem:
        if not is_out_of_memory(problem, is_told=is_one):
            raise
    # Out of the handler: until its end the exception holds the tensors of the search.
    return None


def _until_empty(waiting: deque[list[int]]) -> Iterator[list[int]]:
    """What waits, as long as there is something: several threads may take from it."""
    with suppress(IndexError):
        while True:
            yield waiting.popleft()


def _exhaust(results: Iterator[None]) -> None:
    for _ in results:
        pass
