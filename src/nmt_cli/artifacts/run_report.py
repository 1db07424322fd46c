"""The report of runs as one page: curves, samples, settings that differ, skipped updates, hardware, next commands."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, groupby
from typing import Any, Literal

from nmt_cli import __version__
from nmt_cli.artifacts.checkpoints import best_first
from nmt_cli.artifacts.history import Elapsed, History, Point, ValidationPoint, mean_history
from nmt_cli.artifacts.info import describe_run, next_command
from nmt_cli.artifacts.model_directory import DirectionResult
from nmt_cli.artifacts.run import Run
from nmt_cli.console import duration_text, size_text, time_text
from nmt_cli.errors import UsageError
from nmt_cli.recipe.key_paths import dotted_key, flatten
from nmt_cli.recipe.schema import Recipe
from nmt_cli.templates.charts import COLOURS, DASHES, THINNING_COLUMNS, Line, line_chart
from nmt_cli.templates.render import render

PAGE_MARK = '<meta name="generator" content="nmt report">'
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
_Setting = tuple[str, list[str]]
_SEED = ("training", "seed")
_TABLE_COLUMNS = ("chart", "system", "update", "seconds", "runs", "mean", "deviation", "lowest", "highest")
MAX_SYSTEMS = len(DASHES)

MARKS = (PAGE_MARK, "<!-- nmt report -->", ",".join(_TABLE_COLUMNS))
"""One stands in every page, figure and table: `nmt report` replaces a file only if a mark is in it."""


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
        points = [_best(run, metric) for run in self.runs]
        values = [getattr(point.measured, metric) for point in points if point is not None]
        return [value for value in values if value is not None]


@dataclass(frozen=True, slots=True)
class Report:
    """The page, and files beside it by their endings: a table, and each chart. A page of one run has none."""

    page: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis below the curves: its unit, and the position of a point on it."""

    unit: str
    position_of: Callable[[Elapsed], float]


_UPDATES = Axis("updates", lambda at: at.update)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with a curve per system; two charts with the same `bounded_by` have the same axis of values."""

    name: str
    title: str
    note: str
    curve_of: Callable[[History], Curve]
    number_format: str
    bounded_by: Sequence[Curve]
    starts_at_zero: bool = False

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest value that the chart has room for."""
        values = [value for curve in self.bounded_by for _, value in curve]
        return 0.0 if self.starts_at_zero else min(values), max(values)


def render_report(runs: Sequence[Run], *, command: str, now: datetime) -> Report:
    """The page about these runs as HTML, which loads nothing and runs no script; every text in it is escaped.

    The page shows `command`, which writes it again. UsageError if there are more systems than line styles.
    """
    histories = [run.history() for run in runs]
    systems = _systems(runs, histories)
    if len(systems) > MAX_SYSTEMS:
        message = f"{len(systems)} systems are too many: a page has line styles for {MAX_SYSTEMS}"
        raise UsageError(message, where="RUN", hint=f"name runs of at most {MAX_SYSTEMS} systems")
    reported = [run for system in systems for run in system.runs]
    different, common = _settings(systems)
    axes = _axes(reported)
    charts = _charts(reported)
    page = render(
        "run_report.html",
        runs=reported,
        systems=systems,
        have_seeds=len(systems) < len(reported),
        mark=PAGE_MARK,
        findings=[text[0].upper() + text[1:] if len(reported) == 1 else text for text in _findings(reported)],
        axes=axes,
        charts=list(_draw_charts(systems, charts, axes)),
        validations=_validation_rows(systems),
        signatures=sorted(_signatures(reported)),
        samples=list(_samples(reported)),
        without_samples=[run.label for run in reported if not any(point.samples for point in run.history.validations)],
        directions=_direction_rows(reported),
        direction_groups=[("", 1), *((run.label, 2) for run in reported)] if len(reported) > 1 else [],
        different_settings=different,
        common_settings=common,
        groups=[(system.label, 2) for system in systems],  # over two columns: loss and BLEU
        columns=[(system.label, "text") for system in systems],
        starts=list(_starts(reported)),
        skipped_updates=list(_skipped_updates(reported)),
        best_validation=_best,
        mean_and_deviation=_mean_and_deviation,
        next_command=next_command,
        duration_text=duration_text,
        size_text=size_text,
        time_text=time_text,
        no_value=_NO_VALUE,
        colours=COLOURS,
        dashes=DASHES,
        thinning_columns=THINNING_COLUMNS,
        command=command,
        now=now.astimezone(UTC).isoformat(),
        nmt_version=__version__,
    )
    return Report(page, {} if len(reported) == 1 else dict(_files(systems, charts)))


