"""The training loop: when to update, log, validate, save, roll back, and stop."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from nmt_cli.artifacts.run import Run
from nmt_cli.dataset.batches import Batch
from nmt_cli.dataset.store import PreparedData, Rows
from nmt_cli.devices import Precision, multiply_float32_fast
from nmt_cli.errors import TrainingError
from nmt_cli.languages import short_code
from nmt_cli.memory import keep_freed_memory
from nmt_cli.training.checkpointer import Checkpointer
from nmt_cli.training.checkpoints import TrainingState
from nmt_cli.training.data_order import DataOrder
from nmt_cli.training.divergence import RecentUpdates, describe_pairs, pairs_of
from nmt_cli.training.ending import Ending, StopSignal, ending_by_signal, write_final_model
from nmt_cli.training.initial_weights import build_model
from nmt_cli.training.loader import LoadedUpdate, Loader
from nmt_cli.training.micro_batch_size import fit_to_memory, max_tokens_of, warm_up_with_tokens_that_fit
from nmt_cli.training.objective import warn_of_missing_tool
from nmt_cli.training.ranks.ranks import Ranks, is_under_torchrun
from nmt_cli.training.reporting.metrics import Meter, Stopwatch, TrainingStatus, UpdateSums, measure_speed, memory_gb
from nmt_cli.training.reporting.profile import PROFILE_FOLDER, Profiler
from nmt_cli.training.reporting.progress import BOARD_FOLDER, Reporter, describe_start, describe_training
from nmt_cli.training.runs import mark_finished
from nmt_cli.training.update import LaunchedUpdate, Updater, UpdateResult
from nmt_cli.training.validation import Validation, Validator

_SANITY_SENTENCES = 2
_HINT_ON_DIVERGENCE = (
    "in a new run, lower the learning rate (training.schedule), or set training.clip_norm=1 or --precision fp32"
)
logger = logging.getLogger(__name__)


class Trainer:
    """Trains the model of a run on prepared data, from its newest checkpoint or from the start.

    `has_tensorboard` asks for event files beside metrics.jsonl, `profiled_updates` for a profile of this many updates.

    On a GPU the result of an update is read after the next update was launched; `_can_wait` tells when. The state
    counts only updates whose results were read. If something follows an update, such as a validation or a checkpoint,
    its result is read at once. After a rollback, the batches of the update in flight are taken again. All ranks read
    the same sums at the same place of the loop, so they decide alike.
    """

    def __init__(
        self,
        run: Run,
        data: PreparedData,
        *,
        ranks: Ranks,
        precision: Precision,
        command: Sequence[str],
        has_tensorboard: bool,
        profiled_updates: int,
    ) -> None:
        self._recipe = recipe = run.recipe
        self._metrics_file = run.directory / "metrics.jsonl"
        self._ranks = ranks
        self._command = command
        self._has_tensorboard = has_tensorboard
        self._profiled_updates = profiled_updates
        if ranks.device.type == "cpu":
            keep_freed_memory()
            multiply_float32_fast(ranks.device)
        max_tokens = max_tokens_of(recipe.training)
        self._order = DataOrder(
            data,
            recipe,
            world_size=ranks.size,
            max_tokens=max_tokens,
            has_even_end=run.record.has_even_end,
            fallback=run.directory,
            beat=ranks.heartbeat.beat,
        )
        model = build_model(recipe, data).to(ranks.device)
        self._updater = Updater(recipe, model, precision=precision, ranks=ranks)
        self._run = run = fit_to_memory(self._order, run, model, precision=precision, ranks=ranks)
        language = short_code(run.record.languages.target) if run.record.counts_tokens_by_language else None
        self._validator = Validator(
            recipe, data, self._updater, self._order, device=ranks.device, target_language=language
        )
        self._checkpointer = Checkpointer(run, data, self._updater, ranks=ranks)
        self._state = TrainingState(precision)
        self._validation: Validation | None = None
        self._recent = RecentUpdates()
        self._in_flight: deque[_InFlight] = deque()
        self._updates_to_repeat: deque[LoadedUpdate] = deque()
        self._signal: int | None = None
        self._is_out_of_patience = False
        self._loader = Loader(self._order, ranks, is_interrupted=lambda: self._agreed_signal() is not None)
        self._meter: Meter
        self._profiling: Profiler
        self._stopwatch = Stopwatch()
        self._stop = StopSignal(comes_twice=is_under_torchrun())

    def train(self) -> Ending:
        """Train to the end of the recipe, or until patience or a signal ends the training, and save."""
        file = self._metrics_file if self._ranks.is_first else None
        board = self._run.directory / BOARD_FOLDER if self._has_tensorboard else None
        with (
            Reporter(file, updates=self._recipe.training.updates, board=board) as reporter,
            self._stop.listening(),
            self._checkpointer,
        ):
            self._resume(reporter)
            ending = self._ending_by_any_signal() or self._ending_by_recipe()
            if ending is None:
                ending = self._prepare_and_loop(reporter)
            elif self._profiled_updates:
                reporter.say("--profile: there is no update left to watch")
            self._checkpointer.join()
            if ending not in ("finished", "patience"):
                reporter.event("end", reason=ending, update=self._state.update)
                reporter.say(f"stopped after update {self._state.update:,}, saved: the same command continues")
            elif self._ranks.is_first:
                write_final_model(self._run, self._state, ending, reporter, command=self._command)
        self._ranks.wait()
        return ending

    def _prepare_and_loop(self, reporter: Reporter) -> Ending:
        """Open the plan, warm up, make the sanity pass, and run the loop."""
        if self._run.record.finished is not None and self._ranks.is_first:
            self._run = mark_finished(self._run, is_finished=False)
        self._order.open()
        reporter.event("start", update=self._state.update, **describe_start(self._updater, self._ranks))
        reporter.say(describe_training(self._recipe, self._updater, self._ranks, max_tokens=self._order.max_tokens))
        if self._ranks.is_first:
            warn_of_missing_tool(self._updater.reason_not_to_compile)
        speed = measure_speed(self._updater.model, self._ranks)
        self._meter = Meter(speed.for_passes(self._recipe.training.num_passes))
        if self._state.update == 0 or self._updater.reason_not_to_compile is None:
            self._run = warm_up_with_tokens_that_fit(
                self._order, self._run, self._warm_up, release=self._updater.release, ranks=self._ranks
            )
        if self._state.update == 0:
            self._sanity_pass(reporter)
        with reporter.counting_from(self._state.update), self._profiled(reporter) as self._profiling, self._loader:
            return self._loop(reporter)

    def _warm_up(self) -> None:
        self._updater.warm_up([self._batch(rows) for rows in (self._order.longest, self._order.full)])

    def _profiled(self, reporter: Reporter) -> Profiler:
        return Profiler(
            self._run.directory / PROFILE_FOLDER,
            num_updates=self._profiled_updates if self._ranks.is_first else 0,
            device=self._ranks.device,
            waited=lambda: self._loader.waited,
            pause=self._stopwatch.stop,
            say=reporter.say,
        )

    def _loop(self, reporter: Reporter) -> Ending:
        """Make update after update, until the recipe or a signal ends the training."""
        while (ending := self._ending_by_recipe()) is None:
            with self._profiling.update():
                self._launch_next_update()
                problem = self._read_results(reporter)
            self._checkpointer.look()
            if problem is not None:
                self._roll_back(problem, reporter)
            elif not self._in_flight:  # `_can_wait` lets a result wait only if nothing is due after its update
                stop = self._validate_and_save_if_due(reporter)
                if stop is not None:
                    return stop
        return ending

    def _validate_and_save_if_due(self, reporter: Reporter) -> Ending | None:
        """Do what is due after the last update; return the ending if a signal stops the training here."""
        is_save_due = self._is_checkpoint_due(self._state.update)
        stop = ending_by_signal(self._agreed_signal())
        if stop is None and self._is_validation_due(self._state.update):
            if is_save_due:
                self._save(reporter)  # a validation may take longer than a preempted machine has left
            self._validate(reporter)
            stop = self._ending_by_any_signal()
            is_save_due = is_save_due or self._recipe.training.keep_best > 0
        if is_save_due or stop is not None or self._ending_by_recipe() is not None:
            self._save(reporter)
        return stop

    def _ending_by_any_signal(self) -> Ending | None:
        """The ending for a signal to any of the ranks, the same on all ranks; SIGTERM comes before Ctrl-C."""
        return ending_by_signal(self._ranks.largest(self._stop.received or 0))

    def _agreed_signal(self) -> int | None:
        """The signal that all ranks know of: the sums of an update tell each rank of the others' signals."""
        return self._stop.received if self._ranks.size == 1 else self._signal

    def _ending_by_recipe(self) -> Ending | None:
        """The ending by the recipe; None if the training continues."""
        if self._state.update >= self._recipe.training.updates:
            return "finished"
        return "patience" if self._is_out_of_patience else None

    def _agree_on_patience(self) -> None:
        """Tell all ranks whether the first, which validates, is out of patience."""
        patience = self._recipe.training.patience
        if patience is not None:
            self._is_out_of_patience = self._ranks.any(self._state.validations_since_best >= patience)

    def _launch_next_update(self) -> None:
        """Launch the next update, unless a signal comes while it is awaited."""
        self._stopwatch.run()
        number = self._state.update + len(self._in_flight) + 1
        left = self._recipe.training.updates + 1 - number
        loaded = self._updates_to_repeat.popleft() if self._updates_to_repeat else self._loader.next(num_left=left)
        if loaded is None:
            return
        launched = self._updater.launch(
            loaded.batches,
            number=number,
            num_micro=len(loaded.update.micro),
            target_tokens=loaded.update.target_tokens,
            received=lambda: self._stop.received,
        )
        self._in_flight.append(_InFlight(number, loaded, launched))

    def _read_results(self, reporter: Reporter) -> str | None:
        """Read the results of the updates in flight, except the last if it can wait; return at the first problem."""
        while len(self._in_flight) > 1 or (self._in_flight and not self._can_wait(self._in_flight[0].number)):
            self._record_result(self._in_flight.popleft(), reporter)
            if (problem := self._state.reason_of_divergence(self._recipe.training)) is not None:
                return problem
        return None

    def _can_wait(self, number: int) -> bool:
        """Whether the result of the last update may be read after the next one was launched."""
        return (
            self._updater.reads_late
            and not self._profiled_updates
            and number < self._recipe.training.updates
            and self._agreed_signal() is None
            and not self._is_validation_due(number)
            and not self._is_checkpoint_due(number)
        )

    def _record_result(self, finished: _InFlight, reporter: Reporter) -> None:
        """Record the result of an update in the state, and report it."""
        result, update = finished.launched.result(), finished.loaded.update
        micro, tokens = update.micro, update.target_tokens
        loss = result.smoothed / tokens if result.is_applied else None
        self._recent.add(finished.number, loss=math.inf if loss is None else loss, micro=micro)
        self._state = self._state.after_update(finished.number, loss=loss, epoch=update.epoch, index=update.index)
        self._validation, self._signal = None, result.signal
        sums = UpdateSums()
        if result.is_applied:
            kl = math.nan if result.kl is None else result.kl
            sums = UpdateSums(result.smoothed, result.nll, kl, update.source_tokens, tokens, update.slots)
        else:
            self._note_skip(pairs_of(micro, result.suspects), reporter)
        self._meter.add(sums, seconds=self._stopwatch.seconds, waited=self._loader.waited)
        self._report_update(result, reporter)

    def _batch(self, rows: Rows) -> Batch:
        return self._order.batch(rows, device=self._ranks.device, pinned=False)

    def _report_update(self, result: UpdateResult, reporter: Reporter) -> None:
        training, update = self._recipe.training, self._state.update
        is_log_due = update % training.log_every == 0 or update == training.updates
        if not (is_log_due or reporter.is_live or reporter.wants_line):
            return
        status = TrainingStatus(
            self._state.update,
            self._state.epoch,
            learning_rate=result.learning_rate,
            gradient_norm=result.gradient_norm,
            memory_gb=memory_gb(self._ranks.device),
            seconds=self._stopwatch.seconds,
        )
        if is_log_due:
            reporter.train(status, *self._meter.line())
        reporter.advance(status, self._meter.recent())

    def _note_skip(self, pairs: list[int], reporter: Reporter) -> None:
        update, in_row = self._state.update, self._state.skipped_in_row
        reporter.event("skipped", update=update, reason="gradients are not finite", in_row=in_row, pairs=pairs)
        if self._ranks.is_first:
            logger.warning("update %d is skipped: its gradients are not finite (%s)", update, describe_pairs(pairs))

    def _roll_back(self, problem: str, reporter: Reporter) -> None:
        """Go back to the newest checkpoint before the trouble, and continue from there with the next pairs."""
        training, failed = self._recipe.training, self._state
        self._updates_to_repeat.extend(update.loaded for update in self._in_flight)
        self._in_flight.clear()
        if failed.returns >= training.max_returns:
            times = f", after {failed.returns} return(s) to an earlier checkpoint" if failed.returns else ""
            raise TrainingError(f"{problem}{times}", where=str(self._metrics_file), hint=_HINT_ON_DIVERGENCE)
        self._stopwatch.stop()
        self._state = state = self._checkpointer.roll_back(failed)
        self._agree_on_patience()
        self._validation = None
        self._meter.forget()
        if self._ranks.is_first:
            logger.warning(
                "%s: back to update %d, and on with other pairs (%s)", problem, state.update, self._metrics_file
            )
        worst = self._recent.worst()
        reporter.event("returned", update=failed.update, to=state.update, reason=problem, worst=worst)
        self._recent.clear()

    def _is_validation_due(self, update: int) -> bool:
        is_at_interval = update % self._recipe.validation.every == 0 or update == self._recipe.training.updates
        return is_at_interval and self._state.validated != update

    def _is_checkpoint_due(self, update: int) -> bool:
        return update % self._recipe.training.checkpoint_every == 0

    def _validate(self, reporter: Reporter) -> None:
        """Validate on the first rank, and let all ranks agree on patience.

        A signal stops the validation: the next start repeats it.
        """
        self._stopwatch.stop()
        if self._ranks.is_first:
            self._validate_on_this_rank(reporter)
        self._agree_on_patience()

    def _validate_on_this_rank(self, reporter: Reporter) -> None:
        reporter.note(f"validating after update {self._state.update:,}")
        try:
            measured = self._validator.measure(max_sentences=None, beat=self._raise_if_asked_to_stop)
        except _StopAsked:
            return
        if not math.isfinite(measured.loss):
            raise TrainingError(
                f"the validation loss after update {self._state.update:,} is not finite",
                where=str(self._metrics_file),
                hint=_HINT_ON_DIVERGENCE,
            )
        self._validation = measured
        self._state = self._state.after_validation(measured, metric=self._recipe.validation.metric)
        reporter.validation(self._state.update, measured, is_best=self._state.validations_since_best == 0)

    def _raise_if_asked_to_stop(self) -> None:
        self._ranks.heartbeat.beat()
        if self._stop.received is not None:
            raise _StopAsked

    def _save(self, reporter: Reporter) -> None:
        self._stopwatch.stop()
        self._checkpointer.save(self._state, validation=self._validation, told=partial(reporter.event, "checkpoint"))

    def _resume(self, reporter: Reporter) -> None:
        self._state = state = self._checkpointer.resume()
        self._agree_on_patience()
        if state.update == 0:
            return
        self._order.move_to(epoch=state.epoch, index=state.index)
        if self._ending_by_recipe() is None:
            reporter.event("resume", update=state.update)
            reporter.say(f"resuming {self._run.directory} after update {state.update:,}")
        if self._is_validation_due(state.update):  # the stop came between an update and its validation
            self._validate(reporter)
            self._save(reporter)

    def _sanity_pass(self, reporter: Reporter) -> None:
        """Provoke late failures early: validate a few sentences with search and score, and save."""
        if self._ranks.is_first:
            self._validator.measure(max_sentences=_SANITY_SENTENCES, beat=self._ranks.heartbeat.beat)
            self._checkpointer.rehearse(self._state)
        reporter.say("sanity pass done: train, validate, decode, score, save")


class _StopAsked(Exception):
    """A signal came during a validation."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    """An update that was launched, and whose result was not read yet."""

    number: int
    loaded: LoadedUpdate
    launched: LaunchedUpdate
