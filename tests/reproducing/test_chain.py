"""The chain with stages that write a file each, in place of minutes of work."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from nmt_cli.artifacts.manifest import MANIFEST
from nmt_cli.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED
from nmt_cli.files import sha256
from nmt_cli.reproducing import chain
from nmt_cli.reproducing.chain import Outcome, StageEnd, _run_nmt, conclusion, run_chain, table_rows
from nmt_cli.reproducing.experiments import EXPERIMENTS, expected_exactly
from nmt_cli.reproducing.needs import Needs
from nmt_cli.reproducing.plan import ReproductionPlan, plan_reproduction
from nmt_cli.reproducing.stages import Measurement, Stage, plan_stages
from tests.artifacts.builders import save_tiny, write_run
from tests.reproducing.test_needs import GPUS

# Says that it is ready, and ends with 75 at the first SIGTERM or SIGINT.
OBEDIENT = """
import signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: sys.exit(75))
open(sys.argv[1], "w").close()
time.sleep(300)
"""


def copying(plan: ReproductionPlan, number: int, *, lines: int = 1) -> Stage:
    """A stage that copies the file of the stage before into its own."""
    read, written = (plan.run / f"{place}.txt" for place in (number - 1, number))
    return Stage(
        plan=plan,
        name=f"copy {number}",
        arguments=["copy", str(read), str(written)],
        fixed={"lines": expected_exactly(lines, "here")},
        input_hashes=lambda: {"text": sha256(read)},
        output_hashes=lambda: {"text": sha256(written)},
        needs=lambda machine: Needs(),
        measure=lambda: [Measurement("lines", len(written.read_text().splitlines()))],
    )


class Runner:
    """Stands in for the processes, and remembers which were started."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.endings: dict[str, StageEnd] = {}

    def __call__(self, arguments: Sequence[str], *, stdout: Path | None) -> StageEnd:
        _, read, written = arguments
        self.started.append(Path(written).stem)
        ended = self.endings.get(Path(written).stem, StageEnd(0, None))
        if ended.code == 0:
            Path(written).write_bytes(Path(read).read_bytes())
        return ended


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    stand_in = Runner()
    monkeypatch.setattr(chain, "_run_nmt", stand_in)
    return stand_in


@pytest.fixture
def plan(tmp_path: Path) -> ReproductionPlan:
    (tmp_path / "0.txt").write_text("a line\n")
    return plan_reproduction(EXPERIMENTS["base-en-de"], settings=(), limit=None, data=tmp_path, run=tmp_path)


def run(plan: ReproductionPlan) -> Outcome:
    return run_chain(plan, [copying(plan, number) for number in (1, 2, 3)], GPUS)


