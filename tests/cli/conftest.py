"""`nmt` as it is typed, run within the test's process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nmt_cli.dataset.prepared_data import PreparedData, open_prepared
from tests.sharing import shared_folder
from tests.training.tiny import RECIPE, measured_once, prepare_tiny


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended, and what it wrote."""

    code: int
    stdout: str
    stderr: list[str]


class Shell:
    """Runs `nmt` from its arguments to its exit code."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> Outcome:
        from nmt_cli.cli.app import main

        self._monkeypatch.setattr(sys, "argv", ["nmt", *arguments])
        with pytest.raises(SystemExit) as ending:
            main()
        captured = self._capsys.readouterr()
        assert isinstance(ending.value.code, int)
        return Outcome(ending.value.code, captured.out, captured.err.splitlines())


@pytest.fixture
def nmt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """The data of tiny.yaml."""
    return open_prepared(shared_folder(tmp_path_factory, "tiny", prepare_tiny) / "data/tiny")


@pytest.fixture
def recipe_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with the recipe tiny.yaml."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    (tmp_path / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    with measured_once():
        yield tmp_path
