"""How scores are shown: a table on a terminal, lines with tabs in a pipe, a table for LaTeX, or one JSON object."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

import typer

from nmt_cli.cli.printing import is_terminal, print_json, print_table
from nmt_cli.cli.score.options import Texts, file_and_hash
from nmt_cli.console import wrap

if TYPE_CHECKING:
    from nmt_cli.scoring.metrics import MetricName
    from nmt_cli.scoring.significance import Comparison, MetricScores, SystemScore
    from nmt_cli.scoring.texts import System

_INTERVAL = "95 %"  # the column of confidence intervals
# A table leaves out the columns that are empty.
_COLUMNS = (
    "metric",
    "system",
    "baseline",
    "runs",
    "score",
    "deviation",
    _INTERVAL,
    "difference",
    "p",
    "signature",
)
_LEFT_ALIGNED = ("metric", "system", "baseline", "runs")
_LATEX_SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scores:
    """All scores to show: the texts, the results by metric, and notes on them."""

    texts: Texts
    results: list[MetricScores]
    notes: list[str]

    def values(self) -> dict[str, dict[MetricName, float]]:
        """The scores of each system, by its name, by metric; the means of several runs."""
        rows = zip(*(result.systems for result in self.results), strict=True)
        return {row[0].system: {score.metric: score.value for score in row} for row in rows}

    def comparisons(self) -> list[Comparison]:
        """All comparisons, by metric."""
        return [comparison for result in self.results for comparison in result.comparisons]


def print_scores(scores: Scores) -> None:
    """Print scores on stdout; verdicts and notes follow on a terminal, and go to the log otherwise."""
    rows = [row for result in scores.results for row in _rows(result)]
    columns = [column for column in _COLUMNS if any(row.get(column) for row in rows)]
    if len(rows) == len(scores.results) and "runs" not in columns:
        columns.remove("system")  # a single one
    notes = [*(comparison.verdict() for comparison in scores.comparisons()), *scores.notes]
    if not is_terminal():
        if "system" in columns:
            typer.echo("\t".join(columns))
        else:  # no header, and the interval comes last
            columns.sort(key=lambda column: column == _INTERVAL)
        for row in rows:
            typer.echo("\t".join(row.get(column, "") for column in columns))
        for note in notes:
            logger.info("%s", note)
        return
    from rich.console import Console

    columns.remove("signature")
    cells = [[row.get(column, "") for column in columns] for row in rows]
    print_table(columns, cells, right_aligned=set(columns) - {*_LEFT_ALIGNED})
    console = Console(highlight=False, markup=False, emoji=False)
    for note in notes:
        console.print("\n".join(wrap(note, width=console.width, indent=2)), soft_wrap=True)
    for details in _bleu_details(scores):
        console.print(details, soft_wrap=True)
    signatures = [f"{row['metric']}  {row['signature']}" for row in rows]
    for signature in dict.fromkeys(signatures):
        console.print(signature, style="dim", soft_wrap=True)  # on a line that can be copied whole


def print_scores_as_latex(scores: Scores) -> None:
    """Print a table for LaTeX: a row for each system and a column for each metric. Comments have tests and signatures.

    A letter behind a score stands for a baseline from which it differs significantly.
    """
    from nmt_cli.scoring.metrics import TITLES
    from nmt_cli.scoring.significance import SIGNIFICANCE_LEVEL

    outputs = [*scores.texts.baselines, *scores.texts.systems]
    columns = [_latex_cells(result) for result in scores.results]
    rows = [["system", *(TITLES[result.metric] for result in scores.results)]]
    rows += [[_escape_latex(system.name), *cells] for system, *cells in zip(outputs, *columns, strict=True)]
    header, *body = [" & ".join(row) + r" \\" for row in rows]
    table = [f"\\begin{{tabular}}{{l{'r' * len(columns)}}}", "\\toprule", header, "\\midrule", *body, "\\bottomrule"]
    comments = [r"\usepackage{booktabs}"]
    if any(len(system.runs) > 1 for system in outputs):
        comments.append("of several runs: mean and standard deviation (n - 1)")
    for letter, baseline in zip(ascii_lowercase, scores.texts.baselines, strict=False):
        comments.append(f"{letter}: differs significantly from {baseline.name}, p < {SIGNIFICANCE_LEVEL:g}")
    comments += [comparison.verdict() for comparison in scores.comparisons()]
    comments += [f"{TITLES[result.metric]}  {result.systems[0].signature}" for result in scores.results]
    typer.echo("\n".join([*table, "\\end{tabular}", *(f"% {comment}" for comment in [*comments, *scores.notes])]))


def print_scores_as_json(scores: Scores) -> None:
    """Print scores by metric, the texts with their SHA-256, and the comparisons."""
    texts, result = scores.texts, dict[str, Any]()
    if len(texts.systems) == 1:
        result["scores"] = _scores_json([each.systems[0] for each in scores.results])
    result |= texts.as_json()
    if "hypothesis" not in result or texts.baselines:
        result["systems"] = list(_systems_json(texts.systems, [each.systems for each in scores.results]))
    if texts.baselines:
        result["baselines"] = list(_systems_json(texts.baselines, [each.baselines for each in scores.results]))
        result["comparisons"] = [_comparison_json(comparison) for comparison in scores.comparisons()]
    if scores.notes:
        result["notes"] = scores.notes
    print_json(result)


def score_text(metric: MetricName, value: float) -> str:
    """A score with the usual digits of its metric."""
    from nmt_cli.scoring.metrics import decimals_of

    return f"{value:.{decimals_of(metric)}f}"


def _rows(result: MetricScores) -> Iterator[dict[str, str]]:
    """A row for each system; with baselines, a row for each of them, followed by the systems compared with it."""
    if not result.baselines:
        yield from map(_score_row, result.systems)
    for number, baseline in enumerate(result.baselines):
        yield _score_row(baseline)
        first = number * len(result.systems)
        for comparison in result.comparisons[first : first + len(result.systems)]:
            sign = "+" if comparison.difference >= 0 else ""
            difference = sign + score_text(result.metric, comparison.difference)
            cells = {"baseline": baseline.system, "difference": difference, "p": f"{comparison.p_value:.4f}"}
            yield _score_row(comparison.system) | cells


def _score_row(score: SystemScore) -> dict[str, str]:
    from nmt_cli.scoring.metrics import TITLES

    def text(value: float | None) -> str:
        return "" if value is None else score_text(score.metric, value)

    return {
        "metric": TITLES[score.metric],
        "system": score.system,
        "runs": " ".join(text(run.value) for run in score.runs) if len(score.runs) > 1 else "",
        "score": text(score.value),
        "deviation": text(score.deviation),
        _INTERVAL: "" if score.confidence is None else f"±{text(score.confidence)}",
        "signature": score.signature,
    }


def _bleu_details(scores: Scores) -> Iterator[str]:
    """The n-gram precisions, brevity penalty and lengths of each BLEU, unless there are comparisons."""
    if scores.texts.baselines:
        return
    outputs = [run for system in scores.texts.systems for run in system.runs]
    for result in scores.results:
        reports = [report for score in result.systems for report in score.runs]
        for text, report in zip(outputs, reports, strict=True):
            if report.details:
                yield f"{report.metric}  {f'{text.name}: ' if len(outputs) > 1 else ''}{report.details}"


def _latex_cells(result: MetricScores) -> list[str]:
    """The scores of the baselines and then of the systems, with the letters of baselines that they differ from."""
    scores, num_baselines = [*result.baselines, *result.systems], len(result.baselines)
    cells = [score_text(result.metric, score.value) for score in scores]
    for number, score in enumerate(scores):
        if score.deviation is not None:
            cells[number] += rf" $\pm$ {score_text(result.metric, score.deviation)}"
    for number in range(len(result.systems)):
        compared = zip(ascii_lowercase, result.comparisons[number :: len(result.systems)], strict=False)
        if letters := "".join(letter for letter, comparison in compared if comparison.is_significant):
            cells[num_baselines + number] += f"\\textsuperscript{{{letters}}}"
    return cells


def _escape_latex(text: str) -> str:
    return "".join(_LATEX_SIGNS.get(sign, f"\\{sign}" if sign in "&%$#_{}" else sign) for sign in text)


def _systems_json(systems: Sequence[System], results: Sequence[Sequence[SystemScore]]) -> Iterator[dict[str, Any]]:
    """Each system with its scores by metric and its runs, given the scores of all systems by metric."""
    for system, *scores in zip(systems, *results, strict=True):
        runs = [
            file_and_hash(run) | {"scores": {report.metric: report.value for report in reports}}
            for run, *reports in zip(system.runs, *(score.runs for score in scores), strict=True)
        ]
        yield {"name": system.name, "scores": _scores_json(scores), "runs": runs}


def _scores_json(scores: Sequence[SystemScore]) -> dict[str, Any]:
    """By metric: score, signature and confidence; the mean of several runs, and their deviation."""
    described = {}
    for score in scores:
        first = score.runs[0]
        described[first.metric] = {"score": score.value, "signature": score.signature, "confidence": score.confidence}
        if score.deviation is not None:
            described[first.metric]["deviation"] = score.deviation
        elif first.details:
            described[first.metric]["details"] = first.details
    return described


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "metric": comparison.system.runs[0].metric,
        "signature": comparison.system.signature,
        "baseline": comparison.baseline.system,
        "system": comparison.system.system,
        "difference": comparison.difference,
        "p_value": comparison.p_value,
        "test": comparison.test_title,
        "verdict": comparison.verdict(),
    }
