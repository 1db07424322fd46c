"""The report of runs as one page: curves, samples, settings that differ, skipped updates, hardware, next commands."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, groupby
from typing import Any, Literal, TypeVar

from nmt_cli import __version__
from nmt_cli.artifacts.checkpoints import best_first
from nmt_cli.artifacts.history import Elapsed, History, TrainingPoint, ValidationPoint
from nmt_cli.artifacts.info import describe_run, next_command
from nmt_cli.artifacts.run import Run
from nmt_cli.console import duration_text, size_text, time_text
from nmt_cli.errors import UsageError
from nmt_cli.recipe.key_paths import dotted_key, flatten
from nmt_cli.recipe.schema import Recipe
from nmt_cli.templates.charts import THINNING_COLUMNS, Line, line_chart
from nmt_cli.templates.render import render

PAGE_MARK = '<meta name="generator" content="nmt report">'
"""Stands in every page: `nmt report` replaces a file only if the mark is in it."""

_MAX_ROWS = 24  # of the table of validations
_MAX_EVENTS = 20  # of a run's starts, and of its skipped updates
_SAMPLE_ROWS = 8  # translations of a sample, of all runs together
_LEAST_USEFUL_BLEU = 10  # docs/how-to/score.md
_MIN_VALIDATIONS_SINCE_BEST = 3  # for the finding that later ones were no better
_OWN_KEYS = (("name",), ("description",))  # these settings differ between all runs
# Name, seconds, and how many of the unit a training must have lasted.
_TIME_UNITS = (("days", 86_400.0, 3.0), ("hours", 3600.0, 2.0), ("minutes", 60.0, 2.0), ("seconds", 1.0, 0.0))
_NO_VALUE = "—"
Curve = Sequence[tuple[Elapsed, float]]
Point = TypeVar("Point", TrainingPoint, ValidationPoint)
_Setting = tuple[str, list[str]]
# The first six runs differ by colour and dashes; the next six have their colours, with other dashes.
_DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "5 2", "12 3 2 3 2 3", "3 6", "12 3", "6 6", "2 2 8 2", "1 2", "14 2 2 2")
MAX_RUNS = len(_DASHES)


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A run, its label on the page, the number of its line style, and the data that the page shows."""

    label: str
    style: int
    run: Run
    history: History
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis below the curves: its unit, and the position of a point on it."""

    unit: str
    position_of: Callable[[Elapsed], float]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with a curve per run; two charts with the same `bounded_by` have the same axis of values."""

    title: str
    note: str
    curves: Sequence[Curve]
    number_format: str
    bounded_by: Sequence[Curve]
    starts_at_zero: bool = False

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest value that the chart has room for."""
        values = [value for curve in self.bounded_by for _, value in curve]
        return 0.0 if self.starts_at_zero else min(values), max(values)


def render_report(runs: Sequence[Run], *, command: str, now: datetime) -> str:
    """The page about these runs as HTML, which loads nothing and runs no script; every text in it is escaped.

    The page shows `command`, which writes it again. UsageError if there are more runs than line styles.
    """
    if len(runs) > MAX_RUNS:
        message = f"{len(runs)} runs are too many: a page has line styles for {MAX_RUNS}"
        raise UsageError(message, where="RUN", hint=f"name at most {MAX_RUNS} runs")
    histories = [run.history() for run in runs]
    reported = [
        ReportedRun(label, style, run, history, describe_run(run, history=history))
        for style, (label, run, history) in enumerate(zip(_labels(runs), runs, histories, strict=True))
    ]
    different, common = _settings(reported)
    axes = _axes(reported)
    return render(
        "run_report.html",
        runs=reported,
        mark=PAGE_MARK,
        findings=[text[0].upper() + text[1:] if len(reported) == 1 else text for text in _findings(reported)],
        axes=axes,
        charts=list(_draw_charts(reported, axes)),
        validations=_validation_rows(reported),
        signatures=sorted(_signatures(reported)),
        samples=list(_samples(reported)),
        without_samples=[run.label for run in reported if not any(point.samples for point in run.history.validations)],
        different_settings=different,
        common_settings=common,
        groups=[(run.label, 2) for run in reported],  # over two columns: loss and BLEU
        columns=[(run.label, "text") for run in reported],
        starts=list(_starts(reported)),
        skipped_updates=list(_skipped_updates(reported)),
        best_validation=_best,
        next_command=next_command,
        duration_text=duration_text,
        size_text=size_text,
        time_text=time_text,
        no_value=_NO_VALUE,
        dashes=_DASHES,
        thinning_columns=THINNING_COLUMNS,
        command=command,
        now=now.astimezone(UTC).isoformat(),
        nmt_version=__version__,
    )


def _labels(runs: Sequence[Run]) -> list[str]:
    """The folder of each run, or its path if several folders have one name."""
    names = [run.directory.resolve().name for run in runs]
    return [name if names.count(name) == 1 else str(run.directory) for name, run in zip(names, runs, strict=True)]


def _findings(reported: Sequence[ReportedRun]) -> Iterator[str]:
    """The facts that a reader has to know before the curves."""
    for shown in reported:
        name = f"{shown.label}: " if len(reported) > 1 else ""
        history, state = shown.history, shown.facts["state"]
        if state == "training":
            yield f"{name}a process trains this run now. The page shows it up to update {history.last_update:,}."
        if state == "not begun":
            yield f"{name}this run has not reported an update yet."
        if state == "stopped" and history.ending is None:
            at = f"update {history.last_update:,}"
            yield f"{name}the process ended after {at} and did not say why: it was killed, or it failed."
        if history.skipped:
            is_one = len(history.skipped) == 1
            number = "one update was" if is_one else f"{len(history.skipped):,} updates were"
            yield f"{name}{number} skipped, because gradients were not finite."
        if len(reported) == 1:
            yield from _advice(shown)
        yield from (f"{name}{text}" for text in _findings_since_best(shown))
    if len(reported) > 1:
        yield from _differences(reported)


def _advice(shown: ReportedRun) -> Iterator[str]:
    """A sentence on a BLEU that is of no use, with the way out."""
    best = _best(shown, "bleu")
    if best is None or shown.facts["state"] == "training" or (best.measured.bleu or 0.0) >= _LEAST_USEFUL_BLEU:
        return
    yield (
        f"the best BLEU is {best.measured.bleu:.2f}, and below {_LEAST_USEFUL_BLEU} translations are of no use. If the "
        "loss still falls, train longer. If not, see in the samples whether source and reference belong together; if "
        "they do, take much more text, or fine-tune a public model."
    )


def _findings_since_best(shown: ReportedRun) -> Iterator[str]:
    metric = shown.run.recipe.validation.metric
    if (best := _best(shown, metric)) is None:
        return
    update = best.measured.update
    later = [point for point in shown.history.validations if point.measured.update > update]
    if len(later) >= _MIN_VALIDATIONS_SINCE_BEST:
        name = {"bleu": "BLEU", "loss": "validation loss"}[metric]
        yield f"the best {name} was after update {update:,}; {len(later)} later validations were no better."


def _differences(reported: Sequence[ReportedRun]) -> Iterator[str]:
    """Reasons why figures of the runs may not be comparable."""
    if len({shown.run.record.data_summary.get("fingerprint") for shown in reported}) > 1:
        yield (
            "The runs have different prepared data. Losses per token are comparable only with one vocabulary, "
            "and BLEU only with one validation set."
        )
    elif len({shown.run.recipe.validation.max_sentences for shown in reported}) > 1:
        yield "BLEU is of different parts of the validation set: validation.max_sentences differs."
    if len(_signatures(reported)) > 1:
        yield "The signatures of BLEU differ, so its values are not comparable."


def _signatures(reported: Sequence[ReportedRun]) -> set[str]:
    signatures = {point.measured.signature for shown in reported for point in shown.history.validations}
    return {signature for signature in signatures if signature is not None}


def _best(shown: ReportedRun, metric: Literal["loss", "bleu"]) -> ValidationPoint | None:
    """The best validation by `bleu` or `loss`."""
    points = {point.measured.update: point for point in shown.history.validations}
    ranked = best_first([point.measured for point in points.values()], metric=metric)
    return points[ranked[0].update] if ranked else None


def _axes(reported: Sequence[ReportedRun]) -> dict[str, Axis]:
    """The axes that the runs recorded, by name."""
    ends = [point.at for shown in reported for point in shown.history.training[-1:]]
    ends += [point.at for shown in reported for point in shown.history.validations[-1:]]
    longest = max((at.seconds for at in ends), default=0.0)
    unit, size = next((unit, size) for unit, size, fewest in _TIME_UNITS if longest >= fewest * size)
    axes = {"updates": Axis("updates", lambda at: at.update)}
    if longest:
        axes["time"] = Axis(unit, lambda at: at.seconds / size)
    return axes


def _draw_charts(reported: Sequence[ReportedRun], axes: Mapping[str, Axis]) -> Iterator[dict[str, Any]]:
    """Each chart with its title, the unit of its values, and a drawing per axis; no drawing if there are no values."""
    for chart in _charts(reported):
        drawings = {}
        for name, axis in axes.items() if any(chart.curves) else ():
            lines = [
                Line(shown.label, shown.style, [(axis.position_of(at), value) for at, value in curve])
                for shown, curve in zip(reported, chart.curves, strict=True)
            ]
            drawings[name] = line_chart(
                lines, title=chart.title, unit=axis.unit, bounds=chart.bounds, number_format=chart.number_format
            )
        yield {"title": chart.title, "note": chart.note, "drawings": drawings}


def _charts(reported: Sequence[ReportedRun]) -> list[Chart]:
    train_loss = _curves([shown.history.training for shown in reported], lambda point: point.loss)
    rate = _curves([shown.history.training for shown in reported], lambda point: point.learning_rate)
    valid_loss = _curves([shown.history.validations for shown in reported], lambda point: point.measured.loss)
    bleu = _curves([shown.history.validations for shown in reported], lambda point: point.measured.bleu)
    unit_of_loss, losses = "nats per target token", [*train_loss, *valid_loss]
    return [
        Chart("Training loss", unit_of_loss, train_loss, number_format="{:.3f}", bounded_by=losses),
        Chart("Validation loss", unit_of_loss, valid_loss, number_format="{:.4f}", bounded_by=losses),
        Chart("BLEU on the validation set", "sacreBLEU", bleu, number_format="{:.2f}", bounded_by=bleu),
        Chart("Learning rate", "by the schedule", rate, number_format="{:.3g}", bounded_by=rate, starts_at_zero=True),
    ]


def _curves(runs: Sequence[Sequence[Point]], value_of: Callable[[Point], float | None]) -> list[Curve]:
    """The curve of each run, given its points; a point without the value is left out."""
    return [[(point.at, value) for point in points if (value := value_of(point)) is not None] for points in runs]


def _validation_rows(reported: Sequence[ReportedRun]) -> list[tuple[int, list[ValidationPoint | None]]]:
    """The rows of the table of validations: an update, and the validation of each run after it, or None.

    There are about two dozen rows. They are spread evenly, and include the best and the last validation of each run.
    """
    by_run = [{point.measured.update: point for point in shown.history.validations} for shown in reported]
    updates = sorted(set(chain(*by_run)))
    step = math.ceil(len(updates) / _MAX_ROWS) or 1
    kept = set(updates[step - 1 :: step])
    for shown in reported:
        chosen = (_best(shown, "bleu"), _best(shown, "loss"), *shown.history.validations[-1:])
        kept |= {point.measured.update for point in chosen if point is not None}
    return [(update, [points.get(update) for points in by_run]) for update in sorted(kept)]


def _samples(reported: Sequence[ReportedRun]) -> Iterator[dict[str, Any]]:
    """Each sample with its reference, and some of each run's translations over time."""
    languages_of = {
        (sample["source"], sample["reference"]): shown.facts["languages"]
        for shown in reported
        for point in [point for point in shown.history.validations if point.samples][-1:]
        for sample in point.samples
    }
    rows_per_run = max(2, _SAMPLE_ROWS // len(reported))
    for (source, reference), languages in languages_of.items():
        rows = [
            {"run": shown, "updates": updates, "translation": translation}
            for shown in reported
            for updates, translation in _translations_over_time(shown.history, source, reference, max_rows=rows_per_run)
        ]
        yield {"source": source, "reference": reference, "languages": languages, "rows": rows}


def _translations_over_time(history: History, source: str, reference: str, *, max_rows: int) -> list[tuple[str, str]]:
    """At most `max_rows` translations over time, each with its update; equal neighbours are joined, with a span."""
    translations = [
        (point.measured.update, sample["translation"])
        for point in history.validations
        for sample in point.samples
        if (sample["source"], sample["reference"]) == (source, reference)
    ]
    rows = []
    for translation, group in groupby(translations, key=lambda pair: pair[1]):
        updates = [update for update, _ in group]
        span = f"{updates[0]:,}" if len(updates) == 1 else f"{updates[0]:,} to {updates[-1]:,}"
        rows.append((span, translation))
    if len(rows) <= max_rows:
        return rows
    evenly_spread = {round(i * (len(rows) - 1) / (max_rows - 1)) for i in range(max_rows)}
    return [rows[i] for i in sorted(evenly_spread)]


def _settings(reported: Sequence[ReportedRun]) -> tuple[list[_Setting], list[_Setting]]:
    """The settings that differ between the runs, and the shared settings that differ from the default.

    Each is (key, values): a value per run in the first list; the shared value and the default in the second.
    """
    recipes = [flatten(shown.run.recipe.model_dump(mode="json")) for shown in reported]
    default = flatten(Recipe(name="default").model_dump(mode="json"))
    paths = dict.fromkeys(path for recipe in (default, *recipes) for path in recipe if path not in _OWN_KEYS)
    sections = {path[:-1] for path in paths}  # null in one recipe may be a section in another
    different: list[_Setting] = []
    common: list[_Setting] = []

    def add(key: str, values: list[str], *, default: str) -> None:
        if len(set(values)) > 1:
            different.append((key, values))
        elif values[0] != default:
            common.append((key, [values[0], default]))

    for path in paths:
        if path not in sections:
            values = [_setting_text(recipe, path) for recipe in recipes]
            add(dotted_key(path), values, default=_setting_text(default, path))
    initial_models = [shown.run.record.init_from for shown in reported]
    add("--init-from", [_NO_VALUE if model is None else model.path for model in initial_models], default=_NO_VALUE)
    return different, common


def _setting_text(recipe: Mapping[tuple[str, ...], Any], path: tuple[str, ...]) -> str:
    if path not in recipe:
        return _NO_VALUE
    value = recipe[path]
    return value if isinstance(value, str) else json.dumps(value)


def _starts(reported: Sequence[ReportedRun]) -> Iterator[dict[str, Any]]:
    """The newest starts of each run with their hardware."""
    for shown in reported:
        for start in shown.history.starts[-_MAX_EVENTS:]:
            hardware, versions = start.get("hardware") or {}, start.get("versions") or {}
            compiled = ", compiled" if hardware.get("is_compiled") else ""
            yield {
                "run": shown,
                "time": start.get("time", _NO_VALUE),
                "update": start["update"],
                "hardware": f"{hardware.get('devices')} x {hardware.get('device')}{compiled}",
                "threads": hardware.get("threads"),
                "precision": hardware.get("precision"),
                "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
            }


def _skipped_updates(reported: Sequence[ReportedRun]) -> Iterator[dict[str, Any]]:
    """The newest skipped updates of each run."""
    for shown in reported:
        skipped = shown.history.skipped
        for event in skipped[-_MAX_EVENTS:]:
            text = f"{event.get('reason')} ({len(event.get('pairs') or ())} suspect pairs)"
            yield {"run": shown, "update": event["update"], "text": text}
        if len(skipped) > _MAX_EVENTS:
            yield {"run": shown, "update": None, "text": f"and {len(skipped) - _MAX_EVENTS:,} before those"}
