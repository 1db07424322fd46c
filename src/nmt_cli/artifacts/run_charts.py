"""The charts of a report over updates or time, and the files beside its page: a table, and a figure of each chart."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nmt_cli.artifacts.history import Elapsed, History, Point
from nmt_cli.artifacts.reported_systems import ReportedRun, ReportedSystem
from nmt_cli.templates.charts import Line, line_chart

Curve = Sequence[tuple[Elapsed, float]]
TABLE_COLUMNS = ("chart", "system", "update", "seconds", "runs", "mean", "deviation", "lowest", "highest")
# Name, seconds, and how many of the unit a training must have lasted.
_TIME_UNITS = (("days", 86_400.0, 3.0), ("hours", 3600.0, 2.0), ("minutes", 60.0, 2.0), ("seconds", 1.0, 0.0))


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


def charts_of(reported: Sequence[ReportedRun]) -> list[Chart]:
    """The charts of a report: two losses, BLEU and the learning rate."""

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


def axes_of(reported: Sequence[ReportedRun]) -> dict[str, Axis]:
    """The axes that the runs recorded, by name."""
    longest = max(shown.history.seconds for shown in reported)
    unit, size = next((unit, size) for unit, size, fewest in _TIME_UNITS if longest >= fewest * size)
    axes = {"updates": _UPDATES}
    if longest:
        axes["time"] = Axis(unit, lambda at: at.seconds / size)
    return axes


def draw_charts(
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


def figures_and_table(systems: Sequence[ReportedSystem], charts: Sequence[Chart]) -> Iterator[tuple[str, str]]:
    """The files beside a page by their endings: a table of all curves, and a figure of each chart over updates."""
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(TABLE_COLUMNS)
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