def _systems(runs: Sequence[Run], histories: Sequence[History]) -> list[ReportedSystem]:
    """The runs by system: those of one recipe, data and initial model, if each has another seed."""
    by_recipe: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        recipe = flatten(run.recipe.model_dump(mode="json"))
        settings = {dotted_key(path): value for path, value in recipe.items() if path not in (*_OWN_KEYS, _SEED)}
        initial = None if run.record.init_from is None else run.record.init_from.path
        key = json.dumps([settings, run.record.data_summary.get("fingerprint"), initial], sort_keys=True)
        by_recipe.setdefault(key, []).append(number)
    groups: list[list[int]] = []
    for numbers in by_recipe.values():
        seeds = {runs[number].recipe.training.seed for number in numbers}
        groups += [numbers] if len(seeds) == len(numbers) else [[number] for number in numbers]
    labels, systems = _labels(runs), list[ReportedSystem]()
    for style, group in enumerate(groups):
        reported = [
            ReportedRun(labels[number], style, runs[number], histories[number], facts)
            for number in group
            for facts in [describe_run(runs[number], history=histories[number])]
        ]
        if len(group) == 1:
            systems.append(ReportedSystem(reported[0].label, style, reported, reported[0].history))
            continue
        # base-1 and base-seed-2 are runs of base
        names = {re.sub(r"[-_.]*(seed)?[-_.]*\d+$", "", run.label) for run in reported}
        label = reported[0].label if len(names) > 1 else names.pop() or reported[0].label
        mean = mean_history([run.history for run in reported])
        systems.append(ReportedSystem(f"{label} ({len(group)} runs)", style, reported, mean))
    return systems


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


def _best(shown: ReportedRun | ReportedSystem, metric: Literal["loss", "bleu"]) -> ValidationPoint | None:
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
    axes = {"updates": _UPDATES}
    if longest:
        axes["time"] = Axis(unit, lambda at: at.seconds / size)
    return axes


def _draw_charts(
    systems: Sequence[ReportedSystem], charts: Sequence[Chart], axes: Mapping[str, Axis]
) -> Iterator[dict[str, Any]]:
    """Each chart with its title, the unit of its values, and a drawing per axis; no drawing if there are no values."""
    for chart in charts:
        has_values = any(chart.curve_of(system.history) for system in systems)
        shown = axes.items() if has_values else ()
        drawings = {name: _draw(systems, chart, axis, is_figure=False) for name, axis in shown}
        yield {"title": chart.title, "note": chart.note, "drawings": drawings}


def _draw(systems: Sequence[ReportedSystem], chart: Chart, axis: Axis, *, is_figure: bool) -> str:
    """A line for each system. That of several runs is their mean, with a band from the lowest to the highest run."""
    lines = []
    for system in systems:
        values = _values(system, chart)
        points, lowest, highest = (
            [(axis.position_of(at), measure(there)) for at, there in values] for measure in (statistics.fmean, min, max)
        )
        lines.append(Line(system.label, system.style, points, (lowest, highest) if len(system.runs) > 1 else None))
    return line_chart(
        lines,
        title=f"{chart.title}, {chart.note}" if is_figure else chart.title,
        unit=axis.unit,
        bounds=chart.bounds,
        number_format=chart.number_format,
        is_figure=is_figure,
    )


def _values(system: ReportedSystem, chart: Chart) -> list[tuple[Elapsed, list[float]]]:
    """The points of the system's mean curve, each with the values of the runs."""
    by_update: dict[int, list[float]] = {}
    for run in system.runs:
        for at, value in chart.curve_of(run.history):
            by_update.setdefault(at.update, []).append(value)
    return [(at, by_update[at.update]) for at, _ in chart.curve_of(system.history)]


def _files(systems: Sequence[ReportedSystem], charts: Sequence[Chart]) -> Iterator[tuple[str, str]]:
    """The files beside a page by their endings: a table of all curves, and a figure of each chart over updates."""
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(_TABLE_COLUMNS)
    for chart in charts:
        for system in systems:
            for at, values in _values(system, chart):
                spread = [statistics.stdev(values), min(values), max(values)] if len(values) > 1 else [""] * 3
                mean = statistics.fmean(values)
                rows.writerow([chart.name, system.label, at.update, round(at.seconds, 3), len(values), mean, *spread])
    yield ".csv", table.getvalue()
    for chart in charts:
        if any(chart.curve_of(system.history) for system in systems):
            yield f"-{chart.name}.svg", _draw(systems, chart, _UPDATES, is_figure=True)


