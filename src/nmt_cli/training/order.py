"""Where a training stands in its data: which pairs make up each update, epoch after epoch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from nmt_cli.dataset.plan import DamagedPlan, Plan, PlanKey, fitting, micro_batches
from nmt_cli.dataset.plan_folder import open_plan
from nmt_cli.dataset.rows import Rows, sum_lengths
from nmt_cli.dataset.store import PreparedData
from nmt_cli.errors import DataError, RecipeError
from nmt_cli.recipe.schema import Recipe

_log = logging.getLogger(__name__)


class DataOrder:
    """The updates of a training in turn; its position is (epoch, index in the epoch's plan), both from 0.

    Plans are built as they are needed, in the data's directory or, where that cannot be written, in `fallback`.
    """

    def __init__(self, data: PreparedData, recipe: Recipe, *, world_size: int, fallback: Path) -> None:
        self._data, self._fallback = data, fallback
        self._training, self._world_size = recipe.training, world_size
        self._max_positions = recipe.model.max_positions
        self.epoch, self.index = 0, 0
        self._plan: Plan | None = None
        self._is_checked = False

    def open(self) -> None:
        """Have the present epoch's plan at hand, which takes the time that building it takes.

        Tells of pairs that the model cannot take. Raises DataError where none is left, RecipeError where one fits no
        device.
        """
        self._present_plan()

    @property
    def longest(self) -> Rows:
        """The pairs of a full micro-batch of the longest sentences, the one that needs most memory."""
        budget = min(self._training.max_tokens_per_device, self._training.batch_tokens)
        return fitting(self._present_plan().longest, max_tokens=budget)

    @property
    def updates_in_epoch(self) -> int:
        """Updates in the present epoch."""
        return len(self._present_plan())

    def next(self) -> list[Rows]:
        """The micro-batches of the next update, over all ranks; the position moves on."""
        if self.index >= len(self._present_plan()):
            self.move_to(epoch=self.epoch + 1, index=0)
        rows = self._rows(self.index)
        self.index += 1
        return micro_batches(
            rows,
            batch_tokens=self._training.batch_tokens,
            max_tokens=self._training.max_tokens_per_device,
            world_size=self._world_size,
        )

    def target_tokens(self, micro: Sequence[Rows]) -> int:
        """Target tokens, EOS included, of all the micro-batches of an update."""
        return sum(sum_lengths(rows, side="tgt") for rows in micro)

    def source_tokens(self, micro: Sequence[Rows]) -> int:
        """Source tokens, EOS included, of all the micro-batches of an update."""
        return sum(sum_lengths(rows, side="src") for rows in micro)

    def move_to(self, *, epoch: int, index: int) -> None:
        """Go to a position."""
        if epoch != self.epoch:
            self._close()
        self.epoch, self.index = epoch, index

    def _rows(self, index: int) -> Rows:
        try:
            return self._present_plan().rows(index)
        except DamagedPlan as problem:
            _log.warning("the plan %s: it is built anew", problem)
            self._close()
            return self._present_plan(anew=True).rows(index)

    def _present_plan(self, *, anew: bool = False) -> Plan:
        if self._plan is None:
            counts = self._data.manifest.splits["train"]
            key = PlanKey(
                data=self._data.manifest.fingerprint,
                num_pairs=counts.pairs,
                src_tokens=counts.source_tokens,
                tgt_tokens=counts.target_tokens,
                batch_tokens=self._training.batch_tokens,
                max_positions=self._max_positions,
                seed=self._training.seed,
                epoch=self.epoch,
            )
            self._plan = open_plan(self._data, key=key, fallback=self._fallback, anew=anew)
            if not self._is_checked:
                self._check(self._plan)
                self._is_checked = True
        return self._plan

    def _close(self) -> None:
        if self._plan is not None:
            self._plan.close()
            self._plan = None

    def _check(self, plan: Plan) -> None:
        if plan.num_left_out > 0:
            _log.warning("%d pairs are longer than model.max_positions and are left out", plan.num_left_out)
        if len(plan) == 0:
            raise DataError("no training pair is left", where="training data", hint="raise model.max_positions")
        longest = max(int(plan.longest[f"{side}_length"][0]) for side in ("src", "tgt"))
        if longest > self._training.max_tokens_per_device:
            raise RecipeError(
                f"a training sentence has {longest} pieces, more than training.max_tokens_per_device,"
                f" {self._training.max_tokens_per_device}",
                where="training.max_tokens_per_device",
                hint=f"--set training.max_tokens_per_device={longest}, or prepare with a smaller cleaning.max_words",
            )
