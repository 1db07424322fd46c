"""A training from its run's directory to its final model: the parts, the warm-up, the loop, and the end."""

from __future__ import annotations

import logging
import math
import shlex
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from nmt_cli.artifacts.average import choose_checkpoints, write_average_of_checkpoints
from nmt_cli.artifacts.checkpoints import Checkpoint
from nmt_cli.artifacts.directory_kinds import kind_of
from nmt_cli.artifacts.model_directory import load_saved_config
from nmt_cli.artifacts.run import Run
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.devices import Precision, multiply_float32_fast
from nmt_cli.errors import TrainingError
from nmt_cli.memory import keep_freed_memory
from nmt_cli.training.checkpointer import Checkpointer
from nmt_cli.training.data_order import DataOrder, PlannedUpdate
from nmt_cli.training.initial_weights import build_model
from nmt_cli.training.loader import LoadedUpdate, Loader
from nmt_cli.training.micro_batch_size import fit_to_memory, max_tokens_before_fitting, warm_up_with_tokens_that_fit
from nmt_cli.training.objective import warn_of_triton_problem
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.reporting.profile import PROFILE_FOLDER, Profiler
from nmt_cli.training.reporting.reporter import TENSORBOARD_FOLDER, Reporter, describe_start, describe_training
from nmt_cli.training.reporting.training_metrics import (
    Meter,
    Stopwatch,
    TrainingStatus,
    UpdateSums,
    measure_compute,
    memory_gb,
)
from nmt_cli.training.runs import write_record
from nmt_cli.training.state import TrainingState
from nmt_cli.training.stop_signal import ENDINGS_BY_SIGNAL, Ending, StopAsked, StopSignal
from nmt_cli.training.update import LaunchedUpdate, Updater, UpdateResult
from nmt_cli.training.validation import Validator

logger = logging.getLogger(__name__)
_SANITY_SENTENCES = 2
_HINT_ON_DIVERGENCE = "in a new run, lower training.schedule, or set training.clip_norm=1 or --precision fp32"


class _Due(NamedTuple):
    """What follows an update: a validation, a checkpoint, and the ending that a signal asks for."""

    validation: bool
    checkpoint: bool
    stop: Ending | None


