"""The workers of one model: they take its batches, are replaced when they die, and change for a new model."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from nmt_cli.errors import DataError, ModelError, NmtError, UsageError
from nmt_cli.serving.batcher import Batcher, Sentence
from nmt_cli.serving.identity import stands_in
from nmt_cli.serving.jobs import Engine
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.process import WorkerLost, WorkerProcess
from nmt_cli.serving.refusals import Refused

logger = logging.getLogger(__name__)

_MAX_LOSSES = 2
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 10.0
# Where another model stands by now, each try may start workers with it in all places.
_LONGEST_CHANGE_PAUSE_SECONDS = 300.0
# An operator may have the model loaded before the next try.
_LONGEST_RETRY_SECONDS = 60


class Crew:
    """`size` workers with the model in a directory, on one queue.

    All have the same one: where a worker that replaces a dead one finds another there, `swap` is to load that for all.
    """

    def __init__(
        self,
        batcher: Batcher,
        *,
        size: int,
        engine: Engine,
        timeout_seconds: float,
        metrics: Metrics,
        swap: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._batcher = batcher
        self._size = size
        self._engine = engine
        self._timeout = timeout_seconds
        self._metrics = metrics
        self._swap = swap
        self._posts: list[_Post] = []
        self._change: asyncio.Task[None] | None = None
        self._retiring: asyncio.Future[list[None]] | None = None

    async def load(self, model: Path, digest: str) -> None:
        """Put new workers with `model` in the place of those there are, which finish what they have begun.

        NmtError where it cannot be loaded, or is not the one of this digest; those there are go on then.
        """
        starts = [asyncio.ensure_future(WorkerProcess.start(model, self._engine)) for _ in range(self._size)]
        try:
            workers = await asyncio.gather(*starts)
            if any(worker.digest != digest for worker in workers):
                hint = "load it again, now that all of it is there"
                raise ModelError("the model was replaced while it was loaded", where=str(model), hint=hint)
        except BaseException as problem:
            for start in starts:
                start.cancel()
            done = await asyncio.gather(*starts, return_exceptions=True)
            await asyncio.gather(*(worker.close() for worker in done if isinstance(worker, WorkerProcess)))
            if isinstance(problem, WorkerLost | OSError):
                hint = "memory or open files may not suffice: see what the log says above"
                raise NmtError(
                    f"the model's worker died while it loaded: {problem}", where=str(model), hint=hint
                ) from None
            raise
        self._batcher.narrow = workers[0].narrow
        old = self._posts
        self._posts = [_Post(self, model, worker) for worker in workers]
        # Who has this loaded may be cancelled; what the old ones have begun must not be.
        self._retiring = asyncio.gather(*(post.retire() for post in old))
        await asyncio.shield(self._retiring)

    @property
    def num_ready(self) -> int:
        """Workers that are there now."""
        return sum(post.worker is not None for post in self._posts)

    @property
    def refusal(self) -> Refused | None:
        """Why nothing can be translated now: no worker is there, and one could not be started; else None."""
        if self.num_ready > 0 or not any(post.has_failed for post in self._posts):
            return None
        seconds = min(_LONGEST_RETRY_SECONDS, max(1, math.ceil(min(post.pause for post in self._posts))))
        return Refused(
            f"the model {self._batcher.name} is not loaded now",
            hint=f"try again in {seconds} s; the server's log says why",
            status=503,
            code="not_loaded",
            retry_after_seconds=seconds,
        )

    async def close(self) -> None:
        """End all workers, and whatever they do: nobody waits for it any more."""
        if self._change is not None:
            self._change.cancel()
            await asyncio.gather(self._change, return_exceptions=True)
        if self._retiring is not None:
            await self._retiring
        await asyncio.gather(*(post.retire(at_once=True) for post in self._posts))
        self._posts = []

    async def change(self) -> None:
        """Have what now stands where the model was loaded for all posts, and so end these; NmtError where they stay."""
        if self._change is None or self._change.done():
            self._change = asyncio.create_task(self._swap())
        # It ends the post that waits here, and must not end with it.
        await asyncio.shield(self._change)


class _Post:
    """A place for one worker, which goes from batch to batch until it is retired."""

    def __init__(self, crew: Crew, model: Path, worker: WorkerProcess) -> None:
        self._crew = crew
        self._model = model
        self._digest = worker.digest
        self.worker: WorkerProcess | None = worker
        self._is_idle = False
        self._is_retired = False
        self._has_died = False  # the worker, and the watch has seen it
        self.pause = 0.0  # before the next worker is started
        self.has_failed = False  # the last try to start one
        self._task = asyncio.ensure_future(self._work())
        self._watching = asyncio.ensure_future(self._watch(worker))

    async def retire(self, *, at_once: bool = False) -> None:
        """Finish the batch, if there is one and not `at_once`, and end the worker."""
        self._is_retired = True
        if self._is_idle or at_once:
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self.worker is not None:
            await self.worker.close()

    async def _work(self) -> None:
        while not self._is_retired:
            if self.worker is None:
                await self._replace()
                continue
            batch: list[Sentence] = []
            try:
                batch = await self._take(self.worker)
                self.pause = 0.0
                await self._do(batch, self.worker)
            except WorkerLost as problem:
                logger.error("a worker of %s was lost: %s; it is replaced", self._crew._batcher.name, problem)
                await self._dismiss(self.worker)
                self._after_loss(batch)
            except Exception:
                logger.exception("a mistake with a batch of %s; its worker is replaced", self._crew._batcher.name)
                hint = "leave the text out; the server's log says more"
                _fail(batch, NmtError("the server made a mistake with this text", hint=hint))
                # What it has said or will say may be of another batch.
                self.worker.kill()
                await self._dismiss(self.worker)

    async def _take(self, worker: WorkerProcess) -> list[Sentence]:
        """The next batch; WorkerLost where the worker dies before there is one."""
        self._is_idle = True
        try:
            if not self._has_died:
                return await self._crew._batcher.take()
        except asyncio.CancelledError:
            if self._is_retired or not self._has_died:
                raise
            self._task.uncancel()
        finally:
            self._is_idle = False
        raise WorkerLost(await worker.ended())

    async def _watch(self, worker: WorkerProcess) -> None:
        """Have a worker replaced that dies with nothing to do; one with a batch may still have answered it."""
        await worker.ended()
        if self.worker is worker:
            self._has_died = True
            if self._is_idle:
                self._task.cancel()

    async def _dismiss(self, worker: WorkerProcess) -> None:
        await worker.close()
        self.worker = None

    async def _do(self, batch: Sequence[Sentence], worker: WorkerProcess) -> None:
        loop, metrics, name = asyncio.get_running_loop(), self._crew._metrics, self._crew._batcher.name
        started = loop.time()
        texts = [sentence.text for sentence in batch]
        try:
            answers = await worker.ask(texts, batch[0].job, timeout_seconds=self._crew._timeout)
        except NmtError as problem:
            _fail(batch, problem)
            return
        seconds = loop.time() - started
        self._crew._batcher.done(batch, seconds=seconds)
        metrics.inference_seconds.labels(name).observe(seconds)
        metrics.tokens.labels(name, "source").inc(sum(sentence.tokens for sentence in batch))
        metrics.tokens.labels(name, "target").inc(sum(answer.get("num_pieces", 0) + 1 for answer in answers))
        for sentence, answer in zip(batch, answers, strict=True):
            if sentence.is_wanted:
                sentence.result.set_result(answer)

    def _after_loss(self, batch: Sequence[Sentence]) -> None:
        """A sentence on which two workers died is refused: it may be why."""
        hopeless = [sentence for sentence in batch if sentence.num_losses + 1 >= _MAX_LOSSES]
        _fail(
            hopeless, NmtError("the model died twice on this sentence", hint="leave it out; the server's log says more")
        )
        self._crew._batcher.give_back([sentence for sentence in batch if sentence.num_losses + 1 < _MAX_LOSSES])

    async def _replace(self) -> None:
        """A new worker, tried for until there is one; pauses grow until one lives to see a batch."""
        self._is_idle = True
        while self.worker is None:
            if (refusal := self._crew.refusal) is not None:
                self._crew._batcher.refuse(refusal)
            await asyncio.sleep(self.pause)
            is_same = stands_in(self._model, self._digest)
            longest = _LONGEST_PAUSE_SECONDS if is_same else _LONGEST_CHANGE_PAUSE_SECONDS
            self.pause = min(max(_FIRST_PAUSE_SECONDS, 2 * self.pause), longest)
            try:
                self.worker = await self._start()
            except Exception as problem:
                self.has_failed = True
                # What was not foreseen is told with its traceback.
                log = logger.error if isinstance(problem, NmtError | WorkerLost | OSError) else logger.exception
                log("no new worker for %s: %s; next try in %.1f s", self._model, problem, self.pause)
        self._is_idle = False
        self._has_died = False
        self.has_failed = False
        self._watching = asyncio.ensure_future(self._watch(self.worker))
        self._crew._metrics.restarts.labels(self._crew._batcher.name).inc()
        logger.warning("a new worker serves %s", self._crew._batcher.name)

    async def _start(self) -> WorkerProcess | None:
        """A worker with the same model as the others; None, and all change, where that is gone, or another one."""
        if stands_in(self._model, self._digest):
            worker = await WorkerProcess.start(self._model, self._crew._engine)
            if worker.digest == self._digest:
                return worker
            await worker.close()
        logger.warning("%s is gone, or another model by now: all workers change", self._model)
        await self._crew.change()
        return None


def _fail(sentences: Sequence[Sentence], problem: NmtError) -> None:
    is_ours = not isinstance(problem, DataError | UsageError)
    refused = Refused(
        problem.message,
        hint=problem.hint,
        where=problem.where,
        status=503 if is_ours else 400,
        code="failed" if is_ours else "invalid_request",
        # A model that is gone does not come back.
        retry_after_seconds=1 if is_ours and not isinstance(problem, ModelError) else None,
    )
    for sentence in sentences:
        if sentence.is_wanted:
            sentence.result.set_exception(refused)
