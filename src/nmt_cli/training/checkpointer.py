"""Checkpoints: written atomically, kept by age and by score, found by the next start.

`checkpoints/update-00008000/` holds four files. model.safetensors has the weights in float32, or their average if the
recipe asks for it. optimizer.safetensors has the optimizer's state and, with an average, the trained weights.
state.json has the position in the data and the counters. manifest.json has sizes and hashes.
"""

from __future__ import annotations

import json
import shlex
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from nmt_cli import files
from nmt_cli.artifacts.checkpoints import Checkpoint, Metric, best_first, read_checkpoint, read_checkpoints
from nmt_cli.artifacts.manifest import WEIGHTS, verify_files, write_manifest
from nmt_cli.artifacts.run import CHECKPOINTS, Run
from nmt_cli.artifacts.weights import read_tensors, write_tensors
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.devices import Precision
from nmt_cli.errors import ModelError
from nmt_cli.training.initial_weights import build_model, read_initial_weights
from nmt_cli.training.master_weights import MasterWeights
from nmt_cli.training.optimizers_and_schedules import Optimizer
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.reporting.reporter import Reporter
from nmt_cli.training.runs import recipe_fingerprint
from nmt_cli.training.state import OF_ONE_UPDATE, LossCourse, TrainingState
from nmt_cli.training.update import Updater

TensorsByFile = Mapping[str, Mapping[str, Tensor]]
"""Tensors by the name of their file, and then by their own name."""

_OPTIMIZER = "optimizer.safetensors"
_STATE = "state.json"
# The hint for a checkpoint that is complete, and must not be removed.
_OTHER_VERSION = "continue with the version of nmt that wrote it, or begin in another folder with -o"
# Prefix of the trained weights' names, if an average is validated and saved as the model.
_TRAINED = "trained."


