"""A GPU's updates are read one update late. Forced on a CPU, late reading gives what immediate reading gives."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt_cli.dataset.store import PreparedData
from nmt_cli.errors import TrainingError
from nmt_cli.model.transformer import Transformer
from nmt_cli.training import trainer
from nmt_cli.training.loss import Loss
from nmt_cli.training.reporting import metrics
from nmt_cli.training.update import LaunchedUpdate, Updater, UpdateResult, seed_dropout
from tests.training.feeding import feed
from tests.training.test_divergence import install_trouble
from tests.training.tiny import checkpoint, checkpoints, events, stopped_after, train

SETTINGS = (
    "training.updates=20",
    "training.checkpoint_every=7",
    "training.log_every=1",
    "training.clip_norm=0.7",  # some norms are larger, some smaller
    "training.max_skipped_updates=1",
)
_OF_THE_CLOCK = ("target_tokens_per_second", "matrix_rate_share", "waiting", "memory_gb", "seconds", "path")
Install = Callable[[pytest.MonkeyPatch], object]


def reads_late(patch: pytest.MonkeyPatch) -> None:
    """Let updaters read as they do on a GPU, and the device decide."""
    patch.setattr(Updater, "reads_late", True)


def spoil_update_5(patch: pytest.MonkeyPatch) -> None:
    """Put NaN into the gradients and one loss of update 5."""
    accumulate = Updater.accumulate

    def spoilt(self: Updater, *arguments: Any, key: tuple[int, int], **options: Any) -> Loss:
        loss = accumulate(self, *arguments, key=key, **options)
        if key == (5, 1):
            self.weights.gradients[7] = math.nan
            return Loss(loss.smoothed * math.nan, loss.nll)
        return loss

    patch.setattr(Updater, "accumulate", spoilt)


def told(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without times and places."""
    return [{key: value for key, value in line.items() if key not in _OF_THE_CLOCK} for line in events(run)]


def assert_alike(late: Path, immediate: Path) -> None:
    """The same checkpoints, and the same told of them."""
    assert checkpoints(late) == checkpoints(immediate) != []
    for number in checkpoints(late):
        assert checkpoint(late, number) == checkpoint(immediate, number), number
    assert told(late) == told(immediate)


# Trouble at places 5 and 6 of the data returns after update 7, which is saved; at 6 and 7 with update 9 in flight.
CASES: list[Install] = [
    lambda patch: None,
    spoil_update_5,
    lambda patch: install_trouble(patch, 5, 6),
    lambda patch: install_trouble(patch, 8, 9),
]


