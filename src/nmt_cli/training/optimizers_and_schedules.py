"""Optimizers over the flat master weights: Adam, AdamW, Muon, schedule-free AdamW; and their learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, assert_never

import torch
from schedulefree import AdamWScheduleFree
from torch import Tensor, nn

from nmt_cli.recipe.schema import ModelConfig, Recipe
from nmt_cli.recipe.training import (
    AdamConfig,
    AdamWConfig,
    ConstantConfig,
    CosineConfig,
    InverseSqrtConfig,
    MuonConfig,
    NoamConfig,
    ScheduleConfig,
    ScheduleFreeConfig,
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
    """Updates master weights [P] by their gradients, with one or two optimizers of torch on views of the weights.

    `state` has all tensors that an update needs from earlier updates, except the weights, by name. Their memory is
    allocated at once, so a lack of memory shows early. If `can_skip`, `step` takes a `skip`: the device alone decides.
    """

    can_skip = False

    def __init__(self, state: dict[str, Tensor], *optimizers: torch.optim.Optimizer) -> None:
        self.state, self._optimizers = state, optimizers

    def step(self, *, learning_rate: float, skip: Tensor | None) -> None:
        """Take one update with the current gradients; none if `skip`, a float32 scalar on their device, is 1."""
        assert skip is None or self.can_skip
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.step()

    def load(self, state: Mapping[str, Tensor], *, num_applied: int) -> None:
        """Continue after `num_applied` applied updates; skipped ones do not count. KeyError if a name is missing."""
        for name, tensor in self.state.items():
            tensor.copy_(state[name])
        for optimizer in self._optimizers:
            for parameter_state in optimizer.state.values():
                if "step" in parameter_state:
                    parameter_state["step"].fill_(num_applied)

    def evaluation_values(self) -> Tensor | None:
        """The weights [P] to validate and save; None for the trained weights."""
        return None


def build_optimizer(weights: MasterWeights, recipe: Recipe) -> Optimizer:
    """The optimizer of a recipe, with a moving average of the weights if the recipe asks for one."""
    optimizer: Optimizer
    match recipe.training.optimizer:
        case AdamConfig() | AdamWConfig() as config:
            optimizer = Adam(weights, config)
        case MuonConfig() as config:
            optimizer = Muon(weights, config, model=recipe.model)
        case ScheduleFreeConfig() as config:
            optimizer = ScheduleFree(weights, config)
        case other:
            assert_never(other)
    decay = recipe.training.ema
    return optimizer if decay is None else MovingAverage(weights, optimizer, decay=decay)


class Adam(Optimizer):
    """torch's fused Adam or AdamW on two views of the master weights: the matrices, which may decay, and the rest."""

    can_skip = True

    def __init__(self, weights: MasterWeights, config: AdamConfig | AdamWConfig) -> None:
        views = _flat_views(weights)
        moments = {name: torch.zeros_like(weights.values) for name in _MOMENTS}
        betas, epsilon = (config.beta1, config.beta2), config.epsilon
        if isinstance(config, AdamWConfig):
            groups = _parameter_groups(views, config.weight_decay)
            self._adam: torch.optim.Optimizer = torch.optim.AdamW(groups, betas=betas, eps=epsilon, fused=True)
        else:
            self._adam = torch.optim.Adam([view for _, view in views], betas=betas, eps=epsilon, fused=True)
        for part, view in views:
            self._adam.state[view] = _adam_state(view, {name: flat[part] for name, flat in moments.items()})
        super().__init__(_by_parameter(weights, moments), self._adam)

    def step(self, *, learning_rate: float, skip: Tensor | None) -> None:
        """Take one update; a `skip` of 1 changes neither values, moments nor torch's count of steps."""
        # Read by torch's fused kernels, for its GradScaler.
        self._adam.found_inf = skip  # type: ignore[attr-defined]  # an attribute that torch looks for
        super().step(learning_rate=learning_rate, skip=skip)


