"""Fewer lines to compare than a user has: random models seldom end a sentence before the limit."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _few_lines(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "a_hundred_lines" not in request.fixturenames:
        monkeypatch.setattr("nmt_cli.interchange.verification.NUM_LINES", 20)


@pytest.fixture
def a_hundred_lines() -> int:
    """As many lines as a user has."""
    return 100
