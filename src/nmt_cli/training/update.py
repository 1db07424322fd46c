"""One optimizer update: forward and backward over its micro-batches, the sum over ranks, clipping, and the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nmt_cli.dataset.batch import make_batch
from nmt_cli.dataset.plan import Array
from nmt_cli.dataset.store import TokenPairs
from nmt_cli.devices import Precision
from nmt_cli.errors import DeviceError
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training.distributed import Ranks
from nmt_cli.training.loss import Loss, smoothed_cross_entropy
from nmt_cli.training.optimizers import Optimizer
from nmt_cli.training.schedules import learning_rate
from nmt_cli.training.weights import MasterWeights


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Losses summed over the update's target tokens on all ranks, in nats; not applied if gradients are not finite."""

    smoothed: float
    nll: float
    gradient_norm: float
    learning_rate: float
    is_applied: bool


class Updater:
    """The model, its master weights and its optimizer, moved on by one update at a time."""

    def __init__(
        self, recipe: Recipe, data: TokenPairs, model: Transformer, *, precision: Precision, ranks: Ranks
    ) -> None:
        self.model = model
        self._recipe, self._data, self._ranks = recipe, data, ranks
        self.weights = MasterWeights(model, precision=precision)
        self.optimizer = Optimizer(self.weights, recipe.training.optimizer)

    def update(self, micro: Sequence[Array], *, number: int, target_tokens: int) -> UpdateResult:
        """Take update `number`, from 1, over micro-batches whose targets hold `target_tokens` on all ranks together.

        Skipped, with the gradients dropped, where one of them is not finite; every rank decides alike.
        """
        training = self._recipe.training
        self.model.train()
        sums = torch.zeros(2, device=self._ranks.device)
        for index in range(self._ranks.rank, len(micro), self._ranks.size):
            if len(micro[index]):
                loss = self.accumulate(micro[index], key=(number, index), target_tokens=target_tokens)
                sums += torch.stack([loss.smoothed.detach(), loss.nll])
        self._ranks.sum(self.weights.gradients)
        self._ranks.sum(sums)
        rate = learning_rate(
            training.schedule, update=number, updates=training.updates, d_model=self._recipe.model.d_model
        )
        norm = float(self.weights.gradients.norm())  # waits for the GPU, once an update
        is_finite = math.isfinite(norm)
        if is_finite:
            if training.clip_norm is not None and norm > training.clip_norm:
                self.weights.gradients.mul_(training.clip_norm / norm)
            self.optimizer.step(learning_rate=rate)
            self.weights.publish()
        self.weights.gradients.zero_()
        smoothed, nll = sums.tolist()
        return UpdateResult(smoothed, nll, norm, rate, is_finite)

    def accumulate(self, pairs: Array, *, key: tuple[int, int], target_tokens: int) -> Loss:
        """Add the gradients of one micro-batch; `key`, its update and its index in it, sets the dropout masks."""
        seed_dropout(self._recipe.training.seed, *key)
        try:
            batch = make_batch(pairs, self._data, device=self._ranks.device)
            memory = self.model.encode(batch.source)
            hidden = self.model.decode(batch.target, memory, batch.source)
            loss = smoothed_cross_entropy(
                hidden,
                self.model.output_weight,
                batch.gold,
                vocab=self.model.target_vocab,
                smoothing=self._recipe.training.label_smoothing,
            )
            (loss.smoothed / target_tokens).backward()
        except torch.OutOfMemoryError:
            limit = self._recipe.training.max_tokens_per_device
            raise DeviceError(
                f"the memory of {self._ranks.device} does not hold a micro-batch of {limit:,} tokens",
                where="training.max_tokens_per_device",
                hint=f"--set training.max_tokens_per_device={limit // 2}: the updates stay the same",
            ) from None
        self.weights.collect()
        return loss


def seed_dropout(seed: int, update: int, index: int) -> None:
    """Key torch's generators by (seed, update, micro-batch): the same masks on any rank and after any resume."""
    torch.manual_seed(((seed * 1_000_003 + update) * 65_537 + index) % 2**63)
