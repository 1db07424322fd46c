"""Is one system better than another, or is it chance? Paired tests, and the spread over runs of one system.

sacreBLEU's paired bootstrap (Koehn 2004) and approximate randomisation (Riezler and Maxwell 2005).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sacrebleu.significance import PairedTest, Result

from nmt_cli.scoring.metrics import (
    RESAMPLES,
    TITLES,
    EvaluationSet,
    MetricName,
    Scorer,
    ScoreReport,
    decimals_of,
    lower_is_better,
    make_scorer,
)

TestKind = Literal["bs", "ar"]

_TEST_TITLES: dict[TestKind, str] = {"bs": "paired bootstrap resampling", "ar": "approximate randomisation"}
_SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class ResampledScore:
    """The score of one system by one metric; the report's confidence is around `mean`, the mean of the resamples."""

    report: ScoreReport
    mean: float


@dataclass(frozen=True, slots=True)
class ComparedScore(ResampledScore):
    """The score of a system that was tested against a baseline.

    `difference` is the system's score less the baseline's. `p_value` is the chance of a difference at least as large,
    in either direction, between equally good systems.
    """

    difference: float
    p_value: float

    @property
    def is_significant(self) -> bool:
        """True if the p-value is below the level of significance."""
        return self.p_value < _SIGNIFICANCE_LEVEL

    @property
    def is_better(self) -> bool:
        """True if the score is better than the baseline's. Undefined if they are equal."""
        return (self.difference < 0) == lower_is_better(self.report.name)


@dataclass(frozen=True, slots=True)
class PairedTestResult:
    """The score of a baseline by one metric, and the scores of all systems, each tested against the baseline."""

    test: TestKind
    baseline: ResampledScore
    systems: list[ComparedScore]

    def verdict(self, *, baseline_name: str, system_names: Sequence[str]) -> str:
        """The result in a sentence."""
        metric = self.baseline.report.metric
        if len(system_names) == 1:
            difference = _difference_in_words(self.systems[0], system_names[0], baseline_name)
            return f"{metric}: {difference} by {_TEST_TITLES[self.test]}"
        better = sum(score.is_significant and score.is_better for score in self.systems)
        worse = sum(score.is_significant and not score.is_better for score in self.systems)
        return (
            f"{metric}: of {len(system_names)} runs, {better} significantly better and {worse} significantly worse than"
            f" {baseline_name} (p < {_SIGNIFICANCE_LEVEL:g}) by {_TEST_TITLES[self.test]}"
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """One metric over several runs of a system: their mean and sample standard deviation (n - 1)."""

    name: MetricName
    mean: float
    deviation: float
    signature: str


def paired_tests(
    baselines: Sequence[Sequence[str]],
    systems: Sequence[Sequence[str]],
    evaluation_set: EvaluationSet,
    *,
    metrics: Sequence[MetricName],
    test: TestKind,
) -> list[list[PairedTestResult]]:
    """For each metric and each baseline, the result of the test of all systems against the baseline."""
    results = []
    for name in metrics:
        scorer = make_scorer(name, [*baselines, *systems], evaluation_set, for_segments=False)
        prepared_baselines, prepared_systems = scorer.systems[: len(baselines)], scorer.systems[len(baselines) :]
        results.append([_paired_test(scorer, each, prepared_systems, test=test) for each in prepared_baselines])
    return results


def spread(runs: Sequence[Sequence[ScoreReport]]) -> list[Spread]:
    """The mean and deviation of each metric over at least two runs; all runs have their reports in one order."""
    return [
        Spread(
            reports[0].name,
            statistics.fmean(report.value for report in reports),
            statistics.stdev(report.value for report in reports),
            reports[0].signature,
        )
        for reports in zip(*runs, strict=True)
    ]


def _paired_test(
    scorer: Scorer, baseline: Sequence[str], systems: Sequence[Sequence[str]], *, test: TestKind
) -> PairedTestResult:
    """The result of sacreBLEU's test on prepared hypotheses. A difference of exactly zero has a p-value of 1."""
    signatures, columns = PairedTest(
        [(str(number), lines) for number, lines in enumerate([baseline, *systems])],
        {TITLES[scorer.name]: scorer.sacrebleu_metric},
        references=None,
        test_type=test,
        n_ar_confidence=RESAMPLES if test == "ar" else -1,  # for intervals, which the bootstrap has anyway
    )()
    (signature,) = map(str, signatures.values())
    _, cells = columns.values()  # the names of the systems, and the results by the metric
    baseline_result, *results = (cell for cell in cells if isinstance(cell, Result))
    baseline_score = _resampled_score(baseline_result, name=scorer.name, signature=signature)
    tested = []
    for result in results:
        score = _resampled_score(result, name=scorer.name, signature=signature)
        difference = score.report.value - baseline_score.report.value
        assert result.p_value is not None
        # For two identical outputs, sacreBLEU gives the smallest possible p-value, 1 / (resamples + 1).
        p_value = 1.0 if difference == 0 else float(result.p_value)
        tested.append(ComparedScore(score.report, score.mean, difference, p_value))
    return PairedTestResult(test, baseline_score, tested)


def _resampled_score(result: Result, *, name: MetricName, signature: str) -> ResampledScore:
    assert result.mean is not None
    assert result.ci is not None
    return ResampledScore(ScoreReport(name, float(result.score), signature, float(result.ci)), float(result.mean))


def _difference_in_words(score: ComparedScore, system: str, baseline: str) -> str:
    if score.difference == 0:
        return f"{system} and {baseline} have the same score, p = 1"
    difference, p_value = f"{abs(score.difference):.{decimals_of(score.report.name)}f}", f"p = {score.p_value:.4f}"
    if not score.is_significant:
        comparison = "higher" if score.difference > 0 else "lower"
        return f"{system} scores {difference} {comparison} than {baseline}, no significant difference ({p_value})"
    comparison = "better" if score.is_better else "worse"
    return (
        f"{system} is {comparison} than {baseline} by {difference}, {p_value}: significant at {_SIGNIFICANCE_LEVEL:g}"
    )
