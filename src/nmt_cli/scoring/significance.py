"""Is one system better than another, or is it chance? Paired tests, and the spread over runs of one system.

sacreBLEU's paired bootstrap (Koehn 2004) and approximate randomisation (Riezler and Maxwell 2005).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sacrebleu.significance import PairedTest, Result

from nmt_cli.scoring.metrics import (
    RESAMPLES,
    EvaluationSet,
    MetricName,
    Scorer,
    ScoreReport,
    digits_of,
    lower_is_better,
    make_scorer,
)

TestName = Literal["bs", "ar"]

TEST_TITLES: dict[TestName, str] = {"bs": "paired bootstrap resampling", "ar": "approximate randomisation"}
LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class PairedScore:
    """One system beside a baseline, by one metric; `mean` is the mean of the resamples, with `confidence` around it.

    `difference` is the system's score less the baseline's. `p_value` is the chance of a difference at least as large,
    in either direction, between equally good systems. Both are None for the baseline itself.
    """

    report: ScoreReport
    mean: float
    difference: float | None
    p_value: float | None

    @property
    def is_significant(self) -> bool:
        """True if chance would make such a difference less than once in twenty times."""
        return self.p_value is not None and self.p_value < LEVEL


@dataclass(frozen=True, slots=True)
class Spread:
    """One metric over several runs of a system: their mean and sample standard deviation (n - 1)."""

    metric: str
    mean: float
    deviation: float
    signature: str


def paired_scores(
    baselines: Sequence[Sequence[str]],
    systems: Sequence[Sequence[str]],
    evaluation_set: EvaluationSet,
    *,
    metrics: Sequence[MetricName],
    test: TestName,
) -> list[list[list[PairedScore]]]:
    """For each metric and baseline: the baseline's score, then the score of each system, tested against the baseline.

    A difference of exactly zero has a p-value of 1.
    """
    texts = [*baselines, *systems]
    found = []
    for name in metrics:
        scorer = make_scorer(name, evaluation_set, of_segments=False, lengths=[len(text) for text in texts])
        prepared = scorer.prepare(texts)
        others = prepared[len(baselines) :]
        found.append([_paired_scores(scorer, [first, *others], test=test) for first in prepared[: len(baselines)]])
    return found


def spread(runs: Sequence[Sequence[ScoreReport]]) -> list[Spread]:
    """The mean and deviation of each metric over at least two runs; all runs have their reports in one order."""
    return [
        Spread(
            of_metric[0].metric,
            statistics.fmean(report.value for report in of_metric),
            statistics.stdev(report.value for report in of_metric),
            of_metric[0].signature,
        )
        for of_metric in zip(*runs, strict=True)
    ]


def verdict(scores: Sequence[PairedScore], *, baseline: str, systems: Sequence[str], test: TestName) -> str:
    """The result of a paired test in a sentence."""
    first = scores[0].report.metric
    if len(systems) == 1:
        return f"{first}: {_sentence(scores[1], system=systems[0], baseline=baseline)} by {TEST_TITLES[test]}"
    better = sum(score.is_significant and _is_better(score) for score in scores[1:])
    worse = sum(score.is_significant and not _is_better(score) for score in scores[1:])
    return (
        f"{first}: of {len(systems)} runs, {better} significantly better and {worse} significantly worse than "
        f"{baseline} (p < {LEVEL:g}) by {TEST_TITLES[test]}"
    )


def _paired_scores(scorer: Scorer, prepared: Sequence[Sequence[str]], *, test: TestName) -> list[PairedScore]:
    """The scores of the systems, from prepared hypotheses, each tested against the first system."""
    named = [(str(number), lines) for number, lines in enumerate(prepared)]
    paired = PairedTest(
        named,
        {scorer.title: scorer.metric},
        references=None,
        test_type=test,
        n_ar_confidence=RESAMPLES if test == "ar" else -1,
    )
    signatures, found = paired()
    ((_, signature),) = signatures.items()
    results = [result for column in found.values() for result in column if isinstance(result, Result)]
    scores: list[PairedScore] = []
    for result in results:
        assert result.mean is not None
        assert result.ci is not None
        report = ScoreReport(scorer.title, float(result.score), str(signature), float(result.ci))
        difference = report.value - float(results[0].score)
        # If all resamples agree, sacreBLEU would take the smallest p-value that there is.
        p_value = 1.0 if difference == 0 or result.p_value is None else float(result.p_value)
        scores.append(PairedScore(report, float(result.mean), difference, p_value))
    return [replace(scores[0], difference=None, p_value=None), *scores[1:]]


def _sentence(score: PairedScore, *, system: str, baseline: str) -> str:
    assert score.difference is not None
    assert score.p_value is not None
    difference = abs(score.difference)
    digits = digits_of(score.report.metric)
    if difference == 0:
        return f"{system} and {baseline} are equal, p = 1"
    comparison = "better" if _is_better(score) else "worse"
    by = f"{system} is {comparison} than {baseline} by {difference:.{digits}f}, p = {score.p_value:.4f}"
    return f"{by}: {'significant' if score.is_significant else 'not significant'} at {LEVEL:g}"


def _is_better(score: PairedScore) -> bool:
    """True if the score is better than the baseline's; the two differ."""
    assert score.difference is not None
    return (score.difference < 0) == lower_is_better(score.report.metric)
