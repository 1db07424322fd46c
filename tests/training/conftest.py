"""Prepared data for the tests of training, and trainings that many tests compare with, each made once per session."""

from __future__ import annotations

import functools
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt_cli.dataset.prepared_data import PreparedData, open_prepared
from tests.sharing import shared_folder
from tests.training.tiny import prepare_tiny, train


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """400 pairs with a shared vocabulary of 400 pieces."""
    return open_prepared(shared_folder(tmp_path_factory, "tiny", prepare_tiny) / "data/tiny")


@pytest.fixture
def own_data(prepared: PreparedData, tmp_path: Path) -> PreparedData:
    """A copy of the prepared data, for a test that changes it."""
    return open_prepared(shutil.copytree(prepared.directory, tmp_path / "data"))


@pytest.fixture(scope="session")
def finished_run(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The run of an uninterrupted training with some settings, for reading only. Call it before patching anything."""

    @functools.cache
    def run(*settings: str, precision: str = "fp32") -> Path:
        def make(folder: Path) -> None:
            assert train(prepared, folder / "run", *settings, precision=precision) == 0

        digest = hashlib.sha256(repr((settings, precision)).encode()).hexdigest()[:16]
        return shared_folder(tmp_path_factory, f"run-{digest}", make) / "run"

    return run
