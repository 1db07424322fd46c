"""The loop of a training: update after update, what is due between two updates, and how the loop ends."""

from __future__ import annotations

import logging
import math
import shlex
import signal
import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

from nmt_cli.artifacts.run import Checkpoint, Run
from nmt_cli.errors import TrainingError
from nmt_cli.processes import receiving_signals
from nmt_cli.training.checkpointer import Checkpointer
from nmt_cli.training.data_order import DataOrder
from nmt_cli.training.loader import LoadedUpdate, Loader
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.reporting.metrics import Meter, Stopwatch, TrainingStatus, UpdateSums, memory_gb
from nmt_cli.training.reporting.profile import PROFILE_FOLDER, Profiler
from nmt_cli.training.reporting.reporter import Reporter
from nmt_cli.training.state import describe_pairs, pairs_of
from nmt_cli.training.update import LaunchedUpdate, Updater, UpdateResult
from nmt_cli.training.validation import Validation, Validator

Ending = Literal["finished", "patience", "preempted", "interrupted"]
_ENDINGS_BY_SIGNAL: dict[int, Ending] = {signal.SIGTERM: "preempted", signal.SIGINT: "interrupted"}
_ONE_CTRL_C_SECONDS = 1.0
_HINT_ON_DIVERGENCE = "in a new run, lower training.schedule, or set training.clip_norm=1 or --precision fp32"
logger = logging.getLogger(__name__)


