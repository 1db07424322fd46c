"""Disk, memory and hours, against the same sums done by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nmt_cli.artifacts.run import Run, open_run
from nmt_cli.errors import DataError
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.reproducing import needs
from nmt_cli.reproducing.experiments import EXPERIMENTS
from nmt_cli.reproducing.needs import Machine, Needs, TimeEstimate, check_disk, measure_machine
from nmt_cli.reproducing.plan import ReproductionPlan, plan_reproduction
from tests.artifacts.builders import write_run

GPUS = Machine(
    name="GPU",
    is_gpu=True,
    num_devices=8,
    memory_bytes=80_000_000_000,
    precision="bf16",
    flops_per_second=100e12,
    decoding_flops_per_second=100e12,
    num_cpus=16,
)


def logged(folder: Path, *events: dict[str, object]) -> Run:
    """A run whose log has these events."""
    write_run(folder / "logged")
    (folder / "logged" / "metrics.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return open_run(folder / "logged")


def line(update: int, seconds: float) -> dict[str, object]:
    return {"event": "train", "update": update, "seconds": seconds}


def planned(folder: Path, *settings: str) -> ReproductionPlan:
    data, run = folder / "data", folder / "run"
    return plan_reproduction(EXPERIMENTS["base-en-de"], settings=settings, limit=None, data=data, run=run)


def training(folder: Path, *settings: str, run: Run | None = None, machine: Machine = GPUS) -> Needs:
    return needs.training_needs(planned(folder, *settings), run, machine)


def test_hours_follow_from_the_parameters_and_the_rate_measured_here(tmp_path: Path) -> None:
    found = training(tmp_path)
    # Forward and backward, 6 operations a parameter and token, at half and at a fifth of 8 times 100 TFLOP/s.
    work = 6 * 65_073_152 * 25_000 * 100_000
    assert found.time is not None
    assert found.time.min_hours == pytest.approx(work / (800e12 * 0.5) / 3600)
    assert found.time.max_hours == pytest.approx(work / (800e12 * 0.2) / 3600)
    assert found.time.basis == (
        "8 x GPU in bf16: 20 to 50 % of the 800 TFLOP/s of matrix products measured here; validations not counted"
    )


def test_a_training_that_has_begun_is_estimated_by_its_own_speed(tmp_path: Path) -> None:
    run = logged(tmp_path, line(100, 9.0), {"event": "resume", "update": 100}, line(200, 40.0), line(300, 90.0))
    found = training(tmp_path, run=run)
    assert found.time is not None
    assert found.time.min_hours == found.time.max_hours == pytest.approx(100_000 * 0.5 / 3600)
    assert found.time.basis == "the run's own speed, 0.5 s per update; validations not counted"


def test_disk_is_that_of_the_checkpoints_less_what_is_there(tmp_path: Path) -> None:
    ((folder, amount),) = training(tmp_path).disk
    # Five checkpoints and the one being written, with two moments each, and the model, in float32.
    assert (folder, amount) == (tmp_path / "run", 65_073_152 * (6 * 12 + 4))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "weights").write_bytes(b"x" * 1000)
    ((_, less),) = training(tmp_path).disk
    assert less == amount - 1000


def test_memory_that_a_device_has_not_got_is_answered_with_a_setting(tmp_path: Path) -> None:
    assert "too much" not in training(tmp_path).memory
    one = replace(GPUS, num_devices=1, memory_bytes=5_000_000_000)

    def memory(max_tokens: int | str) -> str:
        return training(tmp_path, f"training.max_tokens_per_device={max_tokens}", machine=one).memory

    tokens = int(memory(25_000).rpartition("too much; less with --set training.max_tokens_per_device=")[2])
    assert "too much" not in memory(tokens)
    assert memory("auto").endswith(f" for 25,000 tokens at once: it will take fewer, about {tokens:,}")
    tiny = replace(one, memory_bytes=1_000_000_000)
    assert training(tmp_path, machine=tiny).memory.endswith("1.0 GB: too much for such a device")


def test_a_preparation_needs_what_is_not_downloaded_and_not_worked_off_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, plan = tmp_path / "datasets--wmt--wmt14", planned(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    whole = dict(needs.preparation_needs(plan, GPUS).disk)
    assert whole == {cache: plan.corpus.bytes, tmp_path / "data": 4_508_785 * 600}
    for folder, size in (cache, 300_000), (tmp_path / "data.partial", 100_000):
        folder.mkdir()
        (folder / "shard").write_bytes(b"x" * size)
    left = dict(needs.preparation_needs(plan, GPUS).disk)
    assert [whole[folder] - left[folder] for folder in whole] == [300_000, 100_000]
    local = planned(tmp_path, "train=[{kind: hub, repository: ./wmt14, split: train}]")
    assert [folder for folder, _ in needs.preparation_needs(local, GPUS).disk] == [tmp_path / "data"]


def test_a_disk_that_is_too_small_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "free_bytes", lambda folder: 5_000_000_000)
    one = Needs(disk=((tmp_path / "data", 3_000_000_000),))
    check_disk([one], is_rehearsal=False)
    with pytest.raises(DataError) as caught:  # both lie on one disk
        check_disk([one, Needs(disk=((tmp_path / "run", 2_500_000_000),))], is_rehearsal=False)
    where = tmp_path / "data"
    assert caught.value.message == f"the disk of {where} has 5.0 GB free, but the remaining stages need 5.5 GB"
    assert caught.value.hint == (
        "free some space, name folders on another disk (--data, -o, and for downloads HF_HOME or NMT_CACHE), "
        "or rehearse it first: --limit 10000"
    )
    with pytest.raises(DataError) as caught:
        check_disk([one, one], is_rehearsal=True)
    assert caught.value.hint.endswith("or a smaller --limit")


@pytest.mark.parametrize(
    ("hours", "words"),
    [
        ((0.0, 0.01), "less than a minute"),
        ((0.001, 0.05), "up to 3 minutes"),
        ((0.5, 1.2), "30 to 72 minutes"),
        ((3.0, 3.0), "about 3.0 hours"),
        ((40.0, 96.0), "1.7 to 4.0 days"),
    ],
)
def test_a_time_is_told_in_one_unit(hours: tuple[float, float], words: str) -> None:
    assert Needs(time=TimeEstimate(*hours, basis="at 2 lines/s")).lines() == [f"time:   {words} (at 2 lines/s)"]


def test_the_machine_at_hand_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "free_cpu_bytes", lambda: 3_000_000_000)  # as in a container
    machine = measure_machine(load_recipe("base"))
    assert machine.flops_per_second > 1e9
    if machine.is_gpu:
        assert machine.memory_bytes > 1e9
    else:
        assert " of the 3.0 GB that were free at the start" in training(tmp_path, machine=machine).memory
    assert json.dumps(str(machine)).isascii()
