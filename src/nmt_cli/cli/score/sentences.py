"""`nmt score --sentence` and `--differences`: the scores of single sentences by metrics.

A sentence of the user is a line of the texts, and a segment of the metrics.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from nmt_cli.cli.printing import is_terminal, print_json
from nmt_cli.cli.score.options import ScoreFiles, Texts, file_and_hash, refuse_given
from nmt_cli.cli.score.show import score_text
from nmt_cli.console import without_controls
from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from nmt_cli.scoring.metrics import EvaluationSet, MetricName, SegmentScores


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table: one score or difference per sentence."""

    title: str
    metric: MetricName
    figures: list[float]


def check_segment_options(given: Mapping[str, object], files: ScoreFiles, metrics: Sequence[MetricName]) -> None:
    """Raise UsageError if `--sentence` or `--differences` has options, metrics or texts that it cannot use."""
    from nmt_cli.scoring.metrics import MOSES_METRICS

    option, others = "--differences", ["--confidence", "--paired", "--fail-under", "--latex"]
    if given["--sentence"]:
        option, others = "--sentence", [*others, "--differences"]
    refuse_given(given, others, reason=f"does not go with {option}")
    for name in MOSES_METRICS:
        if name in metrics:
            hint = f"leave {name} out of -m; bleu, chrf, ter and comet have scores of sentences"
            raise UsageError(f"{name} is a score of a whole test set, not for {option}", where="-m", hint=hint)
    if len(files.hypotheses) > 1:
        message = f"{option} takes one translation, not {len(files.hypotheses)}"
        hint = f"give -i once; the other system is --baseline {shlex.quote(files.hypotheses[1])}"
        raise UsageError(message, where="-i", hint=hint)
    if option == "--differences" and not files.baselines:
        raise UsageError("--differences needs another system", where="--differences", hint="add --baseline HYP")
    if (num_baselines := sum(map(len, files.baselines.values()))) > 1:
        message = f"{option} takes one baseline, not {num_baselines}"
        raise UsageError(message, where="--baseline", hint="give --baseline once")


def print_segment_scores(
    texts: Texts,
    evaluation_set: EvaluationSet,
    metrics: Sequence[MetricName],
    *,
    differences: int | None,
    as_json: bool,
) -> None:
    """Print the scores of all sentences as TSV, or the largest differences, or either as one JSON object."""
    from nmt_cli.scoring.metrics import TITLES, segment_scores

    systems = [system.runs[0].lines for system in (*texts.systems, *texts.baselines)]
    scores = segment_scores(systems, evaluation_set, metrics=metrics)
    if as_json:
        print_json(_segments_json(texts, scores, differences=differences))
        return
    for metric_scores in scores:
        logger.info("%s  %s", TITLES[metric_scores.name], metric_scores.signature)
    if differences is not None:
        _print_differences(texts, scores[0], count=differences)
        return
    columns = _columns(scores)
    typer.echo("\t".join(["line", *(column.title for column in columns)]))
    for segment in range(texts.num_lines):
        cells = [score_text(column.metric, column.figures[segment]) for column in columns]
        typer.echo("\t".join([str(segment + 1), *cells]))


def _columns(scores: Sequence[SegmentScores]) -> list[_Column]:
    """By metric, the scores of the system and, if there is a baseline, its scores and the differences."""
    from nmt_cli.scoring.metrics import TITLES

    columns = []
    for metric_scores in scores:
        name, title = metric_scores.name, TITLES[metric_scores.name]
        system, *baselines = metric_scores.values
        columns.append(_Column(title, name, system))
        for baseline in baselines:
            differences = [ours - theirs for ours, theirs in zip(system, baseline, strict=True)]
            columns.append(_Column(f"{title} baseline", name, baseline))
            columns.append(_Column(f"{title} difference", name, differences))
    return columns


def _print_differences(texts: Texts, scores: SegmentScores, *, count: int) -> None:
    from nmt_cli.scoring.metrics import TITLES, decimals_of, largest_differences

    gains, losses = largest_differences(scores, count=count)
    system, baseline = scores.values
    title, digits = TITLES[scores.name], decimals_of(scores.name)
    for kind, segments in (("gain", gains), ("loss", losses)):
        for rank, segment in enumerate(segments, 1):
            before, after = baseline[segment], system[segment]
            change = f"{title} {before:.{digits}f} to {after:.{digits}f} ({after - before:+.{digits}f})"
            _print_texts(f"{kind} {rank}, line {segment + 1:,}: {change}", _texts_of_segment(texts, segment))
    if not gains and not losses:
        typer.echo(f"no sentence has another {title} than in {texts.baselines[0].name}")


def _texts_of_segment(texts: Texts, segment: int) -> dict[str, Any]:
    """The texts of one sentence, each with its role."""
    result: dict[str, Any] = {} if texts.source is None else {"source": texts.source.lines[segment]}
    result["references"] = [reference.lines[segment] for reference in texts.references]
    outputs = {"baseline": texts.baselines, "system": texts.systems}
    return result | {role: systems[0].runs[0].lines[segment] for role, systems in outputs.items()}


def _print_texts(title: str, texts: Mapping[str, Any]) -> None:
    """Print a title and the texts below each other."""
    rows = [("source", texts["source"])] if "source" in texts else []
    rows += [("reference", reference) for reference in texts["references"]]
    rows += [(role, texts[role]) for role in ("baseline", "system")]
    shown = without_controls if is_terminal() else str
    typer.echo("\n".join([title, *(f"{role:<10}{shown(text.strip())}" for role, text in rows), ""]))


def _segments_json(texts: Texts, scores: Sequence[SegmentScores], *, differences: int | None) -> dict[str, Any]:
    from nmt_cli.scoring.metrics import TITLES, largest_differences

    result: dict[str, Any] = {"signatures": {TITLES[metric.name]: metric.signature for metric in scores}}
    result |= texts.as_json()
    if texts.baselines:
        result["baseline"] = file_and_hash(texts.baselines[0].runs[0])
    columns = _columns(scores)

    def describe(segment: int) -> dict[str, Any]:
        return {"line": segment + 1, **{column.title: column.figures[segment] for column in columns}}

    if differences is None:
        return result | {"sentences": [describe(segment) for segment in range(texts.num_lines)]}
    gains, losses = largest_differences(scores[0], count=differences)
    for kind, segments in (("gains", gains), ("losses", losses)):
        result[kind] = [describe(segment) | _texts_of_segment(texts, segment) for segment in segments]
    return result
