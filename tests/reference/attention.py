"""Scaled dot-product attention (equation 1) in float64 loops over sentences, heads and queries."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Sees = Callable[[int, int], bool]


def sees_all(query: int, key: int) -> bool:
    return True


def sees_the_past(query: int, key: int) -> bool:
    return key <= query


def sees_neighbours(window: int) -> Sees:
    """At most window // 2 places away: for r = 3, the one before, itself, the one after."""
    return lambda query, key: abs(query - key) <= window // 2


def packed_attention(
    q: Tensor, k: Tensor, v: Tensor, *, q_bounds: list[int], k_bounds: list[int], sees: Sees
) -> Tensor:
    """q [N, H, K], k [M, H, K], v [M, H, V] to [N, H, V]; sentence b is at bounds[b] : bounds[b + 1]."""
    rows = []
    for b in range(len(q_bounds) - 1):
        for i in range(q_bounds[b], q_bounds[b + 1]):
            keys = [j for j in range(k_bounds[b], k_bounds[b + 1]) if sees(i - q_bounds[b], j - k_bounds[b])]
            rows.append(torch.stack([_one_query(q[i, h], k[keys, h], v[keys, h]) for h in range(q.size(1))]))
    return torch.stack(rows)


def _one_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [K], k [J, K], v [J, V] to [V]."""
    scores = (k.double() * q.double()).sum(1) / q.numel() ** 0.5
    weights = (scores - scores.max()).exp()
    mixed: Tensor = (weights[:, None] * v.double()).sum(0) / weights.sum()
    return mixed
