"""Sentences of several lengths that attend to themselves or to others, all, the past, or their neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt_cli.model.attention import attend
from nmt_cli.model.dropout import Dropout
from nmt_cli.model.packing import Packed, Projections, pack
from tests.reference.attention import Sees, packed_attention, sees_all, sees_neighbours, sees_the_past

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """Lengths of the sentences on both sides, what `attend` is told, and what that means."""

    q_lengths: list[int]
    k_lengths: list[int]
    is_causal: bool
    window: int | None
    sees: Sees

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, device: torch.device = CPU, dropout: float = 0.0) -> Tensor:
        queries, keys = (
            pack([[0] * length for length in lengths], device=device) for lengths in (self.q_lengths, self.k_lengths)
        )
        is_self = self.q_lengths == self.k_lengths
        projections = joined(q, k, v, matrices=1 if is_self else 2)
        return attend(
            projections,
            queries=queries,
            keys=keys,
            is_causal=self.is_causal,
            window=self.window,
            dropout=Dropout(dropout),
        )

    def by_loops(self, q: Tensor, k: Tensor, v: Tensor, *, factors: Tensor | None = None) -> Tensor:
        return packed_attention(
            q, k, v, q_lengths=self.q_lengths, k_lengths=self.k_lengths, sees=self.sees, factors=factors
        )

    def inputs(self, *, d_k: int, d_v: int) -> list[Tensor]:
        """q, k, v in float64 with three heads."""
        generator = torch.Generator().manual_seed(1)
        shapes = [(sum(self.q_lengths), d_k), (sum(self.k_lengths), d_k), (sum(self.k_lengths), d_v)]
        return [
            torch.randn(tokens, 3, width, dtype=torch.float64, generator=generator).requires_grad_()
            for tokens, width in shapes
        ]


CASES = {
    "self": Case([4, 1, 6], [4, 1, 6], False, None, sees_all),
    "self, equal lengths": Case([4, 4, 4], [4, 4, 4], False, None, sees_all),
    "cross": Case([4, 1, 6], [3, 5, 2], False, None, sees_all),
    "causal": Case([4, 1, 6], [4, 1, 6], True, None, sees_the_past),
    "window 1": Case([4, 1, 6], [4, 1, 6], False, 1, sees_neighbours(1)),
    "window 3": Case([4, 1, 6], [4, 1, 6], False, 3, sees_neighbours(3)),
    "window 4": Case([4, 1, 6], [4, 1, 6], False, 4, sees_neighbours(4)),
}


def assert_dropout(case: Case, inputs: Sequence[Tensor], *, device: torch.device = CPU, tolerance: float) -> None:
    """The weights of the softmax have dropout of 0.4: the share, the scale, the values, the gradients, the seed.

    Values of which each names its key show the factors of the weights, by which loops then multiply.
    """

    def attended(v: Tensor, *, dropout: float = 0.4, seed: int = 3) -> Tensor:
        torch.manual_seed(seed)
        return case.attend(*(x.to(device) for x in (q, k, v)), device=device, dropout=dropout)

    q, k, v = inputs
    places = torch.cat([torch.arange(length) for length in case.k_lengths])
    naming = F.one_hot(places).to(q.dtype)[:, None].expand(-1, q.size(1), -1)
    weights, dropped, others = (
        x.detach().double().cpu() for x in (attended(naming, dropout=0.0), attended(naming), attended(naming, seed=4))
    )
    assert torch.equal(weights, attended(naming, dropout=0.0, seed=4).detach().double().cpu())
    seen = weights > 0
    is_kept = dropped > 0
    torch.testing.assert_close(dropped, weights * is_kept / 0.6, rtol=tolerance, atol=tolerance)
    # Five standard deviations: one seed in two million.
    for of_seed in (is_kept, others > 0):
        assert abs(of_seed.sum() - 0.6 * seen.sum()) < 5 * (0.24 * seen.sum()) ** 0.5
    agreeing = (is_kept == (others > 0))[seen].double().mean()
    assert abs(agreeing - (0.6**2 + 0.4**2)) < 5 * (0.25 / seen.sum()) ** 0.5
    expected = case.by_loops(q, k, v, factors=is_kept.double() / 0.6)
    assert_attention(attended(v), expected, inputs, tolerance=tolerance)


def layout_of(lengths: list[int], *, num_empty: int = 0) -> Packed:
    """Sentences of these lengths, followed by empty slots."""
    return with_empty_slots(pack([[0] * length for length in lengths], device=CPU), num_empty)


def with_empty_slots(packed: Packed, count: int) -> Packed:
    ids, positions = (F.pad(part, (0, count)) for part in (packed.ids, packed.positions))
    return replace(packed, ids=ids, positions=positions, num_empty=count)


def joined(q: Tensor, k: Tensor, v: Tensor, *, matrices: int) -> Projections:
    """q [N, H, K], k [M, H, K] and v [M, H, V] in one matrix, two or three, as layers give them."""
    groups = {1: [[q, k, v]], 2: [[q], [k, v]], 3: [[q], [k], [v]]}[matrices]
    parts = [torch.cat([x.flatten(1) for x in group], dim=1) for group in groups]
    return Projections(parts, heads=q.size(1), d_k=q.size(2), d_v=v.size(2))


def gradients(out: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """The gradients of a sum with weights that are all different."""
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64, device=out.device).view(out.shape)
    return torch.autograd.grad((out.double() * weights).sum(), inputs)


def assert_attention(
    out: Tensor, expected: Tensor, inputs: Sequence[Tensor], *, tolerance: float = 1e-12, of_gradients: float = 0.0
) -> None:
    """Equal values, and equal gradients of the inputs. By default in float64, whose sums here have up to 64 terms."""
    torch.testing.assert_close(out.double().cpu(), expected, rtol=tolerance, atol=tolerance)
    tolerance = of_gradients or tolerance
    for ours, theirs in zip(gradients(out, *inputs), gradients(expected, *inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
