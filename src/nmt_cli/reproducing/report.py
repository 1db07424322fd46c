"""The report of a reproduction: reproduction.json for programs and reproduction.md for people, in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from nmt_cli import __version__
from nmt_cli.errors import ModelError
from nmt_cli.files import write_file
from nmt_cli.reproducing.chain import Outcome
from nmt_cli.reproducing.needs import Machine
from nmt_cli.reproducing.plan import Reproduction
from nmt_cli.reproducing.stages import Stage
from nmt_cli.templates.render import render

REPORT, REPORT_PAGE = "reproduction.json", "reproduction.md"
HEADER = ("stage", "figure", "expected", "measured", "verdict")


def write_report(plan: Reproduction, stages: Sequence[Stage], outcome: Outcome, machine: Machine) -> None:
    """Write both files about the stages finished so far, unless no training has begun."""
    if not plan.run.is_dir():
        return
    content = _content(plan, stages, outcome, machine)
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_file(plan.run / REPORT, text, error=ModelError)
    page = render(
        "reproduction.md",
        plan=plan,
        conclusion=conclusion(plan, outcome),
        rows=[HEADER, ["---"] * len(HEADER), *rows(outcome)],
        commands=[stage.command_line for stage in stages],
        figures=outcome.figures,
        signatures=sorted({figure.detail for _, found in outcome.figures for figure in found if "|" in figure.detail}),
        report=content,
    )
    write_file(plan.run / REPORT_PAGE, page, error=ModelError)


def rows(outcome: Outcome) -> Iterator[tuple[str, str, str, str, str]]:
    """The rows of the table under HEADER; a stage is named in the first of its rows."""
    for stage, figures in outcome.figures:
        for number, figure in enumerate(figures):
            name = stage.name if number == 0 else ""
            yield name, figure.name, figure.expected_text or "-", figure.measured_text, figure.verdict


def conclusion(plan: Reproduction, outcome: Outcome) -> str:
    """The result of the reproduction in a sentence."""
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


def _content(plan: Reproduction, stages: Sequence[Stage], outcome: Outcome, machine: Machine) -> dict[str, Any]:
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
                "command": stage.command_line,
                "seconds": None if (record := stage.record()) is None else round(record.seconds, 1),
                "figures": figures[stage.key],
            }
            for stage in stages
            if stage.key in figures
        ],
    }
