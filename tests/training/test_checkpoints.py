"""Checkpoints: damaged ones are named; full disks, and kills between two renames, lose nothing; few are kept."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nmt_cli import files
from nmt_cli.artifacts.checkpoints import read_checkpoint
from nmt_cli.artifacts.manifest import write_manifest
from nmt_cli.artifacts.weights import write_tensors
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.devices import Precision
from nmt_cli.errors import ModelError
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import ModelConfig
from nmt_cli.recipe.training import AdamConfig
from nmt_cli.training import checkpointer as module
from nmt_cli.training.checkpointer import CheckpointFolder, tensors_of
from nmt_cli.training.master_weights import MasterWeights
from nmt_cli.training.optimizers_and_schedules import Optimizer
from nmt_cli.training.state import TrainingState
from nmt_cli.training.validation import Validation
from tests.training.tiny import checkpoint, checkpoints, stopped_after, train

NINE = ("training.updates=9", "training.checkpoint_every=3", "training.log_every=1")
FILES = ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]


def shorten(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def change_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


@pytest.fixture(scope="module")
def whole(finished_run: Callable[..., Path]) -> Path:
    """A run of 9 updates with checkpoints at 3, 6 and 9."""
    return finished_run(*NINE)


@pytest.fixture(scope="module")
def stopped_once(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped after update 7, with checkpoints at 3, 6 and 7, and its recipe beside it."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    with stopped_after(7):
        assert train(prepared, run, *NINE) == 75
    return run


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run."""
    shutil.copytree(stopped_once.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def resume(data: PreparedData, run: Path) -> int:
    return train(data, run, *NINE)


def small_training(*, precision: Precision = "fp32") -> tuple[MasterWeights, Optimizer]:
    config = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=8, d_ff=8, heads=1, d_k=8, d_v=8)
    torch.manual_seed(1)
    weights = MasterWeights(Transformer(config, source_vocab=20, target_vocab=20), precision=precision)
    return weights, Optimizer(weights, AdamConfig(), ema=None)


def measured(*, loss: float, bleu: float | None) -> Validation:
    return Validation(loss, loss, 1.0, bleu, None, 0.0, ())


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_named_with_the_command_that_removes_it(
    prepared: PreparedData, stopped: Path, name: str
) -> None:
    newest = stopped / "checkpoints/update-00000007"
    change_a_bit(newest / name)
    with pytest.raises(ModelError) as caught:
        resume(prepared, stopped)
    error = caught.value
    assert error.exit_code == 5
    assert error.message.startswith(f"{name} is ") or error.message.startswith(f"{name} was ")
    assert error.where == str(newest / name)
    assert error.hint.endswith(f"rm -r {newest}")


def test_without_the_newest_checkpoint_the_one_before_is_resumed(
    prepared: PreparedData, whole: Path, stopped: Path
) -> None:
    (stopped / "checkpoints/update-00000007/manifest.json").unlink()  # without it, it is no checkpoint
    assert resume(prepared, stopped) == 0
    assert checkpoints(stopped) == [3, 6, 9]
    assert checkpoint(stopped, 9) == checkpoint(whole, 9)


def test_a_checkpoint_of_another_version_is_refused_and_not_to_be_removed(tmp_path: Path) -> None:
    weights, optimizer = small_training()
    folder = CheckpointFolder(tmp_path, recipe_fingerprint="f")
    path = folder.save(TrainingState("fp32", update=4), tensors_of(weights, optimizer))
    with pytest.raises(ModelError, match="is of another training"):
        CheckpointFolder(tmp_path, recipe_fingerprint="g").load(read_checkpoint(path), weights, optimizer)
    (path / "state.json").write_text(json.dumps({"precision": "fp32", "course": {}, "later": 1}))
    write_manifest(path, {"kind": "checkpoint", "update": 4, "recipe_fingerprint": "f"})
    with pytest.raises(ModelError, match=r"^state\.json has other fields: ") as caught:
        folder.load(read_checkpoint(path), weights, optimizer)
    assert caught.value.hint == "continue with the version of nmt that wrote it, or begin in another folder with -o"


