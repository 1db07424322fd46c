"""A measured figure beside the expected one, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from nmt_cli.reproducing.experiments import Expected, FigureName

Standing = Literal["as expected", "below", "above", "not comparable", "context"]

_UNITS: dict[FigureName, str] = {"parameters": " million", "hours": " h"}
_DECIMALS: dict[FigureName, int] = {
    "parameters": 1,
    "hours": 1,
    "perplexity": 2,
    "paper BLEU": 2,
    "sacreBLEU": 2,
    "chrF2": 2,
}
# As many as the paper prints.
_PRINTED_DECIMALS: dict[FigureName, int] = {"parameters": 0, "perplexity": 2, "paper BLEU": 1, "sacreBLEU": 1}


@dataclass(frozen=True, slots=True)
class Figure:
    """What a stage has measured of one figure, and what is expected of it; `detail` is a signature or a source."""

    name: FigureName
    expected: Expected | None
    measured: float
    is_rehearsed: bool = False
    detail: str = ""

    @property
    def standing(self) -> Standing:
        """How the figure stands to what is expected. A rehearsal's is not compared with a full run's."""
        if self.is_rehearsed:
            return "not comparable"
        if self.expected is None or self.expected.tolerance is None:
            return "context"
        if self.measured < self.expected.low - self.expected.tolerance:
            return "below"
        return "above" if self.measured > self.expected.high + self.expected.tolerance else "as expected"

    @property
    def verdict(self) -> str:
        """The standing in words, with the distance where there is one."""
        match self.standing:
            case "below":
                assert self.expected is not None
                return f"below by {self._shown(self.expected.low - self.measured)}"
            case "above":
                assert self.expected is not None
                return f"above by {self._shown(self.measured - self.expected.high)}"
            case "not comparable":
                return "not comparable: rehearsal"
            case "context":
                return "for context" if self.expected is not None else "not in the paper"
            case "as expected":
                return "as expected"

    @property
    def has_failed(self) -> bool:
        """True for the figure that decides a reproduction, where it is below what the tolerance allows."""
        return self.expected is not None and self.expected.decides and self.standing == "below"

    @property
    def measured_text(self) -> str:
        """The measured figure as people read it."""
        return self._shown(self.measured)

    @property
    def expected_text(self) -> str:
        """The expected figure as people read it, with its tolerance; empty where the paper has none."""
        return expectation(self.name, self.expected)

    def to_json(self) -> dict[str, Any]:
        """The figure for reproduction.json."""
        expected = self.expected
        return {
            "figure": self.name,
            "expected": None
            if expected is None
            else {
                "low": expected.low,
                "high": expected.high,
                "tolerance": expected.tolerance,
                "source": expected.source,
                "why": expected.why,
            },
            "measured": self.measured,
            "detail": self.detail,
            "verdict": self.verdict,
        }

    def _shown(self, value: float) -> str:
        return shown(self.name, value)


def shown(name: FigureName, value: float) -> str:
    """A value of a figure as people read it."""
    return _number(name, value, decimals=_DECIMALS.get(name, 0)) + _UNITS.get(name, "")


def expectation(name: FigureName, expected: Expected | None) -> str:
    """What is expected of a figure: one value or a range, and what it may differ by."""
    if expected is None:
        return ""
    decimals = _PRINTED_DECIMALS.get(name, 0)
    values = dict.fromkeys(_number(name, value, decimals=decimals) for value in (expected.low, expected.high))
    tolerance = f" ± {_number(name, expected.tolerance, decimals=decimals)}" if expected.tolerance else ""
    return " to ".join(values) + tolerance + _UNITS.get(name, "")


def _number(name: FigureName, value: float, *, decimals: int) -> str:
    return f"{value / 1e6 if name == 'parameters' else value:,.{decimals}f}"