class Trainer:
    """Trains the model of a run on prepared data, from its newest checkpoint or from the start.

    `has_tensorboard` asks for event files beside metrics.jsonl, `profiled_updates` for a profile of this many updates.

    On a GPU the result of an update is read after the next update was launched. The state counts only updates whose
    results were read. If a validation, a checkpoint or the end is due after an update, its result is read at once. All
    ranks read the same sums at the same place of the loop, so they decide alike. A signal is received by one
    rank, and agreed when the sums of an update have told all. Between updates, the ranks ask each other.
    """

    def __init__(
        self,
        run: Run,
        data: PreparedData,
        *,
        ranks: Ranks,
        precision: Precision,
        command: Sequence[str],
        stop: StopSignal,
        has_tensorboard: bool,
        profiled_updates: int,
    ) -> None:
        self._run, self._recipe = run, (recipe := run.recipe)
        self._ranks, self._stop, self._command, self._profiled_updates = ranks, stop, command, profiled_updates
        if ranks.device.type == "cpu":
            keep_freed_memory()
            multiply_float32_fast(ranks.device)
        self._order = order = DataOrder(
            data,
            recipe,
            world_size=ranks.size,
            max_tokens=max_tokens_before_fitting(recipe.training),
            run_directory=run.directory,
            beat=ranks.beat,
        )
        model = build_model(recipe, data).to(ranks.device)
        self._updater = Updater(recipe, model, precision=precision, ranks=ranks)
        self._reporter = Reporter(
            run.metrics_file if ranks.is_first else None,
            updates=recipe.training.updates,
            tensorboard=run.directory / TENSORBOARD_FOLDER if has_tensorboard else None,
        )
        self._checkpointer = Checkpointer(run, data, self._updater, self._reporter, ranks=ranks)
        self._validator = Validator(recipe, data, self._updater, order, ranks=ranks)
        self._state = TrainingState(precision)
        self._loader = Loader(order, ranks, is_interrupted=lambda: self._agreed_signal() is not None)
        self._stopwatch = Stopwatch()
        self._meter: Meter  # set by `_start_up`
        self._profiler = Profiler(
            run.directory / PROFILE_FOLDER,
            num_updates=profiled_updates if ranks.is_first else 0,
            device=ranks.device,
            print_line=self._reporter.print_line,
        )

    def train(self) -> Ending:
        """Train to the end of the recipe, or until patience or a signal ends the training, and save."""
        with self._reporter, self._checkpointer.finishing():
            ending = self._catch_up()
            if ending is None:
                self._start_up()
                ending = self._take_updates()
            elif self._profiled_updates and ending in ("finished", "patience"):
                self._reporter.print_line("--profile: there is no update left to watch")
            self._checkpointer.finish()
            update = self._state.update
            if ending not in ("finished", "patience"):
                self._reporter.write_event("end", reason=ending, update=update)
                where = f"after update {update:,}, saved" if update else "before the first update"
                again = "without --restart " if "--restart" in self._command else ""
                self._reporter.print_line(f"stopped {where}: the same command {again}continues")
            elif self._ranks.is_first:
                self._write_final_model(ending)
        self._ranks.barrier()
        return ending

    def _catch_up(self) -> Ending | None:
        """Come to where the training was stopped, and open the plan; return the ending if no update is left."""
        self._state = state = self._checkpointer.resume()
        if state.ending(self._recipe.training) is None:
            if state.update > 0:
                self._reporter.write_event("resume", update=state.update)
                self._reporter.print_line(f"resuming {self._run.directory} after update {state.update:,}")
            if self._ranks.is_first and self._run.record.finished is not None:
                self._run = write_record(self._run, is_finished=False)
        self._order.move_to(epoch=state.epoch, index=state.index)
        self._run = fit_to_memory(self._order, self._run, self._updater, ranks=self._ranks, open_plan=self._open_plan)
        if state.update > 0 and self._due_after(state.update).validation:  # the stop came before this validation
            self._validate()
            self._save()
        return self._open_plan()

    def _open_plan(self) -> Ending | None:
        """Open the epoch's plan, which may take hours, or return the ending by the recipe or by a signal."""
        try:
            self._stop.interrupts = True
            if self._stop.received is None and self._state.ending(self._recipe.training) is None:
                self._order.open()
        except StopAsked:
            pass
        finally:
            self._stop.interrupts = False
        return self._ending_by_any_signal() or self._state.ending(self._recipe.training)

    def _start_up(self) -> None:
        """Warm up, and make the sanity pass; the meter is there from here on."""
        update = self._state.update
        self._reporter.write_event("start", update=update, **describe_start(self._updater, self._ranks))
        max_tokens = self._order.max_tokens
        self._reporter.print_line(describe_training(self._recipe, self._updater, self._ranks, max_tokens=max_tokens))
        warn_of_triton_problem(self._updater.reason_not_to_compile, self._ranks.device)
        cost = measure_compute(self._updater.model, self._ranks)
        if update == 0 or self._ranks.device.type == "cuda":
            self._run = warm_up_with_tokens_that_fit(
                self._order, self._run, self._warm_up, release=self._updater.release, ranks=self._ranks
            )
        if self._ranks.is_first:  # run.json gets the tokens that fit, now that the warm-up has tried them
            self._run = write_record(self._run, is_finished=False)
        self._meter = Meter(cost, num_passes=self._recipe.training.num_passes)
        if update == 0:
            self._sanity_pass()
            if self._ranks.is_first and (warning := self._run.record.few_pairs_warning):
                logger.warning("%s\n%s", *warning)

    def _warm_up(self) -> None:
        device, extremes = self._ranks.device, (self._order.longest_rows, self._order.full_rows)
        self._updater.warm_up([self._order.batch(rows, device=device, pinned=False) for rows in extremes])

    def _sanity_pass(self) -> None:
        """Provoke late failures early: validate a few sentences with search and score, and save."""
        self._validator.measure(max_sentences=_SANITY_SENTENCES, beat=self._ranks.beat)
        if self._ranks.is_first:
            self._checkpointer.try_saving(self._state)
        self._reporter.print_line("sanity pass done: train, validate, decode, score, save")

    def _take_updates(self) -> Ending:
        """Take update after update, until the recipe or a signal ends the training."""
        in_flight: deque[tuple[PlannedUpdate, LaunchedUpdate]] = deque()  # whose results were not read yet
        with self._reporter.showing_progress(self._state.update), self._profiler, self._loader:
            ending = self._do_what_is_due()
            while ending is None:
                with self._profiler.update():
                    self._stopwatch.start()
                    number = self._state.update + len(in_flight) + 1
                    loaded = self._loader.next(num_left=self._recipe.training.updates + 1 - number)
                    if loaded is not None:  # else a signal came
                        in_flight.append((loaded.planned, self._launch(loaded, number=number)))
                    while len(in_flight) > 1 or (in_flight and self._is_read_at_once(self._state.update + 1)):
                        self._read_result(*in_flight.popleft())
                self._checkpointer.report_if_complete()
                if not in_flight:
                    ending = self._do_what_is_due()
        return ending

    def _launch(self, loaded: LoadedUpdate, *, number: int) -> LaunchedUpdate:
        return self._updater.launch(
            loaded.batches,
            number=number,
            num_micro_batches=len(loaded.planned.micro_batches),
            target_tokens=loaded.planned.target_tokens,
            received_signal=lambda: self._stop.received,
        )

    def _is_read_at_once(self, number: int) -> bool:
        """Whether the result of this update is read before the next one is launched."""
        return not self._updater.reads_late or self._profiled_updates > 0 or any(self._due_after(number))

    def _read_result(self, planned: PlannedUpdate, launched: LaunchedUpdate) -> None:
        """Bring the state to the end of the next update, and report it; TrainingError at a divergence."""
        result = launched.result()
        self._state = self._state.after(planned, result)
        sums = UpdateSums()
        if result.is_applied:
            tokens = planned.source_tokens, planned.target_tokens
            sums = UpdateSums(result.smoothed, result.nll, result.kl, *tokens, planned.slots)
        else:
            pairs = sorted(int(pair) for index in result.suspects for pair in planned.micro_batches[index]["pair"])
            self._reporter.report_skipped(self._state.update, pairs=pairs, in_row=self._state.skipped_in_row)
        self._meter.add(sums, seconds=self._stopwatch.seconds, waited=self._loader.waited_seconds)
        self._report_update(result)
        if (reason := self._state.reason_of_divergence(self._recipe.training)) is not None:
            raise self._diverged(reason, good=self._checkpointer.newest_before_divergence())

    def _report_update(self, result: UpdateResult) -> None:
        training, update = self._recipe.training, self._state.update
        is_log_due = update % training.log_every == 0 or update == training.updates
        if not (is_log_due or self._reporter.wants_update):
            return
        status = TrainingStatus(
            update,
            self._state.epoch,
            learning_rate=result.learning_rate,
            gradient_norm=result.gradient_norm,
            memory_gb=memory_gb(self._ranks.device),
            seconds=self._stopwatch.seconds,
        )
        if is_log_due:
            self._reporter.report_updates(status, *self._meter.report())
        self._reporter.show_update(status, self._meter.recent())

    def _diverged(self, reason: str, *, good: Checkpoint | None) -> TrainingError:
        """The error of a divergence, with the checkpoint from which a new run may begin."""
        hint = _HINT_ON_DIVERGENCE
        if good is not None:
            reason += f"; the last good checkpoint is that of update {good.update:,}"
            model = f"{self._run.directory}-at-{good.update}"
            hint += f"; for its --init-from: {shlex.join(['nmt', 'average', str(good.path), '-o', model])}"
        return TrainingError(reason, where=str(self._run.metrics_file), hint=hint)

    def _due_after(self, update: int) -> _Due:
        """What is due after this update, as far as it is known before the validation."""
        training, every = self._recipe.training, self._recipe.validation.every
        stop = ENDINGS_BY_SIGNAL.get(self._agreed_signal() or 0)
        if update == 0:  # a model that the run begins with is the first to be the best
            is_due = self._run.record.init_from is not None and self._state.best is None
            return _Due(validation=is_due and stop is None, checkpoint=False, stop=stop)
        is_due = (update % every == 0 or update == training.updates) and self._state.validated != update
        return _Due(validation=is_due and stop is None, checkpoint=update % training.checkpoint_every == 0, stop=stop)

    def _do_what_is_due(self) -> Ending | None:
        """Validate and save if either is due after the last update; return the ending if the training ends here."""
        due = self._due_after(self._state.update)
        stop, is_save_due = due.stop, due.checkpoint
        if due.validation:
            if due.checkpoint:
                self._save()  # a validation may take longer than a preempted machine has left
            self._validate()
            stop = self._ending_by_any_signal()
            is_save_due = due.checkpoint or self._run.num_best_kept > 0
        ending = stop or self._state.ending(self._recipe.training)
        if is_save_due or (ending is not None and self._state.update > 0):
            self._save()
        return ending

    def _validate(self) -> None:
        """Validate, with the same result on all ranks. A signal stops the validation: the next start repeats it."""
        self._stopwatch.stop()
        self._reporter.show_note(f"validating after update {self._state.update:,}")
        try:
            measured = self._validator.measure(max_sentences=None, beat=self._raise_if_asked_to_stop)
        except StopAsked:
            return
        if not math.isfinite(measured.loss):
            raise self._diverged(f"the validation loss after update {self._state.update:,} is not finite", good=None)
        before, metric = self._state.metric, self._recipe.validation.metric
        self._state = self._state.after_validation(measured, metric=metric)
        self._reporter.report_validation(self._state.update, measured, is_best=self._state.validations_since_best == 0)
        if self._state.metric not in (before, metric):
            self._reporter.print_line("BLEU below 1 tells nothing: until it rises, the loss decides what is best")

    def _raise_if_asked_to_stop(self) -> None:
        self._ranks.beat()
        if self._stop.received is not None:
            raise StopAsked

    def _save(self) -> None:
        self._stopwatch.stop()
        self._checkpointer.save(self._state)

    def _ending_by_any_signal(self) -> Ending | None:
        """The ending for a signal to any of the ranks, the same on all ranks; SIGTERM comes before Ctrl-C."""
        return ENDINGS_BY_SIGNAL.get(self._ranks.largest(self._stop.received or 0))

    def _agreed_signal(self) -> int | None:
        """The signal that all ranks know of: the sums of an update tell each rank of the others' signals."""
        return self._stop.received if self._ranks.size == 1 else self._state.signal

    def _write_final_model(self, ending: Ending) -> None:
        """Write the model directory, unless it is there, report the end, and mark the run as finished.

        The model is the best checkpoint if the recipe keeps the best, else the last.
        """
        run, recipe, state, report = self._run, self._recipe, self._state, self._reporter.print_line
        output = run.directory / "model"
        (chosen,) = choose_checkpoints(run, by="best" if run.num_best_kept else "last", number=1)
        saved = load_saved_config(output) if kind_of(output) == "model" else None
        is_there = saved is not None and (saved.updates, saved.recipe) == ([chosen.update], recipe)
        if ending == "patience":
            bad = f"no better {state.metric} in {state.validations_since_best} validations"
            report(
                f"{bad}: training ends after update {state.update:,}; the best was after {chosen.update:,};"
                " a larger training.patience continues it"
            )
        if run.record.finished is not None and is_there:
            report(f"{run.directory} finished before, after update {state.update:,}; its model is {output}")
            return
        if run.record.finished is None:
            self._reporter.write_event("end", reason=ending, update=state.update)
            run = write_record(run, is_finished=True)
        # The average of one checkpoint is the checkpoint itself.
        write_average_of_checkpoints(run, [chosen], output=output, overwrite=True, command=self._command, measure=None)
        report(f"model of update {chosen.update:,} written to {output}")
        if chosen.update == 0:
            report("no update is better than the model that the run began with")
