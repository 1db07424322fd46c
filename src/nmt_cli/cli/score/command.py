"""`nmt score`: how good a translation is, whether one is better than another, and how probable a model finds one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nmt_cli.cli.arguments import DebugOption, QuietOption
from nmt_cli.cli.score.log_probs import load_decoder, print_alignments, print_log_probs
from nmt_cli.cli.score.options import (
    MODEL_OPTIONS,
    ScoreFiles,
    Texts,
    check_bounds,
    check_needs,
    check_options,
    check_test_set_or_reference,
    parse_bounds,
    parse_metrics,
    parse_systems,
    read_texts,
    refuse_given,
)
from nmt_cli.cli.score.sentences import check_segment_options, print_segment_scores
from nmt_cli.cli.score.show import Scores, print_scores, print_scores_as_json, print_scores_as_latex
from nmt_cli.devices import choose_device
from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from nmt_cli.scoring.metrics import EvaluationSet, MetricName
    from nmt_cli.scoring.significance import TestKind

logger = logging.getLogger(__name__)

_DEFAULT_METRICS = "bleu,chrf,ter"
_COMET_MODEL = "Unbabel/wmt22-comet-da"
# sacreBLEU's approximate randomisation holds all trials of all lines at once: 5 GB at this many.
_MAX_RANDOMISED_LINES = 50_000


def score(
    references: Annotated[
        list[str] | None, typer.Argument(metavar="REF", help="A reference, or several; - is stdin.")
    ] = None,
    hypotheses: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="[NAME=]FILE",
            help="Translation to score, or a quoted pattern of runs of one system; repeatable; else stdin.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", "-s", metavar="FILE", help="Source text, for comet, --differences, --model."),
    ] = None,
    test_set: Annotated[
        str | None, typer.Option("--test-set", "-t", metavar="NAME", help="sacreBLEU's test set, such as wmt14/full.")
    ] = None,
    languages: Annotated[
        str | None,
        typer.Option(
            "--languages", "-l", metavar="en-de", help="Language pair, for -t, the tokens of bleu and ter, and --model."
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics",
            "-m",
            metavar="NAMES",
            help="Of bleu, paper-bleu, moses-bleu, chrf, chrf++, ter, comet; else bleu,chrf,ter.",
        ),
    ] = None,
    tokenize: Annotated[
        str | None,
        typer.Option("--tokenize", metavar="NAME", help="Tokens of bleu: sacreBLEU's 13a, intl, zh, char, none, ..."),
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Let bleu ignore case.")] = False,
    keep_quotes: Annotated[
        bool, typer.Option("--keep-quotes", help="Keep the quotes of a German reference in paper-bleu.")
    ] = False,
    comet_model: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help=f"Model of comet, or its checkpoint; else {_COMET_MODEL}.")
    ] = None,
    confidence: Annotated[bool, typer.Option("--confidence", help="Add 95% confidence intervals (bootstrap).")] = False,
    baselines: Annotated[
        list[str] | None,
        typer.Option(
            "--baseline", metavar="[NAME=]FILE", help="Translation of another system, or a pattern of runs; repeatable."
        ),
    ] = None,
    paired: Annotated[
        Literal["bs", "ar"] | None,
        typer.Option(metavar="bs|ar", help="Test: bootstrap, or approximate randomisation; else bs."),
    ] = None,
    by_sentence: Annotated[bool, typer.Option("--sentence", help="Print the scores of each sentence as TSV.")] = False,
    differences: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Print the N largest gains and losses against the baseline.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="DIR", help="Print the log-probability of REF under this model."),
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="With --model: the log-probability of each piece.")] = False,
    alignments: Annotated[
        bool,
        typer.Option(
            "--alignments", help="With --model: instead, the pairs of source and target words, 0-0 1-2 (Pharaoh)."
        ),
    ] = False,
    batch_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="With --model: pieces of both sides at once; else the model's own."),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="auto|bf16|fp32", help="With --model; auto: fp32 on a CPU, bf16 on a GPU.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="auto|cpu|cuda|cuda:N", help="For --model and comet; auto: a GPU if there is one."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with hashes of the texts.")] = False,
    as_latex: Annotated[
        bool, typer.Option("--latex", help="Print a table for LaTeX, with a row for each system.")
    ] = False,
    fail_under: Annotated[
        list[str] | None,
        typer.Option("--fail-under", metavar="BLEU=25", help="Exit with code 8 below this score; repeatable."),
    ] = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Score a translation with BLEU, chrF, TER, COMET and more; compare systems.

    Example: nmt score test.de -i test.hyp --confidence
    """
    systems = parse_systems(hypotheses or [], are_one=True)
    other_systems = parse_systems(baselines or [], are_one=False)
    files = ScoreFiles(references or [], systems, other_systems, source, test_set, languages)
    check_test_set_or_reference(files)
    given = {
        "-i": hypotheses,
        "-m": metrics,
        "--tokenize": tokenize,
        "--lowercase": lowercase,
        "--keep-quotes": keep_quotes,
        "--comet-model": comet_model,
        "--confidence": confidence,
        "--baseline": baselines,
        "--paired": paired,
        "--fail-under": fail_under,
        "--latex": as_latex,
        "--sentence": by_sentence,
        "--differences": differences,
        "--tokens": tokens,
        "--alignments": alignments,
        "--batch-tokens": batch_tokens,
        "--precision": precision,
        "--device": device,
        "--json": as_json,
    }
    if model is not None:
        of_metrics = [option for option in given if option not in (*MODEL_OPTIONS, "--device", "--json")]
        refuse_given(given, of_metrics, reason="does not go with --model")
        if alignments:
            refuse_given(given, ["--tokens", "--json"], reason="does not go with --alignments")
        texts = read_texts(files)
        directory, decoder = load_decoder(
            texts, model, device=device or "auto", precision=precision or "auto", batch_tokens=batch_tokens
        )
        if alignments:
            print_alignments(texts, decoder)
        else:
            print_log_probs(texts, directory, decoder, with_tokens=tokens, as_json=as_json)
        return
    files = replace(files, systems=systems or parse_systems(["-"], are_one=True))
    metric_names = parse_metrics(metrics or [_DEFAULT_METRICS])
    bounds = parse_bounds(fail_under or [], metric_names)
    check_options(given, metric_names)
    if differences is not None and not by_sentence:
        if metrics and metric_names[1:]:
            logger.info("--differences compares by the first metric alone: %s", metric_names[0])
        metric_names = metric_names[:1]
    check_needs(files, metric_names)
    if any(len(runs) > 1 for runs in (*files.systems.values(), *files.baselines.values())):
        refuse_given(given, ["--paired"], reason="chooses the test of two outputs, and a system here has several runs")
    if as_json:
        refuse_given(given, ["--latex"], reason="does not go with --json")
    if as_latex:
        refuse_given(given, ["--confidence"], reason="does not go with --latex")
    shows_segments = by_sentence or differences is not None
    if shows_segments:
        check_segment_options(given, files, metric_names)
    texts = read_texts(files)
    evaluation_set = _evaluation_set(texts, metric_names, tokenize=tokenize, comet_model=comet_model, device=device)
    evaluation_set = replace(evaluation_set, lowercase=lowercase, keep_quotes=keep_quotes)
    if shows_segments:
        print_segment_scores(texts, evaluation_set, metric_names, differences=differences, as_json=as_json)
        return
    scores = _score_and_compare(texts, evaluation_set, metric_names, confidence=confidence, test=paired or "bs")
    print_result = print_scores_as_json if as_json else print_scores_as_latex if as_latex else print_scores
    print_result(scores)
    check_bounds(scores.values(), bounds)


