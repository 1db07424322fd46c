"""Two processes take the same training as one: the same batches, the same losses, the same weights but for rounding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from nmt_cli.bundle.weights import read_tensors
from nmt_cli.dataset.store import PreparedData
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.training.distributed import Ranks
from nmt_cli.training.order import DataOrder
from tests.training.tiny import RECIPE, checkpoints, events, train

SETTINGS = (
    "training.batch_tokens=1600",
    "training.max_tokens_per_device=224",
    "training.updates=18",
    "training.log_every=1",
    "training.clip_norm=0.5",
)


@pytest.fixture(scope="module")
def run_of_two(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two processes, with gloo on the CPU."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "run.yaml").write_text(RECIPE, encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "nmt_cli"]
    arguments = ["train", "run.yaml", "--data", str(prepared.directory), "-o", "run", "--device", "cpu"]
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    command = [sys.executable, *launcher, *arguments, "--precision", "fp32", *settings]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout == ""
    assert process.stderr.count(" 1/18 ") == 1, "only the first rank talks"
    assert process.stderr.count("next: nmt average run") == 1
    return folder / "run"


@pytest.fixture(scope="module")
def run_of_one(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("one") / "run"
    assert train(prepared, run, *SETTINGS) == 0
    return run


def test_one_rank_takes_eight_micro_batches_where_two_take_four_each(prepared: PreparedData, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    recipe = load_recipe(tmp_path / "tiny.yaml", overrides=SETTINGS)
    one, two = (DataOrder(prepared.split("train"), recipe, world_size=size) for size in (1, 2))
    for _ in range(18):
        micro, of_two = one.next(), two.next()
        assert len(micro) == len(of_two) == 8
        for left, right in zip(micro, of_two, strict=True):
            np.testing.assert_array_equal(left, right)


def test_two_processes_log_the_losses_of_one(run_of_one: Path, run_of_two: Path) -> None:
    alone, together = events(run_of_one, "train"), events(run_of_two, "train")
    assert len(alone) == 18
    for one, two in zip(alone, together, strict=True):
        for key in ("update", "epoch", "learning_rate", "source_tokens", "target_tokens"):
            assert two[key] == one[key]
        # Float32 sums of eight parts in another order, then Adam: 1e-5 is ten times what was seen.
        for key in ("loss", "nll", "gradient_norm"):
            assert two[key] == pytest.approx(one[key], rel=1e-5)


def test_two_processes_end_with_the_weights_of_one(run_of_one: Path, run_of_two: Path) -> None:
    one, two = (read_tensors(run / "model/model.safetensors", hint="") for run in (run_of_one, run_of_two))
    assert one.keys() == two.keys()
    # Gradients of eight parts are summed in another order, in float32: 1.2e-7 was seen after these 18 updates, on
    # weights of up to 1. An update more or less would show as 1e-2, the learning rate.
    difference = torch.cat([(one[name] - two[name]).abs().flatten() for name in one])
    assert difference.max() < 1e-6


def test_two_processes_validate_and_save_once(run_of_one: Path, run_of_two: Path) -> None:
    assert checkpoints(run_of_two) == checkpoints(run_of_one) == [6, 12, 18]
    (alone, together) = (events(run, "validation") for run in (run_of_one, run_of_two))
    assert [event["update"] for event in together] == [event["update"] for event in alone] == [8, 16, 18]
    for one, two in zip(alone, together, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)


def test_a_run_of_two_goes_on_as_a_run_of_one(
    prepared: PreparedData, run_of_one: Path, run_of_two: Path, tmp_path: Path
) -> None:
    settings = (*SETTINGS, "training.updates=21")
    for run in (run_of_one, run_of_two):
        assert train(prepared, run, *settings) == 0
    last = [events(run, "train")[-1] for run in (run_of_one, run_of_two)]
    assert [event["update"] for event in last] == [21, 21]
    assert last[1]["loss"] == pytest.approx(last[0]["loss"], rel=1e-5)


def test_a_plain_process_is_alone_and_first() -> None:
    ranks = Ranks(0, 1, torch.device("cpu"))
    tensor = torch.ones(3)
    ranks.sum(tensor)
    assert tensor.tolist() == [1, 1, 1]
    assert (ranks.any(True), ranks.any(False), ranks.is_first) == (True, False, True)
