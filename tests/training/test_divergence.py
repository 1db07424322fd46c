"""A training that diverges says which sentences it was at, and which checkpoint is the last good one."""

from __future__ import annotations

import math
import shlex
from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.cli.average import average
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.errors import TrainingError
from nmt_cli.training.state import LossCourse
from nmt_cli.training.update import LaunchedUpdate, Updater, UpdateResult
from tests.training.feeding import pairs_of_update
from tests.training.tiny import checkpoints, events, spoil, train

SETTINGS = (
    "training.updates=12",
    "training.checkpoint_every=2",
    "training.log_every=1",
    "training.max_skipped_updates=1",
)


@dataclass
class WithLoss:
    """A launched update that tells of another loss."""

    launched: LaunchedUpdate
    smoothed: float

    def result(self) -> UpdateResult:
        return replace(self.launched.result(), smoothed=self.smoothed)


def raise_losses(patch: pytest.MonkeyPatch, updates: Container[int], *, loss: float) -> None:
    """Let some updates tell of a mean loss that they did not have."""
    launch = Updater.launch

    def raised(self: Updater, *arguments: Any, number: int, target_tokens: int, **options: Any) -> object:
        launched = launch(self, *arguments, number=number, target_tokens=target_tokens, **options)
        return WithLoss(launched, loss * target_tokens) if number in updates else launched

    patch.setattr(Updater, "launch", raised)


def test_a_rise_of_the_loss_ends_the_training_and_names_the_checkpoint_before(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    raise_losses(monkeypatch, [7, 8], loss=50.0)
    # Two losses of 50 raise the mean by 2 * (50 - 6) / 50 nats; the checkpoint between them shows a rise of the last 5.
    settings = (*SETTINGS, "training.spike_nats=1", "training.checkpoint_every=1")
    with pytest.raises(TrainingError) as caught:
        train(prepared, run, *settings)
    assert caught.value.message.startswith("the mean loss has risen from ")
    assert caught.value.message.endswith(" nats by update 8; the last good checkpoint is that of update 6")
    *words, model = shlex.split(caught.value.hint.partition("--init-from: ")[2])
    assert words == ["nmt", "average", str(run / "checkpoints/update-00000006"), "-o"]
    assert checkpoints(run)[-1] == 7
    average([Path(words[2])], output=Path(model), last=None, best=None, overwrite=False)
    assert train(prepared, tmp_path / "new", *SETTINGS, init_from=Path(model)) == 0


def test_losses_that_are_not_finite_name_the_micro_batch(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, [5], spoils_loss=True)
    assert train(prepared, tmp_path / "run", *SETTINGS, "training.updates=6") == 0
    (skipped,) = events(tmp_path / "run", "skipped")
    assert skipped["pairs"] == sorted(pairs_of_update(prepared, 5)[1])


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
