"""A training from its run's directory to its final model: the parts, the warm-up, the loop, and the end."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from nmt_cli.artifacts.average import choose_checkpoints, write_average_of_checkpoints
from nmt_cli.artifacts.directory_kinds import kind_of
from nmt_cli.artifacts.model_directory import load_saved_config
from nmt_cli.artifacts.run import Run
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.devices import Precision, multiply_float32_fast
from nmt_cli.memory import keep_freed_memory
from nmt_cli.training.checkpointer import Checkpointer
from nmt_cli.training.data_order import DataOrder
from nmt_cli.training.initial_weights import build_model
from nmt_cli.training.loop import Ending, StopSignal, TrainingLoop
from nmt_cli.training.micro_batch_size import fit_to_memory, max_tokens_before_fitting, warm_up_with_tokens_that_fit
from nmt_cli.training.objective import warn_of_triton_problem
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.reporting.metrics import Meter, measure_compute
from nmt_cli.training.reporting.reporter import TENSORBOARD_FOLDER, Reporter, describe_start, describe_training
from nmt_cli.training.runs import mark_finished
from nmt_cli.training.update import Updater
from nmt_cli.training.validation import Validator

logger = logging.getLogger(__name__)
_SANITY_SENTENCES = 2


class Trainer:
    """Trains the model of a run on prepared data, from its newest checkpoint or from the start.

    `has_tensorboard` asks for event files beside metrics.jsonl, `profiled_updates` for a profile of this many updates.
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
        self._ranks, self._command, self._profiled_updates = ranks, command, profiled_updates
        if ranks.device.type == "cpu":
            keep_freed_memory()
            multiply_float32_fast(ranks.device)
        self._order = order = DataOrder(
            data,
            recipe,
            world_size=ranks.size,
            max_tokens=max_tokens_before_fitting(recipe.training),
            fallback=run.directory,
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
        self._validator = Validator(recipe, data, self._updater, order, device=ranks.device)
        self._loop = TrainingLoop(
            run,
            order=order,
            updater=self._updater,
            validator=self._validator,
            checkpointer=self._checkpointer,
            ranks=ranks,
            stop=stop,
            reporter=self._reporter,
            profiled_updates=profiled_updates,
        )

    def train(self) -> Ending:
        """Train to the end of the recipe, or until patience or a signal ends the training, and save."""
        with self._reporter, self._checkpointer.finishing():
            was_finished = self._run.record.finished is not None
            if was_finished and self._ranks.is_first and self._loop.ending_by_recipe() is None:
                self._run = mark_finished(self._run, is_finished=False)
            open_plan = self._loop.open_plan
            self._run = fit_to_memory(self._order, self._run, self._updater, ranks=self._ranks, open_plan=open_plan)
            ending = self._loop.resume()
            if ending is None:
                ending = self._loop.run(self._prepare())
            elif self._profiled_updates and ending in ("finished", "patience"):
                self._reporter.print_line("--profile: there is no update left to watch")
            self._checkpointer.join()
            state = self._loop.state
            if ending not in ("finished", "patience"):
                self._reporter.write_event("end", reason=ending, update=state.update)
                where = f"after update {state.update:,}, saved" if state.update else "before the first update"
                again = "without --restart " if "--restart" in self._command else ""
                self._reporter.print_line(f"stopped {where}: the same command {again}continues")
            elif self._ranks.is_first:
                self._write_final_model(ending)
        self._ranks.barrier()
        return ending

    def _prepare(self) -> Meter:
        """Warm up, and make the sanity pass. Returns a meter that knows the cost of a token."""
        update = self._loop.state.update
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
            self._run = mark_finished(self._run, is_finished=False)
        if update == 0:
            self._sanity_pass()
        return Meter(cost, num_passes=self._recipe.training.num_passes)

    def _warm_up(self) -> None:
        device, fullest = self._ranks.device, (self._order.longest, self._order.full)
        self._updater.warm_up([self._order.batch(rows, device=device, pinned=False) for rows in fullest])

    def _sanity_pass(self) -> None:
        """Provoke late failures early: validate a few sentences with search and score, and save."""
        if self._ranks.is_first:
            self._validator.measure(max_sentences=_SANITY_SENTENCES, beat=self._ranks.beat)
            self._checkpointer.try_saving(self._loop.state)
        self._reporter.print_line("sanity pass done: train, validate, decode, score, save")
        if self._ranks.is_first and (warning := self._run.record.few_pairs_warning):
            logger.warning("%s", warning)

    def _write_final_model(self, ending: Ending) -> None:
        """Write the model directory, unless it is there, report the end, and mark the run as finished.

        The model is the best checkpoint if the recipe keeps the best, else the last.
        """
        run, recipe, state, report = self._run, self._recipe, self._loop.state, self._reporter.print_line
        output = run.directory / "model"
        (chosen,) = choose_checkpoints(run, by="best" if run.num_best_kept else "last", number=1)
        saved = load_saved_config(output) if kind_of(output) == "model" else None
        is_there = saved is not None and (saved.updates, saved.recipe) == ([chosen.update], recipe)
        if run.record.finished is not None and is_there:
            report(f"{run.directory} finished before, after update {state.update:,}; its model is {output}")
            return
        if run.record.finished is None:
            if ending == "patience":
                bad = f"no better {state.metric} in {state.validations_since_best} validations"
                report(f"{bad}: training ends after update {state.update:,}; the best was after {chosen.update:,}")
            self._reporter.write_event("end", reason=ending, update=state.update)
            run = mark_finished(run, is_finished=True)
        # The average of one checkpoint is the checkpoint itself.
        write_average_of_checkpoints(run, [chosen], output=output, overwrite=True, command=self._command, measure=None)
        report(f"model of update {chosen.update:,} written to {output}")
        if chosen.update == 0:
            report("no update is better than the model that the run began with")
