"""Checkpoints: written whole, kept by age and by score, found again by the next start.

`checkpoints/update-00008000/` holds model.safetensors (float32), optimizer.safetensors (the moments), state.json
(position in the data and counters) and manifest.json with sizes and hashes.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from nmt_cli import files
from nmt_cli.bundle.config import WEIGHTS
from nmt_cli.bundle.manifest import MANIFEST, verify, write_manifest
from nmt_cli.bundle.run import CHECKPOINTS, Checkpoint, best_first, read_checkpoint
from nmt_cli.bundle.weights import read_tensors, write_tensors
from nmt_cli.devices import Precision
from nmt_cli.errors import ModelError
from nmt_cli.training.optimizers import Optimizer
from nmt_cli.training.validation import Validation
from nmt_cli.training.weights import MasterWeights

_OPTIMIZER = "optimizer.safetensors"
_STATE = "state.json"
_HINT = "remove it; training goes on from the checkpoint before: rm -r {path}"


@dataclass(frozen=True, slots=True)
class TrainingState:
    """All of a training that is neither weights nor moments: counters and the position in the data.

    `update` counts updates taken, skipped ones included; `epoch` and `index` are where the next update begins;
    `best` is the best value so far of `metric`; `validated` is the last update that was measured.
    """

    precision: Precision
    update: int = 0
    applied: int = 0
    skipped_in_row: int = 0
    epoch: int = 0
    index: int = 0
    best: float | None = None
    metric: str | None = None
    validations_since_best: int = 0
    validated: int = 0

    def after_validation(self, validation: Validation, *, metric: str) -> TrainingState:
        """The state with the best value so far, and how many validations ago it was."""
        measured = replace(self, validated=self.update, metric=metric)
        best = self.best if self.metric == metric else None  # the metric may change between two starts
        if validation.is_better_than(best, metric=metric):
            return replace(measured, best=validation.value(metric), validations_since_best=0)
        return replace(measured, validations_since_best=self.validations_since_best + 1)


class CheckpointFolder:
    """The checkpoints of one run."""

    def __init__(self, run_directory: Path, *, recipe_fingerprint: str) -> None:
        self.directory = run_directory / CHECKPOINTS
        self._fingerprint = recipe_fingerprint

    def save(
        self, state: TrainingState, weights: MasterWeights, optimizer: Optimizer, *, validation: Validation | None
    ) -> Path:
        """Write the checkpoint of this state, with what was measured at its update; ModelError on a full disk."""
        path = self.directory / f"update-{state.update:08d}"
        fields: dict[str, Any] = {
            "kind": "checkpoint",
            "update": state.update,
            "recipe_fingerprint": self._fingerprint,
            "validation": None if validation is None else {"loss": validation.loss, "bleu": validation.bleu},
        }
        with files.new_directory(path, error=ModelError) as temporary:
            write_tensors(temporary / WEIGHTS, weights.named(weights.values))
            moments = {
                f"{moment}.{name}": tensor
                for moment, flat in optimizer.moments.items()
                for name, tensor in weights.named(flat).items()
            }
            write_tensors(temporary / _OPTIMIZER, moments)
            (temporary / _STATE).write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
            write_manifest(temporary, fields)
        return path

    def clear_interrupted(self) -> None:
        """Clear up what a killed save left; for the first rank, before any looks for the newest."""
        files.clear_interrupted(self.directory, name="update-*")

    def newest(self) -> Checkpoint | None:
        """The newest complete checkpoint."""
        found = self._all()
        return found[-1] if found else None

    def load(self, checkpoint: Checkpoint, weights: MasterWeights, optimizer: Optimizer) -> TrainingState:
        """Put weights and moments back, after a check of every file's hash, and give the state."""
        hint = _HINT.format(path=shlex.quote(str(checkpoint.path)))
        verify(checkpoint.path, error=ModelError, hint=hint)
        if checkpoint.recipe_fingerprint != self._fingerprint:
            raise ModelError("the checkpoint is of another training", where=str(checkpoint.path), hint=hint)
        content = files.read_json(checkpoint.path / _STATE, error=ModelError, hint=hint)
        state = TrainingState(**content)
        weights.load(weights.values, read_tensors(checkpoint.path / WEIGHTS, hint=hint))
        weights.publish()
        tensors = read_tensors(checkpoint.path / _OPTIMIZER, hint=hint)
        for moment, flat in optimizer.moments.items():
            weights.load(flat, {name: tensors[f"{moment}.{name}"] for name in weights.shapes})
        optimizer.continue_after(state.applied)
        return state

    def prune(self, *, keep_last: int, keep_best: int, metric: Literal["loss", "bleu"]) -> None:
        """Remove all but the newest `keep_last` and, besides, the best `keep_best` of those that were validated."""
        found = self._all()
        kept = {checkpoint.path for checkpoint in found[-keep_last:]}
        kept |= {checkpoint.path for checkpoint in best_first(found, metric=metric)[:keep_best]}
        for checkpoint in found:
            if checkpoint.path not in kept:
                files.remove_directory(checkpoint.path)

    def _all(self) -> list[Checkpoint]:
        paths = sorted(path for path in self.directory.glob("update-*") if (path / MANIFEST).is_file())
        return [read_checkpoint(path) for path in paths]
