"""Where a training stands in its data: which pairs make up each update, epoch after epoch."""

from __future__ import annotations

import logging

import numpy as np

from nmt_cli.dataset.plan import Array, Plan, micro_batches, plan_epoch
from nmt_cli.dataset.store import TokenPairs
from nmt_cli.errors import DataError, RecipeError
from nmt_cli.recipe.schema import Recipe

_log = logging.getLogger(__name__)


class DataOrder:
    """The updates of a training in turn; its position is (epoch, index in the epoch's plan), both from 0."""

    def __init__(self, data: TokenPairs, recipe: Recipe, *, world_size: int) -> None:
        self._src, self._tgt = data.src.lengths.astype(np.int64), data.tgt.lengths.astype(np.int64)
        self._training, self._world_size = recipe.training, world_size
        self._usable = np.flatnonzero(np.maximum(self._src, self._tgt) <= recipe.model.max_positions)
        self._check(recipe)
        self.epoch, self.index = 0, 0
        self._plan: Plan | None = None

    @property
    def longest(self) -> Array:
        """The pairs of a full micro-batch of the longest sentences, the one that needs most memory."""
        size = np.maximum(self._src, self._tgt)[self._usable]
        by_length = self._usable[np.argsort(-size, kind="stable")]
        total = np.maximum(np.cumsum(self._src[by_length]), np.cumsum(self._tgt[by_length]))
        budget = min(self._training.max_tokens_per_device, self._training.batch_tokens)
        return by_length[: max(1, int((total <= budget).sum()))]

    @property
    def updates_in_epoch(self) -> int:
        """Updates in the present epoch."""
        return len(self._present_plan())

    def next(self) -> list[Array]:
        """The micro-batches of the next update, over all ranks; the position moves on."""
        if self.index >= len(self._present_plan()):
            self.epoch, self.index, self._plan = self.epoch + 1, 0, None
        pairs = self._usable[self._present_plan().pairs(self.index)]
        self.index += 1
        return micro_batches(
            pairs,
            self._src,
            self._tgt,
            batch_tokens=self._training.batch_tokens,
            max_tokens=self._training.max_tokens_per_device,
            world_size=self._world_size,
        )

    def target_tokens(self, micro: list[Array]) -> int:
        """Target tokens, EOS included, of all the micro-batches of an update."""
        return int(sum(self._tgt[pairs].sum() for pairs in micro))

    def source_tokens(self, micro: list[Array]) -> int:
        """Source tokens, EOS included, of all the micro-batches of an update."""
        return int(sum(self._src[pairs].sum() for pairs in micro))

    def move_to(self, *, epoch: int, index: int) -> None:
        """Go to a position."""
        self.epoch, self.index, self._plan = epoch, index, None

    def _present_plan(self) -> Plan:
        if self._plan is None:
            self._plan = plan_epoch(
                self._src[self._usable],
                self._tgt[self._usable],
                batch_tokens=self._training.batch_tokens,
                seed=self._training.seed,
                epoch=self.epoch,
            )
        return self._plan

    def _check(self, recipe: Recipe) -> None:
        if (num_long := len(self._src) - len(self._usable)) > 0:
            _log.warning("%d pairs are longer than model.max_positions and are left out", num_long)
        if len(self._usable) == 0:
            raise DataError("no training pair is left", where="training data", hint="raise model.max_positions")
        longest = int(np.maximum(self._src, self._tgt)[self._usable].max())
        if longest > self._training.max_tokens_per_device:
            raise RecipeError(
                f"a training sentence has {longest} pieces, more than training.max_tokens_per_device,"
                f" {self._training.max_tokens_per_device}",
                where="training.max_tokens_per_device",
                hint=f"--set training.max_tokens_per_device={longest}, or prepare with a smaller cleaning.max_words",
            )
