"""The queue of a model's sentences, which forms batches across requests.

Clients take turns. A batch begins with the oldest sentence of the client whose turn it is. The sentences nearest to it
in length fill the batch, from all clients, so nobody starves and little is padded. A sentence's translation does not
depend on its batch. Sentences with terms are not batched with others, because their search takes longer.

A free worker waits a little for the batch to fill, because clients that were just answered soon ask again. Without the
wait, clients split into two groups that alternate. If few clients are there, the wait ends once all are back. Free
workers share the sentences that wait.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, assert_never

from nmt_cli.serving.request_errors import RequestError, server_busy_error
from nmt_cli.serving.server_metrics import ServerMetrics
from nmt_cli.serving.worker_model import AskedSentence, AttentionTask, NextWordsTask, SearchTask, SentenceTask

# The weight of a new measurement in the mean rate, from which Retry-After is computed.
_RATE_SMOOTHING = 0.2
# A free worker waits at most this share of the last batch's time. A sentence costs a tenth more in a batch of half the
# size (docs/design/serving.md#batches).
_MAX_WAIT_SHARE = 1 / 8
# Free workers share up to this many sentences per worker. A longer queue is not cut into batches smaller than this.
_MIN_SHARED_BATCH = 16


@dataclass(eq=False, slots=True)
class QueuedSentence:
    """A waiting sentence: its source tokens with EOS, task, client, and the future of its answer."""

    sentence: AskedSentence
    tokens: int
    task: SentenceTask
    client: str
    result: asyncio.Future[dict[str, Any]]
    queued: float = 0.0
    num_losses: int = 0

    @property
    def is_wanted(self) -> bool:
        """Whether somebody still waits for the answer."""
        return not self.result.done()

    @property
    def work(self) -> int:
        """Source tokens times hypotheses, to which the time for the answer is proportional."""
        match self.task:
            case SearchTask():
                return self.tokens * self.task.beam
            case NextWordsTask():
                return self.tokens * self.task.beam * self.task.num_words
            case AttentionTask():
                return self.tokens
            case other:
                assert_never(other)


class BatchQueue:
    """A bounded queue; batches hold at most `max_tokens` padded source tokens times beam, or one sentence."""

    def __init__(
        self, name: str, *, max_tokens: int, max_wait_seconds: float, max_sentences: int, metrics: ServerMetrics
    ) -> None:
        self.name = name
        self.max_tokens = max_tokens  # a reloaded model may change it
        self._max_wait = max_wait_seconds
        self._max_sentences = max_sentences
        self._metrics = metrics
        self._queue: list[QueuedSentence] = []
        self._arrived = asyncio.Event()
        self._take_lock = asyncio.Lock()  # workers take batches one after another
        self._seconds_per_token = 0.0
        self._last_seconds = 0.0
        self._num_free = 0  # workers that wait for a batch
        # Answered sentences whose clients have not asked again yet.
        self._num_awaited = 0
        self._num_batches = 0  # batches that workers have taken
        # By waiting client: the number of the batch at which it had its last turn, or came.
        self._turns: dict[str, int] = {}

    def submit(self, sentences: Sequence[QueuedSentence]) -> None:
        """Queue the sentences, all or none; RequestError if there is no room for them."""
        self.drop_unwanted()
        if len(self._queue) + len(sentences) > self._max_sentences:
            seconds = max(1, min(60, math.ceil(self.queued_seconds)))
            raise server_busy_error(f"{len(self._queue):,} sentences are waiting already", retry_after_seconds=seconds)
        now = asyncio.get_running_loop().time()
        for sentence in sentences:
            sentence.queued = now
        self._num_awaited = max(0, self._num_awaited - len(sentences))
        self._set_queue([*self._queue, *sentences])
        self._arrived.set()

    @property
    def queued_seconds(self) -> float:
        """Seconds that one worker needs for all queued sentences; 0 as long as no batch was full."""
        return sum(sentence.work for sentence in self._queue) * self._seconds_per_token

    def give_back(self, batch: Sequence[QueuedSentence]) -> None:
        """Put a batch whose worker was lost at the head of the queue; each of its sentences then goes alone."""
        for sentence in batch:
            sentence.num_losses += 1
        self._set_queue([*(sentence for sentence in batch if sentence.is_wanted), *self._queue])
        self._arrived.set()

    def refuse(self, error: RequestError) -> None:
        """Answer all waiting sentences with an error."""
        for sentence in self._queue:
            if sentence.is_wanted:
                sentence.result.set_exception(error)
        self._set_queue([])

    def learn_speed(self, batch: Sequence[QueuedSentence], *, seconds: float) -> None:
        """Learn from a batch how long a batch and a token take.

        Call it before the sentences are answered: a client that still waits for an answer is likely to ask again.
        """
        self._last_seconds = seconds
        self._num_awaited += sum(sentence.is_wanted for sentence in batch)
        if self._is_full(batch):  # in a smaller batch, a token takes longer than it will when many sentences wait
            measured = seconds / sum(sentence.work for sentence in batch)
            weight = _RATE_SMOOTHING if self._seconds_per_token else 1.0
            self._seconds_per_token += weight * (measured - self._seconds_per_token)

    async def take(self) -> list[QueuedSentence]:
        """The next batch, once a batch is full or the worker has waited long enough for more sentences."""
        free_since = asyncio.get_running_loop().time()
        self._num_free += 1
        try:
            async with self._take_lock:
                return self._remove_from_queue(await self._wait_for_batch(free_since))
        finally:
            self._num_free -= 1

    async def _wait_for_batch(self, free_since: float) -> list[QueuedSentence]:
        """The next batch, still in the queue; `free_since` is the time since which the worker is free."""
        loop = asyncio.get_running_loop()
        while True:
            self._arrived.clear()
            self.drop_unwanted()
            if not self._queue:
                await self._arrived.wait()
                continue
            batch = self._fill_batch()
            wait = min(self._max_wait, _MAX_WAIT_SHARE * self._last_seconds)
            remaining = max(free_since, self._queue[0].queued) + wait - loop.time()
            share = math.ceil(len(self._queue) / self._num_free)
            if remaining <= 0:
                self._num_awaited = 0
            if self._num_awaited == 0 and share <= _MIN_SHARED_BATCH:
                return batch[:share]
            if remaining <= 0 or _goes_alone(batch[0]) or self._is_full(batch):
                return batch[: max(share, _MIN_SHARED_BATCH)]
            # Not wait_for, which in Python 3.11 may swallow that a worker is retired.
            with suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await self._arrived.wait()

    def _next_in_turn(self) -> QueuedSentence:
        """The sentence that a batch begins with; sentences of a lost worker come first."""
        if self._queue[0].num_losses:
            return self._queue[0]
        return min(self._queue, key=lambda sentence: self._turns[sentence.client])

    def _fill_batch(self) -> list[QueuedSentence]:
        """The sentence whose turn it is, and the sentences nearest in length that can be searched with it."""
        first = self._next_in_turn()
        if _goes_alone(first):
            return [first]
        max_padded_tokens = self._max_padded_tokens(first.task)
        compatible = [
            sentence
            for sentence in self._queue
            if sentence.task == first.task
            and bool(sentence.sentence.terms) == bool(first.sentence.terms)
            and sentence.num_losses == 0
        ]
        # Sorting is stable: among equally near sentences, the oldest comes first.
        compatible.sort(key=lambda sentence: (sentence is not first, abs(sentence.tokens - first.tokens)))
        batch: list[QueuedSentence] = []
        longest = 0
        for sentence in compatible:
            longest = max(longest, sentence.tokens)
            if batch and longest * (len(batch) + 1) > max_padded_tokens:
                break
            batch.append(sentence)
        return batch

    def _is_full(self, batch: Sequence[QueuedSentence]) -> bool:
        """Whether the batch has no room for a further sentence of its length."""
        longest = max(sentence.tokens for sentence in batch)
        return longest * (len(batch) + 1) > self._max_padded_tokens(batch[0].task)

    def _max_padded_tokens(self, task: SentenceTask) -> int:
        return self.max_tokens // (task.beam if isinstance(task, SearchTask) else 1)

    def _remove_from_queue(self, batch: list[QueuedSentence]) -> list[QueuedSentence]:
        now = asyncio.get_running_loop().time()
        taken = {id(sentence) for sentence in batch}
        self._num_batches += 1
        self._turns[batch[0].client] = self._num_batches
        self._set_queue([sentence for sentence in self._queue if id(sentence) not in taken])
        for sentence in batch:
            self._metrics.queue_seconds.labels(self.name).observe(now - sentence.queued)
        self._metrics.batch_sentences.labels(self.name).observe(len(batch))
        self._metrics.batch_tokens.labels(self.name).observe(len(batch) * max(sentence.tokens for sentence in batch))
        return batch

    def drop_unwanted(self) -> None:
        """Drop the sentences that were cancelled."""
        if any(sentence.result.done() for sentence in self._queue):
            kept = [sentence for sentence in self._queue if sentence.is_wanted]
            self._metrics.dropped.labels(self.name).inc(len(self._queue) - len(kept))
            self._set_queue(kept)

    def _set_queue(self, sentences: list[QueuedSentence]) -> None:
        """Make these sentences the queue, and forget the turns of other clients."""
        self._queue = sentences
        self._turns = {sentence.client: self._turns.get(sentence.client, self._num_batches) for sentence in sentences}
        self._metrics.queue_sentences.labels(self.name).set(len(sentences))


def _goes_alone(sentence: QueuedSentence) -> bool:
    """Whether the sentence is a batch alone: it may have killed a worker, or it is not searched."""
    return sentence.num_losses > 0 or not isinstance(sentence.task, SearchTask)
