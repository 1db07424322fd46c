"""Saving, resuming and returning: how a training moves to its checkpoints and back."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol

import torch
from torch import Tensor

from nmt_cli import files
from nmt_cli.artifacts.run import Checkpoint, Run
from nmt_cli.artifacts.weights import weights_of
from nmt_cli.dataset.store import PreparedData
from nmt_cli.devices import Precision
from nmt_cli.errors import ModelError
from nmt_cli.training.checkpoints import CheckpointFolder, TensorsByFile, TrainingState, tensors_of
from nmt_cli.training.initial_weights import build_model, read_initial_weights
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.runs import recipe_fingerprint
from nmt_cli.training.update import Updater
from nmt_cli.training.validation import Validation


class Checkpointer:
    """Moves weights, optimizer and state between a training and its run's checkpoints.

    The first rank writes, and chooses the checkpoint that all ranks read. A checkpoint that was saved only because
    training was stopped is interim: the next one replaces it. So a training that was stopped ends with the same
    checkpoints as an uninterrupted one, and returns to the same.

    On a GPU a thread writes while training continues. It is joined before anything else reads or writes the folder,
    and when the context of a checkpointer ends.
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
            with suppress(ModelError, OSError, RuntimeError):  # the first error is the one to report
                self.join()

    def resume(self) -> TrainingState:
        """Load the newest checkpoint or, if there is none, the weights that the run begins with.

        Raises ModelError if the checkpoint has another precision or cannot be read.
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
        self._ranks.wait()  # until all have read it: the first may replace it
        return state

    def save(self, state: TrainingState, *, validation: Validation | None, told: Callable[[int, Path], None]) -> None:
        """Write a checkpoint, or begin to, and remove the checkpoints that it replaces; only on the first rank.

        `validation` was measured after the same update. `told` is called with update and path when the checkpoint is
        complete: now, or in a later call of a method.
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
            self._ranks.heartbeat.beat()
            tell()

    def return_from(self, failed: TrainingState) -> TrainingState:
        """Return to the newest checkpoint before the trouble, or to the beginning, and continue with the next pairs."""
        self.join()
        checkpoint = self._of_first(self._newest_calm() if self._ranks.is_first else None)
        if checkpoint is None:
            state = self._begin()
        else:
            state = self._folder.load(checkpoint, self._updater.weights, self._updater.optimizer)
        state = replace(state, epoch=failed.epoch, index=failed.index, returns=failed.returns + 1)
        self._ranks.wait()  # until all have read it: the first replaces it
        if self._ranks.is_first:
            self._folder.return_to(checkpoint, state)
        self._interim = None
        return state

    def rehearse(self, state: TrainingState) -> None:
        """Write a checkpoint in another folder, and remove it; ModelError if the disk is too small."""
        with self._updater.evaluated():
            tensors = self._writer.keep(tensors_of(self._updater.weights, self._updater.optimizer))
            self._writer.begin(partial(self._write_trial, state, tensors))
        self._writer.join()

    def _write(
        self, state: TrainingState, tensors: TensorsByFile, validation: Validation | None, *, outdated: Path | None
    ) -> None:
        """Write a checkpoint; when it is complete, remove the checkpoints that it replaces."""
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
        """Load the weights that the run begins with: random weights or a model's."""
        model = build_model(self._run.recipe, self._data)
        initial = self._run.record.init_from
        self._updater.begin_with(weights_of(model) if initial is None else read_initial_weights(initial, model))
        return TrainingState(self._precision)

    def _newest_calm(self) -> Checkpoint | None:
        return self._folder.newest_calm(spike_nats=self._run.recipe.training.spike_nats, leaving_out=self._interim)

    def _of_first(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """Return the first rank's choice on every rank: on a shared disk, other machines may see a new file late."""
        update = int(self._ranks.of_first(-1 if checkpoint is None else checkpoint.update))
        return None if update < 0 else self._folder.find(update)

    def _is_due(self, update: int) -> bool:
        """True if an uninterrupted training has a checkpoint of this update."""
        training, validation = self._run.recipe.training, self._run.recipe.validation
        is_validated = update % validation.every == 0 and training.keep_best > 0
        return update % training.checkpoint_every == 0 or update == training.updates or is_validated


class Writer(Protocol):
    """Does one piece of work at a time."""

    def keep(self, tensors: TensorsByFile) -> TensorsByFile:
        """The tensors with their current values, which last until the next work is done."""

    def begin(self, work: Callable[[], None]) -> None:
        """Do or begin the work, which reads the tensors from `keep`; raises the work's error if the work is done."""

    @property
    def is_done(self) -> bool:
        """Whether no work is under way."""

    def join(self) -> None:
        """Return when the work is done; raises the work's error."""


class DirectWriter:
    """Does the work at once. On a CPU a thread would compete with the training for cores, and copies need memory."""

    is_done = True

    def keep(self, tensors: TensorsByFile) -> TensorsByFile:
        """The tensors themselves."""
        return tensors

    def begin(self, work: Callable[[], None]) -> None:
        """Do the work."""
        work()

    def join(self) -> None:
        """All work is done."""


class BackgroundWriter:
    """Copies tensors to host memory, and does the work in a thread.

    The copies of a GPU's tensors are pinned: the training stream makes them, and the host does not wait. Later copies
    of tensors of the same names reuse the memory.
    """

    def __init__(self) -> None:
        self._copies: dict[tuple[str, str], Tensor] = {}
        self._copied: torch.cuda.Event | None = None
        self._thread: threading.Thread | None = None
        self._problem: BaseException | None = None

    def keep(self, tensors: TensorsByFile) -> TensorsByFile:
        """Copies of the tensors; on a GPU they are complete when the work begins."""
        assert self.is_done, "a thread is reading the copies"
        kept = {
            file: {name: self._copy((file, name), tensor) for name, tensor in named.items()}
            for file, named in tensors.items()
        }
        device = next(
            (tensor.device for named in tensors.values() for tensor in named.values() if tensor.is_cuda), None
        )
        if device is not None:
            self._copied = torch.cuda.Event(blocking=True)
            self._copied.record(torch.cuda.current_stream(device))
        return kept

    def begin(self, work: Callable[[], None]) -> None:
        """Begin the work in a thread. The end of the process does not wait for the thread: `join` does."""
        self._thread = threading.Thread(target=self._do, args=(work,), name="nmt-checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether no thread is at work."""
        return self._thread is None or not self._thread.is_alive()

    def join(self) -> None:
        """Wait for the thread."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def _copy(self, key: tuple[str, str], tensor: Tensor) -> Tensor:
        if key not in self._copies:
            self._copies[key] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return self._copies[key].copy_(tensor.detach(), non_blocking=True)

    def _do(self, work: Callable[[], None]) -> None:
        try:
            if self._copied is not None:
                self._copied.synchronize()
            work()
        except BaseException as problem:
            self._problem = problem
