"""Prepared data for the tests of training, made once a session."""

from __future__ import annotations

import pytest

from nmt_cli.dataset.store import PreparedData
from tests.training.tiny import prepare_tiny


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """400 pairs with a shared vocabulary of 400 pieces."""
    return prepare_tiny(tmp_path_factory.mktemp("tiny"))
