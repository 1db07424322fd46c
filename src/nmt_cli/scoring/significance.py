"""Is one system better than another, or is it chance? The scores of systems over their runs, and paired tests.

Two outputs are compared by sacreBLEU's paired bootstrap (Koehn 2004) or approximate randomisation (Riezler and Maxwell
2005). Systems with several runs, such as one per seed, are compared by a t-test across runs.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sacrebleu.significance import PairedTest, Result, estimate_ci

from nmt_cli.errors import UsageError
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
from nmt_cli.scoring.texts import System

TestKind = Literal["bs", "ar"]
Floats = NDArray[np.float64]

SIGNIFICANCE_LEVEL = 0.05
_TRIALS = 10_000  # of the approximate randomisation
_TEST_TITLES = {"bs": "paired bootstrap resampling", "ar": "approximate randomisation", "t": "a t-test across runs"}
_ALMOST_NORMAL = 1e6  # degrees of freedom
_INTERVALS = 2000  # of an integral


@dataclass(frozen=True, slots=True)
class SystemScore:
    """One metric over the runs of a system, with the signature that says how it was computed and resampled.

    `confidence` is half the width of the 95 % interval for the choice of segments, from bootstrap resamples, or None.
    """

    system: str
    runs: list[ScoreReport]
    signature: str
    confidence: float | None

    @property
    def metric(self) -> MetricName:
        """The metric, which all runs share."""
        return self.runs[0].name

    @property
    def value(self) -> float:
        """The score; the mean of several runs."""
        return statistics.fmean(run.value for run in self.runs)

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation (n - 1) of several runs; None for one run."""
        return statistics.stdev(run.value for run in self.runs) if len(self.runs) > 1 else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A system tested against a baseline by one metric.

    `p_value` is the chance of a difference at least as large, in either direction, between equally good systems.
    """

    baseline: SystemScore
    system: SystemScore
    test: Literal["bs", "ar", "t"]
    p_value: float

    @property
    def difference(self) -> float:
        """The system's score less the baseline's."""
        return self.system.value - self.baseline.value

    @property
    def is_significant(self) -> bool:
        """True if the p-value is below the level of significance."""
        return self.p_value < SIGNIFICANCE_LEVEL

    @property
    def test_title(self) -> str:
        """The name of the test, as in "by paired bootstrap resampling"."""
        return _TEST_TITLES[self.test]

    def verdict(self) -> str:
        """The result in a sentence."""
        metric = self.system.metric
        system, baseline = (
            f"{score.system} ({len(score.runs)} runs)" if len(score.runs) > 1 else score.system
            for score in (self.system, self.baseline)
        )
        size, p_value = f"{abs(self.difference):.{decimals_of(metric)}f}", f"p = {self.p_value:.4f}"
        if self.difference == 0:
            result = f"{system} and {baseline} have the same score, p = 1"
        elif not self.is_significant:
            comparison = "higher" if self.difference > 0 else "lower"
            result = f"{system} scores {size} {comparison} than {baseline}, no significant difference ({p_value})"
        else:
            comparison = "better" if (self.difference < 0) == lower_is_better(metric) else "worse"
            result = f"{system} is {comparison} than {baseline} by {size}, {p_value}"
            result += f": significant at {SIGNIFICANCE_LEVEL:g}"
        return f"{TITLES[metric]}: {result} by {self.test_title}"


@dataclass(frozen=True, slots=True)
class MetricScores:
    """One metric: the score of each system and, baseline after baseline, each system's comparison with it."""

    metric: MetricName
    systems: list[SystemScore]
    baselines: list[SystemScore]
    comparisons: list[Comparison]


@dataclass(frozen=True, slots=True)
class _ScoredSystem:
    """The runs of a system: their prepared texts, their score, and the score of each run on each resample.

    `resampled` is [runs, resamples], or None.
    """

    texts: list[Sequence[str]]
    score: SystemScore
    resampled: Floats | None


