"""Child processes of ours: they end with this process, they are told of its signals, and they carry errors back.

There are two kinds of children. A `Worker` does a job on one task after another; `worker_pool` spreads tasks over
several workers. `NmtCommands` are whole `nmt` commands. Every child runs in a process group of its own, so a Ctrl-C in
the terminal reaches this process only. Every child has a lifeline: a pipe that this process holds open. The pipe closes
when this process ends, by whatever means, and the child then sends itself a signal.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from nmt_cli.errors import DataError, NmtError

T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

LIFELINE = "NMT_LIFELINE"  # read by cli/app.py too
_EXTRA_TASKS = 2  # tasks sent beyond one per worker: no worker has to wait for its next task
_SECONDS_TO_END = 5.0
FEWER_WORKERS_HINT = "if memory ran out, run the command again with fewer `workers`"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# multiprocessing's own way to start a process would run the main module again, here the whole command line.
_WORKER_CODE = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from nmt_cli.processes import run_worker
run_worker()"""


class Job(Protocol[T_contra, R_co]):
    """The work of a worker: sent to it once, and started there."""

    def start(self) -> Callable[[T_contra], R_co]:
        """The function for the tasks, with everything that all tasks need."""


class WorkerLost(Exception):
    """A worker process ended before it answered."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        end = f"was killed ({signal.Signals(-exit_code).name})" if exit_code < 0 else f"ended with code {exit_code}"
        super().__init__(f"a worker process {end}")


@contextmanager
def worker_pool(jobs: Sequence[Job[T, R]], *, hint: str) -> Iterator[Callable[[Iterable[T]], Iterator[R]]]:
    """An ordered map of tasks to results, by one worker process per job; a single job is done in this process.

        with worker_pool(jobs, hint=FEWER_WORKERS_HINT) as run:
            for result in run(tasks): ...

    The jobs may differ in where they compute, not in their results. A worker starts when there is a task for it, and
    all workers end with the block. An NmtError of a job arrives as it is. DataError with this hint if a worker is
    killed or finds no memory.
    """
    if len(jobs) == 1:
        start = cache(jobs[0].start)
        yield lambda tasks: map(start(), tasks)
        return
    workers: list[Worker[T, R]] = []
    idle: SimpleQueue[Worker[T, R]] = SimpleQueue()
    threads = ThreadPoolExecutor(len(jobs))  # each waits for a worker's result

    def result_of(task: T) -> R:
        worker = idle.get()
        try:
            return worker.result_of(task)
        except WorkerLost as lost:
            if lost.exit_code >= 0:
                raise RuntimeError(str(lost)) from None
            raise DataError(str(lost), hint=hint) from None
        except MemoryError:
            raise DataError("a worker process found no memory", hint=hint) from None
        finally:
            idle.put(worker)

    def run(tasks: Iterable[T]) -> Iterator[R]:
        pending: deque[Future[R]] = deque()
        for task in tasks:
            # Start another worker only if all others are busy.
            num_busy = sum(not result.done() for result in pending)
            if len(workers) < len(jobs) and num_busy >= len(workers):
                workers.append(Worker(jobs[len(workers)], environment=ONE_THREAD))
                idle.put(workers[-1])
            pending.append(threads.submit(result_of, task))
            if len(pending) == len(jobs) + _EXTRA_TASKS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    try:
        yield run
    finally:
        for worker in workers:
            worker.kill()
        threads.shutdown(cancel_futures=True)
        for worker in workers:
            worker.close()


class Worker(Generic[T, R]):
    """A process that does a job, one task after another."""

    def __init__(self, job: Job[T, R], *, environment: Mapping[str, str]) -> None:
        """Start the process, with these variables added to its environment; the job starts with the first task."""
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            command = ["-c", _WORKER_CODE, json.dumps(sys.path), str(number)]
            self._child = _Child(command, environment=environment, stdout=subprocess.DEVNULL, pass_fds=[number])
        self._connection = Connection(ours.detach())
        self._unsent_job: Job[T, R] | None = job

    def result_of(self, task: T, *, timeout_seconds: float | None = None) -> R:
        """The job's result for a task.

        Raises the job's own NmtError or MemoryError, and RuntimeError with the traceback for any other error. Raises
        WorkerLost if the process ends, and TimeoutError if no result comes in time; the worker cannot be used then.
        """
        try:
            if self._unsent_job is not None:
                self._connection.send(self._unsent_job)
                self._unsent_job = None
            self._connection.send(task)
            is_late = timeout_seconds is not None and not self._connection.poll(timeout_seconds)
            result: Any = None if is_late else self._connection.recv()
        except (EOFError, OSError):
            self._child.end(grace_seconds=_SECONDS_TO_END)
            raise WorkerLost(self.wait()) from None
        if is_late:
            raise TimeoutError(f"no answer within {timeout_seconds:g} s")
        if isinstance(result, Exception):
            raise result
        answer: R = result
        return answer

    def wait(self) -> int:
        """The exit code of the process, once it has ended; negative for the signal that killed it."""
        return self._child.process.wait()

    def kill(self) -> None:
        """End the process at once; a thread that waits for a result gets WorkerLost."""
        self._child.process.kill()

    def close(self) -> None:
        """End the process: between two tasks by itself, otherwise by force after some seconds."""
        self._connection.close()
        self._child.end(grace_seconds=_SECONDS_TO_END)


class NmtCommands:
    """`nmt` commands that run as children while the block runs, and get the signals that this process gets.

    Commands that still run at the end of the block are ended and waited for. SIGTERM and Ctrl-C are passed on each time
    they come, also to a command that starts later. Ctrl-Z stops the commands and their own commands with this process,
    until the shell lets all of them go on.
    """

    def __init__(self) -> None:
        self.signals: list[int] = []  # SIGTERM and SIGINT, in the order they came
        self._children: list[_Child] = []
        self._handlers = ExitStack()

    def __enter__(self) -> NmtCommands:
        self._handlers.enter_context(receiving_signals(self._pass_on))
        self._handlers.callback(signal.signal, signal.SIGTSTP, signal.signal(signal.SIGTSTP, self._suspend))
        return self

    def __exit__(self, *exception: object) -> None:
        for child in self._children:
            child.end()
        self._handlers.close()

    def start(
        self,
        arguments: Sequence[str],
        *,
        ends_by: signal.Signals,
        environment: Mapping[str, str] | None = None,
        stdout: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start `nmt ARGUMENTS`, which gets the signal `ends_by` when this process ends."""
        command = ["-m", "nmt_cli", *arguments]
        child = _Child(command, environment=environment or {}, stdout=stdout, ends_by=ends_by)
        self._children.append(child)
        for number in self.signals:
            child.process.send_signal(number)
        return child.process

    def _pass_on(self, number: int) -> None:
        self.signals.append(number)
        self._send(number)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        self._send(signal.SIGTSTP)  # a command with children of its own passes it on; any other stops
        os.kill(os.getpid(), signal.SIGSTOP)
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        for child in self._children:
            child.process.send_signal(number)


