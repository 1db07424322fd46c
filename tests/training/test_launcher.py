"""The launcher of several ranks: their codes, the signals to them, and what is said of one that is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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


def test_ranks_find_their_place_and_nothing_of_the_working_directory_or_an_outer_environment(
    tmp_path: Path, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/tokenize.py").write_text("raise SystemExit(9)\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("MASTER_PORT", "1")
    program = (
        "import tokenize\nassert os.environ['MASTER_PORT'] != '1'\nassert sys.stdin.read() == ''\n"
        "keys = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR')\n"
        "Path(f'rank{rank}').write_text(' '.join([os.environ[key] for key in keys] + sys.argv[1:]))\n"
    )
    assert ranks(program) == 0
    for rank in range(3):
        assert (tmp_path / f"work/rank{rank}").read_text() == f"{rank} {rank} 3 3 127.0.0.1 train base"


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


def test_a_rank_of_ours_is_not_under_the_torchrun_that_started_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "outer")
    assert is_under_torchrun()
    monkeypatch.setenv(LAUNCHED, "1")
    assert not is_under_torchrun()


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 of 3 was ended by SIGKILL"),
        ("os._exit(9)", "rank 1 of 3 ended with code 9"),
    ],
)
def test_a_rank_that_ends_without_a_word_ends_the_others_and_is_named(ranks: Ranks, end: str, message: str) -> None:
    with pytest.raises(TrainingError) as caught:
        ranks(f"if rank == 1: {end}\n{WAIT}")
    assert (caught.value.exit_code, caught.value.message) == (7, message)
