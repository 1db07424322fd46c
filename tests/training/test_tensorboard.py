"""Event files for TensorBoard: the numbers of metrics.jsonl, read back with TensorBoard's own reader."""

from __future__ import annotations

import errno
import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.errors import ModelError, UsageError
from nmt_cli.training.reporting import reporter
from tests.training.tiny import events, stopped_after, train

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard: pip install 'nmt-cli[tensorboard]'"
)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The values of each scalar with their updates."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(folder.iterdir()):
        read = EventAccumulator(str(file), size_guidance={"scalars": 0})
        read.Reload()
        for tag in read.Tags()["scalars"]:
            found.setdefault(tag, []).extend((point.step, point.value) for point in read.Scalars(tag))
    return found


@needs_package
def test_the_event_files_have_the_numbers_of_the_metrics(
    prepared: PreparedData, finished_run: Callable[..., Path], tmp_path: Path
) -> None:
    assert not (finished_run() / "tensorboard").exists(), "without the flag there are none"
    run = tmp_path / "run"
    with stopped_after(10):
        assert train(prepared, run, tensorboard=True) == 75
    assert train(prepared, run, tensorboard=True) == 0
    found = scalars(run / "tensorboard")
    assert len(list((run / "tensorboard").iterdir())) == 2
    for kind in ("train", "validation"):
        lines = events(run, kind)
        names = [name for name, value in lines[0].items() if isinstance(value, int | float) and name != "update"]
        for name in names:
            points = found[f"{kind}/{name}"]
            assert [update for update, _ in points] == [line["update"] for line in lines]
            assert [value for _, value in points] == pytest.approx([line[name] for line in lines], rel=1e-6)
    assert {"train/loss", "train/padding", "train/matrix_rate_share", "validation/bleu"} <= set(found)
    assert not any("path" in name or "signature" in name for name in found)


@needs_package
def test_a_full_disk_is_the_same_error_as_under_the_metrics(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    def write(self: RecordWriter, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RecordWriter, "write", write)
    monkeypatch.setattr(threading, "excepthook", lambda error: None)  # TensorBoard's thread raises the error too
    with pytest.raises(ModelError, match="the disk is full"):
        train(prepared, tmp_path / "run", "training.updates=4", tensorboard=True)


def test_a_missing_package_is_told_before_anything_starts(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        train(prepared, tmp_path / "run", tensorboard=True)
    assert caught.value.message == "--tensorboard needs the package tensorboard, which is not installed"
    assert caught.value.hint == "pip install 'nmt-cli[tensorboard]'"
    assert not (tmp_path / "run").exists()