class Checkpointer:
    """Moves weights, optimizer and state between a training and its run's checkpoints.

    The first rank writes, and chooses the checkpoint that all ranks read. A checkpoint that was saved only because
    training was stopped is interim: the next one replaces it. So a training that was stopped ends with the same
    checkpoints as an uninterrupted one.

    On a GPU a thread writes while training continues. It is awaited before anything else reads or writes the folder,
    and at the end of `finishing`.
    """

    def __init__(self, run: Run, data: PreparedData, updater: Updater, reporter: Reporter, *, ranks: Ranks) -> None:
        self._run, self._data, self._updater, self._reporter, self._ranks = run, data, updater, reporter, ranks
        fingerprint = recipe_fingerprint(run.recipe, data, init_from=run.record.init_from)
        self._folder = CheckpointFolder(run.directory, recipe_fingerprint=fingerprint)
        self._interim: Path | None = None
        self._saved: TrainingState | None = None
        self._writer = CheckpointWriter(in_background=ranks.device.type == "cuda")
        self._unreported: tuple[int, Path] | None = None  # the checkpoint that is being written

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Finish the checkpoint that is being written at the end of the block, unless a second Ctrl-C ends it."""
        try:
            yield
        except Exception:
            with suppress(ModelError, OSError, RuntimeError):  # the first error is the one to report
                self.finish()
            raise
        self.finish()

    def resume(self) -> TrainingState:
        """Load the newest checkpoint or, if there is none, the weights that the run begins with; return the state.

        Raises ModelError if the checkpoint cannot be read.
        """
        if self._ranks.is_first:
            files.clear_partial_directories(self._folder.directory, name="update-*")  # the rest of a killed save
        checkpoint = self._ask_first_rank(self._folder.newest)
        if checkpoint is None:
            if (initial := self._run.record.init_from) is not None:  # else the model was built with its random weights
                self._updater.begin_from(read_initial_weights(initial, build_model(self._run.recipe, self._data)))
            return TrainingState(self._updater.precision)
        self._saved = state = self._folder.load(checkpoint, self._updater.weights, self._updater.optimizer)
        is_kept = self._is_regular(state.update) or (self._run.num_best_kept > 0 and checkpoint.loss is not None)
        self._interim = None if is_kept else checkpoint.path
        self._ranks.barrier()  # until all have read it: the first may replace it
        return state

    def save(self, state: TrainingState) -> None:
        """Write a checkpoint, or begin to, and remove the checkpoints that it replaces; only on the first rank.

        The event `checkpoint` is reported when the checkpoint is complete: now, or in a later call of a method. A state
        that was resumed or saved is saved already.
        """
        if not self._ranks.is_first or state is self._saved:
            return
        self.finish()
        self._saved = state
        path, interim = self._folder.path(state.update), self._interim
        self._interim = None if self._is_regular(state.update) else path
        outdated = None if interim == path else interim
        self._begin_writing(partial(self._write, state, outdated=outdated))
        self._unreported = state.update, path
        self.report_if_complete()

    def report_if_complete(self) -> None:
        """Report the checkpoint that was being written, if it is complete by now; raises what went wrong with it."""
        if self._writer.is_done:
            self.finish()

    def finish(self) -> None:
        """Return when no checkpoint is being written; ModelError if it could not be."""
        complete, self._unreported = self._unreported, None
        self._writer.finish()
        if complete is not None:
            self._ranks.beat()
            self._reporter.write_event("checkpoint", update=complete[0], path=str(complete[1]))

    def newest_before_divergence(self) -> Checkpoint | None:
        """The newest checkpoint before any sign of trouble, the same on every rank; None if there is none."""
        self.finish()
        spike_nats = self._run.recipe.training.spike_nats
        return self._ask_first_rank(partial(self._folder.newest_before_divergence, spike_nats=spike_nats))

    def try_saving(self, state: TrainingState) -> None:
        """Write a checkpoint in another folder, and remove it; ModelError if the disk is too small."""
        trial = self._run.directory / ".sanity"

        def write(tensors: TensorsByFile) -> None:
            CheckpointFolder(trial, recipe_fingerprint="").save(state, tensors)
            shutil.rmtree(trial)

        self._begin_writing(write)
        self._writer.finish()

    def _begin_writing(self, write: Callable[[TensorsByFile], None]) -> None:
        """Begin to write the tensors of a checkpoint, with the weights that are validated."""
        with self._updater.evaluated():
            tensors = self._writer.snapshot(tensors_of(self._updater.weights, self._updater.optimizer))
            self._writer.begin(partial(write, tensors))

    def _write(self, state: TrainingState, tensors: TensorsByFile, *, outdated: Path | None) -> None:
        """Write a checkpoint; when it is complete, remove the checkpoints that it replaces."""
        self._folder.save(state, tensors)
        if outdated is not None:
            files.remove_directory(outdated)
        if self._is_regular(state.update):
            training, metric = self._run.recipe.training, self._run.recipe.validation.metric
            self._folder.prune(keep_last=training.keep_last, keep_best=self._run.num_best_kept, metric=metric)

    def _ask_first_rank(self, find: Callable[[], Checkpoint | None]) -> Checkpoint | None:
        """The checkpoint that the first rank finds: on a shared disk, other machines may see a new file late."""
        checkpoint = find() if self._ranks.is_first else None
        update = self._ranks.broadcast(-1 if checkpoint is None else checkpoint.update)
        return None if update < 0 else read_checkpoint(self._folder.path(update))

    def _is_regular(self, update: int) -> bool:
        """True if an uninterrupted training has it."""
        training, validation = self._run.recipe.training, self._run.recipe.validation
        is_validated = update % validation.every == 0 and self._run.num_best_kept > 0
        return update % training.checkpoint_every == 0 or update == training.updates or is_validated


def check_precision(run_directory: Path, precision: Precision) -> None:
    """Raise ModelError if the run's newest checkpoint was trained in another precision; there need be no run yet."""
    folder = CheckpointFolder(run_directory, recipe_fingerprint="")
    checkpoint = folder.newest()
    if checkpoint is not None and (trained := folder.read_state(checkpoint).precision) != precision:
        raise ModelError(
            f"the run was trained in {trained}, and would go on in {precision}",
            where=str(checkpoint.path),
            hint=f"--precision {trained}, another folder with -o, or --restart",
        )


