"""The training loop: when to update, log, validate, save, return, and stop."""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from nmt_cli.bundle.average import choose, make_model
from nmt_cli.bundle.config import load_config
from nmt_cli.bundle.kinds import kind_of
from nmt_cli.bundle.run import Run
from nmt_cli.dataset.plan import accumulation
from nmt_cli.dataset.store import PreparedData
from nmt_cli.devices import Precision, keep_freed_memory
from nmt_cli.errors import TrainingError
from nmt_cli.model.attention import choose_kernel
from nmt_cli.training.checkpointer import Checkpointer
from nmt_cli.training.checkpoints import TrainingState
from nmt_cli.training.distributed import Ranks, is_under_torchrun
from nmt_cli.training.divergence import CALMER, RecentUpdates, diverged, divergence, in_words, pairs_of
from nmt_cli.training.initial import build_model
from nmt_cli.training.order import DataOrder
from nmt_cli.training.progress import Reporter, Stopwatch, Window
from nmt_cli.training.runs import mark_finished
from nmt_cli.training.signals import StopSignal
from nmt_cli.training.update import Updater, UpdateResult
from nmt_cli.training.validation import Validation, Validator

Ending = Literal["finished", "patience", "preempted", "interrupted"]
_SANITY_SENTENCES = 2
_log = logging.getLogger(__name__)


class _StopAsked(Exception):
    """A signal came during a validation."""


