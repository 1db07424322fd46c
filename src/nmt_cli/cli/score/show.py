"""How scores are shown: a table on a terminal, lines with tabs in a pipe, or one JSON object."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nmt_cli.cli.printing import is_terminal, print_json, print_table
from nmt_cli.cli.score.options import Texts, file_and_hash
from nmt_cli.console import folded

if TYPE_CHECKING:
    from nmt_cli.scoring.metrics import ScoreReport
    from nmt_cli.scoring.significance import PairedScore, Spread

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A paired test of one metric: the scores of a baseline and then of the systems, and the verdict in a sentence."""

    baseline: str
    scores: list[PairedScore]
    verdict: str


@dataclass(frozen=True, slots=True)
class Scores:
    """All scores to show: the reports of each hypothesis by metric, their spread, and the paired tests."""

    texts: Texts
    reports: list[list[ScoreReport]]
    spreads: list[Spread]
    comparisons: list[Comparison] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def values(self) -> dict[str, float]:
        """The score by metric; the mean of several runs."""
        if self.spreads:
            return {spread.metric: spread.mean for spread in self.spreads}
        return {report.metric: report.value for report in self.reports[0]}


def print_scores(scores: Scores) -> None:
    """Print scores on stdout; verdicts and notes follow on a terminal, and go to the log otherwise."""
    if scores.comparisons:
        header, rows = _comparison_table(scores)
    elif len(scores.reports) > 1:
        header, rows = _runs_table(scores)
    else:
        header, rows = _single_system_table(scores.reports[0])
    notes = [*(comparison.verdict for comparison in scores.comparisons), *scores.notes]
    has_systems = len(scores.texts.systems) > 1
    if not is_terminal():
        lines = [header, *rows]
        if not has_systems:  # no header, and the interval, if there is one, comes last
            lines = [[metric, score, signature, *interval] for metric, score, *interval, signature in rows]
        typer.echo("\n".join("\t".join(line) for line in lines))
        sys.stdout.flush()
        for note in notes:
            logger.info("%s", note)
        return
    from rich.console import Console

    shown, drawn = _terminal_table(header, rows, names=[text.name for text in scores.texts.systems])
    print_table(shown, drawn, right=set(shown) - {"metric", "system"})
    console = Console(highlight=False, markup=False, emoji=False)
    for note in notes:
        console.print("\n".join(folded(note, width=console.width, indent=2)), soft_wrap=True)
    for details in _bleu_details(scores):
        console.print(details, soft_wrap=True)
    for signature in dict.fromkeys(f"{row[0]}  {row[-1]}" for row in rows if row[-1]):
        console.print(signature, style="dim", soft_wrap=True)  # on a line that can be copied whole


def _terminal_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, names: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """The table as a terminal shows it: short names, each metric once, and no column that a row can do without.

    The row of a baseline stands above the systems that are tested against it, so it is marked there.
    """
    short = dict(zip(names, short_names(names), strict=True))
    drawn: list[dict[str, str]] = []
    metric = ""
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        if (name := cells.get("system")) in short:
            is_baseline = cells.get("baseline") == ""
            cells["system"] = f"{short[name]} (baseline)" if is_baseline else short[name]
        cells["metric"], metric = "" if cells["metric"] == metric else cells["metric"], cells["metric"]
        drawn.append({key: cell for key, cell in cells.items() if key not in ("baseline", "mean", "signature")})
    return list(drawn[0]), [list(cells.values()) for cells in drawn]


def short_names(files: Sequence[str]) -> list[str]:
    """Names of files without the folders at the beginning, and the parts at the end, that all of them share."""
    parts = [Path(file).parts for file in files]
    for end in (0, -1):
        while min(map(len, parts)) > 1 and len({part[end] for part in parts}) == 1:
            parts = [part[:-1] if end else part[1:] for part in parts]
    return [str(Path(*part)) for part in parts]


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
    if scores.comparisons:
        result["baselines"] = [file_and_hash(text) for text in scores.texts.baselines]
        result["comparisons"] = [_comparison_json(comparison, scores.texts) for comparison in scores.comparisons]
    if scores.notes:
        result["notes"] = scores.notes
    print_json(result)


def score_text(metric: str, value: float | None) -> str:
    """A score with the usual digits of its metric; empty if there is no score."""
    if value is None:
        return ""
    from nmt_cli.scoring.metrics import digits_of

    return f"{value:.{digits_of(metric)}f}"


