"""The checkpoints of a run on disk, and which of them, or of its validations, is the best."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from nmt_cli.artifacts.manifest import MANIFEST, WEIGHTS, read_manifest
from nmt_cli.artifacts.model_directory import ValidationResult
from nmt_cli.errors import ModelError

Metric = Literal["loss", "bleu"]
Measured = TypeVar("Measured", "Checkpoint", ValidationResult)
_TELLING_BLEU = 1.0  # less is chance, or its tokenizer does not fit the text


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as its manifest describes it.

    `loss` and `bleu` are None if the checkpoint was not validated.
    """

    path: Path
    update: int
    recipe_fingerprint: str
    loss: float | None
    bleu: float | None
    weights_sha256: str


def read_checkpoints(directory: Path) -> list[Checkpoint]:
    """The complete checkpoints in a directory, oldest first. A training may remove some meanwhile."""
    checkpoints = []
    for manifest in directory.glob(f"update-*[0-9]/{MANIFEST}"):  # not a user's copy: `update-00003000.bak`
        try:
            checkpoints.append(read_checkpoint(manifest.parent))
        except ModelError:
            if manifest.exists():
                raise
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.update)


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint that the manifest in `path` describes; no other file is read."""
    hint = f"take another one, and remove it if it is damaged: rm -r {shlex.quote(str(path))}"
    manifest = read_manifest(path, hint=hint)
    weights = manifest["files"].get(WEIGHTS)
    if manifest.get("kind") != "checkpoint" or weights is None:
        raise ModelError(f"{path} is not a checkpoint of a run", where=str(path), hint=hint)
    validation = manifest.get("validation") or {}
    return Checkpoint(
        path,
        update=manifest["update"],
        recipe_fingerprint=manifest["recipe_fingerprint"],
        loss=validation.get("loss"),
        bleu=validation.get("bleu"),
        weights_sha256=weights["sha256"],
    )


def deciding_metric(bleu: float | None, *, metric: Metric) -> Metric:
    """The metric that decides how good a validation is: the loss while `metric` is BLEU, and BLEU tells nothing."""
    return "loss" if bleu is None or bleu < _TELLING_BLEU else metric


def goodness(value: float, decides: Metric, *, metric: Metric) -> tuple[bool, float]:
    """The rank of a value by its deciding metric; the greater rank is better.

    A loss that decides while BLEU tells nothing is worse than any BLEU that tells something.
    """
    return decides == metric, -value if decides == "loss" else value


def best_first(measured: Sequence[Measured], *, metric: Metric) -> list[Measured]:
    """The checkpoints or results that have the metric, the best first; of equally good ones, the newer first.

    Those whose BLEU tells nothing come last, by their loss.
    """

    def rank(result: Measured) -> tuple[bool, float, int]:
        decides = deciding_metric(result.bleu, metric=metric)
        is_by_metric, value = goodness(getattr(result, decides), decides, metric=metric)
        return is_by_metric, value, result.update

    return sorted((result for result in measured if getattr(result, metric) is not None), key=rank, reverse=True)
