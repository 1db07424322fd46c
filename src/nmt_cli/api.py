"""The Python API: a translator by the name of its model, and scores of translations.

`nmt_cli` offers these names; see docs/how-to/python.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Self, Unpack, overload

from nmt_cli.decoding.engine import open_engine
from nmt_cli.decoding.translator import LineTranslator
from nmt_cli.documents.formats import COMMAND_LINE_LIMITS, check_kind_of_output, read_document
from nmt_cli.errors import DataError, UsageError
from nmt_cli.files import reading_errors, write_file
from nmt_cli.interchange.find_model import find_model
from nmt_cli.recipe.schema import DecodingOverrides
from nmt_cli.scoring.metrics import (
    MOSES_METRICS,
    EvaluationSet,
    MetricName,
    ScoreReport,
    parse_metric,
    score_corpus,
)
from nmt_cli.scoring.texts import language_without_spaces
from nmt_cli.text_encoding import check_characters

logger = logging.getLogger(__name__)

_LISTS_OF_LINES = "score takes lists of lines, each of them a string: score([text], [reference]) for a single one"


class Translator(LineTranslator):
    """Translates lines of raw text with one model, or with several together."""

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path | Sequence[str | Path],
        *,
        device: str = "auto",
        precision: str = "auto",
        engine: str = "torch",
    ) -> Self:
        """Open a model directory, the model of a run or a model of the hub by name; several models translate together.

        A model of the hub, such as Helsinki-NLP/opus-mt-en-de, is downloaded and imported once. `device` is auto, cpu,
        cuda or cuda:N, `engine` torch or ctranslate2, `precision` auto, fp32, bf16 (torch) or int8 (on a CPU).
        Raises ModelError if there is no such model, or it is damaged. Raises DeviceError if the device is missing or
        has no int8. Raises UsageError if the list is empty, or engine, device and precision do not go together.
        """
        names = [model] if isinstance(model, str | Path) else model
        if not names:
            hint = "give at least one; if a pattern made the list, it fits no folder here"
            raise UsageError("the list of models is empty", setting="model", hint=hint)
        # With nullcontext, the hub's library shows its own progress bar, on a terminal or in a notebook.
        paths = [find_model(name, show_progress=nullcontext) for name in names]
        return cls(open_engine(paths, engine=engine, device=device, precision=precision))

    def translate_file(
        self,
        source: str | Path,
        target: str | Path,
        *,
        to: str | None = None,
        from_: str | None = None,
        column: str | int | None = None,
        **overrides: Unpack[DecodingOverrides],
    ) -> None:
        """Write the document at `source` to `target`, translated; the ending of its name says its format.

        `column` is the name or number of the column of a table. The other options are as in `translate`.
        Raises DataError if the file is missing, damaged, or in no format that is known. Raises UsageError if `target`
        is `source`, or has the ending of another format.
        """
        source, target = Path(source), Path(target)
        check_kind_of_output(source, target)
        column = None if column is None else str(column)
        with reading_errors(source):
            if target.exists() and source.samefile(target):
                raise UsageError(f"{source} is both source and target", setting="target", hint="name another file")
            content = source.read_bytes()
        languages = self.directions.find(from_, to).languages
        document = read_document(content, str(source), languages=languages, limits=COMMAND_LINE_LIMITS, column=column)
        blocks = document.blocks
        if not blocks:
            logger.warning("%s has no text to translate", source)
        translated = self.translate_marked(blocks, to=to, from_=from_, **overrides)
        write_file(target, document.write(translated), error=DataError)


@overload
def score(
    hypotheses: Iterable[str],
    references: Iterable[str] | Sequence[Sequence[str]],
    metrics: str = "bleu",
    *,
    language: str | None = None,
) -> ScoreReport: ...


@overload
def score(
    hypotheses: Iterable[str],
    references: Iterable[str] | Sequence[Sequence[str]],
    metrics: list[str] | tuple[str, ...],
    *,
    language: str | None = None,
) -> list[ScoreReport]: ...


def score(
    hypotheses: Iterable[str],
    references: Iterable[str] | Sequence[Sequence[str]],
    metrics: str | list[str] | tuple[str, ...] = "bleu",
    *,
    language: str | None = None,
) -> ScoreReport | list[ScoreReport]:
    """The score of translations by a metric, or a list of scores by several metrics, as `nmt score` gives them.

    `references` has a line for each hypothesis, or is a list of several such lists. `metrics` are bleu, chrf, chrf++,
    ter, paper-bleu and moses-bleu. `language` is the code of the target language: bleu and ter choose their tokens by
    it, and paper-bleu and moses-bleu need it. Raises DataError if the texts differ in length,
    are empty, or are not valid Unicode. Raises UsageError for an unknown metric.
    """
    metric_names = [metrics] if isinstance(metrics, str) else metrics
    names = [_metric_for_lines(name, language=language) for name in metric_names]
    lines, columns = list(hypotheses), _reference_lists(references)
    if isinstance(hypotheses, str) or not all(isinstance(line, str) for line in chain(lines, *columns)):
        raise TypeError(_LISTS_OF_LINES)
    for lines_to_score in (lines, *columns):
        side = "hypotheses" if lines_to_score is lines else "references"
        for number, line in enumerate(lines_to_score, 1):
            check_characters(line, where=f"line {number} of the {side}")
    for column in columns:
        if len(column) != len(lines) or not lines:
            message = f"there are {len(lines):,} hypotheses and {len(column):,} references"
            hint = "give one reference for each hypothesis, in their order"
            raise DataError(message, setting="references", hint=hint)
    if {"bleu", "ter"} & {*names} and (found := language_without_spaces(columns[0], given=language)):
        logger.warning("the references have no spaces, so a whole line counts as a word: give language=%r", found)
    evaluation_set = EvaluationSet(columns, target_language=language)
    reports = score_corpus(lines, evaluation_set, metrics=names)
    return reports[0] if isinstance(metrics, str) else reports


def _reference_lists(references: Iterable[str] | Sequence[Sequence[str]]) -> list[list[str]]:
    """One list of lines per set of references; TypeError for a mixture of lines and lists."""
    items = list(references)
    lines = [item for item in items if isinstance(item, str)]
    columns = [list(item) for item in items if not isinstance(item, str)]
    if isinstance(references, str) or (lines and columns):
        raise TypeError(_LISTS_OF_LINES)
    return columns or [lines]


def _metric_for_lines(name: str, *, language: str | None) -> MetricName:
    """The metric, if the texts and the language suffice for it; UsageError otherwise."""
    metric = parse_metric(name, setting="metrics")
    if metric == "comet":
        hint = "nmt score REF -i HYP -s SRC -m comet scores files with it"
        raise UsageError("comet needs the source text, and a program of its own", setting="metrics", hint=hint)
    if metric in MOSES_METRICS and not language:
        message = f"{name} needs to know the target language"
        raise UsageError(message, setting="language", hint="add its code, such as `language: de`")
    return metric
