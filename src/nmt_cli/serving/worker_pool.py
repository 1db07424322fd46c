"""The worker pool of one model: it replaces workers that die, and all workers when the model changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt_cli.artifacts.manifest import holds_model
from nmt_cli.errors import DataError, DeviceError, ModelError, NmtError, UsageError
from nmt_cli.processes import WorkerLost
from nmt_cli.serving.queue import BatchQueue, QueuedSentence
from nmt_cli.serving.request_errors import FAILED, RequestError, request_error_from
from nmt_cli.serving.server_metrics import ServerMetrics
from nmt_cli.serving.worker_model import EngineSettings
from nmt_cli.serving.worker_process import WorkerFailed, WorkerProcess

logger = logging.getLogger(__name__)

# A sentence whose workers died this often is refused.
_MAX_LOSSES = 2
_MIN_PAUSE_SECONDS = 0.1
_MAX_PAUSE_SECONDS = 30.0
_RETRY_AFTER_SECONDS = 10


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How each model is run: its workers, their engine, and the size of batches."""

    engine: EngineSettings
    workers: int
    max_batch_tokens: int | None
    max_wait_seconds: float
    max_queued_sentences: int
    batch_timeout_seconds: float
    split_pieces: int


class WorkerPool:
    """Workers with the model in a directory, on one queue.

    All workers have the same model: if a replacement finds another one on disk, `reload` loads that for all of them.
    """

    def __init__(
        self,
        queue: BatchQueue,
        settings: ModelSettings,
        metrics: ServerMetrics,
        *,
        reload: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self.queue = queue
        self.settings = settings
        self.metrics = metrics
        self._reload = reload
        self._slots: list[_PoolSlot] = []
        self._old_slots: list[_PoolSlot] = []
        self._reload_task: asyncio.Task[None] | None = None

    async def start_workers(self, model: Path, digest: str) -> list[WorkerProcess]:
        """A worker with `model` for each slot; NmtError if the model cannot be loaded or has another digest."""
        starts: list[asyncio.Task[WorkerProcess]] = []
        try:
            async with asyncio.TaskGroup() as group:  # on an error, it waits until all others are cancelled
                starts += [
                    group.create_task(WorkerProcess.start(model, self.settings.engine))
                    for _ in range(self.settings.workers)
                ]
            if any(start.result().digest != digest for start in starts):
                hint = "load it again, now that all of it is there"
                raise ModelError("the model was replaced while it was loaded", where=str(model), hint=hint)
            return [start.result() for start in starts]
        except BaseException as error:
            started = [start.result() for start in starts if not start.cancelled() and start.exception() is None]
            await asyncio.gather(*(worker.close() for worker in started))
            reason = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
            if isinstance(reason, WorkerFailed | OSError):
                hint = "memory or open files may not suffice: see the log above"
                message = f"the model's worker died while it loaded: {reason}"
                raise NmtError(message, where=str(model), hint=hint) from None
            raise reason from None

    async def replace_workers(self, model: Path, workers: Sequence[WorkerProcess]) -> None:
        """Replace the old workers by new ones at once. Returns when the old workers have finished their batches."""
        self._old_slots = self._slots
        self._slots = [_PoolSlot(self, model, worker) for worker in workers]
        await asyncio.gather(*(slot.retire() for slot in self._old_slots))

    @property
    def num_ready(self) -> int:
        """Workers that are alive."""
        return sum(slot.worker is not None for slot in self._slots)

    @property
    def refusal(self) -> RequestError | None:
        """The error if there is no worker and none could be started; else None."""
        if self.num_ready > 0 or not any(slot.has_failed for slot in self._slots):
            return None
        return RequestError(
            f"the model {self.queue.name} is not loaded now",
            hint=f"try again in {_RETRY_AFTER_SECONDS} s; the server's log says why",
            status=503,
            code="not_loaded",
            retry_after_seconds=_RETRY_AFTER_SECONDS,
        )

    async def close(self) -> None:
        """End all workers at once, also within a batch."""
        if self._reload_task is not None:
            self._reload_task.cancel()
            await asyncio.wait([self._reload_task])
        await asyncio.gather(*(slot.retire(at_once=True) for slot in (*self._old_slots, *self._slots)))
        self._slots = []

    async def reload_all(self) -> None:
        """Load the model on disk for all slots, once for all callers; NmtError if the old slots stay."""
        if self._reload_task is None or self._reload_task.done():
            self._reload_task = asyncio.create_task(self._reload())
        # The reload ends the slot that waits here, and must not be cancelled with it.
        await asyncio.shield(self._reload_task)


class _PoolSlot:
    """A slot of the pool: one worker at a time, which does batch after batch until the slot is retired."""

    def __init__(self, pool: WorkerPool, model: Path, worker: WorkerProcess) -> None:
        self._pool = pool
        self._queue, self._metrics, self._settings = pool.queue, pool.metrics, pool.settings
        self._model = model
        self._digest = worker.digest
        self.worker: WorkerProcess | None = worker  # None while a new one starts
        self.has_failed = False  # the last start of a new worker has failed
        self._retired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._answer_batches())

    async def retire(self, *, at_once: bool = False) -> None:
        """Finish the batch, if there is one and not `at_once`, and end the worker."""
        if not self._retired.done():
            self._retired.set_result(None)
        if at_once or self.worker is None:
            self._task.cancel()
        await asyncio.wait([self._task])
        if self.worker is not None:
            await self.worker.close()
            self.worker = None

    async def _answer_batches(self) -> None:
        """Answer batch after batch until the slot is retired; a worker that fails is replaced."""
        while not self._retired.done():
            if self.worker is None:
                await self._start_replacement()
                continue
            batch: list[QueuedSentence] = []
            try:
                batch = await self._next_batch(self.worker)
                if batch:
                    await self._answer_batch(batch, self.worker)
            except Exception as error:
                # An unforeseen error is logged with its traceback.
                log = logger.error if isinstance(error, WorkerFailed) else logger.exception
                log("a worker of %s is replaced: %s", self._queue.name, error)
                worker, self.worker = self.worker, None
                self._give_back_or_refuse(batch)
                await worker.close()

    async def _next_batch(self, worker: WorkerProcess) -> list[QueuedSentence]:
        """The next batch, or none if the slot is retired; WorkerFailed if the worker dies first."""
        taking = asyncio.ensure_future(self._queue.take())
        events: list[asyncio.Future[Any]] = [taking, worker.exit_code, self._retired]
        try:
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                return taking.result()  # if the worker has died too, it says so when it is asked
            if worker.exit_code.done():
                raise WorkerFailed(WorkerLost(worker.exit_code.result()))
            return []
        finally:
            taking.cancel()
            await asyncio.wait({taking})

    async def _answer_batch(self, batch: Sequence[QueuedSentence], worker: WorkerProcess) -> None:
        loop, metrics, name = asyncio.get_running_loop(), self._metrics, self._queue.name
        started = loop.time()
        sentences = [queued.sentence for queued in batch]
        timeout = self._settings.batch_timeout_seconds
        try:
            answers = await worker.ask(sentences, batch[0].task, timeout_seconds=timeout)
        except NmtError as error:
            if isinstance(error, DeviceError) and len(batch) > 1:
                self._queue.give_back(batch)  # perhaps one sentence alone needs too much memory: each goes alone now
            else:
                _refuse(batch, error)
            return
        seconds = loop.time() - started
        self._queue.learn_speed(batch, seconds=seconds)
        metrics.inference_seconds.labels(name).observe(seconds)
        metrics.tokens.labels(name, "source").inc(sum(sentence.tokens for sentence in batch))
        metrics.tokens.labels(name, "target").inc(sum(answer.get("num_pieces", 0) + 1 for answer in answers))
        for sentence, answer in zip(batch, answers, strict=True):
            if sentence.is_wanted:
                sentence.result.set_result(answer)

    def _give_back_or_refuse(self, batch: Sequence[QueuedSentence]) -> None:
        """Queue the batch of a lost worker again; a sentence that lost two workers is refused."""
        hint = "leave it out; the server's log says more"
        refused = [sentence for sentence in batch if sentence.num_losses + 1 >= _MAX_LOSSES]
        _refuse(refused, NmtError("the model died twice on this sentence", hint=hint))
        self._queue.give_back([sentence for sentence in batch if sentence.num_losses + 1 < _MAX_LOSSES])

    async def _start_replacement(self) -> None:
        """Start a new worker with the same model, again and again until one starts, after pauses that grow.

        If another model is on disk, all slots get that one, and this slot ends.
        """
        pause = 0.0
        while self.worker is None:
            if (refusal := self._pool.refusal) is not None:
                self._queue.refuse(refusal)
            await asyncio.sleep(pause)
            pause = min(max(_MIN_PAUSE_SECONDS, 2 * pause), _MAX_PAUSE_SECONDS)
            try:
                if not holds_model(self._model, self._digest):
                    logger.warning("%s is gone, or another model by now: all workers change", self._model)
                    await self._pool.reload_all()
                    continue
                worker = await WorkerProcess.start(self._model, self._settings.engine)
                if worker.digest == self._digest:
                    self.worker = worker
                else:
                    await worker.close()
            except Exception as error:
                self.has_failed = True
                # An unforeseen error is logged with its traceback.
                log = logger.error if isinstance(error, NmtError | WorkerFailed | OSError) else logger.exception
                reason = error.message if isinstance(error, NmtError) else error
                log("no new worker for %s: %s; next try in %.1f s", self._model, reason, pause)
        self.has_failed = False
        self._metrics.restarts.labels(self._queue.name).inc()
        logger.warning("a new worker serves %s", self._queue.name)


def _refuse(sentences: Sequence[QueuedSentence], error: NmtError) -> None:
    """Answer the sentences with an error: 400 if the request is wrong, else 503."""
    if isinstance(error, DataError | UsageError):
        request_error = request_error_from(error, status=400, code="invalid_request")
    else:
        request_error = request_error_from(error, status=503, code=FAILED, retry_after_seconds=1)
    for sentence in sentences:
        if sentence.is_wanted:
            sentence.result.set_exception(request_error)