@pytest.mark.parametrize("install", CASES, ids=["calm", "skipped", "returned at a checkpoint", "returned in flight"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_training_that_reads_late_is_the_one_that_reads_at_once(
    prepared: PreparedData, tmp_path: Path, install: Install, optimizer: str
) -> None:
    for name in ("late", "immediate"):
        with pytest.MonkeyPatch.context() as patch:
            install(patch)
            if name == "late":
                reads_late(patch)
            settings = (*SETTINGS, f"training.optimizer={{name: {optimizer}}}")
            assert train(prepared, tmp_path / name, *settings) == 0
    assert_alike(tmp_path / "late", tmp_path / "immediate")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("last", [4, 7])
def test_a_stop_comes_after_the_same_update(prepared: PreparedData, tmp_path: Path, number: int, last: int) -> None:
    codes = []
    for name in ("late", "immediate"):
        with pytest.MonkeyPatch.context() as patch:
            if name == "late":
                reads_late(patch)
            with stopped_after(last, number):
                codes.append(train(prepared, tmp_path / name, *SETTINGS))
            assert checkpoints(tmp_path / name) == [last]
            codes.append(train(prepared, tmp_path / name, *SETTINGS))
    assert codes == 2 * [75 if number == signal.SIGTERM else 130, 0]
    assert_alike(tmp_path / "late", tmp_path / "immediate")


def test_a_divergence_without_a_return_is_the_same_error(prepared: PreparedData, tmp_path: Path) -> None:
    messages = []
    for name in ("late", "immediate"):
        with pytest.MonkeyPatch.context() as patch:
            install_trouble(patch, 8, 9)
            if name == "late":
                reads_late(patch)
            with pytest.raises(TrainingError) as caught:
                train(prepared, tmp_path / name, *SETTINGS, "training.max_returns=0")
            messages.append(caught.value.message)
    assert messages == 2 * ["2 updates in a row had gradients that are not finite, the last at update 10"]
    assert_alike(tmp_path / "late", tmp_path / "immediate")


@pytest.mark.gpu
def test_a_gpu_skips_and_clips_without_the_host(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = feed(prepared, tmp_path, "training.clip_norm=0.25", device="cuda")
    updater = given.updater("bf16")
    assert updater.reads_late
    spoil_update_5(monkeypatch)
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


@pytest.mark.parametrize("is_late", [True, False])
def test_late_is_after_the_next_launch_except_before_what_needs_the_result(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    order: list[str] = []
    launch, result = Updater.launch, LaunchedUpdate.result
    numbers: dict[int, int] = {}

    def noted(self: Updater, *arguments: Any, number: int, **options: Any) -> LaunchedUpdate:
        order.append(f"launch {number}")
        launched = launch(self, *arguments, number=number, **options)
        numbers[id(launched)] = number
        return launched

    def read(self: LaunchedUpdate) -> UpdateResult:
        order.append(f"read {numbers[id(self)]}")
        return result(self)

    monkeypatch.setattr(Updater, "launch", noted)
    monkeypatch.setattr(LaunchedUpdate, "result", read)
    if is_late:
        reads_late(monkeypatch)
    settings = ("training.updates=6", "training.checkpoint_every=3", "validation.every=100")
    assert train(prepared, tmp_path / "run", *settings) == 0
    if is_late:
        parts = [
            "launch 1, launch 2, read 1, launch 3, read 2, read 3",
            "launch 4, launch 5, read 4, launch 6, read 5, read 6",
        ]
        assert ", ".join(order) == ", ".join(parts)
    else:
        assert order == [f"{what} {number}" for number in range(1, 7) for what in ("launch", "read")]


@pytest.mark.parametrize(
    "settings",
    [
        ("training.optimizer={name: muon}",),
        ("training.optimizer={name: schedule_free}", "training.schedule={name: constant, peak: 0.01}"),
        ("training.ema=0.9",),
    ],
    ids=["muon", "schedule-free", "moving average"],
)
def test_an_optimizer_that_cannot_skip_on_the_device_is_read_at_once(
    prepared: PreparedData, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    given = feed(prepared, tmp_path, *settings)
    updater = given.updater("fp32")
    assert not updater.optimizer.can_skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updater, "_ranks", type(updater._ranks)(0, 1, torch.device("cuda")))
        assert not updater.reads_late
    plain = feed(prepared, tmp_path).updater("fp32")
    assert plain.optimizer.can_skip
    assert not plain.reads_late, "on a CPU"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain, "_ranks", type(plain._ranks)(0, 1, torch.device("cuda")))
        assert plain.reads_late


def test_between_updates_the_host_asks_for_no_mode_no_memory_and_no_stack_trace(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: dict[str, int] = {"train": 0, "memory": 0}
    mode, memory = Transformer.train, metrics.memory_gb

    def counted_mode(self: Transformer, mode_is_train: bool = True) -> Transformer:
        calls["train"] += mode_is_train
        return mode(self, mode_is_train)

    def counted_memory(device: torch.device) -> float:
        calls["memory"] += 1
        return memory(device)

    monkeypatch.setattr(Transformer, "train", counted_mode)
    monkeypatch.setattr(trainer, "memory_gb", counted_memory)
    slow: list[object] = []
    seed = torch.manual_seed

    def counted_seed(key: int) -> torch.Generator:
        slow.append(key)
        return seed(key)

    monkeypatch.setattr(torch, "manual_seed", counted_seed)
    settings = ("training.updates=12", "training.log_every=4", "validation.every=100")
    assert train(prepared, tmp_path / "run", *settings) == 0
    assert calls["memory"] == 3
    # The warm-up, then after the sanity pass: the validation at the end is the last that is done.
    assert calls["train"] <= 3
    assert len(slow) <= 2, "by the initial weights"


def test_dropout_is_seeded_as_torch_seeds() -> None:
    seed_dropout(3, 5, 7)
    drawn = torch.rand(100)
    torch.manual_seed(((3 * 1_000_003 + 5) * 65_537 + 7) % 2**63)
    assert torch.equal(torch.rand(100), drawn)
