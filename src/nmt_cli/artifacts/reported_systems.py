"""The runs of a report by system: runs that differ in their seed alone are one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nmt_cli.artifacts.checkpoints import best_first
from nmt_cli.artifacts.history import History, ValidationPoint, mean_history
from nmt_cli.artifacts.info import describe_run
from nmt_cli.artifacts.run import Run
from nmt_cli.recipe.section import dotted_key, flatten

OWN_KEYS = (("name",), ("description",))
"""These settings differ between all runs."""
SEED = ("training", "seed")


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A run, its label on the page, the number of its line style, and the data that the page shows."""

    label: str
    style: int
    run: Run
    history: History
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReportedSystem:
    """The runs that differ at most in their seed, with one label and one style; `history` has their mean curves."""

    label: str
    style: int
    runs: Sequence[ReportedRun]
    history: History

    def best(self, metric: Literal["loss", "bleu"]) -> list[float]:
        """The best value of each run that has been validated by the metric."""
        points = [best_validation(run, metric) for run in self.runs]
        values = [getattr(point.measured, metric) for point in points if point is not None]
        return [value for value in values if value is not None]


def systems_of(runs: Sequence[Run], histories: Sequence[History]) -> list[ReportedSystem]:
    """The runs by system: those of one recipe, data and initial model, if each has another seed."""
    by_recipe: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        recipe = flatten(run.recipe.model_dump(mode="json"))
        settings = {dotted_key(path): value for path, value in recipe.items() if path not in (*OWN_KEYS, SEED)}
        initial = None if run.record.init_from is None else run.record.init_from.path
        key = json.dumps([settings, run.record.data_summary.get("fingerprint"), initial], sort_keys=True)
        by_recipe.setdefault(key, []).append(number)
    groups: list[list[int]] = []
    for numbers in by_recipe.values():
        seeds = {runs[number].recipe.training.seed for number in numbers}
        groups += [numbers] if len(seeds) == len(numbers) else [[number] for number in numbers]
    labels, systems = _labels(runs), list[ReportedSystem]()
    names = [_name_of_system([labels[number] for number in group]) for group in groups]
    for style, (name, group) in enumerate(zip(names, groups, strict=True)):
        reported = [
            ReportedRun(labels[number], style, runs[number], histories[number], facts)
            for number in group
            for facts in [describe_run(runs[number], history=histories[number])]
        ]
        if len(group) == 1:
            systems.append(ReportedSystem(name, style, reported, reported[0].history))
            continue
        label = name if names.count(name) == 1 else ", ".join(run.label for run in reported)
        mean = mean_history([run.history for run in reported])
        systems.append(ReportedSystem(f"{label} ({len(group)} runs)", style, reported, mean))
    return systems


def _name_of_system(labels: Sequence[str]) -> str:
    """The name that the runs of a system share, as base-1 and base-seed-2 share base; else that of the first run."""
    names = {re.sub(r"[-_.]*(seed)?[-_.]*\d+$", "", label) for label in labels}
    return labels[0] if len(labels) == 1 or len(names) > 1 else names.pop() or labels[0]


def _labels(runs: Sequence[Run]) -> list[str]:
    """The folder of each run, or its path if several folders have one name."""
    names = [run.directory.resolve().name for run in runs]
    return [name if names.count(name) == 1 else str(run.directory) for name, run in zip(names, runs, strict=True)]


def best_validation(shown: ReportedRun | ReportedSystem, metric: Literal["loss", "bleu"]) -> ValidationPoint | None:
    """The best validation by `bleu` or `loss`."""
    points = {point.measured.update: point for point in shown.history.validations}
    ranked = best_first([point.measured for point in points.values()], metric=metric)
    return points[ranked[0].update] if ranked else None
