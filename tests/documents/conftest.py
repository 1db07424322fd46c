"""The trained model, once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt_cli.api import Translator
from tests.decoding.trained import shared_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory."""
    return shared_model(tmp_path_factory)


@pytest.fixture(scope="session")
def translator(model: Path) -> Translator:
    return Translator.from_pretrained(model, device="cpu")
