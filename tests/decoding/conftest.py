"""The trained model, once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.decoding.trained import shared_model


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory."""
    return shared_model(tmp_path_factory)