class CheckpointFolder:
    """The checkpoints of one run."""

    def __init__(self, run_directory: Path, *, recipe_fingerprint: str) -> None:
        self.directory = run_directory / CHECKPOINTS
        self._fingerprint = recipe_fingerprint

    def save(self, state: TrainingState, tensors: TensorsByFile) -> Path:
        """Write the checkpoint of this state and these tensors.

        A full disk is a ModelError, which names the checkpoint that is left.
        """
        path = self.path(state.update)
        try:
            with files.new_directory(path, error=ModelError) as temporary:
                for name, named in tensors.items():
                    write_tensors(temporary / name, named)
                self._write_state(temporary, state)
        except ModelError as error:
            newest = self.newest()
            left = "" if newest is None else f"; the checkpoint of update {newest.update:,} is complete"
            raise ModelError(f"{error.message}{left}", where=error.where, hint=error.hint) from error
        return path

    def newest_before_divergence(self, *, spike_nats: float | None) -> Checkpoint | None:
        """The newest checkpoint that was saved before any sign of trouble."""
        for checkpoint in reversed(read_checkpoints(self.directory)):
            state = self.read_state(checkpoint)
            if state.skipped_in_row == 0 and state.course.is_stable(spike_nats):
                return checkpoint
        return None

    def newest(self) -> Checkpoint | None:
        """The newest complete checkpoint."""
        checkpoints = read_checkpoints(self.directory)
        return checkpoints[-1] if checkpoints else None

    def read_state(self, checkpoint: Checkpoint) -> TrainingState:
        """The state of a checkpoint; ModelError if it cannot be read."""
        content = files.read_json(checkpoint.path / _STATE, error=ModelError, hint=_hint(checkpoint))
        try:
            return TrainingState(**{**content, "course": LossCourse(**content["course"])})
        except (AttributeError, TypeError, KeyError) as error:
            where = str(checkpoint.path / _STATE)
            raise ModelError(f"{_STATE} has other fields: {error}", where=where, hint=_OTHER_VERSION) from None

    def load(self, checkpoint: Checkpoint, weights: MasterWeights, optimizer: Optimizer) -> TrainingState:
        """Check every file's hash, load weights and moments, and return the state."""
        hint = _hint(checkpoint)
        verify_files(checkpoint.path, hint=hint)
        if checkpoint.recipe_fingerprint != self._fingerprint:
            raise ModelError("the checkpoint is of another training", where=str(checkpoint.path), hint=_OTHER_VERSION)
        state = self.read_state(checkpoint)
        tensors = read_tensors(checkpoint.path / _OPTIMIZER, hint=hint)
        trained = {name.removeprefix(_TRAINED): tensor for name, tensor in tensors.items() if name.startswith(_TRAINED)}
        weights.load(weights.values, trained or read_tensors(checkpoint.path / WEIGHTS, hint=hint))
        weights.copy_to_model()
        optimizer.load(tensors, num_applied=state.applied)
        return state

    def prune(self, *, keep_last: int, keep_best: int, metric: Metric) -> None:
        """Remove all checkpoints but the newest `keep_last` and the best `keep_best` of the validated ones."""
        checkpoints = read_checkpoints(self.directory)
        kept = {checkpoint.path for checkpoint in checkpoints[-keep_last:]}
        kept |= {checkpoint.path for checkpoint in best_first(checkpoints, metric=metric)[:keep_best]}
        for checkpoint in checkpoints:
            if checkpoint.path not in kept:
                files.remove_directory(checkpoint.path)

    def path(self, update: int) -> Path:
        """The path of an update's checkpoint, which need not exist."""
        return self.directory / f"update-{update:08d}"

    def _write_state(self, directory: Path, state: TrainingState) -> None:
        """Write the state and, last, the manifest with the loss and BLEU of a validation, if there was one."""
        content = {name: value for name, value in asdict(state).items() if name not in OF_ONE_UPDATE}
        (directory / _STATE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        validation = None if (found := state.validation) is None else {"loss": found.loss, "bleu": found.bleu}
        fields = {"kind": "checkpoint", "update": state.update, "recipe_fingerprint": self._fingerprint}
        write_manifest(directory, {**fields, "validation": validation})


class CheckpointWriter:
    """Does one piece of work at a time: at once or, `in_background`, in a thread that reads copies of the tensors.

    On a CPU a thread would compete with the training for cores, and copies need memory. The copies of a GPU's tensors
    are pinned: the training stream makes them, and the host does not wait. The next snapshot reuses their memory.
    """

    def __init__(self, *, in_background: bool) -> None:
        self._in_background = in_background
        self._copies: dict[tuple[str, str], Tensor] = {}
        self._copied: torch.cuda.Event | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether no work is under way."""
        return self._thread is None or not self._thread.is_alive()

    def snapshot(self, tensors: TensorsByFile) -> TensorsByFile:
        """The tensors with their current values, which last until the next work is done."""
        if not self._in_background:
            return tensors
        assert self.is_done, "a thread is reading the copies"
        copies = {
            file: {name: self._copy((file, name), tensor) for name, tensor in named.items()}
            for file, named in tensors.items()
        }
        if any(tensor.is_cuda for named in tensors.values() for tensor in named.values()):
            self._copied = torch.cuda.Event(blocking=True)
            self._copied.record()
        return copies

    def begin(self, work: Callable[[], None]) -> None:
        """Do the work, or begin it in a thread, for which the end of the process does not wait: `finish` does."""
        if not self._in_background:
            work()
            return
        self._thread = threading.Thread(target=self._run, args=(work,), name="nmt-checkpoint", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Return when the work is done; raises the work's error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _copy(self, key: tuple[str, str], tensor: Tensor) -> Tensor:
        if key not in self._copies:
            self._copies[key] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return self._copies[key].copy_(tensor.detach(), non_blocking=True)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            if self._copied is not None:
                self._copied.synchronize()
            work()
        except BaseException as error:
            self._error = error


def tensors_of(weights: MasterWeights, optimizer: Optimizer) -> TensorsByFile:
    """The tensors of a checkpoint, as views: the current values, and the trained ones if an average replaces them."""
    replaced = {} if weights.trained_values is None else weights.named(weights.trained_values)
    trained = {f"{_TRAINED}{name}": tensor for name, tensor in replaced.items()}
    return {WEIGHTS: weights.named(weights.values), _OPTIMIZER: optimizer.state | trained}


def _hint(checkpoint: Checkpoint) -> str:
    return f"remove it; training goes on from the checkpoint before: rm -r {shlex.quote(str(checkpoint.path))}"