def _single_system_table(reports: Sequence[ScoreReport]) -> tuple[list[str], list[list[str]]]:
    """A row for each metric: its name, score, interval if there is one, and signature."""
    has_interval = any(report.confidence is not None for report in reports)
    header = ["metric", "score", *(["95 %"] if has_interval else []), "signature"]
    return header, [_report_row(report) for report in reports]


def _report_row(report: ScoreReport) -> list[str]:
    row = [report.metric, score_text(report.metric, report.value)]
    row += [] if report.confidence is None else [f"±{score_text(report.metric, report.confidence)}"]
    return [*row, report.signature]


def _runs_table(scores: Scores) -> tuple[list[str], list[list[str]]]:
    """A row for each run, then the mean and the deviation of the runs, by metric."""
    header, _ = _single_system_table(scores.reports[0])
    rows = []
    for metric_index, spread in enumerate(scores.spreads):
        for text, reports in zip(scores.texts.hypotheses, scores.reports, strict=True):
            metric, *others = _report_row(reports[metric_index])
            rows.append([metric, text.name, *others])
        rows += [[*row, *[""] * (len(header) - 2)] for row in _spread_rows(spread)]
    return ["metric", "system", *header[1:]], rows


def _spread_rows(spread: Spread) -> list[list[str]]:
    """Two rows, for the mean and the deviation: metric, name, and value."""
    figures = {"mean": spread.mean, "deviation": spread.deviation}
    return [[spread.metric, name, score_text(spread.metric, value)] for name, value in figures.items()]


def _comparison_table(scores: Scores) -> tuple[list[str], list[list[str]]]:
    """A row for each baseline, followed by a row for each system with its difference from the baseline, by metric."""
    header = ["metric", "system", "baseline", "score", "mean", "95 %", "difference", "p", "signature"]
    spreads = {spread.metric: spread for spread in scores.spreads}
    rows: list[list[str]] = []
    for metric, comparisons in groupby(scores.comparisons, key=lambda comparison: comparison.scores[0].report.metric):
        for comparison in comparisons:
            names = [comparison.baseline, *(text.name for text in scores.texts.hypotheses)]
            for name, score in zip(names, comparison.scores, strict=True):
                rows.append(_paired_row(name, score, baseline=comparison.baseline))
        if metric in spreads:
            rows += [[*row[:2], "", row[2], *[""] * 5] for row in _spread_rows(spreads[metric])]
    return header, rows


def _paired_row(name: str, score: PairedScore, *, baseline: str) -> list[str]:
    from nmt_cli.scoring.metrics import digits_of

    report, is_baseline = score.report, score.p_value is None
    figures = [score_text(report.metric, report.value), score_text(report.metric, score.mean)]
    figures.append(f"±{score_text(report.metric, report.confidence)}")
    difference = "" if score.difference is None else f"{score.difference:+.{digits_of(report.metric)}f}"
    p_value = "" if score.p_value is None else f"{score.p_value:.4f}"
    return [report.metric, name, "" if is_baseline else baseline, *figures, difference, p_value, report.signature]


def _scores_json(scores: Scores) -> Mapping[str, Any]:
    """By metric: score, signature and confidence; of several runs the mean, and their deviation."""
    if not scores.spreads:
        return _reports_json(scores.reports[0])
    return {
        spread.metric: {"score": spread.mean, "signature": spread.signature, "deviation": spread.deviation}
        for spread in scores.spreads
    }


def _reports_json(reports: Sequence[ScoreReport]) -> dict[str, Any]:
    return {
        report.metric: {"score": report.value, "signature": report.signature, "confidence": report.confidence}
        | ({"details": report.details} if report.details else {})
        for report in reports
    }


def _comparison_json(comparison: Comparison, texts: Texts) -> dict[str, Any]:
    first, *others = comparison.scores
    return {
        "metric": first.report.metric,
        "signature": first.report.signature,
        "baseline": {"file": comparison.baseline, **_paired_json(first)},
        "systems": [
            {"file": text.name, **_paired_json(score), "difference": score.difference, "p_value": score.p_value}
            for text, score in zip(texts.hypotheses, others, strict=True)
        ],
        "verdict": comparison.verdict,
    }


def _paired_json(score: PairedScore) -> dict[str, Any]:
    return {"score": score.report.value, "mean": score.mean, "confidence": score.report.confidence}
