"""The history of real runs: however a training was stopped, its curves are those of an uninterrupted one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from nmt_cli.artifacts.history import History
from nmt_cli.artifacts.run import open_run
from nmt_cli.dataset.prepared_data import PreparedData
from tests.training.tiny import stopped_after, train


def curves(history: History) -> tuple[object, object]:
    training = [(point.at.update, point.loss, point.learning_rate) for point in history.training]
    return training, [(point.measured, point.samples) for point in history.validations]


def test_a_stopped_and_a_crashed_run_have_the_curves_of_an_uninterrupted_one(
    prepared: PreparedData, tmp_path: Path, finished_run: Callable[..., Path]
) -> None:
    whole = open_run(finished_run()).history()
    run = tmp_path / "run"
    with stopped_after(8):
        assert train(prepared, run) == 75
    with stopped_after(16):
        assert train(prepared, run) == 75
    assert {point.at.update for point in open_run(run).history().training} == {*range(2, 17, 2)}
    for update in (12, 16):  # as if a crash had come before these checkpoints
        shutil.rmtree(run / f"checkpoints/update-{update:08}")
    assert train(prepared, run) == 0
    history = open_run(run).history()
    assert curves(history) == curves(whole)
    assert [start["update"] for start in history.starts] == [0, 8, 6]
    times = [point.at.seconds for point in history.training]
    assert times == sorted(times)
    assert open_run(run).state(history) == "finished"
