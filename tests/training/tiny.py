"""A small parallel text, the data that the real preparation makes of it, and trainings of a very small model on it."""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import signal
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
import typer
from torch import Tensor

from nmt_cli.artifacts.run import open_run
from nmt_cli.dataset.prepared_data import PreparedData, open_prepared
from nmt_cli.preparing.corpus_loading import corpus_from_files
from nmt_cli.preparing.pipeline import Plan, prepare
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training.reporting import training_metrics
from nmt_cli.training.update import LaunchedUpdate, Updater
from tests.preparing.corpus_files import write_prefix

TIMES = {"today": "heute", "now": "jetzt", "in winter": "im Winter", "every morning": "jeden Morgen"}
SUBJECTS = {
    "the dog": "der Hund",
    "the cat": "die Katze",
    "the child": "das Kind",
    "my sister": "meine Schwester",
    "an old man": "ein alter Mann",
    "nobody": "niemand",
}
VERBS = {"sees": "sieht", "finds": "findet", "loves": "liebt", "paints": "malt", "needs": "braucht"}
OBJECTS = {
    "a house": "ein Haus",
    "the red ball": "den roten Ball",
    "fresh bread": "frisches Brot",
    "two flowers": "zwei Blumen",
    "the moon": "den Mond",
}
PLACES = {
    "": "",
    " in the garden": " im Garten",
    " by the sea": " am Meer",
    " behind the old mill": " hinter der Mühle",
}

RECIPE = """\
corpus: tiny
model:
  {encoder_layers: 1, decoder_layers: 1, d_model: 32, d_ff: 64, heads: 2, d_k: 16, d_v: 16, dropout: 0.1,
   embedding_multiple: 8, max_positions: 128}
training:
  updates: 24
  batch_tokens: 600
  max_tokens_per_device: 320
  schedule: {name: noam, factor: 0.3, warmup_updates: 10}
  log_every: 2
  checkpoint_every: 6
  keep_last: 10
validation: {every: 8, max_sentences: 4}
averaging: {last: 2}
decoding: {beam: 2, max_extra_tokens: 2, batch_tokens: 400}
"""
# Settings for a model that has learnt something.
LEARNT = ("training.updates=60", "training.log_every=1", "training.checkpoint_every=20", "validation.every=20")


def tiny_recipe(*settings: str) -> Recipe:
    """RECIPE, changed by settings."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "tiny.yaml"
        file.write_text(RECIPE, encoding="utf-8")
        return load_recipe(file, overrides=settings)


def parallel_text(number: int, *, seed: int) -> list[tuple[str, str]]:
    """Distinct English sentences with their German translations, where the verb comes second."""
    pairs = []
    combinations = list(itertools.product(TIMES, SUBJECTS, VERBS, OBJECTS, PLACES))
    for time, subject, verb, what, place in Random(seed).sample(combinations, number):
        english = f"{time} {subject} {verb} {what}{place}."
        german = f"{TIMES[time]} {VERBS[verb]} {SUBJECTS[subject]} {OBJECTS[what]}{PLACES[place]}."
        pairs.append((english[0].upper() + english[1:], german[0].upper() + german[1:]))
    return pairs


def prepare_tiny(
    folder: Path,
    *settings: str,
    train: Sequence[tuple[str, str]] | None = None,
    valid: Sequence[tuple[str, str]] | None = None,
    name: str = "tiny",
    alignments: Sequence[str] = (),
) -> PreparedData:
    """Prepared data in FOLDER/data/NAME: 400 pairs, or those of `train`, and 20 others, or those of `valid`.

    `alignments` are lines of word alignments of the pairs to train on.
    """
    pairs = parallel_text(420, seed=3)
    folder.mkdir(parents=True, exist_ok=True)
    if alignments:
        (folder / "train.align").write_text("".join(f"{line}\n" for line in alignments), encoding="utf-8")
    located = corpus_from_files(
        {
            "train": [write_prefix(folder / f"{name}-train", train or pairs[20:])],
            "valid": [write_prefix(folder / f"{name}-valid", valid or pairs[:20])],
        },
        languages="en-de",
        name=name,
        overrides=["tokenizer.vocab_size=400", *settings],
        alignments=[str(folder / "train.align")] if alignments else [],
    )
    output = folder / "data" / name
    prepare(Plan(located), output=output, overwrite=False, num_workers=1, progress=lambda stage, done, total: None)
    return open_prepared(output)


def train(data: PreparedData, output: Path, *settings: str, **options: Any) -> int:
    """Run `nmt train` within this process on the CPU, in fp32 unless told otherwise; the exit code, errors raised."""
    from nmt_cli.cli.train import train as command

    recipe = output.with_name(f"{output.name}.yaml")
    if not recipe.exists():
        recipe.parent.mkdir(parents=True, exist_ok=True)
        recipe.write_text(RECIPE, encoding="utf-8")
    options = {"device": "cpu", "precision": "fp32", **options}
    try:
        with measured_once():
            command(str(recipe), data=data.directory, output=output, settings=list(settings), **options)
    except typer.Exit as ending:
        return ending.exit_code
    return 0


def arguments_of(data: PreparedData, folder: Path, *settings: str) -> list[str]:
    """What to give `nmt` in a folder to train its `run` on the CPU in fp32; writes the recipe into the folder."""
    (folder / "run.yaml").write_text(RECIPE, encoding="utf-8")
    arguments = ["train", "run.yaml", "--data", str(data.directory), "-o", "run", "--device", "cpu"]
    return [*arguments, "--precision", "fp32", *(word for setting in settings for word in ("--set", setting))]


@contextmanager
def measured_once() -> Iterator[None]:
    """Trainings that measure the device's matrix rate, a fifth of a second, only in the first of a test process."""
    with patch.object(training_metrics, "matrix_rate", _matrix_rate):
        yield


_matrix_rate = functools.cache(training_metrics.matrix_rate)


@contextmanager
def stopped_after(update: int, number: int = signal.SIGTERM) -> Iterator[None]:
    """Send this process a signal while it takes update `update`."""
    original = Updater.launch

    def with_signal(self: Updater, *arguments: Any, **options: Any) -> LaunchedUpdate:
        if options["number"] == update:
            os.kill(os.getpid(), number)
        return original(self, *arguments, **options)

    with patch.object(Updater, "launch", with_signal):
        yield


def spoil(
    patch: pytest.MonkeyPatch, updates: Container[int], *, value: float = math.nan, spoils_loss: bool = False
) -> None:
    """Put a value into one gradient, and into the loss if asked, of the second micro-batch of some updates."""
    accumulate = Updater.accumulate

    def spoilt(self: Updater, *arguments: Any, key: tuple[int, int], **options: Any) -> Tensor:
        sums = accumulate(self, *arguments, key=key, **options)
        if key[0] in updates and key[1] == 1:
            self.weights.gradients[7] = value
            if spoils_loss:
                sums[0] = value
        return sums

    patch.setattr(Updater, "accumulate", spoilt)


def checkpoint(run: Path, update: int) -> dict[str, bytes]:
    """The files of a checkpoint with their bytes."""
    return {path.name: path.read_bytes() for path in sorted((run / f"checkpoints/update-{update:08}").iterdir())}


def checkpoints(run: Path) -> list[int]:
    """The updates of which a run has checkpoints."""
    return [found.update for found in open_run(run).checkpoints()]


def events(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, all or those of one event."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if kind is None or line["event"] == kind]
