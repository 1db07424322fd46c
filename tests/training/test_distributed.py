"""Two processes take the same training as one: the same batches, the same losses, the same weights but for rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nmt_cli.bundle.weights import read_tensors
from nmt_cli.dataset.store import PreparedData
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.training.distributed import Ranks
from nmt_cli.training.order import DataOrder
from tests.training.tiny import RECIPE, checkpoint, checkpoints, events, train
from tests.training.two_ranks import LAUNCHED, TORCHRUN, in_update, start

SETTINGS = (
    "training.batch_tokens=1600",
    "training.max_tokens_per_device=224",
    "training.updates=50",
    "training.log_every=1",
    "training.clip_norm=0.5",
)


@pytest.fixture(scope="module")
def run_of_two(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two processes that torchrun has started, with gloo on the CPU."""
    folder = tmp_path_factory.mktemp("two")
    process = start(TORCHRUN, prepared, folder, *SETTINGS)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert stdout == ""
    assert stderr.count(" 1/50 ") == 1, "only the first rank talks"
    assert stderr.count("next: nmt average run") == 1
    return folder / "run"


@pytest.fixture(scope="module")
def run_of_one(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("one") / "run"
    assert train(prepared, run, *SETTINGS) == 0
    return run


def test_one_rank_takes_eight_micro_batches_where_two_take_four_each(prepared: PreparedData, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    recipe = load_recipe(tmp_path / "tiny.yaml", overrides=SETTINGS)
    one, two = (DataOrder(prepared, recipe, world_size=size, fallback=tmp_path) for size in (1, 2))
    for _ in range(50):
        micro, of_two = one.next(), two.next()
        assert len(micro) == len(of_two) == 8
        for left, right in zip(micro, of_two, strict=True):
            np.testing.assert_array_equal(left, right)


def test_two_processes_log_the_losses_of_one(run_of_one: Path, run_of_two: Path) -> None:
    alone, together = events(run_of_one, "train"), events(run_of_two, "train")
    assert len(alone) == 50
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
    assert checkpoints(run_of_two) == checkpoints(run_of_one) == [*range(6, 50, 6), 50]
    (alone, together) = (events(run, "validation") for run in (run_of_one, run_of_two))
    assert [event["update"] for event in together] == [event["update"] for event in alone] == [*range(8, 50, 8), 50]
    for one, two in zip(alone, together, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)


def test_a_run_of_two_goes_on_as_a_run_of_one(
    prepared: PreparedData, run_of_one: Path, run_of_two: Path, tmp_path: Path
) -> None:
    settings = (*SETTINGS, "training.updates=53")
    for run in (run_of_one, run_of_two):
        assert train(prepared, run, *settings) == 0
    last = [events(run, "train")[-1] for run in (run_of_one, run_of_two)]
    assert [event["update"] for event in last] == [53, 53]
    assert last[1]["loss"] == pytest.approx(last[0]["loss"], rel=1e-5)


def test_two_processes_that_failed_and_were_stopped_end_with_the_bits_of_two_that_were_not(
    prepared: PreparedData, run_of_two: Path, tmp_path: Path
) -> None:
    def train_on(fault: str) -> tuple[int, list[str]]:
        stdout, stderr = (process := start(LAUNCHED, prepared, tmp_path, *SETTINGS, fault=fault)).communicate()
        assert stdout == ""
        return process.returncode, stderr.splitlines()

    raising = "raise DeviceError('the memory is full', where='cuda:1', hint='take less')"
    fault = "from nmt_cli.errors import DeviceError\n" + in_update(15, raising, rank=1)
    code, lines = train_on(fault)
    assert (code, lines[-3:]) == (6, ["error: the memory is full", "at:    cuda:1", "fix:   take less"])
    assert lines[-4].startswith("update 14/50 ")
    assert checkpoints(tmp_path / "run") == [6, 12]
    # Only one of the two hears of it, and it is not the one that decides and saves.
    code, lines = train_on(in_update(27, "os.kill(os.getpid(), 2)", rank=1))
    assert (code, lines[-1]) == (130, "stopped after update 27, saved: the same command continues")
    assert lines[0] == "resuming run after update 12"
    code, lines = train_on("")
    assert code == 0, lines
    assert lines[0] == "resuming run after update 27"
    both = {*checkpoints(tmp_path / "run")} & {*checkpoints(run_of_two)}
    assert both >= {12, 18, 24, 30, 36, 42, 48, 50}
    for update in both:
        assert checkpoint(tmp_path / "run", update) == checkpoint(run_of_two, update), update


def test_a_rank_that_hangs_ends_all_with_the_stack_of_each(prepared: PreparedData, tmp_path: Path) -> None:
    fault = in_update(9, "time.sleep(600)", rank=1)
    process = start(LAUNCHED, prepared, tmp_path, *SETTINGS, "training.watchdog_seconds=6", fault=fault)
    _, stderr = process.communicate()
    assert process.returncode == 7
    assert "Traceback" not in stderr
    first, *lines = stderr.partition("error: ")[2].splitlines()
    assert first == "none of the ranks has made progress for 6 seconds: the training hangs"
    assert lines[0] == "at:    training.watchdog_seconds"
    assert lines[1].startswith("fix:   see in the stacks below what each rank waits for")
    stacks = "\n".join(lines[2:]).split("rank ")
    one, other = (next(part for part in stacks if part.startswith(f"{rank} of 2, process ")) for rank in (0, 1))
    assert "in all_reduce" in one
    assert "sitecustomize.py" in other
    assert "all_reduce" not in other
    assert checkpoints(tmp_path / "run") == [6]


def test_an_error_of_all_ranks_is_told_once_under_torchrun_too(prepared: PreparedData, tmp_path: Path) -> None:
    process = start(TORCHRUN, prepared, tmp_path, "training.updatse=5")
    _, stderr = process.communicate()
    assert process.returncode == 1  # torchrun's own
    assert stderr.count("error: ") == 1
    assert "training.updatse" in stderr


def test_a_plain_process_is_alone_and_first() -> None:
    ranks = Ranks(0, 1, torch.device("cpu"))
    tensor = torch.ones(3)
    ranks.sum(tensor)
    assert tensor.tolist() == [1, 1, 1]
    assert (ranks.any(True), ranks.any(False), ranks.is_first) == (True, False, True)
