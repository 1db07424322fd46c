"""Charts: round axes that hold their values, thinned lines that look the same, and points where they belong."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.templates.charts import Line, axis_ticks, line_chart, thin

VALUES = st.floats(-1e9, 1e9).filter(lambda value: value == 0 or abs(value) > 1e-9)
SERIES = st.lists(st.floats(-100, 100), min_size=1, max_size=400)


@given(one=VALUES, other=VALUES)
def test_an_axis_holds_its_values_with_few_round_ticks(one: float, other: float) -> None:
    lowest, highest = sorted((one, other))
    ticks = axis_ticks(lowest, highest, least_step=0)
    assert ticks[0] <= lowest + 1e-9 * abs(lowest)
    assert ticks[-1] >= highest - 1e-9 * abs(highest)
    assert 2 <= len(ticks) <= 6
    step = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
    assert step / 10 ** math.floor(math.log10(step) + 1e-9) == pytest.approx(
        round(step / 10 ** math.floor(math.log10(step) + 1e-9))
    )
    assert all(after - before == pytest.approx(step) for before, after in pairwise(ticks))


@given(values=SERIES, columns=st.integers(1, 60))
def test_a_thinned_line_keeps_the_extremes_of_each_column(values: list[float], columns: int) -> None:
    points = [(float(place), value) for place, value in enumerate(values)]
    kept = thin(points, columns=columns)
    assert kept == sorted(set(kept), key=lambda point: point[0])
    assert set(kept) <= {*points}
    if len(points) <= 2 * columns:
        assert kept == points
        return
    assert len(kept) <= 4 * columns
    width = points[-1][0] / columns
    for column in range(columns):
        inside = {
            name: [y for x, y in found if min(int(x / width), columns - 1) == column]
            for name, found in (("all", points), ("kept", kept))
        }
        if inside["all"]:
            assert (min(inside["kept"]), max(inside["kept"])) == (min(inside["all"]), max(inside["all"]))
            assert (inside["kept"][0], inside["kept"][-1]) == (inside["all"][0], inside["all"][-1])


def drawn(lines: list[Line], bounds: tuple[float, float]) -> ElementTree.Element:
    return ElementTree.fromstring(
        line_chart(lines, title="Loss", unit="updates", bounds=bounds, number_format="{:.2f}").replace("&nbsp;", " ")
    )


def test_points_lie_between_the_ticks_of_their_values() -> None:
    chart = drawn([Line("a <run>", 2, [(0.0, 1.0), (50.0, 2.0), (100.0, 4.0)])], (0.0, 4.0))
    assert chart.attrib["aria-label"] == "Loss by updates: a <run> from 1.00 to 4.00"
    (polyline,) = chart.iter("polyline")
    assert polyline.attrib["class"] == "run2"
    points = [tuple(map(float, point.split(","))) for point in polyline.attrib["points"].split()]
    heights = {float(line.attrib["y1"]): number for number, line in enumerate(chart.iter("line"))}
    assert [heights[y] for _, y in points] == [1, 2, 4]  # a grid line per unit, from below
    texts = {text.text: float(text.attrib["x"]) for text in chart.iter("text") if text.attrib["text-anchor"] != "end"}
    assert points[0][0] == texts["0"]
    assert points[2][0] - points[1][0] == pytest.approx(points[1][0] - points[0][0], abs=0.1)
    marks = ["a <run> 1.00 at 0 updates", "a <run> 2.00 at 50 updates", "a <run> 4.00 at 100 updates"]
    assert [mark.text for circle in chart.iter("circle") for mark in circle] == marks


def test_a_long_line_has_no_marks_and_a_spike_stays_in_it() -> None:
    values = [5.0] * 100_000
    values[54_321] = 50.0
    chart = drawn([Line("a", 0, [(float(place), value) for place, value in enumerate(values)])], (5.0, 50.0))
    assert [*chart.iter("circle")] == []
    (polyline,) = chart.iter("polyline")
    heights = [float(point.split(",")[1]) for point in polyline.attrib["points"].split()]
    assert len(heights) < 900
    assert sum(height == min(heights) for height in heights) == 1
