"""The order of the training data: which pairs make up each update, epoch after epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from nmt_cli.dataset.batches import Batch, make_batch
from nmt_cli.dataset.links import WordLinks
from nmt_cli.dataset.micro_batches import (
    MicroBatchShape,
    accumulation_steps,
    deal_micro_batches,
    first_rows_that_fit,
    micro_batch_shape,
)
from nmt_cli.dataset.plan_computation import EpochInvariants, EpochPlan, Mixture, compute_plan, expected_invariants
from nmt_cli.dataset.prepared_data import PreparedData, Rows, count_tokens
from nmt_cli.dataset.sampled_pieces import BLOCK_PAIRS, SAMPLED, SampledPieces, measure_sampling_cost
from nmt_cli.errors import DataError, RecipeError
from nmt_cli.recipe.schema import Recipe

# The next epoch is sampled after so many updates of this one. By then no rank reads the last epoch, which is removed.
_UPDATES_BEFORE_SAMPLING = 8

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


def check_temperature(data: PreparedData, recipe: Recipe) -> None:
    """Raise RecipeError if the recipe has a temperature, and the data a single direction."""
    temperature = recipe.training.temperature
    if temperature != 1 and data.manifest.splits["train"].by_direction is None:
        raise RecipeError(
            f"training.temperature is {temperature:g}, but the data has one direction",
            where=str(data.directory),
            hint="--set training.temperature=1",
        )


def mixture_of(data: PreparedData, recipe: Recipe) -> Mixture | None:
    """How an epoch mixes the directions of the data; None if it has every pair once."""
    sizes, temperature = data.manifest.splits["train"].by_direction, recipe.training.temperature
    return None if sizes is None or temperature == 1 else Mixture(sizes, temperature)


class DataOrder:
    """The updates of a training in turn. Its position is (epoch, index in the epoch's plan), both from 0.

    A device takes `max_tokens` slots per side at once. A plan is computed when its epoch begins. Sampled pieces lie in
    `run_directory`, and `beat` is called while the training waits for them.
    """

    def __init__(
        self,
        data: PreparedData,
        recipe: Recipe,
        *,
        world_size: int,
        max_tokens: int,
        run_directory: Path,
        beat: Callable[[], None],
    ) -> None:
        self._data, self._training, self._run_directory, self._beat = data, recipe.training, run_directory, beat
        self._pairs, self._alpha = data.split("train"), recipe.tokenizer.alpha
        self._mixture = mixture_of(data, recipe)
        self._word_links = WordLinks(data) if recipe.training.guided_alignment else None
        self._invariants: EpochInvariants | None = None  # known from the first plan on
        self._sampled: SampledPieces | None = None
        self._world_size, self._max_positions = world_size, recipe.model.max_positions
        self.max_tokens, self.epoch, self.index = max_tokens, 0, 0
        self._plan: EpochPlan | None = None
        self._shape: MicroBatchShape | None = None

    def open(self) -> EpochPlan:
        """The current epoch's plan.

        Raises DataError if no pair is left, RecipeError if a pair fits no update or no device.
        """
        if self._plan is None:
            if self._alpha is None:
                self._pairs = self._data.split("train")
            else:
                self._sampled = self._sampled or self._begin_sampling(self._alpha)
                self._pairs = self._sampled.open(self.epoch)
            plan = compute_plan(
                self._pairs,
                batch_tokens=self._training.batch_tokens,
                max_positions=self._max_positions,
                seed=self._training.seed,
                epoch=self.epoch,
                invariants=self._invariants,
                mixture=self._mixture,
            )
            if self._invariants is None:
                self._check(plan.invariants)
            self._plan, self._invariants = plan, plan.invariants
        return self._plan

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
    def longest_rows(self) -> Rows:
        """The pairs of a full micro-batch of the longest sentences, which needs the most memory."""
        plan = self.open()
        return first_rows_that_fit(self._pairs.rows(plan.longest_pairs), shape=self.shape)

    @property
    def full_rows(self) -> Rows:
        """The pairs of an ordinary full micro-batch."""
        return self._deal(self._rows(self.open().fullest_update))[0]

    def batch(self, rows: Rows, *, device: torch.device, pinned: bool) -> Batch:
        """A micro-batch of these rows of the current epoch, with each pair as often as it passes through the model."""
        num_passes = self._training.num_passes
        shape = self.shape.for_passes(num_passes)  # opens the epoch, and with it its pairs
        rows = np.tile(rows, num_passes)
        return make_batch(rows, self._pairs, device=device, shape=shape, pinned=pinned, word_links=self._word_links)

    def next(self) -> PlannedUpdate:
        """The next update; the position moves on."""
        if self.index >= len(self.open()):
            self.move_to(epoch=self.epoch + 1, index=0)
        rows = self._rows(self.index)
        micro_batches = self._deal(rows)
        self.index += 1
        return PlannedUpdate(
            micro_batches,
            source_tokens=count_tokens(rows, side="src"),
            target_tokens=count_tokens(rows, side="tgt"),
            epoch=self.epoch,
            index=self.index,
            slots=len(micro_batches) * (self.shape.src_slots + self.shape.tgt_slots),
        )

    def move_to(self, *, epoch: int, index: int) -> None:
        """Go to a position."""
        if epoch != self.epoch:
            self._plan = None
        self.epoch, self.index = epoch, index

    def sample_ahead(self, *, num_updates: int, num_workers: int) -> None:
        """Begin to sample the next epoch in other processes if pieces are sampled, and if that takes a while.

        This is done only if one of the next `num_updates` is in that epoch.
        """
        if self._sampled is None or len(self._pairs) <= BLOCK_PAIRS or self.index < _UPDATES_BEFORE_SAMPLING:
            return
        if self.index + num_updates > len(self.open()):
            self._sampled.sample_ahead(self.epoch + 1, num_workers=num_workers)

    def close(self) -> None:
        """Sample no more, here or in other processes."""
        if self._sampled is not None:
            self._sampled.close()

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
        pairs = self.open().pairs_of_update(index)
        return self._pairs.rows(pairs)

    def _begin_sampling(self, alpha: float) -> SampledPieces:
        """Set the invariants of all epochs, before any is sampled, and return the sampled epochs."""
        batch_tokens, max_positions, seed = self._training.batch_tokens, self._max_positions, self._training.seed
        cost = measure_sampling_cost(self._data, alpha=alpha, seed=seed, max_positions=max_positions)
        self._invariants = expected_invariants(
            self._pairs,
            batch_tokens=batch_tokens,
            max_positions=max_positions,
            cost=cost,
            mixture=self._mixture,
        )
        self._check(self._invariants)
        return SampledPieces(
            self._data,
            self._run_directory / SAMPLED,
            alpha=alpha,
            seed=seed,
            max_tokens_in_sentence=self._invariants.max_tokens_in_sentence,
            beat=self._beat,
        )

    def _check(self, invariants: EpochInvariants) -> None:
        if (num_left_out := invariants.num_pairs_left_out) > 0:
            logger.warning("%d pairs are longer than model.max_positions and are left out", num_left_out)
        if num_left_out == len(self._pairs):
            longest = max(int(side.lengths.max()) for side in (self._pairs.src, self._pairs.tgt))
            raise DataError(
                f"no training pair is left: all are longer than model.max_positions, {self._max_positions}",
                where=str(self._data.directory),
                hint=f"--set model.max_positions={longest}",
            )
        longest = invariants.max_tokens_in_sentence
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
