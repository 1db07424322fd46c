"""The report of a reproduction: reproduction.json for programs and reproduction.md for people, in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from nmt_cli import __version__
from nmt_cli.errors import ModelError
from nmt_cli.files import write_file
from nmt_cli.reproducing.chain import Outcome, command_line
from nmt_cli.reproducing.machine import Machine
from nmt_cli.reproducing.plan import Plan
from nmt_cli.reproducing.records import read_record
from nmt_cli.reproducing.stage import Stage

REPORT, REPORT_PAGE = "reproduction.json", "reproduction.md"
HEADER = ("stage", "figure", "expected", "measured", "verdict")


def write_report(plan: Plan, stages: Sequence[Stage], outcome: Outcome, machine: Machine) -> None:
    """Write both files, of the stages that are finished so far; nothing where no training has begun."""
    if not plan.run.is_dir():
        return
    content = _content(plan, stages, outcome, machine)
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_file(plan.run / REPORT, text, error=ModelError)
    write_file(plan.run / REPORT_PAGE, "\n".join(_page(plan, stages, outcome, content)) + "\n", error=ModelError)


def rows(outcome: Outcome) -> Iterator[tuple[str, str, str, str, str]]:
    """The rows of the table under HEADER; a stage is named in the first of its rows."""
    for stage, figures in outcome.figures:
        for number, figure in enumerate(figures):
            name = stage.name if number == 0 else ""
            yield name, figure.name, figure.expected_text or "-", figure.measured_text, figure.verdict


def conclusion(plan: Plan, outcome: Outcome) -> str:
    """What the figures come to, in a sentence."""
    if outcome.stopped_at is not None:
        return f"The chain stopped at {outcome.stopped_at.name}; the same command goes on there."
    figures = [(stage.name, figure) for stage, found in outcome.figures for figure in found]
    unlike = [f"{name}: {figure.name}" for name, figure in figures if figure.standing in ("below", "above")]
    others = f"; not as expected: {', '.join(unlike)}" if unlike else ""
    if plan.rehearsal is not None:
        return (
            f"A rehearsal on {plan.rehearsal.limit:,} pairs: every stage has run, and its scores mean nothing{others}."
        )
    if outcome.failures:
        return "Not reproduced: " + "; ".join(f"{figure.name} is {figure.verdict}" for _, figure in outcome.failures)
    changed = f", with {', '.join(plan.settings.changing)}" if plan.settings.changing else ""
    return f"Reproduced: the paper BLEU of the {plan.experiment.title}{changed}{others or '; all is as expected'}."


def _content(plan: Plan, stages: Sequence[Stage], outcome: Outcome, machine: Machine) -> dict[str, Any]:
    figures = {stage.key: [figure.to_json() for figure in found] for stage, found in outcome.figures}
    is_complete = outcome.stopped_at is None
    return {
        "experiment": plan.experiment.name,
        "limit": plan.rehearsal.limit if plan.rehearsal else None,
        "settings": list(plan.settings.changing),
        "is_complete": is_complete,
        "is_reproduced": None if plan.rehearsal or not is_complete else not outcome.failures,
        "nmt_version": __version__,
        "machine": str(machine),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "stages": [
            {
                "stage": stage.key,
                "command": command_line(stage),
                "seconds": None if (record := read_record(stage.record_file)) is None else round(record.seconds, 1),
                "figures": figures[stage.key],
            }
            for stage in stages
            if stage.key in figures
        ],
    }


def _page(plan: Plan, stages: Sequence[Stage], outcome: Outcome, content: dict[str, Any]) -> Iterator[str]:
    yield from [f"# {plan.experiment.title}", "", conclusion(plan, outcome), ""]
    yield from [_row(HEADER), _row(["---"] * len(HEADER)), *map(_row, rows(outcome))]
    yield from ["", "## Commands", "", "```bash", *map(command_line, stages), "```", ""]
    if changing := plan.settings.changing:
        yield from ["Settings that are not the experiment's own: " + ", ".join(f"`{one}`" for one in changing), ""]
    yield from ["## What was expected, and why", "", _row(("figure", "source", "tolerance")), _row(["---"] * 3)]
    for stage, figures in outcome.figures:
        for figure in figures:
            if figure.expected is not None:
                yield _row((f"{stage.name}: {figure.name}", figure.expected.source, figure.expected.why))
    signatures = {f"`{figure.detail}`" for _, figures in outcome.figures for figure in figures if "|" in figure.detail}
    yield from ["", *(f"Signature: {signature}" for signature in sorted(signatures)), ""]
    yield f"Written by nmt {content['nmt_version']} on {content['written']} on {content['machine']}."


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
