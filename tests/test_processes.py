from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.errors import DataError
from nmt_cli.processes import FEWER_WORKERS_HINT, Worker, WorkerLost, worker_pool
from tests.waiting import is_alive, state_of, wait_until
from tests.worker_jobs import Named, Squares, Trouble, Unstartable


@pytest.mark.parametrize("number", [1, 3])
def test_results_come_in_the_order_of_their_tasks(number: int) -> None:
    with worker_pool([Squares()] * number, hint=FEWER_WORKERS_HINT) as run:
        results = list(run(range(40)))
    assert [square for square, _ in results] == [task * task for task in range(40)]
    processes = {process for _, process in results}
    assert processes == {os.getpid()} if number == 1 else os.getpid() not in processes
    assert len(processes) == number


def test_each_process_of_a_pool_has_its_own_job() -> None:
    with worker_pool([Named("cuda:0"), Named("cuda:1")], hint=FEWER_WORKERS_HINT) as run:
        assert {name for name, _ in run(range(8))} == {"cuda:0", "cuda:1"}
        assert [task for _, task in run(range(8))] == list(range(8))


def test_few_tasks_are_taken_before_their_results() -> None:
    taken = 0

    def tasks() -> Iterator[int]:
        nonlocal taken
        for task in range(30):
            taken += 1
            yield task

    with worker_pool([Squares()] * 2, hint=FEWER_WORKERS_HINT) as run:
        for done, _ in enumerate(run(tasks())):
            assert taken - done <= 4


def test_no_more_processes_are_started_than_there_are_tasks() -> None:
    with worker_pool([Squares()] * 64, hint=FEWER_WORKERS_HINT) as run:
        assert len({process for _, process in run(range(2))}) <= 2


def test_the_errors_of_a_job_arrive_as_they_are() -> None:
    with worker_pool([Trouble()] * 2, hint=FEWER_WORKERS_HINT) as run, pytest.raises(DataError) as refused:
        list(run(["fine", "refused", "fine"]))
    error = refused.value
    assert (error.message, error.hint, error.where) == ("line 7 is odd", "make it even", "train.en:7")
    with worker_pool([Unstartable()] * 2, hint=FEWER_WORKERS_HINT) as run, pytest.raises(DataError, match="no model"):
        list(run([1, 2]))
    with (
        worker_pool([Trouble()] * 2, hint=FEWER_WORKERS_HINT) as run,
        pytest.raises(RuntimeError, match=r"_fail\n(.*\n)*KeyError: 'not there'"),
    ):
        list(run(["bug"]))


def test_a_killed_process_is_an_error_that_says_what_to_do() -> None:
    with worker_pool([Trouble()] * 2, hint=FEWER_WORKERS_HINT) as run, pytest.raises(DataError) as caught:
        list(run(["fine", "killed", "slow"]))
    assert caught.value.message == "a worker process was killed (SIGKILL)"
    assert caught.value.hint == "if memory ran out, run the command again with fewer `workers`"


def test_a_process_without_memory_is_an_error_that_says_what_to_do() -> None:
    with worker_pool([Trouble()] * 2, hint=FEWER_WORKERS_HINT) as run, pytest.raises(DataError) as caught:
        list(run(["fine", "too large", "fine"]))
    assert caught.value.message == "a worker process found no memory"
    assert caught.value.hint == FEWER_WORKERS_HINT
    worker = Worker(Trouble(), environment={})
    with pytest.raises(MemoryError, match=r"_fail\n(.*\n)*MemoryError"):
        worker.result_of("too large")
    worker.close()


def test_a_worker_imports_nothing_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "nmt_cli", "numpy"):
        (tmp_path / f"{name}.py").write_text("open('read', 'w'); raise SystemExit('a file of a stranger')")
    monkeypatch.chdir(tmp_path)
    with worker_pool([Squares()] * 2, hint=FEWER_WORKERS_HINT) as run:
        assert [square for square, _ in run(range(4))] == [0, 1, 4, 9]
    assert not (tmp_path / "read").exists()


def with_source(repository: Path) -> dict[str, str]:
    """The environment of a process that imports the package and its tests from here."""
    return {**os.environ, "PYTHONPATH": f"{repository / 'src'}:{repository}"}


