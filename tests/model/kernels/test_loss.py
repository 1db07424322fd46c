"""The kernel of the loss against torch's cross-entropy in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from nmt_cli.tokenization.tokenizer import PAD
from nmt_cli.training.consistency import Consistency
from tests.interpreted import DEVICE, MARKS  # isort: split

from nmt_cli.model.kernels.loss import loss_and_gradient, loss_and_gradient_of_both_passes

pytestmark = MARKS


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize(("vocab", "width"), [(5, 8), (4096, 4096), (5000, 5120)])
def test_loss_and_gradient_are_torch_s(vocab: int, width: int, scale: float, smoothing: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = (torch.randn(6, width, generator=generator) * scale).to(DEVICE)
    gold = torch.randint(1, vocab, (6,), generator=generator).to(DEVICE)
    gold[4] = PAD
    kept = gold != PAD
    scores = logits[:, :vocab].double().requires_grad_()
    value = F.cross_entropy(scores[kept], gold[kept], label_smoothing=smoothing, reduction="sum")
    (gradient,) = torch.autograd.grad(value, scores)
    nll = F.cross_entropy(scores[kept], gold[kept], reduction="sum")
    ours = logits.clone()
    smoothed, unsmoothed = loss_and_gradient(ours, gold, vocab, smoothing, pad=PAD)
    # float32 keeps 24 bits of logits near `scale` and of sums of as many terms as there are pieces.
    torch.testing.assert_close(smoothed.double(), value.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(unsmoothed.double(), nll.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours[:, :vocab].double(), gradient, rtol=1e-4, atol=1e-5)
    assert not ours[:, vocab:].any()
    assert not ours[4].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_make_the_loss_not_finite(bad: float) -> None:
    logits = torch.zeros(2, 8, device=DEVICE)
    logits[1, 3] = bad
    smoothed, _ = loss_and_gradient(logits, torch.tensor([2, 4], device=DEVICE), 6, 0.1, pad=PAD)
    assert not smoothed.isfinite()


def test_gradients_in_bf16_are_rounded_at_their_end_only() -> None:
    generator = torch.Generator().manual_seed(1)
    vocab, width = 37_000, 37_120
    logits = torch.randn(4, width, generator=generator).to(DEVICE, torch.bfloat16)
    gold = torch.randint(1, vocab, (4,), generator=generator).to(DEVICE)
    scores = logits[:, :vocab].double().requires_grad_()
    value = F.cross_entropy(scores, gold, label_smoothing=0.1, reduction="sum")
    (gradient,) = torch.autograd.grad(value, scores)
    ours = logits.clone()
    smoothed, _ = loss_and_gradient(ours, gold, vocab, 0.1, pad=PAD)
    torch.testing.assert_close(smoothed.double(), value.detach(), rtol=1e-5, atol=1e-5)
    # bf16 keeps 8 bits, and the interpreter cuts the others off: one unit of the last is 2^-7 of the value at most.
    torch.testing.assert_close(ours[:, :vocab].double(), gradient, rtol=2**-7, atol=1e-9)
    assert not ours[:, vocab:].any()


@pytest.mark.parametrize("consistency", [Consistency((0.5, 0.5), (1.25, 1.25), 0), Consistency((1, 0), (3, 0), 0)])
@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize(("vocab", "width"), [(5, 8), (2048, 2048), (5000, 5120)])
def test_the_kernel_for_both_passes_does_what_torch_s_operations_do(
    vocab: int, width: int, scale: float, consistency: Consistency
) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = (torch.randn(6, width, generator=generator) * scale).to(DEVICE)
    gold = torch.tensor([1, 1, 3, 3, PAD, PAD], device=DEVICE)
    expected, ours = logits.clone(), logits.clone()
    sums = consistency.loss_and_gradient(expected, gold, vocab, 0.1)
    weights = (*consistency.loss_weights, *consistency.divergence_weights)
    found = loss_and_gradient_of_both_passes(ours, gold, vocab, 0.1, weights=weights, pad=PAD)
    torch.testing.assert_close(torch.stack(found), torch.stack(sums), rtol=1e-4, atol=1e-4)
    # The gradient multiplies float32's rounding by divergences, which are near 100 at the larger scale.
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4)
