from __future__ import annotations

from pathlib import Path

import pytest

from nmt_cli.errors import UsageError
from nmt_cli.preparing.corpora import TokenizerConfig
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.reproducing.experiments import EXPERIMENTS
from nmt_cli.reproducing.plan import make_plan
from nmt_cli.reproducing.rehearsal import rehearse
from nmt_cli.reproducing.settings import Settings
from nmt_cli.reproducing.stages import stages_of
from tests.reproducing.test_needs import GPUS


def settings(recipe: str, limit: int, *users: str) -> dict[str, str]:
    chosen, tokenizer = load_recipe(recipe, overrides=users), TokenizerConfig(vocab_size=37_000)
    rehearsal = rehearse(chosen, tokenizer, limit=limit, settings=Settings(users))
    return dict(setting.split("=") for setting in rehearsal.recipe_settings)


def test_updates_are_about_one_pass_and_leave_enough_checkpoints() -> None:
    few = settings("base", 1_000)
    assert few["training.updates"] == "5"  # one pass would be two updates, and five checkpoints are averaged
    many = settings("base", 100_000)
    assert many["training.updates"] == "140"  # 35 pieces a pair, 25,000 an update
    for values in (few, many):
        assert int(values["training.updates"]) // int(values["training.checkpoint_every"]) >= int(
            values["averaging.last"]
        )
        assert values["training.keep_last"] == values["averaging.last"] == "5"


def test_a_big_model_averages_five_checkpoints_and_not_twenty() -> None:
    assert settings("big", 10_000)["averaging.last"] == "5"


def test_there_are_no_more_updates_than_the_experiment_has() -> None:
    assert settings("base", 200_000_000)["training.updates"] == "100000"


def test_what_the_user_sets_is_left_to_him() -> None:
    values = settings("base", 10_000, "training.updates=40", "averaging.last=2")
    assert "training.updates" not in values
    assert "averaging.last" not in values
    assert values["training.keep_last"] == "2"
    assert values["training.checkpoint_every"] == "20"
    best = settings("base", 10_000, "averaging={last: null, best: 1}", "training.keep_best=1")
    assert "averaging.last" not in best


@pytest.mark.parametrize(("limit", "pieces"), [(200, 1_000), (5_000, 5_000), (1_000_000, 37_000)])
def test_the_vocabulary_fits_the_text(limit: int, pieces: int) -> None:
    rehearsal = rehearse(load_recipe("base"), TokenizerConfig(vocab_size=37_000), limit=limit, settings=Settings())
    assert rehearsal.corpus_settings == (f"tokenizer.vocab_size={pieces}",)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_only_the_length_differs_from_the_experiment(name: str) -> None:
    full, rehearsed = (
        make_plan(EXPERIMENTS[name], settings=(), limit=limit, data=None, run=None) for limit in (None, 10_000)
    )
    assert rehearsed.recipe.model == full.recipe.model
    assert rehearsed.recipe.decoding == full.recipe.decoding
    kept = ("seed", "batch_tokens", "max_tokens_per_device", "label_smoothing", "optimizer", "schedule", "precision")
    for key in kept:
        assert getattr(rehearsed.recipe.training, key) == getattr(full.recipe.training, key)
    assert rehearsed.corpus.cleaning == full.corpus.cleaning
    assert rehearsed.corpus.limit == 10_000


def test_another_corpus_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        make_plan(EXPERIMENTS["base-en-de"], settings=("corpus=mine",), limit=None, data=None, run=None)
    assert caught.value.message == "base-en-de is reproduced on wmt14-en-de, not on mine"
    assert caught.value.hint.startswith("leave it out; another corpus takes nmt prepare, nmt train")


def test_a_rehearsal_is_not_refused_for_the_size_of_the_whole_corpus() -> None:
    needed = {}
    for limit in (None, 1_000):
        plan = make_plan(EXPERIMENTS["base-en-fr"], settings=(), limit=limit, data=Path("nowhere"), run=None)
        needed[limit] = sum(amount for _, amount in stages_of(plan)[0].needs(GPUS).disk)
    assert needed[None] > 7_500_000_000
    assert needed[1_000] == 600_000


def test_other_search_is_another_command() -> None:
    for settings, words in ((), "--beam 4 --length-penalty 0.6"), (("decoding.beam=8",), "--beam 8 --length-penalty"):
        plan = make_plan(EXPERIMENTS["base-en-de"], settings=settings, limit=None, data=None, run=None)
        commands = [" ".join(stage.arguments) for stage in stages_of(plan) if stage.name.startswith("decode")]
        assert len(commands) == 2
        assert all(words in command for command in commands)


def test_a_rehearsal_has_folders_of_its_own() -> None:
    base = EXPERIMENTS["base-en-de"]
    full = make_plan(base, settings=(), limit=None, data=None, run=None)
    assert (full.data, full.run) == (Path("data/wmt14-en-de"), Path("runs/base"))
    rehearsed = make_plan(base, settings=(), limit=500, data=None, run=None)
    assert (rehearsed.data, rehearsed.run) == (Path("data/wmt14-en-de-limit-500"), Path("runs/base-limit-500"))
    named = make_plan(base, settings=(), limit=500, data=Path("d"), run=Path("r"))
    assert (named.data, named.run) == (Path("d"), Path("r"))
