"""Batches made ahead by a thread: the same, in the same order, no more than are needed, and no thread is left."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch

from nmt_cli.dataset.batches import Batch, make_batch
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.dataset.sampled_pieces import SampledPieces
from nmt_cli.errors import DataError
from nmt_cli.training import data_order
from nmt_cli.training.data_order import DataOrder, PlannedUpdate
from nmt_cli.training.loader import LoadedUpdate, Loader
from nmt_cli.training.ranks.ranks import Ranks
from tests.training.feeding import order_of
from tests.training.tiny import tiny_recipe

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)


def loader_of(data: PreparedData, *, ranks: Ranks = ALONE) -> Loader:
    return Loader(order_of(data, tiny_recipe(), world_size=ranks.size), ranks, is_interrupted=lambda: False)


def taken(loader: Loader, *, num_left: int) -> LoadedUpdate:
    loaded = loader.next(num_left=num_left)
    assert loaded is not None
    return loaded


def is_running() -> bool:
    return any(thread.name == "nmt-loader" and thread.is_alive() for thread in threading.enumerate())


@pytest.mark.parametrize("rank", [0, 1])
def test_it_loads_what_the_order_gives_for_this_rank(prepared: PreparedData, rank: int) -> None:
    order, pairs = order_of(prepared, tiny_recipe(), world_size=2), prepared.split("train")
    with loader_of(prepared, ranks=Ranks(rank, 2, CPU)) as loader:
        for _ in range(20):  # into the second epoch
            loaded, update = taken(loader, num_left=99), order.next()
            assert (loaded.planned.epoch, loaded.planned.index) == (update.epoch, update.index)
            assert [rows["pair"].tolist() for rows in loaded.planned.micro_batches] == [
                rows["pair"].tolist() for rows in update.micro_batches
            ]
            assert [index for index, _ in loaded.batches] == list(range(rank, len(update.micro_batches), 2))
            for index, batch in loaded.batches:
                expected = make_batch(update.micro_batches[index], pairs, device=CPU, shape=order.shape, pinned=False)
                assert torch.equal(batch.source.ids, expected.source.ids)
                assert torch.equal(batch.gold, expected.gold)


def test_it_loads_one_update_ahead_and_none_beyond_the_last(
    prepared: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    gave = threading.Event()
    original = DataOrder.next

    def noted(self: DataOrder) -> PlannedUpdate:
        update = original(self)
        given.append(update.index)
        gave.set()
        return update

    monkeypatch.setattr(DataOrder, "next", noted)
    with loader_of(prepared) as loader:
        for num_left in (3, 2, 1):
            gave.clear()
            loader.next(num_left=num_left)
            if num_left > 1:
                assert gave.wait(timeout=60)
    assert given == [1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "more", "is_first_on_machine", "expected"),
    [
        (("tokenizer.dropout=0.1",), 1, True, [1]),
        (("tokenizer.dropout=0.1",), 0, True, []),  # the training ends with this epoch
        (("tokenizer.dropout=0.1",), 1, False, []),  # the first rank of the machine does it
        ((), 1, True, []),  # a plan without sampled pieces takes no time
    ],
)
def test_the_next_epoch_is_sampled_ahead_if_the_training_reaches_it(
    prepared: PreparedData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: tuple[str, ...],
    more: int,
    is_first_on_machine: bool,
    expected: list[int],
) -> None:
    begun: dict[int, int] = {}
    monkeypatch.setattr(SampledPieces, "sample_ahead", lambda _, epoch, num_workers: begun.update({epoch: num_workers}))
    monkeypatch.setattr(data_order, "BLOCK_PAIRS", 399)  # fewer pairs are sampled when they are needed
    order = order_of(prepared, tiny_recipe(*settings), run=tmp_path)
    num_updates = len(order.open()) + more
    ranks = Ranks(0, 1, CPU, is_first_on_machine=is_first_on_machine)
    with Loader(order, ranks, is_interrupted=lambda: False) as loader:
        for taken in range(num_updates - more):
            loader.next(num_left=num_updates - taken)
        assert list(begun) == expected
    assert set(begun.values()) <= {2}  # on a CPU, two processes


def test_what_the_thread_meets_with_is_raised_where_updates_are_taken(
    prepared: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> Batch:
        raise DataError("train.en.ids is cut short", hint="prepare it anew")

    with loader_of(prepared) as loader:
        loader.next(num_left=1)
        monkeypatch.setattr(data_order, "make_batch", broken)
        for _ in range(2):
            with pytest.raises(DataError, match="cut short") as caught:
                loader.next(num_left=1)
            assert caught.value.hint == "prepare it anew"
    assert not is_running()


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_no_thread_is_left(prepared: PreparedData, taken: int) -> None:
    interval = sys.getswitchinterval()
    loader = loader_of(prepared)

    def interrupted() -> None:
        with loader:
            for _ in range(taken):
                loader.next(num_left=99)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not is_running()
    assert sys.getswitchinterval() == pytest.approx(interval)


@pytest.mark.gpu
def test_on_a_gpu_batches_arrive_whole(prepared: PreparedData) -> None:
    device = torch.device("cuda")
    order, pairs = order_of(prepared, tiny_recipe()), prepared.split("train")
    with loader_of(prepared, ranks=Ranks(0, 1, device)) as loader:
        for _ in range(50):
            loaded, update = taken(loader, num_left=99), order.next()
            for index, batch in loaded.batches:
                expected = make_batch(update.micro_batches[index], pairs, device=CPU, shape=order.shape, pinned=False)
                assert batch.gold.device.type == "cuda"
                assert torch.equal(batch.source.ids.cpu(), expected.source.ids)
                assert torch.equal(batch.target.positions.cpu(), expected.target.positions)
                assert torch.equal(batch.gold.cpu(), expected.gold)
