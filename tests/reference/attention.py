"""Scaled dot-product attention (equation 1) in float64 loops over sentences and queries."""

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
    q_lengths: list[int],
    k_lengths: list[int],
    sees: Sees,
    factors: Tensor | None = None,
) -> Tensor:
    """q [N, H, K], k [M, H, K], v [M, H, V] to [N, H, V], the sentences one after the other.

    `factors` [N, H, S] multiply the weight of each key of the sentence, after the softmax.
    """
    factors = torch.ones(*q.shape[:2], len(k)) if factors is None else factors
    # Each sentence by itself: the gradient of an index is as long as what is indexed.
    sides = (*((x, q_lengths) for x in (q, factors)), *((x, k_lengths) for x in (k, v)))
    rows = []
    for queries, of_queries, keys, values in zip(*(x.double().split(parts) for x, parts in sides), strict=True):
        for i, (query, factor) in enumerate(zip(queries, of_queries, strict=True)):
            seen = [j for j in range(len(keys)) if sees(i, j)]
            rows.append(_one_query(query, keys[seen], values[seen], factor[:, seen]))
    return torch.stack(rows)


def _one_query(q: Tensor, k: Tensor, v: Tensor, factors: Tensor) -> Tensor:
    """q [H, K], k [J, H, K], v [J, H, V] and factors [H, J] to [H, V]."""
    scores = (k * q).sum(2) / q.size(1) ** 0.5
    weights = (scores - scores.amax(0)).exp()
    mixed: Tensor = ((weights * factors.T)[:, :, None] * v).sum(0) / weights.sum(0)[:, None]
    return mixed
