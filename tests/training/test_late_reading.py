"""A GPU's updates are read one update late. Forced on a CPU, late reading gives what immediate reading gives."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.errors import TrainingError
from nmt_cli.training.update import Updater
from tests.training.feeding import feed
from tests.training.tiny import checkpoint, checkpoints, events, spoil, stopped_after, train

SETTINGS = (
    "training.updates=14",
    "training.checkpoint_every=7",
    "training.log_every=1",
    "training.clip_norm=0.7",  # some norms are larger, some smaller
    "training.max_skipped_updates=1",
)
_OF_THE_CLOCK = ("time", "target_tokens_per_second", "matrix_rate_share", "waiting", "memory_gb", "seconds", "path")
Install = Callable[[pytest.MonkeyPatch], object]


def reads_late(patch: pytest.MonkeyPatch) -> None:
    """Let updaters read as they do on a GPU, and the device decide."""
    patch.setattr(Updater, "reads_late", True)


def assert_late_equals_immediate(
    folder: Path, train_one: Callable[[Path], None], install: Install = lambda patch: None
) -> None:
    """Train FOLDER/late and FOLDER/immediate with the same trouble: they tell the same, and end in the same bits."""
    late, immediate = folder / "late", folder / "immediate"
    for run in (late, immediate):
        with pytest.MonkeyPatch.context() as patch:
            install(patch)
            if run == late:
                reads_late(patch)
            train_one(run)
    assert checkpoints(late) == checkpoints(immediate) != []
    for number in checkpoints(late):
        assert checkpoint(late, number) == checkpoint(immediate, number), number
    ours, theirs = (
        [{key: value for key, value in line.items() if key not in _OF_THE_CLOCK} for line in events(run)]
        for run in (late, immediate)
    )
    assert ours == theirs


@pytest.mark.parametrize(
    "install", [lambda patch: None, lambda patch: spoil(patch, [5], spoils_loss=True)], ids=["calm", "skipped"]
)
def test_a_training_that_reads_late_is_the_one_that_reads_at_once(
    prepared: PreparedData, tmp_path: Path, install: Install
) -> None:
    optimizer = "training.optimizer={name: adamw}"

    def train_one(run: Path) -> None:
        assert train(prepared, run, *SETTINGS, optimizer) == 0

    assert_late_equals_immediate(tmp_path, train_one, install)


@pytest.mark.parametrize(("last", "number", "code"), [(4, signal.SIGTERM, 75), (7, signal.SIGINT, 130)])
def test_a_stop_comes_after_the_same_update(
    prepared: PreparedData, tmp_path: Path, last: int, number: int, code: int
) -> None:
    def train_one(run: Path) -> None:
        with stopped_after(last, number):
            assert train(prepared, run, *SETTINGS) == code
        assert checkpoints(run) == [last]
        assert train(prepared, run, *SETTINGS) == 0

    assert_late_equals_immediate(tmp_path, train_one)


# The first ends at update 8, where a checkpoint is due; the other with update 11 in flight.
@pytest.mark.parametrize("updates", [(7, 8), (9, 10)])
def test_a_divergence_is_the_same_error(prepared: PreparedData, tmp_path: Path, updates: tuple[int, int]) -> None:
    problem = f"2 updates in a row had gradients that are not finite, the last at update {updates[1]}"

    def train_one(run: Path) -> None:
        with pytest.raises(TrainingError, match=f"^{problem}"):
            train(prepared, run, *SETTINGS, "training.checkpoint_every=4")

    assert_late_equals_immediate(tmp_path, train_one, lambda patch: spoil(patch, updates))


@pytest.mark.gpu
def test_a_gpu_skips_and_clips_without_the_host(prepared: PreparedData, monkeypatch: pytest.MonkeyPatch) -> None:
    given = feed(prepared, "training.clip_norm=0.25", device="cuda")
    updater = given.updater("bf16")
    assert updater.reads_late
    spoil(monkeypatch, [5], spoils_loss=True)
    for number, pairs in given.updates(6):
        held = [updater.weights.values, *updater.optimizer.state.values()]
        before = [tensor.clone() for tensor in held]
        result = given.give(updater, number, pairs)
        assert result.is_applied == (number != 5)
        is_alike = [torch.equal(tensor, old) for tensor, old in zip(held, before, strict=True)]
        assert all(is_alike) if number == 5 else not is_alike[0]
        if number != 5:
            # The norm is that before clipping; bf16 gradients were summed in float32.
            assert float(updater.weights.gradients.norm()) == pytest.approx(min(result.gradient_norm, 0.25), rel=1e-4)
    assert given.give(updater, 5, pairs).suspects == [1]
