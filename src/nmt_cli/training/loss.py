"""Cross-entropy with label smoothing (section 5.4), straight from the decoder's output.

Shapes: N target tokens, D d_model, V target vocabulary, R rows of a block of logits. The output matrix has P >= V rows.
The first W of them are multiplied: V rounded up to a fast size, at most P.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nmt_cli.tokenization.tokenizer import PAD

_ROW_MULTIPLE = 128  # of the rows of a block; a multiple of each `rows_per_token`
_COLUMN_MULTIPLE = 128  # a multiple of which W is, if P allows it
_CUDA_LOGITS = 1 << 28  # of a block
_CUDA_LOGITS_WITHOUT_GRADIENT = 1 << 24  # such a block comes with two float32 copies
_CPU_LOGITS = 1 << 21  # such a block stays in the cache from the product to its gradient; smaller ones slow the product

LossAndGradient = Callable[[Tensor, Tensor, int, float], tuple[Tensor, ...]]
"""Given logits [R, W], gold [R], the vocabulary and epsilon: the sums over rows of the smoothed loss and of the NLL.

Overwrites the logits with the gradient of the first sum: zeros in rows without gold, and in padded columns. Further
sums may follow, which have no gradient.
"""


@dataclass(frozen=True, slots=True)
class LossFunction:
    """A loss of logits with its gradient, and the rows of logits that it takes at once.

    It takes blocks of whole tokens, whose `rows_per_token` rows follow each other: two if each pair passes twice. A
    function that needs no memory beside the logits `takes_all_rows` at once.
    """

    loss_and_gradient: LossAndGradient
    rows_per_token: int
    takes_all_rows: bool

    def rows_of_block(self, num_columns: int, device: torch.device, *, has_gradient: bool) -> int:
        """The rows of whole tokens, at least one token, whose logits are computed at once; the same in all updates.

        If possible, it is a multiple of `_ROW_MULTIPLE`: libraries prepare each size that occurs once.
        """
        cuda_logits = _CUDA_LOGITS if has_gradient else _CUDA_LOGITS_WITHOUT_GRADIENT
        max_rows = (cuda_logits if device.type == "cuda" else _CPU_LOGITS) // num_columns
        rows = max(self.rows_per_token, max_rows // self.rows_per_token * self.rows_per_token)
        return rows // _ROW_MULTIPLE * _ROW_MULTIPLE or rows


@dataclass(frozen=True, slots=True)
class Loss:
    """Sums over tokens, float32 scalars: the smoothed loss, and, without a gradient, the negative log-likelihood.

    If each pair passes twice, `kl` is the divergence of both passes, which has its weight in the smoothed loss.
    """

    smoothed: Tensor
    nll: Tensor
    kl: Tensor | None = None

    def stacked(self) -> Tensor:
        """All of its sums, without a gradient, [2] or [3]."""
        sums = [self.smoothed.detach(), self.nll]
        return torch.stack(sums if self.kl is None else [*sums, self.kl])


def smoothed_cross_entropy(
    hidden: Tensor,
    output_weight: Tensor,
    gold: Tensor,
    *,
    output_bias: Tensor | None,
    vocab: int,
    smoothing: float,
    function: LossFunction,
) -> Loss:
    """The loss of hidden [N, D] against gold [N] under the output matrix [P, D], whose first `vocab` rows are pieces.

    `output_bias` [P] is added to the logits, if the model has one. Rows whose gold is PAD are empty slots and count
    nothing.

    As F.cross_entropy(label_smoothing=smoothing, reduction="sum") of the logits: epsilon / V on every piece, the gold
    one included (Szegedy et al. 2016, section 7). The logits exist once, in the precision of `hidden`; statistics are
    float32. All shapes follow from the arguments, and nothing waits for a GPU. `function` gives the loss and
    the gradient of a block of logits, as `ONE_PASS` does.
    """
    inputs = [tensor for tensor in (hidden, output_weight, output_bias) if tensor is not None]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        sums = _SmoothedCrossEntropy.apply(  # type: ignore[no-untyped-call]  # not annotated
            hidden, output_weight, output_bias, gold, vocab, smoothing, function
        )
        return Loss(*sums)
    weight, bias = _multiplied_rows(output_weight, output_bias, vocab)
    rows = function.rows_of_block(len(weight), hidden.device, has_gradient=False)
    logits = hidden.new_empty(min(rows, len(hidden)), len(weight))  # of a single block
    sums = []
    for hidden_block, gold_block in zip(hidden.split(rows), gold.split(rows), strict=True):
        logits_block = logits[: len(gold_block)]
        _multiply(hidden_block, weight, bias, out=logits_block)
        _, smoothed, nll = _statistics(logits_block, gold_block, vocab, smoothing)
        sums.append(torch.stack([smoothed, nll]))
    return Loss(*torch.stack(sums).sum(0))


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Logits a block of rows at a time, each turned into its gradient: softmax - epsilon / V - (1 - epsilon) gold."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        output_weight: Tensor,
        output_bias: Tensor | None,
        gold: Tensor,
        vocab: int,
        smoothing: float,
        function: LossFunction,
    ) -> tuple[Tensor, ...]:
        weight, bias = _multiplied_rows(output_weight, output_bias, vocab)
        rows = len(hidden)
        if not function.takes_all_rows:
            rows = function.rows_of_block(len(weight), hidden.device, has_gradient=True)
        logits = hidden.new_empty(len(hidden), len(weight))
        sums = []
        for hidden_block, gold_block, logits_block in zip(
            hidden.split(rows), gold.split(rows), logits.split(rows), strict=True
        ):
            _multiply(hidden_block, weight, bias, out=logits_block)
            sums.append(torch.stack(function.loss_and_gradient(logits_block, gold_block, vocab, smoothing)))
        ctx.save_for_backward(logits, hidden, output_weight)  # by now the logits are their gradient
        ctx.has_bias = output_bias is not None
        smoothed, *others = torch.stack(sums).sum(0)
        ctx.mark_non_differentiable(*others)
        return smoothed, *others

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logit_gradient, hidden, output_weight = ctx.saved_tensors
        scale = gradients[0]  # of the smoothed loss: a float32 scalar, which leaves the products in their precision
        num_columns = logit_gradient.size(1)
        weight_gradient = torch.empty_like(output_weight)
        torch.mm(logit_gradient.t(), hidden, out=weight_gradient[:num_columns]).mul_(scale)
        weight_gradient[num_columns:] = 0
        bias_gradient = None
        if ctx.has_bias:
            bias_gradient = output_weight.new_zeros(len(output_weight))
            bias_gradient[:num_columns] = logit_gradient.sum(0, dtype=torch.float32) * scale
        hidden_gradient = (logit_gradient @ output_weight[:num_columns]) * scale
        return hidden_gradient, weight_gradient, bias_gradient, *(None,) * 4


def _multiplied_rows(output_weight: Tensor, output_bias: Tensor | None, vocab: int) -> tuple[Tensor, Tensor | None]:
    """The first W rows of the output matrix, and the bias of their logits."""
    num_rows = math.ceil(vocab / _COLUMN_MULTIPLE) * _COLUMN_MULTIPLE
    return output_weight[:num_rows], None if output_bias is None else output_bias[:num_rows]


def _multiply(hidden: Tensor, weight: Tensor, bias: Tensor | None, *, out: Tensor) -> None:
    if bias is None:
        torch.mm(hidden, weight.t(), out=out)
    else:
        torch.addmm(bias, hidden, weight.t(), out=out)


def _loss_and_gradient(logits: Tensor, gold: Tensor, vocab: int, smoothing: float) -> tuple[Tensor, Tensor]:
    """The summed smoothed loss and NLL of logits [R, W]. Overwrites the logits with the gradient of the first."""
    probabilities, smoothed, nll = _statistics(logits, gold, vocab, smoothing)
    is_token = (gold != PAD).float()[:, None]
    gold_gradient = (probabilities.gather(1, gold[:, None]) - (1 - smoothing + smoothing / vocab)) * is_token
    logits[:, :vocab] = probabilities.sub_(smoothing / vocab).mul_(is_token)
    logits[:, vocab:] = 0
    logits.scatter_(1, gold[:, None], gold_gradient.to(logits.dtype))
    return smoothed, nll


def _statistics(logits: Tensor, gold: Tensor, vocab: int, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
    """The probabilities [R, V] of the pieces in float32, the summed smoothed loss, and the summed NLL."""
    scores = logits[:, :vocab].float()
    probabilities = scores.softmax(1)
    # The likeliest piece has a probability of at least 1 / V: its logarithm gives logsumexp without underflow.
    logsumexp = scores.amax(1) - probabilities.amax(1).log()
    is_token = gold != PAD
    gold_nll = (logsumexp - scores.gather(1, gold[:, None])[:, 0]).where(is_token, 0)
    mean_nll = (logsumexp - scores.mean(1)).where(is_token, 0)
    nll = gold_nll.sum()
    return probabilities, (1 - smoothing) * nll + smoothing * mean_nll.sum(), nll


ONE_PASS = LossFunction(_loss_and_gradient, rows_per_token=1, takes_all_rows=False)
"""The label-smoothed loss of pairs that pass once through the model."""
