"""The page's colours are far enough from each other to be read, by the formulas of WCAG 2."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

_PAGE = files("nmt_cli.serving").joinpath("page.html").read_text(encoding="utf-8")
Colour = tuple[float, ...]


def colours(selector: str) -> dict[str, str]:
    (block,) = re.findall(re.escape(selector) + r" \{(.*?)\}", _PAGE, re.DOTALL)
    return dict(re.findall(r"--([a-z-]+): ([^;]+);", block))


def rgb(text: str) -> Colour:
    if text.startswith("#"):
        return tuple(int(text[place : place + 2], 16) for place in (1, 3, 5))
    return tuple(map(float, text.split(",")))


def luminance(colour: Colour) -> float:
    parts = [value / 255 for value in colour]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Colour, other: Colour) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_formula() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast(rgb("#777777"), rgb("#ffffff")) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("selector", [":root", ':root[data-theme="dark"]'])
def test_text_and_focus_stand_out(selector: str) -> None:
    theme = colours(selector)
    for text in ("text", "quiet", "accent", "error"):
        for ground in ("page", "panel", "hover"):
            assert contrast(rgb(theme[text]), rgb(theme[ground])) >= 4.5, (text, ground)
    assert contrast(rgb(theme["accent"]), rgb(theme["panel"])) >= 3
    share = float(theme["strongest"])
    lit = tuple(share * a + (1 - share) * b for a, b in zip(rgb(theme["glow"]), rgb(theme["panel"]), strict=True))
    assert contrast(rgb(theme["text"]), lit) >= 4.5
