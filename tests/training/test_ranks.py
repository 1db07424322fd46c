"""Several ranks train as one process would, and one message tells of a failure."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # documented there, and not declared

from nmt_cli.artifacts.weights import read_tensors
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.errors import DeviceError, UsageError
from nmt_cli.training.ranks import ranks as module
from nmt_cli.training.ranks.ranks import (
    CONTINUES,
    ConnectionLost,
    FailureBoard,
    Ranks,
    join_ranks,
    report_failure,
)
from nmt_cli.training.start import launch_ranks
from tests.training.tiny import checkpoint, checkpoints, events, stopped_after, train
from tests.training.two_ranks import LAUNCHED, TORCHRUN, in_update, start

CPU = torch.device("cpu")
UPDATES = 16
SETTINGS = (
    "training.batch_tokens=1600",
    "training.max_tokens_per_device=224",
    f"training.updates={UPDATES}",
    "training.log_every=1",
    "training.clip_norm=0.5",
    "training.patience=99",
    "training.schedule.factor=0.05",  # at high rates the smallest difference, by rounding, grows tenfold in few updates
    "model.activation=gelu",  # at the kink of ReLU, rounding decides whether a unit has a gradient
    "model={attention_dropout: 0.1, ffn_dropout: 0.1, word_dropout: {source: 0.1, target: 0.1}}",
)
COUNTED = """
def install():
    from pathlib import Path
    from torch import distributed
    from nmt_cli.training.update import Updater
    calls, counts, launch = [], [], Updater.launch
    for name in ("all_reduce", "broadcast", "barrier"):
        def counted(*arguments, function=getattr(distributed, name), **options):
            calls.append(1)
            return function(*arguments, **options)
        setattr(distributed, name, counted)
    def counting(self, *arguments, number, **options):
        counts.append(len(calls))
        Path(f"counts-{RANK}").write_text(f"{counts}")
        return launch(self, *arguments, number=number, **options)
    Updater.launch = counting
if RANK is not None:
    install()
"""


@pytest.fixture(scope="module")
def run_of_two(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two processes that torchrun has started, with gloo on the CPU, and their counts of collectives."""
    folder = tmp_path_factory.mktemp("two")
    process = start(TORCHRUN, prepared, folder, *SETTINGS, fault=COUNTED)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert stdout == ""
    assert stderr.count(f" 1/{UPDATES} ") == 1, "only the first rank talks"
    assert stderr.count("next: nmt average run") == 1
    return folder / "run"


