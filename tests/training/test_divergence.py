"""A training that diverges says which sentences it was at, and returns to where all was well, a few times."""

from __future__ import annotations

import json
import logging
import math
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from nmt_cli.dataset.batches import Batch
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.errors import TrainingError
from nmt_cli.training.checkpoint_folder import CheckpointFolder
from nmt_cli.training.state import LossCourse, TrainingState, describe_pairs
from nmt_cli.training.update import LaunchedUpdate, Updater, UpdateResult
from tests.training.test_trainer import pairs_of_update
from tests.training.tiny import checkpoint, checkpoints, events, stopped_after, train

SETTINGS = (
    "training.updates=12",
    "training.checkpoint_every=2",
    "training.log_every=1",
    "training.max_skipped_updates=1",
)
Taken = list[tuple[int, int]]
Batches = list[tuple[int, Batch]]


@dataclass
class WithLoss:
    """A launched update that tells of another loss."""

    launched: LaunchedUpdate
    smoothed: float

    def result(self) -> UpdateResult:
        return replace(self.launched.result(), smoothed=self.smoothed)


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Taken]:
    """Trouble with the data at some places of the first epoch: gradients that are not finite, or losses far too high.

    Returns the updates that are taken, with their places.
    """
    return partial(install_trouble, monkeypatch)


def install_trouble(patch: pytest.MonkeyPatch, *places: int, loss: float = math.nan) -> Taken:
    launch, accumulate = Updater.launch, Updater.accumulate
    taken: Taken = []
    seen: dict[str, int] = {}

    def troubled(self: Updater, batches: Batches, *, target_tokens: int, **rest: Any) -> LaunchedUpdate | WithLoss:
        place = seen.setdefault(str([batch.source.ids.tolist() for _, batch in batches]), len(seen))
        taken.append((rest["number"], place))
        launched = launch(self, batches, target_tokens=target_tokens, **rest)
        return WithLoss(launched, loss * target_tokens) if place in places and loss > 0 else launched

    def spoilt(self: Updater, *arguments: Any, **options: Any) -> Tensor:
        found = accumulate(self, *arguments, **options)
        if taken and taken[-1][1] in places and math.isnan(loss):
            self.weights.gradients[3] = math.nan
        return found

    patch.setattr(Updater, "launch", troubled)
    patch.setattr(Updater, "accumulate", spoilt)
    return taken


@pytest.fixture(scope="module")
def whole(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Taken, list[str]]:
    """The run that returns from trouble at places 5 and 6, and is not stopped; its updates, and its warnings."""
    run, heard, log = tmp_path_factory.mktemp("whole") / "run", BufferingHandler(1000), logging.getLogger("nmt_cli")
    log.addHandler(heard)
    with pytest.MonkeyPatch.context() as patch:
        taken = install_trouble(patch, 5, 6)
        assert train(prepared, run, *SETTINGS) == 0
    log.removeHandler(heard)
    return run, taken, [record.getMessage() for record in heard.buffer]


def test_gradients_that_stay_not_finite_lead_back_to_the_checkpoint_before_and_on_with_other_pairs(
    prepared: PreparedData, whole: tuple[Path, Taken, list[str]]
) -> None:
    run, taken, warnings = whole
    # Updates 6 and 7 have no good gradients; update 6 was saved, but after the first of them.
    assert taken[:10] == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5), (7, 6), (5, 7), (6, 8), (7, 9)]
    problem = "2 updates in a row had gradients that are not finite, the last at update 7"
    (returned,) = events(run, "returned")
    worst = returned.pop("worst")
    assert returned == {"event": "returned", "update": 7, "to": 4, "reason": problem}
    assert {entry["update"] for entry in worst[:2]} == {6, 7}
    pairs = sorted(chain(*pairs_of_update(prepared, 6)))
    assert {"update": 6, "loss": None, "pairs": pairs} in worst
    assert events(run, "skipped")[0]["pairs"] == pairs
    assert f"update 6 is skipped: its gradients are not finite ({describe_pairs(pairs)})" in warnings
    assert f"{problem}: back to update 4, and on with other pairs ({run / 'metrics.jsonl'})" in warnings
    state = json.loads(checkpoint(run, 12)["state.json"])
    assert (state["update"], state["applied"], state["returns"], state["epoch"], state["index"]) == (12, 12, 1, 0, 15)


# After update 5, shortly before the trouble, it is saved for the stop alone; during update 7 it returns.
def test_a_training_that_is_stopped_around_a_return_ends_in_the_same_bits(
    prepared: PreparedData, whole: tuple[Path, Taken, list[str]], tmp_path: Path, trouble: Callable[..., Taken]
) -> None:
    trouble(5, 6)
    for update in (5, 6, 7, 8):
        with stopped_after(update, signal.SIGTERM):
            assert train(prepared, tmp_path / "run", *SETTINGS) == 75
    assert train(prepared, tmp_path / "run", *SETTINGS) == 0
    assert checkpoint(tmp_path / "run", 12) == checkpoint(whole[0], 12)