@contextmanager
def receiving_signals(receive: Callable[[int], None]) -> Iterator[None]:
    """Call `receive` with each SIGTERM and SIGINT that comes while the block runs.

    The end of the terminal (SIGHUP) counts as SIGTERM, unless SIGHUP is ignored, as under nohup.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        receive(signal.SIGTERM if number == signal.SIGHUP else number)

    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = (signal.SIGTERM, signal.SIGINT) if is_ignored else (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    earlier = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def end_with_parent() -> None:
    """In a child: end by the signal that was agreed when the process that started this one ends."""
    if lifeline := os.environ.pop(LIFELINE, None):
        descriptor, number = map(int, lifeline.split())
        os.set_inheritable(descriptor, False)
        Thread(target=_end_at_close, args=(descriptor, number), daemon=True).start()


def run_worker() -> None:
    """Be a worker: a job and then its tasks come through the socket whose descriptor is the last argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the process that started this one
    end_with_parent()
    with Connection(int(sys.argv[-1])) as parent:
        try:
            job: Job[Any, Any] = parent.recv()
            start = cache(job.start)
            while True:
                parent.send(_outcome(start, parent.recv()))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _outcome(start: Callable[[], Callable[[Any], Any]], task: Any) -> Any:
    """The result of a task, or the error that it ends with."""
    try:
        return start()(task)
    except NmtError as error:
        return error
    except Exception as error:
        kind = MemoryError if isinstance(error, MemoryError) else RuntimeError
        return kind(f"in a worker process:\n{traceback.format_exc()}")


def _end_at_close(lifeline: int, number: int) -> None:
    """End this process by a signal when the other end of its lifeline is closed."""
    # Only the main thread runs handlers. A signal that came to this thread would not wake it.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.read(lifeline, 1)  # nothing is ever written there: it returns when the other end is closed
    os.kill(os.getpid(), number)


class _Child:
    """A Python process in a process group of its own, and this end of its lifeline."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdout: int | None,
        pass_fds: Sequence[int] = (),
        ends_by: signal.Signals = signal.SIGKILL,
    ) -> None:
        theirs, ours = os.pipe()
        self._ends_by = ends_by
        self._lifeline = open(ours, "wb")  # noqa: SIM115  # open until the child has ended
        try:
            self.process = subprocess.Popen(
                # -P: a file in the working directory is no module, as it is none for the command `nmt`.
                [sys.executable, "-P", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                pass_fds=[theirs, *pass_fds],
                process_group=0,
                env={**os.environ, **environment, LIFELINE: f"{theirs} {int(ends_by)}"},
            )
        finally:
            os.close(theirs)

    def end(self, *, grace_seconds: float = 0.0) -> None:
        """End the process by its signal, unless it ends by itself before the grace is over; wait for its end."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(grace_seconds)
        self.process.send_signal(self._ends_by)  # sends nothing to a process that has ended
        self.process.wait()
        self._lifeline.close()
