"""The chain with stages that write a file each, in place of minutes of work."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nmt_cli.files import sha256
from nmt_cli.reproducing import chain
from nmt_cli.reproducing.chain import Outcome, run_chain
from nmt_cli.reproducing.experiments import EXPERIMENTS, exactly
from nmt_cli.reproducing.machine import Machine
from nmt_cli.reproducing.needs import Needs
from nmt_cli.reproducing.plan import Plan, make_plan
from nmt_cli.reproducing.processes import Ended
from nmt_cli.reproducing.records import Identities
from nmt_cli.reproducing.report import conclusion, rows
from nmt_cli.reproducing.settings import Settings
from nmt_cli.reproducing.stage import Stage
from nmt_cli.reproducing.stages import stages_of
from nmt_cli.reproducing.verdicts import Figure
from tests.reproducing.test_needs import GPUS


class Copying(Stage):
    """Copies the file of the stage before into its own."""

    def __init__(self, plan: Plan, number: int, *, lines: int = 1) -> None:
        super().__init__(plan, name=f"copy {number}", expected={"lines": exactly(lines, "here")}, rehearsed={})
        self.read, self.written = (plan.run / f"{place}.txt" for place in (number - 1, number))

    @property
    def arguments(self) -> list[str]:
        return ["copy", str(self.read), str(self.written)]

    def made_from(self) -> Identities:
        return {"text": sha256(self.read)}

    def made(self) -> Identities:
        return {"text": sha256(self.written)}

    def needs(self, machine: Machine) -> Needs:
        return Needs()

    def figures(self) -> Iterator[Figure]:
        yield self.figure("lines", len(self.written.read_text().splitlines()))


class Runner:
    """Stands in for the processes, and remembers which were started."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.endings: dict[str, Ended] = {}

    def __call__(self, arguments: Sequence[str], *, stdout: Path | None) -> Ended:
        _, read, written = arguments
        self.started.append(Path(written).stem)
        ended = self.endings.get(Path(written).stem, Ended(0, None))
        if ended.code == 0:
            Path(written).write_bytes(Path(read).read_bytes())
        return ended


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    stand_in = Runner()
    monkeypatch.setattr(chain, "run_nmt", stand_in)
    return stand_in


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "0.txt").write_text("a line\n")
    return make_plan(EXPERIMENTS["base-en-de"], settings=(), limit=None, data=tmp_path, run=tmp_path)


def run(plan: Plan) -> Outcome:
    return run_chain(plan, [Copying(plan, number) for number in (1, 2, 3)], GPUS)


def test_finished_stages_are_not_repeated(plan: Plan, runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    run(plan)
    assert runner.started == ["1", "2", "3"]
    with caplog.at_level(logging.INFO, logger="nmt_cli"):
        outcome = run(plan)
    assert runner.started == ["1", "2", "3"]
    assert "[2/3] copy 2: finished before" in caplog.text
    assert [row[3:] for row in rows(outcome)] == [("1", "as expected")] * 3


def test_a_changed_input_makes_a_stage_and_those_after_it_run_again(plan: Plan, runner: Runner, tmp_path: Path) -> None:
    run(plan)
    (tmp_path / "1.txt").write_text("another line\n")
    runner.started.clear()
    run(plan)
    assert runner.started == ["1"]  # its output is not what it wrote; with that back, the others stand
    (tmp_path / "0.txt").write_text("other text\n")
    runner.started.clear()
    run(plan)
    assert runner.started == ["1", "2", "3"]


def test_a_stage_with_another_command_or_without_its_output_runs_again(plan: Plan, runner: Runner) -> None:
    run(plan)
    (plan.run / "3.txt").unlink()
    (plan.folder / "copy-2.json").write_text("{not json")
    runner.started.clear()
    run(plan)
    assert runner.started == ["2", "3"]


def test_a_stage_that_fails_ends_the_chain_and_the_next_start_goes_on_there(plan: Plan, runner: Runner) -> None:
    runner.endings["2"] = Ended(6, None)
    outcome = run(plan)
    assert runner.started == ["1", "2"]
    assert outcome.stopped_at is not None
    assert (outcome.stopped_at.name, outcome.ended) == ("copy 2", Ended(6, None))
    assert conclusion(plan, outcome) == "The chain stopped at copy 2; the same command goes on there."
    runner.endings.clear()
    run(plan)
    assert runner.started == ["1", "2", "2", "3"]


def test_after_a_signal_no_further_stage_begins(plan: Plan, runner: Runner) -> None:
    runner.endings["1"] = Ended(0, signal.SIGTERM)  # it had come to its end nevertheless
    outcome = run(plan)
    assert runner.started == ["1"]
    assert outcome.stopped_at is not None
    assert outcome.stopped_at.name == "copy 2"
    assert outcome.ended is not None
    assert outcome.ended.exit_code == 75
    assert [stage.name for stage, _ in outcome.figures] == ["copy 1"]
    runner.endings["3"] = Ended(0, signal.SIGTERM)
    assert run(plan).stopped_at is None
    assert runner.started == ["1", "2", "3"]


def test_what_is_not_as_expected_is_told_with_the_conclusion(plan: Plan) -> None:
    def concluded(plan: Plan, bleu: float, checkpoints: int) -> str:
        average, *_, score = stages_of(plan)[-3:]
        return conclusion(
            plan,
            Outcome(
                [
                    (average, [average.figure("checkpoints", checkpoints)]),
                    (score, [score.figure("paper BLEU", bleu)]),
                ]
            ),
        )

    system = "the paper BLEU of the Transformer base, WMT 2014 English to German"
    assert concluded(plan, 27.4, 5) == f"Reproduced: {system}; all is as expected."
    assert concluded(plan, 28.4, 3) == (
        f"Reproduced: {system}; not as expected: average: checkpoints, score newstest2014: paper BLEU."
    )
    other = replace(plan, settings=Settings(("averaging.last=5", "cleaning.max_words=80", "mirror=archives")))
    assert (
        concluded(other, 27.4, 5)
        == f"Reproduced: {system}, with averaging.last=5, cleaning.max_words=80; all is as expected."
    )
    assert concluded(plan, 26.0, 5) == "Not reproduced: paper BLEU is below by 1.30"
