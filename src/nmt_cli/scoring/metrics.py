"""The metrics of a translation with their signatures: sacreBLEU's BLEU, chrF and TER, BLEU of Moses' tokens, and COMET.

Post 2018, arXiv:1804.08771. BLEU, chrF and TER are sacreBLEU's own to every digit: corpus level, on untouched text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, assert_never, get_args

import regex
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.utils import SACREBLEU_DIR

from nmt_cli.errors import DataError, NmtError, UsageError, nearest_word
from nmt_cli.languages import bleu_tokenizer, is_without_spaces, script_of, short_code
from nmt_cli.scoring.comet import Comet, SegmentMean
from nmt_cli.scoring.moses_bleu import MosesBleu, MosesBleuTokenizer, PaperTokenizer

MetricName = Literal["bleu", "paper-bleu", "moses-bleu", "chrf", "chrf++", "ter", "comet"]

# How tables and messages show a metric. Everything else knows it by its name.
TITLES: dict[MetricName, str] = {
    "bleu": "BLEU",
    "paper-bleu": "paper-BLEU",
    "moses-bleu": "moses-BLEU",
    "chrf": "chrF2",
    "chrf++": "chrF2++",
    "ter": "TER",
    "comet": "COMET",
}
assert (*TITLES,) == get_args(MetricName)

# BLEU of Moses' tokens: it needs the target language, and is a score of a whole test set only.
MOSES_METRICS: tuple[MetricName, ...] = ("paper-bleu", "moses-bleu")

# The names of the tokenizers that `EvaluationSet.tokenize` takes.
TOKENIZERS = tuple(BLEU.TOKENIZERS)

RESAMPLES = 1000
# The extras of sacreBLEU that install a tokenizer.
_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """One metric over a test set: its name, its value from 0 to 100, and its signature in sacreBLEU's form.

    TER may exceed 100, and COMET has the scale of its model. `details` are BLEU's n-gram precisions and lengths, in the
    form of multi-bleu.perl.
    """

    name: MetricName
    value: float
    signature: str
    details: str = ""

    @property
    def metric(self) -> str:
        """The title of the metric, as tables show it."""
        return TITLES[self.name]


@dataclass(frozen=True, slots=True)
class SegmentScores:
    """One metric over the segments of several systems: `values` by system and segment."""

    name: MetricName
    signature: str
    values: list[list[float]]


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """References, each with a line for each segment, and the other inputs of metrics.

    A blank line beside another reference is a missing reference.

    paper-bleu and moses-bleu need a code of the target language, such as de or deu. bleu and ter choose their tokens by
    it.
    comet needs its installation and the sources. `test_set` is sacreBLEU's name of the set with the language pair, for
    the signatures. `tokenize` names another tokenizer for bleu, and `lowercase` lets bleu ignore case. With
    `keep_quotes`, paper-bleu keeps the quotes of a German reference.
    """

    references: Sequence[Sequence[str]]
    sources: Sequence[str] | None = None
    target_language: str | None = None
    test_set: tuple[str, str] | None = None
    comet: Comet | None = None
    tokenize: str | None = None
    lowercase: bool = False
    keep_quotes: bool = False


@dataclass(frozen=True, slots=True)
class Scorer:
    """One metric for some systems: their hypotheses in the form that `metric`, a metric of sacreBLEU's form, takes."""

    name: MetricName
    sacrebleu_metric: Metric
    references: Sequence[Sequence[str]]
    systems: Sequence[Sequence[str]]

    def statistics(self, system: Sequence[str]) -> list[list[float]]:
        """What the metric counts in each segment of one of the systems; `report` takes the sums of the columns."""
        statistics: list[list[float]] = self.sacrebleu_metric._extract_corpus_statistics(system, None)
        return statistics

    def report(self, statistics: list[list[float]]) -> ScoreReport:
        """The score of a system, given its statistics."""
        result = self.sacrebleu_metric._aggregate_and_compute(statistics)
        details = _bleu_details(result) if isinstance(result, BLEUScore) else ""
        return ScoreReport(self.name, float(result.score), str(self.sacrebleu_metric.get_signature()), details)

    def score_segments(self, system: Sequence[str]) -> list[float]:
        """The score of each segment of one of the systems, on the metric's own scale."""
        segments = zip(system, *self.references, strict=True)
        known = ((hypothesis, [ref for ref in refs if ref is not None]) for hypothesis, *refs in segments)
        return [float(self.sacrebleu_metric.sentence_score(hypothesis, refs).score) for hypothesis, refs in known]


def score_corpus(
    hypotheses: Sequence[str], evaluation_set: EvaluationSet, *, metrics: Sequence[MetricName]
) -> list[ScoreReport]:
    """The report of each metric, in their order; ValueError if lengths differ, or if there is no text."""
    reports = []
    for name in metrics:
        scorer = make_scorer(name, [hypotheses], evaluation_set, for_segments=False)
        reports.append(scorer.report(scorer.statistics(scorer.systems[0])))
    return reports


