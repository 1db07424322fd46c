"""Adam and AdamW over the flat master weights, the moving average of the weights, and learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, assert_never

import torch
from torch import Tensor, nn

from nmt_cli.recipe.schema import Recipe
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
from nmt_cli.training.weights import MasterWeights

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
    """Updates master weights [P] by their gradients.

    `state` has all tensors that an update needs from earlier updates, except the weights, by name. Their memory is
    allocated at once, so a lack of memory shows early.
    """

    def __init__(self, state: dict[str, Tensor]) -> None:
        self.state = state

    def step(self, *, learning_rate: float, skip: Tensor) -> None:
        """Take one update with the current gradients; none if `skip`, a float32 scalar on their device, is 1."""
        raise NotImplementedError

    def load(self, state: Mapping[str, Tensor], *, num_applied: int) -> None:
        """Continue after `num_applied` applied updates; skipped ones do not count. KeyError if a name is missing."""
        for name, tensor in self.state.items():
            tensor.copy_(state[name])

    def evaluation_values(self) -> Tensor | None:
        """The weights [P] to validate and save; None for the trained weights."""
        return None


def build_optimizer(weights: MasterWeights, recipe: Recipe) -> Optimizer:
    """The optimizer of a recipe, with a moving average of the weights if the recipe asks for one."""
    optimizer = Adam(weights, recipe.training.optimizer)
    decay = recipe.training.ema
    return optimizer if decay is None else MovingAverage(weights, optimizer, decay=decay)


class Adam(Optimizer):
    """torch's fused AdamW on two views of the master weights: the matrices, which may decay, and the rest.

    Without decay it is Adam.
    """

    def __init__(self, weights: MasterWeights, config: AdamConfig | AdamWConfig) -> None:
        moments = {name: torch.zeros_like(weights.values) for name in _MOMENTS}
        decay = config.weight_decay if isinstance(config, AdamWConfig) else 0.0
        groups: list[dict[str, Any]] = []
        state: dict[Tensor, Any] = {}
        for part, weight_decay in (
            (slice(0, weights.num_in_matrices), decay),
            (slice(weights.num_in_matrices, None), 0.0),
        ):
            view = nn.Parameter(weights.values[part])
            view.grad = weights.gradients[part]
            groups.append({"params": [view], "weight_decay": weight_decay})
            of_view = {name: flat[part] for name, flat in moments.items()}
            state[view] = {"step": torch.zeros((), device=view.device)} | of_view
        betas = (config.beta1, config.beta2)
        self._adam = torch.optim.AdamW(groups, betas=betas, eps=config.epsilon, fused=True)
        self._adam.state.update(state)
        super().__init__(_by_parameter(weights, moments))

    def step(self, *, learning_rate: float, skip: Tensor) -> None:
        """Take one update; a `skip` of 1 changes neither values, moments nor torch's count of steps."""
        # Read by torch's fused kernels, for its GradScaler.
        self._adam.found_inf = skip  # type: ignore[attr-defined]  # an attribute that torch looks for
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        self._adam.step()

    def load(self, state: Mapping[str, Tensor], *, num_applied: int) -> None:
        """Continue after `num_applied` applied updates."""
        super().load(state, num_applied=num_applied)
        for parameter_state in self._adam.state.values():
            parameter_state["step"].fill_(num_applied)


class MovingAverage(Optimizer):
    """Another optimizer, and an exponential moving average of the weights, which is validated and saved.

    The decay begins low, at 2/11, so that the average is not held back by the first weights.
    """

    def __init__(self, weights: MasterWeights, optimizer: Optimizer, *, decay: float) -> None:
        self._weights, self._optimizer, self._decay = weights, optimizer, decay
        self._average = weights.values.clone()
        self._num_applied = torch.zeros((), device=self._average.device)
        super().__init__(optimizer.state | _by_parameter(weights, {"average": self._average}))

    def step(self, *, learning_rate: float, skip: Tensor) -> None:
        """Take one update with the current gradients; a `skip` of 1 changes nothing."""
        self._optimizer.step(learning_rate=learning_rate, skip=skip)
        self._num_applied += 1 - skip
        decay = ((1 + self._num_applied) / (10 + self._num_applied)).clamp(max=self._decay)
        self._average.lerp_(self._weights.values, (1 - decay) * (1 - skip))

    def load(self, state: Mapping[str, Tensor], *, num_applied: int) -> None:
        """Continue after `num_applied` applied updates."""
        super().load(state, num_applied=num_applied)
        self._optimizer.load(state, num_applied=num_applied)
        self._num_applied.fill_(num_applied)

    def evaluation_values(self) -> Tensor:
        """The average."""
        return self._average


def _by_parameter(weights: MasterWeights, vectors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Views of the vectors [P], as VECTOR.PARAMETER."""
    return {f"{key}.{name}": part for key, flat in vectors.items() for name, part in weights.named(flat).items()}