def score_and_compare(
    systems: Sequence[System],
    baselines: Sequence[System],
    evaluation_set: EvaluationSet,
    *,
    metrics: Sequence[MetricName],
    confidence: bool,
    test: TestKind,
) -> list[MetricScores]:
    """The scores by metric, and the comparisons of the systems with the baselines.

    `test` compares a system of one run with a baseline of one run. Compared scores have confidence intervals anyway.
    """
    resampling = test if baselines else "bs" if confidence else None
    results = []
    for name in metrics:
        texts = [run.lines for system in (*baselines, *systems) for run in system.runs]
        scorer = make_scorer(name, texts, evaluation_set, for_segments=False)
        outputs = _score_systems(scorer, [*baselines, *systems], test=resampling)
        of_baselines, of_systems = outputs[: len(baselines)], outputs[len(baselines) :]
        comparisons = [_compare(scorer, base, system, test=test) for base in of_baselines for system in of_systems]
        scores = [each.score for each in outputs]
        results.append(MetricScores(name, scores[len(baselines) :], scores[: len(baselines)], comparisons))
    return results


def p_value_across_runs(system: Floats, baseline: Floats, *, resampled: tuple[Floats, Floats]) -> float:
    """The p-value of the difference between two mean scores, by a t-test with two sources of variation.

    `system` and `baseline` [runs] are scores, `resampled` the scores of both [runs, resamples] on equal resamples of
    the segments. The runs vary as in Welch 1947, the segments as in Koehn 2004. What a run has for itself on a segment
    is in both variances, and is taken off the second. These are the sources of the Multi-Bootstrap (Sellam et al. 2022,
    arXiv:2106.16163); the t distribution allows for few runs. A system of one run varies with the segments alone.
    """
    of_runs, own_of_runs, divisor = 0.0, 0.0, 0.0
    for scores, on_resamples in zip((system, baseline), resampled, strict=True):
        if (num_runs := len(scores)) > 1:
            variance = float(scores.var(ddof=1)) / num_runs
            of_runs += variance
            divisor += variance**2 / (num_runs - 1)
            own = on_resamples - on_resamples.mean(axis=0)
            own_of_runs += float(own.var(axis=1).sum()) / (num_runs * (num_runs - 1))
    of_segments = float((resampled[0].mean(axis=0) - resampled[1].mean(axis=0)).var())
    variance = of_runs + max(0.0, of_segments - own_of_runs)
    difference = float(system.mean() - baseline.mean())
    if variance == 0:
        return float(difference == 0)
    return student_p_value(difference / math.sqrt(variance), degrees=variance**2 / divisor if divisor else math.inf)


def student_p_value(t: float, *, degrees: float) -> float:
    """The two-sided p-value of Student's t, to six decimals, with at least one degree of freedom."""
    if degrees > _ALMOST_NORMAL:
        return math.erfc(abs(t) / math.sqrt(2))
    # With t = sqrt(degrees) tan(angle), the density is proportional to cos(angle) ** (degrees - 1).
    width = math.atan(abs(t) / math.sqrt(degrees)) / _INTERVALS
    angles = (np.arange(_INTERVALS) + 0.5) * width
    area = width * float((np.cos(angles) ** (degrees - 1)).sum())
    factor = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    return max(0.0, 1 - 2 * factor * area)


def _read_seed() -> str:
    """The seed of all resampling: a number, or none; UsageError if `$SACREBLEU_SEED` is another text."""
    seed = (os.environ.get("SACREBLEU_SEED") or "12345").lower()
    if seed != "none" and not seed.isdecimal():
        hint = "give a whole number, or none for another seed each time: export SACREBLEU_SEED=12345"
        raise UsageError(f"the seed {seed!r} is no whole number from 0 on", where="$SACREBLEU_SEED", hint=hint)
    return seed


