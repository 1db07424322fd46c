"""Line charts as SVG, which scale and need no script; the round axes and short numbers of all charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, groupby

from nmt_cli.templates.render import render

_MAX_TICKS = 5
# A smaller range, relative to the values, would repeat its labels, which have six digits; the axis then starts at 0.
_MIN_RELATIVE_RANGE = 5e-5
# A long line is divided into this many columns, each about two units of the drawing wide.
THINNING_COLUMNS = 200
_MAX_MARKED_POINTS = 25  # a longer line has no marks
_NUMBER_SUFFIXES = ((1e9, "B"), (1e6, "M"), (1e3, "k"))

# The first six styles of lines differ by colour and dashes; the next six have their colours, with other dashes. These
# colours stay apart for people who see few colours, and stand out from a white page.
COLOURS = ("#1b4c83", "#c28102", "#d32ff4", "#1d997b", "#6e3d12", "#24272e")
DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "5 2", "12 3 2 3 2 3", "3 6", "12 3", "6 6", "2 2 8 2", "1 2", "14 2 2 2")

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """A series of a chart: its name, the number of its style, and its points by rising x.

    The mean of several series has a band: the points of its lower and of its upper edge.
    """

    name: str
    style: int
    points: Sequence[Point]
    band: tuple[Sequence[Point], Sequence[Point]] | None = None


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    unit: str,
    bounds: tuple[float, float],
    number_format: str,
    is_figure: bool = False,
) -> str:
    """The lines over one axis of `unit`, with room for the values between `bounds`; `number_format` writes a value.

    A long line is thinned. A short one has marks, over which the mouse shows their values. The label of the drawing,
    which screen readers read, names the first and the last value of each line. A figure is a file of its own, with
    title, colours and legend; any other drawing takes them from its page.
    """
    drawn_lines = [line for line in lines if line.points]
    x_ticks = axis_ticks(0, max(line.points[-1][0] for line in drawn_lines), least_step=0)
    y_ticks = axis_ticks(*bounds, least_step=0)

    def in_plot(point: Point) -> Point:
        return point[0] / x_ticks[-1], (point[1] - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])

    ends = "; ".join(
        f"{line.name} from {number_format.format(line.points[0][1])} to {number_format.format(line.points[-1][1])}"
        for line in drawn_lines
    )
    return render(
        "line_chart.html",
        label=f"{title} by {unit}: {ends}",
        title=title,
        is_figure=is_figure,
        colours=COLOURS,
        dashes=DASHES,
        unit=unit,
        x_ticks=[(in_plot((tick, 0))[0], short_number(tick)) for tick in x_ticks],
        y_ticks=[(in_plot((0, tick))[1], short_number(tick)) for tick in y_ticks],
        lines=[
            {
                "name": line.name,
                "style": line.style,
                "band": [in_plot(point) for point in _outline(line)],
                "points": [in_plot(point) for point in thin(line.points, columns=THINNING_COLUMNS)],
                "marks": [
                    (*in_plot((x, y)), f"{line.name} {number_format.format(y)} at {x:,.6g} {unit}")
                    for x, y in (line.points if len(line.points) <= _MAX_MARKED_POINTS else ())
                ],
            }
            for line in drawn_lines
        ],
    )


def _outline(line: Line) -> list[Point]:
    """The points around the band of a line, thinned; none without a band."""
    if line.band is None:
        return []
    lower, upper = (thin(edge, columns=THINNING_COLUMNS) for edge in line.band)
    return [*lower, *reversed(upper)]


def thin(points: Sequence[Point], *, columns: int) -> list[Point]:
    """At most four points per column of the drawing: its first, lowest, highest and last point.

    The line through them looks like the line through all points, so no spike is lost. This is the aggregation M4 of
    Jugel et al. 2014, "M4: a visualization-oriented time series data aggregation".
    """
    if len(points) <= 2 * columns:
        return list(points)
    start, width = points[0][0], (points[-1][0] - points[0][0]) / columns or 1.0
    kept: list[Point] = []
    for _, group in groupby(points, key=lambda point: min(int((point[0] - start) / width), columns - 1)):
        column = list(group)
        lowest = min(range(len(column)), key=lambda index: column[index][1])
        highest = max(range(len(column)), key=lambda index: column[index][1])
        kept += [column[index] for index in sorted({0, lowest, highest, len(column) - 1})]
    return kept


def axis_ticks(lowest: float, highest: float, *, least_step: float) -> list[float]:
    """The round ticks of an axis: the first is at most `lowest`, the last at least `highest`.

    Their distance is 1, 2 or 5 times a power of ten, and at least `least_step`.
    """
    if highest - lowest <= _MIN_RELATIVE_RANGE * max(abs(lowest), abs(highest)):
        lowest, highest = min(lowest, 0), max(highest, 0) or 1
    least_step = max(least_step, (highest - lowest) / _MAX_TICKS)
    power = math.floor(math.log10(least_step))
    steps = (factor * 10.0**exponent for exponent in count(power) for factor in (1, 2, 5))
    step = next(
        step
        for step in steps
        if step >= least_step * (1 - 1e-9) and math.ceil(highest / step) - math.floor(lowest / step) <= _MAX_TICKS
    )
    multiples = range(math.floor(lowest / step), math.ceil(highest / step) + 1)
    # Rounded to twelve digits, because 3 * 0.1 is 0.30000000000000004.
    return [float(f"{multiple * step:.12g}") for multiple in multiples]


def short_number(number: float) -> str:
    """A round number in few characters: 0, 500, 2k, 1.5M, 1.5e-4."""
    for size, letter in _NUMBER_SUFFIXES:
        if abs(number) >= size:
            return f"{number / size:g}{letter}"
    if 0 < abs(number) < 1e-3:
        factor, exponent = f"{number:e}".split("e")
        return f"{float(factor):g}e{int(exponent)}"
    return f"{number:g}"
