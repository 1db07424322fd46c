"""Drawings of attention: shades in a terminal, and an SVG with a panel for each layer and head."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from html import escape

from torch import Tensor

from nmt_cli.decoding.attention_maps import AttentionMap

_SHADES = " ░▒▓█"
# The weights at which each darker shade begins.
_STEPS = (0.08, 0.25, 0.5, 0.75)
_CELL, _LETTER, _GAP, _TITLE = 16, 7.2, 28, 22
_STYLE = (
    "text{font:12px system-ui,'DejaVu Sans',sans-serif;fill:#1a2027}.quiet{fill:#556070}rect.paper{fill:#fff}"
    "rect.cell{fill:#0b5cb8}rect.frame{fill:none;stroke:#8a96a3}"
    "@media(prefers-color-scheme:dark){text{fill:#e8edf3}.quiet{fill:#a0acba}rect.paper{fill:#171d24}"
    "rect.cell{fill:#7db8ff}}"
)


def attention_as_text(found: AttentionMap, weights_TS: Tensor) -> list[str]:
    """Lines for a terminal, one per row of weights [T, S], with two characters per column and the names above."""
    width = max(map(_width, found.rows))
    tall = max(map(len, found.columns))
    lines = [
        " " * (width + 1) + "".join(_cell(name.rjust(tall)[place]) for name in found.columns).rstrip()
        for place in range(tall)
    ]
    for name, row in zip(found.rows, weights_TS.tolist(), strict=True):
        shades = "".join(2 * _SHADES[sum(weight >= step for step in _STEPS)] for weight in row)
        lines.append(f"{' ' * (width - _width(name))}{name} {shades}".rstrip())
    return lines


def attention_as_svg(found: AttentionMap, *, layers: Sequence[int], heads: Sequence[int | None]) -> str:
    """An SVG with a line of panels per layer (from 0), and a panel per head; None is the mean of all heads."""
    names = 16 + _LETTER * max(map(_width, found.rows))
    tall = 12 + _LETTER * max(map(_width, found.columns))
    panel_width = names + _CELL * len(found.columns) + _GAP
    panel_height = _TITLE + tall + _CELL * len(found.rows) + _GAP
    width, height = _GAP + panel_width * len(heads), _GAP + panel_height * len(layers)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" role="img"><title>Attention, {found.part}</title>'
        f'<style>{_STYLE}</style><rect class="paper" width="100%" height="100%"/>'
    ]
    for line, layer in enumerate(layers):
        for column, head in enumerate(heads):
            weights = found.weights[layer].mean(dim=0) if head is None else found.weights[layer, head]
            name = "mean of all heads" if head is None else f"head {head + 1}"
            parts.append(
                f'<g transform="translate({_GAP + column * panel_width:.1f},{_GAP + line * panel_height:.1f})">'
            )
            parts.append(f'<text class="quiet" y="12">layer {layer + 1}, {name}</text>')
            parts += _panel(found, weights, left=names, top=_TITLE + tall)
            parts.append("</g>")
    return "".join([*parts, "</svg>\n"])


def _panel(found: AttentionMap, weights_TS: Tensor, *, left: float, top: float) -> list[str]:
    parts = []
    for place, name in enumerate(found.columns):
        x = left + _CELL * place + _CELL / 2 + 4
        parts.append(f'<text transform="translate({x:.1f},{top - 6:.1f}) rotate(-90)">{escape(name)}</text>')
    for line, (name, row) in enumerate(zip(found.rows, weights_TS.tolist(), strict=True)):
        y = top + _CELL * line
        parts.append(f'<text x="{left - 6:.1f}" y="{y + 12:.1f}" text-anchor="end">{escape(name)}</text>')
        for place, weight in enumerate(row):
            parts.append(
                f'<rect class="cell" x="{left + _CELL * place:.1f}" y="{y:.1f}" width="{_CELL}" height="{_CELL}"'
                f' fill-opacity="{weight:.3f}"><title>{escape(name)} · {escape(found.columns[place])}: {weight:.3f}'
                "</title></rect>"
            )
    width, height = _CELL * len(found.columns), _CELL * len(found.rows)
    parts.append(f'<rect class="frame" x="{left:.1f}" y="{top:.1f}" width="{width}" height="{height}"/>')
    return parts


def _width(text: str) -> int:
    """Width in a terminal: letters of East Asian scripts take two columns, combining marks none."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def _cell(character: str) -> str:
    return character if _width(character) == 2 else f"{character} "
