"""The chain of stages: each one is skipped if it is finished, otherwise run as a process, measured and reported.

The report is reproduction.json for programs and reproduction.md for people, in the run's folder.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nmt_cli import __version__
from nmt_cli.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, DataError, ModelError
from nmt_cli.files import write_file
from nmt_cli.processes import NmtCommands
from nmt_cli.reproducing.experiments import Figure
from nmt_cli.reproducing.needs import Machine, check_disk
from nmt_cli.reproducing.plan import ReproductionPlan
from nmt_cli.reproducing.stages import Stage
from nmt_cli.templates.render import render

REPORT, REPORT_PAGE = "reproduction.json", "reproduction.md"
HEADER = ("stage", "figure", "expected", "measured", "verdict")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageEnd:
    """How a stage ended: the exit code of its process, and the signal passed on to it.

    The code is negative if a signal killed the process.
    """

    code: int
    signal: int | None

    @property
    def was_stopped(self) -> bool:
        """Whether a signal was passed on: the stage may still have ended well, but no other stage begins."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """The exit code of `nmt reproduce`: the stage's code, or the code for the signal.

        The signal goes first, because under torchrun a training that was stopped and has saved ends with 1, not 75.
        """
        if self.was_stopped:
            return EXIT_PREEMPTED if self.signal == signal.SIGTERM else EXIT_INTERRUPTED
        return 128 - self.code if self.code < 0 else self.code


@dataclass(frozen=True, slots=True)
class Stop:
    """The stage at which the chain stopped, and how the last process ended."""

    stage: Stage
    end: StageEnd


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of the finished stages, and where the chain stopped, or None if it came to its end."""

    measured: Sequence[tuple[Stage, Sequence[Figure]]]
    stop: Stop | None = None

    def each_figure(self) -> Iterator[tuple[Stage, Figure]]:
        """Each figure with its stage."""
        return ((stage, figure) for stage, figures in self.measured for figure in figures)

    @property
    def failures(self) -> list[tuple[Stage, Figure]]:
        """The figures by which a full reproduction fails."""
        return [(stage, figure) for stage, figure in self.each_figure() if figure.has_failed]


def run_chain(plan: ReproductionPlan, stages: Sequence[Stage], machine: Machine) -> Outcome:
    """Bring every stage to its end, in order, up to the first stage that does not end well.

    DataError is raised before a stage if a disk is too small for all that is left to do.
    """
    measured: list[tuple[Stage, Sequence[Figure]]] = []
    end: StageEnd | None = None
    for number, stage in enumerate(stages, 1):
        title = f"[{number}/{len(stages)}] {stage.name}"
        if end is not None and end.was_stopped:
            return Outcome(measured, Stop(stage, end))
        if stage.is_finished():
            logger.info("\n%s: finished before", title)
            measured.append((stage, stage.figures()))
            continue
        unfinished = [stage, *(later for later in stages[number:] if not later.is_finished())]
        needs = [each.needs(machine) for each in unfinished]
        check_disk(needs, is_rehearsal=plan.limit is not None)
        logger.info("\n%s", title)
        for line in (stage.command_line, *needs[0].lines()):
            logger.info("      %s", line)
        end = _run_stage(stage)
        if end.code:
            return Outcome(measured, Stop(stage, end))
        figures = stage.figures()
        for figure in figures:
            expected = f"expected {figure.expected_text}: " if figure.expected_text else ""
            logger.info("      %-18s  %12s   %s%s", figure.name, figure.measured_text, expected, figure.verdict)
        measured.append((stage, figures))
    return Outcome(measured)


def write_report(plan: ReproductionPlan, stages: Sequence[Stage], outcome: Outcome, machine: Machine) -> Path | None:
    """Write both files about the stages finished so far; the page, or None if no training has begun."""
    if not plan.run.is_dir():
        return None
    content = _report_json(plan, outcome, machine)
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_file(plan.run / REPORT, text, error=ModelError)
    signatures = {figure.signature for _, figure in outcome.each_figure() if figure.signature}
    page = render(
        "reproduction.md",
        plan=plan,
        conclusion=conclusion(plan, outcome),
        rows=[HEADER, ["---"] * len(HEADER), *table_rows(outcome)],
        commands=[stage.command_line for stage in stages],
        figures=outcome.each_figure(),
        signatures=sorted(signatures),
        report=content,
    )
    write_file(plan.run / REPORT_PAGE, page, error=ModelError)
    return plan.run / REPORT_PAGE


def table_rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """The rows of the table under HEADER; the first row of a stage has its name."""
    for stage, figures in outcome.measured:
        for index, figure in enumerate(figures):
            name = stage.name if index == 0 else ""
            yield name, figure.name, figure.expected_text or "-", figure.measured_text, figure.verdict


def conclusion(plan: ReproductionPlan, outcome: Outcome) -> str:
    """The result of the reproduction in a sentence."""
    if outcome.stop is not None:
        return f"The chain stopped at {outcome.stop.stage.name}; the same command continues there."
    unexpected = [
        f"{stage.name}: {figure.name}"
        for stage, figure in outcome.each_figure()
        if figure.relation in ("below", "above")
    ]
    deviations = f"; not as expected: {', '.join(unexpected)}" if unexpected else ""
    if plan.limit is not None:
        return f"A rehearsal on {plan.limit:,} pairs: every stage has run, and its scores mean nothing{deviations}."
    if outcome.failures:
        return "Not reproduced: " + "; ".join(f"{figure.name} is {figure.verdict}" for _, figure in outcome.failures)
    changes = f", with {', '.join(plan.changes)}" if plan.changes else ""
    return f"Reproduced: the paper BLEU of the {plan.experiment.title}{changes}{deviations or '; all is as expected'}."


def _report_json(plan: ReproductionPlan, outcome: Outcome, machine: Machine) -> dict[str, Any]:
    is_complete = outcome.stop is None
    return {
        "experiment": plan.experiment.name,
        "limit": plan.limit,
        "settings": plan.changes,
        "is_complete": is_complete,
        "is_reproduced": not outcome.failures if is_complete and plan.limit is None else None,
        "nmt_version": __version__,
        "machine": str(machine),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "stages": [
            {
                "stage": stage.key,
                "command": stage.command_line,
                "seconds": None if (seconds := stage.seconds()) is None else round(seconds, 1),
                "figures": [figure.to_json() for figure in figures],
            }
            for stage, figures in outcome.measured
        ],
    }


def _run_stage(stage: Stage) -> StageEnd:
    stage.write_inputs()
    start = time.monotonic()
    end = _run_nmt(stage.arguments, stdout=stage.stdout)
    if end.code == 0:
        stage.write_record(seconds=time.monotonic() - start)
    return end


def _run_nmt(arguments: Sequence[str], *, stdout: Path | None) -> StageEnd:
    """Run an `nmt` command to its end; its stdout goes into a file, which appears if the command ends well.

    SIGTERM and Ctrl-C are passed on. If this process is killed, the command gets SIGTERM.
    """
    quiet = [] if logger.isEnabledFor(logging.INFO) else ["--quiet"]
    pipe = None if stdout is None else subprocess.PIPE
    with NmtCommands() as commands:
        process = commands.start([*quiet, *arguments], ends_by=signal.SIGTERM, stdout=pipe)
        output, _ = process.communicate()
    if stdout is not None and process.returncode == 0:
        write_file(stdout, output, error=DataError)
    return StageEnd(process.returncode, commands.signals[0] if commands.signals else None)
