"""Checkpoints: written atomically, kept by age and by score, found by the next start.

`checkpoints/update-00008000/` holds four files. model.safetensors has the weights in float32, or their average if the
recipe asks for it. optimizer.safetensors has the optimizer's state and, with an average, the trained weights.
state.json has the position in the data and the counters. manifest.json has sizes and hashes.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from nmt_cli import files
from nmt_cli.artifacts.manifest import WEIGHTS, verify_files, write_manifest
from nmt_cli.artifacts.run import CHECKPOINTS, Checkpoint, Metric, best_first, read_checkpoint, read_checkpoints
from nmt_cli.artifacts.weights import read_tensors, write_tensors
from nmt_cli.errors import ModelError
from nmt_cli.training.optimizers_and_schedules import Optimizer
from nmt_cli.training.state import OF_ONE_UPDATE, LossCourse, TrainingState
from nmt_cli.training.weights import MasterWeights

TensorsByFile = Mapping[str, Mapping[str, Tensor]]
"""Tensors by the name of their file, and then by their own name."""

_OPTIMIZER = "optimizer.safetensors"
_STATE = "state.json"
# The hint for a checkpoint that is complete, and must not be removed.
_OTHER_VERSION = "continue with the version of nmt that wrote it, or begin in another folder with -o"
# Prefix of the trained weights' names, if an average is validated and saved as the model.
_TRAINED = "trained."


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

    def find(self, update: int) -> Checkpoint:
        """The checkpoint of an update; ModelError if it is missing or damaged."""
        return read_checkpoint(self.path(update))

    def read_state(self, checkpoint: Checkpoint) -> TrainingState:
        """The state of a checkpoint; ModelError if it cannot be read."""
        content = files.read_json(checkpoint.path / _STATE, error=ModelError, hint=_hint(checkpoint))
        try:
            content.pop("returns", None)  # of earlier versions: it says nothing about what follows
            return TrainingState(**{**content, "course": LossCourse(**content["course"])})
        except (TypeError, KeyError) as error:
            where = str(checkpoint.path / _STATE)
            raise ModelError(f"{_STATE} has other fields: {error}", where=where, hint=_OTHER_VERSION) from None

    def load(self, checkpoint: Checkpoint, weights: MasterWeights, optimizer: Optimizer) -> TrainingState:
        """Check every file's hash, load weights and moments, and return the state."""
        hint = _hint(checkpoint)
        verify_files(checkpoint.path, error=ModelError, hint=hint)
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
        validation = state.validation
        fields: dict[str, Any] = {
            "kind": "checkpoint",
            "update": state.update,
            "recipe_fingerprint": self._fingerprint,
            "validation": None if validation is None else {"loss": validation.loss, "bleu": validation.bleu},
        }
        write_manifest(directory, fields)


def tensors_of(weights: MasterWeights, optimizer: Optimizer) -> TensorsByFile:
    """The tensors of a checkpoint, as views: the current values, and the trained ones if an average replaces them."""
    replaced = {} if weights.trained_values is None else weights.named(weights.trained_values)
    trained = {f"{_TRAINED}{name}": tensor for name, tensor in replaced.items()}
    return {WEIGHTS: weights.named(weights.values), _OPTIMIZER: optimizer.state | trained}


def _hint(checkpoint: Checkpoint) -> str:
    return f"remove it; training goes on from the checkpoint before: rm -r {shlex.quote(str(checkpoint.path))}"
