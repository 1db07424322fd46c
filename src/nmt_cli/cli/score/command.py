"""`nmt score`: how good a translation is, whether one is better than another, and how probable a model finds one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt_cli.cli.arguments import complete_models
from nmt_cli.cli.score.options import (
    TextNames,
    Texts,
    check_bounds,
    check_conflicts,
    check_requires,
    complete_metrics,
    parse_bounds,
    parse_metrics,
    parse_tokenizer,
    read_texts,
    references_and_metrics,
)
from nmt_cli.cli.score.sentences import ForcedOptions, check_segment_options, print_forced_scores, print_segment_scores
from nmt_cli.cli.score.show import Comparison, Scores, print_scores, print_scores_as_json
from nmt_cli.errors import UsageError

if TYPE_CHECKING:
    from nmt_cli.scoring.metrics import EvaluationSet, MetricName
    from nmt_cli.scoring.significance import TestKind

logger = logging.getLogger(__name__)

_DEFAULT_METRICS = "bleu,chrf,ter"
_COMET_MODEL = "Unbabel/wmt22-comet-da"
# The bootstrap of sacreBLEU holds 1,000 resamples of all lines at once: 4 GB at this many.
_MAX_RESAMPLED_LINES = 50_000


def score(
    references: Annotated[
        list[str] | None, typer.Argument(metavar="REF", help="A reference, or several; - is stdin.")
    ] = None,
    hypotheses: Annotated[
        list[str] | None,
        typer.Option(
            "--input", "-i", metavar="FILE", help="Translation to score; repeatable for runs of one system; else stdin."
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
        typer.Option("--languages", "-l", metavar="en-de", help="Language pair, for -t and the tokenizers of bleu."),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics",
            "-m",
            metavar="NAMES",
            help="Of bleu, paper-bleu, moses-bleu, chrf, chrf++, ter, comet; else bleu,chrf,ter.",
            autocompletion=complete_metrics,
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
        list[str] | None, typer.Option("--baseline", metavar="FILE", help="Translation of another system; repeatable.")
    ] = None,
    paired: Annotated[
        str | None, typer.Option(metavar="bs|ar", help="Test: bootstrap, or approximate randomisation; else bs.")
    ] = None,
    by_sentence: Annotated[bool, typer.Option("--sentence", help="Print the scores of each sentence as TSV.")] = False,
    differences: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Print the N largest gains and losses against the baseline.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="DIR",
            help="Print the log-probability of REF under this model.",
            autocompletion=complete_models,
        ),
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="With --model: the log-probability of each piece.")] = False,
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="With --model: source pieces at once; else the model's own.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="auto|bf16|fp32", help="With --model; auto: fp32 on a CPU, bf16 on a GPU.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="auto|cpu|cuda|cuda:N", help="For --model and comet; auto: a GPU if there is one."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with hashes of the texts.")] = False,
    fail_under: Annotated[
        list[str] | None,
        typer.Option("--fail-under", metavar="BLEU=25", help="Exit with code 8 below this score; repeatable."),
    ] = None,
) -> None:
    """Score a translation with BLEU, chrF, TER, COMET and more; compare systems.

    Example: nmt score test.de -i test.hyp --confidence
    """
    references, metrics = references_and_metrics(references or [], metrics or [])
    files = TextNames(references, hypotheses or [], baselines or [], source, test_set, languages)
    _check_test_set_or_reference(files)
    if model is not None:
        forced_options = ForcedOptions(model, device or "auto", precision or "auto", batch_tokens)
        metric_options: dict[str, object] = {
            "-i": hypotheses,
            "-m": metrics,
            "--tokenize": tokenize,
            "--lowercase": lowercase,
            "--keep-quotes": keep_quotes,
            "--comet-model": comet_model,
            "--confidence": confidence,
            "--baseline": baselines,
            "--paired": paired,
            "--sentence": by_sentence,
            "--differences": differences,
            "--fail-under": fail_under,
        }
        _score_by_model(files, forced_options, metric_options, with_tokens=tokens, as_json=as_json)
        return
    check_requires("--model", {"--tokens": tokens, "--batch-tokens": batch_tokens, "--precision": precision})
    files = replace(files, hypotheses=hypotheses or ["-"])
    metric_names = parse_metrics(metrics or [_DEFAULT_METRICS])
    bounds = parse_bounds(fail_under or [], metric_names)
    if "bleu" not in metric_names:
        check_requires("-m bleu", {"--tokenize": tokenize, "--lowercase": lowercase})
    tokenizer = None if tokenize is None else parse_tokenizer(tokenize)
    if "paper-bleu" not in metric_names:
        check_requires("-m paper-bleu", {"--keep-quotes": keep_quotes})
    _check_options(files, metric_names, comet_model=comet_model, device=device, paired=paired)
    if differences is not None and not by_sentence:
        if metrics and metric_names[1:]:
            logger.info("--differences compares by the first metric alone: %s", metric_names[0])
        metric_names = metric_names[:1]
    _check_needs(files, metric_names)
    shows_segments = by_sentence or differences is not None
    if shows_segments:
        corpus_options = {"--confidence": confidence, "--paired": paired, "--fail-under": fail_under}
        check_segment_options(files, metric_names, corpus_options, by_sentence=by_sentence, differences=differences)
    texts = read_texts(files)
    evaluation_set = replace(
        _evaluation_set(texts, metric_names, comet_model=comet_model, device=device),
        tokenize=tokenizer,
        lowercase=lowercase,
        keep_quotes=keep_quotes,
    )
    if shows_segments:
        print_segment_scores(texts, evaluation_set, metric_names, differences=differences, as_json=as_json)
        return
    scores = _score_and_compare(
        texts, evaluation_set, metric_names, confidence=confidence, test="ar" if paired == "ar" else "bs"
    )
    print_result = print_scores_as_json if as_json else print_scores
    print_result(scores)
    check_bounds(scores.values(), bounds)


def _score_by_model(
    files: TextNames, options: ForcedOptions, others: Mapping[str, object], *, with_tokens: bool, as_json: bool
) -> None:
    """Print the probability of REF under a model; UsageError if one of the `others` is given, which are of metrics."""
    why = "it gives the probability of REF, which is no score of a translation"
    check_conflicts("--model", others, why=why)
    if files.test_set is None:
        check_requires("-t", {"-l": files.languages})
    print_forced_scores(read_texts(files), options, with_tokens=with_tokens, as_json=as_json)


def _check_test_set_or_reference(files: TextNames) -> None:
    """Raise UsageError if both a test set and a reference are given, or neither."""
    if files.test_set is not None and files.references:
        message = f"-t {files.test_set} brings its own references, but {files.references[0]} is given as well"
        raise UsageError(message, where="-t", hint="leave out one of them; the translation is -i HYP")
    if files.test_set is None and not files.references:
        hint = "nmt score REF -i HYP, or nmt score -t wmt14/full -l en-de -i HYP; see nmt score --help"
        raise UsageError("REF is missing", where="nmt score", hint=hint)


def _check_options(
    files: TextNames, metrics: Sequence[MetricName], *, comet_model: str | None, device: str | None, paired: str | None
) -> None:
    """Raise UsageError for options that mean nothing together, before anything is read."""
    from nmt_cli.scoring.metrics import MOSES_METRICS

    if paired not in (None, "bs", "ar"):
        raise UsageError(f"--paired is {paired!r}, but should be bs or ar", where="--paired", hint="--paired bs")
    if not files.baselines:
        check_requires("--baseline", {"--paired": paired})
    if "comet" not in metrics:
        check_requires("-m comet", {"--comet-model": comet_model})
        check_requires("-m comet or --model", {"--device": device})
    if files.test_set is None and not {"bleu", *MOSES_METRICS} & set(metrics):
        check_requires("-t, -m bleu or -m paper-bleu", {"-l": files.languages})


def _check_needs(files: TextNames, metrics: Sequence[MetricName]) -> None:
    """Raise UsageError if a metric needs a language or a text that is not given."""
    from nmt_cli.scoring.metrics import MOSES_METRICS

    for name in MOSES_METRICS:
        if name in metrics and files.languages is None:
            hint = "add the languages, source first: -l en-de"
            raise UsageError(f"{name} needs to know the target language", where=f"-m {name}", hint=hint)
    if "comet" in metrics and files.source is None and files.test_set is None:
        hint = "add the source with -s SRC, or name a test set with -t"
        raise UsageError("comet needs the source text", where="-m comet", hint=hint)


def _evaluation_set(
    texts: Texts, metrics: Sequence[MetricName], *, comet_model: str | None, device: str | None
) -> EvaluationSet:
    from nmt_cli.scoring.metrics import EvaluationSet

    comet = None
    if "comet" in metrics:
        if len(texts.references) > 1:
            message = f"comet takes one reference, not {len(texts.references)}"
            raise UsageError(message, where="-m comet", hint="give one of them, or leave comet out of -m")
        from nmt_cli.devices import choose_device
        from nmt_cli.scoring.comet import Comet

        chosen = choose_device(device or "auto")
        comet = Comet.find(comet_model or _COMET_MODEL, gpu=(chosen.index or 0) if chosen.type == "cuda" else None)
    return EvaluationSet(
        references=[text.lines for text in texts.references],
        sources=None if texts.source is None else texts.source.lines,
        target_language=texts.target_language,
        test_set=None if texts.test_set is None or texts.languages is None else (texts.test_set, texts.languages),
        comet=comet,
    )


def _score_and_compare(
    texts: Texts, evaluation_set: EvaluationSet, metrics: Sequence[MetricName], *, confidence: bool, test: TestKind
) -> Scores:
    """The scores of the hypotheses and, if there are baselines, the tests against each baseline."""
    from nmt_cli.scoring.metrics import score_systems
    from nmt_cli.scoring.significance import paired_tests, spread

    option = "--baseline" if texts.baselines else "--confidence" if confidence else None
    if option is not None and texts.num_lines > _MAX_RESAMPLED_LINES:
        message = f"{option} takes at most {_MAX_RESAMPLED_LINES:,} lines, not {texts.num_lines:,}"
        hint = (
            "test on a part of the lines" if texts.baselines else "leave it out: the interval of a long text is narrow"
        )
        raise UsageError(message, where=option, hint=hint)
    systems = [text.lines for text in texts.hypotheses]
    names = [text.name for text in texts.hypotheses]
    comparisons = []
    if texts.baselines:
        baselines = [text.lines for text in texts.baselines]
        tests = paired_tests(baselines, systems, evaluation_set, metrics=metrics, test=test)
        comparisons = [
            Comparison(baseline.name, result, result.verdict(baseline_name=baseline.name, system_names=names))
            for tests_of_metric in tests
            for baseline, result in zip(texts.baselines, tests_of_metric, strict=True)
        ]
        # Each baseline's test has the same scores of the systems.
        first_tests = [tests_of_metric[0] for tests_of_metric in tests]
        reports = [[test.systems[index].report for test in first_tests] for index in range(len(systems))]
    else:
        reports = score_systems(systems, evaluation_set, metrics=metrics, confidence=confidence)
    notes = []
    if "paper-bleu" in metrics and texts.languages is not None:
        from nmt_cli.scoring.moses_bleu import note_on_comparison

        notes.append(note_on_comparison(texts.languages, keep_quotes=evaluation_set.keep_quotes))
    return Scores(texts, reports, spread(reports) if len(systems) > 1 else [], comparisons, notes)