class TrainingLoop:
    """Takes updates, logs, validates, saves, and stops.

    On a GPU the result of an update is read after the next update was launched; `_can_wait` tells when. The state
    counts only updates whose results were read. If something follows an update, such as a validation or a checkpoint,
    its result is read at once. All ranks read the same sums at the same place of the loop, so they decide alike.
    """

    def __init__(
        self,
        run: Run,
        *,
        order: DataOrder,
        updater: Updater,
        validator: Validator,
        checkpointer: Checkpointer,
        ranks: Ranks,
        stop: StopSignal,
        reporter: Reporter,
        profiled_updates: int,
    ) -> None:
        self._recipe, self._directory, self._metrics_file = run.recipe, run.directory, run.metrics_file
        self._begins_with_model, self._keeps_best = run.record.init_from is not None, run.num_best_kept > 0
        self._order, self._updater, self._validator, self._checkpointer = order, updater, validator, checkpointer
        self._ranks, self._stop, self._reporter = ranks, stop, reporter
        self.state = checkpointer.newest_state()
        order.move_to(epoch=self.state.epoch, index=self.state.index)  # before anything opens a plan
        self._validation: Validation | None = None
        self._in_flight: deque[_InFlight] = deque()
        self._signal: int | None = None
        self._agree_on_patience()
        self._loader = Loader(order, ranks, is_interrupted=lambda: self._agreed_signal() is not None)
        self._stopwatch = Stopwatch()
        self._meter: Meter
        self._is_profiled = profiled_updates > 0
        self._profiler = Profiler(
            run.directory / PROFILE_FOLDER,
            num_updates=profiled_updates if ranks.is_first else 0,
            device=ranks.device,
            print_line=reporter.print_line,
        )

    def resume(self) -> Ending | None:
        """Load the newest checkpoint, if there is one, and open the plan; return the ending if no update is left."""
        self.state = self._checkpointer.resume()
        if self.state.update > 0:
            if self.ending_by_recipe() is None:
                self._reporter.write_event("resume", update=self.state.update)
                self._reporter.print_line(f"resuming {self._directory} after update {self.state.update:,}")
            if self._is_validation_due(self.state.update):  # the stop came between an update and its validation
                self._validate()
                self._save()
        return self.open_plan()

    def open_plan(self) -> Ending | None:
        """Open the epoch's plan, which may take hours; return the ending by the recipe, or by a signal meanwhile."""
        try:
            self._stop.interrupts = True
            if self._stop.received is None and self.ending_by_recipe() is None:
                self._order.open()
        except _StopAsked:
            pass
        finally:
            self._stop.interrupts = False
        return self._ending_by_any_signal() or self.ending_by_recipe()

    def run(self, meter: Meter) -> Ending:
        """Take update after update, until the recipe or a signal ends the training; `meter` measures them."""
        self._meter = meter
        with self._reporter.showing_progress(self.state.update), self._profiler, self._loader:
            if self.state.update == 0 and (stop := self._validate_and_save_if_due()) is not None:
                return stop
            while (ending := self.ending_by_recipe()) is None:
                with self._profiler.update():
                    self._launch_next_update()
                    self._read_results()
                self._checkpointer.report_if_complete()
                if not self._in_flight:  # `_can_wait` lets a result wait only if nothing is due after its update
                    stop = self._validate_and_save_if_due()
                    if stop is not None:
                        return stop
        return ending

    def _launch_next_update(self) -> None:
        """Launch the next update, unless a signal comes while it is awaited."""
        self._stopwatch.start()
        number = self.state.update + len(self._in_flight) + 1
        left = self._recipe.training.updates + 1 - number
        if (loaded := self._loader.next(num_left=left)) is None:
            return
        launched = self._updater.launch(
            loaded.batches,
            number=number,
            num_micro_batches=len(loaded.planned.micro_batches),
            target_tokens=loaded.planned.target_tokens,
            received_signal=lambda: self._stop.received,
        )
        self._in_flight.append(_InFlight(number, loaded, launched))

    def _read_results(self) -> None:
        """Read the results of the updates in flight, except the last if it can wait; TrainingError at a divergence."""
        while len(self._in_flight) > 1 or (self._in_flight and not self._can_wait(self._in_flight[0].number)):
            self._record_result(self._in_flight.popleft())
            if (reason := self.state.reason_of_divergence(self._recipe.training)) is not None:
                raise self._diverged(reason, good=self._checkpointer.newest_before_divergence())

    def _can_wait(self, number: int) -> bool:
        """Whether the result of the last update may be read after the next one was launched."""
        return (
            self._updater.reads_late
            and not self._is_profiled
            and number < self._recipe.training.updates
            and self._agreed_signal() is None
            and not self._is_validation_due(number)
            and not self._is_checkpoint_due(number)
        )

    def _record_result(self, finished: _InFlight) -> None:
        """Record the result of an update in the state, and report it."""
        result, planned = finished.launched.result(), finished.loaded.planned
        micro_batches, tokens = planned.micro_batches, planned.target_tokens
        loss = result.smoothed / tokens if result.is_applied else None
        self.state = self.state.after_update(finished.number, loss=loss, epoch=planned.epoch, index=planned.index)
        self._validation, self._signal = None, result.signal
        sums = UpdateSums()
        if result.is_applied:
            sums = UpdateSums(result.smoothed, result.nll, result.kl, planned.source_tokens, tokens, planned.slots)
        else:
            self._note_skip(pairs_of(micro_batches, result.suspects))
        self._meter.add(sums, seconds=self._stopwatch.seconds, waited=self._loader.waited_seconds)
        self._report_update(result)

    def _report_update(self, result: UpdateResult) -> None:
        training, update = self._recipe.training, self.state.update
        is_log_due = update % training.log_every == 0 or update == training.updates
        if not (is_log_due or self._reporter.wants_update):
            return
        status = TrainingStatus(
            update,
            self.state.epoch,
            learning_rate=result.learning_rate,
            gradient_norm=result.gradient_norm,
            memory_gb=memory_gb(self._ranks.device),
            seconds=self._stopwatch.seconds,
        )
        if is_log_due:
            self._reporter.report_updates(status, *self._meter.report())
        self._reporter.show_update(status, self._meter.recent())

    def _note_skip(self, pairs: list[int]) -> None:
        update, in_row, reason = self.state.update, self.state.skipped_in_row, "gradients are not finite"
        self._reporter.write_event("skipped", update=update, reason=reason, in_row=in_row, pairs=pairs)
        logger.warning("update %d is skipped: its %s (%s)", update, reason, describe_pairs(pairs))

    def _diverged(self, reason: str, *, good: Checkpoint | None) -> TrainingError:
        """The error of a divergence, with the checkpoint from which a new run may begin."""
        hint = _HINT_ON_DIVERGENCE
        if good is not None:
            reason += f"; the last good checkpoint is that of update {good.update:,}"
            model = f"{self._directory}-at-{good.update}"
            hint += f"; for its --init-from: {shlex.join(['nmt', 'average', str(good.path), '-o', model])}"
        return TrainingError(reason, where=str(self._metrics_file), hint=hint)

    def _validate_and_save_if_due(self) -> Ending | None:
        """Validate and save if either is due; return the ending if a signal stops the training here."""
        is_save_due = self.state.update > 0 and self._is_checkpoint_due(self.state.update)
        stop = _ENDINGS_BY_SIGNAL.get(self._agreed_signal() or 0)
        if stop is None and self._is_validation_due(self.state.update):
            if is_save_due:
                self._save()  # a validation may take longer than a preempted machine has left
            self._validate()
            stop = self._ending_by_any_signal()
            is_save_due = is_save_due or self._keeps_best
        is_end = stop is not None or self.ending_by_recipe() is not None
        if is_save_due or (is_end and self.state.update > 0):
            self._save()
        return stop

    def _is_validation_due(self, update: int) -> bool:
        if update == 0:  # a model that the run begins with is the first to be the best
            return self._begins_with_model and self.state.best is None
        is_at_interval = update % self._recipe.validation.every == 0 or update == self._recipe.training.updates
        return is_at_interval and self.state.validated != update

    def _is_checkpoint_due(self, update: int) -> bool:
        return update % self._recipe.training.checkpoint_every == 0

    def _validate(self) -> None:
        """Validate on the first rank, and let all ranks agree on patience.

        A signal stops the validation: the next start repeats it.
        """
        self._stopwatch.stop()
        if self._ranks.is_first:
            self._validate_on_this_rank()
        self._agree_on_patience()

    def _validate_on_this_rank(self) -> None:
        self._reporter.show_note(f"validating after update {self.state.update:,}")
        try:
            measured = self._validator.measure(max_sentences=None, beat=self._raise_if_asked_to_stop)
        except _StopAsked:
            return
        if not math.isfinite(measured.loss):
            raise self._diverged(f"the validation loss after update {self.state.update:,} is not finite", good=None)
        self._validation, before, metric = measured, self.state.metric, self._recipe.validation.metric
        self.state = self.state.after_validation(measured, metric=metric)
        self._reporter.report_validation(self.state.update, measured, is_best=self.state.validations_since_best == 0)
        if self.state.metric not in (before, metric):
            self._reporter.print_line("BLEU below 1 tells nothing: until it rises, the loss decides what is best")

    def _raise_if_asked_to_stop(self) -> None:
        self._ranks.beat()
        if self._stop.received is not None:
            raise _StopAsked

    def _save(self) -> None:
        self._stopwatch.stop()
        self._checkpointer.save(self.state, validation=self._validation)

    def ending_by_recipe(self) -> Ending | None:
        """The ending by the recipe; None if the training continues."""
        if self.state.update >= self._recipe.training.updates:
            return "finished"
        return "patience" if self._is_out_of_patience else None

    def _agree_on_patience(self) -> None:
        """Tell all ranks whether the first, which validates, is out of patience."""
        patience = self._recipe.training.patience or math.inf
        self._is_out_of_patience = self._ranks.any(self.state.validations_since_best >= patience)

    def _ending_by_any_signal(self) -> Ending | None:
        """The ending for a signal to any of the ranks, the same on all ranks; SIGTERM comes before Ctrl-C."""
        return _ENDINGS_BY_SIGNAL.get(self._ranks.largest(self._stop.received or 0))

    def _agreed_signal(self) -> int | None:
        """The signal that all ranks know of: the sums of an update tell each rank of the others' signals."""
        return self._stop.received if self._ranks.size == 1 else self._signal


class StopSignal:
    """The signal that has asked the process to end; None if there was none. If it `interrupts`, it raises _StopAsked.

    Under torchrun a Ctrl-C `comes_twice`: from the terminal, and from torchrun, which passes it on.
    """

    def __init__(self, *, comes_twice: bool) -> None:
        self.received: int | None = None
        self._ignoring_seconds, self._since = _ONE_CTRL_C_SECONDS if comes_twice else 0.0, 0.0
        self.interrupts = False

    def listening(self) -> AbstractContextManager[None]:
        """Note signals while the block runs; a second Ctrl-C raises KeyboardInterrupt at once."""
        return receiving_signals(self._receive)

    def _receive(self, number: int) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._since = number, now
            if self.interrupts:
                raise _StopAsked
        elif number == signal.SIGINT and now - self._since >= self._ignoring_seconds:
            raise KeyboardInterrupt


class _StopAsked(Exception):
    """A signal came during a validation, or before the first plan was open."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    """An update that was launched, and whose result was not read yet."""

    number: int
    loaded: LoadedUpdate
    launched: LaunchedUpdate
