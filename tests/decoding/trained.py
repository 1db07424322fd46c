"""A model trained for some seconds on sentences of a made-up language: it translates well, though not perfectly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sharing import shared_folder
from tests.training.tiny import parallel_text, prepare_tiny, train

PAIRS = parallel_text(1900, seed=3)
HELD_OUT, TRAIN = PAIRS[:500], PAIRS[500:]
SETTINGS = {
    "training.updates": 200,
    "training.batch_tokens": 1500,
    "training.max_tokens_per_device": 1600,
    "training.schedule.factor": 1.0,
    "training.schedule.warmup_updates": 50,
    "training.checkpoint_every": 200,
    "training.log_every": 100,
    "validation.every": 200,
    "model.d_model": 64,
    "model.d_ff": 128,
    "model.heads": 4,
    "model.dropout": 0.0,
    "averaging.last": 1,
    "decoding.beam": 4,
    "decoding.max_extra_tokens": 20,
}


def shared_model(factory: pytest.TempPathFactory) -> Path:
    """The directory of the trained model, which is trained by the first test process that asks for it."""
    return shared_folder(factory, "trained", train_model) / "run" / "model"


def train_model(folder: Path) -> None:
    """Train it in FOLDER/run."""
    data = prepare_tiny(folder, train=TRAIN, valid=HELD_OUT[:20])
    assert train(data, folder / "run", *(f"{key}={value}" for key, value in SETTINGS.items())) == 0
