"""The history of a run, read from its metrics.jsonl: curves without lost updates, samples, starts, and troubles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nmt_cli.artifacts.model_directory import ValidationResult


@dataclass(frozen=True, slots=True)
class Elapsed:
    """How far a training was: the update, the target tokens of all updates so far, and the seconds.

    The seconds add up all updates and validations, including lost ones. They leave out the time between processes.
    """

    update: int
    tokens: float
    seconds: float


@dataclass(frozen=True, slots=True)
class TrainingPoint:
    """The values of a `train` event; a value that was not finite is None."""

    at: Elapsed
    loss: float | None
    learning_rate: float | None


@dataclass(frozen=True, slots=True)
class ValidationPoint:
    """A validation: its figures, and its samples as dictionaries of `source`, `reference` and `translation`."""

    at: Elapsed
    measured: ValidationResult
    samples: Sequence[Mapping[str, str]]


@dataclass(slots=True)
class History:
    """The curves of a run, its starts, and its troubles.

    `training` and `validations` are the curves by rising update. An update is lost, and left out of them, if training
    resumed from an earlier checkpoint. `starts` and `skipped` are events as in metrics.jsonl. `ending` says why the
    last process ended; it is None if a process still trains or was killed.
    `last_update` is the newest update in metrics.jsonl, and `last_train_event` its newest `train` event.
    `trained_seconds` are the seconds spent training, without validations, summed over all starts.
    `target_tokens_per_second` is the mean over all updates.
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
    target_tokens_per_second: float | None = None


def read_history(events: Iterable[Mapping[str, Any]]) -> History:
    """The history from the events of metrics.jsonl; unknown events and values that are no numbers are left out."""
    reader = _Reader()
    for event in events:
        update = event.get("update")
        if type(update) is int and update >= 0:
            reader.read(event, update)
    return reader.finish()


class _Reader:
    """Builds a history, event by event.

    The base is the newest point with a known number of tokens: a `train` event, or a resume. A `train` event gives the
    seconds since its process began, and the target tokens since the base. A resume drops the points of later updates.
    Its tokens are estimated from the rate of the `train` event before it.
    """

    def __init__(self) -> None:
        self._history = History()
        self._base_update, self._base_tokens = 0, 0.0  # with the tokens of all updates up to it
        self._tokens_per_update = 0.0
        self._process_seconds = 0.0
        self._trained_tokens = 0.0

    def read(self, event: Mapping[str, Any], update: int) -> None:
        """Take an event of this update into account."""
        history = self._history
        match event.get("event"):
            case "train":
                self._train(event, update)
            case "validation":
                self._validate(event, update)
            case "start":
                history.starts.append(dict(event))
                self._begin_process(update)
            case "resume":
                self._begin_process(update)
            case "skipped":
                history.skipped.append(dict(event))
            case "end":
                history.ending = str(event.get("reason"))
                history.last_update = update
            case _:
                pass

    def finish(self) -> History:
        """The history of all events."""
        history = self._history
        if history.trained_seconds > 0 and self._trained_tokens > 0:
            history.target_tokens_per_second = self._trained_tokens / history.trained_seconds
        return history

    def _train(self, event: Mapping[str, Any], update: int) -> None:
        history = self._history
        tokens = _number(event, "target_tokens") or 0.0
        given_seconds = _number(event, "seconds")
        seconds = self._process_seconds if given_seconds is None else given_seconds
        history.seconds += seconds - self._process_seconds
        history.trained_seconds += seconds - self._process_seconds
        self._process_seconds = seconds
        self._trained_tokens += tokens
        self._base_tokens += tokens
        self._tokens_per_update = tokens / max(update - self._base_update, 1)
        self._base_update = history.last_update = update
        history.last_train_event = event
        at = Elapsed(update, self._base_tokens, history.seconds)
        history.training.append(TrainingPoint(at, _number(event, "loss"), _number(event, "learning_rate")))

    def _validate(self, event: Mapping[str, Any], update: int) -> None:
        history = self._history
        loss = _number(event, "loss")
        if loss is None:
            return
        history.seconds += _number(event, "seconds") or 0.0
        history.last_update = max(history.last_update, update)
        _drop(history.validations, after=update - 1)
        signature = event.get("signature")
        measured = ValidationResult(
            update=update,
            loss=loss,
            perplexity=_number(event, "perplexity"),
            bleu=_number(event, "bleu"),
            signature=signature if isinstance(signature, str) else None,
        )
        at = Elapsed(update, self._tokens_after(update), history.seconds)
        history.validations.append(ValidationPoint(at, measured, _samples(event)))

    def _begin_process(self, update: int) -> None:
        """A process begins to train after this update: it counts its seconds from 0, and lost updates are dropped."""
        history = self._history
        history.ending, self._process_seconds = None, 0.0
        _drop(history.training, after=update)
        _drop(history.validations, after=update)
        last = history.training[-1].at if history.training else Elapsed(0, 0.0, 0.0)
        self._base_tokens = last.tokens + (update - last.update) * self._tokens_per_update
        self._base_update = history.last_update = update

    def _tokens_after(self, update: int) -> float:
        """The tokens of all updates up to this one, by the rate of the last `train` event."""
        return self._base_tokens + (update - self._base_update) * self._tokens_per_update


def _drop(points: list[TrainingPoint] | list[ValidationPoint], *, after: int) -> None:
    while points and points[-1].at.update > after:
        points.pop()


def _number(event: Mapping[str, Any], key: str) -> float | None:
    value = event.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _samples(event: Mapping[str, Any]) -> list[dict[str, str]]:
    """The samples of a validation, if any were made."""
    keys = ("source", "reference", "translation")
    return [{key: str(sample[key]) for key in keys} for sample in event.get("samples") or []]