class Muon(Optimizer):
    """torch's Muon on the matrices between embeddings and output, AdamW on all else (Jordan et al. 2024).

    Queries, keys and values lie in one tensor and are orthogonalised each by itself. Muon's updates are scaled to the
    size of Adam's (Liu et al. 2025, arXiv:2502.16982, section 2.2), so that one learning rate serves both.
    """

    def __init__(self, weights: MasterWeights, config: MuonConfig, *, model: ModelConfig) -> None:
        matrices, others = _matrices_and_others(weights, model)
        muon = torch.optim.Muon(
            matrices.values(),
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        adam = torch.optim.AdamW(
            others.values(), betas=(config.beta1, config.beta2), eps=config.epsilon, weight_decay=0.0, fused=True
        )
        state: dict[str, Tensor] = {}
        for name, matrix in matrices.items():
            state[f"momentum.{name}"] = torch.zeros_like(matrix)
            muon.state[matrix] = {"momentum_buffer": state[f"momentum.{name}"]}
        for name, other in others.items():
            moments = {moment: torch.zeros_like(other) for moment in _MOMENTS}
            state |= {f"{moment}.{name}": tensor for moment, tensor in moments.items()}
            adam.state[other] = _adam_state(other, moments)
        super().__init__(state, muon, adam)


class ScheduleFree(Optimizer):
    """Schedule-free AdamW (Defazio et al. 2024, arXiv:2405.15682), by its authors' package.

    It trains y, which lies between the fast weights z and their weighted mean x. The mean x is validated and saved.
    """

    def __init__(self, weights: MasterWeights, config: ScheduleFreeConfig) -> None:
        self._weights, self._beta1 = weights, config.beta1
        views = _flat_views(weights)
        self._z = weights.values.clone()
        moments = {"z": self._z, "exp_avg_sq": torch.zeros_like(weights.values)}
        # The package computes on lists of tensors: with two long views it needs few operations.
        optimizer: Any = AdamWScheduleFree(
            _parameter_groups(views, config.weight_decay), betas=(config.beta1, config.beta2), eps=config.epsilon
        )
        for part, view in views:
            optimizer.state[view] = {name: flat[part] for name, flat in moments.items()}
        optimizer.train()
        # The package's own sums: of the weights in the mean, and the highest rate so far.
        self._sums = torch.tensor([0.0, -1.0], dtype=torch.float64)
        super().__init__({**_by_parameter(weights, moments), "sums": self._sums}, optimizer)

    def step(self, *, learning_rate: float, skip: Tensor | None) -> None:
        """Take one update with the current gradients, which are overwritten."""
        super().step(learning_rate=learning_rate, skip=skip)
        group = self._optimizers[0].param_groups[0]
        self._sums.copy_(torch.tensor([group["weight_sum"], group["lr_max"]], dtype=torch.float64))

    def load(self, state: Mapping[str, Tensor], *, num_applied: int) -> None:
        """Continue after `num_applied` applied updates."""
        super().load(state, num_applied=num_applied)
        weight_sum, lr_max = self._sums.tolist()
        for group in self._optimizers[0].param_groups:
            group.update(k=num_applied, weight_sum=weight_sum, lr_max=lr_max)

    def evaluation_values(self) -> Tensor:
        """The mean x, from y = (1 - beta1) z + beta1 x."""
        return self._weights.values.lerp(self._z, 1 - 1 / self._beta1)


class MovingAverage(Optimizer):
    """Another optimizer, and an exponential moving average of the weights, which is validated and saved.

    The decay begins low, at 2/11, so that the average is not held back by the first weights.
    """

    def __init__(self, weights: MasterWeights, optimizer: Optimizer, *, decay: float) -> None:
        self._weights, self._optimizer, self._decay = weights, optimizer, decay
        self._average, self._updates = weights.values.clone(), 0
        super().__init__(optimizer.state | _by_parameter(weights, {"average": self._average}))

    def step(self, *, learning_rate: float, skip: Tensor | None) -> None:
        """Take one update with the current gradients."""
        self._optimizer.step(learning_rate=learning_rate, skip=skip)
        self._updates += 1
        decay = min(self._decay, (1 + self._updates) / (10 + self._updates))
        self._average.lerp_(self._weights.values, 1 - decay)

    def load(self, state: Mapping[str, Tensor], *, num_applied: int) -> None:
        """Continue after `num_applied` applied updates."""
        super().load(state, num_applied=num_applied)
        self._optimizer.load(state, num_applied=num_applied)
        self._updates = num_applied

    def evaluation_values(self) -> Tensor:
        """The average."""
        return self._average


def _matrices_and_others(
    weights: MasterWeights, model: ModelConfig
) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Views of the matrices in the layers, each by itself, and of all other parameters, by name."""
    matrices: dict[str, nn.Parameter] = {}
    others: dict[str, nn.Parameter] = {}
    gradients = weights.named(weights.gradients)
    for name, value in weights.named(weights.values).items():
        if value.ndim < 2 or not name.startswith(("encoder.", "decoder.")):
            others[name] = _parameter(value, gradients[name])
            continue
        rows = _rows_of_each_matrix(name, value, model)
        parts = zip(value.split(rows), gradients[name].split(rows), strict=True)
        for index, (part, gradient) in enumerate(parts):
            matrices[f"{name}.{index}"] = _parameter(part, gradient)
    return matrices, others


def _flat_views(weights: MasterWeights) -> list[tuple[slice, nn.Parameter]]:
    """Views of all matrices and of the rest of the master weights; each has its slice of the vector, and gradients."""
    parts = [slice(0, weights.num_in_matrices), slice(weights.num_in_matrices, None)]
    return [(part, _parameter(weights.values[part], weights.gradients[part])) for part in parts]


def _parameter_groups(views: list[tuple[slice, nn.Parameter]], weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups of which the matrices decay and the rest does not."""
    (_, matrices), (_, rest) = views
    return [{"params": [matrices], "weight_decay": weight_decay}, {"params": [rest], "weight_decay": 0.0}]


def _parameter(values: Tensor, gradients: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(values)
    parameter.grad = gradients
    return parameter


def _rows_of_each_matrix(name: str, matrix: Tensor, model: ModelConfig) -> list[int]:
    """The rows of each matrix that a tensor holds."""
    keys, values = model.heads * model.d_k, model.heads * model.d_v
    match name.split(".")[-2]:
        case "qkv":
            return [keys, keys, values]
        case "kv":
            return [keys, values]
        case "inner" if model.activation == "swiglu":
            return [model.d_ff, model.d_ff]
        case "q" | "output" | "inner" | "outer":
            return [len(matrix)]
        case other:
            raise ValueError(f"Muon does not know the matrix {other}")


def _adam_state(view: Tensor, moments: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"step": torch.zeros((), device=view.device)} | moments


def _by_parameter(weights: MasterWeights, vectors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Views of the vectors [P], as VECTOR.PARAMETER."""
    return {f"{key}.{name}": part for key, flat in vectors.items() for name, part in weights.named(flat).items()}
