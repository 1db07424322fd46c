"""The order of the data: every pair once an epoch, the same updates on any number of devices, and a position in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt_cli.dataset.micro_batches import MicroBatchShape
from nmt_cli.dataset.plan_computation import compute_plan
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.errors import DataError, RecipeError
from nmt_cli.training import data_order
from nmt_cli.training.data_order import DataOrder, PlannedUpdate
from tests.training.feeding import MAX_TOKENS, order_of
from tests.training.tiny import prepare_tiny, tiny_recipe, train


def updates(order: DataOrder, number: int) -> list[list[int]]:
    """The pairs of the next updates."""
    return [pairs_of(order.next()) for _ in range(number)]


def pairs_of(update: PlannedUpdate) -> list[int]:
    """The pairs of all the micro-batches of an update."""
    return [pair for part in update.micro_batches for pair in part["pair"].tolist()]


def test_each_epoch_has_every_pair_once_and_its_own_order(prepared: PreparedData) -> None:
    order = order_of(prepared, tiny_recipe())
    epochs = []
    for epoch in range(3):
        epochs.append(updates(order, len(order.open())))
        assert (order.epoch, order.index) == (epoch, len(order.open()))
        order.next()
        assert (order.epoch, order.index) == (epoch + 1, 1)
        order.move_to(epoch=epoch + 1, index=0)
    for taken in epochs:
        assert sorted(pair for update in taken for pair in update) == list(range(400))
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_updates_are_the_same_on_any_number_of_devices(prepared: PreparedData, world_size: int) -> None:
    recipe = tiny_recipe()
    alone, together = order_of(prepared, recipe), order_of(prepared, recipe, world_size=world_size)
    for _ in range(20):
        expected, update = alone.next(), together.next()
        assert sorted(pairs_of(update)) == sorted(pairs_of(expected))
        assert len(update.micro_batches) % world_size == 0
        assert (update.source_tokens, update.target_tokens) == (expected.source_tokens, expected.target_tokens)


def test_an_update_knows_its_tokens_its_slots_and_the_position_after_it(prepared: PreparedData) -> None:
    pairs = prepared.split("train")
    order = order_of(prepared, tiny_recipe())
    number = len(order.open())
    for index in range(1, number + 1):
        update = order.next()
        of_pairs = pairs_of(update)
        assert update.target_tokens == pairs.tgt.lengths[of_pairs].sum()
        assert update.source_tokens == pairs.src.lengths[of_pairs].sum()
        assert max(update.source_tokens, update.target_tokens) <= 600
        assert update.slots == len(update.micro_batches) * (order.shape.src_slots + order.shape.tgt_slots)
        assert (update.epoch, update.index) == (order.epoch, order.index) == (0, index)
        for part in update.micro_batches:
            for side, slots in ((pairs.src, order.shape.src_slots), (pairs.tgt, order.shape.tgt_slots)):
                assert side.lengths[part["pair"]].sum() <= slots <= MAX_TOKENS
    update = order.next()
    assert (update.epoch, update.index) == (1, 1)


def test_the_shape_is_the_same_in_all_epochs_and_from_any_position(prepared: PreparedData) -> None:
    recipe = tiny_recipe()
    order = order_of(prepared, recipe)
    shapes = {order.shape}
    for epoch, index in ((0, 0), (0, 5), (1, 0), (7, 3)):
        later = order_of(prepared, recipe)
        later.move_to(epoch=epoch, index=index)
        shapes.add(later.shape)
        later.next()
        shapes.add(later.shape)
    updates(order, 40)
    shapes.add(order.shape)
    assert len(shapes) == 1
    (shape,) = shapes
    assert max(shape.src_slots, shape.tgt_slots) <= MAX_TOKENS
    assert shape.length_bound == 128


def test_a_device_that_takes_less_at_once_has_another_shape_and_the_same_updates(prepared: PreparedData) -> None:
    recipe = tiny_recipe()
    order, expected = order_of(prepared, recipe), order_of(prepared, recipe)
    before = order.shape
    assert order.max_tokens == MAX_TOKENS
    assert len(order.next().micro_batches) == len(expected.next().micro_batches) == 2
    order.limit(150)
    assert order.max_tokens == 150
    assert isinstance(order.shape, MicroBatchShape)
    assert max(order.shape.src_slots, order.shape.tgt_slots) <= 150 < min(before.src_slots, before.tgt_slots)
    for _ in range(10):
        update = order.next()
        assert len(update.micro_batches) >= 4
        assert sorted(pairs_of(update)) == sorted(pairs_of(expected.next()))


@pytest.mark.parametrize("taken", [0, 1, 14, 15, 16, 33])
def test_from_a_position_the_same_updates_follow(prepared: PreparedData, taken: int) -> None:
    recipe = tiny_recipe()
    order = order_of(prepared, recipe)
    updates(order, taken)
    later = order_of(prepared, recipe)
    later.move_to(epoch=order.epoch, index=order.index)
    assert updates(later, 20) == updates(order, 20)


def test_data_that_was_prepared_anew_under_way_is_an_error_when_the_next_epoch_begins(
    own_data: PreparedData, tmp_path: Path
) -> None:
    data, order = own_data, order_of(own_data, tiny_recipe())
    order.next()
    other = prepare_tiny(tmp_path / "other", "cleaning.max_words=9")
    shutil.rmtree(data.directory)
    other.directory.rename(data.directory)
    assert updates(order, len(order.open()) - 1), "the files of this epoch are open"
    with pytest.raises(DataError) as caught:
        order.next()
    assert caught.value.message == f"{data.directory} was prepared anew, with other settings, while it was in use"
    assert caught.value.hint.startswith("prepare the earlier data again in another folder (-o)")
    for path in data.directory.glob("train.*.ids"):
        path.write_bytes(b"odd")  # as with a narrower vocabulary
    with pytest.raises(DataError, match="was prepared anew"):
        data.split("train")
    shutil.rmtree(data.directory)
    with pytest.raises(DataError, match="there is no prepared data"):
        data.split("train")


def test_on_other_hardware_a_training_plans_only_the_epoch_in_which_it_continues(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    settings = ("tokenizer.dropout=0.1", "training.max_tokens_per_device=auto")
    assert train(prepared, run, *settings, "training.updates=24") == 0
    record = json.loads((run / "run.json").read_text())
    record["max_tokens_per_device"]["device"] = "another CPU"
    (run / "run.json").write_text(json.dumps(record))
    shutil.rmtree(run / "sampled")
    planned: list[int] = []

    def noted(*arguments: Any, epoch: int, **options: Any) -> object:
        planned.append(epoch)
        return compute_plan(*arguments, epoch=epoch, **options)

    monkeypatch.setattr(data_order, "compute_plan", noted)
    assert train(prepared, run, *settings, "training.updates=25") == 0
    assert planned == [1]


def test_pairs_longer_than_the_positions_are_left_out_and_counted(
    prepared: PreparedData, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = prepared.split("train")
    short = np.flatnonzero(np.maximum(pairs.src.lengths, pairs.tgt.lengths) <= 20).tolist()
    assert 0 < len(short) < 400
    order = order_of(prepared, tiny_recipe("model.max_positions=20"))
    taken = updates(order, len(order.open()))
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"{400 - len(short)} pairs are longer than model.max_positions and are left out"
    ]
    assert sorted(pair for update in taken for pair in update) == short


def test_no_pair_left_is_an_error_whose_hint_helps(prepared: PreparedData) -> None:
    with pytest.raises(DataError) as caught:
        order_of(prepared, tiny_recipe("model.max_positions=2")).next()
    message, _, hint = str(caught.value).partition("\nfix: ")
    assert message.startswith("no training pair is left: all are longer than model.max_positions, 2\n")
    assert hint == f"--set model.max_positions={longest_sentence(prepared)}"
    order = order_of(prepared, tiny_recipe(hint.removeprefix("--set ")))
    assert sum(map(len, updates(order, len(order.open())))) == 400


def longest_sentence(data: PreparedData) -> int:
    pairs = data.split("train")
    return max(int(side.lengths.max()) for side in (pairs.src, pairs.tgt))


def test_a_sampled_sentence_that_no_device_may_take_is_an_error_whose_hint_helps(
    prepared: PreparedData, tmp_path: Path
) -> None:
    recipe, before = tiny_recipe("tokenizer.dropout=0.1"), longest_sentence(prepared)
    with pytest.raises(RecipeError) as caught:
        order_of(prepared, recipe, max_tokens=before, run=tmp_path).next()
    longest = order_of(prepared, recipe, run=tmp_path).max_tokens_in_sentence
    assert longest > before
    assert caught.value.message == (
        f"a sampled sentence may have up to {longest} pieces, more than training.max_tokens_per_device, {before}"
    )
    assert caught.value.hint == (
        f"--set training.max_tokens_per_device={longest}, or prepare with a smaller cleaning.max_words"
    )
    order_of(prepared, recipe, max_tokens=longest, run=tmp_path).next()


@pytest.mark.parametrize("key", ["training.max_tokens_per_device", "training.batch_tokens"])
def test_a_sentence_that_no_device_or_no_update_takes_is_an_error_whose_hint_helps(
    prepared: PreparedData, key: str
) -> None:
    def limited(tokens: int) -> DataOrder:
        if key == "training.batch_tokens":
            return order_of(prepared, tiny_recipe(f"{key}={tokens}"))
        return order_of(prepared, tiny_recipe(), max_tokens=tokens)

    longest = longest_sentence(prepared)
    with pytest.raises(RecipeError) as caught:
        limited(16).next()
    error = caught.value
    assert error.exit_code == 3
    assert error.message == f"a training sentence has {longest} pieces, more than {key}, 16"
    assert error.where == key
    assert error.hint == f"--set {key}={longest}, or prepare with a smaller cleaning.max_words"
    updates(limited(longest), 20)
