"""The state of a training: its counters, its place in the data, and its losses, which show whether it diverges."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from nmt_cli.artifacts.checkpoints import Metric, deciding_metric, goodness
from nmt_cli.devices import Precision
from nmt_cli.recipe.training import TrainingConfig
from nmt_cli.training.data_order import PlannedUpdate
from nmt_cli.training.stop_signal import Ending
from nmt_cli.training.update import UpdateResult
from nmt_cli.training.validation import Validation

OF_ONE_UPDATE = ("validation", "signal")
"""Fields of a state that belong to its last update alone: state.json does not have them."""

# Decay per update of the running means over about 5 and about 50 updates.
_RECENT_DECAY, _MEAN_DECAY = 0.8, 0.98
# A loss that is larger, or not finite, counts as this many nats.
_MAX_LOSS = 100.0


@dataclass(frozen=True, slots=True)
class LossCourse:
    """The course of the losses of applied updates, in nats per target token.

    `recent` and `mean` are running means over about 5 and about 50 updates; `lowest` is the lowest `mean` so far. All
    are None before the first loss.
    """

    recent: float | None = None
    mean: float | None = None
    lowest: float | None = None

    def after(self, loss: float) -> LossCourse:
        """The course after one more loss."""
        loss = min(loss, _MAX_LOSS) if math.isfinite(loss) else _MAX_LOSS
        if self.recent is None or self.mean is None or self.lowest is None:
            return LossCourse(loss, loss, loss)
        mean = _MEAN_DECAY * self.mean + (1 - _MEAN_DECAY) * loss
        return LossCourse(_RECENT_DECAY * self.recent + (1 - _RECENT_DECAY) * loss, mean, min(self.lowest, mean))

    def has_spike(self, nats: float | None) -> bool:
        """True if the mean has risen by more than `nats` above its lowest value; never for None."""
        return nats is not None and self._rise(self.mean) > nats

    def is_stable(self, nats: float | None) -> bool:
        """True if the last few losses show no sign of a spike."""
        return nats is None or self._rise(self.recent) <= nats / 2

    def _rise(self, mean: float | None) -> float:
        return 0.0 if mean is None or self.lowest is None else mean - self.lowest


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The state of a training besides weights and moments: counters and the position in the data.

    `update` counts updates, including skipped ones. The next update begins at `epoch` and `index`. `best` is the best
    value so far of `metric`, which is the loss while BLEU tells nothing. `validated` is the last update that was
    validated. `course` is the course of the losses.

    `validation` was measured after the last update, and `signal` is one that the sums of this update told all ranks.
    """

    precision: Precision
    update: int = 0
    applied: int = 0
    skipped_in_row: int = 0
    epoch: int = 0
    index: int = 0
    best: float | None = None
    metric: Metric | None = None
    validations_since_best: int = 0
    validated: int = 0
    course: LossCourse = field(default_factory=LossCourse)
    validation: Validation | None = None
    signal: int | None = None

    def after(self, planned: PlannedUpdate, result: UpdateResult) -> TrainingState:
        """The state after one more update."""
        epoch, index = planned.epoch, planned.index
        moved = replace(self, update=self.update + 1, epoch=epoch, index=index, validation=None, signal=result.signal)
        if not result.is_applied:
            return replace(moved, skipped_in_row=self.skipped_in_row + 1)
        course = self.course.after(result.smoothed / planned.target_tokens)
        return replace(moved, applied=self.applied + 1, skipped_in_row=0, course=course)

    def ending(self, training: TrainingConfig) -> Ending | None:
        """The ending by the recipe; None if the training continues."""
        if self.update >= training.updates:
            return "finished"
        return "patience" if self.validations_since_best >= (training.patience or math.inf) else None

    def reason_of_divergence(self, training: TrainingConfig) -> str | None:
        """Why training must not continue from here; None if it may."""
        at = f"update {self.update:,}"
        if self.skipped_in_row > training.max_skipped_updates:
            return f"{self.skipped_in_row} updates in a row had gradients that are not finite, the last at {at}"
        if self.course.has_spike(training.spike_nats):
            return f"the mean loss has risen from {self.course.lowest:.2f} to {self.course.mean:.2f} nats by {at}"
        return None

    def after_validation(self, validation: Validation, *, metric: Metric) -> TrainingState:
        """The state with the best value so far, and the number of validations since then, as `best_first` ranks."""
        measured = replace(self, validated=self.update, validation=validation)
        decides = deciding_metric(validation.bleu, metric=metric)
        value: float = getattr(validation, decides)
        found = goodness(value, decides, metric=metric)
        if self.best is None or self.metric is None or found > goodness(self.best, self.metric, metric=metric):
            return replace(measured, best=value, metric=decides, validations_since_best=0)
        return replace(measured, validations_since_best=self.validations_since_best + 1)
