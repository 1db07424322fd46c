"""The learning rate of each update."""

from __future__ import annotations

import math
from typing import assert_never

from nmt_cli.recipe.schema import ConstantConfig, CosineConfig, NoamConfig, WsdConfig

ScheduleConfig = NoamConfig | CosineConfig | WsdConfig | ConstantConfig


def learning_rate(schedule: ScheduleConfig, *, update: int, updates: int, d_model: int) -> float:
    """The rate of `update`, counted from 1, in a training of `updates` in total."""
    match schedule:
        case NoamConfig():
            return noam(update, factor=schedule.factor, warmup_updates=schedule.warmup_updates, d_model=d_model)
        case CosineConfig():
            return cosine(update, peak=schedule.peak, warmup_updates=schedule.warmup_updates, updates=updates)
        case WsdConfig():
            return wsd(
                update,
                peak=schedule.peak,
                warmup_updates=schedule.warmup_updates,
                decay_updates=schedule.decay_updates,
                updates=updates,
            )
        case ConstantConfig():
            return schedule.peak * min(1.0, update / schedule.warmup_updates)
        case other:
            assert_never(other)


def noam(update: int, *, factor: float, warmup_updates: int, d_model: int) -> float:
    """factor * d_model^-0.5 * min(update^-0.5, update * warmup^-1.5), equation 3."""
    return float(factor * d_model**-0.5 * min(update**-0.5, update * warmup_updates**-1.5))


def cosine(update: int, *, peak: float, warmup_updates: int, updates: int) -> float:
    """Linear to `peak` at `warmup_updates`, then half a cosine to zero after the last update."""
    if update <= warmup_updates:
        return peak * update / warmup_updates
    done = (update - warmup_updates) / max(1, updates - warmup_updates + 1)
    return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def wsd(update: int, *, peak: float, warmup_updates: int, decay_updates: int, updates: int) -> float:
    """Linear to `peak` at `warmup_updates`, then constant, then linear to zero after the last of `updates`."""
    left = updates - update + 1
    return peak * min(1.0, update / warmup_updates, max(0, left) / (decay_updates + 1))