def _evaluation_set(
    texts: Texts,
    metrics: Sequence[MetricName],
    *,
    tokenize: str | None,
    comet_model: str | None,
    device: str | None,
) -> EvaluationSet:
    from nmt_cli.languages import warning_of_code
    from nmt_cli.scoring.metrics import EvaluationSet
    from nmt_cli.scoring.texts import language_without_spaces

    reference, target = texts.references[0], texts.target_language
    if target is not None and (warning := warning_of_code(target)):
        logger.warning("%s", warning)
    counts_words = "ter" in metrics or ("bleu" in metrics and tokenize is None)
    if counts_words and (language := language_without_spaces(reference.lines, given=target)):
        message = "%s has no spaces, so a whole line counts as a word: give the languages, such as -l en-%s"
        logger.warning(message, reference.name, language)
    comet = None
    if "comet" in metrics:
        if len(texts.references) > 1:
            message = f"comet takes one reference, not {len(texts.references)}"
            raise UsageError(message, where="-m comet", hint="give one of them, or leave comet out of -m")
        from nmt_cli.scoring.comet import Comet

        chosen = choose_device(device or "auto")
        comet = Comet.find(comet_model or _COMET_MODEL, gpu=(chosen.index or 0) if chosen.type == "cuda" else None)
    return EvaluationSet(
        references=[text.lines for text in texts.references],
        sources=None if texts.source is None else texts.source.lines,
        target_language=target,
        test_set=None if texts.test_set is None or texts.languages is None else (texts.test_set, texts.languages),
        comet=comet,
        tokenize=tokenize,
    )


def _score_and_compare(
    texts: Texts, evaluation_set: EvaluationSet, metrics: Sequence[MetricName], *, confidence: bool, test: TestKind
) -> Scores:
    """The scores of the systems and, if there are baselines, the comparisons with each of them."""
    from nmt_cli.scoring.significance import score_and_compare

    if test == "ar" and texts.num_lines > _MAX_RANDOMISED_LINES:
        message = f"--paired ar takes at most {_MAX_RANDOMISED_LINES:,} lines, not {texts.num_lines:,}"
        raise UsageError(message, where="--paired ar", hint="leave it out: the bootstrap takes any number of lines")
    results = score_and_compare(
        texts.systems, texts.baselines, evaluation_set, metrics=metrics, confidence=confidence, test=test
    )
    notes = []
    if "paper-bleu" in metrics and texts.languages is not None:
        from nmt_cli.scoring.moses_bleu import note_on_comparison

        notes.append(note_on_comparison(texts.languages, keep_quotes=evaluation_set.keep_quotes))
    return Scores(texts, results, notes)