def test_a_kill_between_the_parts_of_a_return_changes_nothing(
    prepared: PreparedData,
    whole: tuple[Path, Taken, list[str]],
    tmp_path: Path,
    trouble: Callable[..., Taken],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = CheckpointFolder._write_state

    def killed_after_a_return(self: CheckpointFolder, directory: Path, state: TrainingState, measured: Any) -> None:
        if state.returns == 1:
            raise KeyboardInterrupt
        write(self, directory, state, measured)

    trouble(5, 6)
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "_write_state", killed_after_a_return)
        with pytest.raises(KeyboardInterrupt):
            train(prepared, tmp_path / "run", *SETTINGS)
    assert checkpoints(tmp_path / "run") == [2, 4]
    assert train(prepared, tmp_path / "run", *SETTINGS) == 0
    assert checkpoint(tmp_path / "run", 12) == checkpoint(whole[0], 12)


def test_a_rise_of_the_loss_leads_back_too(
    prepared: PreparedData, tmp_path: Path, trouble: Callable[..., Taken], caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    taken = trouble(6, 7, loss=50.0)
    assert train(prepared, run, *SETTINGS, "training.spike_nats=1") == 0
    # Two losses of 50 raise the mean by 2 * (50 - 6) / 50 nats; the checkpoint between them shows a rise of the last 5.
    assert taken[6:11] == [(7, 6), (8, 7), (7, 8), (8, 9), (9, 10)]
    (returned,) = events(run, "returned")
    assert (returned["update"], returned["to"]) == (8, 6)
    assert returned["reason"].startswith("the mean loss has risen from ")
    assert {entry["update"] for entry in returned["worst"][:2]} == {7, 8}
    assert returned["worst"][0]["loss"] == pytest.approx(50)
    assert json.loads(checkpoint(run, 12)["state.json"])["returns"] == 1


def test_without_a_checkpoint_it_begins_anew_with_other_pairs(
    prepared: PreparedData, tmp_path: Path, trouble: Callable[..., Taken]
) -> None:
    taken = trouble(0, 1)
    assert train(prepared, tmp_path / "run", *SETTINGS) == 0
    assert taken[:4] == [(1, 0), (2, 1), (1, 2), (2, 3)]
    (returned,) = events(tmp_path / "run", "returned")
    assert (returned["update"], returned["to"]) == (2, 0)


def test_after_a_number_of_returns_training_fails_and_says_what_to_try(
    prepared: PreparedData, tmp_path: Path, trouble: Callable[..., Taken]
) -> None:
    trouble(*range(4, 100))
    run = tmp_path / "run"
    for _ in range(2):  # the same command fails in the same way
        with pytest.raises(TrainingError) as caught:
            train(prepared, run, *SETTINGS, "training.max_returns=2")
        error = caught.value
        assert error.message == (
            "2 updates in a row had gradients that are not finite, the last at update 6,"
            " after 2 return(s) to an earlier checkpoint"
        )
        assert error.where == str(run / "metrics.jsonl")
        assert "lower the learning rate" in error.hint
    assert [event["to"] for event in events(run, "returned")] == [4, 4]


def test_losses_that_are_not_finite_name_the_micro_batch(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_update_5(monkeypatch)
    assert train(prepared, tmp_path / "run", *SETTINGS, "training.updates=6") == 0
    (skipped,) = events(tmp_path / "run", "skipped")
    assert skipped["pairs"] == sorted(pairs_of_update(prepared, 5)[1])


def spoil_update_5(patch: pytest.MonkeyPatch) -> None:
    """Put NaN into the gradients and one loss of update 5."""
    accumulate = Updater.accumulate

    def spoilt(self: Updater, *arguments: Any, key: tuple[int, int], **options: Any) -> Tensor:
        figures = accumulate(self, *arguments, key=key, **options)
        if key == (5, 1):
            self.weights.gradients[7] = figures[0] = math.nan
        return figures

    patch.setattr(Updater, "accumulate", spoilt)


def test_the_course_is_that_of_the_running_means() -> None:
    course = LossCourse()
    assert not course.has_spike(1.0)
    assert course.is_stable(1.0)
    recent = mean = 4.0
    lowest = 4.0
    for loss in [4.0, 3.0, 2.0, 2.0, 9.0, math.inf, math.nan]:
        course = course.after(loss)
        counted = loss if math.isfinite(loss) else 100.0
        recent, mean = 0.8 * recent + 0.2 * counted, 0.98 * mean + 0.02 * counted
        lowest = min(lowest, mean)
        assert (course.recent, course.mean, course.lowest) == pytest.approx((recent, mean, lowest))
    assert course.has_spike(mean - lowest - 0.01)
    assert not course.has_spike(mean - lowest + 0.01)
    assert not course.has_spike(None)
    assert course.is_stable(None)
    assert not course.is_stable(2.0)
