"""`nmt score --sentence`, `--differences` and `--model`: scores of single sentences, by metrics and by a model."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nmt_cli.cli.arguments import find_models
from nmt_cli.cli.printing import is_terminal, print_json
from nmt_cli.cli.score.options import TextNames, Texts, file_and_hash, refuse_given
from nmt_cli.cli.score.show import score_text
from nmt_cli.console import without_controls
from nmt_cli.devices import DECODING_SPINS, bound_spinning
from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from nmt_cli.scoring.forced_decoding import ForcedScore, PerplexitySums
    from nmt_cli.scoring.metrics import EvaluationSet, MetricName, SegmentScores


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table: one score or difference per sentence."""

    title: str
    metric: MetricName
    figures: list[float]


def check_segment_options(given: Mapping[str, object], files: TextNames, metrics: Sequence[MetricName]) -> None:
    """Raise UsageError if `--sentence` or `--differences` has options, metrics or texts that it cannot use."""
    from nmt_cli.scoring.metrics import MOSES_METRICS

    option, others = "--differences", ["--confidence", "--paired", "--fail-under"]
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
    if len(files.baselines) > 1:
        message = f"{option} takes one baseline, not {len(files.baselines)}"
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

    scores = segment_scores([text.lines for text in texts.scored], evaluation_set, metrics=metrics)
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


@dataclass(frozen=True, slots=True)
class ForcedOptions:
    """The model, and how to compute; a `batch_tokens` of None takes the model's own."""

    model: Path
    device: str
    precision: str
    batch_tokens: int | None


def print_forced_scores(texts: Texts, options: ForcedOptions, *, with_tokens: bool, as_json: bool) -> None:
    """Print a row per line or per token, and log the perplexities; or print all of it as one JSON object."""
    if texts.source is None:
        hint = "add the source with -s SRC, or name a test set with -t"
        raise UsageError("--model needs the source text", where="--model", hint=hint)
    if len(texts.references) > 1:
        message = f"--model takes one REF, not {len(texts.references)}"
        raise UsageError(message, where="REF", hint="run it once for each of them")
    bound_spinning(DECODING_SPINS)
    from nmt_cli.scoring.forced_decoding import ForcedDecoder, PerplexitySums

    (model,) = find_models([options.model])
    decoder = ForcedDecoder(model, device=options.device, precision=options.precision, max_tokens=options.batch_tokens)
    perplexity = PerplexitySums()
    scores = decoder.scores(texts.source.lines, texts.references[0].lines)
    if as_json:
        sentences = []
        for score in scores:
            perplexity.add(score)
            sentences.append(_sentence_json(score, with_tokens=with_tokens))
        print_json(_forced_json(texts, model, perplexity, sentences))
        return
    typer.echo("line\ttoken\tlog_prob" if with_tokens else "line\tlog_prob\ttokens")
    for line, score in enumerate(scores, 1):
        perplexity.add(score)
        if not with_tokens:
            typer.echo(f"{line}\t{_log_prob_text(score.log_prob)}\t{len(score.pieces)}")
            continue
        for piece, log_prob in _pieces_with_log_probs(score):
            typer.echo(f"{line}\t{piece}\t{_log_prob_text(log_prob)}")
    logger.info("%s", _perplexity_text(perplexity))


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
            _print_difference(f"{kind} {rank}, line {segment + 1:,}: {change}", _texts_of_segment(texts, segment))
    if not gains and not losses:
        typer.echo(f"no sentence has another {title} than in {texts.baselines[0].name}")


def _texts_of_segment(texts: Texts, segment: int) -> dict[str, Any]:
    """The texts of one sentence, each with its role."""
    result: dict[str, Any] = {} if texts.source is None else {"source": texts.source.lines[segment]}
    result["references"] = [reference.lines[segment] for reference in texts.references]
    return result | {"baseline": texts.baselines[0].lines[segment], "system": texts.hypotheses[0].lines[segment]}


def _print_difference(title: str, texts: Mapping[str, Any]) -> None:
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
        result["baseline"] = file_and_hash(texts.baselines[0])
    columns = _columns(scores)

    def describe(segment: int) -> dict[str, Any]:
        return {"line": segment + 1, **{column.title: column.figures[segment] for column in columns}}

    if differences is None:
        return result | {"sentences": [describe(segment) for segment in range(texts.num_lines)]}
    gains, losses = largest_differences(scores[0], count=differences)
    for kind, segments in (("gains", gains), ("losses", losses)):
        result[kind] = [describe(segment) | _texts_of_segment(texts, segment) for segment in segments]
    return result


def _log_prob_text(log_prob: float | None) -> str:
    """Six decimals, as in `nmt decode --format tsv`; nan for a pair that is too long for the model."""
    return "nan" if log_prob is None else f"{log_prob:.6f}"


def _perplexity_text(perplexity: PerplexitySums) -> str:
    per_piece, per_word = perplexity.per_piece, perplexity.per_word
    if per_piece is None or per_word is None:
        return "perplexity: no line has a probability"
    return (
        f"perplexity: {per_piece:,.3f} per subword ({perplexity.num_pieces:,}), {per_word:,.3f} per word "
        f"({perplexity.num_words:,}), the end of each line counted as one of both"
    )


def _pieces_with_log_probs(score: ForcedScore) -> Iterable[tuple[str, float | None]]:
    """The pieces, each with its log-probability; None for all of a pair that is too long for the model."""
    log_probs: Sequence[float | None] = score.piece_log_probs or [None] * len(score.pieces)
    return zip(score.pieces, log_probs, strict=True)


def _sentence_json(score: ForcedScore, *, with_tokens: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"log_prob": score.log_prob, "tokens": len(score.pieces)}
    if with_tokens:
        result["token_log_probs"] = [list(pair) for pair in _pieces_with_log_probs(score)]
    return result


def _forced_json(
    texts: Texts, model: Path, perplexity: PerplexitySums, sentences: list[dict[str, Any]]
) -> dict[str, Any]:
    from nmt_cli.artifacts.manifest import WEIGHTS
    from nmt_cli.files import sha256

    return {
        "perplexity": {"per_subword": perplexity.per_piece, "per_word": perplexity.per_word},
        "log_prob": perplexity.log_prob,
        "subwords": perplexity.num_pieces,
        "words": perplexity.num_words,
        "left_out": perplexity.num_left_out,
        "model": {"directory": str(model), "sha256": sha256(model / WEIGHTS)},
        **texts.as_json(),
        "sentences": sentences,
    }
