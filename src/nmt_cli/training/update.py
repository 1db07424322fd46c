"""One optimizer update: forward and backward over its micro-batches, the sum over ranks, clipping, and the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt_cli.dataset.batch import make_batch
from nmt_cli.dataset.rows import Rows
from nmt_cli.dataset.store import TokenPairs
from nmt_cli.devices import Precision
from nmt_cli.errors import DeviceError
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training.distributed import Ranks
from nmt_cli.training.loss import Loss, smoothed_cross_entropy
from nmt_cli.training.optimizers import build_optimizer
from nmt_cli.training.schedules import learning_rate
from nmt_cli.training.weights import MasterWeights


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Losses summed over the update's target tokens on all ranks, in nats; not applied if gradients are not finite.

    `suspects` then are the micro-batches whose losses were not finite, or all, where none was.
    """

    smoothed: float
    nll: float
    gradient_norm: float
    learning_rate: float
    is_applied: bool
    suspects: list[int]


class Updater:
    """The model, its master weights and its optimizer, moved on by one update at a time."""

    def __init__(
        self, recipe: Recipe, data: TokenPairs, model: Transformer, *, precision: Precision, ranks: Ranks
    ) -> None:
        self.model = model
        self._recipe, self._data, self._ranks = recipe, data, ranks
        self.weights = MasterWeights(model, precision=precision)
        self.optimizer = build_optimizer(self.weights, recipe)

    def evaluated(self) -> AbstractContextManager[None]:
        """A context in which the weights are those that are validated, saved and averaged."""
        return self.weights.replaced_by(self.optimizer.evaluation_values())

    def update(self, micro: Sequence[Rows], *, number: int, target_tokens: int) -> UpdateResult:
        """Take update `number`, from 1, over micro-batches whose targets hold `target_tokens` on all ranks together.

        Skipped, with the gradients dropped, where one of them is not finite; every rank decides alike.
        """
        training = self._recipe.training
        self.model.train()
        losses = torch.zeros(2, len(micro), device=self._ranks.device)
        for index in range(self._ranks.rank, len(micro), self._ranks.size):
            if len(micro[index]):
                loss = self.accumulate(micro[index], key=(number, index), target_tokens=target_tokens)
                losses[:, index] = torch.stack([loss.smoothed.detach(), loss.nll])
        self._ranks.sum(self.weights.gradients)
        self._ranks.sum(losses)
        rate = learning_rate(
            training.schedule, update=number, updates=training.updates, d_model=self._recipe.model.d_model
        )
        norm = self._ranks.of_first(float(self.weights.gradients.norm()))  # waits for the GPU, once an update
        is_finite = math.isfinite(norm)
        if is_finite:
            if training.clip_norm is not None and norm > training.clip_norm:
                self.weights.gradients.mul_(training.clip_norm / norm)
            self.optimizer.step(learning_rate=rate)
            self.weights.publish()
        self.weights.gradients.zero_()
        smoothed, nll = losses.sum(dim=1).tolist()
        suspects = [] if is_finite else _not_finite(losses[0]) or list(range(len(micro)))
        return UpdateResult(smoothed, nll, norm, rate, is_finite, suspects)

    def accumulate(self, rows: Rows, *, key: tuple[int, int], target_tokens: int) -> Loss:
        """Add the gradients of one micro-batch; `key`, its update and its index in it, sets the dropout masks."""
        seed_dropout(self._recipe.training.seed, *key)
        try:
            batch = make_batch(rows, self._data, device=self._ranks.device)
            memory = self.model.encode(batch.source)
            hidden = self.model.decode(batch.target, memory, batch.source)
            loss = smoothed_cross_entropy(
                hidden,
                self.model.output_weight,
                batch.gold,
                output_bias=self.model.output_bias,
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
        self._ranks.pulse.beat()
        return loss

    def begin_with(self, values: dict[str, Tensor]) -> None:
        """Start anew from weights by parameter name, with an optimizer that knows of no update."""
        self.weights.load(self.weights.values, values)
        self.weights.publish()
        self.optimizer = build_optimizer(self.weights, self._recipe)


def _not_finite(losses: Tensor) -> list[int]:
    """The places of the losses that are not finite."""
    return [index for index, loss in enumerate(losses.tolist()) if not math.isfinite(loss)]


def seed_dropout(seed: int, update: int, index: int) -> None:
    """Key torch's generators by (seed, update, micro-batch): the same masks on any rank and after any resume."""
    torch.manual_seed(((seed * 1_000_003 + update) * 65_537 + index) % 2**63)
