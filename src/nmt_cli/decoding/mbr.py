"""Minimum Bayes risk: the translation that is most similar to the others (Kumar and Byrne 2004, N04-1022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import exp
from typing import Literal, assert_never

from nmt_cli.decoding.translation import BLANK, Translation
from nmt_cli.errors import UsageError

Utility = Literal["chrf", "bleu"]


def parse_utility(name: str) -> Utility:
    """The utility of that name; UsageError if there is none."""
    match name:
        case "chrf" | "bleu":
            return name
        case _:
            raise UsageError(f"there is no utility called {name!r}", setting="mbr", hint="take chrf or bleu")


def best_by_utility(line: Translation, *, utility: Utility, is_sampled: bool, nbest: int) -> Translation:
    """The candidates of a line ranked by expected utility; samples count alike, others by their probability."""
    candidates = [replace(line, alternatives=()), *line.alternatives]
    if line == BLANK:
        return line
    weights = [1.0] * len(candidates) if is_sampled else relative_probabilities([one.log_prob for one in candidates])
    utilities = expected_utilities([one.text for one in candidates], weights, utility=utility)
    ranked = sorted(zip(candidates, utilities, strict=True), key=lambda pair: -pair[1])[:nbest]
    best, *others = [replace(one, utility=value) for one, value in ranked]
    return replace(best, alternatives=tuple(others))


def expected_utilities(texts: Sequence[str], weights: Sequence[float], *, utility: Utility) -> list[float]:
    """The mean utility of each text, 0 to 100, with each of the texts as the reference, weighted by `weights`."""
    similarity = cache(_similarity(utility))
    total = sum(weights)
    return [
        sum(weight * similarity(text, other) for other, weight in zip(texts, weights, strict=True)) / total
        for text in texts
    ]


def relative_probabilities(log_probs: Sequence[float]) -> list[float]:
    """The probability of each hypothesis over the highest probability."""
    highest = max(log_probs)
    return [exp(log_prob - highest) for log_prob in log_probs]


def _similarity(utility: Utility) -> Callable[[str, str], float]:
    """sacreBLEU's sentence score: chrF2, or BLEU with exponential smoothing over the orders that the sentence has."""
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
