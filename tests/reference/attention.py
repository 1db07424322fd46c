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
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_bounds: list[int],
    k_bounds: list[int],
    sees: Sees,
    factors: Tensor | None = None,
) -> Tensor:
    """q [N, H, K], k [M, H, K], v [M, H, V] to [N, H, V]; sentence b is at bounds[b] : bounds[b + 1].

    `factors` [N, H, S] multiply the weight of each key of the sentence, after the softmax.
    """
    rows = []
    factors = torch.ones(*q.shape[:2], len(k)) if factors is None else factors
    for b in range(len(q_bounds) - 1):
        for i in range(q_bounds[b], q_bounds[b + 1]):
            keys = [j for j in range(k_bounds[b], k_bounds[b + 1]) if sees(i - q_bounds[b], j - k_bounds[b])]
            seen = [j - k_bounds[b] for j in keys]
            heads = [_one_query(q[i, h], k[keys, h], v[keys, h], factors[i, h, seen]) for h in range(q.size(1))]
            rows.append(torch.stack(heads))
    return torch.stack(rows)


def _one_query(q: Tensor, k: Tensor, v: Tensor, factors: Tensor) -> Tensor:
    """q [K], k [J, K], v [J, V] and factors [J] to [V]."""
    scores = (k.double() * q.double()).sum(1) / q.numel() ** 0.5
    weights = (scores - scores.max()).exp()
    mixed: Tensor = ((weights * factors)[:, None] * v.double()).sum(0) / weights.sum()
    return mixed
