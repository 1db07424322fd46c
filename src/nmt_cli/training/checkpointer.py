"""The way of a training to its checkpoints and back: saved as it stands, resumed, and returned after a divergence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType

from nmt_cli import files
from nmt_cli.bundle.run import Checkpoint, Run
from nmt_cli.bundle.weights import weights_of
from nmt_cli.dataset.store import PreparedData
from nmt_cli.devices import Precision
from nmt_cli.errors import ModelError
from nmt_cli.training.background import BackgroundWriter, DirectWriter, TensorsByFile, Writer
from nmt_cli.training.checkpoints import CheckpointFolder, TrainingState, tensors_of
from nmt_cli.training.distributed import Ranks
from nmt_cli.training.initial import build_model, read_weights
from nmt_cli.training.runs import recipe_fingerprint
from nmt_cli.training.update import Updater
from nmt_cli.training.validation import Validation


class Checkpointer:
    """Moves weights, optimizer and state between a training and its run's checkpoints.

    The first rank writes, and chooses what all of them read. A checkpoint that was saved where the recipe asks for
    none, since training was stopped there, is interim: it makes room for the next one, so that in the end a training
    that was stopped leaves the checkpoints of one that was not, and returns to the same.

    On a GPU a thread writes while training goes on. It is joined before anything else reads or writes the folder, and
    when the context of a checkpointer ends.
    """

    def __init__(self, run: Run, data: PreparedData, updater: Updater, *, precision: Precision, ranks: Ranks) -> None:
        self._run, self._data, self._updater = run, data, updater
        self._precision, self._ranks = precision, ranks
        fingerprint = recipe_fingerprint(run.recipe, data, init_from=run.record.init_from)
        self._folder = CheckpointFolder(run.directory, recipe_fingerprint=fingerprint)
        self._interim: Path | None = None
        self._writer: Writer = BackgroundWriter() if ranks.device.type == "cuda" else DirectWriter()
        self._tell: Callable[[], None] | None = None

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.join()
        elif issubclass(kind, Exception):  # a second Ctrl-C does not wait
            with suppress(ModelError, OSError, RuntimeError):  # the first error is the one to tell
                self.join()

    def resume(self) -> TrainingState:
        """Take up the newest checkpoint or, where there is none, what the run begins with.

        ModelError where it is of another precision or cannot be read.
        """
        if self._ranks.is_first:
            self._folder.clear_interrupted()
        self._ranks.wait()
        checkpoint = self._of_first(self._folder.newest() if self._ranks.is_first else None)
        if checkpoint is None:
            return TrainingState(self._precision) if self._run.record.init_from is None else self._begin()
        state = self._folder.load(checkpoint, self._updater.weights, self._updater.optimizer)
        if state.precision != self._precision:
            raise ModelError(
                f"the run was trained in {state.precision}, and would go on in {self._precision}",
                where=str(checkpoint.path),
                hint=f"--precision {state.precision}, another folder with -o, or --restart",
            )
        self._interim = None if self._is_due(state.update) else checkpoint.path
        self._ranks.wait()  # until all have read it: the first may write it anew
        return state

    def save(self, state: TrainingState, *, validation: Validation | None, told: Callable[[int, Path], None]) -> None:
        """Write a checkpoint, or begin to, and remove those that it makes room for; on the first rank alone.

        `validation` is what was measured after the same update. `told` is called with update and path once the
        checkpoint is complete: now, or by a later call of this object's methods.
        """
        if not self._ranks.is_first:
            return
        self.join()
        path, interim = self._folder.path(state.update), self._interim
        self._interim = None if self._is_due(state.update) else path
        outdated = None if interim == path else interim
        with self._updater.evaluated():
            tensors = self._writer.keep(tensors_of(self._updater.weights, self._updater.optimizer))
            self._writer.begin(partial(self._write, state, tensors, validation, outdated=outdated))
        self._tell = partial(told, state.update, path)
        self.look()

    def look(self) -> None:
        """Tell of the checkpoint that was being written, if it is complete by now; raises what went wrong with it."""
        if self._writer.is_done:
            self.join()

    def join(self) -> None:
        """Return when no checkpoint is being written; ModelError if it could not be."""
        tell, self._tell = self._tell, None
        self._writer.join()
        if tell is not None:
            self._ranks.pulse.beat()
            tell()

    def return_from(self, failed: TrainingState) -> TrainingState:
        """Go back to the newest checkpoint before the trouble, or to the beginning, and on with the pairs that come."""
        self.join()
        checkpoint = self._of_first(self._newest_calm() if self._ranks.is_first else None)
        if checkpoint is None:
            state = self._begin()
        else:
            state = self._folder.load(checkpoint, self._updater.weights, self._updater.optimizer)
        state = replace(state, epoch=failed.epoch, index=failed.index, returns=failed.returns + 1)
        self._ranks.wait()  # until all have read it: the first is to write it anew
        if self._ranks.is_first:
            self._folder.return_to(checkpoint, state)
        self._interim = None
        return state

    def rehearse(self, state: TrainingState) -> None:
        """Write a checkpoint elsewhere, and remove it; ModelError where the disk does not hold it."""
        with self._updater.evaluated():
            tensors = self._writer.keep(tensors_of(self._updater.weights, self._updater.optimizer))
            self._writer.begin(partial(self._write_trial, state, tensors))
        self._writer.join()

    def _write(
        self, state: TrainingState, tensors: TensorsByFile, validation: Validation | None, *, outdated: Path | None
    ) -> None:
        """Write a checkpoint; only when it is complete, remove those that it makes room for."""
        self._folder.save(state, tensors, validation=validation)
        if outdated is not None:
            files.remove_directory(outdated)
        if self._is_due(state.update):
            training = self._run.recipe.training
            self._folder.prune(
                keep_last=training.keep_last,
                keep_best=training.keep_best,
                metric=self._run.recipe.validation.metric,
            )

    def _write_trial(self, state: TrainingState, tensors: TensorsByFile) -> None:
        trial = self._run.directory / ".sanity"
        CheckpointFolder(trial, recipe_fingerprint="").save(state, tensors, validation=None)
        shutil.rmtree(trial)

    def _begin(self) -> TrainingState:
        """Take the weights that the run begins with, random ones or those of a model."""
        model = build_model(self._run.recipe, self._data)
        initial = self._run.record.init_from
        self._updater.begin_with(weights_of(model) if initial is None else read_weights(initial, model))
        return TrainingState(self._precision)

    def _newest_calm(self) -> Checkpoint | None:
        return self._folder.newest_calm(spike_nats=self._run.recipe.training.spike_nats, leaving_out=self._interim)

    def _of_first(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """The first rank's choice, on every rank: on a shared disk, a machine may see late what another has written."""
        update = int(self._ranks.of_first(-1 if checkpoint is None else checkpoint.update))
        return None if update < 0 else self._folder.find(update)

    def _is_due(self, update: int) -> bool:
        """True where a training that is not stopped has a checkpoint of this update."""
        training, validation = self._run.recipe.training, self._run.recipe.validation
        is_validated = update % validation.every == 0 and training.keep_best > 0
        return update % training.checkpoint_every == 0 or update == training.updates or is_validated
