"""Adam and AdamW over the flat master weights."""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor, nn

from nmt_cli.recipe.schema import AdamConfig, AdamWConfig
from nmt_cli.training.weights import MasterWeights

MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """torch's fused Adam on two views of the master weights: the matrices, which may decay, and the rest."""

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

    def step(self, *, learning_rate: float) -> None:
        """One update with the gradients at hand."""
        for group in self._torch.param_groups:
            group["lr"] = learning_rate
        self._torch.step()

    def moments(self) -> dict[str, Tensor]:
        """The running moments as vectors [P] by name; zeros before the first update."""
        zeros = torch.zeros_like(self._weights.values)
        if not self._torch.state:
            return dict.fromkeys(MOMENTS, zeros)
        return {name: torch.cat([self._torch.state[view][name] for view in self._views]) for name in MOMENTS}

    def load(self, moments: dict[str, Tensor], *, updates: int) -> None:
        """Continue from moments [P] after so many updates."""
        start = 0
        for view in self._views:
            part = slice(start, start + view.numel())
            state = {name: moments[name][part].clone() for name in MOMENTS}
            self._torch.state[view] = {"step": torch.tensor(float(updates), device=view.device), **state}
            start += view.numel()
