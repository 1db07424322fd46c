"""`nmt train --profile N`: where the time of some updates goes, told and written, and the training goes on."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt_cli.dataset.prepared_data import PreparedData
from tests.training.tiny import checkpoint, train

SETTINGS = ("training.updates=9", "training.checkpoint_every=9", "validation.every=5")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "updates on cpu" in message]


def test_a_profile_says_where_the_time_goes_and_changes_nothing(
    prepared: PreparedData, finished_run: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, run = finished_run(*SETTINGS), tmp_path / "run"
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
    assert re.search(r"[\d.]+ ms each$", head)
    rows = table.splitlines()[3:]
    assert 20 < len(rows) < 30
    assert "aten::mm" in [row.split()[0] for row in rows]
    shares = [float(found.group(1)) for row in rows if (found := re.search(r"([\d.]+)%", row))]
    assert shares == sorted(shares, reverse=True)
    with gzip.open(run / "profile/trace.json.gz", "rt", encoding="utf-8") as trace:
        names = [event.get("name") for event in json.load(trace)["traceEvents"]]
    assert names.count("nmt: update") == 4


def test_a_training_that_ends_early_says_that_none_was_watched(
    prepared: PreparedData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert train(prepared, tmp_path / "run", "training.updates=3", profile=100) == 0
    assert "--profile: the training ended before 4 updates, and none was watched" in caplog.messages
    assert not (tmp_path / "run/profile").exists()
