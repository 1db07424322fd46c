"""Consistency: each pair passes twice through the model, and both passes are to predict alike.

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
from nmt_cli.recipe.schema import RDropConfig, SimCutConfig, TrainingConfig
from nmt_cli.tokenization.tokenizer import PAD

_CPU_ELEMENTS = 1 << 18  # of the logits at a time: several tensors of this size stay in the cache


@dataclass(frozen=True, slots=True)
class Consistency:
    """The weights of what is added up for each target token.

    `losses` multiply the smoothed losses of both passes; their sum is 1. `divergences` multiply KL(P1 || P2) and
    KL(P2 || P1), where P1 and P2 are the distributions of both passes. `cut` is the share of tokens without an
    embedding in the second pass.
    """

    losses: tuple[float, float]
    divergences: tuple[float, float]
    cut: float

    @classmethod
    def of(cls, training: TrainingConfig) -> Consistency | None:
        """As a recipe says; None if each pair passes once.

        R-Drop adds up both losses and alpha times the mean of both divergences. This is half of it, so that the loss
        and its gradient have the size of a training without.
        """
        match training.consistency if training.num_passes > 1 else None:
            case RDropConfig(alpha=alpha):
                return cls(losses=(0.5, 0.5), divergences=(alpha / 4, alpha / 4), cut=0.0)
            case SimCutConfig(alpha=alpha, cut=cut):
                return cls(losses=(1.0, 0.0), divergences=(alpha, 0.0), cut=cut)
            case None:
                return None

    def with_cuts(self, batch: Batch) -> Batch:
        """The batch with some tokens of the second pass marked as cut; torch's generator chooses them."""
        if self.cut == 0:
            return batch
        return replace(batch, source=self._cut(batch.source), target=self._cut(batch.target))

    def _cut(self, side: Packed) -> Packed:
        is_second = torch.arange(len(side.ids), device=side.ids.device) >= _num_tokens(side.ids)
        return replace(side, is_cut=is_second & (torch.rand(side.ids.shape, device=side.ids.device) < self.cut))

    def loss_and_gradient(self, logits: Tensor, gold: Tensor, vocab: int, smoothing: float) -> tuple[Tensor, ...]:
        """The sums over logits [R, W] of the loss, of the NLL and of the mean divergence.

        A `training.loss.LossAndGradient`. Rows 2 i and 2 i + 1 are one target token in both passes.
        """
        rows = max(2, _CPU_ELEMENTS // vocab // 2 * 2) if logits.device.type == "cpu" else len(logits)
        parts = zip(logits.split(rows), gold.split(rows), strict=True)
        return tuple(torch.stack([self._of_part(*part, vocab, smoothing) for part in parts]).sum(0))

    def _of_part(self, logits: Tensor, gold: Tensor, vocab: int, smoothing: float) -> Tensor:
        (p_loss, q_loss), (p_kl, q_kl) = self.losses, self.divergences
        is_token = (gold[::2] != PAD)[:, None]
        log_probs = logits[:, :vocab].float().log_softmax(1).view(-1, 2, vocab)
        nll = -log_probs.gather(2, gold.view(-1, 2, 1))[..., 0]
        smoothed = (1 - smoothing) * nll - smoothing * log_probs.mean(2)
        ratio = log_probs[:, 0] - log_probs[:, 1]
        probs = log_probs.exp_()
        divergences = torch.bmm(probs, ratio[..., None])[..., 0] * ratio.new_tensor([1, -1])
        # KL(P || Q) has the gradient P (log P - log Q - KL) for the logits of P, and Q - P for those of Q.
        p, q = probs.unbind(1)
        p_factor = (ratio * p_kl).add_(p_loss + q_kl - p_kl * divergences[:, :1])
        q_factor = (ratio * -q_kl).add_(q_loss + p_kl - q_kl * divergences[:, 1:])
        gradients = logits.view(len(gold) // 2, 2, -1)
        others = ((p_factor, p, q, p_loss, q_kl), (q_factor, q, p, q_loss, p_kl))
        for place, (factor, own, other, loss, kl) in enumerate(others):
            gradient = factor.mul_(own).sub_(other, alpha=kl).sub_(loss * smoothing / vocab)
            gradient.scatter_add_(1, gold[::2, None], gradient.new_full((len(gradient), 1), loss * (smoothing - 1)))
            gradients[:, place, :vocab] = gradient.where(is_token, 0)
        logits[:, vocab:] = 0
        sums = torch.stack([smoothed, nll, divergences]).where(is_token, 0).sum(1)
        of_loss, of_kl = sums.new_tensor(self.losses), sums.new_tensor(self.divergences)
        weighted = sums[2] @ of_kl
        return torch.stack([sums[0] @ of_loss + weighted, sums[1] @ of_loss, weighted / sum(self.divergences)])


def beside_each_other(gold: Tensor) -> Tensor:
    """The order [N] in which the two slots of each target token follow each other; empty slots stay last."""
    place = torch.arange(len(gold), device=gold.device)
    num_tokens = _num_tokens(gold)
    return torch.where(place < 2 * num_tokens, place // 2 + place % 2 * num_tokens, place)


def _num_tokens(ids: Tensor) -> Tensor:
    """The tokens of one pass, a scalar; nothing waits for a GPU."""
    return (ids != PAD).sum() // 2
