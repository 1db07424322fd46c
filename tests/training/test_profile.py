"""`nmt train --profile N`: where the time of some updates goes, told and written, and the training goes on."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.training.reporting import profile
from nmt_cli.training.reporting.metrics import Stopwatch
from tests.training.test_metrics import FakeClock
from tests.training.tiny import checkpoint, events, train

SETTINGS = ("training.updates=9", "training.checkpoint_every=9", "validation.every=5")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "updates on cpu" in message]


def test_a_profile_says_where_the_time_goes_and_changes_nothing(
    prepared: PreparedData, finished: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, run = finished(*SETTINGS), tmp_path / "run"
    caplog.set_level("INFO")
    assert train(prepared, run, *SETTINGS, profile=4) == 0
    assert checkpoint(run, 9) == checkpoint(plain, 9)
    summary = (run / "profile/summary.txt").read_text(encoding="utf-8")
    (message,) = told(caplog)
    assert message == (
        f"{summary}written to {run / 'profile/summary.txt'};"
        f" {run / 'profile/trace.json.gz'} is for https://ui.perfetto.dev"
    )
    assert summary.startswith("4 updates on cpu, ")
    head, table = summary.split("\n\n")
    milliseconds, waiting = (float(number) for number in re.findall(r"([\d.]+) ms", head))
    assert milliseconds > waiting > 0
    rows = {line.split()[0]: line for line in table.splitlines()[3:]}
    assert 20 < len(rows) < 30
    assert "aten::mm" in rows
    shares = [float(found.group(1)) for line in rows.values() if (found := re.search(r"([\d.]+)%", line))]
    assert shares == sorted(shares, reverse=True)
    with gzip.open(run / "profile/trace.json.gz", "rt", encoding="utf-8") as trace:
        names = [event.get("name") for event in json.load(trace)["traceEvents"]]
    assert names.count("nmt: update") == 4


def test_a_rate_leaves_out_the_writing_of_the_profile(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()

    def slow_summary(*arguments: object, **options: object) -> str:
        clock.now += 1000.0
        return "summary"

    monkeypatch.setattr("nmt_cli.training.loop.Stopwatch", lambda: Stopwatch(clock))
    monkeypatch.setattr(profile, "summary_of", slow_summary)
    assert train(prepared, tmp_path / "run", *SETTINGS, "training.log_every=1", profile=1) == 0
    assert (tmp_path / "run/profile/summary.txt").read_text(encoding="utf-8") == "summary"
    assert {line["seconds"] for line in events(tmp_path / "run", "train")} == {0.0}


@pytest.mark.parametrize(("updates", "watched"), [(5, 2), (3, 0)])
def test_a_training_that_ends_early_tells_what_was_seen(
    prepared: PreparedData, tmp_path: Path, caplog: pytest.LogCaptureFixture, updates: int, watched: int
) -> None:
    caplog.set_level("INFO")
    assert train(prepared, tmp_path / "run", f"training.updates={updates}", profile=100) == 0
    if watched:
        assert told(caplog)[0].startswith(f"{watched} updates on cpu, ")
    else:
        assert "--profile: the training ended before 4 updates, and none was watched" in caplog.messages
        assert not (tmp_path / "run/profile").exists()


def test_a_profile_that_cannot_be_written_or_has_nothing_to_watch_is_told_and_the_training_goes_on(
    prepared: PreparedData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = tmp_path / "run"
    assert train(prepared, run, "training.updates=1") == 0
    (run / "profile").write_text("a file\n", encoding="utf-8")
    assert train(prepared, run, "training.updates=6", profile=2) == 0
    assert told(caplog)[0].startswith("2 updates on cpu, ")
    assert told(caplog)[0].endswith(f"\nnot written to {run / 'profile'}: File exists")
    assert train(prepared, run, "training.updates=6", profile=2) == 0
    assert caplog.messages.count("--profile: there is no update left to watch") == 1
