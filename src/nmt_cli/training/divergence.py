"""How a training that diverges is detected from its losses, and what is reported."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli.dataset.store import Array, Rows
from nmt_cli.errors import TrainingError

CALMER_HINT = (
    "in a new run, lower the learning rate (training.schedule), or set training.clip_norm=1 or --precision fp32"
)
# Decay per update of the running means over about 5 and about 50 updates.
_RECENT, _MEAN = 0.8, 0.98
# Nats that a loss counts as if it is larger, or not finite.
_LARGEST = 100.0
_NAMED_UPDATES, _NAMED_PAIRS = 3, 5


@dataclass(frozen=True, slots=True)
class LossCourse:
    """The course of the losses of applied updates, in nats per target token.

    Running means over about 5 and about 50 updates, and the lowest value so far of the latter; None before the first.
    """

    recent: float | None = None
    mean: float | None = None
    lowest: float | None = None

    def after(self, loss: float) -> LossCourse:
        """The course after one more loss."""
        loss = min(loss, _LARGEST) if math.isfinite(loss) else _LARGEST
        if self.recent is None or self.mean is None or self.lowest is None:
            return LossCourse(loss, loss, loss)
        mean = _MEAN * self.mean + (1 - _MEAN) * loss
        return LossCourse(_RECENT * self.recent + (1 - _RECENT) * loss, mean, min(self.lowest, mean))

    def has_spike(self, nats: float | None) -> bool:
        """True if the mean has risen by more than `nats` above its lowest value; never for None."""
        return nats is not None and self._rise(self.mean) > nats

    def is_calm(self, nats: float | None) -> bool:
        """True if the last few losses show no sign of a spike."""
        return nats is None or self._rise(self.recent) <= nats / 2

    def _rise(self, mean: float | None) -> float:
        return 0.0 if mean is None or self.lowest is None else mean - self.lowest


@dataclass(frozen=True, slots=True)
class TakenUpdate:
    """An update that was taken: its loss in nats per target token, and the places of its pairs in the data."""

    update: int
    loss: float
    pairs: Array


class RecentUpdates:
    """The last updates, for the report on a divergence."""

    def __init__(self) -> None:
        self._taken: deque[TakenUpdate] = deque(maxlen=round(1 / (1 - _MEAN)))

    def add(self, update: int, *, loss: float, micro: Sequence[Rows]) -> None:
        """Add an update with these micro-batches."""
        self._taken.append(TakenUpdate(update, loss, np.concatenate([rows["pair"] for rows in micro])))

    def clear(self) -> None:
        """Forget all updates."""
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
    """The pairs of some micro-batches of an update: their places in the prepared training data, ascending."""
    return sorted(int(pair) for place in places for pair in micro[place]["pair"])


def describe_pairs(pairs: Sequence[int]) -> str:
    """The number of pairs, and the first few."""
    more = ", ..." if len(pairs) > _NAMED_PAIRS else ""
    return f"{len(pairs):,} pairs: {', '.join(str(pair) for pair in pairs[:_NAMED_PAIRS])}{more}"


def find_divergence(
    course: LossCourse, *, skipped_in_row: int, update: int, spike_nats: float | None, max_skipped: int
) -> str | None:
    """The reason why training cannot continue from an update; None if it can."""
    if skipped_in_row > max_skipped:
        return f"{skipped_in_row} updates in a row had gradients that are not finite, the last at update {update:,}"
    if course.has_spike(spike_nats):
        return f"the mean loss has risen from {course.lowest:.2f} to {course.mean:.2f} nats by update {update:,}"
    return None


def divergence_error(problem: str, *, returns: int, metrics: Path) -> TrainingError:
    """The error that ends a training after `returns` returns to an earlier checkpoint."""
    times = f", after {returns} return(s) to an earlier checkpoint" if returns else ""
    return TrainingError(f"{problem}{times}", where=str(metrics), hint=CALMER_HINT)