@pytest.fixture(scope="module")
def run_of_one(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("one") / "run"
    assert train(prepared, run, *SETTINGS) == 0
    return run


def test_two_processes_log_the_losses_of_one(run_of_one: Path, run_of_two: Path) -> None:
    alone, together = events(run_of_one, "train"), events(run_of_two, "train")
    assert len(alone) == UPDATES
    for one, two in zip(alone, together, strict=True):
        for key in ("update", "epoch", "learning_rate", "source_tokens", "target_tokens"):
            assert two[key] == one[key]
        # Float32 sums of eight parts in another order, then Adam: 1e-5 is ten times what was seen.
        for key in ("loss", "nll", "gradient_norm"):
            assert two[key] == pytest.approx(one[key], rel=1e-5)


def test_two_processes_end_with_the_weights_of_one(run_of_one: Path, run_of_two: Path) -> None:
    one, two = (read_tensors(run / "model/model.safetensors", hint="") for run in (run_of_one, run_of_two))
    assert one.keys() == two.keys()
    # Gradients of eight parts are summed in another order, in float32, for weights of up to 1. An update more or less
    # would show as 1e-3, the learning rate.
    difference = torch.cat([(one[name] - two[name]).abs().flatten() for name in one])
    assert difference.max() < 1e-6


def test_two_processes_validate_and_save_once(run_of_one: Path, run_of_two: Path) -> None:
    assert checkpoints(run_of_two) == checkpoints(run_of_one) == [6, 8, 12, 16]
    (alone, together) = (events(run, "validation") for run in (run_of_one, run_of_two))
    assert [event["update"] for event in together] == [event["update"] for event in alone] == [8, 16]
    for one, two in zip(alone, together, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)


def test_a_run_of_two_goes_on_as_a_run_of_one(prepared: PreparedData, run_of_one: Path, run_of_two: Path) -> None:
    settings = (*SETTINGS, f"training.updates={UPDATES + 3}")
    for run in (run_of_one, run_of_two):
        assert train(prepared, run, *settings) == 0
    last = [events(run, "train")[-1] for run in (run_of_one, run_of_two)]
    assert [event["update"] for event in last] == [UPDATES + 3] * 2
    assert last[1]["loss"] == pytest.approx(last[0]["loss"], rel=1e-5)


@pytest.mark.slow
def test_two_processes_that_hung_and_were_stopped_go_on_with_the_bits_of_two_that_did_not(
    prepared: PreparedData, run_of_two: Path, tmp_path: Path
) -> None:
    def train_on(fault: str, *settings: str) -> tuple[int, list[str]]:
        process = start(LAUNCHED, prepared, tmp_path, *SETTINGS, *settings, fault=fault)
        stdout, stderr = process.communicate()
        assert stdout == ""
        assert "Traceback" not in stderr
        return process.returncode, stderr.splitlines()

    code, lines = train_on(in_update(9, "time.sleep(600)", rank=1), "training.watchdog_seconds=12")
    assert code == 7
    check_stacks(lines)
    assert checkpoints(tmp_path / "run") == [6, 8]
    # Only one of the two hears of it, and it is not the one that decides and saves.
    code, lines = train_on(in_update(15, "os.kill(os.getpid(), 2)", rank=1))
    assert (code, lines[-1]) == (130, "stopped after update 15, saved: the same command continues"), "\n".join(lines)
    assert lines[:2] == [
        "the run goes on with training.watchdog_seconds 600, not 12",
        "resuming run after update 8",
    ]
    assert checkpoints(tmp_path / "run") == [6, 8, 12, 15]
    for update in (6, 8, 12):
        assert checkpoint(tmp_path / "run", update) == checkpoint(run_of_two, update), update


def test_nothing_travels_between_two_updates_but_gradients_and_one_sum(run_of_two: Path) -> None:
    """Losses, norm and signals share a sum. Patience is asked for after a validation, the first after update 8."""
    for rank in range(2):
        before = json.loads((run_of_two.parent / f"counts-{rank}").read_text(encoding="utf-8"))
        assert len(before) == UPDATES
        between = [after - first for first, after in itertools.pairwise(before[:8])]
        # A checkpoint comes after update 6, and needs nothing of the other rank.
        assert between == 7 * [2]


def check_stacks(lines: list[str]) -> None:
    """What is said of a hang: three lines of an error, and the stack of each rank, which one waits for in vain."""
    error = lines.index("error: none of the ranks has made progress for 12 seconds: the training hangs")
    where, fix, *stacks = lines[error + 1 :]
    assert where == "at:    training.watchdog_seconds"
    assert fix.startswith("fix:   the stacks below show what each rank waits for")
    parts = "\n".join(stacks).split("rank ")
    waits, hangs = (next(part for part in parts if part.startswith(f"{rank} of 2, process ")) for rank in (0, 1))
    assert "in all_reduce" in waits
    assert "sitecustomize.py" in hangs
    assert "all_reduce" not in hangs


@pytest.mark.parametrize(
    "launcher", [LAUNCHED, pytest.param(TORCHRUN, marks=pytest.mark.slow)], ids=["nmt", "torchrun"]
)
@pytest.mark.parametrize(
    ("statement", "code", "told"),
    [
        pytest.param("raise ValueError('a bug')", 1, "ValueError: a bug", marks=pytest.mark.slow),
        pytest.param("os.kill(os.getpid(), 9)", 7, "SIGKILL", marks=pytest.mark.slow),
        ("os.kill(os.getpid(), 15)", 75, "stopped after update "),
    ],
)
def test_all_ranks_end_with_one_and_one_message_tells_why(
    prepared: PreparedData, tmp_path: Path, launcher: tuple[str, ...], statement: str, code: int, told: str
) -> None:
    fault = in_update(3, statement, rank=1)
    process = start(launcher, prepared, tmp_path, f"training.updates={UPDATES}", fault=fault)
    _, stderr = process.communicate()
    is_torchrun = launcher == TORCHRUN  # it ends with 1, and adds a traceback and a report of its own
    assert process.returncode == (1 if is_torchrun else code), stderr
    assert 1 <= stderr.count(told) <= 1 + is_torchrun, stderr
    assert stderr.count("Traceback (most recent call last)") == (code == 1) + is_torchrun, stderr
    assert "lost the connection" not in stderr


def test_an_error_of_one_rank_ends_both_and_what_all_ranks_meet_only_the_first_tells(
    prepared: PreparedData, finished_run: Callable[..., Path], tmp_path: Path
) -> None:
    fault = """
if RANK == "1":
    from nmt_cli.errors import DeviceError
    from nmt_cli.training import validation
    def fail(*arguments, **options):
        raise DeviceError("no memory is left", hint="end other programs")
    validation._losses = fail
"""
    shutil.copytree(finished_run("training.updates=4", "model.heads=1") / "model", tmp_path / "model")
    settings = (f"training.updates={UPDATES}", "model.max_positions=20")
    process = start((*LAUNCHED, "--init-from", "model"), prepared, tmp_path, *settings, fault=fault)
    _, stderr = process.communicate()
    assert process.returncode == 6, stderr
    assert stderr.count("no memory is left") == stderr.count("error:") == 1, stderr
    assert stderr.count("are longer than model.max_positions and are left out") == 1
    assert stderr.count("architecture of model: heads 1 (not 2)") == 1


def test_an_error_of_all_ranks_is_told_once_under_torchrun_too(prepared: PreparedData, tmp_path: Path) -> None:
    process = start(TORCHRUN, prepared, tmp_path, "training.updatse=5")
    _, stderr = process.communicate()
    assert process.returncode == 1  # torchrun's own
    assert stderr.count("error: ") == 1
    assert "training.updatse" in stderr


def test_a_number_of_gpus_for_ranks_that_torchrun_has_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")  # a container may have it without torchrun
    with pytest.raises(DeviceError, match="--gpus 4 was asked for"):
        launch_ranks([], device="cpu", gpus=4)
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(UsageError) as caught:
        launch_ranks([], device="cpu", gpus=4)
    error = caught.value
    assert error.message == "--gpus 4 was given to one of 1 process(es) that torchrun, by WORLD_SIZE, has started"
    assert error.hint == "leave out --gpus and set torchrun's --nproc-per-node, or unset WORLD_SIZE"


@pytest.mark.parametrize(
    ("variable", "job", "is_ignored"),
    [
        ("TORCHELASTIC_RESTART_COUNT", None, True),
        ("SLURM_RESTART_COUNT", "7", True),
        ("SLURM_RESTART_COUNT", "6", False),
        ("SLURM_RESTART_COUNT", None, False),
    ],
)
def test_another_attempt_of_torchrun_or_slurm_does_not_restart_the_run_that_it_began(
    prepared: PreparedData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
    job: str | None,
    is_ignored: bool,
) -> None:
    caplog.set_level("INFO")
    if job is not None:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    with stopped_after(3):
        assert train(prepared, tmp_path / "run", "training.updates=4") == 75
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv(variable, "1")
    assert train(prepared, tmp_path / "run", "training.updates=4", restart=True) == 0
    assert [event["update"] for event in events(tmp_path / "run", "resume")] == [3] * is_ignored
    ignored = f"--restart is ignored in a later try of the same command: {tmp_path / 'run'} is kept if it is there"
    assert (ignored in caplog.messages) == is_ignored


def test_all_ranks_take_the_checkpoint_of_the_first_whatever_they_see(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("training.checkpoint_every=2", "training.updates=6")
    assert train(prepared, tmp_path / "run", *settings) == 0
    monkeypatch.setattr(Ranks, "broadcast", lambda self, value: 4 if value == 6 else value)
    assert train(prepared, tmp_path / "run", "training.checkpoint_every=2", "training.updates=8") == 0
    assert [event["update"] for event in events(tmp_path / "run", "resume")] == [4]


@pytest.fixture
def join_with_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ranks]:
    """Joins two ranks of one machine as a rank that sees some GPUs; each call tells the device of another rank."""
    store = HashStore()
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: None)

    def joined(*, local: int, gpus: Sequence[str]) -> Ranks:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
        monkeypatch.setattr(module, "rendezvous", lambda *_, **__: iter([(store, local, 2)]))
        monkeypatch.setattr(module, "find_failure_board", lambda: None)
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("LOCAL_RANK", str(local))
        return join_ranks("auto")

    return joined


