"""`nmt train` with --gpus and --device, on machines with and without GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nmt_cli.dataset.store import PreparedData
from nmt_cli.training import start
from tests.cli.conftest import Shell
from tests.training.tiny import RECIPE, prepare_tiny

TORCH = f"torch {torch.__version__}"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return prepare_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    (tmp_path / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


@pytest.fixture
def train(nmt: Shell, prepared: PreparedData) -> tuple[str, ...]:
    return ("train", "tiny.yaml", "--data", str(prepared.directory))


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, number: int) -> list[tuple[list[str], int]]:
    """Make torch see so many GPUs; returns the arguments and the number of ranks that would be launched."""
    launched: list[tuple[list[str], int]] = []

    def launch(arguments: list[str], *, num_ranks: int) -> int:
        launched.append((arguments, num_ranks))
        return 75

    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    monkeypatch.setattr(start, "launch", launch)
    return launched


@pytest.mark.parametrize(
    ("gpus", "arguments", "error", "where", "fix"),
    [
        (
            0,
            "--gpus 1",
            f"--gpus 1 was asked for, but {TORCH} sees no GPU here",
            "--gpus",
            "leave out --gpus to train on the CPU, or install a torch build with CUDA and check nvidia-smi",
        ),
        (
            2,
            "--gpus 4",
            f"--gpus 4 was asked for, but {TORCH} sees only 2 here",
            "--gpus",
            "give --gpus 2, or check nvidia-smi",
        ),
        (
            2,
            "--gpus 1 --device cpu",
            "--gpus 1 was asked for, but --device is cpu",
            "--gpus",
            "leave out --device, or --gpus",
        ),
        (
            2,
            "--gpus 2 --device cuda:1",
            "--gpus 2 was asked for, but --device is cuda:1",
            "--gpus",
            "leave out --device, or --gpus",
        ),
        (
            0,
            "--device cuda",
            f"device 'cuda' was asked for, but {TORCH} sees no GPU here",
            "--device",
            "give --device cpu, or install a torch build with CUDA and check nvidia-smi",
        ),
        (
            2,
            "--device cuda:2",
            "device 'cuda:2' was asked for, but there are only 2 GPUs",
            "--device",
            "take cuda:0 to cuda:1",
        ),
        (
            2,
            "--device gpu --gpus 2",
            "there is no device called 'gpu'",
            "--device",
            "take auto, cpu, cuda or cuda:N",
        ),
    ],
)
def test_devices_that_are_not_there_are_refused(
    nmt: Shell,
    train: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    gpus: int,
    arguments: str,
    error: str,
    where: str,
    fix: str,
) -> None:
    launched = pretend_gpus(monkeypatch, gpus)
    outcome = nmt(*train, *arguments.split())
    assert outcome.stderr == [f"error: {error}", f"at:    {where}", f"fix:   {fix}"]
    assert (outcome.code, launched) == (6, [])
    assert not Path("runs").exists()


@pytest.mark.parametrize(("arguments", "processes"), [([], 4), (["--gpus", "3"], 3), (["--device", "cuda"], 4)])
def test_a_rank_is_launched_for_each_of_several_gpus(
    nmt: Shell, train: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, arguments: list[str], processes: int
) -> None:
    launched = pretend_gpus(monkeypatch, 4)
    outcome = nmt(*train, *arguments)
    assert outcome.code == 75  # that of the ranks
    assert outcome.stderr == []
    assert launched == [([*train, *arguments], processes)]


def test_other_data_than_the_recipe_s_is_said_in_a_line(nmt: Shell, train: tuple[str, ...]) -> None:
    short = ["--device", "cpu", "--precision", "fp32", "--set", "training.updates=1"]
    notice = "data: the corpus tiny, where the recipe has demo"
    outcome = nmt(*train, *short, "--set", "corpus=demo")
    assert outcome.code == 0
    assert outcome.stderr[0] == notice
    assert nmt(*train, "--dry-run", "--set", "corpus=demo").stderr == [notice]
    assert notice not in nmt(*train, *short, "-o", "runs/other").stderr