def _bleu_details(score: BLEUScore) -> str:
    precisions = "/".join(f"{precision:.1f}" for precision in score.precisions)
    lengths = f"hyp_len={score.sys_len}, ref_len={score.ref_len}"
    return f"{precisions} (BP={score.bp:.3f}, ratio={score.ratio:.3f}, {lengths})"


def parse_metric(text: str, *, where: str | None = None, setting: str | None = None) -> MetricName:
    """The metric of a name or a title, in any case; UsageError, at `where` or `setting`, if there is none."""
    names = {title.lower(): name for name, title in TITLES.items()} | {name: name for name in TITLES}
    key = text.strip().lower()
    if key not in names:
        near = nearest_word(key, names)
        hint = f"did you mean {near}?" if near else f"take one or more of {','.join(TITLES)}"
        raise UsageError(f"there is no metric {text.strip()!r}", where=where, setting=setting, hint=hint)
    return names[key]


def decimals_of(name: MetricName) -> int:
    """Decimals with which scores of a metric are usually printed."""
    return 4 if name == "comet" else 2


def lower_is_better(name: MetricName) -> bool:
    """True for a metric that counts errors."""
    return name == "ter"


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, target_language: str | None) -> ScoreReport:
    """BLEU against one reference for each hypothesis, as in the validation during training."""
    evaluation_set = EvaluationSet([references], target_language=target_language)
    (report,) = score_corpus(hypotheses, evaluation_set, metrics=["bleu"])
    return report


def make_scorer(
    name: MetricName, systems: Sequence[Sequence[str]], evaluation_set: EvaluationSet, *, for_segments: bool
) -> Scorer:
    """The metric with these systems, for whole corpora or, with `for_segments`, for single segments.

    For segments, BLEU has its effective order. ValueError if the systems and references differ in length, or if
    `evaluation_set` lacks something that the metric needs.
    """
    lengths, reference_lengths = ([len(lines) for lines in texts] for texts in (systems, evaluation_set.references))
    is_empty = not lengths or not reference_lengths or lengths[0] == 0
    if is_empty or len({*lengths, *reference_lengths}) > 1:
        raise ValueError(f"{lengths} hypotheses cannot be scored against references of {reference_lengths} lines")
    evaluation_set = replace(evaluation_set, references=_without_blanks(evaluation_set.references))
    scorer = _choose_scorer(name, systems, evaluation_set, for_segments=for_segments)
    if evaluation_set.test_set is not None:
        # sacreBLEU's signatures take both from the metric.
        vars(scorer.sacrebleu_metric).update(test_set=evaluation_set.test_set[0], langpair=evaluation_set.test_set[1])
    return scorer


def segment_scores(
    systems: Sequence[Sequence[str]], evaluation_set: EvaluationSet, *, metrics: Sequence[MetricName]
) -> list[SegmentScores]:
    """The scores of each segment, one list per metric, in their order; BLEU has its effective order.

    These scores show where to look. Their mean is not the metric of the corpus, except for COMET.
    """
    scores = []
    for name in metrics:
        scorer = make_scorer(name, systems, evaluation_set, for_segments=True)
        values = [scorer.score_segments(system) for system in scorer.systems]
        scores.append(SegmentScores(name, str(scorer.sacrebleu_metric.get_signature()), values))
    return scores


def largest_differences(scores: SegmentScores, *, count: int) -> tuple[list[int], list[int]]:
    """The segments in which system 0 gains and loses most against system 1, at most `count` each, largest first.

    Of equal differences the first segment comes first.
    """
    sign = -1 if lower_is_better(scores.name) else 1
    gains = [sign * (system - baseline) for system, baseline in zip(*scores.values, strict=True)]
    best = sorted((segment for segment, gain in enumerate(gains) if gain > 0), key=lambda segment: -gains[segment])
    worst = sorted((segment for segment, gain in enumerate(gains) if gain < 0), key=lambda segment: gains[segment])
    return best[:count], worst[:count]


def _without_blanks(references: Sequence[Sequence[str]]) -> list[list[Any]]:
    """The references with None, as sacreBLEU has it, for each blank line beside a reference that has text."""
    segments = []
    for refs in zip(*references, strict=True):
        texts = [ref if ref and ref.strip() else None for ref in refs]
        segments.append(texts if any(texts) else ["" for _ in refs])
    return [list(column) for column in zip(*segments, strict=True)]


