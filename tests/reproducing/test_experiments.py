"""The table of experiments agrees with the recipes and corpora that travel with the package, and with the model."""

from __future__ import annotations

import re

import pytest

from nmt_cli.errors import UsageError
from nmt_cli.preparing.corpora import load_corpus
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.reproducing.experiments import EXPERIMENTS, Experiment, find_experiment
from nmt_cli.reproducing.verdicts import Figure
from nmt_cli.training.estimate import estimate

ALL = list(EXPERIMENTS.values())
by_name = pytest.mark.parametrize("experiment", ALL, ids=lambda experiment: experiment.name)


@by_name
def test_recipe_and_corpus_belong_together(experiment: Experiment) -> None:
    recipe, corpus = load_recipe(experiment.recipe), load_corpus(experiment.corpus, overrides=()).corpus
    assert recipe.corpus == experiment.corpus
    assert experiment.name.endswith(f"{corpus.languages.source}-{corpus.languages.target}")
    assert experiment.preparation["vocabulary"].low == corpus.tokenizer.vocab_size
    assert experiment.training["updates"].low == recipe.training.updates
    assert experiment.averaging["checkpoints"].low == recipe.averaging.last


@by_name
def test_the_corpus_has_the_pairs_that_its_file_states(experiment: Experiment) -> None:
    stated = load_corpus(experiment.corpus, overrides=()).corpus.pairs
    if stated is None:
        pytest.skip("the corpus file states no pairs")
    expected = [experiment.preparation[name].low for name in ("pairs read", "newstest2013 pairs", "newstest2014 pairs")]
    assert expected == [stated.train, stated.valid, stated.test]


@by_name
def test_the_model_has_as_many_parameters_as_table_3_says(experiment: Experiment) -> None:
    expected = experiment.training.get("parameters")
    if expected is None:
        assert experiment.name.endswith("en-fr")  # Table 3 is of English to German
        return
    pieces = int(experiment.preparation["vocabulary"].low)
    recipe = load_recipe(experiment.recipe)
    counted = estimate(recipe, source_vocab=pieces, target_vocab=pieces, precision="fp32", world_size=1).num_parameters
    assert Figure("parameters", expected, counted).verdict == "as expected"


@by_name
def test_the_recipe_tells_the_same_bleu(experiment: Experiment) -> None:
    told = [float(number) for number in re.findall(r"(\d\d\.\d)\b", load_recipe(experiment.recipe).description)]
    bleu = experiment.test["paper BLEU"]
    assert {bleu.low, bleu.high} <= set(told)
    if "sacreBLEU" in experiment.test:
        assert experiment.test["sacreBLEU"].low in told


@by_name
def test_each_tolerance_has_a_reason(experiment: Experiment) -> None:
    for expected in (expected for figures in experiment.expected.values() for expected in figures.values()):
        assert expected.source
        assert expected.low <= expected.high
        assert bool(expected.tolerance) == bool(expected.why), expected


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("base-de-en", "did you mean nmt reproduce base-en-de? "),
        ("big-enfr", "did you mean nmt reproduce big-en-fr? "),
        ("xyz", ""),
    ],
)
def test_an_unknown_experiment_is_answered_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_experiment(name)
    assert caught.value.message == f"there is no experiment {name!r}"
    assert caught.value.hint == f"{hint}there are base-en-de, big-en-de, base-en-fr, big-en-fr"
