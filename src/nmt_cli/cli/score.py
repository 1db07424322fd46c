"""`nmt score`: BLEU, chrF and TER of a translation."""

from __future__ import annotations

import difflib
import json
import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from nmt_cli.errors import ScoreError, UsageError

if TYPE_CHECKING:
    from nmt_cli.scoring.metrics import MetricName, ScoreReport
    from nmt_cli.scoring.segments import Segments

_METRICS: dict[str, MetricName] = {"bleu": "bleu", "chrf": "chrf", "chrf2": "chrf", "ter": "ter"}
_TITLES: dict[MetricName, str] = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}
# The bootstrap of sacreBLEU holds 1,000 resamples of all lines at once: 4 GB at this many.
_MAX_RESAMPLED_LINES = 50_000


def score(
    references: Annotated[list[str], typer.Argument(metavar="REF", help="A reference, or several; - is stdin.")],
    hypothesis: Annotated[
        str, typer.Option("--input", "-i", metavar="FILE", help="The translation to score; - is stdin.")
    ] = "-",
    metrics: Annotated[str, typer.Option("--metrics", "-m", metavar="NAMES", help="Some of these.")] = "bleu,chrf,ter",
    confidence: Annotated[
        bool, typer.Option("--confidence", help="Half the width of the 95% interval too (bootstrap of 1,000).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with hashes of the texts.")] = False,
    fail_under: Annotated[
        list[str] | None,
        typer.Option("--fail-under", metavar="BLEU=25", help="Exit with 8 below this score; repeatable."),
    ] = None,
) -> None:
    """Score a translation with sacreBLEU: BLEU, chrF2 and TER, with signatures.

    Example: nmt score test.de -i test.hyp --confidence
    """
    names = _parse_metrics(metrics)
    bounds = _parse_bounds(fail_under or [], names)
    hypothesis_text, reference_texts = _read(hypothesis, references)
    if confidence and len(hypothesis_text.lines) > _MAX_RESAMPLED_LINES:
        message = f"--confidence takes at most {_MAX_RESAMPLED_LINES:,} lines, not {len(hypothesis_text.lines):,}"
        raise UsageError(message, where="--confidence", hint="leave it out: over so many lines the interval is narrow")

    from nmt_cli.scoring import metrics as scoring

    reports = scoring.score(
        hypothesis_text.lines, [text.lines for text in reference_texts], metrics=names, confidence=confidence
    )
    if as_json:
        typer.echo(_as_json(reports, hypothesis_text, reference_texts))
    elif sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _print_table(reports)
    else:
        typer.echo("\n".join(_as_line(report) for report in reports))
    _check_bounds(reports, bounds)


def _parse_metrics(text: str) -> list[MetricName]:
    names = [_metric(name, where="-m") for name in text.split(",")]
    return list(dict.fromkeys(names))


def _metric(name: str, *, where: str) -> MetricName:
    key = name.strip().lower()
    if key not in _METRICS:
        near = difflib.get_close_matches(key, _METRICS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "take one or more of bleu,chrf,ter"
        raise UsageError(f"there is no metric {name.strip()!r}", where=where, hint=hint)
    return _METRICS[key]


def _parse_bounds(texts: Sequence[str], metrics: Sequence[MetricName]) -> dict[MetricName, float]:
    """The lowest scores allowed. TER takes none: there lower is better, the reverse of what the flag's name says."""
    bounds: dict[MetricName, float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        where = f"--fail-under {text}"
        if not equals:
            hint = "for example --fail-under BLEU=25"
            raise UsageError(f"--fail-under takes METRIC=BOUND, not {text!r}", where=where, hint=hint)
        metric = _metric(name, where=where)
        if metric == "ter":
            hint = "bound BLEU or chrF2 instead, for example --fail-under BLEU=25"
            raise UsageError("a lower TER is a better one, so --fail-under cannot bound it", where=where, hint=hint)
        if metric not in metrics:
            message = f"--fail-under bounds {_TITLES[metric]}, but -m does not ask for it"
            raise UsageError(message, where=where, hint=f"write -m {','.join([*metrics, metric])}")
        try:
            bounds[metric] = float(value)
        except ValueError:
            bounds[metric] = math.nan
        if not math.isfinite(bounds[metric]):
            hint = f"for example --fail-under {_TITLES[metric]}=25"
            raise UsageError(f"the bound {value!r} is not a number", where=where, hint=hint)
    return bounds


def _read(hypothesis: str, references: Sequence[str]) -> tuple[Segments, list[Segments]]:
    """The hypothesis and the references, checked against each other."""
    from nmt_cli.scoring.segments import check_segments, read_segments

    names = [hypothesis, *references]
    if names.count("-") > 1:
        hint = "give the hypothesis with -i HYP"
        raise UsageError("stdin can hold the hypothesis or one reference, not both", where="-", hint=hint)
    if "-" in names and (sys.stdin is None or sys.stdin.isatty()):
        what = "hypothesis" if hypothesis == "-" else "reference"
        message = f"the {what} is to come from stdin, but stdin is a terminal"
        hint = "give a file with -i HYP, or pipe: nmt decode < input.txt | nmt score REF"
        raise UsageError(message, where="stdin", hint=hint)
    first, *others = [read_segments(name, stdin=sys.stdin.buffer) for name in names]
    check_segments(first, others)
    return first, others


def _as_line(report: ScoreReport) -> str:
    """Metric, score, signature, and where there is one the confidence, between tabs."""
    fields = [report.metric, f"{report.value:.2f}", report.signature]
    return "\t".join(fields if report.confidence is None else [*fields, f"±{report.confidence:.2f}"])


def _as_json(reports: Sequence[ScoreReport], hypothesis: Segments, references: Sequence[Segments]) -> str:
    result = {
        "scores": {
            report.metric: {"score": report.value, "signature": report.signature, "confidence": report.confidence}
            for report in reports
        },
        "lines": len(hypothesis.lines),
        "hypothesis": {"file": hypothesis.name, "sha256": hypothesis.sha256},
        "references": [{"file": text.name, "sha256": text.sha256} for text in references],
    }
    return json.dumps(result, indent=2, ensure_ascii=False)


def _print_table(reports: Sequence[ScoreReport]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("metric", box=None, pad_edge=False)
    table.add_column("score", justify="right")
    if any(report.confidence is not None for report in reports):
        table.add_column("95 %", justify="right")
    table.add_column("signature", style="dim", overflow="fold")
    for report in reports:
        cells = [report.metric, f"[bold]{report.value:.2f}[/bold]"]
        cells += [] if report.confidence is None else [f"± {report.confidence:.2f}"]
        table.add_row(*cells, report.signature)
    Console(highlight=False).print(table)


def _check_bounds(reports: Sequence[ScoreReport], bounds: dict[MetricName, float]) -> None:
    values = {report.metric: report.value for report in reports}
    for metric, bound in bounds.items():
        value = values[_TITLES[metric]]
        if value < bound:
            # Rounded down, so that 24.999 does not read as 25.00.
            shown = math.floor(value * 100) / 100
            message = f"{_TITLES[metric]} is {shown:.2f}, below the bound of {bound:g}"
            hint = "find out what made the translation worse, or lower the bound"
            raise ScoreError(message, where=f"--fail-under {_TITLES[metric]}={bound:g}", hint=hint)
