"""The launcher of several ranks: their codes, the signals to them, and what is said of one that is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nmt_cli import console
from nmt_cli.errors import TrainingError
from nmt_cli.training.ranks import launcher
from nmt_cli.training.ranks.launcher import launch
from nmt_cli.training.ranks.ranks import LAUNCHED, is_under_torchrun

Ranks = Callable[[str], int]


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    """Launches three ranks that run the given Python in place of `nmt`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(launcher, "_GRACE_SECONDS", 100.0)
    monkeypatch.setattr(launcher, "_HASTE_SECONDS", 0.5)
    (tmp_path / "nmt_cli").mkdir()
    (tmp_path / "nmt_cli/__init__.py").touch()

    def run(program: str) -> int:
        opening = "import os, signal, sys, time\nfrom pathlib import Path\nrank = int(os.environ['RANK'])\n"
        (tmp_path / "nmt_cli/__main__.py").write_text(opening + program, encoding="utf-8")
        return launch(["train", "base"], num_ranks=3)

    return run


@pytest.fixture
def short_grace(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that outlive another one have a second."""
    monkeypatch.setattr(launcher, "_GRACE_SECONDS", 1.0)


READY = "Path(f'ready{rank}').touch()\n"
WAIT = READY + "while True: time.sleep(0.01)\n"
DEAF = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"  # as a rank within a call of C++ is
NOTE = "signal.signal(signal.{0}, lambda number, frame: sys.exit({1}))\n"


@pytest.fixture
def passing(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Sends this process signals, one after the other, once all three ranks are ready."""
    threads: list[threading.Thread] = []

    def send(*numbers: int) -> None:
        deadline = time.monotonic() + 300
        while len(list(tmp_path.glob("ready*"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        for place, number in enumerate(numbers):
            time.sleep(1.0 if place else 0.0)  # a signal that comes before another one is handled is lost
            os.kill(os.getpid(), number)

    def start(*numbers: int) -> None:
        threads.append(threading.Thread(target=send, args=numbers))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join()


def test_ranks_find_their_place_and_their_arguments(tmp_path: Path, ranks: Ranks) -> None:
    program = (
        "keys = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR')\n"
        "Path(f'rank{rank}').write_text(' '.join([os.environ[key] for key in keys] + sys.argv[1:]))\n"
    )
    assert ranks(program) == 0
    for rank in range(3):
        assert (tmp_path / f"rank{rank}").read_text() == f"{rank} {rank} 3 3 127.0.0.1 train base"


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize(
    ("signals", "program", "code"),
    [
        ([signal.SIGTERM], NOTE.format("SIGTERM", 75), 75),
        ([signal.SIGINT], NOTE.format("SIGINT", 130), 130),
        ([signal.SIGTERM], "", 75),
        ([signal.SIGINT], NOTE.format("SIGINT", 130) + f"if rank != 1: {DEAF}", 130),
        ([signal.SIGINT, signal.SIGINT], DEAF, 130),
    ],
    ids=["SIGTERM", "Ctrl-C", "too early to save", "one rank ends and the others wait for it", "a second Ctrl-C"],
)
def test_a_signal_ends_the_ranks_and_its_code_comes_back(
    ranks: Ranks, passing: Callable[..., None], signals: list[int], program: str, code: int
) -> None:
    passing(*signals)
    assert ranks(program + WAIT) == code


def test_what_a_rank_does_between_the_signal_and_its_end_is_waited_for(
    tmp_path: Path, ranks: Ranks, passing: Callable[..., None], short_grace: None
) -> None:
    passing(signal.SIGTERM)
    # None ends before all have saved: from then on the others have a second.
    saved = "    Path(f'saved{rank}').touch()\n    while len([*Path().glob('saved*')]) < 3: time.sleep(0.01)\n"
    saving = f"def save(number, frame):\n    time.sleep(1.5)\n{saved}    sys.exit(75)\n"
    assert ranks(saving + "signal.signal(signal.SIGTERM, save)\n" + WAIT) == 75
    assert len(list(tmp_path.glob("saved*"))) == 3


def test_what_lies_in_the_working_directory_and_in_an_outer_environment_does_not_reach_the_ranks(
    tmp_path: Path, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/tokenize.py").write_text("raise SystemExit(9)\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "work")
    for name, value in {"RANK": "7", "MASTER_PORT": "1", "SLURM_PROCID": "3"}.items():
        monkeypatch.setenv(name, value)
    program = (
        "import tokenize\nassert rank < 3\nassert os.environ['MASTER_PORT'] != '1'\nassert sys.stdin.read() == ''\n"
    )
    assert ranks(program) == 0


def test_a_rank_of_ours_is_not_under_the_torchrun_that_started_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "outer")
    assert is_under_torchrun()
    monkeypatch.setenv(LAUNCHED, "1")
    assert not is_under_torchrun()


@pytest.mark.usefixtures("short_grace")
def test_the_cursor_is_shown_again_where_the_first_rank_was_killed(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[bool] = []

    class Console:
        def show_cursor(self, show: bool) -> None:
            shown.append(show)

    monkeypatch.setattr(console, "is_interactive", lambda: True)
    monkeypatch.setattr(console, "stderr_console", Console)
    with pytest.raises(TrainingError):
        ranks("os.kill(os.getpid(), signal.SIGKILL)\n")
    assert shown == [True]


@pytest.mark.usefixtures("short_grace")
def test_a_rank_that_is_killed_ends_the_others_with_a_message(ranks: Ranks) -> None:
    with pytest.raises(TrainingError) as caught:
        ranks("if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n" + WAIT)
    error = caught.value
    assert error.exit_code == 7
    assert error.message == "rank 1 of 3 was ended by SIGKILL"
    assert error.where is not None
    assert error.where.startswith("process ")
    assert error.hint == (
        "look for a lack of memory with dmesg, or find what killed it; "
        "the same command, without --restart, continues from the newest checkpoint"
    )


@pytest.mark.usefixtures("short_grace")
def test_a_rank_that_ends_without_a_word_is_named(ranks: Ranks) -> None:
    with pytest.raises(TrainingError, match=r"(?m)^rank 2 of 3 ended with code 9$"):
        ranks("if rank == 2: os._exit(9)\n" + WAIT)


def test_the_failure_that_a_rank_has_told_of_is_not_told_again(
    ranks: Ranks, repository: Path, capfd: pytest.CaptureFixture[str], short_grace: None
) -> None:
    claim = (
        f"sys.path[:0] = ['{repository / 'src'}']\n"
        "del sys.modules['nmt_cli']\nsys.path.remove(os.environ['PYTHONPATH'])\n"
        "from nmt_cli.training.ranks import ranks\n"
        "ranks._CAUSE_SECONDS = 100.0\n"
        f"{READY}"
        "while rank == 1 and not Path('ready2').exists(): time.sleep(0.01)\n"
        "time.sleep(0.5 if rank == 1 else 0)\n"
        "first = ranks.record_failure(6 if rank == 1 else 7, is_consequence=rank == 2)\n"
        "print(rank, first, file=sys.stderr, flush=True)\n"
        "Path(f'told{rank}').touch()\n"
        "while not Path('told2').exists(): time.sleep(0.01)\n"
        "sys.exit(6 if first is None else first.exit_code)\n"
    )
    assert ranks(f"if rank == 0:\n    time.sleep(600)\n{claim}") == 6
    told = capfd.readouterr().err.splitlines()
    assert sorted(told) == ["1 None", "2 Failure(exit_code=6, is_stall=False)"]  # rank 2 had only lost rank 1
