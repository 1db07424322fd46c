"""The worker pool of one model: it replaces workers that die, and all workers when the model changes."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import Any

from nmt_cli.artifacts.manifest import holds_model
from nmt_cli.errors import DataError, DeviceError, ModelError, NmtError, UsageError
from nmt_cli.serving.errors import FAILED, RequestError, request_error_from
from nmt_cli.serving.metrics import ServerMetrics
from nmt_cli.serving.queue import BatchQueue, QueuedSentence
from nmt_cli.serving.worker_model import EngineSettings
from nmt_cli.serving.worker_process import WorkerFailed, WorkerProcess

logger = logging.getLogger(__name__)

# A sentence whose workers died this often is refused.
_MAX_LOSSES = 2
_MIN_PAUSE_SECONDS = 0.1
_MAX_PAUSE_SECONDS = 10.0
# If another model is on disk, each try may start workers for all slots.
_MAX_RELOAD_PAUSE_SECONDS = 300.0
# SIGHUP may load another model before the next try.
_MAX_RETRY_AFTER_SECONDS = 60


class WorkerPool:
    """`size` workers with the model in a directory, on one queue.

    All workers have the same model: if a replacement finds another one on disk, `reload` loads that for all of them.
    """

    def __init__(
        self,
        queue: BatchQueue,
        *,
        size: int,
        engine: EngineSettings,
        timeout_seconds: float,
        metrics: ServerMetrics,
        reload: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._queue = queue
        self._size = size
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self._metrics = metrics
        self._reload = reload
        self._slots: list[_PoolSlot] = []
        self._reload_task: asyncio.Task[None] | None = None
        self._retiring: asyncio.Future[list[None]] | None = None
        self._is_closed = False

    async def start_workers(self, model: Path, digest: str) -> list[WorkerProcess]:
        """A worker with `model` for each slot; NmtError if the model cannot be loaded or has another digest."""
        starts = [asyncio.ensure_future(WorkerProcess.start(model, self._engine)) for _ in range(self._size)]
        try:
            workers = await asyncio.gather(*starts)
            if any(worker.digest != digest for worker in workers):
                hint = "load it again, now that all of it is there"
                raise ModelError("the model was replaced while it was loaded", where=str(model), hint=hint)
            if self._is_closed:
                raise asyncio.CancelledError
            return workers
        except BaseException as error:
            ending = asyncio.ensure_future(_end(starts))
            while not ending.done():  # the caller may be cancelled once more, but not the end of workers
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(ending)
            if isinstance(error, WorkerFailed | OSError):
                hint = "memory, open files or space for temporary files may not suffice: see the log above"
                message = f"the model's worker died while it loaded: {error}"
                family = UsageError if isinstance(error, FileNotFoundError) else NmtError  # there is no place for files
                raise family(message, where=str(model), hint=hint) from None
            raise

    async def replace_workers(self, model: Path, workers: Sequence[WorkerProcess]) -> None:
        """Replace the old workers by new ones at once. Returns when the old workers have finished their batches."""
        self._queue.min_wide_tokens = workers[0].min_wide_tokens
        old_slots = self._slots
        self._slots = [_PoolSlot(self, model, worker) for worker in workers]
        # The caller may be cancelled, but not the batches of the old workers.
        self._retiring = asyncio.gather(*(slot.retire() for slot in old_slots))
        await asyncio.shield(self._retiring)

    @property
    def num_ready(self) -> int:
        """Workers that are alive."""
        return sum(slot.is_alive for slot in self._slots)

    @property
    def num_answering(self) -> int:
        """Workers that are alive and not late with their batch."""
        return sum(slot.is_alive and not slot.is_late for slot in self._slots)

    @property
    def refusal(self) -> RequestError | None:
        """The error if there is no worker and none could be started; else None."""
        if self.num_ready > 0 or not any(slot.state is _SlotState.FAILED for slot in self._slots):
            return None
        seconds = min(_MAX_RETRY_AFTER_SECONDS, max(1, math.ceil(min(slot.retry_seconds for slot in self._slots))))
        return RequestError(
            f"the model {self._queue.name} is not loaded now",
            hint=f"try again in {seconds} s; the server's log says why",
            status=503,
            code="not_loaded",
            retry_after_seconds=seconds,
        )

    async def close(self) -> None:
        """End all workers at once, also within a batch. Workers of an older model finish their batch first."""
        self._is_closed = True
        if self._reload_task is not None:
            self._reload_task.cancel()
            await asyncio.gather(self._reload_task, return_exceptions=True)
        if self._retiring is not None:
            await self._retiring
        await asyncio.gather(*(slot.retire(at_once=True) for slot in self._slots))
        self._slots = []

    async def reload_all(self) -> None:
        """Load the model on disk for all slots, once for all callers; NmtError if the old slots stay."""
        if self._reload_task is None or self._reload_task.done():
            self._reload_task = asyncio.create_task(self._reload())
        # The reload ends the slot that waits here, and must not be cancelled with it.
        await asyncio.shield(self._reload_task)


class _SlotState(Enum):
    WAITING = auto()  # the worker waits for a batch
    ANSWERING = auto()  # the worker has a batch
    CLOSING = auto()  # the worker is dead, and its files are removed
    STARTING = auto()  # there is no worker: a new one starts
    FAILED = auto()  # there is no worker: no new one has started, and the slot tries again


async def _end(starts: Sequence[asyncio.Task[WorkerProcess]]) -> None:
    """End workers that start or have started."""
    for start in starts:
        if not start.cancelling():  # else a second cancellation would interrupt the end of its worker
            start.cancel()
    outcomes = await asyncio.gather(*starts, return_exceptions=True)
    await asyncio.gather(*(outcome.close() for outcome in outcomes if isinstance(outcome, WorkerProcess)))


class _PoolSlot:
    """A slot of the pool: one worker at a time, which does batch after batch until the slot is retired."""

    def __init__(self, pool: WorkerPool, model: Path, worker: WorkerProcess) -> None:
        self._pool = pool
        self._queue, self._metrics = pool._queue, pool._metrics
        self._model = model
        self._digest = worker.digest
        self.worker: WorkerProcess | None = worker
        self.state = _SlotState.WAITING
        self._answering_since = 0.0
        self._is_retired = False
        self.retry_seconds = 0.0  # seconds before the next start
        self._task = asyncio.ensure_future(self._answer_batches())

    @property
    def is_alive(self) -> bool:
        """Whether the worker lives, as far as the slot knows."""
        return self.state in (_SlotState.WAITING, _SlotState.ANSWERING)

    @property
    def is_late(self) -> bool:
        """Whether the worker may hang: half of the timeout is over."""
        if self.state is not _SlotState.ANSWERING:
            return False
        return asyncio.get_running_loop().time() - self._answering_since > self._pool._timeout_seconds / 2

    async def retire(self, *, at_once: bool = False) -> None:
        """Finish the batch, if there is one and not `at_once`, and end the worker."""
        self._is_retired = True
        if at_once or self.state not in (_SlotState.ANSWERING, _SlotState.CLOSING):
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self.worker is not None:
            await self.worker.close()

    async def _answer_batches(self) -> None:
        """Answer batch after batch until the slot is retired; a worker that fails is replaced."""
        while not self._is_retired:
            if self.worker is None:
                await self._start_replacement()
                continue
            batch: list[QueuedSentence] = []
            try:
                batch = await self._next_batch(self.worker)
                self.retry_seconds = 0.0
                await self._answer_batch(batch, self.worker)
            except WorkerFailed as error:
                logger.error("a worker of %s is replaced: %s", self._queue.name, error)
                await self._close_worker(self.worker)
                self._give_back_or_refuse(batch)
            except Exception:
                logger.exception("an unexpected error with a batch of %s; its worker is replaced", self._queue.name)
                hint = "leave the text out; the server's log says more"
                _refuse(batch, NmtError("the server raised an unexpected error with this text", hint=hint))
                # Its next answer may belong to another batch.
                self.worker.kill()
                await self._close_worker(self.worker)

    async def _next_batch(self, worker: WorkerProcess) -> list[QueuedSentence]:
        """The next batch; WorkerFailed if the worker dies first."""
        self.state = _SlotState.WAITING
        taking, dying = asyncio.ensure_future(self._queue.take()), asyncio.ensure_future(worker.ended())
        try:
            try:
                await asyncio.wait({taking, dying}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                if not taking.done():
                    raise
                self._task.uncancel()  # a retired slot still answers a batch that it has taken
            if taking.done():
                return taking.result()  # if the worker has died too, it says so when it is asked
            self.state = _SlotState.CLOSING
            raise WorkerFailed(dying.result())
        finally:
            dying.cancel()
            if not taking.done():
                taking.cancel()
                await asyncio.wait({taking})

    async def _close_worker(self, worker: WorkerProcess) -> None:
        self.state = _SlotState.CLOSING
        await worker.close()
        self.worker, self.state = None, _SlotState.STARTING

    async def _answer_batch(self, batch: Sequence[QueuedSentence], worker: WorkerProcess) -> None:
        loop, metrics, name = asyncio.get_running_loop(), self._metrics, self._queue.name
        started = loop.time()
        texts = [sentence.text for sentence in batch]
        self.state, self._answering_since = _SlotState.ANSWERING, started
        try:
            answers = await worker.ask(texts, batch[0].task, timeout_seconds=self._pool._timeout_seconds)
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
        """Start a new worker, again and again until one starts; the pauses grow until one takes a batch."""
        while self.worker is None:
            if (refusal := self._pool.refusal) is not None:
                self._queue.refuse(refusal)
            await asyncio.sleep(self.retry_seconds)
            max_pause = _MAX_PAUSE_SECONDS
            with suppress(OSError):  # if no file can be opened, the start below fails with the same error
                if not holds_model(self._model, self._digest):
                    max_pause = _MAX_RELOAD_PAUSE_SECONDS
            self.retry_seconds = min(max(_MIN_PAUSE_SECONDS, 2 * self.retry_seconds), max_pause)
            try:
                self.worker = await self._start_same_model()
            except Exception as error:
                self.state = _SlotState.FAILED
                # An unforeseen error is logged with its traceback.
                log = logger.error if isinstance(error, NmtError | WorkerFailed | OSError) else logger.exception
                reason = error.message if isinstance(error, NmtError) else error
                log("no new worker for %s: %s; next try in %.1f s", self._model, reason, self.retry_seconds)
        self.state = _SlotState.WAITING
        self._metrics.restarts.labels(self._queue.name).inc()
        logger.warning("a new worker serves %s", self._queue.name)

    async def _start_same_model(self) -> WorkerProcess | None:
        """A worker with the same model; None if another model is on disk, which all slots then get."""
        if holds_model(self._model, self._digest):
            worker = await WorkerProcess.start(self._model, self._pool._engine)
            if worker.digest == self._digest:
                return worker
            await worker.close()
        logger.warning("%s is gone, or another model by now: all workers change", self._model)
        await self._pool.reload_all()
        return None


def _refuse(sentences: Sequence[QueuedSentence], error: NmtError) -> None:
    """Answer the sentences with an error: 400 if the request is wrong, else 503."""
    if isinstance(error, DataError | UsageError):
        request_error = request_error_from(error, status=400, code="invalid_request")
    else:
        # A model that is gone does not come back.
        seconds = None if isinstance(error, ModelError) else 1
        request_error = request_error_from(error, status=503, code=FAILED, retry_after_seconds=seconds)
    for sentence in sentences:
        if sentence.is_wanted:
            sentence.result.set_exception(request_error)
