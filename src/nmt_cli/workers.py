"""Worker processes: a job done on one task after another, results in the tasks' order, few tasks at hand at a time."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, Protocol, TypeVar

from nmt_cli.errors import DataError, NmtError

T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

# Tasks that wait while as many others as there are workers are being done: enough that no worker stands still.
_TASKS_WAITING = 2
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from nmt_cli.workers import serve; serve()"


class Job(Protocol[T_contra, R_co]):
    """What a worker does; it is sent there once, and what it needs for all tasks is made where it starts."""

    def start(self) -> Callable[[T_contra], R_co]:
        """The function for the tasks."""


@contextmanager
def workers(job: Job[T, R], *, number: int) -> Iterator[Callable[[Iterable[T]], Iterator[R]]]:
    """An ordered map of tasks to results by up to `number` processes, which end with the block; 1 is this process.

    An NmtError of the job arrives as it is. DataError where a process is killed, as when memory runs out. The processes
    end when this one does, by whatever means, and leave Ctrl-C to it.
    """
    if number == 1:
        yield lambda tasks: map(job.start(), tasks)
        return
    with crew([job] * number) as run:
        yield run


@contextmanager
def crew(jobs: Sequence[Job[T, R]]) -> Iterator[Callable[[Iterable[T]], Iterator[R]]]:
    """As `workers`, with a process for each of the jobs, which differ in where they compute, not in results."""
    processes = _Crew(jobs)
    try:
        yield processes.map
    finally:
        processes.end()


class _Crew:
    """Worker processes, each started when there is a task for it, and for each a thread that waits for its results."""

    def __init__(self, jobs: Sequence[Job[Any, Any]]) -> None:
        self._jobs = jobs
        self._workers: list[_Worker] = []
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(len(jobs))

    def map(self, tasks: Iterable[Any]) -> Iterator[Any]:
        """The results of the tasks, in their order."""
        begun: deque[Future[Any]] = deque()
        for task in tasks:
            if len(self._workers) < len(self._jobs) and sum(not one.done() for one in begun) >= len(self._workers):
                self._workers.append(_Worker(self._jobs[len(self._workers)]))
                self._idle.put(self._workers[-1])
            begun.append(self._threads.submit(self._do, task))
            if len(begun) == len(self._jobs) + _TASKS_WAITING:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()

    def end(self) -> None:
        """End the processes at once, and the threads."""
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()

    def _do(self, task: Any) -> Any:
        worker = self._idle.get()
        try:
            return worker.do(task)
        finally:
            self._idle.put(worker)


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error of a job: the kind and parts of an NmtError, else a traceback."""

    kind: type[NmtError] | None
    message: str
    hint: str = ""
    where: str | None = None

    def error(self) -> Exception:
        if self.kind is None:
            return RuntimeError(f"in a worker process:\n{self.message}")
        return self.kind(self.message, hint=self.hint, where=self.where)


class _Worker:
    """A process that has a job. Its standard input is its lifeline: it ends when this process closes it, or dies."""

    def __init__(self, job: Job[Any, Any]) -> None:
        ours, theirs = socket.socketpair()
        with theirs, _interrupts_held():
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        self._connection = Connection(ours.detach())
        self._job: Job[Any, Any] | None = job

    def do(self, task: Any) -> Any:
        """The job's result for a task."""
        try:
            if self._job is not None:
                self._connection.send(self._job)
                self._job = None
            self._connection.send(task)
            result = self._connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(result, _Failure):
            raise result.error()
        return result

    def kill(self) -> None:
        """End the process at once; a thread that waits for a result of it gets an error."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Close what led to the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._connection.close()

    def _ended(self) -> Exception:
        code = self._process.wait()
        if code >= 0:
            return RuntimeError(f"a worker process has ended by itself, with exit code {code}")
        return DataError(
            f"a worker process was killed ({signal.Signals(-code).name})",
            hint="if memory ran out, run the command again with fewer --workers",
        )


def serve() -> None:
    """Be a worker: a job and then its tasks come through the socket whose descriptor is the last argument."""
    Thread(target=_end_with_parent, daemon=True).start()
    with Connection(int(sys.argv[-1])) as parent:
        try:
            job: Job[Any, Any] = parent.recv()
            start = cache(job.start)
            while True:
                parent.send(_outcome(start, parent.recv()))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _outcome(start: Callable[[], Callable[[Any], Any]], task: Any) -> Any:
    try:
        return start()(task)
    except NmtError as error:
        return _Failure(type(error), error.message, error.hint, error.where)
    except Exception:
        return _Failure(None, traceback.format_exc())


def _end_with_parent() -> None:
    os.read(0, 1)  # nothing is ever written there: it returns when the other end is closed
    os._exit(1)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back while the block runs; a process that is started there never gets it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