def _score_systems(scorer: Scorer, systems: Sequence[System], *, test: TestKind | None) -> list[_ScoredSystem]:
    """The runs of each system, given a scorer with their texts in this order; resampled if there is a test."""
    metric = scorer.sacrebleu_metric
    counted = [scorer.statistics(text) for text in scorer.systems]
    reports = [scorer.report(each) for each in counted]
    signature, sums = metric.get_signature(), list[Floats]()
    if test is not None:
        seed = _read_seed()
        sums = _resampled_sums(counted, seed=seed)
        signature.update("seed", seed)
        signature.update("bs", RESAMPLES)
        if test == "ar":
            signature.update("ar", _TRIALS)
    scored, start = list[_ScoredSystem](), 0
    for system in systems:
        runs = slice(start, start + len(system.runs))
        start = runs.stop
        confidence, resampled = None, None
        if sums:
            resampled = np.array([[metric._compute_score_from_stats(row).score for row in rows] for rows in sums[runs]])
            confidence = float(estimate_ci(resampled.mean(axis=0))[1])
        score = SystemScore(system.name, reports[runs], str(signature), confidence)
        scored.append(_ScoredSystem([*scorer.systems[runs]], score, resampled))
    return scored


def _resampled_sums(counted: Sequence[list[list[float]]], *, seed: str) -> list[Floats]:
    """The sums of each text's statistics over the bootstrap resamples of sacreBLEU [resamples, statistics]."""
    rng = np.random.default_rng(None if seed == "none" else int(seed))
    tables = [np.array(each, dtype=np.float64) for each in counted]
    sums = [np.empty((RESAMPLES, table.shape[1])) for table in tables]
    num_segments = len(tables[0])
    for resample in range(RESAMPLES):
        counts = np.bincount(rng.choice(num_segments, size=num_segments), minlength=num_segments)
        for rows, table in zip(sums, tables, strict=True):
            rows[resample] = counts @ table
    return sums


def _compare(scorer: Scorer, baseline: _ScoredSystem, system: _ScoredSystem, *, test: TestKind) -> Comparison:
    """The test of two systems. A difference of exactly zero has a p-value of 1."""
    assert baseline.resampled is not None
    assert system.resampled is not None
    ours, theirs = (np.array([run.value for run in outputs.score.runs]) for outputs in (system, baseline))
    difference = abs(float(ours.mean() - theirs.mean()))
    if len(ours) > 1 or len(theirs) > 1:
        p_value = p_value_across_runs(ours, theirs, resampled=(system.resampled, baseline.resampled))
        return Comparison(baseline.score, system.score, "t", p_value)
    if difference == 0:
        p_value = 1.0  # for two identical outputs, sacreBLEU gives the smallest possible one
    elif test == "bs":
        differences = np.abs(system.resampled - baseline.resampled)
        # As in sacreBLEU: how often a difference is farther from the mean difference than the one that was found.
        p_value = float(((differences - differences.mean()) > difference).sum() + 1) / (RESAMPLES + 1)
    else:
        p_value = _randomisation_p_value(scorer, baseline.texts, system.texts)
    return Comparison(baseline.score, system.score, test, p_value)


def _randomisation_p_value(scorer: Scorer, baseline: list[Sequence[str]], system: list[Sequence[str]]) -> float:
    """The p-value of sacreBLEU's approximate randomisation."""
    os.environ["SACREBLEU_SEED"] = _read_seed()  # it takes its seed from there
    named = [(str(number), lines) for number, lines in enumerate((*baseline, *system))]
    metrics = {TITLES[scorer.name]: scorer.sacrebleu_metric}
    _, columns = PairedTest(named, metrics, references=None, test_type="ar", n_samples=_TRIALS)()
    _, cells = columns.values()  # the names of the systems, and the results by the metric
    (p_value,) = (cell.p_value for cell in cells if isinstance(cell, Result) and cell.p_value is not None)
    return float(p_value)
