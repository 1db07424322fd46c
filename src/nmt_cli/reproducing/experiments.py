"""The experiments of the paper: the figures to expect, their sources, and the verdict on a measured figure.

Vaswani et al. 2017, arXiv:1706.03762; sections and tables are the paper's. The sizes of the corpora come
from wmt/wmt14 on the hub.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nmt_cli.errors import UsageError

FigureName = (
    Literal["pairs read", "pairs kept", "newstest2013 pairs", "newstest2014 pairs", "vocabulary"]
    | Literal["parameters", "updates", "hours", "perplexity", "checkpoints"]
    | Literal["lines", "paper BLEU", "sacreBLEU", "chrF2"]
)
Relation = Literal["as expected", "below", "above", "not comparable", "context"]

_UNITS: dict[FigureName, str] = {"parameters": " million", "hours": " h"}
_DECIMALS: dict[FigureName, int] = {
    "parameters": 1,
    "hours": 1,
    "perplexity": 2,
    "paper BLEU": 2,
    "sacreBLEU": 2,
    "chrF2": 2,
}
# As many as the paper prints.
_PRINTED_DECIMALS: dict[FigureName, int] = {"perplexity": 2, "paper BLEU": 1, "sacreBLEU": 1}

_HUB = "wmt/wmt14 on the hub"
_FEWER_LINES = "read from the original archives, the corpus may differ by some thousand lines from the hub's copy"
_CLEANING = "the paper does not say how the text was cleaned"
_ONE_RUN = "the paper gives one run; other seeds and another segmentation alone move BLEU by some tenths"


@dataclass(frozen=True, slots=True)
class Expected:
    """An expected figure, or the range between two printed figures, with its tolerance and its source.

    `why` is the reason for the tolerance. `decides` marks the figure that fails a reproduction if it is too low. A
    figure without a tolerance is context and judges nothing.
    """

    low: float
    high: float
    tolerance: float | None
    source: str
    why: str = ""
    decides: bool = False


Expectations = Mapping[FigureName, Expected]


@dataclass(frozen=True, slots=True)
class Experiment:
    """One of the paper's four systems: its packaged recipe and corpora, and the figures to expect.

    The first of `corpora` is the recipe's; the others have the same text from elsewhere. `expected` has the figures by
    the name of the stage that measures them, in order. Without figures of "score newstest2013" in the paper,
    newstest2013 is not translated.
    """

    name: str
    title: str
    recipe: str
    corpora: Sequence[str]
    expected: Mapping[str, Expectations]


def find_experiment(name: str) -> Experiment:
    """The experiment of that name; UsageError, with the nearest name, if there is none."""
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    names_by_parts = {_sorted_parts(known): known for known in EXPERIMENTS}  # base-de-en means base-en-de
    hint = f"there are {', '.join(EXPERIMENTS)}"
    if nearest := difflib.get_close_matches(_sorted_parts(name), names_by_parts, n=1, cutoff=0.4):
        hint = f"did you mean nmt reproduce {names_by_parts[nearest[0]]}? {hint}"
    raise UsageError(f"there is no experiment {name!r}", where=name, hint=hint)


def _sorted_parts(name: str) -> str:
    return "-".join(sorted(name.lower().split("-")))


def expected_exactly(value: float, source: str) -> Expected:
    """A count from which nothing may differ."""
    return Expected(value, value, 0, source)


def _expected_about(value: float, tolerance: float, source: str, why: str) -> Expected:
    return Expected(value, value, tolerance, source, why)


def _expected_paper_bleu(low: float, high: float, source: str) -> Expected:
    return Expected(low, high, 0.5, source, _ONE_RUN, decides=True)


_PREPARATION: Mapping[str, Expectations] = {
    "en-de": {
        "pairs read": _expected_about(4_508_785, 15_000, f"{_HUB}, de-en", _FEWER_LINES),
        "pairs kept": _expected_about(4_500_000, 450_000, "section 5.1: about 4.5M", _CLEANING),
        "newstest2013 pairs": expected_exactly(3_000, _HUB),
        "newstest2014 pairs": expected_exactly(3_003, _HUB),
        "vocabulary": expected_exactly(37_000, "section 5.1: about 37,000, shared"),
    },
    "en-fr": {
        "pairs read": _expected_about(40_836_715, 130_000, f"{_HUB}, fr-en", _FEWER_LINES),
        "pairs kept": _expected_about(36_000_000, 5_000_000, "section 5.1: 36M", _CLEANING),
        "newstest2013 pairs": expected_exactly(3_000, _HUB),
        "newstest2014 pairs": expected_exactly(3_003, _HUB),
        "vocabulary": expected_exactly(32_000, "section 5.1, word pieces there, byte pairs here"),
    },
}
_TRAINING: Mapping[str, Expectations] = {
    "base": {
        "updates": expected_exactly(100_000, "section 5.2"),
        "hours": Expected(12, 12, None, "section 5.2: 12 hours on 8 P100"),
    },
    "big": {
        "updates": expected_exactly(300_000, "section 5.2"),
        "hours": Expected(84, 84, None, "section 5.2: 3.5 days on 8 P100"),
    },
}
_AVERAGING: Mapping[str, Expectations] = {
    size: {"checkpoints": expected_exactly(number, "section 6.1")} for size, number in (("base", 5), ("big", 20))
}


def _english_german(size: str, *, millions: int, perplexity: float, validation_bleu: float, bleu: float) -> Experiment:
    """The experiment with the figures of Tables 2 and 3."""
    why_parameters = "the authors' embedding had more rows than the vocabulary, and the count depends on how many"
    why_perplexity = "a piece is not the same unit in another vocabulary"
    why_validation = "one run in the paper; the table does not say how its BLEU is tokenised"
    sacrebleu_source = "the paper's BLEU less 1.5: split compounds, Moses tokens, and ASCII quotes in the reference"
    why_sacrebleu = "derived and not printed: both scores of one model of the authors are 1.5 apart (docs/paper.md)"
    return Experiment(
        name=f"{size}-en-de",
        title=f"Transformer {size}, WMT 2014 English to German",
        recipe=size,
        corpora=["wmt14-en-de", "wmt14-en-de-archives"],
        expected={
            "prepare": _PREPARATION["en-de"],
            "train": {
                "parameters": _expected_about(millions * 1e6, 0.03 * millions * 1e6, "Table 3", why_parameters),
                **_TRAINING[size],
                "perplexity": _expected_about(perplexity, 0.4, "Table 3", why_perplexity),
            },
            "score newstest2013": {"paper BLEU": _expected_about(validation_bleu, 0.5, "Table 3", why_validation)},
            "average": _AVERAGING[size],
            "score newstest2014": {
                "paper BLEU": _expected_paper_bleu(bleu, bleu, "Table 2"),
                "sacreBLEU": _expected_about(round(bleu - 1.5, 1), 0.8, sacrebleu_source, why_sacrebleu),
            },
        },
    )


def _english_french(size: str, bleu: Expected) -> Experiment:
    """The experiment, for which the paper has BLEU alone."""
    return Experiment(
        name=f"{size}-en-fr",
        title=f"Transformer {size}, WMT 2014 English to French",
        recipe=f"{size}-en-fr",
        corpora=["wmt14-en-fr", "wmt14-en-fr-archives"],
        expected={
            "prepare": _PREPARATION["en-fr"],
            "train": _TRAINING[size],
            "average": _AVERAGING[size],
            "score newstest2014": {"paper BLEU": bleu},
        },
    )


_TWO_VERSIONS = "41.0 in section 6.1 and the first version, 41.8 in Table 2 of the later ones"
EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        _english_german("base", millions=65, perplexity=4.92, validation_bleu=25.8, bleu=27.3),
        _english_german("big", millions=213, perplexity=4.33, validation_bleu=26.4, bleu=28.4),
        _english_french("base", _expected_paper_bleu(38.1, 38.1, "Table 2")),
        _english_french("big", _expected_paper_bleu(41.0, 41.8, _TWO_VERSIONS)),
    )
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure beside the expected one; a score has a `signature`.

    A rehearsal measures most figures without judging them, because a full run gives others.
    """

    name: FigureName
    expected: Expected | None
    measured: float
    is_judged: bool = True
    signature: str = ""

    @property
    def relation(self) -> Relation:
        """The relation to the expected figure. A rehearsal is not compared with a full run."""
        if not self.is_judged:
            return "not comparable"
        if self.expected is None or self.expected.tolerance is None:
            return "context"
        if self.measured < self.expected.low - self.expected.tolerance:
            return "below"
        return "above" if self.measured > self.expected.high + self.expected.tolerance else "as expected"

    @property
    def verdict(self) -> str:
        """The relation in words, with the distance if there is one."""
        if not self.is_judged:
            return "not comparable: rehearsal"
        if self.expected is None:
            return "not in the paper"
        if self.relation in ("below", "above"):
            distance = max(self.expected.low - self.measured, self.measured - self.expected.high)
            return f"{self.relation} by {_with_unit(self.name, distance)}"
        return "for context" if self.relation == "context" else self.relation

    @property
    def has_failed(self) -> bool:
        """Whether this figure decides the reproduction and is lower than the tolerance allows."""
        return self.expected is not None and self.expected.decides and self.relation == "below"

    @property
    def measured_text(self) -> str:
        """The measured figure in words."""
        return _with_unit(self.name, self.measured)

    @property
    def expected_text(self) -> str:
        """The expected figure with its tolerance, in words; empty if the paper has none."""
        return format_expected(self.name, self.expected)

    def to_json(self) -> dict[str, Any]:
        """The figure for reproduction.json."""
        expected = {} if self.expected is None else asdict(self.expected)
        expected.pop("decides", None)
        return {
            "figure": self.name,
            "expected": expected or None,
            "measured": self.measured,
            "detail": self.signature,
            "verdict": self.verdict,
        }


def format_expected(name: FigureName, expected: Expected | None) -> str:
    """The expected value or range of a figure, and its tolerance."""
    if expected is None:
        return ""
    decimals = _PRINTED_DECIMALS.get(name, 0)
    values = dict.fromkeys(_number(name, value, decimals=decimals) for value in (expected.low, expected.high))
    tolerance = f" ± {_number(name, expected.tolerance, decimals=decimals)}" if expected.tolerance else ""
    return " to ".join(values) + tolerance + _UNITS.get(name, "")


def _with_unit(name: FigureName, value: float) -> str:
    return _number(name, value, decimals=_DECIMALS.get(name, 0)) + _UNITS.get(name, "")


def _number(name: FigureName, value: float, *, decimals: int) -> str:
    return f"{value / 1e6 if name == 'parameters' else value:,.{decimals}f}"
