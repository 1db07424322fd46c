"""Kernels between the products of a layer, against torch's operators in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt_cli.model.dropout import Dropout
from tests.interpreted import DEVICE, MARKS  # isort: split

from nmt_cli.model.kernels.residual_norm import relu_backward, residual_norm

pytestmark = MARKS

EPSILON = 1e-6


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def expected(inputs: list[Tensor | None], upstream: Tensor, keep_mask: Tensor, kept: float) -> list[Tensor]:
    """LayerNorm(x + Dropout(out + bias)) and the gradients of all that is given, in float64."""
    x, out, bias, weight, shift = (None if each is None else each.double().requires_grad_() for each in inputs)
    assert x is not None
    assert out is not None
    dropped = (out if bias is None else out + bias) * keep_mask / kept
    y = F.layer_norm(x + dropped, x.shape[1:], weight, shift, EPSILON)
    given = [each for each in (x, out, bias, weight, shift) if each is not None]
    return [y, *torch.autograd.grad(y, given, upstream.double())]


def measured(inputs: list[Tensor | None], upstream: Tensor, seed: Tensor | None, dropout: float) -> list[Tensor]:
    x, out, bias, weight, shift = (None if each is None else each.clone().requires_grad_() for each in inputs)
    y, _ = residual_norm(x, out, bias, weight, shift, seed, dropout, EPSILON)
    given = [each for each in (x, out, bias, weight, shift) if each is not None]
    return [y.detach(), *torch.autograd.grad(y, given, upstream)]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (37, 48), (130, 512), (5, 1024)])
def test_residual_norm_is_that_of_section_3_1(rows: int, width: int, has_bias: bool, dropout: float) -> None:
    inputs = [random(rows, width, seed=1), random(rows, width, seed=2), random(width, seed=3) if has_bias else None]
    inputs += [random(width, seed=4), random(width, seed=5)]
    seed = torch.tensor([7, -8], dtype=torch.int32, device=DEVICE) if dropout else None
    mask = torch.ones(rows, width, device=DEVICE)
    if seed is not None:
        module = Dropout(dropout).train()
        module.seed = seed
        mask = module(mask) != 0
        assert 0 < int(mask.sum()) < mask.numel()
    upstream = random(rows, width, seed=6)
    ours = measured(inputs, upstream, seed, dropout)
    theirs = expected(inputs, upstream, mask, 1 - dropout)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        # float32 rounds at 6e-8; columns are sums of up to 130 terms near 1.
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=2e-5)


def test_residual_norm_in_bf16_is_rounded_at_its_end_only() -> None:
    inputs: list[Tensor | None] = [random(33, 64, seed=seed, dtype=torch.bfloat16) for seed in (1, 2)]
    inputs += [random(64, seed=seed, dtype=torch.bfloat16) for seed in (3, 4, 5)]
    upstream = random(33, 64, seed=6, dtype=torch.bfloat16)
    theirs = expected(inputs, upstream, torch.ones(33, 64, device=DEVICE), 1.0)
    for mine, other in zip(measured(inputs, upstream, None, 0.0), theirs, strict=True):
        # bf16 keeps 8 bits, and the interpreter cuts the others off: one unit of the last is 2^-7 of the value at most.
        torch.testing.assert_close(mine.double(), other, rtol=2**-7, atol=1e-3)


def test_two_runs_give_the_same_bits() -> None:
    inputs: list[Tensor | None] = [random(300, 64, seed=seed) for seed in (1, 2)]
    inputs += [random(64, seed=seed) for seed in (3, 4, 5)]
    first, second = (measured(inputs, random(300, 64, seed=6), None, 0.0) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(("rows", "width"), [(1, 8), (70, 300), (200, 512)])
def test_relu_passes_gradients_where_it_passed_values_and_sums_them(rows: int, width: int) -> None:
    hidden, upstream = random(rows, width, seed=1).relu(), random(rows, width, seed=2)
    gradient, sums = relu_backward(upstream, hidden)
    wanted = upstream * (hidden > 0)
    assert torch.equal(gradient, wanted)
    torch.testing.assert_close(sums.double(), wanted.double().sum(0), rtol=1e-5, atol=1e-5)
