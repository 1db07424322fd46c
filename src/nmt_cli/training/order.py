"""Where a training stands in its data: which pairs make up each update, epoch after epoch."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from nmt_cli.dataset.dealing import fitting, micro_batches
from nmt_cli.dataset.plan import DamagedPlan, Plan, PlanKey
from nmt_cli.dataset.plan_folder import open_plan
from nmt_cli.dataset.rows import Rows, sum_lengths
from nmt_cli.dataset.shape import Shape, accumulation, micro_shape
from nmt_cli.dataset.store import PreparedData
from nmt_cli.errors import DataError, RecipeError
from nmt_cli.recipe.schema import Recipe

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Update:
    """The micro-batches of an update over all ranks, their tokens with EOS, and the position after it.

    Micro-batch i is for rank i % world size; one may be empty. `slots` are those of both sides of all of them.
    """

    micro: list[Rows]
    source_tokens: int
    target_tokens: int
    epoch: int
    index: int
    slots: int


class DataOrder:
    """The updates of a training in turn; its position is (epoch, index in the epoch's plan), both from 0.

    A device takes `max_tokens` slots a side at once. Plans are built as they are needed, in the data's directory or,
    where that cannot be written, in `fallback`.
    """

    def __init__(self, data: PreparedData, recipe: Recipe, *, world_size: int, max_tokens: int, fallback: Path) -> None:
        self._data, self._fallback = data, fallback
        self._training, self._world_size, self._max_tokens = recipe.training, world_size, max_tokens
        self._max_positions = recipe.model.max_positions
        self.epoch, self.index = 0, 0
        self._plan: Plan | None = None
        self._is_checked = False

    def open(self) -> None:
        """Have the present epoch's plan at hand, which takes the time that building it takes.

        Tells of pairs that the model cannot take. Raises DataError where none is left, RecipeError where one fits no
        update or no device.
        """
        self._present_plan()

    @property
    def max_tokens(self) -> int:
        """The slots a side that a device takes at once."""
        return self._max_tokens

    def limit(self, max_tokens: int) -> None:
        """Let a device take so many slots a side at once from now on."""
        self._max_tokens = max_tokens
        self.__dict__.pop("shape", None)

    @cached_property
    def shape(self) -> Shape:
        """The shape of every micro-batch, in all epochs."""
        plan = self._present_plan()
        return micro_shape(
            plan.facts.budgets,
            count=self._num_micro,
            pairs_in_update=plan.facts.pairs_in_update,
            longest=plan.longest_length,
            max_tokens=self._max_tokens,
        )

    @property
    def longest(self) -> Rows:
        """The pairs of a full micro-batch of the longest sentences, the one that needs most memory."""
        return fitting(self._present_plan().longest, shape=self.shape)

    @property
    def full(self) -> Rows:
        """The pairs of an ordinary full micro-batch."""
        return self._dealt(self._rows(self._present_plan().fullest))[0]

    @property
    def updates_in_epoch(self) -> int:
        """Updates in the present epoch."""
        return len(self._present_plan())

    def next(self) -> Update:
        """The next update; the position moves on."""
        if self.index >= len(self._present_plan()):
            self.move_to(epoch=self.epoch + 1, index=0)
        rows = self._rows(self.index)
        micro = self._dealt(rows)
        self.index += 1
        return Update(
            micro,
            source_tokens=sum_lengths(rows, side="src"),
            target_tokens=sum_lengths(rows, side="tgt"),
            epoch=self.epoch,
            index=self.index,
            slots=len(micro) * (self.shape.src_slots + self.shape.tgt_slots),
        )

    def move_to(self, *, epoch: int, index: int) -> None:
        """Go to a position."""
        if epoch != self.epoch:
            self._close()
        self.epoch, self.index = epoch, index

    @property
    def _num_micro(self) -> int:
        """Micro-batches of an update, over all ranks, unless one more of each is needed to fit it."""
        size = self._world_size
        return size * accumulation(
            batch_tokens=self._training.batch_tokens, max_tokens=self._max_tokens, world_size=size
        )

    def _dealt(self, rows: Rows) -> list[Rows]:
        return micro_batches(rows, shape=self.shape, count=self._num_micro, world_size=self._world_size)

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
        if plan.facts.num_left_out > 0:
            _log.warning("%d pairs are longer than model.max_positions and are left out", plan.facts.num_left_out)
        if len(plan) == 0:
            raise DataError("no training pair is left", where="training data", hint="raise model.max_positions")
        if (longest := plan.longest_length) > self._training.batch_tokens:
            raise RecipeError(
                f"a training sentence has {longest} pieces, more than training.batch_tokens,"
                f" {self._training.batch_tokens}",
                where="training.batch_tokens",
                hint=f"--set training.batch_tokens={longest}, or prepare with a smaller cleaning.max_words",
            )
        if longest > self._max_tokens:
            raise RecipeError(
                f"a training sentence has {longest} pieces, more than training.max_tokens_per_device,"
                f" {self._max_tokens}",
                where="training.max_tokens_per_device",
                hint=f"--set training.max_tokens_per_device={longest}, or prepare with a smaller cleaning.max_words",
            )
