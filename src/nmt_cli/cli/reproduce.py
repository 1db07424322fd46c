"""`nmt reproduce`: an experiment of the paper from its corpus to its BLEU, each figure beside the expected one."""

from __future__ import annotations

import logging
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt_cli.cli.printing import print_table
from nmt_cli.errors import ScoreError, UsageError
from nmt_cli.files import check_names_folder

if TYPE_CHECKING:
    from nmt_cli.reproducing.chain import Outcome
    from nmt_cli.reproducing.needs import Machine
    from nmt_cli.reproducing.plan import ReproductionPlan
    from nmt_cli.reproducing.stages import Stage

logger = logging.getLogger(__name__)

_MIN_LIMIT = 100
_COLOURS = {"as expected": "green", "below": "red", "above": "yellow", "not comparable": "dim", "context": "dim"}


def reproduce(
    experiment: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help="base-en-de, big-en-de, base-en-fr or big-en-fr.")
    ],
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", help="Rehearse it on the first N training pairs, in a few updates."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the recipe or of the corpus file; repeatable."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Folder of the prepared data; else data/CORPUS.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder of the run; else runs/RECIPE.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print stages, needs and expected figures; run nothing.")
    ] = False,
) -> None:
    """Reproduce an experiment of the paper: prepare, train, average, decode, score.

    Example: nmt reproduce base-en-de --dry-run
    """
    from nmt_cli.reproducing.experiments import find_experiment

    chosen = find_experiment(experiment)
    if limit is not None and limit < _MIN_LIMIT:
        hint = f"nmt reproduce {experiment} --limit 10000 takes minutes"
        raise UsageError(f"--limit {limit} is too little text for a vocabulary", where="--limit", hint=hint)
    for option, folder, example in (("--data", data, "data/mine"), ("-o", output, "runs/mine")):
        if folder is not None:
            check_names_folder(folder, option=option, example=example)
    # All that follows imports torch, which takes seconds.
    from nmt_cli.reproducing.chain import run_chain, write_report
    from nmt_cli.reproducing.needs import measure_machine
    from nmt_cli.reproducing.plan import plan_reproduction
    from nmt_cli.reproducing.stages import plan_stages

    plan = plan_reproduction(chosen, settings=settings or [], limit=limit, data=data, run=output)
    stages, machine = plan_stages(plan), measure_machine(plan.recipe)
    if dry_run:
        typer.echo("\n".join(_plan_lines(plan, stages, machine)))
        return
    outcome = run_chain(plan, stages, machine)
    page = write_report(plan, stages, outcome, machine)
    _print_outcome(plan, outcome, page=page)
    _exit_unless_reproduced(plan, outcome)


def _plan_lines(plan: ReproductionPlan, stages: list[Stage], machine: Machine) -> list[str]:
    """The planned stages: commands, needs and expected figures."""
    from nmt_cli.reproducing.experiments import format_expected

    rehearsal = f": a rehearsal on {plan.limit:,} pairs" if plan.limit is not None else ""
    lines = [f"{plan.experiment.title}{rehearsal}", f"on {machine}"]
    for number, stage in enumerate(stages, 1):
        state = ": finished before" if stage.is_finished() else ""
        lines += ["", f"[{number}/{len(stages)}] {stage.name}{state}"]
        lines += [f"      {line}" for line in (stage.command_line, *stage.needs(machine).lines())]
        for name, expected in stage.judged.items():
            lines.append(f"      expect: {name} {format_expected(name, expected)} ({expected.source})")
    return lines


def _print_outcome(plan: ReproductionPlan, outcome: Outcome, *, page: Path | None) -> None:
    """Print the table on stdout, with tabs if stdout is no terminal, and the conclusion on stderr."""
    from nmt_cli.reproducing.chain import HEADER, conclusion, table_rows

    if not outcome.measured:
        return
    logger.info("")
    colours = [_COLOURS[figure.relation] for _, figure in outcome.each_figure()]
    print_table(HEADER, table_rows(outcome), right_aligned=("expected", "measured"), styles=colours)
    if page is not None:
        logger.info("report: %s", page)
    if outcome.stop is None:
        logger.info("%s", conclusion(plan, outcome))


def _exit_unless_reproduced(plan: ReproductionPlan, outcome: Outcome) -> None:
    """Exit with the code of the stage that did not end well; ScoreError if a score is too low."""
    command = shlex.join(["nmt", *sys.argv[1:]])
    if (stop := outcome.stop) is not None:
        if stop.end.was_stopped:
            logger.info("stopped in %s; to go on: %s", stop.stage.name, command)
        else:
            logger.warning("%s %s", stop.stage.name, _ending_text(stop.end.code))
            logger.warning("once that is mended, the same command continues there: %s", command)
        raise typer.Exit(stop.end.exit_code)
    if outcome.failures:
        stage, figure = outcome.failures[0]
        result = f"{figure.name} is {figure.measured_text}, but {figure.expected_text} was expected: {figure.verdict}"
        raise ScoreError(
            f"{stage.name}: {result}",
            where=str(plan.run),
            hint="look in the table for the first figure that is not as expected: the cause is there or before",
        )


def _ending_text(code: int) -> str:
    """How a stage ended; its own error message may stand above."""
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL), as the system does when memory runs out"
    if code < 0:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"failed with exit code {code}: its own message is above"
