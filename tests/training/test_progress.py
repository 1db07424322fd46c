"""What a training tells: metrics.jsonl, the live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import math
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pytest
import torch

from nmt_cli.artifacts.model_directory import DirectionResult
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.errors import ModelError
from nmt_cli.training.checkpointer import CheckpointFolder
from nmt_cli.training.reporting.reporter import LiveView, Reporter
from nmt_cli.training.reporting.training_metrics import Stopwatch, TrainingStatus, UpdateMetrics, UpdateSums
from nmt_cli.training.update import Updater
from nmt_cli.training.validation import Validation, Validator
from tests.forks import Forked
from tests.training.test_training_metrics import FakeClock
from tests.training.tiny import arguments_of, checkpoints, events, stopped_after, train

KEYS = {
    "train": (
        "event update epoch loss nll learning_rate gradient_norm target_tokens_per_second matrix_rate_share padding"
        " waiting memory_gb source_tokens target_tokens seconds"
    ),
    "validation": "event update loss nll perplexity bleu signature seconds samples",
    "start": "event update time hardware versions",
    "checkpoint": "event update path",
    "resume": "event update",
    "end": "event reason update",
}
STANDING = TrainingStatus(1100, 4, learning_rate=1.5e-4, gradient_norm=0.5, memory_gb=1.25, seconds=24.0)
FIGURES = UpdateMetrics(
    loss=2.0,
    nll=math.log(4),
    kl=0.25,
    target_tokens_per_second=150.4,
    matrix_rate_share=0.44,
    padding=0.008,
    waiting=0.001,
)
SHOWN_STATUS = TrainingStatus(1500, 6, learning_rate=2.5e-4, gradient_norm=0.5312, memory_gb=3.21, seconds=90.0)
SHOWN_METRICS = UpdateMetrics(
    loss=3.0,
    nll=2.5,
    kl=None,
    target_tokens_per_second=123_456.0,
    matrix_rate_share=0.441,
    padding=0.008,
    waiting=0.001,
)


def test_a_line_is_written_with_all_its_figures_and_told_with_some(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clock = FakeClock()
    file = tmp_path / "metrics.jsonl"
    with Reporter(file, updates=5000, clock=clock) as reporter, reporter.showing_progress(1000):
        clock.now += 30
        reporter.report_updates(STANDING, UpdateSums(source_tokens=600, target_tokens=500), FIGURES)
    tokens = {"source_tokens": 600, "target_tokens": 500}
    assert json.loads(file.read_text()) == {"event": "train", **asdict(STANDING), **asdict(FIGURES), **tokens}
    # 100 updates in 30 seconds: 3,900 more take 1,170.
    assert caplog.messages == [
        "update 1,100/5,000  epoch 5  loss 2.000  learning rate 1.50e-04  150 tokens/s  19 min 30 s left"
    ]


def test_a_log_that_has_been_silent_for_half_a_minute_gets_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clock = FakeClock()
    with Reporter(tmp_path / "metrics.jsonl", updates=5000, clock=clock) as reporter, reporter.showing_progress(1000):
        for seconds in (20.0, 9.0, 2.0, 20.0, 11.0):
            clock.now += seconds
            if reporter.wants_update:
                reporter.show_update(STANDING, FIGURES)
    assert [line.split("  ")[0] for line in caplog.messages] == ["update 1,100/5,000"] * 2
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_the_rate_of_a_training_leaves_out_validations_and_saves(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    measure, save, launch = Validator.measure, CheckpointFolder.save, Updater.launch

    def taking(seconds: float, function: Callable[..., object]) -> Callable[..., object]:
        def timed(*arguments: object, **options: object) -> object:
            clock.now += seconds
            return function(*arguments, **options)

        return timed

    monkeypatch.setattr("nmt_cli.training.trainer.Stopwatch", lambda: Stopwatch(clock))
    monkeypatch.setattr(Validator, "measure", taking(1000.0, measure))
    monkeypatch.setattr(CheckpointFolder, "save", taking(100.0, save))
    monkeypatch.setattr(Updater, "launch", taking(0.5, launch))
    settings = ("validation.every=3", "training.checkpoint_every=5", "training.updates=12", "training.log_every=4")
    assert train(prepared, tmp_path / "run", *settings) == 0
    lines = events(tmp_path / "run", "train")
    assert [line["seconds"] for line in lines] == [2.0, 4.0, 6.0]
    for line in lines:
        assert line["target_tokens_per_second"] == pytest.approx(line["target_tokens"] / 2.0)
        assert 0 < line["matrix_rate_share"] < 1
        assert 0 <= line["padding"] < 1
        assert line["memory_gb"] > 0.05


def test_a_validation_is_told_with_all_that_it_measured(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    file, second = tmp_path / "metrics.jsonl", Validation(2.1, 1.6, 4.9530, None, None, 0.04, ())
    with Reporter(file, updates=5000) as reporter:
        reporter.report_validation(400, Validation(2.0, 1.5, 4.4817, 31.257, "sig", 12.34, ()), is_best=True)
        reporter.report_validation(800, second, is_best=False)
        reporter.report_validation(900, Validation(703.0, 702.5, 1.234e305, None, None, 0.04, ()), is_best=False)
    assert caplog.messages == [
        "update   400  validation loss 2.0000  perplexity 4.482  BLEU 31.26  in 12.3 s  best so far",
        "update   800  validation loss 2.1000  perplexity 4.953  in 0.0 s",
        "update   900  validation loss 703.0000  perplexity 1.23e+305  in 0.0 s",
    ]
    written = json.loads(file.read_text().splitlines()[1])
    del (expected := asdict(second))["by_direction"]
    assert written == {"event": "validation", "update": 800, **expected, "samples": []}


def test_the_worst_directions_of_a_validation_come_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    scores = {f"en-x{number}": DirectionResult(loss=3.0 - number, bleu=10.0 * number) for number in (2, 1, 3)}
    without = {name: one.model_copy(update={"bleu": None}) for name, one in scores.items()}
    with Reporter(tmp_path / "metrics.jsonl", updates=10) as reporter:
        reporter.report_validation(5, Validation(2.0, 1.5, 4.4817, 20.0, "sig", 1.0, (), scores), is_best=False)
        reporter.report_validation(6, Validation(2.0, 1.5, 4.4817, None, None, 1.0, (), without), is_best=False)
    assert caplog.messages[0].endswith("BLEU 20.00  (en-x1 10.00, en-x2 20.00, en-x3 30.00)  in 1.0 s")
    assert caplog.messages[1].endswith("perplexity 4.482  (en-x1 2.0000, en-x2 1.0000, en-x3 0.0000)  in 1.0 s")
    first = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert first["by_direction"]["en-x2"] == {"loss": 1.0, "bleu": 20.0}


def test_a_direction_that_diverged_is_null_in_metrics_jsonl(tmp_path: Path) -> None:
    scores = {"en-de": DirectionResult(loss=math.nan), "de-en": DirectionResult(loss=2.0)}
    with Reporter(tmp_path / "metrics.jsonl", updates=10) as reporter:
        measured = Validation(math.nan, math.nan, math.nan, None, None, 1.0, (), scores)
        reporter.report_validation(5, measured, is_best=False)
    written = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in written
    found = json.loads(written)
    assert (found["loss"], found["by_direction"]["en-de"]["loss"]) == (None, None)
    assert found["by_direction"]["de-en"]["loss"] == 2.0


def test_metrics_jsonl_has_the_keys_that_are_promised_and_each_start_with_its_hardware_and_versions(
    prepared: PreparedData, tmp_path: Path
) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    with stopped_after(5):
        assert train(prepared, tmp_path / "run", "training.updates=9") == 75
    assert train(prepared, tmp_path / "run", "training.updates=9") == 0
    found = events(tmp_path / "run")
    assert {event["event"] for event in found} == set(KEYS)
    for event in found:
        assert set(event) == set(KEYS[event["event"]].split())
    assert sum(event["update"] == 8 for event in found if event["event"] == "train") == 1
    first, second = events(tmp_path / "run", "start")
    assert (first["update"], second["update"]) == (0, 5)
    assert before <= datetime.fromisoformat(first["time"]) <= datetime.fromisoformat(second["time"])
    versions = {"nmt": metadata.version("nmt-cli"), "torch": metadata.version("torch")}
    assert first["versions"] == {**versions, "python": sys.version.split()[0]}
    hardware = first["hardware"]
    assert hardware.pop("device") in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    assert hardware == {"devices": 1, "threads": torch.get_num_threads(), "precision": "fp32", "is_compiled": False}


@pytest.mark.parametrize(
    ("left", "kept"),
    [('{"event": "end", "update": 1}\n{"event": "tra', '{"event": "end", "update": 1}\n'), ('{"ev', "")],
)
def test_a_last_line_that_a_crash_cut_short_is_removed(tmp_path: Path, left: str, kept: str) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(left)
    with Reporter(file, updates=9) as reporter:
        reporter.write_event("resume", update=1)
        assert file.read_text() == kept + '{"event": "resume", "update": 1}\n', "each line is on the disk at once"


def test_a_full_disk_under_the_metrics_is_an_error_that_loses_no_checkpoint(
    prepared: PreparedData, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with stopped_after(6):
        assert train(prepared, run) == 75
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(ModelError) as caught:
        train(prepared, run)
    assert caught.value.message == "cannot write metrics.jsonl: the disk is full"
    assert caught.value.where == str(run / "metrics.jsonl")
    assert caught.value.hint == "free some space, then give the same command again"
    assert checkpoints(run) == [6]


def test_on_a_terminal_there_is_a_view_that_is_gone_at_the_end(prepared: PreparedData, tmp_path: Path) -> None:
    settings = ("training.updates=60", "validation.every=30")  # a second: the view is drawn often
    code, stdout, text = train_on_a_terminal(prepared, tmp_path, *settings)
    assert code == 0, text
    assert stdout == b""
    figures = ("perplexity ", "rate ", "best BLEU ", "tokens/s", "matrix rate ", "padding ", "waiting ", "memory ")
    for part in ("\x1b[1mrun\x1b[0m", " / 60", "left", *figures):
        assert part in text
    assert "\x1b[?25l" in text  # the cursor is hidden, and comes back
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "/60  epoch" not in text  # plain lines are for pipes
    last = text.splitlines()[-2:]
    assert last == [
        "model of update 60 written to run/model",
        "next: nmt average run && nmt decode -m run < input.txt > output.txt",
    ]


def train_on_a_terminal(data: PreparedData, folder: Path, *settings: str) -> tuple[int, bytes, str]:
    """Run `nmt train` with stderr on a terminal: its exit code, its stdout, and what the terminal gets."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "110", "LINES": "30"}
    environment.pop("NO_COLOR", None)
    process = Forked[bytes](
        [sys.executable, "-m", "nmt_cli", *arguments_of(data, folder, *settings)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while block := _read(ours):
            shown += block
        stdout, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        os.close(ours)
    return process.returncode, stdout, shown.decode()


def _read(descriptor: int) -> bytes:
    """What the terminal shows next; nothing where its other end is closed, which Linux calls an error."""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""


def shown(view: LiveView) -> list[str]:
    with view.console.capture() as capture:
        view.console.print(view.get_renderable())
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize("width", [40, 80])
def test_the_view_fits_its_terminal_and_shows_a_note_until_the_next_update(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    view = LiveView("lr[bold=3]{x}", updates=2000)
    view.keep_best("BLEU 31.20")
    view.show_status(SHOWN_STATUS, SHOWN_METRICS, time_left="47 min 30 s left")
    bar, *figures = shown(view)
    assert max(map(len, [bar, *figures])) <= width
    assert bar.startswith("lr[bold")
    if width == 80:
        assert bar.endswith("1,500 / 2,000  75% 47 min 30 s left")
        assert figures == [
            "  loss 3.000  perplexity 12.18  best BLEU 31.20  rate 2.5e-04  norm 0.531",
            "  123,456 tokens/s  matrix rate 44%  padding 0.8%  waiting 0.1%  memory 3.2 GB",
        ]
    view.show_note("validating after update 1,500")
    assert shown(view)[1:] == ["  validating after update 1,500"]
    view.show_status(SHOWN_STATUS, SHOWN_METRICS, time_left="47 min 30 s left")
    assert shown(view)[1:] == figures
