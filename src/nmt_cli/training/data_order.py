"""The order of the training data: which pairs make up each update, epoch after epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from nmt_cli.dataset.batches import Batch, make_batch
from nmt_cli.dataset.micro_batches import (
    MicroBatchShape,
    accumulation_steps,
    deal_micro_batches,
    first_rows_that_fit,
    micro_batch_shape,
)
from nmt_cli.dataset.plan_cache import PlanCache
from nmt_cli.dataset.plan_files import DamagedPlan, EpochPlan, PlanKey
from nmt_cli.dataset.prepared_data import PreparedData, Rows, num_tokens
from nmt_cli.dataset.sampled_pieces import BLOCK_PAIRS
from nmt_cli.errors import DataError, RecipeError
from nmt_cli.recipe.schema import Recipe

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedUpdate:
    """The micro-batches of an update over all ranks, their tokens with EOS, and the position after the update.

    Micro-batch i is for rank i % world size; some may be empty. `slots` counts both sides of all micro-batches.
    """

    micro_batches: list[Rows]
    source_tokens: int
    target_tokens: int
    epoch: int
    index: int
    slots: int


class DataOrder:
    """The updates of a training in turn. Its position is (epoch, index in the epoch's plan), both from 0.

    A device takes `max_tokens` slots per side at once. Plans are built when they are needed, in the data's directory
    or, if this directory is read-only, in `fallback`. `PlanCache` gets `beat`.
    """

    def __init__(
        self,
        data: PreparedData,
        recipe: Recipe,
        *,
        world_size: int,
        max_tokens: int,
        fallback: Path,
        beat: Callable[[], None],
    ) -> None:
        self._data, self._training = data, recipe.training
        self._plans = PlanCache(data, fallback=fallback, beat=beat)
        self._pairs, self._alpha = data.split("train"), recipe.tokenizer.alpha
        self._world_size, self._max_positions = world_size, recipe.model.max_positions
        self.max_tokens, self.epoch, self.index = max_tokens, 0, 0
        self._plan: EpochPlan | None = None
        self._shape: MicroBatchShape | None = None
        self._is_checked = False

    def open(self) -> EpochPlan:
        """The current epoch's plan; built if there is none.

        Raises DataError if no pair is left, RecipeError if a pair fits no update or no device.
        """
        return self._open(anew=False) if self._plan is None else self._plan

    def limit(self, max_tokens: int) -> None:
        """Let a device take this many slots per side at once from now on."""
        self.max_tokens, self._shape = max_tokens, None

    @property
    def shape(self) -> MicroBatchShape:
        """The shape of every micro-batch, in all epochs."""
        if self._shape is None:
            plan = self.open()
            self._shape = micro_batch_shape(
                plan.invariants.budgets,
                num_micro_batches=self._num_micro_batches,
                pairs_in_update=plan.invariants.pairs_in_update,
                max_tokens_in_sentence=plan.invariants.max_tokens_in_sentence,
                max_tokens=self.max_tokens,
            )
        return self._shape

    @property
    def max_tokens_in_sentence(self) -> int:
        """Tokens of the longest sentence, EOS included: no device may take fewer at once."""
        return self.open().invariants.max_tokens_in_sentence

    @property
    def longest(self) -> Rows:
        """The pairs of a full micro-batch of the longest sentences, which needs the most memory."""
        return first_rows_that_fit(self.open().longest_rows, shape=self.shape)

    @property
    def full(self) -> Rows:
        """The pairs of an ordinary full micro-batch."""
        return self._deal(self._rows(self.open().fullest_update))[0]

    def batch(self, rows: Rows, *, device: torch.device, pinned: bool) -> Batch:
        """A micro-batch of these rows of the current epoch, with each pair as often as it passes through the model."""
        num_passes, plan = self._training.num_passes, self.open()
        shape = self.shape.for_passes(num_passes)
        make = partial(make_batch, np.tile(rows, num_passes), device=device, shape=shape, pinned=pinned)
        if plan.sampled_pairs is None:
            return make(self._pairs)
        try:
            return make(plan.sampled_pairs)
        except DataError as error:
            pairs = self._rebuild(f"{plan.directory.name}: {error.message}").sampled_pairs
            assert pairs is not None
            return make(pairs)

    def next(self) -> PlannedUpdate:
        """The next update; the position moves on."""
        if self.index >= len(self.open()):
            self.move_to(epoch=self.epoch + 1, index=0)
        rows = self._rows(self.index)
        micro_batches = self._deal(rows)
        self.index += 1
        return PlannedUpdate(
            micro_batches,
            source_tokens=num_tokens(rows, side="src"),
            target_tokens=num_tokens(rows, side="tgt"),
            epoch=self.epoch,
            index=self.index,
            slots=len(micro_batches) * (self.shape.src_slots + self.shape.tgt_slots),
        )

    def move_to(self, *, epoch: int, index: int) -> None:
        """Go to a position."""
        if epoch != self.epoch:
            self._close()
        self.epoch, self.index = epoch, index

    def plan_ahead(self, *, num_updates: int, num_workers: int) -> None:
        """Begin to build the next epoch's plan in another process if its pieces are sampled, which takes a while.

        This is done only if one of the next `num_updates` is in that epoch.
        """
        takes_a_while = self._alpha is not None and len(self._pairs) > BLOCK_PAIRS
        if takes_a_while and self.index + num_updates > len(self.open()):
            self._plans.build_ahead(self._key(self.epoch + 1), num_workers=num_workers)

    def close(self) -> None:
        """Build no more plans, here or in the process that builds the next epoch's."""
        self._plans.close()

    @property
    def _num_micro_batches(self) -> int:
        """Micro-batches of an update over all ranks; `_deal` adds one per rank if the pairs do not fit."""
        steps = accumulation_steps(
            batch_tokens=self._training.batch_tokens, max_tokens=self.max_tokens, world_size=self._world_size
        )
        return steps * self._world_size

    def _deal(self, rows: Rows) -> list[Rows]:
        return deal_micro_batches(
            rows, shape=self.shape, num_micro_batches=self._num_micro_batches, world_size=self._world_size
        )

    def _rows(self, index: int) -> Rows:
        try:
            return self.open().rows(index)
        except DamagedPlan as error:
            return self._rebuild(str(error)).rows(index)

    def _rebuild(self, damage: str) -> EpochPlan:
        logger.warning("the plan %s: it is built anew", damage)
        self._close()
        return self._open(anew=True)

    def _open(self, *, anew: bool) -> EpochPlan:
        self._plan = self._plans.open(self._key(self.epoch), anew=anew)
        if not self._is_checked:
            self._check(self._plan)
            self._is_checked = True
        return self._plan

    def _key(self, epoch: int) -> PlanKey:
        counts = self._data.manifest.splits["train"]
        return PlanKey(
            data=self._data.manifest.fingerprint,
            num_pairs=counts.pairs,
            src_tokens=counts.source_tokens,
            tgt_tokens=counts.target_tokens,
            batch_tokens=self._training.batch_tokens,
            max_positions=self._max_positions,
            seed=self._training.seed,
            epoch=epoch,
            alpha=self._alpha,
        )

    def _close(self) -> None:
        if self._plan is not None:
            self._plan.close()
            self._plan = None

    def _check(self, plan: EpochPlan) -> None:
        if (num_left_out := plan.invariants.num_pairs_left_out) > 0:
            logger.warning("%d pairs are longer than model.max_positions and are left out", num_left_out)
        if len(plan) == 0:
            longest = max(int(side.lengths.max()) for side in (self._pairs.src, self._pairs.tgt))
            raise DataError(
                f"no training pair is left: all are longer than model.max_positions, {self._max_positions}",
                where=str(self._data.directory),
                hint=f"--set model.max_positions={longest}",
            )
        longest = plan.invariants.max_tokens_in_sentence
        subject = "a training sentence has" if self._alpha is None else "a sampled sentence may have up to"
        limits = {"training.batch_tokens": self._training.batch_tokens}
        if self._training.max_tokens_per_device != "auto":
            limits["training.max_tokens_per_device"] = self.max_tokens
        for setting, limit in limits.items():
            if longest > limit:
                raise RecipeError(
                    f"{subject} {longest} pieces, more than {setting}, {limit}",
                    where=setting,
                    hint=f"--set {setting}={longest}, or prepare with a smaller cleaning.max_words",
                )
