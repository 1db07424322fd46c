"""Queries, keys and values as linear layers give them: side by side in one matrix, in two, or in three.

A module of its own, because attention's choice of kernel and the kernels need it, and Triton is not always there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class Projections(NamedTuple):
    """Queries, keys and values of H heads: one matrix [N, H (2 K + V)], or [N, H K] and [M, H (K + V)], or all three.

    Attention writes the gradient of each matrix as a whole, so no gradients need to be joined.
    """

    matrices: Sequence[Tensor]
    heads: int
    d_k: int
    d_v: int

    def split(self) -> list[Tensor]:
        """Queries [N, H K], keys [M, H K] and values [M, H V], views of the matrices."""
        widths = [self.heads * self.d_k, self.heads * self.d_k, self.heads * self.d_v]
        *first, last = self.matrices
        return [*first, *last.split(widths[len(first) :], dim=-1)]

    def by_head(self) -> list[Tensor]:
        """Queries [N, H, K], keys [M, H, K] and values [M, H, V]."""
        return [x.unflatten(-1, (self.heads, -1)) for x in self.split()]
