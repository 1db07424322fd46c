"""Adam and AdamW over the flat master weights."""

from __future__ import annotations

from typing import assert_never

import torch
from torch import nn

from nmt_cli.recipe.schema import AdamConfig, AdamWConfig
from nmt_cli.training.weights import MasterWeights

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """torch's fused Adam on two views of the master weights: the matrices, which may decay, and the rest.

    `moments` are its running moments as vectors [P] by name.
    """

    def __init__(self, weights: MasterWeights, config: AdamConfig | AdamWConfig) -> None:
        self._weights = weights
        parts = [slice(0, weights.num_in_matrices), slice(weights.num_in_matrices, None)]
        self._views = [nn.Parameter(weights.values[part]) for part in parts]
        for view, part in zip(self._views, parts, strict=True):
            view.grad = weights.gradients[part]
        betas, epsilon = (config.beta1, config.beta2), config.epsilon
        self._torch: torch.optim.Optimizer
        match config:
            case AdamConfig():
                self._torch = torch.optim.Adam(self._views, betas=betas, eps=epsilon, fused=True)
            case AdamWConfig():
                groups = [
                    {"params": [self._views[0]], "weight_decay": config.weight_decay},
                    {"params": [self._views[1]], "weight_decay": 0.0},
                ]
                self._torch = torch.optim.AdamW(groups, betas=betas, eps=epsilon, fused=True)
            case other:
                assert_never(other)
        # Set here, and not at the first update: the memory is there, or missed, from the start.
        self.moments = {name: torch.zeros_like(weights.values) for name in _MOMENTS}
        for view, part in zip(self._views, parts, strict=True):
            step = torch.zeros((), device=weights.values.device)
            self._torch.state[view] = {"step": step} | {name: flat[part] for name, flat in self.moments.items()}

    def step(self, *, learning_rate: float) -> None:
        """One update with the gradients at hand."""
        for group in self._torch.param_groups:
            group["lr"] = learning_rate
        self._torch.step()

    def continue_after(self, updates: int) -> None:
        """Go on with the moments at hand, which are those after so many updates."""
        for state in self._torch.state.values():
            state["step"].fill_(updates)
