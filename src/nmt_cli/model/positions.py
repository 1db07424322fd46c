"""Positions: the paper's sinusoids (section 3.5), tensor2tensor's layout of them, a learned table, or rotation."""

from __future__ import annotations

import math
from typing import assert_never

import torch
from torch import Tensor, nn

from nmt_cli.recipe.schema import ModelConfig


class Positions(nn.Module):
    """A table [max_positions, D] of what is added to a token at each position; learned rows are parameters.

    The table has no rows where attention turns queries and keys instead.
    """

    table: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        match config.positions:
            case "sinusoidal":
                self.register_buffer("table", sinusoids(config.max_positions, config.d_model), persistent=False)
            case "sinusoidal-halves":
                self.register_buffer(
                    "table", sinusoids_in_halves(config.max_positions, config.d_model), persistent=False
                )
            case "learned":
                self.table = nn.Parameter(torch.empty(config.max_positions, config.d_model))
                nn.init.normal_(self.table, std=config.d_model**-0.5)
            case "rotary":
                self.register_buffer("table", torch.zeros(0, config.d_model), persistent=False)
            case other:
                assert_never(other)


class Rotation(nn.Module):
    """Turns components i and i + K/2 of each head by an angle of position * 10000^(-2i / K).

    Su et al. 2021, arXiv:2104.09864, equation 15: the product of a query and a key depends on their distance alone.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, *, num_positions: int, width: int) -> None:
        super().__init__()
        position = torch.arange(num_positions, dtype=torch.float64)[:, None]
        angles = position * 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [N, H, K] of tokens at `positions` [N], turned."""
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(x.dtype)


def sinusoids(num_positions: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos(same), [positions, d_model]; section 3.5."""
    position = torch.arange(num_positions, dtype=torch.float64)[:, None]
    angles = position * 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


def sinusoids_in_halves(num_positions: int, d_model: int) -> Tensor:
    """tensor2tensor's layout: all sines, then all cosines, exponent i / (d_model / 2 - 1), [positions, d_model]."""
    half = d_model // 2
    position = torch.arange(num_positions, dtype=torch.float64)[:, None]
    exponent = torch.arange(half, dtype=torch.float64) / max(half - 1, 1)
    angles = position * torch.exp(-math.log(10000.0) * exponent)
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()
