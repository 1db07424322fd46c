"""The trained model, once for all tests of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.decoding.trained import train_model


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory."""
    return train_model(tmp_path_factory.mktemp("trained"))