def test_a_full_disk_loses_no_earlier_checkpoint(
    prepared: PreparedData, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0

    def until_full(file: Path, tensors: dict[str, torch.Tensor]) -> None:
        nonlocal written
        written += 1
        if written > 6:  # two files in the sanity pass, two in each checkpoint
            file.write_bytes(bytes(100))
            raise OSError(errno.ENOSPC, "No space left on device")
        write_tensors(file, tensors)

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_tensors", until_full)
        with pytest.raises(ModelError) as caught:
            resume(prepared, run)
    error = caught.value
    assert error.exit_code == 5
    assert error.message == "cannot write update-00000009: the disk is full; the checkpoint of update 6 is complete"
    assert error.where == str(run / "checkpoints/update-00000009")
    assert error.hint == "free some space, then give the same command again"
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["update-00000003", "update-00000006"]
    assert resume(prepared, run) == 0
    assert checkpoint(run, 9) == checkpoint(whole, 9)


def test_what_is_saved_comes_back_in_both_precisions(tmp_path: Path) -> None:
    for precision in ("fp32", "bf16"):
        weights, optimizer = small_training(precision=precision)
        weights.gradients.normal_()
        optimizer.step(learning_rate=0.01, skip=torch.zeros(()))
        state = TrainingState(precision, update=4, applied=1, skipped_in_row=3, epoch=2, index=5, best=0.1, validated=4)
        folder = CheckpointFolder(tmp_path / precision, recipe_fingerprint="f")
        validated = replace(state, validation=measured(loss=2.5, bleu=30.0), signal=15)
        folder.save(validated, tensors_of(weights, optimizer))
        found = folder.newest()
        assert found is not None
        assert (found.update, found.recipe_fingerprint, found.loss, found.bleu) == (4, "f", 2.5, 30.0)
        other_weights, other_optimizer = small_training(precision=precision)
        assert not torch.equal(other_weights.values, weights.values)
        assert folder.load(found, other_weights, other_optimizer) == state
        assert torch.equal(other_weights.values, weights.values)
        for name, moment in optimizer.state.items():
            assert torch.equal(other_optimizer.state[name], moment)
            assert moment.abs().max() > 0


def directory(path: Path, content: str) -> Path:
    path.mkdir(parents=True)
    (path / "file").write_text(content)
    return path


# What a kill can leave of new_directory(parent / "x"), before, between and after its two renames.
STATES = {
    "half of the new": ([".x.partial=half", "x=old"], "old"),
    "all of the new": ([".x.partial=new", "x=old"], "old"),
    "the old out of the way": ([".x.partial=new", ".x.retired=old"], "old"),
    "the new in its place": (["x=new", ".x.retired=old"], "new"),
    "half of the old removed": (["x=new", ".x.retired=half"], "new"),
    "half of the first": ([".x.partial=half"], None),
    "a removal begun": ([".x.removed=half"], None),
    "a removal begun beside a new one": (["x=new", ".x.removed=half"], "new"),
}


@pytest.mark.parametrize("state", STATES)
def test_no_kill_around_the_renames_loses_a_directory(tmp_path: Path, state: str) -> None:
    left, expected = STATES[state]
    for entry in [*left, "y=neighbour"]:
        name, _, content = entry.partition("=")
        directory(tmp_path / name, content)
    files.clear_partial_directories(tmp_path, name="x")
    found = {path.name: (path / "file").read_text() for path in tmp_path.iterdir()}
    assert found == {"y": "neighbour", **({} if expected is None else {"x": expected})}
    with files.new_directory(tmp_path / "x", error=ModelError) as temporary:
        (temporary / "file").write_text("newer")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]
    assert (tmp_path / "x" / "file").read_text() == "newer"


@pytest.mark.parametrize("failing", [1, 2])
def test_an_interruption_of_either_rename_leaves_the_old_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    rename, calls = Path.rename, 0

    def interrupted(self: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise KeyboardInterrupt
        return rename(self, target)

    directory(tmp_path / "x", "old")
    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), files.new_directory(tmp_path / "x", error=ModelError) as temporary:
        (temporary / "file").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x" / "file").read_text() == "old"


