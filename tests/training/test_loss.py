"""Label-smoothed cross-entropy against torch's, in value and gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt_cli.tokenization.tokenizer import PAD
from nmt_cli.training import loss as loss_module
from nmt_cli.training.loss import ONE_PASS, Loss, smoothed_cross_entropy


@dataclass(frozen=True)
class Case:
    """Inputs of the loss: N tokens, D wide, W rows of which `vocab` are pieces."""

    hidden: Tensor
    weight: Tensor
    gold: Tensor
    vocab: int

    def ours(self, smoothing: float) -> Loss:
        return smoothed_cross_entropy(
            self.hidden,
            self.weight,
            self.gold,
            output_bias=None,
            vocab=self.vocab,
            smoothing=smoothing,
            function=ONE_PASS,
        )

    def theirs(self, smoothing: float) -> tuple[Tensor, Tensor]:
        """torch's sum in float64 and its gradient for hidden, and for the pieces' rows, as one vector."""
        hidden, weight = (x.detach().double().requires_grad_() for x in (self.hidden, self.weight[: self.vocab]))
        value = F.cross_entropy(hidden @ weight.T, self.gold, label_smoothing=smoothing, reduction="sum")
        return value, torch.cat([gradient.flatten() for gradient in torch.autograd.grad(value, (hidden, weight))])

    def gradient(self, smoothing: float) -> Tensor:
        """Ours in the same form; the rows that are no pieces must have none."""
        hidden, weight = torch.autograd.grad(self.ours(smoothing).smoothed, (self.hidden, self.weight))
        assert not weight[self.vocab :].any()
        return torch.cat([hidden.flatten(), weight[: self.vocab].flatten()]).double()


def make_case(
    *, vocab: int, rows: int, tokens: int = 7, scale: float = 1.0, dtype: torch.dtype = torch.float32
) -> Case:
    generator = torch.Generator().manual_seed(vocab)
    hidden = (torch.randn(tokens, 6, generator=generator) * scale).to(dtype).requires_grad_()
    weight = torch.randn(rows, 6, generator=generator).to(dtype).requires_grad_()
    return Case(hidden, weight, torch.randint(1, vocab, (tokens,), generator=generator), vocab)


def assert_near(ours: Tensor, theirs: Tensor) -> None:
    """Equal in float32, with sums of up to 20 terms of size 10."""
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.2, 0.9])
@pytest.mark.parametrize(
    ("vocab", "rows", "elements"),
    [(2, 2, 10_000), (2, 8, 10_000), (20, 20, 10_000), (37, 64, 10_000), *((5, 8, n) for n in (1, 8, 20, 24, 10_000))],
)
def test_values_and_gradient_are_torch_s_in_blocks_of_any_size(
    vocab: int, rows: int, elements: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "_CPU_LOGITS", elements)
    case = make_case(vocab=vocab, rows=rows)
    value, gradient = case.theirs(smoothing)
    loss = case.ours(smoothing)
    assert_near(loss.smoothed, value)
    assert_near(loss.nll, case.theirs(0.0)[0])
    assert_near(case.gradient(smoothing), gradient)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_bias_is_added_to_the_logits_and_has_torch_s_gradient(smoothing: float) -> None:
    case = make_case(vocab=5, rows=8)
    bias = torch.linspace(-2, 2, 8).requires_grad_()
    ours = smoothed_cross_entropy(
        case.hidden, case.weight, case.gold, output_bias=bias, vocab=5, smoothing=smoothing, function=ONE_PASS
    ).smoothed
    logits = (case.hidden @ case.weight.T + bias)[:, :5]
    theirs = F.cross_entropy(logits, case.gold, label_smoothing=smoothing, reduction="sum")
    assert_near(ours, theirs.double())
    inputs = (case.hidden, case.weight, bias)
    for mine, other in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True):
        assert_near(mine, other.double())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_rows_whose_gold_is_pad_count_nothing(smoothing: float) -> None:
    case = make_case(vocab=20, rows=24, tokens=12)
    kept = torch.tensor([0, 1, 4, 5, 6, 7])
    padded = replace(case, gold=torch.full_like(case.gold, PAD).index_copy(0, kept, case.gold[kept]))
    hidden = case.hidden.detach()[kept].requires_grad_()
    alone = replace(case, hidden=hidden, gold=case.gold[kept])
    assert_near(padded.ours(smoothing).smoothed, alone.ours(smoothing).smoothed.double())
    assert_near(padded.ours(smoothing).nll, alone.ours(smoothing).nll.double())
    ours = torch.autograd.grad(padded.ours(smoothing).smoothed, (padded.hidden, padded.weight))
    theirs = torch.autograd.grad(alone.ours(smoothing).smoothed, (alone.hidden, alone.weight))
    assert_near(ours[0], torch.zeros(12, 6, dtype=torch.float64).index_copy(0, kept, theirs[0].double()))
    assert_near(ours[1], theirs[1].double())
    hidden = case.hidden.detach().index_fill(0, torch.tensor([2, 3]), torch.nan)
    not_finite = replace(padded, hidden=hidden).ours(smoothing)  # only in rows of padding
    assert bool(not_finite.smoothed.isfinite())
    assert bool(not_finite.nll.isfinite())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1e3, 1e15])
def test_extreme_logits_neither_overflow_nor_underflow(scale: float, smoothing: float) -> None:
    case = make_case(vocab=20, rows=24, scale=scale)
    value, gradient = case.theirs(smoothing)
    # A probability of exp(-1000) is zero in float32; its logarithm must not be taken.
    torch.testing.assert_close(case.ours(smoothing).smoothed.double(), value, rtol=1e-5, atol=0)
    ours = case.gradient(smoothing)
    torch.testing.assert_close(ours, gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bf16_is_near_float64_on_the_same_inputs(smoothing: float) -> None:
    case = make_case(vocab=200, rows=256, tokens=64, dtype=torch.bfloat16)
    value, gradient = case.theirs(smoothing)
    # Logits near 3 are rounded at 2^-9 of their size, so a token's loss by 1e-2 at most, and in both directions.
    torch.testing.assert_close(case.ours(smoothing).smoothed.double(), value, rtol=2e-3, atol=0)
    # Each product is rounded at 2^-9 once more.
    assert float((case.gradient(smoothing) - gradient).norm() / gradient.norm()) < 1e-2
