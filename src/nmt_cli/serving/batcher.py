"""One queue of sentences a model, from which batches are cut across requests.

Clients take turns: a batch begins with the oldest sentence of the client whose turn it is, and is filled with those
nearest to it in length, whosever they are, so that nobody starves and little is padded. What a sentence's translation
is does not depend on its batch.

A worker that is free waits a little for the batch to fill: clients that were just answered ask again, but only once the
server has written the answers and read the questions. Without that wait they would be two halves that take turns.
Where there are few they are not waited for once all are back. Workers that are free share what there is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, assert_never

from nmt_cli.serving.jobs import Attend, Job, Search, Vary
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.refusals import Refused, busy

# How much a new measurement counts in the mean rate that Retry-After is reckoned from.
_NEW_SHARE = 0.2
# Of the time that the last batch took: so much may a free worker lose by waiting. A sentence costs a tenth more in a
# batch of half the size (docs/LOG.md).
_WAITING_SHARE = 1 / 8
# Sentences for each free worker: no more than that are few. Of more, no batch is made smaller than that to be shared.
_FEW = 16


@dataclass(eq=False, slots=True)
class Sentence:
    """A sentence that waits: text, source tokens with EOS, what is to be done, for whom, and the answer to be."""

    text: str
    tokens: int
    job: Job
    client: str
    result: asyncio.Future[dict[str, Any]]
    queued: float = 0.0
    num_losses: int = field(default=0)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody still waits for the answer."""
        return not self.result.done()

    @property
    def work(self) -> int:
        """Source tokens times hypotheses, which is what its answer takes time for."""
        match self.job:
            case Search():
                return self.tokens * self.job.beam
            case Vary():
                return self.tokens * self.job.beam * self.job.number
            case Attend():
                return self.tokens
            case other:
                assert_never(other)


