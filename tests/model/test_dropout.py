"""Dropout: shares, scale, gradient and seeding."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nmt_cli.model.dropout import Dropout

FAST = [torch.bfloat16, torch.float32]
# Of the scale, in the precision of the tensor.
ROUNDING = {torch.bfloat16: 2**-8, torch.float32: 2**-22, torch.float64: 1e-12}


def dropped(x: Tensor, probability: float, *, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    out: Tensor = Dropout(probability).train()(x)
    return out


def seeded(x: Tensor, probability: float, *seed: int) -> Tensor:
    """Dropout whose mask follows from a seed of two numbers, as in compiled training."""
    layer = Dropout(probability).train()
    layer.seed = torch.tensor(seed, dtype=torch.int32)
    out: Tensor = layer(x)
    return out


@pytest.mark.parametrize("dtype", [*FAST, torch.float64])
def test_nothing_is_dropped_in_evaluation_or_at_probability_zero(dtype: torch.dtype) -> None:
    x = torch.randn(7, 5, dtype=dtype)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)


@pytest.mark.parametrize("dtype", [*FAST, torch.float64])
@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5])
def test_the_share_dropped_is_binomial(probability: float, dtype: torch.dtype) -> None:
    count = 400_000
    zeros = int((dropped(torch.ones(count, dtype=dtype), probability) == 0).sum())
    # Five standard deviations: one seed in two million.
    assert abs(zeros - count * probability) < 5 * math.sqrt(count * probability * (1 - probability))


@pytest.mark.parametrize("dtype", FAST)
def test_elements_are_dropped_independently_of_their_neighbours(dtype: torch.dtype) -> None:
    # 64 random bits serve eight elements: each has its own share, and each pair of them the product of theirs.
    probability, rows = 0.3, 100_000
    zeros = dropped(torch.ones(rows, 8, dtype=dtype), probability).eq(0).double()
    deviation = math.sqrt(probability * (1 - probability) / rows)
    assert (zeros.mean(0) - probability).abs().max() < 5 * deviation
    correlation = torch.corrcoef(zeros.T) - torch.eye(8)
    assert correlation.abs().max() < 5 / math.sqrt(rows)


@pytest.mark.parametrize("dtype", [*FAST, torch.float64])
@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5])
def test_what_is_kept_is_scaled_so_that_the_mean_stays(probability: float, dtype: torch.dtype) -> None:
    x = torch.linspace(0.5, 1.5, 100_000).to(dtype)
    out = dropped(x, probability)
    kept = out != 0
    ratios = out[kept].double() / x[kept].double()
    torch.testing.assert_close(ratios, torch.full_like(ratios, 1 / (1 - probability)), rtol=ROUNDING[dtype], atol=0)
    # Five standard deviations of the mean of 100,000, and what the rounding of the scale may add.
    tolerance = 5 * math.sqrt(probability / (1 - probability) * 1.09 / 100_000) + ROUNDING[dtype]
    assert float(out.double().mean()) == pytest.approx(float(x.double().mean()), abs=tolerance)


@pytest.mark.parametrize("dtype", [*FAST, torch.float64])
def test_the_gradient_passes_where_the_element_did(dtype: torch.dtype) -> None:
    x = torch.rand(33, 7, dtype=dtype).add(0.5).requires_grad_()
    out = dropped(x, 0.4)
    upstream = torch.rand(33, 7, dtype=dtype).add(0.5)
    (gradient,) = torch.autograd.grad(out, x, upstream)
    assert torch.equal(gradient == 0, out == 0)
    kept = out != 0
    expected = upstream[kept].double() / (1 - 0.4)
    torch.testing.assert_close(gradient[kept].double(), expected, rtol=ROUNDING[dtype], atol=0)


@pytest.mark.parametrize("dtype", [*FAST, torch.float64])
def test_the_seed_of_torch_s_generator_decides_the_mask(dtype: torch.dtype) -> None:
    x = torch.ones(1000, dtype=dtype)
    first = dropped(x, 0.3, seed=1)
    assert torch.equal(first, dropped(x, 0.3, seed=1))
    assert not torch.equal(first, dropped(x, 0.3, seed=2))
    layer = Dropout(0.3).train()
    assert not torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("dtype", FAST)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 63])
def test_any_number_of_elements_is_served(count: int, dtype: torch.dtype) -> None:
    x = torch.ones(count, dtype=dtype)
    outs = torch.stack([dropped(x, 0.5, seed=seed) for seed in range(64)])
    assert outs.shape == (64, count)
    assert set(outs.unique().tolist()) <= {0.0, 2.0}
    # Of 64 fair draws none is all alike, but for one seed in 10^17.
    assert bool(((outs == 0).any(0) & (outs != 0).any(0)).all())


def test_a_dropped_element_is_zero_whatever_it_was_and_the_input_stays() -> None:
    x = torch.full((1000,), torch.inf)
    for out in (dropped(x, 0.5), seeded(x, 0.5, 1, 2)):
        assert set(out.tolist()) == {0.0, torch.inf}
    assert torch.equal(x, torch.full((1000,), torch.inf))


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5])
def test_of_a_seed_the_share_dropped_is_binomial_and_elements_are_independent(probability: float) -> None:
    count = 400_000
    zeros = seeded(torch.ones(count), probability, 12345, -6789).eq(0).double()
    assert abs(zeros.sum() - count * probability) < 5 * math.sqrt(count * probability * (1 - probability))
    # Neighbours, the same column of the next row of 512, and the same place under other seeds, drawn at random.
    seeds = torch.randint(-(2**31), 2**31, (10, 2), generator=torch.Generator().manual_seed(1)).tolist()
    others = [zeros.roll(1), zeros.roll(512)]
    others += [seeded(torch.ones(count), probability, *seed).eq(0).double() for seed in seeds]
    correlation = torch.corrcoef(torch.stack([zeros, *others]))[0, 1:]
    assert correlation.abs().max() < 5 / math.sqrt(count)


def test_a_seed_decides_the_mask_and_the_gradient_passes_where_the_element_did() -> None:
    x = torch.rand(33, 7).add(0.5).requires_grad_()
    out = seeded(x, 0.4, 1, 2)
    assert torch.equal(out, seeded(x, 0.4, 1, 2))
    assert not torch.equal(out, seeded(x, 0.4, 1, 3))
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient, (out != 0) / 0.6)
