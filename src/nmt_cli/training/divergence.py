"""A training that has left its path: how that is seen in its losses, and what is said of it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli.dataset.rows import Array, Rows
from nmt_cli.errors import TrainingError

CALMER = "in a new run, lower the learning rate (training.schedule), or set training.clip_norm=1 or --precision fp32"
# Decays of the running means, an update: of about 5 and of about 50 updates.
_RECENT, _MEAN = 0.8, 0.98
# What a loss that is not finite counts as, in nats.
_LARGEST = 100.0
_NAMED_UPDATES, _NAMED_PAIRS = 3, 5


@dataclass(frozen=True, slots=True)
class Course:
    """The course of the losses of applied updates, in nats per target token.

    Running means of about 5 updates and of about 50, and the lowest value so far of the latter; None before the first.
    """

    recent: float | None = None
    mean: float | None = None
    lowest: float | None = None

    def after(self, loss: float) -> Course:
        """The course with one more loss."""
        loss = min(loss, _LARGEST) if math.isfinite(loss) else _LARGEST
        if self.recent is None or self.mean is None or self.lowest is None:
            return Course(loss, loss, loss)
        mean = _MEAN * self.mean + (1 - _MEAN) * loss
        return Course(_RECENT * self.recent + (1 - _RECENT) * loss, mean, min(self.lowest, mean))

    def has_spike(self, nats: float | None) -> bool:
        """True where the mean has risen by more than so much above its lowest value; None: never."""
        return nats is not None and self._rise(self.mean) > nats

    def is_calm(self, nats: float | None) -> bool:
        """True where the last few losses give no reason to expect a spike."""
        return nats is None or self._rise(self.recent) <= nats / 2

    def _rise(self, mean: float | None) -> float:
        return 0.0 if mean is None or self.lowest is None else mean - self.lowest


@dataclass(frozen=True, slots=True)
class Taken:
    """An update as it was taken: its loss in nats per target token, and its pairs, by their places in the data."""

    update: int
    loss: float
    pairs: Array


class RecentUpdates:
    """The last updates, for the report of what led to a divergence."""

    def __init__(self) -> None:
        self._taken: deque[Taken] = deque(maxlen=round(1 / (1 - _MEAN)))

    def add(self, update: int, *, loss: float, micro: Sequence[Rows]) -> None:
        """Note an update of these micro-batches."""
        self._taken.append(Taken(update, loss, np.concatenate([rows["pair"] for rows in micro])))

    def clear(self) -> None:
        """Forget them."""
        self._taken.clear()

    def worst(self) -> list[dict[str, Any]]:
        """The updates with the highest losses, for metrics.jsonl; one that is not finite is the highest, and null."""
        ordered = sorted(self._taken, key=lambda taken: taken.loss if math.isfinite(taken.loss) else math.inf)
        return [
            {
                "update": taken.update,
                "loss": taken.loss if math.isfinite(taken.loss) else None,
                "pairs": sorted(taken.pairs.tolist()),
            }
            for taken in reversed(ordered[-_NAMED_UPDATES:])
        ]


def pairs_of(micro: Sequence[Rows], places: Sequence[int]) -> list[int]:
    """The pairs of some of an update's micro-batches, by their places in the prepared training data, ascending."""
    return sorted(int(pair) for place in places for pair in micro[place]["pair"])


def in_words(pairs: Sequence[int]) -> str:
    """How many pairs, and the first of them."""
    more = ", ..." if len(pairs) > _NAMED_PAIRS else ""
    return f"{len(pairs):,} pairs: {', '.join(str(pair) for pair in pairs[:_NAMED_PAIRS])}{more}"


def divergence(
    course: Course, *, skipped_in_row: int, update: int, spike_nats: float | None, max_skipped: int
) -> str | None:
    """What is wrong after an update that training cannot go on from; None where it can."""
    if skipped_in_row > max_skipped:
        return f"{skipped_in_row} updates in a row had gradients that are not finite, the last at update {update:,}"
    if course.has_spike(spike_nats):
        return f"the mean loss has risen from {course.lowest:.2f} to {course.mean:.2f} nats by update {update:,}"
    return None


def diverged(problem: str, *, returns: int, metrics: Path) -> TrainingError:
    """The error that ends a training after so many returns to an earlier checkpoint."""
    times = f", after {returns} return(s) to an earlier checkpoint" if returns else ""
    return TrainingError(f"{problem}{times}", where=str(metrics), hint=CALMER)
