"""The chain itself: each stage looked at, measured where it is finished, run where it is not."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass

from nmt_cli.reproducing.machine import Machine
from nmt_cli.reproducing.needs import check_disk
from nmt_cli.reproducing.plan import Plan
from nmt_cli.reproducing.processes import Ended, run_nmt
from nmt_cli.reproducing.stage import Stage
from nmt_cli.reproducing.verdicts import Figure

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the finished stages have measured, and, where one was not finished, which and how it ended."""

    figures: Sequence[tuple[Stage, Sequence[Figure]]]
    stopped_at: Stage | None = None
    ended: Ended | None = None

    @property
    def failures(self) -> list[tuple[Stage, Figure]]:
        """The figures by which a full reproduction fails."""
        return [(stage, figure) for stage, figures in self.figures for figure in figures if figure.has_failed]


def run_chain(plan: Plan, stages: Sequence[Stage], machine: Machine) -> Outcome:
    """Bring every stage to its end, in order; an outcome without the rest where one does not end well.

    Raises DataError before a stage where a disk is too small for what is left.
    """
    measured: list[tuple[Stage, Sequence[Figure]]] = []
    ended: Ended | None = None
    for number, stage in enumerate(stages, 1):
        place = f"[{number}/{len(stages)}] {stage.name}"
        if ended is not None and ended.was_stopped:
            return Outcome(measured, stopped_at=stage, ended=ended)
        if stage.is_finished():
            logger.info("\n%s: finished before", place)
            figures = list(stage.figures())
        else:
            left = [later.needs(machine) for later in stages[number - 1 :] if not later.is_finished()]
            check_disk(left, is_rehearsal=plan.rehearsal is not None)
            logger.info("\n%s", place)
            for line in describe(stage, machine):
                logger.info("      %s", line)
            ended = _run(stage)
            if ended.code:
                return Outcome(measured, stopped_at=stage, ended=ended)
            figures = list(stage.figures())
            for figure in figures:
                logger.info("      %s", in_a_line(figure))
        measured.append((stage, figures))
    return Outcome(measured)


def describe(stage: Stage, machine: Machine) -> list[str]:
    """The command of a stage, as one types it, and what it needs."""
    return [command_line(stage), *stage.needs(machine).lines()]


def command_line(stage: Stage) -> str:
    """The command of a stage, as one types it."""
    redirection = f" > {shlex.quote(str(stage.stdout))}" if stage.stdout else ""
    return shlex.join(["nmt", *stage.arguments]) + redirection


def in_a_line(figure: Figure) -> str:
    """A figure, what was expected of it, and the verdict."""
    expected = f"expected {figure.expected_text}: " if figure.expected_text else ""
    return f"{figure.name:<18}  {figure.measured_text:>12}   {expected}{figure.verdict}"


def _run(stage: Stage) -> Ended:
    stage.begin()
    start = time.monotonic()
    ended = run_nmt(stage.arguments, stdout=stage.stdout)
    if ended.code == 0:
        stage.note_end(seconds=time.monotonic() - start)
    return ended
