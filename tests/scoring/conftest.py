"""A folder with a few short texts, in which commands are run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scoring.shell import BASE, HYP, REF, SRC


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a hypothesis, another system's, a reference and a source of three lines."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"hyp": HYP, "base": BASE, "ref": REF, "src": SRC}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path
