"""The history of a run by hand-written events: lost updates, times, tokens, and files that are damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nmt_cli.artifacts.history import read_history
from nmt_cli.artifacts.run import open_run
from tests.artifacts.builders import write_run

Event = dict[str, Any]


def line(update: int, *, seconds: float, tokens: int = 1000, loss: float | None = 5.0) -> Event:
    rates = {"learning_rate": 1e-3, "target_tokens": tokens, "seconds": seconds}
    return {"event": "train", "update": update, "loss": loss, **rates}


def validated(update: int, *, bleu: float = 10.0, seconds: float = 3.0) -> Event:
    return {"event": "validation", "update": update, "loss": 4.0, "bleu": bleu, "seconds": seconds}


def test_times_and_tokens_add_up_over_starts_and_validations() -> None:
    history = read_history(
        [
            {"event": "start", "update": 0, "time": "2026-01-02T03:04:05+00:00"},
            line(10, seconds=5.0),
            validated(10),
            line(20, seconds=11.0),
            {"event": "end", "reason": "preempted", "update": 24},
            {"event": "resume", "update": 24},
            {"event": "start", "update": 24, "time": "2026-01-03T03:04:05+00:00"},
            line(30, seconds=2.0, tokens=600),
        ]
    )
    assert [(point.at.update, point.at.seconds) for point in history.training] == [(10, 5.0), (20, 14.0), (30, 16.0)]
    (validation,) = history.validations
    assert validation.at.seconds == 8.0
    assert history.seconds == 16.0
    assert history.target_tokens_per_second == 2600 / 13
    assert [start["update"] for start in history.starts] == [0, 24]
    assert history.ending is None
    assert history.last_update == 30


def test_a_second_process_that_first_reports_later_than_the_first_ended_adds_its_seconds() -> None:
    starts = [{"event": "start", "update": update} for update in (0, 10)]
    history = read_history([starts[0], line(10, seconds=4.0), starts[1], line(20, seconds=9.0)])
    assert history.trained_seconds == 13.0


def test_updates_after_the_checkpoint_of_a_crash_are_lost_from_the_curves_and_not_from_the_time() -> None:
    history = read_history(
        [
            *(line(update, seconds=float(update)) for update in (10, 20, 30, 40)),
            validated(40, bleu=50.0),
            {"event": "resume", "update": 25},
            line(30, seconds=5.0, tokens=500, loss=3.0),
            line(40, seconds=15.0),
            validated(40, bleu=12.0),
        ]
    )
    assert [(point.at.update, point.loss) for point in history.training] == [(10, 5.0), (20, 5.0), (30, 3.0), (40, 5.0)]
    assert [point.at.seconds for point in history.training] == [10, 20, 48, 58]
    assert [point.measured.bleu for point in history.validations] == [12.0]


def test_damaged_lines_and_values_leave_the_rest_as_it_is(tmp_path: Path) -> None:
    write_run(tmp_path / "x")
    good = [line(10, seconds=5.0), line(20, seconds=10.0, loss=None), validated(20)]
    samples = [{"source": "a", "reference": "b", "translation": "c"}]
    odd = [
        *('{"event": "train", "update": "ten"}', "[1, 2]", '"text"', "\x00\x01", '{"update": 5}', ""),
        json.dumps({"event": "validation", "update": 30, "loss": None, "bleu": 3.0}),
        json.dumps({"event": "validation", "update": 40, "loss": 2.0, "bleu": "high", "samples": samples}),
        '{"event": "train", "update": 50, "loss": NaN, "seconds": Infinity}',
        '{"event": "train", "upd',
    ]
    text = "\n".join([*map(json.dumps, good), *odd])
    (tmp_path / "x" / "metrics.jsonl").write_bytes(text.encode() + b"\xff")
    history = open_run(tmp_path / "x").history()
    assert [(point.at.update, point.loss) for point in history.training] == [(10, 5.0), (20, None), (50, None)]
    assert [(point.measured.update, point.measured.bleu) for point in history.validations] == [(20, 10.0), (40, None)]
    assert history.validations[1].samples == samples


def test_an_empty_run_has_an_empty_history(tmp_path: Path) -> None:
    write_run(tmp_path / "x")
    (tmp_path / "x" / "metrics.jsonl").unlink()
    run = open_run(tmp_path / "x")
    history = run.history()
    assert (history.training, history.validations, history.starts, history.seconds) == ([], [], [], 0.0)
    assert history.target_tokens_per_second is None
    assert run.state(history) == "not begun"
