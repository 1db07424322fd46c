"""Cross-entropy with label smoothing (section 5.4), straight from the decoder's output.

Shapes: N target tokens, D d_model, V target vocabulary, W >= V rows of the output matrix (padded).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

_ROWS = 128
_CPU_ELEMENTS = 1 << 22
_CUDA_ELEMENTS = 1 << 28


@dataclass(frozen=True, slots=True)
class Loss:
    """Sums over tokens, float32 scalars: the smoothed loss, and, without a gradient, the negative log-likelihood."""

    smoothed: Tensor
    nll: Tensor


def smoothed_cross_entropy(
    hidden: Tensor,
    output_weight: Tensor,
    gold: Tensor,
    *,
    output_bias: Tensor | None,
    vocab: int,
    smoothing: float,
) -> Loss:
    """The loss of hidden [N, D] against gold [N] under the output matrix [W, D], whose first `vocab` rows are pieces.

    `output_bias` [W] is added to the logits, where the model has one.

    Rows of `hidden` beyond those of `gold` are empty slots and count nothing.

    As F.cross_entropy(label_smoothing=smoothing, reduction="sum") of the logits: epsilon / V on every piece, the gold
    one included (Szegedy et al. 2016, section 7). The logits exist once, in the precision of `hidden`; statistics are
    float32.
    """
    smoothed, nll = _SmoothedCrossEntropy.apply(  # type: ignore[no-untyped-call]  # not annotated
        hidden, output_weight, output_bias, gold, vocab, smoothing, torch.is_grad_enabled()
    )
    return Loss(smoothed, nll)


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Logits a block of rows at a time, each turned into its gradient: softmax - epsilon / V - (1 - epsilon) gold."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        hidden: Tensor,
        output_weight: Tensor,
        output_bias: Tensor | None,
        gold: Tensor,
        vocab: int,
        smoothing: float,
        has_backward: bool,
    ) -> tuple[Tensor, Tensor]:
        # Under no_grad `needs_input_grad` still says that the weights would need one.
        keeps_gradient = has_backward and any(ctx.needs_input_grad)  # type: ignore[attr-defined]  # not annotated
        num_rows = output_weight.size(0)
        gradient = hidden.new_empty(hidden.size(0), num_rows) if keeps_gradient else None
        if gradient is not None:
            gradient[:, vocab:] = 0
            gradient[len(gold) :] = 0
        smoothed = hidden.new_zeros((), dtype=torch.float32)
        nll = hidden.new_zeros((), dtype=torch.float32)
        elements = _CUDA_ELEMENTS if hidden.is_cuda else _CPU_ELEMENTS
        block = max(1, elements // num_rows)
        block = block // _ROWS * _ROWS or block  # sizes that come again, as those of the batches do
        for start in range(0, hidden.size(0), block):
            gold_column = gold[start : start + block, None]
            rows = slice(start, start + len(gold_column))
            logits = F.linear(hidden[start : start + block], output_weight, output_bias)[: len(gold_column), :vocab]
            probabilities = logits.softmax(1, dtype=torch.float32)
            # The likeliest piece has a probability of at least 1 / V: its logarithm gives logsumexp without underflow.
            logsumexp = logits.amax(1).float() - probabilities.amax(1).log_()
            gold_nll = logsumexp - logits.gather(1, gold_column)[:, 0].float()
            mean_nll = logsumexp - logits.sum(1, dtype=torch.float32) / vocab
            nll += gold_nll.sum()
            smoothed += ((1 - smoothing) * gold_nll + smoothing * mean_nll).sum()
            if gradient is not None:
                probabilities.sub_(smoothing / vocab)
                probabilities.scatter_add_(
                    1, gold_column, probabilities.new_full((1, 1), smoothing - 1).expand_as(gold_column)
                )
                gradient[rows, :vocab] = probabilities
        if gradient is not None:
            ctx.save_for_backward(gradient, hidden, output_weight)
            ctx.has_bias = output_bias is not None  # type: ignore[attr-defined]  # a context takes any attribute
        ctx.mark_non_differentiable(nll)
        return smoothed, nll

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logit_gradient, hidden, output_weight = ctx.saved_tensors  # type: ignore[attr-defined]  # not annotated
        scale = gradients[0]  # a float32 scalar, which leaves the products in their precision
        weight_gradient = (logit_gradient.t() @ hidden) * scale
        has_bias: bool = ctx.has_bias  # type: ignore[attr-defined]  # set in forward
        bias_gradient = (logit_gradient.sum(0, dtype=torch.float32) * scale).to(hidden.dtype) if has_bias else None
        return (logit_gradient @ output_weight) * scale, weight_gradient, bias_gradient, None, None, None, None
