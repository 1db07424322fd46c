"""Of several ranks that fail, one tells; of its message the others are the consequence."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch import distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # documented there, and not declared

from nmt_cli.training import bulletin as module
from nmt_cli.training.bulletin import Bulletin, Failure, failure_before, find_bulletin
from nmt_cli.training.distributed import ConnectionLost, Ranks


@pytest.fixture
def bulletin(monkeypatch: pytest.MonkeyPatch) -> Bulletin:
    """The board that every process finds."""
    board = Bulletin(HashStore())
    monkeypatch.setattr(module, "find_bulletin", lambda: board)
    monkeypatch.setattr(module, "_CAUSE_SECONDS", 0.5)
    return board


def test_only_the_first_that_fails_tells(bulletin: Bulletin) -> None:
    assert bulletin.failure() is None
    assert failure_before(4, is_consequence=False) is None
    assert failure_before(6, is_consequence=False) == Failure(4, is_stall=False)
    assert bulletin.failure() == Failure(4, is_stall=False)


def test_a_lost_connection_waits_for_its_cause(bulletin: Bulletin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CAUSE_SECONDS", 60.0)
    cause = threading.Timer(0.2, bulletin.claim, [Failure(6, is_stall=False)])
    cause.start()
    assert failure_before(7, is_consequence=True) == Failure(6, is_stall=False)
    cause.join()


def test_a_lost_connection_is_told_where_nobody_tells_why(bulletin: Bulletin) -> None:
    start = time.monotonic()
    assert failure_before(7, is_consequence=True) is None
    assert time.monotonic() - start > 0.4
    assert bulletin.failure() == Failure(7, is_stall=False)


def test_without_a_board_each_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert find_bulletin() is None
    assert failure_before(4, is_consequence=False) is None


def test_another_attempt_of_torchrun_begins_without_the_failures_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert Bulletin(store).claim(Failure(4, is_stall=False)) is None
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert Bulletin(store).failure() is None


def test_a_collective_that_fails_is_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("Connection closed by peer [127.0.0.1]:3321\n in gloo")

    monkeypatch.setattr(dist, "all_reduce", broken)
    with pytest.raises(ConnectionLost) as caught:
        Ranks(1, 4, torch.device("cpu")).sum(torch.ones(2))
    error = caught.value
    assert error.exit_code == 7
    assert error.message == "rank 1 of 4 lost the connection to the others"
    assert error.where == "Connection closed by peer [127.0.0.1]:3321"
    assert error.hint == "look for what ended another process; the same command continues from the newest checkpoint"
