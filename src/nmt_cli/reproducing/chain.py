"""The chain of stages: each one is skipped if it is finished, otherwise run as a process, and measured."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, DataError
from nmt_cli.files import disk_errors
from nmt_cli.processes import NmtCommands
from nmt_cli.reproducing.experiments import Figure
from nmt_cli.reproducing.needs import Machine, check_disk
from nmt_cli.reproducing.plan import Reproduction
from nmt_cli.reproducing.stages import Stage

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageEnd:
    """How a process ended: its exit code, negative for the signal that killed it, and the signal passed on to it."""

    code: int
    signal: int | None

    @property
    def was_stopped(self) -> bool:
        """True if a signal was passed on: the stage may still have ended well, but no other stage begins."""
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
class Outcome:
    """The figures of the finished stages, and the stage at which the chain stopped, if it stopped."""

    figures: Sequence[tuple[Stage, Sequence[Figure]]]
    stopped_at: Stage | None = None
    ended: StageEnd | None = None

    @property
    def failures(self) -> list[tuple[Stage, Figure]]:
        """The figures by which a full reproduction fails."""
        return [(stage, figure) for stage, figures in self.figures for figure in figures if figure.has_failed]


def run_chain(plan: Reproduction, stages: Sequence[Stage], machine: Machine) -> Outcome:
    """Bring every stage to its end, in order, up to the first stage that does not end well.

    DataError is raised before a stage if a disk is too small for all that is left to do.
    """
    measured: list[tuple[Stage, Sequence[Figure]]] = []
    ended: StageEnd | None = None
    for number, stage in enumerate(stages, 1):
        place = f"[{number}/{len(stages)}] {stage.name}"
        if ended is not None and ended.was_stopped:
            return Outcome(measured, stopped_at=stage, ended=ended)
        if stage.is_finished():
            logger.info("\n%s: finished before", place)
            figures = stage.figures()
        else:
            left = [later.needs(machine) for later in stages[number - 1 :] if not later.is_finished()]
            check_disk(left, is_rehearsal=plan.rehearsal is not None)
            logger.info("\n%s", place)
            for line in (stage.command_line, *stage.needs(machine).lines()):
                logger.info("      %s", line)
            ended = _run(stage)
            if ended.code:
                return Outcome(measured, stopped_at=stage, ended=ended)
            figures = stage.figures()
            for figure in figures:
                logger.info("      %s", in_a_line(figure))
        measured.append((stage, figures))
    return Outcome(measured)


def in_a_line(figure: Figure) -> str:
    """A figure beside the expected one, and the verdict."""
    expected = f"expected {figure.expected_text}: " if figure.expected_text else ""
    return f"{figure.name:<18}  {figure.measured_text:>12}   {expected}{figure.verdict}"


def run_nmt(arguments: Sequence[str], *, stdout: Path | None) -> StageEnd:
    """Run an `nmt` command to its end; its stdout goes into a file, which appears if the command ends well.

    SIGTERM and Ctrl-C are passed on. If this process is killed, the command gets SIGTERM.
    """
    if stdout is None:
        return _wait(arguments, stdout=None)
    unfinished = stdout.with_name(f".{stdout.name}.partial")
    try:
        with disk_errors(stdout, DataError), unfinished.open("wb") as stream:
            ended = _wait(arguments, stdout=stream.fileno())
        if ended.code == 0:
            unfinished.replace(stdout)
        return ended
    finally:
        unfinished.unlink(missing_ok=True)


def _run(stage: Stage) -> StageEnd:
    stage.prepare()
    start = time.monotonic()
    ended = run_nmt(stage.arguments, stdout=stage.stdout)
    if ended.code == 0:
        stage.note_end(seconds=time.monotonic() - start)
    return ended


def _wait(arguments: Sequence[str], *, stdout: int | None) -> StageEnd:
    quiet = [] if logger.isEnabledFor(logging.INFO) else ["--quiet"]
    with NmtCommands() as commands:
        code = commands.start([*quiet, *arguments], ends_by=signal.SIGTERM, stdout=stdout).wait()
        return StageEnd(code, commands.signals[0] if commands.signals else None)