def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one_that_it_sees(
    join_with_gpus: Callable[..., Ranks],
) -> None:
    joined = [join_with_gpus(local=local, gpus=["a", "b"]) for local in (0, 1)]
    assert [ranks.device.index for ranks in joined] == [0, 1]
    assert [ranks.is_first_on_machine for ranks in joined] == [True, False]
    assert [join_with_gpus(local=local, gpus=[gpu]).device.index for local, gpu in enumerate("ab")] == [0, 0]
    with pytest.raises(DeviceError, match=r"(?m)^device 'cuda:2' was asked for, but torch sees only 2 GPUs here$"):
        join_with_gpus(local=2, gpus=["a", "b"])


def test_a_process_alone_makes_its_gpu_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # Events, streams and kernels without a device are those of the current one.
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join_ranks("cuda:1").device == torch.device("cuda:1")
    assert chosen == [torch.device("cuda:1")]


def test_a_lost_connection_is_told_where_nobody_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    board = FailureBoard(HashStore())
    monkeypatch.setattr(module, "find_failure_board", lambda: board)
    monkeypatch.setattr(module, "_CAUSE_SECONDS", 0.5)
    assert report_failure(7, is_consequence=True) is None
    assert report_failure(6, is_consequence=False) == board.failure() == 7


def test_a_collective_that_fails_is_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("Connection closed by peer [127.0.0.1]:3321\n in gloo")

    monkeypatch.setattr(dist, "all_reduce", broken)
    with pytest.raises(ConnectionLost) as caught:
        Ranks(1, 4, torch.device("cpu")).sum(torch.ones(2))
    error = caught.value
    assert error.exit_code == 7
    assert error.message == "rank 1 of 4 lost the connection to the others"
    assert error.where == "Connection closed by peer [127.0.0.1]:3321"
    assert error.hint == f"look for what ended another process; {CONTINUES}"


@pytest.mark.parametrize(("size", "kind"), [(1, RuntimeError), (4, torch.AcceleratorError)])
def test_an_error_of_the_own_device_stays_what_it_is(size: int, kind: Callable[..., RuntimeError]) -> None:
    with pytest.raises(RuntimeError, match=r"^CUDA error: an illegal"), Ranks(0, size, CPU).collective():
        raise kind("CUDA error: an illegal memory access was encountered")


def test_ranks_that_do_not_find_each_other_say_nccl_s_reason(
    join_with_gpus: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: object, **options: object) -> None:
        raise RuntimeError("NCCL error in: a.cpp:1, unhandled cuda error\nLast error:\nCuda failure 'out of memory'")

    monkeypatch.setattr(torch.distributed, "init_process_group", failing)
    with pytest.raises(DeviceError, match="the 2 processes of the training did not find each other") as caught:
        join_with_gpus(local=0, gpus=["a"])
    assert caught.value.where == "Cuda failure 'out of memory'"
