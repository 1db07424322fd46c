"""Optimizers over the flat master weights: Adam, AdamW, Muon, schedule-free AdamW."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, assert_never

import torch
from schedulefree import AdamWScheduleFree
from torch import Tensor, nn

from nmt_cli.recipe.schema import AdamConfig, AdamWConfig, ModelConfig, MuonConfig, Recipe, ScheduleFreeConfig
from nmt_cli.training.weights import MasterWeights

OptimizerConfig = AdamConfig | AdamWConfig | MuonConfig | ScheduleFreeConfig


class Optimizer(Protocol):
    """Updates master weights [P] by their gradients. Its memory is allocated at once, so a lack of memory shows early.

    `state` has all that it carries from update to update, by name; they are views, not copies.
    """

    can_skip: bool
    """Whether `step` takes a `skip`, so that the device alone decides on a step."""

    @property
    def state(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint needs besides the weights."""

    def step(self, *, learning_rate: float, skip: Tensor | None) -> None:
        """Take one update with the current gradients; none if `skip`, a float32 scalar on their device, is 1."""

    def load(self, state: Mapping[str, Tensor], *, updates: int) -> None:
        """Continue from the state after `updates` updates. KeyError if a name is missing."""

    def evaluation_values(self) -> Tensor | None:
        """The weights [P] to validate and save, if they are not the trained weights."""


def build_optimizer(weights: MasterWeights, recipe: Recipe) -> Optimizer:
    """The optimizer of a recipe, with a moving average of the weights if the recipe asks for one."""
    optimizer = _build(weights, recipe.training.optimizer, model=recipe.model)
    decay = recipe.training.ema
    return optimizer if decay is None else MovingAverage(weights, optimizer, decay=decay)


def _build(weights: MasterWeights, config: OptimizerConfig, *, model: ModelConfig) -> Optimizer:
    match config:
        case AdamConfig() | AdamWConfig():
            return Adam(weights, config)
        case MuonConfig():
            return Muon(weights, config, model=model)
        case ScheduleFreeConfig():
            return ScheduleFree(weights, config)
        case other:
            assert_never(other)


class Adam:
    """torch's fused Adam or AdamW on two views of the master weights: the matrices, which may decay, and the rest."""

    can_skip = True

    def __init__(self, weights: MasterWeights, config: AdamConfig | AdamWConfig) -> None:
        self._weights = weights
        views = _two_views(weights)
        # Made here, and not at the first update: the memory is there, or missed, from the start.
        self._moments = {name: torch.zeros_like(weights.values) for name in ("exp_avg", "exp_avg_sq")}
        betas, epsilon = (config.beta1, config.beta2), config.epsilon
        self._torch: torch.optim.Optimizer
        match config:
            case AdamConfig():
                self._torch = torch.optim.Adam([view for _, view in views], betas=betas, eps=epsilon, fused=True)
            case AdamWConfig():
                groups = _decaying(views, config.weight_decay)
                self._torch = torch.optim.AdamW(groups, betas=betas, eps=epsilon, fused=True)
            case other:
                assert_never(other)
        for part, view in views:
            self._torch.state[view] = _adam_state(view, {name: flat[part] for name, flat in self._moments.items()})

    @property
    def state(self) -> dict[str, Tensor]:
        """The running means of gradients and of their squares, by parameter."""
        return _named(self._weights, self._moments)

    def step(self, *, learning_rate: float, skip: Tensor | None) -> None:
        """Take one update; a `skip` of 1 changes neither values, moments nor torch's count of steps."""
        # Read by torch's fused kernels, for its GradScaler.
        self._torch.found_inf = skip  # type: ignore[attr-defined]  # an attribute that torch looks for
        _step(self._torch, learning_rate)

    def load(self, state: Mapping[str, Tensor], *, updates: int) -> None:
        """Continue from the state after `updates` updates."""
        _copy(state, self.state)
        _count(self._torch, updates)

    def evaluation_values(self) -> None:
        """None: the trained weights are evaluated."""
        return