WRITING = """
import sys
from pathlib import Path
from nmt_cli.errors import ModelError
from nmt_cli.files import new_directory
with new_directory(Path(sys.argv[1]), error=ModelError) as temporary:
    (temporary / "file").write_text("half")
    print("written", flush=True)
    sys.stdin.read()
    (temporary / "file").write_text("whole")
"""


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_second_writer_is_refused_until_the_first_has_ended(tmp_path: Path, is_killed: bool) -> None:
    def write() -> None:
        with files.new_directory(tmp_path / "x", error=ModelError) as temporary:
            assert not list(temporary.iterdir())

    command = [sys.executable, "-c", WRITING, str(tmp_path / "x")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "written\n"
        with pytest.raises(ModelError, match="another process is writing x") as error:
            write()
        assert error.value.hint == "wait until it ends, or choose another folder with -o"
        files.clear_partial_directories(tmp_path, name="*")
        if is_killed:
            first.kill()
    assert is_killed or (tmp_path / "x" / "file").read_text() == "whole"
    write()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_disk_without_locks_has_directories_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    directory(tmp_path / ".x.partial", "half")
    with files.new_directory(tmp_path / "x", error=ModelError) as temporary:
        (temporary / "file").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_killed_save_or_removal_in_the_checkpoints_is_cleared_and_the_newest_whole_one_taken(
    prepared: PreparedData, whole: Path, stopped: Path
) -> None:
    folder = stopped / "checkpoints"
    partial = shutil.copytree(folder / "update-00000007", folder / ".update-00000008.partial")
    shorten(partial / "model.safetensors")
    (folder / "update-00000003").rename(folder / ".update-00000003.removed")
    (folder / ".update-00000003.removed" / "manifest.json").unlink()
    shutil.copytree(folder / "update-00000007", folder / ".update-00000007.partial")
    (folder / "update-00000007").rename(folder / ".update-00000007.retired")
    assert resume(prepared, stopped) == 0
    assert sorted(path.name for path in folder.iterdir()) == [f"update-0000000{update}" for update in (6, 9)]
    assert checkpoint(stopped, 9) == checkpoint(whole, 9)


LOSSES = {1: 5.0, 2: 3.0, 3: 3.5, 4: None, 5: 3.0, 6: 4.0, 7: 4.5}
BLEUS = {1: 9.0, 2: 1.0, 3: 2.0, 4: None, 5: 8.0, 6: 3.0, 7: 4.0}


@pytest.mark.parametrize(
    ("metric", "keep_last", "keep_best", "expected"),
    [
        ("loss", 1, 0, [7]),
        ("loss", 3, 0, [5, 6, 7]),
        ("loss", 1, 1, [5, 7]),  # of two equally good ones, the newer
        ("loss", 1, 2, [2, 5, 7]),
        ("loss", 2, 3, [2, 3, 5, 6, 7]),
        ("bleu", 1, 1, [1, 7]),
        ("bleu", 1, 2, [1, 5, 7]),
        ("bleu", 2, 3, [1, 5, 6, 7]),
        ("bleu", 9, 9, [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_the_newest_and_the_best_are_kept(
    tmp_path: Path, metric: str, keep_last: int, keep_best: int, expected: list[int]
) -> None:
    weights, optimizer = small_training()
    folder = CheckpointFolder(tmp_path, recipe_fingerprint="f")
    for update, loss in LOSSES.items():
        validation = None if loss is None else measured(loss=loss, bleu=BLEUS[update])
        state = TrainingState("fp32", update=update, validation=validation)
        folder.save(state, tensors_of(weights, optimizer))
    folder.prune(keep_last=keep_last, keep_best=keep_best, metric="loss" if metric == "loss" else "bleu")
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [f"update-{update:08}" for update in expected]


def test_a_disk_that_syncs_no_directories_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def sync_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync_files)
    with files.new_directory(tmp_path / "new", error=ModelError) as temporary:
        (temporary / "file").touch()
    assert (tmp_path / "new/file").is_file()
