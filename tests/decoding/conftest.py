"""The trained model and its translator, once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt_cli.api import Translator
from tests.decoding.trained import shared_model


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory."""
    return shared_model(tmp_path_factory)


@pytest.fixture(scope="session")
def translator(trained: Path) -> Translator:
    """The trained model on the CPU, by torch."""
    return Translator.from_pretrained(trained, device="cpu")
