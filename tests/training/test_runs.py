"""A run's directory: what is in it, where it may lie, and that nothing of anybody else's is touched."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from nmt_cli.artifacts.run import InitialModel, open_run
from nmt_cli.dataset.store import PreparedData
from nmt_cli.errors import ModelError, RecipeError
from nmt_cli.files import sha256
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training import runs
from nmt_cli.training.runs import check_place, mark_finished, open_or_begin, recipe_fingerprint
from tests.artifacts.builders import save_tiny
from tests.training.tiny import RECIPE, prepare_tiny

COMMAND = ["nmt", "train", "tiny.yaml"]


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    return tmp_path / "tiny.yaml"


@pytest.fixture
def recipe(recipe_file: Path) -> Recipe:
    return load_recipe(recipe_file)


def files_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}


def test_a_new_run_says_what_it_was_begun_with(prepared: PreparedData, recipe: Recipe, tmp_path: Path) -> None:
    directory = tmp_path / "runs/small"
    run = open_or_begin(directory, recipe, prepared, command=COMMAND, restart=False, init_from=None)
    assert sorted(files_in(directory)) == ["recipe.yaml", "run.json", "source.spm", "target.spm"]
    assert [path.name for path in directory.parent.iterdir()] == ["small"]
    record = run.record
    assert (record.languages.source, record.languages.target, record.corpus) == ("en", "de", "tiny")
    assert (record.data, record.command, record.finished) == (str(prepared.directory), COMMAND, None)
    assert datetime.now(UTC) - datetime.fromisoformat(record.started) < timedelta(minutes=1)
    assert record.source_vocab == record.target_vocab == 400
    for side in ("source", "target"):
        assert sha256(directory / f"{side}.spm") == record.tokenizers[side]
    assert record.data_summary["splits"]["train"]["pairs"] == 400
    assert record.longest_source == run.config([]).longest_source == prepared.split("train").src.lengths.max() - 1
    assert run.recipe == recipe


def test_the_longest_source_is_of_pairs_that_are_trained_on_and_of_the_model_before(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_BLOCK_PAIRS", 150)
    pairs = prepared.split("train")
    lengths = np.stack([pairs.src.lengths, pairs.tgt.lengths])
    longest = int(lengths[0, lengths.max(axis=0) <= 20].max()) - 1
    assert 0 < longest < lengths[0].max() - 1
    assert runs._longest_source(prepared, None, max_positions=20) == longest
    assert runs._longest_source(prepared, None, max_positions=1) is None
    save_tiny(tmp_path / "model", spm_folder=tmp_path, longest_source=longest + 5)
    initial = InitialModel(path=str(tmp_path / "model"), weights_sha256="", updates=[])
    assert runs._longest_source(prepared, initial, max_positions=20) == longest + 5
    assert runs._longest_source(prepared, initial, max_positions=999) == max(longest + 5, lengths[0].max() - 1)
    # An imported model does not tell how long its sentences were.
    save_tiny(tmp_path / "model", spm_folder=tmp_path, overwrite=True)
    assert runs._longest_source(prepared, initial, max_positions=20) is None


def test_a_run_that_is_there_is_kept_as_it_is(prepared: PreparedData, recipe: Recipe, tmp_path: Path) -> None:
    open_or_begin(tmp_path / "run", recipe, prepared, command=COMMAND, restart=False, init_from=None)
    before = files_in(tmp_path / "run")
    open_or_begin(tmp_path / "run", recipe, prepared, command=["another"], restart=False, init_from=None)
    assert files_in(tmp_path / "run") == before


def test_an_end_that_is_past_is_refused(prepared: PreparedData, recipe_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(recipe_file)
    directory = tmp_path / "run"
    open_or_begin(directory, recipe, prepared, command=COMMAND, restart=False, init_from=None)
    checkpoint = directory / "checkpoints" / f"update-{recipe.training.updates:08d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    before = files_in(directory)
    open_or_begin(directory, recipe, prepared, command=COMMAND, restart=False, init_from=None)
    shorter = load_recipe(recipe_file, overrides=["training.updates=2"])
    with pytest.raises(RecipeError, match=r"has taken \d+ updates, more than training\.updates, 2") as error:
        open_or_begin(directory, shorter, prepared, command=COMMAND, restart=False, init_from=None)
    assert error.value.hint.startswith(f"give --set training.updates={recipe.training.updates} or more")
    assert files_in(directory) == before


def test_the_end_is_noted_and_taken_back(prepared: PreparedData, recipe: Recipe, tmp_path: Path) -> None:
    run = open_or_begin(tmp_path / "run", recipe, prepared, command=COMMAND, restart=False, init_from=None)
    finished = mark_finished(run, is_finished=True).record
    assert finished.finished is not None
    assert datetime.fromisoformat(finished.finished) >= datetime.fromisoformat(finished.started)
    assert open_run(tmp_path / "run").record == finished
    assert mark_finished(run, is_finished=False).record == run.record


def test_a_folder_of_other_things_is_refused_even_with_restart(
    prepared: PreparedData, recipe: Recipe, tmp_path: Path
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter1.tex").write_text("years of work")
    for restart in (False, True):
        with pytest.raises(ModelError) as caught:
            open_or_begin(tmp_path / "thesis", recipe, prepared, command=COMMAND, restart=restart, init_from=None)
        error = caught.value
        assert error.exit_code == 5
        assert error.message == f"{tmp_path / 'thesis'} exists and is not a run"
        assert error.where == str(tmp_path / "thesis")
        assert error.hint == "choose another folder with -o"
    assert files_in(tmp_path / "thesis") == {"chapter1.tex": b"years of work"}


def test_an_empty_folder_becomes_a_run(prepared: PreparedData, recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    open_or_begin(tmp_path / "run", recipe, prepared, command=COMMAND, restart=False, init_from=None)
    assert (tmp_path / "run/run.json").is_file()


def test_restart_removes_the_run_and_all_that_is_in_it(prepared: PreparedData, recipe: Recipe, tmp_path: Path) -> None:
    open_or_begin(tmp_path / "run", recipe, prepared, command=COMMAND, restart=False, init_from=None)
    (tmp_path / "run/checkpoints").mkdir()
    open_or_begin(tmp_path / "run", recipe, prepared, command=COMMAND, restart=True, init_from=None)
    assert not (tmp_path / "run/checkpoints").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "tiny.yaml"]


def test_a_restart_that_was_killed_while_it_removed_the_run_goes_on(
    prepared: PreparedData, recipe: Recipe, tmp_path: Path
) -> None:
    open_or_begin(tmp_path / "run", recipe, prepared, command=COMMAND, restart=False, init_from=None)
    (tmp_path / "run").rename(tmp_path / ".run.removed")
    (tmp_path / ".run.removed/run.json").unlink()
    open_or_begin(tmp_path / "run", recipe, prepared, command=COMMAND, restart=True, init_from=None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "tiny.yaml"]


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_a_run_needs_a_folder_of_its_own(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        check_place(Path(name))
    assert caught.value.message == f"{name} is not a folder of its own"
    assert caught.value.setting == "output"
    assert caught.value.hint == "for example `output: runs/mine`"


@pytest.mark.parametrize("name", ["notes", "notes/run", "notes/runs/mine"])
def test_a_file_is_no_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes").write_text("kept")
    with pytest.raises(ModelError) as caught:
        check_place(tmp_path / name)
    assert caught.value.message == f"{tmp_path / 'notes'} is a file"
    assert caught.value.where == str(tmp_path / name)
    assert caught.value.hint == "choose another folder with -o"
    check_place(tmp_path / "runs/mine")


def test_a_run_that_saved_nothing_is_begun_anew_with_other_settings(
    prepared: PreparedData, recipe: Recipe, recipe_file: Path, tmp_path: Path
) -> None:
    other = load_recipe(recipe_file, overrides=["training.seed=2"])
    run = tmp_path / "run"
    open_or_begin(run, recipe, prepared, command=COMMAND, restart=False, init_from=None)
    (run / "metrics.jsonl").write_text("of the start that failed\n")
    (run / "checkpoints/.update-00000100.partial").mkdir(parents=True)
    assert open_or_begin(run, other, prepared, command=COMMAND, restart=False, init_from=None).recipe.training.seed == 2
    assert not (run / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    "kept", ["checkpoints/update-00000100", "checkpoints/.update-00000100.retired", "model", "notes"]
)
def test_a_run_that_holds_anything_else_is_not(
    prepared: PreparedData, recipe: Recipe, recipe_file: Path, tmp_path: Path, kept: str
) -> None:
    other = load_recipe(recipe_file, overrides=["training.seed=2"])
    run = tmp_path / "run"
    open_or_begin(run, recipe, prepared, command=COMMAND, restart=False, init_from=None)
    (run / kept).mkdir(parents=True)
    with pytest.raises(RecipeError, match=r"was trained with training\.seed 1, not 2"):
        open_or_begin(run, other, prepared, command=COMMAND, restart=False, init_from=None)
    assert (run / kept.replace(".update", "update").removesuffix(".retired")).exists()


def test_a_changed_tokenizer_is_refused_as_other_data(prepared: PreparedData, recipe: Recipe, tmp_path: Path) -> None:
    open_or_begin(tmp_path / "run", recipe, prepared, command=COMMAND, restart=False, init_from=None)
    (tmp_path / "run/checkpoints/update-00000100").mkdir(parents=True)
    other = prepare_tiny(tmp_path / "other", "tokenizer.vocab_size=380")
    with pytest.raises(RecipeError, match="was begun with other data than"):
        open_or_begin(tmp_path / "run", recipe, other, command=COMMAND, restart=False, init_from=None)


def test_data_that_were_moved_are_the_same_data(prepared: PreparedData, recipe: Recipe, tmp_path: Path) -> None:
    open_or_begin(tmp_path / "run", recipe, prepared, command=COMMAND, restart=False, init_from=None)
    shutil.copytree(prepared.directory, tmp_path / "moved")
    moved = type(prepared)(tmp_path / "moved", prepared.manifest)
    open_or_begin(tmp_path / "run", recipe, moved, command=COMMAND, restart=False, init_from=None)


def test_the_fingerprint_tells_trainings_apart_by_what_weights_follow_from(
    prepared: PreparedData, recipe_file: Path, tmp_path: Path
) -> None:
    def fingerprint(*overrides: str, data: PreparedData = prepared) -> str:
        return recipe_fingerprint(load_recipe(recipe_file, overrides=overrides), data, init_from=None)

    plain = fingerprint()
    assert fingerprint("training.updates=30", "training.keep_last=3", "decoding.beam=1", "name=x") == plain
    others = [
        fingerprint("training.seed=2"),
        fingerprint("model.d_ff=65"),
        fingerprint("training.schedule.factor=1.0"),
        fingerprint(data=prepare_tiny(tmp_path, "cleaning.max_words=9")),
    ]
    assert len({plain, *others}) == 5


def test_a_cosine_is_told_apart_by_its_length(prepared: PreparedData, recipe_file: Path) -> None:
    cosine = "training.schedule={name: cosine, peak: 1e-3, warmup_updates: 2}"
    first, second = (
        recipe_fingerprint(
            load_recipe(recipe_file, overrides=[cosine, f"training.updates={updates}"]), prepared, init_from=None
        )
        for updates in (20, 30)
    )
    assert first != second
