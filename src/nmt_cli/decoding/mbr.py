"""Minimum Bayes risk: of several translations the one that is most like the others (Kumar and Byrne 2004, N04-1022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import exp
from typing import Literal, assert_never

from nmt_cli.errors import UsageError

Utility = Literal["chrf", "bleu"]


def utility_name(name: str) -> Utility:
    """The utility of that name; UsageError where there is none."""
    match name:
        case "chrf" | "bleu":
            return name
        case _:
            raise UsageError(f"there is no utility called {name!r}", where="--mbr", hint="take chrf or bleu")


def expected_utilities(texts: Sequence[str], weights: Sequence[float], *, utility: Utility) -> list[float]:
    """For each text its mean utility, 0 to 100, with each of the texts as the reference, weighed by `weights`."""
    similarity = cache(_similarity(utility))
    total = sum(weights)
    return [
        sum(weight * similarity(text, other) for other, weight in zip(texts, weights, strict=True)) / total
        for text in texts
    ]


def relative_probabilities(log_probs: Sequence[float]) -> list[float]:
    """P of each hypothesis over that of the most probable one."""
    highest = max(log_probs)
    return [exp(log_prob - highest) for log_prob in log_probs]


def _similarity(utility: Utility) -> Callable[[str, str], float]:
    """sacreBLEU's score of one sentence: chrF2, or BLEU with exponential smoothing over the orders it has."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    match utility:
        case "chrf":
            metric: BLEU | CHRF = CHRF()
        case "bleu":
            metric = BLEU(effective_order=True)
        case other:
            assert_never(other)
    return lambda text, reference: float(metric.sentence_score(text, [reference]).score)
