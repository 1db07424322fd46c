"""A training that was stopped goes on to the very bits of one that was not, or refuses to."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.artifacts.model_directory import load_saved_config
from nmt_cli.artifacts.run import open_run
from nmt_cli.cli.average import average
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.decoding.search.hypotheses import SourceSentence
from nmt_cli.decoding.search.searcher import Searcher
from nmt_cli.errors import ModelError, RecipeError
from tests.training.tiny import checkpoint, checkpoints, events, prepare_tiny, stopped_after, train

WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


@pytest.fixture(scope="module")
def stopped_once(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in fp32 that SIGTERM has ended after update 7."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    with stopped_after(7):
        assert train(prepared, run) == 75
    assert not (run / "model").exists()
    return run


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(stopped_once, tmp_path / "run")


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a directory with its bytes and the time of its last change."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return {str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def assert_alike(run: Path, other: Path) -> None:
    """The same checkpoints, bit for bit, and the same validations."""
    assert checkpoints(run) == checkpoints(other)
    for update in checkpoints(other):
        assert checkpoint(run, update) == checkpoint(other, update), update
    assert validations(run) == validations(other)


def validations(run: Path) -> dict[int, tuple[float, float]]:
    return {event["update"]: (event["loss"], event["bleu"]) for event in events(run, "validation")}


# Updates 8, 16 and 24 are to be validated, 6, 12, 18 and 24 saved; the first epoch ends with update 16, or a few later
# with sampled pieces, which are more.
@pytest.mark.parametrize(("settings", "end_of_epoch"), [((), 16), (("tokenizer.dropout=0.1",), 19)])
def test_a_training_stopped_seven_times_has_the_bits_of_one_never_stopped(
    prepared: PreparedData,
    finished_run: Callable[..., Path],
    tmp_path: Path,
    settings: tuple[str, ...],
    end_of_epoch: int,
) -> None:
    run, expected = tmp_path / "run", finished_run(*settings)
    for update in (1, 8, 12, end_of_epoch - 1, end_of_epoch, end_of_epoch + 1, 24):
        number, code = (signal.SIGINT, 130) if update % 2 else (signal.SIGTERM, 75)
        with stopped_after(update, number):
            assert train(prepared, run, *settings) == code
        assert checkpoints(run)[-1] == update
        shutil.rmtree(run / "sampled", ignore_errors=True)  # each start samples anew
    assert train(prepared, run, *settings) == 0
    epochs = {event["update"]: event["epoch"] for event in events(expected, "train")}
    assert {event["update"]: event["epoch"] for event in events(run, "train")} == epochs
    assert next(update for update, epoch in epochs.items() if epoch == 1) in (end_of_epoch + 1, end_of_epoch + 2)
    assert_alike(run, expected)
    model = "model/model.safetensors"
    assert (run / model).read_bytes() == (expected / model).read_bytes()


@pytest.mark.parametrize(
    "settings",
    [
        ["training.optimizer={name: adamw}", "training.ema=0.9"],
        ["model={attention_dropout: 0.1, ffn_dropout: 0.1, word_dropout: {source: 0.1, target: 0.1}}"],
    ],
    ids=["adamw with ema", "dropouts"],
)
def test_other_optimizers_averages_dropouts_and_bf16_are_resumed_bitwise_too(
    prepared: PreparedData, finished_run: Callable[..., Path], tmp_path: Path, settings: list[str]
) -> None:
    whole, run = finished_run(*settings, precision="bf16"), tmp_path / "run"
    for update in (5, 8, 12):  # within an interval, to be validated, saved
        with stopped_after(update):
            assert train(prepared, run, *settings, precision="bf16") == 75
    assert train(prepared, run, *settings, precision="bf16") == 0
    assert checkpoints(run) == [6, 12, 18, 24]
    assert_alike(run, whole)


def test_few_checkpoints_are_those_of_a_training_that_was_not_stopped(
    prepared: PreparedData, finished_run: Callable[..., Path], tmp_path: Path
) -> None:
    settings = ("training.keep_last=2", "training.checkpoint_every=5")
    run, whole = tmp_path / "run", finished_run(*settings)
    for update, left in ((11, [5, 10, 11]), (13, [5, 10, 13]), (22, [15, 20, 22])):
        with stopped_after(update):
            assert train(prepared, run, *settings) == 75
        assert checkpoints(run) == left
    assert train(prepared, run, *settings) == 0
    assert checkpoints(run) == [20, 24]
    assert_alike(run, whole)


def test_when_it_validates_and_saves_changes_no_weight(
    prepared: PreparedData, finished_run: Callable[..., Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    others = ("training.checkpoint_every=5", "validation.every=7", "validation.bleu=false", "validation.metric=loss")
    with stopped_after(11):
        assert train(prepared, run, *others) == 75
    assert train(prepared, run, "validation.every=3", "training.checkpoint_every=4") == 0
    assert checkpoints(run) == [5, 10, 12, 16, 20, 24]  # that of the stop has made room
    expected, found = checkpoint(finished_run(), 24), checkpoint(run, 24)
    assert found[WEIGHTS] == expected[WEIGHTS]
    assert found[OPTIMIZER] == expected[OPTIMIZER]
    position = ("update", "applied", "epoch", "index")
    assert [json.loads(found[STATE])[key] for key in position] == [json.loads(expected[STATE])[key] for key in position]


@pytest.mark.parametrize(("updates", "saved"), [(12, [10, 12]), (15, [10, 12]), (15, [12])])
def test_a_signal_during_a_validation_does_not_wait_for_its_end(
    prepared: PreparedData,
    finished_run: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    updates: int,
    saved: list[int],
) -> None:
    settings = (f"training.updates={updates}", "validation.every=12", f"training.checkpoint_every={saved[0]}")
    run, whole, searched = tmp_path / "run", finished_run(*settings), 0

    search = Searcher.search

    def with_signal(self: Searcher, sources: Sequence[SourceSentence], **options: Any) -> Any:
        nonlocal searched
        searched += 1
        if len(sources) > 2 or searched > 4:  # it is not the sanity pass, which translates two sentences
            os.kill(os.getpid(), signal.SIGTERM)
        return search(self, sources, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Searcher, "search", with_signal)
        for _ in range(2):  # the second start is interrupted in the same validation, which comes first in it
            assert train(prepared, run, *settings) == 75
            assert checkpoints(run) == saved
            assert [event["update"] for event in events(run, "checkpoint")] == saved  # none is written twice
            assert events(run, "validation") == []
    assert train(prepared, run, *settings) == 0
    assert_alike(run, whole)


def test_another_precision_is_refused_and_the_hint_helps(
    prepared: PreparedData, stopped: Path, finished_run: Callable[..., Path]
) -> None:
    before = contents(stopped)
    with pytest.raises(ModelError) as caught:
        train(prepared, stopped, precision="bf16")
    assert contents(stopped) == before
    error = caught.value
    assert error.exit_code == 5
    assert error.message == "the run was trained in fp32, and would go on in bf16"
    assert error.where == str(stopped / "checkpoints/update-00000007")
    assert error.hint == "--precision fp32, another folder with -o, or --restart"
    assert train(prepared, stopped, precision="fp32") == 0
    assert checkpoint(stopped, 24) == checkpoint(finished_run(), 24)


@pytest.mark.parametrize(
    ("setting", "change"),
    [
        ("training.label_smoothing=0.2", "training.label_smoothing 0.1, not 0.2"),
        ("model.dropout=0", "model.dropout 0.1, not 0.0"),
        ("model.heads=4", "model.heads 2, not 4"),
        ("model.word_dropout.source=0.1", "model.word_dropout.source 0.0, not 0.1"),
        ("tokenizer.dropout=0.1", "tokenizer.dropout 0.0, not 0.1"),
        ("training.seed=2", "training.seed 1, not 2"),
        ("training.batch_tokens=700", "training.batch_tokens 600, not 700"),
        (
            "training.optimizer={name: adamw}",
            "training.optimizer.name 'adam', not 'adamw'; training.optimizer.weight_decay null, not 0.01",
        ),
        ("training.clip_norm=1", "training.clip_norm null, not 1.0"),
    ],
)
def test_a_change_that_other_weights_would_follow_from_is_refused(
    prepared: PreparedData, stopped: Path, setting: str, change: str
) -> None:
    before = contents(stopped)
    with pytest.raises(RecipeError) as caught:
        train(prepared, stopped, setting)
    error = caught.value
    assert error.exit_code == 3
    assert error.message == f"the run in {stopped} was trained with {change}"
    assert error.where == str(stopped / "recipe.yaml")
    assert ("--init-from" in error.hint) == (not setting.startswith("model.heads"))
    assert contents(stopped) == before


@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_hint_on_another_rate_is_the_command_that_begins_with_the_weights(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    monkeypatch.setattr("sys.argv", ["nmt", "train", "run.yaml", "-o", "run"])
    monkeypatch.chdir(tmp_path)
    run, rate = Path("run"), "training.schedule.factor=0.1"
    with stopped_after(3) if is_stopped else nullcontext():
        assert train(prepared, run) == (75 if is_stopped else 0)
    with pytest.raises(RecipeError) as caught:
        train(prepared, run, rate)
    make_model = "nmt average run --last 1 && " if is_stopped else ""
    # Of the two folders the last one counts.
    assert caught.value.hint.endswith(f": {make_model}nmt train run.yaml -o run --init-from run -o run-2")
    if is_stopped:
        average([run], last=1)
    assert train(prepared, Path("run-2"), rate, "training.updates=1", init_from=run) == 0


def test_what_no_update_depends_on_may_change(
    prepared: PreparedData, stopped: Path, finished_run: Callable[..., Path]
) -> None:
    settings = (
        "training.updates=27",
        "training.log_every=1",
        "training.keep_last=3",
        "training.patience=50",
        "averaging.last=3",
        "decoding.beam=1",
        "description=longer",
    )
    assert train(prepared, stopped, *settings) == 0
    assert checkpoints(stopped) == [18, 24, 27]
    assert [event["update"] for event in events(stopped, "train")][-3:] == [25, 26, 27]
    assert checkpoint(stopped, 24)[WEIGHTS] == checkpoint(finished_run(), 24)[WEIGHTS]
    assert open_run(stopped).recipe.averaging.last == 3


def test_the_length_of_a_cosine_may_not_change(prepared: PreparedData, tmp_path: Path) -> None:
    settings = ("training.schedule={name: cosine, peak: 1e-3, warmup_updates: 2}", "training.updates=4")
    with stopped_after(3):
        assert train(prepared, tmp_path / "run", *settings) == 75
    with pytest.raises(RecipeError, match=r"was trained with training\.updates 4, not 30"):
        train(prepared, tmp_path / "run", *settings, "training.updates=30")
    assert train(prepared, tmp_path / "run", *settings, "training.log_every=5") == 0


def test_micro_batches_may_become_smaller_as_the_hint_for_full_memory_says(
    prepared: PreparedData, stopped: Path, finished_run: Callable[..., Path]
) -> None:
    assert train(prepared, stopped, "training.max_tokens_per_device=160") == 0
    # Other dropout masks, so other losses; the same sentences, so the same counts of tokens at the same updates.
    ours, theirs = (
        [(event["source_tokens"], event["target_tokens"]) for event in events(run, "train") if event["update"] > 8]
        for run in (stopped, finished_run())
    )
    assert ours == theirs


def test_other_data_are_refused(prepared: PreparedData, stopped: Path, tmp_path: Path) -> None:
    other = prepare_tiny(tmp_path / "other", "cleaning.max_words=9")
    with pytest.raises(RecipeError) as caught:
        train(other, stopped)
    error = caught.value
    data = f"the data in {prepared.directory}, not with {other.directory}"
    assert error.message == f"the run in {stopped} was begun with {data}"
    assert error.where == str(other.directory)
    assert "--restart" in error.hint
    own_pieces = f"tokenizer.taken_from={prepared.directory}"
    more = prepare_tiny(tmp_path / "more", own_pieces, "cleaning.max_words=9")
    with pytest.raises(RecipeError) as caught:
        train(more, stopped)
    assert "--init-from" in caught.value.hint
    assert train(other, stopped, "training.updates=1", restart=True) == 0


def test_a_finished_run_is_left_as_it_is(
    prepared: PreparedData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    assert train(prepared, run, "training.updates=4") == 0
    before = contents(run)
    caplog.set_level("INFO")
    caplog.clear()
    assert train(prepared, run, "training.updates=4") == 0
    assert caplog.messages == [
        f"{run} finished before, after update 4; its model is {run / 'model'}",
        f"next: nmt average {run} --last 1 && nmt decode -m {run} < input.txt > output.txt",
    ]
    after = contents(run)
    assert after.pop("recipe.yaml")[0] == before.pop("recipe.yaml")[0]  # written again, and the same
    assert after == before
    assert train(prepared, run, "training.updates=4", "decoding.beam=3") == 0
    assert load_saved_config(run / "model").recipe.decoding.beam == 3
    assert len(events(run, "end")) == 1


def test_a_finished_run_goes_on_with_a_longer_recipe_and_says_so(
    prepared: PreparedData, tmp_path: Path, finished_run: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = tmp_path / "run"
    assert train(prepared, run, "training.updates=10") == 0
    assert open_run(run).record.finished is not None
    with stopped_after(12):
        assert train(prepared, run) == 75
    assert "stopped after update 12, saved: the same command continues" in caplog.messages
    assert events(run)[-1] == {"event": "end", "reason": "preempted", "update": 12}
    assert open_run(run).record.finished is None
    caplog.clear()
    assert train(prepared, run) == 0
    assert caplog.messages[0] == f"resuming {run} after update 12"
    assert [event["update"] for event in events(run, "resume")] == [10, 12]
    assert open_run(run).record.finished is not None
    assert load_saved_config(run / "model").updates == [24]
    assert checkpoint(run, 24)[WEIGHTS] == checkpoint(finished_run(), 24)[WEIGHTS]


def test_a_model_that_a_kill_kept_from_being_written_is_written_by_the_next_start(
    prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("nmt_cli.training.trainer.write_average_of_checkpoints", killed)
        with pytest.raises(KeyboardInterrupt):
            train(prepared, run, "training.updates=4")
    assert not (run / "model").exists()
    assert train(prepared, run, "training.updates=4") == 0
    assert load_saved_config(run / "model").updates == [4]
