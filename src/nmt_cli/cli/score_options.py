"""What the options of `nmt score` mean: metrics, bounds, and which of them go together."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence

from nmt_cli.errors import ScoreError, UsageError
from nmt_cli.scoring.metric_names import TITLES, MetricName

# By their names and by their titles: BLEU, chrF2.
_METRICS = {title.lower(): name for name, title in TITLES.items()} | {str(name): name for name in TITLES}


def parse_metrics(texts: Sequence[str]) -> list[MetricName]:
    """The metrics of all `-m`, each once; paper-bleu brings sacreBLEU's BLEU with it, to be read beside it."""
    names = [_metric(name, where="-m") for text in texts for name in text.split(",")]
    if "paper-bleu" in names and "bleu" not in names:
        names.insert(names.index("paper-bleu") + 1, "bleu")
    return list(dict.fromkeys(names))


def parse_bounds(texts: Sequence[str], metrics: Sequence[MetricName]) -> dict[str, float]:
    """The lowest scores allowed, by title. TER takes none: there lower is better, the reverse of what the flag says."""
    bounds: dict[str, float] = {}
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
            message = f"--fail-under bounds {TITLES[metric]}, but -m does not ask for it"
            raise UsageError(message, where=where, hint=f"write -m {','.join([*metrics, metric])}")
        bound = _bound(value, metric, where=where)
        bounds[TITLES[metric]] = max(bound, bounds.get(TITLES[metric], bound))
    return bounds


def check_bounds(values: Mapping[str, float], bounds: Mapping[str, float]) -> None:
    """Raise ScoreError where a value, by title, does not reach its bound; shown with digits enough to see it."""
    for title, bound in bounds.items():
        if not values[title] >= bound:  # no number, as COMET may give, reaches none
            digits = 2
            while digits < 17 and float(f"{values[title]:.{digits}f}") >= bound:
                digits += 1
            message = f"{title} is {values[title]:.{digits}f}, below the bound of {bound!r}".removesuffix(".0")
            hint = "find out what made the translation worse, or lower the bound"
            raise ScoreError(message, where=f"--fail-under {title}={bound!r}".removesuffix(".0"), hint=hint)


def refuse_beside(option: str, others: Mapping[str, object], *, why: str) -> None:
    """Raise UsageError where one of the other options is given as well."""
    for other, value in others.items():
        if _is_given(value):
            raise UsageError(f"{other} does not go with {option}: {why}", where=other, hint=f"leave {other} out")


def refuse_without(needed: str, others: Mapping[str, object]) -> None:
    """Raise UsageError where one of the other options is given, which mean nothing without the one that is needed."""
    for other, value in others.items():
        if _is_given(value):
            message = f"{other} means nothing without {needed}"
            raise UsageError(message, where=other, hint=f"add {needed}, or leave {other} out")


def check_needs(metrics: Sequence[MetricName], *, languages: str | None, has_source: bool) -> None:
    """Raise UsageError where a metric wants what is not given."""
    if "paper-bleu" in metrics and languages is None:
        hint = "add the languages, source first: -l en-de"
        raise UsageError("paper-bleu needs to know the target language", where="-m paper-bleu", hint=hint)
    if "comet" in metrics and not has_source:
        hint = "add the source with -s SRC, or name a test set with -t"
        raise UsageError("comet needs the source text", where="-m comet", hint=hint)


def _metric(name: str, *, where: str) -> MetricName:
    key = name.strip().lower()
    if key not in _METRICS:
        near = difflib.get_close_matches(key, _METRICS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"take one or more of {','.join(TITLES)}"
        raise UsageError(f"there is no metric {name.strip()!r}", where=where, hint=hint)
    return _METRICS[key]


def _bound(value: str, metric: MetricName, *, where: str) -> float:
    try:
        bound = float(value)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        hint = f"for example --fail-under {TITLES[metric]}={'0.8' if metric == 'comet' else '25'}"
        raise UsageError(f"the bound {value!r} is not a number", where=where, hint=hint)
    return bound


def _is_given(value: object) -> bool:
    return value is not None and value is not False and value != []
