"""The watchdog of a rank: what counts as progress, and how a process ends that waits in vain."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]  # documented there, and not declared

from nmt_cli.training.ranks import watchdog
from nmt_cli.training.ranks.ranks import FailureBoard, Ranks
from nmt_cli.training.ranks.watchdog import watching
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The codes that processes end with."""
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise RuntimeError("no more of this process")

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(watchdog, "_TICK_SECONDS", 0.01)
    return codes


@pytest.fixture
def ranks() -> tuple[Ranks, Ranks]:
    """Two ranks with one board."""
    store = HashStore()
    one, two = (Ranks(rank, 2, torch.device("cpu"), FailureBoard(store)) for rank in (0, 1))
    return one, two


@contextmanager
def again_and_again(action: Callable[[], None]) -> Iterator[None]:
    """Do something every few milliseconds while the block runs."""
    done = threading.Event()

    def work() -> None:
        while not done.wait(0.003):
            action()

    thread = threading.Thread(target=work)
    thread.start()
    yield
    done.set()
    thread.join()


def test_ranks_that_stand_still_end_with_a_message_of_the_first_and_the_stacks_of_each(
    ranks: tuple[Ranks, Ranks], exits: list[int], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_TICK_SECONDS", 0.1)
    monkeypatch.setattr(watchdog, "_TURN_SECONDS", 0.5)  # longer than a thread of a busy machine stands still
    monkeypatch.setattr(watchdog, "_DUMP_SECONDS", 1.0)
    with watching(ranks[0], seconds=1), watching(ranks[1], seconds=1):
        wait_until(lambda: len(exits) >= 2)
    assert exits == [7, 7]
    lines = capfd.readouterr().err.splitlines()
    assert lines[:3] == [
        "error: none of the ranks has made progress for 1 seconds: the training hangs",
        "at:    training.watchdog_seconds",
        "fix:   the stacks below show what each rank waits for;"
        " the same command, without --restart, continues from the newest checkpoint",
    ]
    titles = [line for line in lines if line.startswith("rank ")]
    assert [title.partition(",")[0] for title in titles] == ["rank 0 of 2", "rank 1 of 2"]
    assert sum("test_ranks_that_stand_still" in line for line in lines) == 2


def test_a_rank_that_waits_while_another_works_is_left_in_peace(ranks: tuple[Ranks, Ranks], exits: list[int]) -> None:
    waits, works = ranks
    with (
        again_and_again(works.beat),
        watching(works, seconds=1),
        watching(waits, seconds=1),  # 100 ticks
    ):
        time.sleep(1.3)
    assert exits == []


@pytest.mark.parametrize("code", [5, 75])
def test_a_rank_that_cannot_notice_another_one_s_failure_ends_with_its_code(
    ranks: tuple[Ranks, Ranks], exits: list[int], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    waits, fails = ranks
    assert fails.board is not None
    assert fails.board.claim(code) is None
    assert fails.board.claim(1) == code
    with watching(waits, seconds=600):
        wait_until(lambda: bool(exits))
    assert exits == [code]
    assert capfd.readouterr().err == ""
