"""Consistency: each pair passes twice through the model, and the loss asks both passes to predict alike.

R-Drop (Liang et al. 2021, arXiv:2106.14448) compares two passes with different dropout. SimCut (Gao et al. 2022,
arXiv:2206.02368) compares a whole pass with one in which some tokens have no embedding. A batch holds all of its pairs,
then all of them again. Shapes: N slots of a side, R rows of logits, V target vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nmt_cli.dataset.batches import Batch
from nmt_cli.model.packing import Packed
from nmt_cli.recipe.training import RDropConfig, SimCutConfig, TrainingConfig
from nmt_cli.tokenization.tokenizer import PAD
from nmt_cli.training.loss import LossFunction

_BLOCK_ELEMENTS = 1 << 18  # of the logits, on a CPU: several tensors of this size stay in the cache


@dataclass(frozen=True, slots=True)
class Consistency:
    """The weights of the terms of the loss, per target token.

    `loss_weights` multiply the smoothed losses of both passes; their sum is 1. `divergence_weights` multiply
    KL(P || Q) and KL(Q || P), where P and Q are the distributions of the first and of the second pass.
    A token of the second pass has no embedding with a probability of `cut_probability`.
    """

    loss_weights: tuple[float, float]
    divergence_weights: tuple[float, float]
    cut_probability: float

    @classmethod
    def of(cls, training: TrainingConfig) -> Consistency | None:
        """The weights that a recipe sets; None if each pair passes once.

        R-Drop's loss is the sum of both losses and alpha times the mean divergence. Here it is halved, so loss and
        gradient keep the size of one pass.
        """
        consistency = training.consistency if training.num_passes > 1 else None
        match consistency:
            case RDropConfig(alpha=alpha):
                return cls((0.5, 0.5), (alpha / 4, alpha / 4), cut_probability=0.0)
            case SimCutConfig(alpha=alpha, cut=cut):
                return cls((1.0, 0.0), (alpha, 0.0), cut_probability=cut)
            case None:
                return None

    def with_cuts(self, batch: Batch) -> Batch:
        """The batch with some tokens of the second pass marked as cut; torch's generator chooses them."""
        if self.cut_probability == 0:
            return batch
        return replace(batch, source=self._cut(batch.source), target=self._cut(batch.target))

    def _cut(self, side: Packed) -> Packed:
        is_second = torch.arange(len(side.ids), device=side.ids.device) >= _num_tokens(side.ids)
        return side.cut(is_second & (torch.rand(side.ids.shape, device=side.ids.device) < self.cut_probability))

    @property
    def loss_function(self) -> LossFunction:
        """The loss of both passes."""
        return LossFunction(self.loss_and_gradient, rows_per_token=2, takes_all_rows=False)

    def loss_and_gradient(self, logits: Tensor, gold: Tensor, vocab: int, smoothing: float) -> tuple[Tensor, ...]:
        """The sums over logits [R, W] of the loss, of the NLL and of the mean divergence.

        A `training.loss.LossAndGradient`; the first V of W columns are pieces. Rows 2 i and 2 i + 1 are one target
        token in both passes.
        """
        rows = max(2, _BLOCK_ELEMENTS // vocab // 2 * 2) if logits.device.type == "cpu" else len(logits)
        blocks = zip(logits.split(rows), gold.split(rows), strict=True)
        return tuple(torch.stack([self._sums_of_block(*block, vocab, smoothing) for block in blocks]).sum(0))

    def _sums_of_block(self, logits: Tensor, gold: Tensor, vocab: int, smoothing: float) -> Tensor:
        """The three sums [3] over some tokens. Overwrites their logits [2 T, W] with the gradient of the first sum."""
        log_probs = logits[:, :vocab].float().log_softmax(1).view(-1, 2, vocab)
        nll = -log_probs.gather(2, gold.view(-1, 2, 1))[..., 0]
        smoothed = (1 - smoothing) * nll - smoothing * log_probs.mean(2)
        log_ratio = log_probs[:, 0] - log_probs[:, 1]
        probs = log_probs.exp_()
        # KL(P || Q) is the sum of P log(P / Q), and KL(Q || P) is the sum of -Q log(P / Q).
        divergences = torch.bmm(probs, log_ratio[..., None])[..., 0] * log_ratio.new_tensor([1, -1])
        self._write_gradients(logits, gold, probs, log_ratio, divergences, smoothing=smoothing)
        is_token = (gold[::2] != PAD)[:, None]
        both_smoothed, both_nll, both_divergences = torch.stack([smoothed, nll, divergences]).where(is_token, 0).sum(1)
        loss_weights = nll.new_tensor(self.loss_weights)
        divergence_weights = nll.new_tensor(self.divergence_weights)
        divergence = both_divergences @ divergence_weights
        loss = both_smoothed @ loss_weights + divergence
        return torch.stack([loss, both_nll @ loss_weights, divergence / divergence_weights.sum()])

    def _write_gradients(
        self, logits: Tensor, gold: Tensor, probs: Tensor, log_ratio: Tensor, divergences: Tensor, *, smoothing: float
    ) -> None:
        """Overwrite logits [2 T, W] with their gradient, given P and Q [T, 2, V], log P / Q [T, V], divergences [T, 2].

        For the logits of P, the smoothed loss has the gradient P - smoothing / V - (1 - smoothing) gold. KL(P || Q) has
        P (log P / Q - KL(P || Q)), and KL(Q || P) has P - Q. The same holds for Q, with P and Q exchanged.
        """
        (p_loss, q_loss), (pq_weight, qp_weight) = self.loss_weights, self.divergence_weights
        (p, q), vocab = probs.unbind(1), probs.size(2)
        p_factor = (log_ratio * pq_weight).add_(p_loss + qp_weight - pq_weight * divergences[:, :1])
        q_factor = (log_ratio * -qp_weight).add_(q_loss + pq_weight - qp_weight * divergences[:, 1:])
        p_gradient = p_factor.mul_(p).sub_(q, alpha=qp_weight).sub_(p_loss * smoothing / vocab)
        q_gradient = q_factor.mul_(q).sub_(p, alpha=pq_weight).sub_(q_loss * smoothing / vocab)
        p_logits, q_logits = logits.view(len(gold) // 2, 2, -1).unbind(1)
        gold = gold[::2, None]
        for out, gradient, loss_weight in ((p_logits, p_gradient, p_loss), (q_logits, q_gradient, q_loss)):
            gradient.scatter_add_(1, gold, gradient.new_full(gold.shape, loss_weight * (smoothing - 1)))
            out[:, :vocab] = gradient.where(gold != PAD, 0)
        logits[:, vocab:] = 0


def interleaved_order(gold: Tensor) -> Tensor:
    """The order [N] in which the two slots of each target token follow each other; empty slots stay last."""
    index = torch.arange(len(gold), device=gold.device)
    num_tokens = _num_tokens(gold)
    return torch.where(index < 2 * num_tokens, index // 2 + index % 2 * num_tokens, index)


def _num_tokens(ids: Tensor) -> Tensor:
    """The tokens of one pass, a scalar; nothing waits for a GPU."""
    return (ids != PAD).sum() // 2
