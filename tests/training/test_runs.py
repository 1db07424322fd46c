"""A run's directory: what is in it, where it may lie, and that nothing of anybody else's is touched."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from nmt_cli.artifacts.run import InitialModel, Run
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.errors import ModelError, RecipeError
from nmt_cli.files import sha256
from nmt_cli.recipe.schema import TrainedLines
from nmt_cli.training import runs
from nmt_cli.training.runs import locked_run, open_or_begin, recipe_fingerprint
from tests.artifacts.builders import save_tiny
from tests.training.tiny import prepare_tiny, tiny_recipe, train

COMMAND = ["nmt", "train", "tiny.yaml"]
Begin = Callable[..., Run]


@pytest.fixture
def begin(prepared: PreparedData, tmp_path: Path) -> Begin:
    """Opens or begins the run in a folder, else FOLDER/run, with some settings."""

    def begun(
        *settings: str,
        directory: Path = tmp_path / "run",
        data: PreparedData = prepared,
        command: list[str] = COMMAND,
        restart: bool = False,
    ) -> Run:
        recipe = tiny_recipe(*settings)
        return open_or_begin(directory, recipe, data, command=command, restart=restart, init_from=None)

    return begun


def files_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}


def test_a_new_run_says_what_it_was_begun_with(prepared: PreparedData, begin: Begin, tmp_path: Path) -> None:
    directory = tmp_path / "runs/small"
    run = begin(directory=directory)
    assert sorted(files_in(directory)) == ["recipe.yaml", "run.json", "source.spm", "target.spm"]
    assert [path.name for path in directory.parent.iterdir()] == ["small"]
    record = run.record
    assert (record.languages.pairs[0].source, record.languages.pairs[0].target, record.corpus) == ("en", "de", "tiny")
    assert (record.data, record.command, record.finished) == (str(prepared.directory), COMMAND, None)
    assert datetime.now(UTC) - datetime.fromisoformat(record.started) < timedelta(minutes=1)
    assert record.source_vocab == record.target_vocab == 400
    for side in ("source", "target"):
        assert sha256(directory / f"{side}.spm") == record.tokenizers[side]
    assert record.data_summary["splits"]["train"]["pairs"] == 400
    assert record.trained_lines is not None
    assert run.saved_config_of([]).trained_lines == record.trained_lines
    assert record.trained_lines.usual_longest == np.sort(prepared.split("train").src.lengths)[int(399 * 0.99)] - 1
    assert record.trained_lines.several_sentences == prepared.manifest.several_sentences == 0
    assert run.recipe == tiny_recipe()


def test_the_usual_longest_line_is_no_outlier_and_is_of_pairs_that_are_trained_on(
    prepared: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_BLOCK_PAIRS", 150)
    pairs = prepared.split("train")
    lengths = np.stack([pairs.src.lengths, pairs.tgt.lengths])
    taken = np.sort(lengths[0, lengths.max(axis=0) <= 20]) - 1
    usual = int(taken[int((len(taken) - 1) * 0.99)])
    assert 0 < usual < lengths[0].max() - 1
    trained = runs._trained_lines(prepared, None, max_positions=20)
    assert trained == TrainedLines(several_sentences=0, usual_longest=usual)
    assert runs._trained_lines(prepared, None, max_positions=1) is None
    all_capitals = prepared.manifest.model_copy(update={"in_capitals": 1.0})
    trained = runs._trained_lines(replace(prepared, manifest=all_capitals), None, max_positions=20)
    assert trained is not None
    assert trained.in_capitals == 1


def test_what_the_model_before_never_saw_counts_as_not_seen(prepared: PreparedData, tmp_path: Path) -> None:
    own = runs._trained_lines(prepared, None, max_positions=999)
    assert own is not None
    initial = InitialModel(path=str(tmp_path / "model"), weights_sha256="", updates=[])
    before = TrainedLines(several_sentences=0.5, usual_longest=own.usual_longest - 1)
    for known, expected in ((before, before.model_copy(update={"several_sentences": 0.0})), (None, None)):
        save_tiny(tmp_path / "model", spm_folder=tmp_path, trained_lines=known, overwrite=True)
        assert runs._trained_lines(prepared, initial, max_positions=999) == expected


def test_a_run_that_is_there_is_kept_as_it_is_and_knows_where_its_data_have_moved(
    prepared: PreparedData, begin: Begin, tmp_path: Path
) -> None:
    record = begin().record
    before = files_in(tmp_path / "run")
    begin(command=["another"])
    begin(command=["another"], data=type(prepared)(Path(os.path.relpath(prepared.directory)), prepared.manifest))
    assert files_in(tmp_path / "run") == before
    moved = shutil.copytree(prepared.directory, tmp_path / "moved data")
    found = begin(command=["another"], data=type(prepared)(moved, prepared.manifest)).record
    assert found == record.model_copy(update={"data": str(moved), "command": ["another"]})
    (tmp_path / "run/checkpoints/update-00000100").mkdir(parents=True)
    with pytest.raises(RecipeError, match=f"was begun with the data in {moved}, not with "):
        begin(data=prepare_tiny(tmp_path / "other", "tokenizer.vocab_size=380"))


def test_a_run_that_goes_on_with_other_settings_says_so_and_keeps_the_command_for_them(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="nmt_cli")
    before = begin().recipe.training.updates
    run = begin("training.updates=9000", "averaging.last=1", command=["nmt", "train", "long.yaml"])
    assert run.record.command == ["nmt", "train", "long.yaml"]
    assert run.recipe.training.updates == 9000
    (told,) = caplog.messages
    assert told == f"the run goes on with training.updates 9000, not {before}; averaging.last 1, not 2"


def test_another_temperature_is_told_with_both_values(begin: Begin, tmp_path: Path) -> None:
    begin("training.temperature=3")
    (tmp_path / "run/checkpoints/update-00000100").mkdir(parents=True)
    with pytest.raises(RecipeError, match=r"was trained with training\.temperature 3\.0, not 1\.0"):
        begin("training.temperature=1")


def test_an_end_that_is_past_is_refused(prepared: PreparedData, tmp_path: Path) -> None:
    assert train(prepared, tmp_path / "run", "training.updates=3") == 0
    before = files_in(tmp_path / "run")
    with pytest.raises(RecipeError, match=r"has taken 3 updates, more than training\.updates, 2") as error:
        train(prepared, tmp_path / "run", "training.updates=2")
    assert error.value.hint.startswith("give --set training.updates=3 or more")
    assert files_in(tmp_path / "run") == before


def test_an_empty_folder_becomes_a_run_and_restart_removes_all_that_is_in_it(begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    begin()
    (tmp_path / "run/checkpoints").mkdir()
    begin(restart=True)
    assert not (tmp_path / "run/checkpoints").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_file_is_no_folder(begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("kept")
    with pytest.raises(ModelError, match="exists and is not a run"):
        begin(restart=True)
    with pytest.raises(ModelError, match="a file stands where a folder must be"), locked_run(tmp_path / "run/mine"):
        pass
    assert (tmp_path / "run").read_text() == "kept"


def test_a_run_that_saved_nothing_is_begun_anew_with_other_settings(begin: Begin, tmp_path: Path) -> None:
    begin()
    (tmp_path / "run/metrics.jsonl").write_text("of the start that failed\n")
    (tmp_path / "run/checkpoints/.update-00000100.partial").mkdir(parents=True)
    assert begin("training.seed=2").recipe.training.seed == 2
    assert not (tmp_path / "run/metrics.jsonl").exists()


@pytest.mark.parametrize(
    "kept", ["checkpoints/update-00000100", "checkpoints/.update-00000100.retired", "model", "notes"]
)
def test_a_run_that_holds_anything_else_is_not(begin: Begin, tmp_path: Path, kept: str) -> None:
    begin()
    (tmp_path / "run" / kept).mkdir(parents=True)
    with pytest.raises(RecipeError, match=r"was trained with training\.seed 1, not 2"):
        begin("training.seed=2")
    assert (tmp_path / "run" / kept.replace(".update", "update").removesuffix(".retired")).exists()


def test_the_fingerprint_tells_trainings_apart_by_what_weights_follow_from(
    prepared: PreparedData, tmp_path: Path
) -> None:
    def fingerprint(*settings: str, data: PreparedData = prepared) -> str:
        return recipe_fingerprint(tiny_recipe(*settings), data, init_from=None)

    plain = fingerprint()
    assert fingerprint("training.updates=30", "training.keep_last=3", "decoding.beam=1", "description=x") == plain
    assert fingerprint("model.d_k=null", "model.d_v=null") == plain, "derived widths are recorded as numbers"
    cosine = "training.schedule={name: cosine, peak: 1e-3, warmup_updates: 2}"  # its rate depends on the length
    others = [
        fingerprint("training.seed=2"),
        fingerprint("model.d_ff=65"),
        fingerprint("training.schedule.factor=1.0"),
        fingerprint(cosine, "training.updates=20"),
        fingerprint(cosine, "training.updates=30"),
        fingerprint(data=prepare_tiny(tmp_path, "cleaning.max_words=9")),
    ]
    assert len({plain, *others}) == 7


def test_a_restart_of_a_linked_run_keeps_the_link_and_replaces_its_target(begin: Begin, tmp_path: Path) -> None:
    begin(directory=tmp_path / "disk/run")
    (tmp_path / "disk/run/checkpoints").mkdir()
    (tmp_path / "link").symlink_to("disk/run")
    begin(directory=tmp_path / "link", restart=True)
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["run"]
    assert sorted(files_in(tmp_path / "disk/run")) == ["recipe.yaml", "run.json", "source.spm", "target.spm"]
    assert not (tmp_path / "disk/run/checkpoints").exists()
