"""The report of runs as one page: curves, samples, settings that differ, skipped updates, hardware, next commands."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, groupby
from typing import Any

from nmt_cli import __version__
from nmt_cli.artifacts.history import History, ValidationPoint
from nmt_cli.artifacts.info import next_command
from nmt_cli.artifacts.model_directory import DirectionResult
from nmt_cli.artifacts.reported_systems import OWN_KEYS, SEED, ReportedRun, ReportedSystem, best_validation, systems_of
from nmt_cli.artifacts.run import Run
from nmt_cli.artifacts.run_charts import TABLE_COLUMNS, axes_of, charts_of, draw_charts, figures_and_table
from nmt_cli.console import duration_text, size_text, time_text
from nmt_cli.errors import UsageError
from nmt_cli.recipe.schema import Recipe
from nmt_cli.recipe.section import dotted_key, flatten
from nmt_cli.templates.charts import COLOURS, DASHES, THINNING_COLUMNS
from nmt_cli.templates.render import render

PAGE_MARK = '<meta name="generator" content="nmt report">'
_MAX_ROWS = 24  # of the table of validations
_MAX_EVENTS = 20  # of a run's starts, and of its skipped updates
_SAMPLE_ROWS = 8  # translations of a sample, of all runs together
_LEAST_USEFUL_BLEU = 10  # docs/how-to/score.md
_MIN_VALIDATIONS_SINCE_BEST = 3  # for the finding that later ones were no better
_NO_VALUE = "—"
_Setting = tuple[str, list[str]]
MAX_SYSTEMS = len(DASHES)

MARKS = (PAGE_MARK, "<!-- nmt report -->", ",".join(TABLE_COLUMNS))
"""One stands in every page, figure and table: `nmt report` replaces a file only if a mark is in it."""


@dataclass(frozen=True, slots=True)
class Report:
    """The page, and files beside it by their endings: a table, and each chart. A page of one run has none."""

    page: str
    files: Mapping[str, str]


def render_report(runs: Sequence[Run], *, command: str, now: datetime) -> Report:
    """The page about these runs as HTML, which loads nothing and runs no script; every text in it is escaped.

    The page shows `command`, which writes it again. UsageError if there are more systems than line styles.
    """
    histories = [run.history() for run in runs]
    systems = systems_of(runs, histories)
    if len(systems) > MAX_SYSTEMS:
        message = f"{len(systems)} systems are too many: a page has line styles for {MAX_SYSTEMS}"
        raise UsageError(message, where="RUN", hint=f"name runs of at most {MAX_SYSTEMS} systems")
    reported = [run for system in systems for run in system.runs]
    different, common = _settings(systems)
    axes = axes_of(reported)
    charts = charts_of(reported)
    page = render(
        "run_report.html",
        runs=reported,
        systems=systems,
        have_seeds=len(systems) < len(reported),
        mark=PAGE_MARK,
        findings=[text[0].upper() + text[1:] if len(reported) == 1 else text for text in _findings(reported)],
        axes=axes,
        charts=list(draw_charts(systems, charts, axes)),
        validations=_validation_rows(systems),
        signatures=sorted(_signatures(reported)),
        samples=list(_samples(reported)),
        without_samples=[run.label for run in reported if not any(point.samples for point in run.history.validations)],
        directions=_direction_rows(reported),
        direction_groups=[("", 1), *((run.label, 2) for run in reported)] if len(reported) > 1 else [],
        different_settings=different,
        common_settings=common,
        groups=[(system.label, 2) for system in systems],  # over two columns: loss and BLEU
        columns=[(system.label, "text") for system in systems],
        starts=list(_starts(reported)),
        skipped_updates=list(_skipped_updates(reported)),
        best_validation=best_validation,
        mean_and_deviation=_mean_and_deviation,
        next_command=next_command,
        duration_text=duration_text,
        size_text=size_text,
        time_text=time_text,
        no_value=_NO_VALUE,
        colours=COLOURS,
        dashes=DASHES,
        thinning_columns=THINNING_COLUMNS,
        command=command,
        now=now.astimezone(UTC).isoformat(),
        nmt_version=__version__,
    )
    return Report(page, {} if len(reported) == 1 else dict(figures_and_table(systems, charts)))


def _findings(reported: Sequence[ReportedRun]) -> Iterator[str]:
    """The facts that a reader has to know before the curves."""
    for shown in reported:
        name = f"{shown.label}: " if len(reported) > 1 else ""
        history, state = shown.history, shown.facts["state"]
        if state == "training":
            yield f"{name}a process trains this run now. The page shows it up to update {history.last_update:,}."
        if state == "not begun":
            yield f"{name}this run has not reported an update yet."
        if state == "stopped" and history.ending is None:
            at = f"update {history.last_update:,}"
            yield f"{name}the process ended after {at} and did not say why: it was killed, or it failed."
        if history.skipped:
            is_one = len(history.skipped) == 1
            number = "one update was" if is_one else f"{len(history.skipped):,} updates were"
            yield f"{name}{number} skipped, because gradients were not finite."
        if len(reported) == 1:
            yield from _advice(shown)
        yield from (f"{name}{text}" for text in _findings_since_best(shown))
    if len(reported) > 1:
        yield from _differences(reported)


def _advice(shown: ReportedRun) -> Iterator[str]:
    """A sentence on a BLEU that is of no use, with the way out."""
    best = best_validation(shown, "bleu")
    if best is None or shown.facts["state"] == "training" or (best.measured.bleu or 0.0) >= _LEAST_USEFUL_BLEU:
        return
    yield (
        f"the best BLEU is {best.measured.bleu:.2f}, and below {_LEAST_USEFUL_BLEU} translations are of no use. If the "
        "loss still falls, train longer. If not, see in the samples whether source and reference belong together; if "
        "they do, take much more text, or fine-tune a public model."
    )


def _findings_since_best(shown: ReportedRun) -> Iterator[str]:
    metric = shown.run.recipe.validation.metric
    if (best := best_validation(shown, metric)) is None:
        return
    update = best.measured.update
    later = [point for point in shown.history.validations if point.measured.update > update]
    if len(later) >= _MIN_VALIDATIONS_SINCE_BEST:
        name = {"bleu": "BLEU", "loss": "validation loss"}[metric]
        yield f"the best {name} was after update {update:,}; {len(later)} later validations were no better."


def _differences(reported: Sequence[ReportedRun]) -> Iterator[str]:
    """Reasons why figures of the runs may not be comparable."""
    if len({shown.run.record.data_summary.get("fingerprint") for shown in reported}) > 1:
        yield (
            "The runs have different prepared data. Losses per token are comparable only with one vocabulary, "
            "and BLEU only with one validation set."
        )
    elif len({shown.run.recipe.validation.max_sentences for shown in reported}) > 1:
        yield "BLEU is of different parts of the validation set: validation.max_sentences differs."
    if len(_signatures(reported)) > 1:
        yield "The signatures of BLEU differ, so its values are not comparable."


def _signatures(reported: Sequence[ReportedRun]) -> set[str]:
    signatures = {point.measured.signature for shown in reported for point in shown.history.validations}
    return {signature for signature in signatures if signature is not None}


def _mean_and_deviation(values: Sequence[float], number_format: str) -> str:
    """The mean of the values and, of several, their sample standard deviation."""
    if not values:
        return _NO_VALUE
    mean = number_format.format(statistics.fmean(values))
    return mean if len(values) == 1 else f"{mean} ± {number_format.format(statistics.stdev(values))}"


def _validation_rows(systems: Sequence[ReportedSystem]) -> list[tuple[int, list[ValidationPoint | None]]]:
    """The rows of the table of validations: an update, and the validation of each system after it, or None.

    There are about two dozen rows. They are spread evenly, and include the best and the last validation of each system.
    """
    by_system = [{point.measured.update: point for point in system.history.validations} for system in systems]
    updates = sorted(set(chain(*by_system)))
    step = math.ceil(len(updates) / _MAX_ROWS) or 1
    kept = set(updates[step - 1 :: step])
    for system in systems:
        chosen = (best_validation(system, "bleu"), best_validation(system, "loss"), *system.history.validations[-1:])
        kept |= {point.measured.update for point in chosen if point is not None}
    return [(update, [points.get(update) for points in by_system]) for update in sorted(kept)]


def _samples(reported: Sequence[ReportedRun]) -> Iterator[dict[str, Any]]:
    """Each sample with its reference, and some of each run's translations over time."""
    languages_of = {
        (sample["source"], sample["reference"]): next(
            pair for pair in shown.run.record.languages.pairs if sample.get("direction") in (None, str(pair))
        )
        for shown in reported
        for point in [point for point in shown.history.validations if point.samples][-1:]
        for sample in point.samples
    }
    rows_per_run = max(2, _SAMPLE_ROWS // len(reported))
    for (source, reference), languages in languages_of.items():
        rows = [
            {"run": shown, "updates": updates, "translation": translation}
            for shown in reported
            for updates, translation in _translations_over_time(shown.history, source, reference, max_rows=rows_per_run)
        ]
        yield {"source": source, "reference": reference, "languages": languages, "rows": rows}


def _direction_rows(reported: Sequence[ReportedRun]) -> list[tuple[str, list[DirectionResult | None]]]:
    """The directions of the runs, and what each run had at its best validation; empty if there is one."""
    best = [best_validation(shown, shown.run.recipe.validation.metric) for shown in reported]
    results = [{} if point is None else point.measured.by_direction for point in best]
    return [(name, [of_run.get(name) for of_run in results]) for name in dict.fromkeys(chain(*results))]


def _translations_over_time(history: History, source: str, reference: str, *, max_rows: int) -> list[tuple[str, str]]:
    """At most `max_rows` translations over time, each with its update; equal neighbours are joined, with a span."""
    translations = [
        (point.measured.update, sample["translation"])
        for point in history.validations
        for sample in point.samples
        if (sample["source"], sample["reference"]) == (source, reference)
    ]
    rows = []
    for translation, group in groupby(translations, key=lambda pair: pair[1]):
        updates = [update for update, _ in group]
        span = f"{updates[0]:,}" if len(updates) == 1 else f"{updates[0]:,} to {updates[-1]:,}"
        rows.append((span, translation))
    if len(rows) <= max_rows:
        return rows
    evenly_spread = {round(i * (len(rows) - 1) / (max_rows - 1)) for i in range(max_rows)}
    return [rows[i] for i in sorted(evenly_spread)]


def _settings(systems: Sequence[ReportedSystem]) -> tuple[list[_Setting], list[_Setting]]:
    """The settings that differ between the systems, and the shared settings that differ from the default.

    Each is (key, values): a value per system in the first list; the shared value and the default in the second. The
    seeds of several runs stand elsewhere.
    """
    own = (*OWN_KEYS, *([SEED] if any(len(system.runs) > 1 for system in systems) else []))
    recipes = [flatten(system.runs[0].run.recipe.model_dump(mode="json")) for system in systems]
    default = flatten(Recipe(name="default").model_dump(mode="json"))
    paths = dict.fromkeys(path for recipe in (default, *recipes) for path in recipe if path not in own)
    sections = {path[:-1] for path in paths}  # null in one recipe may be a section in another
    different: list[_Setting] = []
    common: list[_Setting] = []

    def add(key: str, values: list[str], *, default: str) -> None:
        if len(set(values)) > 1:
            different.append((key, values))
        elif values[0] != default:
            common.append((key, [values[0], default]))

    for path in paths:
        if path not in sections:
            values = [_setting_text(recipe, path) for recipe in recipes]
            add(dotted_key(path), values, default=_setting_text(default, path))
    initial_models = [system.runs[0].run.record.init_from for system in systems]
    add("--init-from", [_NO_VALUE if model is None else model.path for model in initial_models], default=_NO_VALUE)
    return different, common


def _setting_text(recipe: Mapping[tuple[str, ...], Any], path: tuple[str, ...]) -> str:
    if path not in recipe:
        return _NO_VALUE
    value = recipe[path]
    return value if isinstance(value, str) else json.dumps(value)


def _starts(reported: Sequence[ReportedRun]) -> Iterator[dict[str, Any]]:
    """The newest starts of each run with their hardware."""
    for shown in reported:
        for start in shown.history.starts[-_MAX_EVENTS:]:
            hardware, versions = start.get("hardware") or {}, start.get("versions") or {}
            compiled = ", compiled" if hardware.get("is_compiled") else ""
            yield {
                "run": shown,
                "time": start.get("time", _NO_VALUE),
                "update": start["update"],
                "hardware": f"{hardware.get('devices')} x {hardware.get('device')}{compiled}",
                "threads": hardware.get("threads"),
                "precision": hardware.get("precision"),
                "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
            }


def _skipped_updates(reported: Sequence[ReportedRun]) -> Iterator[dict[str, Any]]:
    """The newest skipped updates of each run."""
    for shown in reported:
        skipped = shown.history.skipped
        for event in skipped[-_MAX_EVENTS:]:
            text = f"{event.get('reason')} ({len(event.get('pairs') or ())} suspect pairs)"
            yield {"run": shown, "update": event["update"], "text": text}
        if len(skipped) > _MAX_EVENTS:
            yield {"run": shown, "update": None, "text": f"and {len(skipped) - _MAX_EVENTS:,} before those"}
