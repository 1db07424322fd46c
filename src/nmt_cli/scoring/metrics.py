"""BLEU, chrF and TER of translations, by sacreBLEU, each with its signature.

Post 2018, arXiv:1804.08771. Scores are sacreBLEU's own to every digit: corpus level, on untouched text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

MetricName = Literal["bleu", "chrf", "ter"]

_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """One metric over a test set: `metric` is BLEU, chrF2 or TER, `value` runs from 0 to 100 (TER may exceed it).

    `signature` is sacreBLEU's; `confidence` is half the width of the 95 % interval from bootstrap resampling, or None.
    """

    metric: str
    value: float
    signature: str
    confidence: float | None


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metrics: Sequence[MetricName],
    confidence: bool,
) -> list[ScoreReport]:
    """The reports of the metrics asked for, in that order.

    Each of `references` holds one line for each hypothesis. Raises ValueError where lengths differ or there is nothing.
    """
    if not hypotheses or not references or any(len(lines) != len(hypotheses) for lines in references):
        lengths = [len(lines) for lines in references]
        raise ValueError(f"{len(hypotheses)} hypotheses cannot be scored against references of {lengths} lines")
    return [_report(_metric(name), hypotheses, references, confidence=confidence) for name in metrics]


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> ScoreReport:
    """BLEU against one reference for each hypothesis, as in the validation during training."""
    (report,) = score(hypotheses, [references], metrics=["bleu"], confidence=False)
    return report


def _metric(name: MetricName) -> BLEU | CHRF | TER:
    match name:
        case "bleu":
            # force: no warning of tokenised text, which would name a parameter of sacreBLEU; segments.py has ours.
            return BLEU(force=True)
        case "chrf":
            return _Chrf()
        case "ter":
            return TER()
        case other:
            assert_never(other)


class _Chrf(CHRF):
    """sacreBLEU's bootstrap cannot average a plain zero, of resamples without a match, with float32 scores."""

    def _compute_f_score(self, statistics: list[int]) -> float:
        return float(super()._compute_f_score(statistics))


def _report(
    metric: Any, hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, confidence: bool
) -> ScoreReport:
    result = metric.corpus_score(hypotheses, references, n_bootstrap=_RESAMPLES if confidence else 1)
    # sacreBLEU prints the half width, but gives it no public name.
    half_width = float(result._ci) if confidence else None
    return ScoreReport(result.name, float(result.score), str(metric.get_signature()), half_width)
