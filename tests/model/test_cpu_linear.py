"""Products of 8-bit integers: the sums are exact, rows are by themselves, and the result is near that of floats."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nmt_cli.model.cpu_linear import QuantizedLinear, can_quantize

pytestmark = pytest.mark.skipif(not can_quantize(), reason="this CPU does not multiply 8-bit integers exactly")

OUT, IN = 24, 40


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_hand(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T of both rounded to 127 steps of each row's largest, in exact arithmetic."""

    def rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
        steps = rows.abs().amax(dim=1, keepdim=True) / 127
        return (rows / steps).round().double(), steps.double()

    (x_rounded, x_steps), (weight_rounded, weight_steps) = rounded(x), rounded(weight)
    return (x_rounded @ weight_rounded.T) * x_steps * weight_steps.T


@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize("is_relu", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@torch.inference_mode()
def test_the_product_is_that_of_the_rounded_numbers(rows: int, is_relu: bool, has_bias: bool) -> None:
    x, weight, bias = numbers(rows, IN, seed=1), numbers(OUT, IN, seed=2), numbers(OUT, seed=3)
    linear = QuantizedLinear(weight, bias if has_bias else None, is_relu=is_relu, out=torch.float32)
    expected = by_hand(x, weight) + (bias if has_bias else 0)
    expected = expected.relu() if is_relu else expected
    torch.testing.assert_close(linear(x).double(), expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_a_row_does_not_change_what_becomes_of_another() -> None:
    x, weight = numbers(33, IN, seed=1), numbers(OUT, IN, seed=2)
    x[7] *= 1000
    linear = QuantizedLinear(weight, None, is_relu=False, out=torch.float32)
    alone = torch.cat([linear(row[None]) for row in x])
    assert torch.equal(linear(x), alone)


@torch.inference_mode()
def test_rows_of_zeros_stay_zeros_and_the_precision_is_what_was_asked_for() -> None:
    weight = numbers(OUT, IN, seed=2)
    weight[3] = 0
    linear = QuantizedLinear(weight, None, is_relu=False, out=torch.bfloat16)
    x = numbers(2, IN, seed=1).bfloat16()
    x[1] = 0
    out = linear(x)
    assert out.dtype == torch.bfloat16
    assert out[0, 3] == 0
    assert not out[1].any()
    assert out[0].any()
