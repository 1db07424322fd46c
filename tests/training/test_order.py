"""The order of the data: every pair once an epoch, the same updates on any number of devices, and a position in it."""

from __future__ import annotations

import logging
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from nmt_cli.dataset.rows import Array, Rows
from nmt_cli.dataset.store import PreparedData
from nmt_cli.errors import DataError, RecipeError
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training.order import DataOrder
from tests.training.tiny import RECIPE, prepare_tiny, train


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    return tmp_path / "tiny.yaml"


def order_of(data: PreparedData, recipe: Recipe, *, world_size: int = 1) -> DataOrder:
    return DataOrder(data, recipe, world_size=world_size, fallback=data.directory / "not-needed")


def updates(order: DataOrder, number: int) -> list[list[int]]:
    """The pairs of the next updates."""
    return [pairs_of(order.next()).tolist() for _ in range(number)]


def pairs_of(micro: list[Rows]) -> Array:
    """The pairs of all the micro-batches of an update."""
    return np.asarray(np.concatenate(micro)["pair"]).astype(np.int64)


def test_each_epoch_has_every_pair_once_and_its_own_order(prepared: PreparedData, recipe_file: Path) -> None:
    order = order_of(prepared, load_recipe(recipe_file))
    epochs = []
    for epoch in range(3):
        epochs.append(updates(order, order.updates_in_epoch))
        assert (order.epoch, order.index) == (epoch, order.updates_in_epoch)
        order.next()
        assert (order.epoch, order.index) == (epoch + 1, 1)
        order.move_to(epoch=epoch + 1, index=0)
    for taken in epochs:
        assert sorted(pair for update in taken for pair in update) == list(range(400))
    assert epochs[0] != epochs[1] != epochs[2]


def test_another_seed_gives_another_order(prepared: PreparedData, recipe_file: Path) -> None:
    first, same, other = (
        updates(order_of(prepared, load_recipe(recipe_file, overrides=[f"training.seed={seed}"])), 5)
        for seed in (1, 1, 2)
    )
    assert first == same != other


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_updates_are_the_same_on_any_number_of_devices(
    prepared: PreparedData, recipe_file: Path, world_size: int
) -> None:
    recipe = load_recipe(recipe_file)
    alone, together = order_of(prepared, recipe), order_of(prepared, recipe, world_size=world_size)
    for _ in range(20):
        expected, micro = alone.next(), together.next()
        assert sorted(pairs_of(micro).tolist()) == sorted(pairs_of(expected).tolist())
        assert len(micro) % world_size == 0
        assert together.target_tokens(micro) == alone.target_tokens(expected)


def test_tokens_are_those_of_the_pairs_and_fit_the_device(prepared: PreparedData, recipe_file: Path) -> None:
    pairs = prepared.split("train")
    order = order_of(prepared, load_recipe(recipe_file))
    for _ in range(order.updates_in_epoch):
        micro = order.next()
        of_pairs = pairs_of(micro)
        assert order.target_tokens(micro) == sum(len(pairs.tgt[pair]) for pair in of_pairs)
        assert order.source_tokens(micro) == sum(len(pairs.src[pair]) for pair in of_pairs)
        for part in micro:
            assert max(sum(len(side[pair]) for pair in part["pair"]) for side in (pairs.src, pairs.tgt)) <= 320


@pytest.mark.parametrize("taken", [0, 1, 7, 14, 15, 16, 33])
def test_from_a_position_the_same_updates_follow(prepared: PreparedData, recipe_file: Path, taken: int) -> None:
    recipe = load_recipe(recipe_file)
    order = order_of(prepared, recipe)
    updates(order, taken)
    later = order_of(prepared, recipe)
    later.move_to(epoch=order.epoch, index=order.index)
    assert updates(later, 20) == updates(order, 20)


def test_a_plan_damaged_under_way_is_built_anew_and_the_same_updates_follow(
    recipe_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, recipe = prepare_tiny(tmp_path), load_recipe(recipe_file)
    order = order_of(data, recipe)
    expected = updates(order, order.updates_in_epoch)
    order.move_to(epoch=0, index=0)
    (plan,) = (path for path in (data.directory / "plans").iterdir() if path.is_dir())
    (plan / "rows").write_bytes(bytes((plan / "rows").stat().st_size))
    assert updates(order, order.updates_in_epoch) == expected
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"the plan {plan.name}: the rows of update 0 are not those that were written: it is built anew"
    ]


def test_a_dry_run_plans_nothing(tmp_path: Path) -> None:
    data = prepare_tiny(tmp_path)
    before = sorted(data.directory.iterdir())
    assert train(data, tmp_path / "run", dry_run=True) == 0
    assert sorted(data.directory.iterdir()) == before


def test_the_longest_micro_batch_is_full_of_the_longest_pairs(prepared: PreparedData, recipe_file: Path) -> None:
    pairs = prepared.split("train")
    longest = order_of(prepared, load_recipe(recipe_file)).longest["pair"].astype(np.int64)
    size = np.maximum(pairs.src.lengths, pairs.tgt.lengths)
    others = np.delete(size, longest)
    assert size[longest].min() >= others.max()
    assert 320 - others.max() < max(pairs.src.lengths[longest].sum(), pairs.tgt.lengths[longest].sum()) <= 320


def test_pairs_longer_than_the_positions_are_left_out_and_counted(
    prepared: PreparedData, recipe_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = prepared.split("train")
    short = np.flatnonzero(np.maximum(pairs.src.lengths, pairs.tgt.lengths) <= 20).tolist()
    assert 0 < len(short) < 400
    order = order_of(prepared, load_recipe(recipe_file, overrides=["model.max_positions=20"]))
    taken = updates(order, order.updates_in_epoch)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"{400 - len(short)} pairs are longer than model.max_positions and are left out"
    ]
    assert sorted(pair for update in taken for pair in update) == short


def test_no_pair_left_is_an_error(prepared: PreparedData, recipe_file: Path) -> None:
    with pytest.raises(DataError, match=r"^no training pair is left$") as caught:
        order_of(prepared, load_recipe(recipe_file, overrides=["model.max_positions=2"])).next()
    assert caught.value.hint == "raise model.max_positions"


def test_a_sentence_that_no_device_takes_is_an_error_whose_hint_helps(
    prepared: PreparedData, recipe_file: Path
) -> None:
    with pytest.raises(RecipeError) as caught:
        order_of(prepared, load_recipe(recipe_file, overrides=["training.max_tokens_per_device=16"])).next()
    error = caught.value
    assert error.exit_code == 3
    longest = max(max(len(row) for row in side) for side in (prepared.split("train").src, prepared.split("train").tgt))
    assert error.message == (f"a training sentence has {longest} pieces, more than training.max_tokens_per_device, 16")
    assert error.where == "training.max_tokens_per_device"
    setting = f"training.max_tokens_per_device={longest}"
    assert error.hint == f"--set {setting}, or prepare with a smaller cleaning.max_words"
    order = order_of(prepared, load_recipe(recipe_file, overrides=[setting]))
    assert len(list(islice(iter(order.next, None), 20))) == 20
