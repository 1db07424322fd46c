"""`nmt average`: which checkpoints its arguments mean, what it says, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nmt_cli.artifacts.model_directory import load_saved_config
from nmt_cli.artifacts.run import model_of_run
from nmt_cli.cli.average import average
from nmt_cli.errors import ModelError, UsageError
from tests.artifacts.builders import save_tiny, tiny_recipe, write_run
from tests.forks import run_forked


def call(
    *paths: Path, output: Path | None = None, last: int | None = None, best: int | None = None, overwrite: bool = False
) -> None:
    average(list(paths), output=output, last=last, best=best, overwrite=overwrite)


def checkpoint(run: Path, update: int) -> Path:
    return run / "checkpoints" / f"update-{update:08}"


def test_the_command_says_what_it_averaged_and_what_comes_next(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "x", updates=3)
    done = run_forked([sys.executable, "-m", "nmt_cli", "average", "runs/x", "--last", "2"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == [
        "update       200  validation loss 4.5000  BLEU 40.00",
        "update       300  validation loss 4.2500  BLEU 13.00",
        "the average was not measured on the validation set: there is no prepared data at data/mini",
        "runs/x/averaged: the average of 2 checkpoints",
        "next: nmt decode -m runs/x/averaged < input.txt > output.txt",
    ]
    card = (tmp_path / "runs" / "x" / "averaged" / "README.md").read_text()
    assert "$ nmt train tiny.yaml --data data/mini\n$ nmt average runs/x --last 2\n" in card


def test_a_mount_point_is_no_output(tmp_path: Path) -> None:
    write_run(tmp_path / "x", updates=1)
    with pytest.raises(UsageError, match="/proc is a mount point") as caught:
        call(tmp_path / "x", last=1, output=Path("/proc"))
    assert caught.value.hint == "name a folder in it: -o /proc/NAME"


def test_too_few_checkpoints_are_an_error_of_three_lines(tmp_path: Path) -> None:
    write_run(tmp_path / "x", updates=1)
    done = run_forked([sys.executable, "-m", "nmt_cli", "average", "x"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.splitlines() == [
        "error: 5 were asked for, but the run has 1 checkpoint",
        "at:    x/checkpoints",
        "fix:   nmt average x --last 1",
    ]


@pytest.mark.parametrize(
    ("averaging", "expected"),
    [({"last": 2}, [300, 400]), ({"last": None, "best": 1}, [300])],
)
def test_without_options_the_recipe_decides(
    tmp_path: Path, averaging: dict[str, int | None], expected: list[int]
) -> None:
    write_run(tmp_path / "x", updates=4, recipe=tiny_recipe(averaging=averaging, training={"keep_best": 1}))
    call(tmp_path / "x")
    assert load_saved_config(tmp_path / "x" / "averaged").updates == expected


def test_options_and_named_checkpoints_decide_before_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "x"
    write_run(run, updates=4)
    call(run, best=1)
    assert load_saved_config(run / "averaged").updates == [300]
    call(checkpoint(run, 400), checkpoint(run, 100))
    assert load_saved_config(run / "averaged").updates == [100, 400]
    call(checkpoint(run, 200), output=tmp_path / "single")
    assert load_saved_config(tmp_path / "single").updates == [200]
    monkeypatch.chdir(run / "checkpoints")
    call(Path("update-00000100"), Path("../checkpoints/update-00000200"))
    assert load_saved_config(run / "averaged").updates == [100, 200]


def test_arguments_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for run in (first, second):
        write_run(run, updates=1)
    with pytest.raises(UsageError, match="--last and --best exclude each other") as caught:
        call(first, last=1, best=1)
    assert caught.value.hint == "give one of them"
    with pytest.raises(UsageError, match="--last and --best choose among a run's checkpoints") as caught:
        call(checkpoint(first, 100), last=1)
    assert "name the run instead" in caught.value.hint
    with pytest.raises(UsageError, match="a is a run, and there are other arguments") as caught:
        call(first, second)
    assert "name one run" in caught.value.hint
    with pytest.raises(ModelError, match="belong to different runs") as error:
        call(checkpoint(first, 100), checkpoint(second, 100))
    assert error.value.hint == "average checkpoints of one run"


def test_paths_that_are_no_checkpoints_are_named(tmp_path: Path) -> None:
    run = tmp_path / "x"
    write_run(run, updates=1)
    with pytest.raises(ModelError, match="nowhere does not exist") as caught:
        call(tmp_path / "nowhere")
    assert caught.value.hint == "nmt average runs/NAME, or its checkpoints/update-*"
    with pytest.raises(ModelError, match="is neither a run nor a checkpoint") as caught:
        call(tmp_path)


def test_another_model_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    write_run(tmp_path / "x", updates=1)
    save_tiny(tmp_path / "m", spm_folder=tmp_path)
    with pytest.raises(ModelError, match="exists already") as caught:
        call(tmp_path / "x", last=1, output=tmp_path / "m")
    assert "--overwrite" in caught.value.hint
    assert load_saved_config(tmp_path / "m").updates == [7]
    call(tmp_path / "x", last=1, output=tmp_path / "m", overwrite=True)
    assert load_saved_config(tmp_path / "m").updates == [100]


def test_a_mean_of_earlier_updates_than_the_model_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = tmp_path / "x"
    write_run(run, updates=2)
    call(run, last=2)
    save_tiny(run / "model", spm_folder=tmp_path, update=300)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    call(run, last=2)
    assert f"the average is of earlier updates than {run}/model, which decode and serve take" in caplog.messages
    assert model_of_run(run) == run / "model"