def test_finished_stages_are_not_repeated(
    plan: ReproductionPlan, runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    run(plan)
    assert runner.started == ["1", "2", "3"]
    with caplog.at_level(logging.INFO, logger="nmt_cli"):
        outcome = run(plan)
    assert runner.started == ["1", "2", "3"]
    assert "[2/3] copy 2: finished before" in caplog.text
    assert [row[3:] for row in table_rows(outcome)] == [("1", "as expected")] * 3


def test_a_changed_input_makes_a_stage_and_those_after_it_run_again(
    plan: ReproductionPlan, runner: Runner, tmp_path: Path
) -> None:
    run(plan)
    (tmp_path / "1.txt").write_text("another line\n")
    runner.started.clear()
    run(plan)
    assert runner.started == ["1"]  # its output is not what it wrote; with that back, the others stand
    (tmp_path / "0.txt").write_text("other text\n")
    runner.started.clear()
    run(plan)
    assert runner.started == ["1", "2", "3"]


def test_a_stage_with_another_command_or_without_its_output_runs_again(plan: ReproductionPlan, runner: Runner) -> None:
    run(plan)
    (plan.run / "3.txt").unlink()
    (plan.folder / "copy-2.json").write_text("{not json")
    runner.started.clear()
    run(plan)
    assert runner.started == ["2", "3"]


def test_a_stage_that_fails_ends_the_chain_and_the_next_start_goes_on_there(
    plan: ReproductionPlan, runner: Runner
) -> None:
    runner.endings["2"] = StageEnd(6, None)
    outcome = run(plan)
    assert runner.started == ["1", "2"]
    assert outcome.stop is not None
    assert (outcome.stop.stage.name, outcome.stop.end) == ("copy 2", StageEnd(6, None))
    assert conclusion(plan, outcome) == "The chain stopped at copy 2; the same command continues there."
    runner.endings.clear()
    run(plan)
    assert runner.started == ["1", "2", "2", "3"]


def test_after_a_signal_no_further_stage_begins(plan: ReproductionPlan, runner: Runner) -> None:
    runner.endings["1"] = StageEnd(0, signal.SIGTERM)  # it had come to its end nevertheless
    outcome = run(plan)
    assert runner.started == ["1"]
    assert outcome.stop is not None
    assert (outcome.stop.stage.name, outcome.stop.end.exit_code) == ("copy 2", 75)
    assert [stage.name for stage, _ in outcome.measured] == ["copy 1"]
    runner.endings["3"] = StageEnd(0, signal.SIGTERM)
    assert run(plan).stop is None
    assert runner.started == ["1", "2", "3"]


def test_scores_of_another_measure_are_made_again(plan: ReproductionPlan) -> None:
    score = plan_stages(plan)[-1]
    assert score.stdout is not None
    score.stdout.parent.mkdir(parents=True, exist_ok=True)
    for file in (plan.data / "test.de", plan.folder / "newstest2014.de", score.stdout):
        file.write_text("{}\n", encoding="utf-8")
    score.write_record(seconds=1.0)
    assert score.is_finished()
    record = plan.folder / "score-newstest2014.json"
    content = json.loads(record.read_text(encoding="utf-8"))
    assert content["made_from"].pop("measure") == "paper-BLEU with quotes:ascii-ref"
    record.write_text(json.dumps(content), encoding="utf-8")
    assert not score.is_finished()


def test_a_run_that_keeps_the_best_model_counts_all_its_updates(tmp_path: Path) -> None:
    plan = plan_reproduction(EXPERIMENTS["base-en-de"], settings=(), limit=None, data=tmp_path, run=tmp_path / "run")
    write_run(plan.run, updates=4)
    save_tiny(plan.run / "model", spm_folder=tmp_path, update=300)
    measured = {measurement.name: measurement.value for measurement in plan_stages(plan)[1].measure()}
    assert (measured["updates"], measured["perplexity"]) == (400, 7.4)


def test_to_ask_whether_a_stage_of_a_rehearsal_is_finished_writes_nothing(tmp_path: Path) -> None:
    plan = plan_reproduction(
        EXPERIMENTS["base-en-de"], settings=(), limit=2, data=tmp_path / "data", run=tmp_path / "run"
    )
    average, decode, score = plan_stages(plan)[-3:]
    manifest = plan.run / "averaged" / MANIFEST
    for file in (plan.data / "test.en", plan.data / "test.de", manifest, plan.folder / "newstest2014.de"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("one\ntwo\nthree\n", encoding="utf-8")
    before = set(tmp_path.rglob("*"))
    asked = [stage.input_hashes() for stage in (decode, score)]
    assert not any(stage.is_finished() for stage in (average, decode, score))
    assert set(tmp_path.rglob("*")) == before
    hashes = {"newstest2014.source.en": asked[0]["text"], "newstest2014.reference.de": asked[1]["reference"]}
    for stage, name in zip((decode, score), hashes, strict=True):  # each writes the text that it reads
        stage.write_inputs()
        (written,) = set(tmp_path.rglob("*")) - before
        assert (written.name, sha256(written)) == (name, hashes[name])
        assert written.read_text(encoding="utf-8") == "one\ntwo\n"
        written.unlink()


def test_what_is_not_as_expected_is_told_with_the_conclusion(plan: ReproductionPlan) -> None:
    def concluded(plan: ReproductionPlan, bleu: float, checkpoints: int) -> str:
        average, _, score = plan_stages(plan)[-3:]
        averaged, scored = average.figure("checkpoints", checkpoints), score.figure("paper BLEU", bleu)
        return conclusion(plan, Outcome([(average, [averaged]), (score, [scored])]))

    system = "the paper BLEU of the Transformer base, WMT 2014 English to German"
    assert concluded(plan, 27.4, 5) == f"Reproduced: {system}; all is as expected."
    assert concluded(plan, 28.4, 3) == (
        f"Reproduced: {system}; not as expected: average: checkpoints, score newstest2014: paper BLEU."
    )
    other = replace(plan, changes=["averaging.last=5", "cleaning.max_words=80"])
    changed = "with averaging.last=5, cleaning.max_words=80"
    assert concluded(other, 27.4, 5) == f"Reproduced: {system}, {changed}; all is as expected."
    assert concluded(plan, 26.0, 5) == "Not reproduced: paper BLEU is below by 1.30"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    """`nmt CODE ARGUMENTS` is a Python program here."""
    interpreter = sys.executable
    real = subprocess.Popen

    def popen(arguments: list[str], **options: Any) -> object:
        assert arguments[:4] == [interpreter, "-P", "-m", "nmt_cli"]
        rest = [argument for argument in arguments[4:] if argument != "--quiet"]
        return real([interpreter, "-c", *rest], **options)

    monkeypatch.setattr(subprocess, "Popen", popen)


@pytest.mark.usefixtures("command")
def test_the_code_of_the_process_is_told() -> None:
    assert _run_nmt(["raise SystemExit(6)"], stdout=None) == StageEnd(6, None)
    assert StageEnd(6, None).exit_code == 6
    assert _run_nmt([""], stdout=None) == StageEnd(0, None)
    assert StageEnd(0, None).exit_code == 0
    killed = _run_nmt(["import os; os.kill(os.getpid(), 9)"], stdout=None)
    assert killed == StageEnd(-9, None)
    assert killed.exit_code == 137


@pytest.mark.usefixtures("command")
def test_output_appears_when_the_process_ends_well(tmp_path: Path) -> None:
    file = tmp_path / "scores.json"
    assert _run_nmt(["print('half'); raise SystemExit(1)"], stdout=file).code == 1
    assert list(tmp_path.iterdir()) == []
    assert _run_nmt(["print('whole')"], stdout=file).code == 0
    assert file.read_text() == "whole\n"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.usefixtures("command")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, EXIT_PREEMPTED), (signal.SIGINT, EXIT_INTERRUPTED)])
def test_a_signal_is_passed_on_and_waited_for(tmp_path: Path, number: int, code: int) -> None:
    ready, before = tmp_path / "ready", signal.getsignal(number)

    def send() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    timer = Timer(0, send)
    timer.start()
    ended = _run_nmt([OBEDIENT, str(ready)], stdout=None)
    timer.join()
    assert ended == StageEnd(75, number)
    assert ended.was_stopped
    assert ended.exit_code == StageEnd(0, number).exit_code == code  # though a stage may have ended well
    assert signal.getsignal(number) is before
