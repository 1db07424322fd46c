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
        is_token = (gold != PAD).view(-1, 2)
        log_probs = logits[:, :vocab].float().log_softmax(1).view(-1, 2, vocab)
        probs, ratio = log_probs.exp(), log_probs[:, 0] - log_probs[:, 1]
        divergences = torch.stack([(probs[:, 0] * ratio).sum(1), -(probs[:, 1] * ratio).sum(1)], 1)
        divergences = divergences.where(is_token, 0)
        nll = -log_probs.gather(2, gold.view(-1, 2, 1))[..., 0].where(is_token, 0)
        smoothed = (1 - smoothing) * nll - smoothing * log_probs.mean(2).where(is_token, 0)
        of_loss, of_divergence = logits.new_tensor(self.losses).float(), logits.new_tensor(self.divergences).float()
        sums = [
            (smoothed * of_loss + divergences * of_divergence).sum(),
            (nll * of_loss).sum(),
            (divergences * of_divergence).sum() / sum(self.divergences),
        ]
        # KL(P || Q) has the gradient P (log P - log Q - KL) for the logits of P, and Q - P for those of Q.
        ratio = torch.stack([ratio, -ratio], 1)
        gradient = of_divergence[:, None] * probs * (ratio - divergences[..., None])
        gradient += of_divergence.flip(0)[:, None] * (probs - probs.flip(1))
        gradient += of_loss[:, None] * (probs - smoothing / vocab)
        gold_share = (-(1 - smoothing) * of_loss).expand(len(gradient), 2)[..., None]
        gradient.scatter_add_(2, gold.view(-1, 2, 1), gold_share)
        logits[:, :vocab] = gradient.where(is_token[..., None], 0).view(-1, vocab)
        logits[:, vocab:] = 0
        return tuple(sums)


def beside_each_other(gold: Tensor) -> Tensor:
    """The order [N] in which the two slots of each target token follow each other; empty slots stay last."""
    place = torch.arange(len(gold), device=gold.device)
    num_tokens = _num_tokens(gold)
    return torch.where(place < 2 * num_tokens, place // 2 + place % 2 * num_tokens, place)


def _num_tokens(ids: Tensor) -> Tensor:
    """The tokens of one pass, a scalar; nothing waits for a GPU."""
    return (ids != PAD).sum() // 2