def test_processes_import_nothing_that_is_slow(repository: Path) -> None:
    code = (
        "import sys\n"
        "from nmt_cli.preparing import clean_text, encoding, vocabulary\n"
        "print(*{'torch', 'datasets', 'pyarrow', 'sacrebleu', 'typer', 'py3langid'} & {*sys.modules})"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=with_source(repository), capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


PARENT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background process begins without
from nmt_cli.processes import FEWER_WORKERS_HINT, worker_pool
from tests.worker_jobs import Squares, Trouble
with worker_pool([Squares()] * 2, hint=FEWER_WORKERS_HINT) as run:
    print(*{process for _, process in run(range(10))}, flush=True)
    with worker_pool([Trouble()] * 2, hint=FEWER_WORKERS_HINT) as wait:
        list(wait(["slow", "slow"]))
"""


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, -signal.SIGINT)])
def test_processes_end_with_the_one_that_started_them(repository: Path, sign: signal.Signals, code: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env=with_source(repository),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C goes to the whole group, as from a terminal
    ) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        processes = [int(process) for process in parent.stdout.readline().split()]
        os.kill(parent.pid, sign) if sign == signal.SIGKILL else os.killpg(parent.pid, sign)
        assert parent.wait(timeout=300) == code
        assert parent.stderr.read().count("Traceback") == (sign == signal.SIGINT)  # the parent's own
    wait_until(lambda: not any(is_alive(process) for process in processes))


def test_a_worker_answers_one_task_after_another_and_in_time() -> None:
    worker = Worker(Trouble(), environment={})
    assert [worker.result_of(task, timeout_seconds=60) for task in ("one", "two")] == ["one", "two"]
    with pytest.raises(DataError, match="line 7 is odd"):
        worker.result_of("refused")
    assert worker.result_of("three") == "three"
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        worker.result_of("slow", timeout_seconds=0.1)
    worker.kill()
    worker.close()
    assert worker.wait() == -signal.SIGKILL


def test_a_lost_worker_is_noticed_by_the_next_task() -> None:
    worker = Worker(Trouble(), environment={})
    with pytest.raises(WorkerLost, match=r"was killed \(SIGKILL\)"):
        worker.result_of("killed")
    with pytest.raises(WorkerLost, match="SIGKILL"):
        worker.result_of("fine")
    worker.close()


# Stands in for the interpreter that would run `nmt`: it prints its number, then each signal. SIGTERM ends it.
CHILD = """#!PYTHON
import os, signal, sys, time
from nmt_cli.processes import end_with_parent
def told(number, frame):
    os.write(1, f"{signal.Signals(number).name}\\n".encode())  # print must not be called while it prints
    os._exit(75) if number == signal.SIGTERM else None
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, told)
end_with_parent()
print(os.getpid(), *sys.argv[1:], flush=True)
time.sleep(600)
"""
COMMANDER = """
import signal, sys
from nmt_cli import processes
processes.sys.executable = sys.argv[1]
with processes.NmtCommands() as commands:
    code = commands.start(["info"], ends_by=signal.SIGTERM, stdout=sys.stdout.fileno()).wait()
    print(code, [signal.Signals(number).name for number in commands.signals])
"""


@contextmanager
def commander(
    folder: Path, repository: Path, *, through_launcher: bool = False
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that has started a child, maybe through a child that does the same, and the number of that child."""
    interpreters = {"python": CHILD.replace("PYTHON", sys.executable)}
    if through_launcher:
        interpreters["launcher"] = (
            f"#!{sys.executable}\n{COMMANDER.replace('sys.argv[1]', repr(str(folder / 'python')))}"
        )
    for name, code in interpreters.items():
        (folder / name).write_text(code)
        (folder / name).chmod(0o755)
    command = [sys.executable, "-c", COMMANDER, str(folder / [*interpreters][-1])]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, env=with_source(repository), **options) as parent:
        assert parent.stdout is not None
        child, *arguments = parent.stdout.readline().split()
        assert arguments == ["-P", "-m", "nmt_cli", "info"]
        yield parent, int(child)
        parent.communicate(timeout=300)
    wait_until(lambda: not is_alive(int(child)))


def test_signals_are_passed_on_to_commands_once_each(tmp_path: Path, repository: Path) -> None:
    with commander(tmp_path, repository) as (parent, _):
        assert parent.stdout is not None
        os.killpg(parent.pid, signal.SIGINT)  # as from a terminal: it must not reach the child twice
        assert parent.stdout.readline() == "SIGINT\n"
        parent.send_signal(signal.SIGHUP)  # as when its terminal is closed
        assert parent.stdout.read() == "SIGTERM\n75 ['SIGINT', 'SIGTERM']\n"


@pytest.mark.parametrize("through_launcher", [False, True])
def test_commands_stop_and_go_on_with_the_process_that_started_them(
    tmp_path: Path, repository: Path, through_launcher: bool
) -> None:
    with commander(tmp_path, repository, through_launcher=through_launcher) as (parent, child):
        parent.send_signal(signal.SIGTSTP)
        wait_until(lambda: state_of(parent.pid) == state_of(child) == "T")
        parent.send_signal(signal.SIGCONT)
        wait_until(lambda: "T" not in (state_of(parent.pid), state_of(child)))
        parent.terminate()


def test_commands_are_told_when_the_process_that_started_them_is_killed(tmp_path: Path, repository: Path) -> None:
    with commander(tmp_path, repository) as (parent, _):
        assert parent.stdout is not None
        parent.kill()
        assert parent.stdout.read() == "SIGTERM\n"
