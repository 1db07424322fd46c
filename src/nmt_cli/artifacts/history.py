"""The history of a run, read from its metrics.jsonl: curves without lost updates, samples, starts, skipped updates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nmt_cli.artifacts.model_directory import DirectionResult, ValidationResult


@dataclass(frozen=True, slots=True)
class Elapsed:
    """How far a training was: the update, and the seconds.

    The seconds add up all updates and validations, including lost ones. They leave out the time between processes.
    """

    update: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TrainingPoint:
    """The values of a `train` event; a value that was not finite is None."""

    at: Elapsed
    loss: float | None
    learning_rate: float | None


@dataclass(frozen=True, slots=True)
class ValidationPoint:
    """A validation: its figures, and its samples as dictionaries of `source`, `reference` and `translation`.

    With several directions, a sample also has its `direction`.
    """

    at: Elapsed
    measured: ValidationResult
    samples: Sequence[Mapping[str, str]]


Point = TypeVar("Point", TrainingPoint, ValidationPoint)


@dataclass(slots=True)
class History:
    """The curves of a run, its starts, its skipped updates, and its end.

    `training` and `validations` are the curves by rising update. An update is lost, and left out of them, if training
    resumed from an earlier checkpoint. `starts` and `skipped` are events as in metrics.jsonl. `ending` says why the
    last process ended; it is None if a process still trains or was killed.
    `last_update` is the newest update in metrics.jsonl, and `last_train_event` its newest `train` event.
    `seconds` of a `train` event are those since its process started, of a `validation` event its own.
    `trained_seconds` are the seconds spent training, without validations, summed over all starts. `trained_tokens` are
    the target tokens of that time.
    """

    training: list[TrainingPoint] = field(default_factory=list)
    validations: list[ValidationPoint] = field(default_factory=list)
    starts: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    ending: str | None = None
    last_update: int = 0
    last_train_event: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    trained_seconds: float = 0.0
    trained_tokens: float = 0.0
    _process_seconds: float = 0.0  # of the newest process, at its last `train` event

    @property
    def target_tokens_per_second(self) -> float | None:
        """The mean over all updates; None if nothing was trained."""
        return self.trained_tokens / self.trained_seconds if self.trained_tokens and self.trained_seconds > 0 else None

    def add(self, event: Mapping[str, Any], update: int) -> None:
        """Take an event of this update into account."""
        match event.get("event"):
            case "train":
                self._add_training(event, update)
            case "validation":
                self._add_validation(event, update)
            case "start":
                self.starts.append(dict(event))
                self._begin_process(update)
            case "resume":
                self._begin_process(update)
            case "skipped":
                self.skipped.append(dict(event))
            case "end":
                self.ending = str(event.get("reason"))
                self.last_update = update
            case _:
                pass

    def _add_training(self, event: Mapping[str, Any], update: int) -> None:
        since_start = _number(event, "seconds")  # of the process
        seconds = 0.0 if since_start is None else since_start - self._process_seconds
        self._process_seconds += seconds
        self.seconds += seconds
        self.trained_seconds += seconds
        self.trained_tokens += _number(event, "target_tokens") or 0.0
        self.last_update, self.last_train_event = update, event
        at = Elapsed(update, self.seconds)
        self.training.append(TrainingPoint(at, _number(event, "loss"), _number(event, "learning_rate")))

    def _add_validation(self, event: Mapping[str, Any], update: int) -> None:
        loss = _number(event, "loss")
        if loss is None:
            return
        self.seconds += _number(event, "seconds") or 0.0
        self.last_update = max(self.last_update, update)
        _drop(self.validations, after=update - 1)
        measured = ValidationResult(
            update=update,
            loss=loss,
            perplexity=_number(event, "perplexity"),
            bleu=_number(event, "bleu"),
            signature=event.get("signature"),
            by_direction={
                name: DirectionResult(loss=value, bleu=_number(scores, "bleu"))
                for name, scores in (event.get("by_direction") or {}).items()
                if (value := _number(scores, "loss")) is not None
            },
        )
        self.validations.append(ValidationPoint(Elapsed(update, self.seconds), measured, _samples(event)))

    def _begin_process(self, update: int) -> None:
        """A process begins to train after this update: it counts its seconds from 0, and lost updates are dropped."""
        self.ending, self._process_seconds, self.last_update = None, 0.0, update
        _drop(self.training, after=update)
        _drop(self.validations, after=update)


def mean_history(histories: Sequence[History]) -> History:
    """The mean curves of runs with one recipe, at the updates that all runs with any points have; nothing else."""
    mean = History()
    for training in _aligned([history.training for history in histories]):
        rates = [point.learning_rate for point in training]
        mean.training.append(TrainingPoint(_mean_elapsed(training), _mean([p.loss for p in training]), _mean(rates)))
    for validations in _aligned([history.validations for history in histories]):
        measured = [point.measured for point in validations]
        loss = sum(one.loss for one in measured) / len(measured)
        perplexity, bleu = _mean([one.perplexity for one in measured]), _mean([one.bleu for one in measured])
        changes = {"loss": loss, "perplexity": perplexity, "bleu": bleu, "by_direction": dict[str, DirectionResult]()}
        result = measured[0].model_copy(update=changes)
        mean.validations.append(ValidationPoint(_mean_elapsed(validations), result, ()))
    return mean


def _aligned(curves: Sequence[Sequence[Point]]) -> list[tuple[Point, ...]]:
    """For each update that all curves have, its points; a curve without any points does not count."""
    by_update = [{point.at.update: point for point in curve} for curve in curves if curve]
    if not by_update:
        return []
    shared = [update for update in by_update[0] if all(update in points for points in by_update)]
    return [tuple(points[update] for points in by_update) for update in shared]


def _mean_elapsed(points: Sequence[TrainingPoint] | Sequence[ValidationPoint]) -> Elapsed:
    return Elapsed(points[0].at.update, sum(point.at.seconds for point in points) / len(points))


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if a value is missing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def read_history(events: Iterable[Mapping[str, Any]]) -> History:
    """The history from the events of metrics.jsonl; unknown events and values that are no numbers are left out."""
    history = History()
    for event in events:
        update = event.get("update")
        if type(update) is int and update >= 0:
            history.add(event, update)
    return history


def _drop(points: list[TrainingPoint] | list[ValidationPoint], *, after: int) -> None:
    while points and points[-1].at.update > after:
        points.pop()


def _number(event: Mapping[str, Any], key: str) -> float | None:
    value = event.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _samples(event: Mapping[str, Any]) -> list[dict[str, str]]:
    """The samples of a validation, if any were made."""
    keys = ("source", "reference", "translation", "direction")
    return [{key: str(sample[key]) for key in keys if key in sample} for sample in event.get("samples") or []]
