"""The plan of a reproduction: settings go to the commands that they belong to, and a rehearsal is shorter."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nmt_cli.errors import RecipeError, UsageError
from nmt_cli.preparing.corpus import TokenizerConfig
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.reproducing import chain
from nmt_cli.reproducing.chain import StageEnd, run_chain
from nmt_cli.reproducing.experiments import EXPERIMENTS
from nmt_cli.reproducing.plan import Overrides, ReproductionPlan, plan_reproduction, rehearsal_overrides, split_settings
from nmt_cli.reproducing.stages import plan_stages
from tests.forks import run_forked
from tests.hub import WithDatasets, serve_wmt14
from tests.preparing.corpus_files import invented_pairs
from tests.reproducing.test_needs import GPUS


def planned(
    *settings: str,
    name: str = "base-en-de",
    limit: int | None = None,
    data: Path | None = None,
    run: Path | None = None,
) -> ReproductionPlan:
    return plan_reproduction(EXPERIMENTS[name], settings=settings, limit=limit, data=data, run=run)


def commands(plan: ReproductionPlan) -> Sequence[str]:
    return [stage.command_line for stage in plan_stages(plan)]


def test_each_setting_goes_to_the_command_that_it_belongs_to() -> None:
    plan = planned("model.dropout=0.2", "licence=mine", "cleaning.max_words=80")
    prepare, train, *_ = commands(plan)
    assert prepare == "nmt prepare wmt14-en-de --set licence=mine --set cleaning.max_words=80"
    assert train == "nmt train base --set model.dropout=0.2"
    assert (plan.corpus.cleaning.max_words, plan.recipe.model.dropout) == (80, 0.2)
    assert plan.changes == ["model.dropout=0.2", "cleaning.max_words=80"]


@pytest.mark.parametrize("setting", ["tokenizer.vocab_size=500", "tokenizer={vocab_size: 500}"])
def test_the_users_vocabulary_goes_before_that_of_a_rehearsal(setting: str) -> None:
    plan = planned(setting, limit=2_000)
    assert plan.settings.corpus == (setting,)
    assert plan.corpus.tokenizer.vocab_size == 500
    assert plan_stages(plan)[0].judged["vocabulary"].low == 500


def test_a_vocabulary_that_is_taken_from_elsewhere_is_not_judged_by_its_size() -> None:
    plan = planned("tokenizer.taken_from=runs/other", limit=2_000)
    assert plan.settings.corpus == ("tokenizer.taken_from=runs/other",)
    assert "vocabulary" not in plan_stages(plan)[0].judged


@pytest.mark.parametrize(
    ("setting", "key", "near"),
    [
        ("licenc=x", "licenc", "licence"),
        ("max_words=80", "max_words", "cleaning.max_words"),
        ("model.max_words=80", "model.max_words", "cleaning.max_words"),
        ("cleaning.dropout=0.2", "cleaning.dropout", "model.dropout or tokenizer.dropout"),
        ("model={dropuot: 0.2}", "model.dropuot", "model.dropout"),
        ("train.updates=10", "train.updates", "training.updates"),
    ],
)
def test_the_near_match_of_an_unknown_key_may_be_in_either_file(setting: str, key: str, near: str) -> None:
    with pytest.raises(RecipeError) as caught:
        planned(setting)
    assert caught.value.message == f"unknown key {key!r}"
    assert (caught.value.where, caught.value.hint) == (f"--set {setting}", f"did you mean {near}?")


def test_each_key_of_a_tokenizer_goes_to_the_file_that_has_it() -> None:
    sampling, vocabulary = "tokenizer.dropout=0.1", "tokenizer={vocab_size: 500}"
    found = split_settings([sampling, vocabulary], experiment="base-en-de")
    assert (found.recipe, found.corpus) == ((sampling,), (vocabulary,))


def test_an_empty_section_goes_to_the_file_that_has_it() -> None:
    found = split_settings(["model={}", "cleaning={}"], experiment="base-en-de")
    assert (found.recipe, found.corpus) == (("model={}",), ("cleaning={}",))


def test_a_wrong_value_of_the_corpus_is_told_by_its_own_file() -> None:
    with pytest.raises(RecipeError, match=r"cleaning\.max_words is 'many', but should be a whole number"):
        planned("cleaning.max_words=many")


def test_what_both_files_have_and_what_is_an_option_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        planned("name=mine")
    assert caught.value.message == "the recipe and the corpus both have a key name"
    assert caught.value.hint == "leave it out; -o names the folder of the run, --data that of the data"
    with pytest.raises(UsageError) as caught:
        planned("description=mine")
    assert caught.value.hint == "leave it out"
    with pytest.raises(UsageError) as caught:
        planned("limit=200")
    assert caught.value.message == "the limit of a reproduction is an option"
    assert caught.value.hint == "nmt reproduce base-en-de --limit 10000 rehearses it on so many pairs"


def in_a_fork(arguments: Sequence[str], *, stdout: Path | None) -> StageEnd:
    """Run an `nmt` command as `_run_nmt` does, but in a fork of the test server, which starts sooner."""
    assert stdout is None
    command = [sys.executable, "-m", "nmt_cli", *arguments]
    return StageEnd(run_forked(command, kind=WithDatasets).returncode, None)


def test_the_text_is_prepared_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = planned("tokenizer.vocab_size=400", limit=200)
    preparation = plan_stages(plan)[0]
    train, held_out = invented_pairs(450, seed=1), invented_pairs(40, seed=2)
    with serve_wmt14(tmp_path / "hub", train_pairs=train, valid_pairs=held_out, test_pairs=held_out) as hub:
        for name, value in hub.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(chain, "_run_nmt", in_a_fork)
        outcome = run_chain(plan, [preparation], GPUS)
    assert outcome.stop is None
    figures = {figure.name: figure.measured for figure in outcome.measured[0][1]}
    assert (figures["pairs read"], figures["vocabulary"], figures["newstest2014 pairs"]) == (200, 400, 40)
    assert preparation.is_finished()
    assert not plan_stages(planned("cleaning.max_words=3", "tokenizer.vocab_size=400", limit=200))[0].is_finished()


def settings(recipe: str, limit: int, *users: str) -> dict[str, str]:
    chosen, tokenizer = load_recipe(recipe, overrides=users), TokenizerConfig(vocab_size=37_000)
    rehearsal = rehearsal_overrides(chosen, tokenizer, limit=limit, user_settings=Overrides(recipe=users))
    return dict(setting.split("=") for setting in rehearsal.recipe)


@pytest.mark.parametrize(
    ("recipe", "limit", "updates"),
    [
        ("base", 1_000, 5),  # one pass would be two updates, and five checkpoints are averaged
        ("base", 100_000, 140),  # 35 pieces a pair, 25,000 an update
        ("base", 200_000_000, 100_000),  # no more than the experiment has
        ("big", 10_000, 14),  # which averages twenty checkpoints, and five in a rehearsal
    ],
)
def test_updates_are_about_one_pass_and_leave_five_checkpoints(recipe: str, limit: int, updates: int) -> None:
    values = {key: int(value) for key, value in settings(recipe, limit).items()}
    assert values["training.updates"] == updates
    assert values["training.keep_last"] == values["averaging.last"] == 5
    assert updates // values["training.checkpoint_every"] >= 5


def test_what_the_user_sets_is_left_to_him() -> None:
    values = settings("base", 10_000, "training.updates=40", "averaging.last=2")
    assert "training.updates" not in values
    assert "averaging.last" not in values
    assert values["training.keep_last"] == "2"
    assert values["training.checkpoint_every"] == "20"
    best = settings("base", 10_000, "averaging={last: null, best: 1}", "training.keep_best=1")
    assert "averaging.last" not in best


def test_each_checkpoint_is_validated_if_the_best_are_averaged() -> None:
    values = settings("base", 1_000, "averaging={last: null, best: 3}", "training.keep_best=3")
    updates, every = int(values["training.updates"]), int(values["training.checkpoint_every"])
    assert values["validation.every"] == values["training.checkpoint_every"]
    assert updates // every >= 3


@pytest.mark.parametrize(
    "users",
    [
        ("training.checkpoint_every=5000",),
        ("averaging={last: null, best: 3}", "training.keep_best=3", "validation.every=1000"),
        ("averaging.last=20", "training.keep_last=20", "training.checkpoint_every=1000"),
    ],
)
def test_an_interval_that_is_too_long_for_a_rehearsal_is_shortened(
    caplog: pytest.LogCaptureFixture, users: Sequence[str]
) -> None:
    plan = planned(*users, limit=10_000)
    recipe, too_long = plan.recipe, users[-1]
    assert too_long not in [*plan.changes, *plan.settings.recipe]
    assert caplog.messages == [f"--set {too_long} is left out: the rehearsal is shorter"]
    assert plan.changes == list(users[:-1])
    by, number = recipe.averaging.choice
    interval = recipe.training.checkpoint_every if by == "last" else recipe.validation.every
    assert recipe.training.updates // interval >= number
    assert planned("training.checkpoint_every=1", limit=10_000).recipe.training.checkpoint_every == 1


@pytest.mark.parametrize(("limit", "pieces"), [(200, 1_000), (5_000, 5_000), (1_000_000, 37_000)])
def test_the_vocabulary_fits_the_text(limit: int, pieces: int) -> None:
    rehearsal = rehearsal_overrides(
        load_recipe("base"), TokenizerConfig(vocab_size=37_000), limit=limit, user_settings=Overrides()
    )
    assert rehearsal.corpus == (f"tokenizer.vocab_size={pieces}",)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_only_the_length_differs_from_the_experiment(name: str) -> None:
    full, rehearsed = planned(name=name), planned(name=name, limit=10_000)
    assert rehearsed.recipe.model == full.recipe.model
    assert rehearsed.recipe.decoding == full.recipe.decoding
    kept = ("seed", "batch_tokens", "max_tokens_per_device", "label_smoothing", "optimizer", "schedule", "precision")
    for key in kept:
        assert getattr(rehearsed.recipe.training, key) == getattr(full.recipe.training, key)
    assert rehearsed.corpus.cleaning == full.corpus.cleaning
    assert rehearsed.corpus.limit == 10_000


def test_another_corpus_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        planned("corpus=mine")
    assert caught.value.message == "base-en-de is reproduced on wmt14-en-de or wmt14-en-de-archives, not on mine"
    assert caught.value.hint.startswith("leave it out; another corpus takes nmt prepare, nmt train")


def test_the_corpus_may_come_from_the_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_CACHE", str(tmp_path))
    setting = "corpus=wmt14-en-de-archives"
    prepare, train, *_ = stages = plan_stages(planned(setting, data=tmp_path / "data"))
    assert prepare.command_line == f"nmt prepare wmt14-en-de-archives -o {tmp_path}/data"
    assert train.command_line == f"nmt train base --data {tmp_path}/data --set {setting}"
    assert "newstest2014.de" in stages[-1].command_line

    def missing() -> int:
        return sum(size for folder, size in prepare.needs(GPUS).disk if folder.is_relative_to(tmp_path / "downloads"))

    downloads = tmp_path / "downloads/www.statmt.org"
    assert missing() == 2 * 1_695_017_123  # the archives, and what is unpacked from them
    (downloads / "wmt13").mkdir(parents=True)
    (downloads / "wmt13/training-parallel-un.tgz").write_bytes(b"x" * 1000)  # of another corpus
    (downloads / "wmt13/.training-parallel-commoncrawl.tgz.part").write_bytes(b"x" * 1000)
    assert missing() == 2 * 1_695_017_123 - 1000
    (downloads / "wmt13/training-parallel-commoncrawl.tgz").write_bytes(b"x" * 1000)
    assert missing() == 2 * (1_695_017_123 - 918_311_367)


def test_a_rehearsal_is_not_refused_for_the_size_of_the_whole_corpus() -> None:
    def needed(limit: int | None) -> int:
        plan = planned(name="base-en-fr", limit=limit, data=Path("nowhere"))
        return sum(amount for _, amount in plan_stages(plan)[0].needs(GPUS).disk)

    assert needed(None) > 7_500_000_000
    assert needed(1_000) == 600_000


def test_other_search_is_another_command() -> None:
    for settings, words in ([], "--beam 4 --length-penalty 0.6"), (["decoding.beam=8"], "--beam 8 --length-penalty"):
        found = [command for command in commands(planned(*settings)) if command.startswith("nmt decode")]
        assert len(found) == 2
        assert all(words in command for command in found)


@pytest.mark.parametrize(
    ("schedule", "phases"),
    [
        ("{name: cosine, peak: 0.001}", {"warmup_updates": 1}),
        ("{name: wsd, peak: 0.001, warmup_updates: 50, decay_updates: 70}", {"warmup_updates": 1, "decay_updates": 1}),
        ("{name: inverse_sqrt, peak: 0.001}", {"warmup_updates": 4000}),
    ],
)
def test_a_rehearsal_shortens_a_schedule_that_ends_with_the_last_update(schedule: str, phases: dict[str, int]) -> None:
    plan = planned(f"training.schedule={schedule}", limit=10_000)
    assert plan.recipe.training.schedule.model_dump().items() >= phases.items()
    assert plan.changes == [f"training.schedule={schedule}"]
    shortest = planned(f"training.schedule={schedule}", "averaging.last=1", limit=100)
    assert shortest.recipe.training.updates == 3


def test_a_rehearsal_has_folders_of_its_own() -> None:
    def folders(plan: ReproductionPlan) -> tuple[str, str]:
        return str(plan.data), str(plan.run)

    assert folders(planned()) == ("data/wmt14-en-de", "runs/base")
    assert folders(planned(limit=500)) == ("data/wmt14-en-de-limit-500", "runs/base-limit-500")
    assert folders(planned(limit=500, data=Path("d"), run=Path("r"))) == ("d", "r")
