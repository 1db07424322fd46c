from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nmt_cli.errors import DataError
from nmt_cli.workers import crew, workers
from tests.worker_jobs import Named, Squares, Trouble, Unstartable


@pytest.mark.parametrize("number", [1, 3])
def test_results_come_in_the_order_of_their_tasks(number: int) -> None:
    with workers(Squares(), number=number) as run:
        results = list(run(range(40)))
    assert [square for square, _ in results] == [task * task for task in range(40)]
    processes = {process for _, process in results}
    assert processes == {os.getpid()} if number == 1 else os.getpid() not in processes
    assert len(processes) == number


def test_each_process_of_a_crew_has_its_own_job() -> None:
    with crew([Named("cuda:0"), Named("cuda:1")]) as run:
        assert {name for name, _ in run(range(8))} == {"cuda:0", "cuda:1"}
        assert [task for _, task in run(range(8))] == list(range(8))


def test_few_tasks_are_taken_before_their_results() -> None:
    taken = 0

    def tasks() -> Iterator[int]:
        nonlocal taken
        for task in range(30):
            taken += 1
            yield task

    with workers(Squares(), number=2) as run:
        for done, _ in enumerate(run(tasks())):
            assert taken - done <= 4


def test_no_more_processes_are_started_than_there_are_tasks() -> None:
    with workers(Squares(), number=64) as run:
        assert len({process for _, process in run(range(2))}) <= 2


def test_the_errors_of_a_job_arrive_as_they_are() -> None:
    with workers(Trouble(), number=2) as run, pytest.raises(DataError) as refused:
        list(run(["fine", "refused", "fine"]))
    error = refused.value
    assert (error.message, error.hint, error.where) == ("line 7 is odd", "make it even", "train.en:7")
    with workers(Unstartable(), number=2) as run, pytest.raises(DataError, match="no model"):
        list(run([1, 2]))
    with workers(Trouble(), number=2) as run, pytest.raises(RuntimeError, match=r"_fail\n(.*\n)*KeyError: 'not there'"):
        list(run(["bug"]))


def test_a_killed_process_is_an_error_that_says_what_to_do() -> None:
    with workers(Trouble(), number=2) as run, pytest.raises(DataError) as caught:
        list(run(["fine", "killed", "slow"]))
    assert caught.value.message == "a worker process was killed (SIGKILL)"
    assert caught.value.hint == "if memory ran out, run the command again with fewer --workers"


def test_processes_import_nothing_that_is_slow(repository: Path) -> None:
    code = (
        "import sys\n"
        "from nmt_cli.preparing import encoding, text, vocabulary\n"
        "print(*{'torch', 'datasets', 'pyarrow', 'sacrebleu', 'typer', 'py3langid'} & {*sys.modules})"
    )
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


PARENT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background process begins without
from nmt_cli.workers import crew, workers
from tests.worker_jobs import Squares, Trouble
with workers(Squares(), number=2) as run:
    print(*{process for _, process in run(range(10))}, flush=True)
    with workers(Trouble(), number=2) as wait:
        list(wait(["slow", "slow"]))
"""


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, -signal.SIGINT)])
def test_processes_end_with_the_one_that_started_them(repository: Path, sign: signal.Signals, code: int) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{repository / 'src'}:{repository}"}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C goes to the whole group, as from a terminal
    ) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        processes = [int(process) for process in parent.stdout.readline().split()]
        os.kill(parent.pid, sign) if sign == signal.SIGKILL else os.killpg(parent.pid, sign)
        assert parent.wait(timeout=120) == code
        assert parent.stderr.read().count("Traceback") == (sign == signal.SIGINT)  # the parent's own
    deadline = time.monotonic() + 60
    while any(_is_alive(process) for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