class Batcher:
    """A bounded queue; batches hold at most `max_tokens` padded source tokens times beam, or one sentence."""

    def __init__(
        self, name: str, *, max_tokens: int, max_wait_seconds: float, max_sentences: int, metrics: Metrics
    ) -> None:
        self.name = name
        # A model that comes in the place of another may have numbers of its own.
        self.max_tokens = max_tokens
        # Shorter sentences are in batches of their own, since the workers do not search them with others.
        self.narrow = 0
        self._max_wait = max_wait_seconds
        self._max_sentences = max_sentences
        self._metrics = metrics
        self._queue: list[Sentence] = []
        self._arrived = asyncio.Event()
        self._turn = asyncio.Lock()
        self._seconds_per_token = 0.0
        self._last_seconds = 0.0
        self._num_free = 0  # workers that take a batch
        self._num_awaited = 0  # sentences that were answered, and for which none have come yet
        self._num_taken = 0  # batches
        self._turns: dict[str, int] = {}  # the last batch when each client that waits had its turn, or came

    def submit(self, sentences: Sequence[Sentence]) -> None:
        """Queue the sentences, all or none; Refused where there is no room for them."""
        self._drop_unwanted()
        if len(self._queue) + len(sentences) > self._max_sentences:
            seconds = max(1, min(60, math.ceil(self.queued_seconds)))
            raise busy(f"{len(self._queue):,} sentences are waiting already", retry_after_seconds=seconds)
        now = asyncio.get_running_loop().time()
        for sentence in sentences:
            sentence.queued = now
            self._turns.setdefault(sentence.client, self._num_taken)
        self._queue += sentences
        self._num_awaited = max(0, self._num_awaited - len(sentences))
        self._changed()

    @property
    def queued_seconds(self) -> float:
        """How long one worker takes for all that wait; 0 as long as no batch was full."""
        return sum(one.work for one in self._queue if one.is_wanted) * self._seconds_per_token

    def give_back(self, batch: Sequence[Sentence]) -> None:
        """Put a batch whose worker was lost at the head of the queue; each of its sentences then goes alone."""
        for sentence in batch:
            sentence.num_losses += 1
        self._queue[:0] = [sentence for sentence in batch if sentence.is_wanted]
        for sentence in batch:
            self._turns.setdefault(sentence.client, self._num_taken)
        self._changed()

    def refuse(self, problem: Refused) -> None:
        """Answer all that wait with an error."""
        for sentence in self._queue:
            if sentence.is_wanted:
                sentence.result.set_exception(problem)
        self._keep([])

    def done(self, batch: Sequence[Sentence], *, seconds: float) -> None:
        """Learn from a batch how long batches take, and each of their tokens.

        For a batch whose sentences have no answers yet: a client that still wants one is likely to ask again.
        """
        self._last_seconds = seconds
        self._num_awaited += sum(one.is_wanted for one in batch)
        if self._is_full(batch):  # in smaller ones each takes longer than it will when many wait
            each = seconds / sum(one.work for one in batch)
            share = _NEW_SHARE if self._seconds_per_token else 1.0
            self._seconds_per_token += share * (each - self._seconds_per_token)

    async def take(self) -> list[Sentence]:
        """The next batch: once there is a full one, or others have been waited for long enough."""
        free = asyncio.get_running_loop().time()
        self._num_free += 1
        try:
            async with self._turn:
                return self._remove(await self._gather(free))
        finally:
            self._num_free -= 1

    async def _gather(self, free: float) -> list[Sentence]:
        loop = asyncio.get_running_loop()
        while True:
            self._arrived.clear()
            self._drop_unwanted()
            if not self._queue:
                await self._arrived.wait()
                continue
            batch = self._cut()
            wait = min(self._max_wait, _WAITING_SHARE * self._last_seconds)
            remaining = max(free, self._queue[0].queued) + wait - loop.time()
            share = -(-len(self._queue) // self._num_free)
            if remaining <= 0:
                self._num_awaited = 0
            if self._num_awaited == 0 and share <= _FEW:
                return batch[:share]
            if remaining <= 0 or _goes_alone(batch[0]) or self._is_full(batch):
                return batch[: max(share, _FEW)]
            # Not wait_for, which in Python 3.11 may swallow that a worker is retired.
            with suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await self._arrived.wait()

    def _first(self) -> Sentence:
        """The sentence that a batch begins with; those of a lost worker come before all."""
        if self._queue[0].num_losses:
            return self._queue[0]
        return min(self._queue, key=lambda one: self._turns[one.client])

    def _cut(self) -> list[Sentence]:
        first = self._first()
        if _goes_alone(first):
            return [first]
        budget = self._budget(first.job)
        is_narrow = first.tokens < self.narrow
        alike = [
            one
            for one in self._queue
            if one.job == first.job and not one.num_losses and (one.tokens < self.narrow) == is_narrow
        ]
        # Sorting is stable: of those equally near, the one that came first.
        alike.sort(key=lambda one: (one is not first, abs(one.tokens - first.tokens)))
        batch: list[Sentence] = []
        longest = 0
        for sentence in alike:
            longest = max(longest, sentence.tokens)
            if batch and longest * (len(batch) + 1) > budget:
                break
            batch.append(sentence)
        return batch

    def _is_full(self, batch: Sequence[Sentence]) -> bool:
        longest = max(one.tokens for one in batch)
        return longest * (len(batch) + 1) > self._budget(batch[0].job)

    def _budget(self, job: Job) -> int:
        return self.max_tokens // (job.beam if isinstance(job, Search) else 1)

    def _remove(self, batch: Sequence[Sentence]) -> list[Sentence]:
        now = asyncio.get_running_loop().time()
        taken = {id(sentence) for sentence in batch}
        self._num_taken += 1
        self._turns[batch[0].client] = self._num_taken
        self._keep([sentence for sentence in self._queue if id(sentence) not in taken])
        for sentence in batch:
            self._metrics.queue_seconds.labels(self.name).observe(now - sentence.queued)
        self._metrics.batch_sentences.labels(self.name).observe(len(batch))
        self._metrics.batch_tokens.labels(self.name).observe(len(batch) * max(one.tokens for one in batch))
        return list(batch)

    def _drop_unwanted(self) -> None:
        kept = [sentence for sentence in self._queue if sentence.is_wanted]
        if len(kept) < len(self._queue):
            self._metrics.dropped.labels(self.name).inc(len(self._queue) - len(kept))
            self._keep(kept)

    def _keep(self, sentences: list[Sentence]) -> None:
        """Let these wait on, and no turns but those of their clients."""
        self._queue = sentences
        self._turns = {one.client: self._turns[one.client] for one in sentences}
        self._metrics.queue_sentences.labels(self.name).set(len(sentences))

    def _changed(self) -> None:
        self._metrics.queue_sentences.labels(self.name).set(len(self._queue))
        self._arrived.set()


def _goes_alone(sentence: Sentence) -> bool:
    return sentence.num_losses > 0 or not isinstance(sentence.job, Search)
