"""Adam and AdamW over the flat master weights, a moving average of the weights, and learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, assert_never

import torch
from torch import Tensor, nn

from nmt_cli.recipe.training import (
    AdamConfig,
    AdamWConfig,
    ConstantConfig,
    CosineConfig,
    InverseSqrtConfig,
    NoamConfig,
    ScheduleConfig,
    WsdConfig,
)
from nmt_cli.training.master_weights import MasterWeights

_MOMENTS = ("exp_avg", "exp_avg_sq")  # torch's names for the running means of gradients and of their squares


def scheduled_rate(schedule: ScheduleConfig, *, update: int, num_updates: int, d_model: int) -> float:
    """The learning rate of `update`, counted from 1, in a training of `num_updates` in total."""
    warmup_share = update / schedule.warmup_updates
    match schedule:
        case NoamConfig():  # equation 3 of the paper
            return float(schedule.factor * d_model**-0.5 * min(update**-0.5, update * schedule.warmup_updates**-1.5))
        case InverseSqrtConfig():
            return float(schedule.peak * min(warmup_share, warmup_share**-0.5))
        case CosineConfig():  # half a cosine to zero after the last update
            if warmup_share <= 1:
                return schedule.peak * update / schedule.warmup_updates
            decay_share = (update - schedule.warmup_updates) / max(1, num_updates - schedule.warmup_updates + 1)
            return schedule.peak * 0.5 * (1 + math.cos(math.pi * min(1.0, decay_share)))
        case WsdConfig():  # constant, then linear to zero after the last update
            updates_left = max(0, num_updates - update + 1)
            return schedule.peak * min(1.0, warmup_share, updates_left / (schedule.decay_updates + 1))
        case ConstantConfig():
            return schedule.peak * min(1.0, warmup_share)
        case other:
            assert_never(other)


class Optimizer:
    """torch's fused AdamW over the master weights [P], and a moving average of them if there is an `ema`, its decay.

    AdamW has two views of the weights: the matrices, which may decay, and the rest. Without decay it is Adam. The
    average is validated and saved. Its decay begins low, at 2/11, so that it is not held back by the first weights.

    `state` has all tensors that an update needs from earlier updates, except the weights, by name. Their memory is
    allocated at once, so a lack of memory shows early.
    """

    def __init__(self, weights: MasterWeights, config: AdamConfig | AdamWConfig, *, ema: float | None) -> None:
        self._weights, self._max_decay = weights, ema or 0.0
        vectors = {name: torch.zeros_like(weights.values) for name in _MOMENTS}
        decay = config.weight_decay if isinstance(config, AdamWConfig) else 0.0
        matrices, rest = slice(0, weights.num_in_matrices), slice(weights.num_in_matrices, None)
        groups: list[dict[str, Any]] = []
        state: dict[Tensor, Any] = {}
        for part, weight_decay in ((matrices, decay), (rest, 0.0)):
            view = nn.Parameter(weights.values[part])
            view.grad = weights.gradients[part]
            groups.append({"params": [view], "weight_decay": weight_decay})
            of_view = {name: flat[part] for name, flat in vectors.items()}
            state[view] = {"step": torch.zeros((), device=view.device)} | of_view
        betas = (config.beta1, config.beta2)
        self._adam = torch.optim.AdamW(groups, betas=betas, eps=config.epsilon, fused=True)
        self._adam.state.update(state)
        self.average: Tensor | None = None
        """The weights [P] to validate and save; None for the trained weights."""
        if ema is not None:
            self.average = vectors["average"] = weights.values.clone()
        self._num_applied = torch.zeros((), device=weights.values.device)
        self.state = {
            f"{key}.{name}": part for key, flat in vectors.items() for name, part in weights.named(flat).items()
        }

    def step(self, *, learning_rate: float, skip: Tensor) -> None:
        """Take one update with the current gradients; none if `skip`, a float32 scalar on their device, is 1."""
        # Read by torch's fused kernels, for its GradScaler.
        self._adam.found_inf = skip  # type: ignore[attr-defined]  # an attribute that torch looks for
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        self._adam.step()
        if self.average is not None:
            self._num_applied += 1 - skip
            decay = ((1 + self._num_applied) / (10 + self._num_applied)).clamp(max=self._max_decay)
            self.average.lerp_(self._weights.values, (1 - decay) * (1 - skip))

    def load(self, state: Mapping[str, Tensor], *, num_applied: int) -> None:
        """Continue after `num_applied` applied updates; skipped ones do not count. KeyError if a name is missing."""
        for name, tensor in self.state.items():
            tensor.copy_(state[name])
        for parameter_state in self._adam.state.values():
            parameter_state["step"].fill_(num_applied)
        self._num_applied.fill_(num_applied)
