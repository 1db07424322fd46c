"""Charts for the report's page, as SVG within HTML: they scale, and need no script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import count
from typing import Any

_WIDTH, _HEIGHT = 460, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 10, 38
_MAX_TICKS = 5
_MAX_LABELS = 9


def length_chart(sides: Mapping[str, Sequence[Mapping[str, Any]]], *, languages: Mapping[str, str], unit: str) -> str:
    """A histogram of the lengths of `source` and `target` with bars side by side; each bin tells its counts.

    A side is a list of bins `from`, `to`, `sentences`; the bins of both are the same up to the end of the shorter list.
    """
    bins = max(sides.values(), key=len)
    counts = {side: [one["sentences"] for one in found] + [0] * len(bins) for side, found in sides.items()}
    top, ticks = axis(max(max(values) for values in counts.values()))
    label = f"Training sentences by length in {unit}, {escape(' and '.join(languages.values()))}"
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">']
    parts += _grid(top, ticks)
    step = (_WIDTH - _LEFT - _RIGHT) / len(bins)
    for place, edges in enumerate(bins):
        left = _LEFT + place * step
        here = {side: values[place] for side, values in counts.items()}
        spoken = "; ".join(f"{escape(languages[side])} {number:,}" for side, number in here.items())
        parts.append(f"<g><title>{_span(edges)} {unit}: {spoken}</title>")
        parts.append(f'<rect class="hit" x="{left:.1f}" y="{_TOP}" width="{step:.1f}" height="{_plot_height()}"/>')
        for index, (side, number) in enumerate(here.items()):
            height = _plot_height() * number / top
            x, y = left + step * (0.08 + 0.42 * index), _TOP + _plot_height() - height
            parts.append(
                f'<rect class="{side}" x="{x:.1f}" y="{y:.1f}" width="{step * 0.42:.1f}" height="{height:.1f}"/>'
            )
        parts.append("</g>")
    parts += _labels(bins, step)
    parts.append(f'<text x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 4}" text-anchor="middle">{unit}</text></svg>')
    return "".join(parts)


def axis(highest: float) -> tuple[float, list[float]]:
    """The end of an axis for values from 0 to `highest`, and its round ticks, 0 among them."""
    if highest <= 0:
        return 1, [0, 1]
    steps = (factor * 10**power for power in count(0) for factor in (1, 2, 5))
    step = next(step for step in steps if step * _MAX_TICKS >= highest)
    ticks = [step * number for number in range(_MAX_TICKS + 1) if step * (number - 1) < highest]
    return ticks[-1], ticks


def short_number(number: float) -> str:
    """A round number in few characters: 0, 500, 2k, 1.5M."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


def _grid(top: float, ticks: Sequence[float]) -> Iterator[str]:
    for tick in ticks:
        y = _TOP + _plot_height() * (1 - tick / top)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short_number(tick)}</text>'


def _labels(bins: Sequence[Mapping[str, Any]], step: float) -> Iterator[str]:
    """The lower edges of some of the bins, the first one and the open one among them."""
    every = -(-len(bins) // _MAX_LABELS)
    for place, edges in enumerate(bins):
        is_open = edges["to"] is None
        is_clear_of_open = bins[-1]["to"] is not None or len(bins) - 1 - place > every / 2
        if is_open or (place % every == 0 and is_clear_of_open):
            x, anchor = (_WIDTH - 2, "end") if is_open else (_LEFT + (place + 0.5) * step, "middle")
            label = f"{edges['from']}{'+' if is_open else ''}"
            yield f'<text x="{x:.1f}" y="{_HEIGHT - 21}" text-anchor="{anchor}">{label}</text>'


def _span(edges: Mapping[str, Any]) -> str:
    if edges["to"] is None:
        return f"{edges['from']:,} or more"
    return f"{edges['from']:,}" if edges["from"] == edges["to"] else f"{edges['from']:,} to {edges['to']:,}"


def _plot_height() -> int:
    return _HEIGHT - _TOP - _BOTTOM