class Trainer:
    """Trains the model of a run on prepared data, from its newest checkpoint or from the start."""

    def __init__(
        self, run: Run, data: PreparedData, *, ranks: Ranks, precision: Precision, command: Sequence[str]
    ) -> None:
        self._run, self._recipe = run, run.recipe
        self._ranks, self._precision, self._command = ranks, precision, command
        if ranks.device.type == "cpu":
            keep_freed_memory()
        pairs = data.split("train")
        self._order = DataOrder(data, self._recipe, world_size=ranks.size, fallback=run.directory)
        model = build_model(self._recipe, data).to(ranks.device)
        self._updater = Updater(self._recipe, pairs, model, precision=precision, ranks=ranks)
        self._validator = Validator(self._recipe, data, self._updater, device=ranks.device)
        self._checkpointer = Checkpointer(run, data, self._updater, precision=precision, ranks=ranks)
        self._state = TrainingState(precision)
        self._validation: Validation | None = None
        self._recent = RecentUpdates()
        self._stopwatch, self._window, self._stop = Stopwatch(), Window(), StopSignal(comes_twice=is_under_torchrun())

    def train(self) -> Ending:
        """Train to the end of the recipe, or until patience or a signal ends it; saved either way."""
        file = self._run.directory / "metrics.jsonl" if self._ranks.is_first else None
        with Reporter(file, updates=self._recipe.training.updates) as reporter, self._stop.listening():
            self._resume(reporter)
            ending = self._asked_to_stop() or self._end() or self._train_on(reporter)
            if ending in ("finished", "patience"):
                self._finish(reporter, ending)
            else:
                reporter.event("end", reason=ending, update=self._state.update)
                reporter.say(f"stopped after update {self._state.update:,}, saved: the same command continues")
        self._ranks.wait()
        return ending

    def _train_on(self, reporter: Reporter) -> Ending:
        if self._run.record.finished is not None and self._ranks.is_first:
            self._run = mark_finished(self._run, is_finished=False)
        self._order.open()
        reporter.say(self._plan_in_words())
        if self._state.update == 0:
            self._sanity_pass(reporter)
        with reporter.counting_from(self._state.update):
            return self._loop(reporter)

    def _loop(self, reporter: Reporter) -> Ending:
        while (ending := self._end()) is None:
            self._update(reporter)
            if (problem := self._divergence()) is not None:
                self._return(problem, reporter)
                continue
            stop = self._asked_to_stop()
            is_measured = stop is None and self._is_validation_due()
            if is_measured:
                if self._is_checkpoint_due(is_measured=False):
                    self._save(reporter)  # a validation may outlast the time that a preempted machine has
                self._validate(reporter)
                stop = self._asked_to_stop()
            if stop or self._is_checkpoint_due(is_measured=is_measured) or self._end() is not None:
                self._save(reporter)
            if stop is not None:
                return stop
        return ending

    def _asked_to_stop(self) -> Ending | None:
        """The ending that a signal to any of the ranks asks for: the same on all; SIGTERM counts before Ctrl-C."""
        number = self._ranks.largest(self._stop.received or 0)
        return "preempted" if number == signal.SIGTERM else "interrupted" if number == signal.SIGINT else None

    def _end(self) -> Ending | None:
        """How the training has ended by its recipe; None where it goes on."""
        training, state = self._recipe.training, self._state
        if state.update >= training.updates:
            return "finished"
        if training.patience is None:
            return None
        return "patience" if self._ranks.any(state.validations_since_best >= training.patience) else None

    def _update(self, reporter: Reporter) -> None:
        self._stopwatch.run()
        micro = self._order.next()
        tokens, number = self._order.target_tokens(micro), self._state.update + 1
        result = self._updater.update(micro, number=number, target_tokens=tokens)
        course, loss = self._state.course, result.smoothed / tokens if result.is_applied else math.inf
        self._recent.add(number, loss=loss, micro=micro)
        self._state = replace(
            self._state,
            update=number,
            applied=self._state.applied + result.is_applied,
            skipped_in_row=0 if result.is_applied else self._state.skipped_in_row + 1,
            epoch=self._order.epoch,
            index=self._order.index,
            course=course.after(loss) if result.is_applied else course,
        )
        self._validation = None
        if result.is_applied:
            self._window.add(result.smoothed, result.nll, self._order.source_tokens(micro), tokens)
        else:
            self._note_skip(pairs_of(micro, result.suspects), reporter)
        reporter.advance(
            number,
            epoch=self._order.epoch,
            loss=result.smoothed,
            target_tokens=tokens if result.is_applied else 0,
            seconds=self._stopwatch.seconds,
            learning_rate=result.learning_rate,
        )
        if number % self._recipe.training.log_every == 0:
            self._log(result, reporter)

    def _log(self, result: UpdateResult, reporter: Reporter) -> None:
        seconds = self._stopwatch.seconds
        reporter.train(
            update=self._state.update,
            epoch=self._state.epoch,
            window=self._window,
            seconds=seconds,
            learning_rate=result.learning_rate,
            norm=result.gradient_norm,
        )
        self._window = Window(started=seconds)

    def _note_skip(self, pairs: list[int], reporter: Reporter) -> None:
        update, in_row = self._state.update, self._state.skipped_in_row
        reporter.event("skipped", update=update, reason="gradients are not finite", in_row=in_row, pairs=pairs)
        if self._ranks.is_first:
            _log.warning("update %d is skipped: its gradients are not finite (%s)", update, in_words(pairs))

    def _divergence(self) -> str | None:
        training, state = self._recipe.training, self._state
        return divergence(
            state.course,
            skipped_in_row=state.skipped_in_row,
            update=state.update,
            spike_nats=training.spike_nats,
            max_skipped=training.max_skipped_updates,
        )

    def _return(self, problem: str, reporter: Reporter) -> None:
        """Go back to the newest checkpoint before the trouble, and on from there with the pairs that come next."""
        training, failed = self._recipe.training, self._state
        metrics = self._run.directory / "metrics.jsonl"
        if failed.returns >= training.max_returns:
            raise diverged(problem, returns=failed.returns, metrics=metrics)
        self._stopwatch.stop()
        self._state = state = self._checkpointer.return_from(failed)
        self._validation, self._window = None, Window(started=self._stopwatch.seconds)
        if self._ranks.is_first:
            _log.warning("%s: back to update %d, and on with other pairs (%s)", problem, state.update, metrics)
        worst = self._recent.worst()
        reporter.event("returned", update=failed.update, to=state.update, reason=problem, worst=worst)
        self._recent.clear()

    def _is_validation_due(self) -> bool:
        update = self._state.update
        is_at_interval = update % self._recipe.validation.every == 0 or update == self._recipe.training.updates
        return is_at_interval and self._state.validated != update

    def _is_checkpoint_due(self, *, is_measured: bool) -> bool:
        training = self._recipe.training
        return self._state.update % training.checkpoint_every == 0 or (is_measured and training.keep_best > 0)

    def _validate(self, reporter: Reporter) -> None:
        """Measure on the first rank; its record of the best decides, and the others hear of it through patience.

        A signal ends it before its time: the next start begins with it.
        """
        self._stopwatch.stop()
        if not self._ranks.is_first:
            return
        reporter.note(f"validating after update {self._state.update:,}")
        try:
            measured = self._validator.measure(max_sentences=None, beat=self._go_on_unless_stopped)
        except _StopAsked:
            return
        if not math.isfinite(measured.loss):
            raise TrainingError(
                f"the validation loss after update {self._state.update:,} is not finite",
                where=str(self._run.directory / "metrics.jsonl"),
                hint=CALMER,
            )
        self._validation = measured
        self._state = self._state.after_validation(measured, metric=self._recipe.validation.metric)
        reporter.validation(self._state.update, measured, is_best=self._state.validations_since_best == 0)

    def _go_on_unless_stopped(self) -> None:
        self._ranks.pulse.beat()
        if self._stop.received is not None:
            raise _StopAsked

    def _save(self, reporter: Reporter) -> None:
        self._stopwatch.stop()
        path = self._checkpointer.save(self._state, validation=self._validation)
        reporter.event("checkpoint", update=self._state.update, path=str(path))

    def _resume(self, reporter: Reporter) -> None:
        self._state = state = self._checkpointer.resume()
        if state.update == 0:
            return
        self._order.move_to(epoch=state.epoch, index=state.index)
        if self._end() is None:
            reporter.event("resume", update=state.update)
            reporter.say(f"resuming {self._run.directory} after update {state.update:,}")
        if self._is_validation_due():  # the stop came between the update and its validation
            self._validate(reporter)
            self._save(reporter)

    def _sanity_pass(self, reporter: Reporter) -> None:
        """The largest micro-batch, a validation with search and score, and a save, before hours are spent on them."""
        self._updater.model.train()
        self._updater.accumulate(self._order.longest, key=(0, 0), target_tokens=1)
        self._updater.weights.gradients.zero_()
        if self._ranks.is_first:
            self._validator.measure(max_sentences=_SANITY_SENTENCES, beat=self._ranks.pulse.beat)
            self._checkpointer.rehearse(self._state)
        reporter.say("sanity pass done: train, validate, decode, score, save")

    def _plan_in_words(self) -> str:
        """What is trained on what, and how an update is spread."""
        architecture, training, ranks = self._recipe.model, self._recipe.training, self._ranks
        dtype = self._updater.model.output_weight.dtype
        kernel = choose_kernel(
            ranks.device, dtype, d_k=architecture.d_k, d_v=architecture.d_v, window=architecture.encoder_window
        )
        rounds = accumulation(
            batch_tokens=training.batch_tokens, max_tokens=training.max_tokens_per_device, world_size=ranks.size
        )
        model = f"{self._updater.model.num_parameters() / 1e6:.1f} million parameters"
        spread = f"{ranks.size} device(s) x {rounds} micro-batch(es)"
        return (
            f"{model} on {ranks.device} in {self._precision} with {kernel} attention;"
            f" an update of {training.batch_tokens:,} tokens is {spread}"
        )

    def _finish(self, reporter: Reporter, ending: Ending) -> None:
        """Leave a model directory: of the best checkpoint where the recipe keeps those, else of the last."""
        if not self._ranks.is_first:
            return
        output, keeps_best = self._run.directory / "model", self._recipe.training.keep_best > 0
        (chosen,) = choose(self._run, last=None if keeps_best else 1, best=1 if keeps_best else None)
        update = self._state.update
        is_there = kind_of(output) == "model" and load_config(output).updates == [chosen.update]
        if self._run.record.finished is not None and is_there:
            reporter.say(f"{self._run.directory} finished before, after update {update:,}; its model is {output}")
            return
        if ending == "patience":
            reporter.say(
                f"no better {self._recipe.validation.metric} in {self._state.validations_since_best} validations:"
                f" training ends after update {update:,}"
            )
        reporter.event("end", reason=ending, update=update)
        run = mark_finished(self._run, is_finished=True)
        make_model(run, [chosen], output=output, overwrite=True, command=self._command)
        reporter.say(f"model of update {chosen.update:,} written to {output}")