def _choose_scorer(
    name: MetricName, systems: Sequence[Sequence[str]], evaluation_set: EvaluationSet, *, for_segments: bool
) -> Scorer:
    references = evaluation_set.references
    match name:
        case "bleu":
            return Scorer(name, _bleu_metric(evaluation_set, for_segments=for_segments), references, systems)
        case "paper-bleu" | "moses-bleu":
            return _moses_scorer(name, systems, evaluation_set, for_segments=for_segments)
        case "chrf":
            return Scorer(name, CHRF(references=references), references, systems)
        case "chrf++":
            return Scorer(name, CHRF(word_order=2, references=references), references, systems)
        case "ter":
            return Scorer(name, _ter_metric(evaluation_set), references, systems)
        case "comet":
            return _comet_scorer(systems, evaluation_set)
        case other:
            assert_never(other)


def _bleu_metric(evaluation_set: EvaluationSet, *, for_segments: bool) -> BLEU:
    """sacreBLEU's BLEU with the named tokenizer, or the tokenizer of the target language.

    UsageError if the tokenizer is not installed, DataError if its model cannot be fetched.
    """
    tokenizer_name = evaluation_set.tokenize or bleu_tokenizer(evaluation_set.target_language)
    try:
        # force: no warning of tokenised text, which would name a parameter of sacreBLEU; texts.py has ours.
        return BLEU(
            lowercase=evaluation_set.lowercase,
            force=True,
            tokenize=tokenizer_name,
            effective_order=for_segments,
            references=evaluation_set.references,
        )
    except (RuntimeError, OSError, SystemExit) as error:
        raise _tokenizer_error(tokenizer_name, error) from None


def _tokenizer_error(name: str, error: BaseException) -> NmtError:
    """The error for a tokenizer of BLEU that does not start."""
    extra = _EXTRAS.get(name)
    if extra is None:
        folder = Path(SACREBLEU_DIR) / "models"
        reason = re.sub(r"^<urlopen error (.*)>$", r"\1", str(error))
        message = f"the model of the tokenizer {name} is not in {folder}, and cannot be fetched: {reason}"
        hint = f"check the network and $https_proxy, or copy the folder {folder} from a machine on which it works"
        return DataError(message, where=str(folder), hint=hint)
    message = f"BLEU needs a tokenizer for the language {extra!r} that is not installed"
    return UsageError(message, setting=f"tokenize: {name}", hint=f"pip install 'sacrebleu[{extra}]'")


def _ter_metric(evaluation_set: EvaluationSet) -> TER:
    """sacreBLEU's TER; in languages without spaces, its words are single characters.

    For Chinese and Japanese this is sacreBLEU's own support, which keeps runs of Kana together.
    """
    language, references = evaluation_set.target_language, evaluation_set.references
    if language is None or not is_without_spaces(language):
        return TER(references=references)
    if script_of(language) in ("Hani", "Hans", "Hant", "Jpan"):
        return TER(normalized=True, asian_support=True, references=references)
    return _CharacterTer(references=references)


def _moses_scorer(
    name: Literal["paper-bleu", "moses-bleu"],
    systems: Sequence[Sequence[str]],
    evaluation_set: EvaluationSet,
    *,
    for_segments: bool,
) -> Scorer:
    if for_segments or evaluation_set.target_language is None:
        raise ValueError(f"{name} is a score of a corpus in a known language")
    language = short_code(evaluation_set.target_language)  # zh for zho_Hans
    is_paper, keep_quotes = name == "paper-bleu", evaluation_set.keep_quotes
    tokenizer = PaperTokenizer(language, keep_quotes=keep_quotes) if is_paper else MosesBleuTokenizer(language)

    references = [
        [None if line is None else tokenizer.tokenize(line, is_reference=True) for line in lines]
        for lines in evaluation_set.references
    ]
    metric = MosesBleu(language, lowercase=not is_paper, changes=tokenizer.changes, references=references)
    tokens = [[tokenizer.tokenize(line, is_reference=False) for line in lines] for lines in systems]
    return Scorer(name, metric, references, tokens)


def _comet_scorer(systems: Sequence[Sequence[str]], evaluation_set: EvaluationSet) -> Scorer:
    comet, sources, references = evaluation_set.comet, evaluation_set.sources, evaluation_set.references
    if comet is None or sources is None or len(references) != 1:
        raise ValueError("COMET wants its installation, the sources, and one reference")
    scores = comet.segment_scores(systems, sources=sources, reference=references[0])
    metric = SegmentMean(model=comet.model, version=comet.version(), num_segments=len(sources))
    # Scorers pass text. SegmentMean reads the numbers back, so sacreBLEU's resampling works for COMET.
    return Scorer("comet", metric, references, [[repr(value) for value in system] for system in scores])


class _CharacterTer(TER):
    """TER that counts characters with their marks, as its signature says."""

    def __init__(self, *, references: Sequence[Sequence[str]]) -> None:
        super().__init__(references=references)
        self.tokenizer_signature = "grapheme"

    def _preprocess_segment(self, sent: str) -> str:
        return str(super()._preprocess_segment(" ".join(regex.findall(r"\X", sent))))
