"""The metrics by name, and how their scores are read. Nothing is imported, so that the command line starts quickly."""

from __future__ import annotations

from typing import Literal

MetricName = Literal["bleu", "paper-bleu", "chrf", "chrf++", "ter", "comet"]

# What a metric is called in tables, and in all below.
TITLES: dict[MetricName, str] = {
    "bleu": "BLEU",
    "paper-bleu": "paper-BLEU",
    "chrf": "chrF2",
    "chrf++": "chrF2++",
    "ter": "TER",
    "comet": "COMET",
}


def digits_of(title: str) -> int:
    """Digits behind the point with which scores of a metric are usually given."""
    return 4 if title == "COMET" else 2


def lower_is_better(title: str) -> bool:
    """True for a metric that counts errors."""
    return title == "TER"
