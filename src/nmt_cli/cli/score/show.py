"""How scores are shown: a table on a terminal, lines with tabs in a pipe, or one JSON object."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from nmt_cli.cli.printing import is_terminal, print_json, print_table
from nmt_cli.cli.score.options import Texts, file_and_hash
from nmt_cli.console import wrap

if TYPE_CHECKING:
    from nmt_cli.scoring.metrics import MetricName, ScoreReport
    from nmt_cli.scoring.significance import PairedTestResult, ResampledScore, Spread
    from nmt_cli.scoring.texts import ScoredText

_INTERVAL = "95 %"  # the column of confidence intervals
# A table leaves out the columns that are empty.
_COLUMNS = ("metric", "system", "baseline", "score", "mean", _INTERVAL, "difference", "p", "signature")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scores:
    """All scores to show.

    `reports` has a row for each hypothesis, with a report for each metric. `spreads` has one for each metric if there
    are several hypotheses, which are runs of one system. `tests` has a row for each metric, with the test against each
    baseline.
    """

    texts: Texts
    reports: list[list[ScoreReport]]
    spreads: list[Spread]
    tests: list[list[PairedTestResult]]
    notes: list[str]

    def values(self) -> dict[MetricName, float]:
        """The score by metric; the mean of several runs."""
        if self.spreads:
            return {spread.name: spread.mean for spread in self.spreads}
        return {report.name: report.value for report in self.reports[0]}

    def tests_with_baselines(self) -> list[tuple[ScoredText, PairedTestResult]]:
        """Each test and the text of its baseline, by metric."""
        return [pair for tests in self.tests for pair in zip(self.texts.baselines, tests, strict=True)]

    def verdict(self, baseline: ScoredText, test: PairedTestResult) -> str:
        """The result of a test in a sentence."""
        names = [text.name for text in self.texts.hypotheses]
        return test.verdict(baseline_name=baseline.name, system_names=names)


def print_scores(scores: Scores) -> None:
    """Print scores on stdout; verdicts and notes follow on a terminal, and go to the log otherwise."""
    rows = _comparison_rows(scores) if scores.tests else _rows_without_baseline(scores)
    columns = [column for column in _COLUMNS if any(row.get(column) for row in rows)]
    notes = [*(scores.verdict(*pair) for pair in scores.tests_with_baselines()), *scores.notes]
    if not is_terminal():
        if "system" in columns:
            typer.echo("\t".join(columns))
        else:  # a single system: no header, and the interval comes last
            columns.sort(key=lambda column: column == _INTERVAL)
        for row in rows:
            typer.echo("\t".join(row.get(column, "") for column in columns))
        for note in notes:
            logger.info("%s", note)
        return
    from rich.console import Console

    columns = [column for column in columns if column not in ("mean", "signature")]
    cells = [[row.get(column, "") for column in columns] for row in rows]
    print_table(columns, cells, right_aligned=set(columns) - {"metric", "system", "baseline"})
    console = Console(highlight=False, markup=False, emoji=False)
    for note in notes:
        console.print("\n".join(wrap(note, width=console.width, indent=2)), soft_wrap=True)
    for details in _bleu_details(scores):
        console.print(details, soft_wrap=True)
    signatures = [f"{row['metric']}  {row['signature']}" for row in rows if row.get("signature")]
    for signature in dict.fromkeys(signatures):
        console.print(signature, style="dim", soft_wrap=True)  # on a line that can be copied whole


def _bleu_details(scores: Scores) -> list[str]:
    """The n-gram precisions, brevity penalty and lengths of each BLEU; the name of the system if there are several."""
    names = [f"{text.name}: " if len(scores.reports) > 1 else "" for text in scores.texts.hypotheses]
    return [
        f"{report.metric}  {name}{report.details}"
        for name, reports in zip(names, scores.reports, strict=True)
        for report in reports
        if report.details
    ]


def print_scores_as_json(scores: Scores) -> None:
    """Print scores by metric, the texts with their SHA-256, and the comparisons."""
    result: dict[str, Any] = {"scores": _scores_json(scores), **scores.texts.as_json()}
    if len(scores.reports) > 1:
        result["runs"] = [
            file_and_hash(text) | {"scores": _reports_json(reports)}
            for text, reports in zip(scores.texts.hypotheses, scores.reports, strict=True)
        ]
    if scores.tests:
        result["baselines"] = [file_and_hash(text) for text in scores.texts.baselines]
        result["comparisons"] = [_comparison_json(scores, *pair) for pair in scores.tests_with_baselines()]
    if scores.notes:
        result["notes"] = scores.notes
    print_json(result)


def score_text(metric: MetricName, value: float) -> str:
    """A score with the usual digits of its metric."""
    from nmt_cli.scoring.metrics import decimals_of

    return f"{value:.{decimals_of(metric)}f}"


def _report_row(report: ScoreReport) -> dict[str, str]:
    return {
        "metric": report.metric,
        "score": score_text(report.name, report.value),
        _INTERVAL: "" if report.confidence is None else f"±{score_text(report.name, report.confidence)}",
        "signature": report.signature,
    }


def _rows_without_baseline(scores: Scores) -> list[dict[str, str]]:
    """By metric, a row for each run, then the mean and the deviation of several runs."""
    if not scores.spreads:
        return [_report_row(report) for report in scores.reports[0]]
    rows = []
    for metric_index, spread in enumerate(scores.spreads):
        for text, reports in zip(scores.texts.hypotheses, scores.reports, strict=True):
            rows.append({"system": text.name, **_report_row(reports[metric_index])})
        rows += _spread_rows(spread)
    return rows


def _spread_rows(spread: Spread) -> list[dict[str, str]]:
    """Two rows, for the mean and the deviation."""
    from nmt_cli.scoring.metrics import TITLES

    figures = {"mean": spread.mean, "deviation": spread.deviation}
    return [
        {"metric": TITLES[spread.name], "system": row, "score": score_text(spread.name, value)}
        for row, value in figures.items()
    ]


def _comparison_rows(scores: Scores) -> list[dict[str, str]]:
    """A row for each baseline, followed by a row for each system with its difference from the baseline, by metric."""
    from nmt_cli.scoring.metrics import decimals_of

    rows: list[dict[str, str]] = []
    for metric_index, tests in enumerate(scores.tests):
        for baseline, test in zip(scores.texts.baselines, tests, strict=True):
            rows.append({"system": baseline.name, **_resampled_row(test.baseline)})
            for text, score in zip(scores.texts.hypotheses, test.systems, strict=True):
                difference = f"{score.difference:+.{decimals_of(score.report.name)}f}"
                cells = {"baseline": baseline.name, "difference": difference, "p": f"{score.p_value:.4f}"}
                rows.append({"system": text.name, **_resampled_row(score), **cells})
        if scores.spreads:
            rows += _spread_rows(scores.spreads[metric_index])
    return rows


def _resampled_row(score: ResampledScore) -> dict[str, str]:
    return _report_row(score.report) | {"mean": score_text(score.report.name, score.mean)}


def _scores_json(scores: Scores) -> Mapping[str, Any]:
    """By metric: score, signature and confidence; of several runs the mean, and their deviation."""
    if not scores.spreads:
        return _reports_json(scores.reports[0])
    from nmt_cli.scoring.metrics import TITLES

    return {
        TITLES[spread.name]: {"score": spread.mean, "signature": spread.signature, "deviation": spread.deviation}
        for spread in scores.spreads
    }


def _reports_json(reports: Sequence[ScoreReport]) -> dict[str, Any]:
    return {
        report.metric: {"score": report.value, "signature": report.signature, "confidence": report.confidence}
        | ({"details": report.details} if report.details else {})
        for report in reports
    }


def _comparison_json(scores: Scores, baseline: ScoredText, test: PairedTestResult) -> dict[str, Any]:
    return {
        "metric": test.baseline.report.metric,
        "signature": test.baseline.report.signature,
        "baseline": {"file": baseline.name, **_resampled_json(test.baseline)},
        "systems": [
            {"file": text.name, **_resampled_json(score), "difference": score.difference, "p_value": score.p_value}
            for text, score in zip(scores.texts.hypotheses, test.systems, strict=True)
        ],
        "verdict": scores.verdict(baseline, test),
    }


def _resampled_json(score: ResampledScore) -> dict[str, Any]:
    return {"score": score.report.value, "mean": score.mean, "confidence": score.report.confidence}