def _mean_and_deviation(values: Sequence[float], number_format: str) -> str:
    """The mean of the values and, of several, their sample standard deviation."""
    if not values:
        return _NO_VALUE
    mean = number_format.format(statistics.fmean(values))
    return mean if len(values) == 1 else f"{mean} ± {number_format.format(statistics.stdev(values))}"


def _charts(reported: Sequence[ReportedRun]) -> list[Chart]:
    def curves(curve_of: Callable[[History], Curve]) -> list[Curve]:
        return [curve_of(shown.history) for shown in reported]

    def train_loss(history: History) -> Curve:
        return _curve(history.training, lambda point: point.loss)

    def valid_loss(history: History) -> Curve:
        return _curve(history.validations, lambda point: point.measured.loss)

    def bleu(history: History) -> Curve:
        return _curve(history.validations, lambda point: point.measured.bleu)

    def rate(history: History) -> Curve:
        return _curve(history.training, lambda point: point.learning_rate)

    losses, nats = [*curves(train_loss), *curves(valid_loss)], "nats per target token"
    bleus, rates = curves(bleu), curves(rate)
    return [
        Chart("training-loss", "Training loss", nats, train_loss, "{:.3f}", losses),
        Chart("validation-loss", "Validation loss", nats, valid_loss, "{:.4f}", losses),
        Chart("bleu", "BLEU on the validation set", "sacreBLEU", bleu, "{:.2f}", bleus),
        Chart("learning-rate", "Learning rate", "by the schedule", rate, "{:.3g}", rates, starts_at_zero=True),
    ]


def _curve(points: Sequence[Point], value_of: Callable[[Point], float | None]) -> Curve:
    """The curve of a run, given its points; a point without the value is left out."""
    return [(point.at, value) for point in points if (value := value_of(point)) is not None]


def _validation_rows(systems: Sequence[ReportedSystem]) -> list[tuple[int, list[ValidationPoint | None]]]:
    """The rows of the table of validations: an update, and the validation of each system after it, or None.

    There are about two dozen rows. They are spread evenly, and include the best and the last validation of each system.
    """
    by_system = [{point.measured.update: point for point in system.history.validations} for system in systems]
    updates = sorted(set(chain(*by_system)))
    step = math.ceil(len(updates) / _MAX_ROWS) or 1
    kept = set(updates[step - 1 :: step])
    for system in systems:
        chosen = (_best(system, "bleu"), _best(system, "loss"), *system.history.validations[-1:])
        kept |= {point.measured.update for point in chosen if point is not None}
    return [(update, [points.get(update) for points in by_system]) for update in sorted(kept)]


def _samples(reported: Sequence[ReportedRun]) -> Iterator[dict[str, Any]]:
    """Each sample with its reference, and some of each run's translations over time."""
    languages_of = {
        (sample["source"], sample["reference"]): next(
            pair for pair in shown.run.record.languages.pairs if sample.get("direction") in (None, str(pair))
        )
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


def _direction_rows(reported: Sequence[ReportedRun]) -> list[tuple[str, list[DirectionResult | None]]]:
    """The directions of the runs, and what each run had at its best validation; empty if there is one."""
    best = [_best(shown, shown.run.recipe.validation.metric) for shown in reported]
    results = [{} if point is None else point.measured.by_direction for point in best]
    return [(name, [of_run.get(name) for of_run in results]) for name in dict.fromkeys(chain(*results))]


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


def _settings(systems: Sequence[ReportedSystem]) -> tuple[list[_Setting], list[_Setting]]:
    """The settings that differ between the systems, and the shared settings that differ from the default.

    Each is (key, values): a value per system in the first list; the shared value and the default in the second. The
    seeds of several runs stand elsewhere.
    """
    own = (*_OWN_KEYS, *([_SEED] if any(len(system.runs) > 1 for system in systems) else []))
    recipes = [flatten(system.runs[0].run.recipe.model_dump(mode="json")) for system in systems]
    default = flatten(Recipe(name="default").model_dump(mode="json"))
    paths = dict.fromkeys(path for recipe in (default, *recipes) for path in recipe if path not in own)
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
    initial_models = [system.runs[0].run.record.init_from for system in systems]
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
