"""The server's side of a worker process: start it, ask it, notice when it is gone."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nmt_cli.errors import NmtError
from nmt_cli.serving.settings import EngineSettings
from nmt_cli.serving.workers.messages import Job, encode_message, job_fields

_WORKER_COMMAND = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from nmt_cli.serving.workers.worker import main; main()"
)
_EXIT_SECONDS = 5.0
# A large model from a slow disk, converted for CTranslate2 on the way.
_LOADING_SECONDS = 600.0
# Threads that wait for each other must not spin, since the server itself needs a CPU. Batches have ever new shapes, and
# oneDNN and torch's layer above it would each keep what they made for the last thousand: hundreds of megabytes. A batch
# needs more than 32 (docs/design/serving.md#memory).
_WORKER_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",
    "LRU_CACHE_CAPACITY": "128",
}


class WorkerFailed(Exception):
    """The worker died, or did not answer in time and was killed."""


class WorkerProcess:
    """A worker process that answers one batch at a time.

    `digest` is that of the model that it has loaded, and sentences of fewer than `narrow` source tokens are best sent
    apart from others: it does not search them together.
    """

    def __init__(self, process: Process, folder: TemporaryDirectory[str]) -> None:
        self._process = process
        self._folder = folder
        self.digest = ""
        self.narrow = 0

    @classmethod
    async def start(cls, model: Path, engine: EngineSettings) -> WorkerProcess:
        """A worker that has loaded `model`; NmtError if it cannot, WorkerLost if it dies or takes too long."""
        threads = str(engine.threads)
        # Its temporary files are as large as the model, and would stay if it is killed.
        folder = TemporaryDirectory(prefix="nmt-worker-", ignore_cleanup_errors=True)
        own = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TMPDIR": folder.name}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _WORKER_COMMAND,
            json.dumps(sys.path),
            stdin=PIPE,
            stdout=PIPE,
            env=_WORKER_ENVIRONMENT | os.environ | own,
            start_new_session=True,
        )
        worker = cls(process, folder)
        try:
            message = {"model": str(model), "engine": asdict(engine)}
            answer = await asyncio.wait_for(worker._exchange(message), _LOADING_SECONDS)
        except TimeoutError:
            worker.kill()
            await worker.close()
            raise WorkerFailed(f"the model was not loaded within {_LOADING_SECONDS:g} s") from None
        except BaseException:
            await worker.close()
            raise
        if "error" in answer:
            await worker.close()
            raise _error_of(answer["error"])
        worker.digest, worker.narrow = answer["digest"], answer["narrow"]
        return worker

    async def ask(self, lines: Sequence[str], job: Job, *, timeout_seconds: float) -> list[dict[str, Any]]:
        """The answers to some sentences; WorkerLost if no answer comes, NmtError if the worker reports an error."""
        try:
            message = {"lines": list(lines), "job": job_fields(job)}
            answer = await asyncio.wait_for(self._exchange(message), timeout_seconds)
        except TimeoutError:
            self.kill()
            raise WorkerFailed(f"no answer within {timeout_seconds:.0f} s") from None
        if "error" in answer:
            raise _error_of(answer["error"])
        answers: list[dict[str, Any]] = answer["answers"]
        return answers

    async def ended(self) -> str:
        """Why the process has ended, once it has."""
        code = await self._process.wait()
        return f"it was killed by signal {-code}" if code < 0 else f"it ended with code {code}"

    def kill(self) -> None:
        """End it at once."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """End the process: close its input, and kill it if that does not suffice."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _EXIT_SECONDS)
        except TimeoutError:
            self.kill()
            await self._process.wait()
        self._folder.cleanup()

    async def _exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(encode_message(message))
            await self._process.stdin.drain()
            size = int.from_bytes(await self._process.stdout.readexactly(4), "big")
            answer: dict[str, Any] = json.loads(await self._process.stdout.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise WorkerFailed(await self._ending()) from None
        return answer

    async def _ending(self) -> str:
        try:
            return await asyncio.wait_for(self.ended(), _EXIT_SECONDS)
        except TimeoutError:
            self.kill()
            return "it closed its output"


def _error_of(fields: Mapping[str, Any]) -> NmtError:
    kind = next((one for one in NmtError.__subclasses__() if one.__name__ == fields["kind"]), NmtError)
    return kind(fields["message"], hint=fields["hint"], where=fields["where"], setting=fields["setting"])
