"""A worker process, as the server sees it: it loads one model, and answers one batch of sentences at a time.

If a worker hangs or is killed, the server keeps its connections.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from nmt_cli.processes import Worker, WorkerLost
from nmt_cli.serving.worker_model import AskedSentence, EngineSettings, ModelJob, SentenceTask, WorkerModel

R = TypeVar("R")
logger = logging.getLogger(__name__)

# A large model from a slow disk, converted for CTranslate2 on the way.
_LOADING_SECONDS = 600.0
# Threads that wait for each other must not spin, since the server itself needs a CPU. Batches have ever new shapes, and
# oneDNN and torch's layer above it would each keep what they made for the last thousand: hundreds of megabytes. A batch
# needs more than 32 (docs/design/serving.md#memory).
_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}


class WorkerFailed(Exception):
    """The worker ended, raised an unexpected error, or did not answer in time and was killed."""


class WorkerProcess:
    """A worker process that answers one batch at a time.

    `digest` is that of the model that it has loaded, and `exit_code` is done once it has ended.
    """

    def __init__(self, model: Path, engine: EngineSettings) -> None:
        threads = {"OMP_NUM_THREADS": str(engine.threads), "MKL_NUM_THREADS": str(engine.threads)}
        self._worker = Worker(ModelJob(model, engine), environment=_ENVIRONMENT | os.environ | threads)
        # One waits for the answer, and one for the end of the process.
        self._waiting_threads = ThreadPoolExecutor(2)
        self.exit_code = asyncio.wrap_future(self._waiting_threads.submit(self._worker.wait))
        self._answer: Future[Any] | None = None
        self.digest = ""

    @classmethod
    async def start(cls, model: Path, engine: EngineSettings) -> WorkerProcess:
        """A worker that has loaded `model`; NmtError if it cannot, WorkerFailed if it dies or takes too long."""
        worker = cls(model, engine)
        try:
            worker.digest = await worker._ask_model(attrgetter("digest"), timeout_seconds=_LOADING_SECONDS)
        except BaseException:
            await worker.close()
            raise
        return worker

    async def ask(
        self, sentences: Sequence[AskedSentence], task: SentenceTask, *, timeout_seconds: float
    ) -> list[dict[str, Any]]:
        """The answers to some sentences; WorkerFailed if no answer comes, NmtError if the worker reports an error."""
        question = partial(WorkerModel.answer, sentences=list(sentences), task=task)
        return await self._ask_model(question, timeout_seconds=timeout_seconds)

    async def close(self) -> None:
        """End the process: between two batches by itself, within a batch at once."""
        if self._answer is not None and not self._answer.done():
            self._worker.kill()
            await asyncio.gather(asyncio.wrap_future(self._answer), return_exceptions=True)
        await asyncio.wrap_future(self._waiting_threads.submit(self._worker.close))
        await asyncio.wait([self.exit_code])
        self._waiting_threads.shutdown(wait=False)

    async def _ask_model(self, question: Callable[[WorkerModel], R], *, timeout_seconds: float) -> R:
        self._answer = self._waiting_threads.submit(self._worker.result_of, question, timeout_seconds=timeout_seconds)
        try:
            answer: R = await asyncio.wrap_future(self._answer)
            return answer
        except (WorkerLost, TimeoutError) as error:
            self._worker.kill()
            raise WorkerFailed(str(error)) from None
        except (MemoryError, RuntimeError) as error:
            self._worker.kill()
            logger.error("%s", error)  # with the traceback of the worker
            raise WorkerFailed("a worker process raised an unexpected error") from None