class Muon:
    """torch's Muon on the matrices between embeddings and output, AdamW on all else (Jordan et al. 2024).

    Queries, keys and values lie in one tensor and are orthogonalised each by itself. Muon's updates are scaled to the
    size of Adam's (Liu et al. 2025, arXiv:2502.16982, section 2.2), so that one learning rate serves both.
    """

    can_skip = False

    def __init__(self, weights: MasterWeights, config: MuonConfig, *, model: ModelConfig) -> None:
        values, gradients = weights.named(weights.values), weights.named(weights.gradients)
        in_layers = [name for name in weights.shapes if name.startswith(("encoder.", "decoder."))]
        hidden = {name for name in in_layers if len(weights.shapes[name]) == 2}
        self._matrices: dict[str, nn.Parameter] = {}
        for name in (name for name in values if name in hidden):
            parts = [tensor.split(_rows(name, tensor, model)) for tensor in (values[name], gradients[name])]
            for number, (value, gradient) in enumerate(zip(*parts, strict=True)):
                self._matrices[f"{name}.{number}"] = _parameter(value, gradient)
        self._others = {name: _parameter(values[name], gradients[name]) for name in values if name not in hidden}
        self._muon = torch.optim.Muon(
            self._matrices.values(),
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        self._adam = torch.optim.AdamW(
            self._others.values(), betas=(config.beta1, config.beta2), eps=config.epsilon, weight_decay=0.0, fused=True
        )
        for matrix in self._matrices.values():
            self._muon.state[matrix] = {"momentum_buffer": torch.zeros_like(matrix)}
        for other in self._others.values():
            self._adam.state[other] = _adam_state(
                other, {name: torch.zeros_like(other) for name in ("exp_avg", "exp_avg_sq")}
            )

    @property
    def state(self) -> dict[str, Tensor]:
        """The momentum of the matrices and the two running means of all else, by parameter."""
        momentum = {
            f"momentum.{name}": self._muon.state[matrix]["momentum_buffer"] for name, matrix in self._matrices.items()
        }
        moments = {
            f"{moment}.{name}": self._adam.state[other][moment]
            for moment in ("exp_avg", "exp_avg_sq")
            for name, other in self._others.items()
        }
        return momentum | moments

    def step(self, *, learning_rate: float, skip: Tensor | None) -> None:
        """Take one update with the current gradients."""
        assert skip is None
        _step(self._muon, learning_rate)
        _step(self._adam, learning_rate)

    def load(self, state: Mapping[str, Tensor], *, updates: int) -> None:
        """Continue from the state after `updates` updates."""
        _copy(state, self.state)
        _count(self._adam, updates)

    def evaluation_values(self) -> None:
        """None: the trained weights are evaluated."""
        return


class ScheduleFree:
    """Schedule-free AdamW (Defazio et al. 2024, arXiv:2405.15682), by its authors' package.

    What is trained is y, between the fast weights z and their weighted mean x; x is what is validated and saved.
    """

    can_skip = False

    def __init__(self, weights: MasterWeights, config: ScheduleFreeConfig) -> None:
        self._weights, self._beta1 = weights, config.beta1
        views = _two_views(weights)
        self._moments = {"z": weights.values.clone(), "exp_avg_sq": torch.zeros_like(weights.values)}
        # The package's kernels work on lists of tensors; the two views are as many.
        self._torch: Any = AdamWScheduleFree(
            _decaying(views, config.weight_decay), betas=(config.beta1, config.beta2), eps=config.epsilon
        )
        for part, view in views:
            self._torch.state[view] = {name: flat[part] for name, flat in self._moments.items()}
        self._torch.train()
        # Of its own: the sum of the weights in the mean, and the highest rate so far.
        self._sums = torch.tensor([0.0, -1.0], dtype=torch.float64)

    @property
    def state(self) -> dict[str, Tensor]:
        """z and the running mean of squared gradients by parameter, and the two sums that weight the mean."""
        return {**_named(self._weights, self._moments), "sums": self._sums}

    def step(self, *, learning_rate: float, skip: Tensor | None) -> None:
        """Take one update with the current gradients, which are overwritten."""
        assert skip is None
        _step(self._torch, learning_rate)
        group = self._torch.param_groups[0]
        self._sums.copy_(torch.tensor([group["weight_sum"], group["lr_max"]], dtype=torch.float64))

    def load(self, state: Mapping[str, Tensor], *, updates: int) -> None:
        """Continue from the state after `updates` updates."""
        _copy(state, self.state)
        weight_sum, lr_max = self._sums.tolist()
        for group in self._torch.param_groups:
            group.update(k=updates, weight_sum=weight_sum, lr_max=lr_max)

    def evaluation_values(self) -> Tensor:
        """The mean x, from y = (1 - beta1) z + beta1 x."""
        return self._weights.values.lerp(self._moments["z"], 1 - 1 / self._beta1)


class MovingAverage:
    """Another optimizer, and an exponential moving average of the weights, which is validated and saved.

    The decay begins low, at 2/11, so that the average is not held back by the first weights.
    """

    can_skip = False

    def __init__(self, weights: MasterWeights, optimizer: Optimizer, *, decay: float) -> None:
        self._weights, self._optimizer, self._decay = weights, optimizer, decay
        self._average, self._updates = weights.values.clone(), 0

    @property
    def state(self) -> dict[str, Tensor]:
        """The state of the optimizer, and the average by parameter."""
        return self._optimizer.state | _named(self._weights, {"average": self._average})

    def step(self, *, learning_rate: float, skip: Tensor | None) -> None:
        """Take one update with the current gradients."""
        assert skip is None
        self._optimizer.step(learning_rate=learning_rate, skip=None)
        self._updates += 1
        decay = min(self._decay, (1 + self._updates) / (10 + self._updates))
        self._average.lerp_(self._weights.values, 1 - decay)

    def load(self, state: Mapping[str, Tensor], *, updates: int) -> None:
        """Continue from the state after `updates` updates."""
        self._optimizer.load(state, updates=updates)
        _copy(state, _named(self._weights, {"average": self._average}))
        self._updates = updates

    def evaluation_values(self) -> Tensor:
        """The average."""
        return self._average


def _two_views(weights: MasterWeights) -> list[tuple[slice, nn.Parameter]]:
    """The matrices and the rest of the master weights, each with its place in the vector and its gradients."""
    parts = [slice(0, weights.num_in_matrices), slice(weights.num_in_matrices, None)]
    return [(part, _parameter(weights.values[part], weights.gradients[part])) for part in parts]


def _decaying(views: list[tuple[slice, nn.Parameter]], weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups of which the matrices decay and the rest does not."""
    (_, matrices), (_, rest) = views
    return [{"params": [matrices], "weight_decay": weight_decay}, {"params": [rest], "weight_decay": 0.0}]


def _parameter(values: Tensor, gradients: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(values)
    parameter.grad = gradients
    return parameter


def _rows(name: str, matrix: Tensor, model: ModelConfig) -> list[int]:
    """The rows of each matrix that a tensor holds."""
    keys, values = model.heads * model.d_k, model.heads * model.d_v
    match name.split(".")[-2]:
        case "qkv":
            return [keys, keys, values]
        case "kv":
            return [keys, values]
        case "inner" if model.activation == "swiglu":
            return [model.d_ff, model.d_ff]
        case _:
            return [len(matrix)]


def _adam_state(view: Tensor, moments: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"step": torch.zeros((), device=view.device)} | moments


def _step(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()


def _count(optimizer: torch.optim.Optimizer, updates: int) -> None:
    for state in optimizer.state.values():
        state["step"].fill_(updates)


def _named(weights: MasterWeights, vectors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{key}.{name}": part for key, flat in vectors.items() for name, part in weights.named(flat).items()}


def _copy(source: Mapping[str, Tensor], target: dict[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])
