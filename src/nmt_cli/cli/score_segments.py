"""`nmt score --sentence` and `--differences`: scores of each sentence, and the sentences that changed most."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from nmt_cli.cli.score_options import refuse_beside
from nmt_cli.cli.score_tables import is_terminal, number
from nmt_cli.cli.score_texts import TextNames, Texts, identity
from nmt_cli.errors import UsageError
from nmt_cli.scoring.metric_names import MetricName, digits_of

if TYPE_CHECKING:
    from nmt_cli.scoring.metrics import EvaluationSet
    from nmt_cli.scoring.segment_scores import SegmentScores

logger = logging.getLogger(__name__)

_SYSTEM, _BASELINE = 0, 1


def check_segment_options(
    files: TextNames,
    metrics: Sequence[MetricName],
    beside: Mapping[str, object],
    *,
    by_sentence: bool,
    differences: int | None,
) -> None:
    """Raise UsageError for what does not go with scores of sentences."""
    option = "--sentence" if by_sentence else "--differences"
    others = {**beside, **({"--differences": differences} if by_sentence else {})}
    refuse_beside(option, others, why="it shows sentences, and no score of the whole")
    if "paper-bleu" in metrics:
        hint = "leave paper-bleu out of -m; bleu, chrf, ter and comet have scores of sentences"
        raise UsageError(f"paper-bleu is a score of a whole test set, not for {option}", where="-m", hint=hint)
    if len(files.hypotheses) > 1:
        message = f"{option} takes one translation, not {len(files.hypotheses)}"
        raise UsageError(
            message, where="-i", hint=f"give -i once; the other system is --baseline {files.hypotheses[1]}"
        )
    if not by_sentence and not files.baselines:
        raise UsageError("--differences needs another system", where="--differences", hint="add --baseline HYP")
    if len(files.baselines) > 1:
        message = f"{option} takes one baseline, not {len(files.baselines)}"
        raise UsageError(message, where="--baseline", hint="give --baseline once")


def print_segment_scores(
    texts: Texts,
    against: EvaluationSet,
    metrics: Sequence[MetricName],
    *,
    differences: int | None,
    as_object: bool,
) -> None:
    """The scores of all sentences as TSV; or the largest differences for reading; or either as one JSON object."""
    from nmt_cli.scoring.segment_scores import segment_scores

    if differences is not None:
        metrics = metrics[:1]
    scores = segment_scores([text.lines for text in texts.systems], against, metrics=metrics)
    if as_object:
        typer.echo(json.dumps(_as_json(texts, scores, differences=differences), indent=2, ensure_ascii=False))
        return
    for of_metric in scores:
        logger.info("%s  %s", of_metric.metric, of_metric.signature)
    if differences is None:
        for row in _rows(texts, scores):
            typer.echo("\t".join(row))
    else:
        _print_differences(texts, scores[0], count=differences)


def _rows(texts: Texts, scores: Sequence[SegmentScores]) -> Iterator[list[str]]:
    """A header, then a row a sentence."""
    yield ["line", *_columns(texts, scores)]
    for segment in range(texts.num_lines):
        figures = _figures(texts, scores, segment)
        yield [str(segment + 1), *(number(title.partition(" ")[0], value) for title, value in figures.items())]


def _columns(texts: Texts, scores: Sequence[SegmentScores]) -> list[str]:
    return list(_figures(texts, scores, 0))


def _figures(texts: Texts, scores: Sequence[SegmentScores], segment: int) -> dict[str, float]:
    """By column: the score of one sentence and, where there is a baseline, that one's and the difference."""
    figures = {}
    for of_metric in scores:
        value = of_metric.values[_SYSTEM][segment]
        figures[of_metric.metric] = value
        if texts.baselines:
            baseline = of_metric.values[_BASELINE][segment]
            figures[f"{of_metric.metric} baseline"] = baseline
            figures[f"{of_metric.metric} difference"] = value - baseline
    return figures


def _print_differences(texts: Texts, scores: SegmentScores, *, count: int) -> None:
    from nmt_cli.scoring.segment_scores import largest_differences

    gains, losses = largest_differences(scores, count=count)
    digits = digits_of(scores.metric)
    for kind, segments in (("gain", gains), ("loss", losses)):
        for rank, segment in enumerate(segments, 1):
            before, after = scores.values[_BASELINE][segment], scores.values[_SYSTEM][segment]
            change = f"{scores.metric} {before:.{digits}f} to {after:.{digits}f} ({after - before:+.{digits}f})"
            _print_entry(f"{kind} {rank}, line {segment + 1:,}: {change}", _shown(texts, segment))
    if not gains and not losses:
        typer.echo(f"no sentence has another {scores.metric} than in {texts.baselines[0].name}")


def _shown(texts: Texts, segment: int) -> list[tuple[str, str]]:
    """The texts of one sentence, each with what it is."""
    rows = [] if texts.source is None else [("source", texts.source)]
    rows += [("reference", reference) for reference in texts.references]
    rows += [("baseline", texts.baselines[0]), ("system", texts.hypotheses[0])]
    return [(role, text.lines[segment].strip()) for role, text in rows]


def _texts_json(texts: Texts, segment: int) -> dict[str, Any]:
    result: dict[str, Any] = {} if texts.source is None else {"source": texts.source.lines[segment]}
    result["references"] = [reference.lines[segment] for reference in texts.references]
    return result | {"baseline": texts.baselines[0].lines[segment], "system": texts.hypotheses[0].lines[segment]}


def _print_entry(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """A title, then the texts below each other; on a terminal, words that are not the reference's are red."""
    if not is_terminal():
        typer.echo("\n".join([title, *(f"{role:<10}{text}" for role, text in rows), ""]))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    references = [text for role, text in rows if role == "reference"]
    for role, text in rows:
        is_translation = role in ("baseline", "system")
        table.add_row(role, _marked(text, references) if is_translation else Text(text))
    console = Console(highlight=False)
    console.print(Text(title, style="bold"))
    console.print(table)
    console.print()


def _marked(text: str, references: Sequence[str]) -> Any:
    """The words of a translation, red where they are not in line with the reference that is nearest to it."""
    from rich.text import Text

    words = text.split()
    matchers = [difflib.SequenceMatcher(None, reference.split(), words, autojunk=False) for reference in references]
    nearest = max(matchers, key=lambda matcher: matcher.ratio())
    matched = {place for block in nearest.get_matching_blocks() for place in range(block.b, block.b + block.size)}
    marked = Text()
    for place, word in enumerate(words):
        marked.append(" " if place else "")
        marked.append(word, style=None if place in matched else "red")
    return marked


def _as_json(texts: Texts, scores: Sequence[SegmentScores], *, differences: int | None) -> dict[str, Any]:
    result: dict[str, Any] = {"signatures": {of_metric.metric: of_metric.signature for of_metric in scores}}
    result |= texts.as_json()
    if texts.baselines:
        result["baseline"] = identity(texts.baselines[0])

    def described(segment: int) -> dict[str, Any]:
        return {"line": segment + 1, **_figures(texts, scores, segment)}

    if differences is None:
        return result | {"sentences": [described(segment) for segment in range(texts.num_lines)]}
    from nmt_cli.scoring.segment_scores import largest_differences

    for kind, segments in zip(("gains", "losses"), largest_differences(scores[0], count=differences), strict=True):
        result[kind] = [described(segment) | _texts_json(texts, segment) for segment in segments]
    return result
