"""The table of experiments agrees with the recipes and corpora that travel with the package, and with the model."""

from __future__ import annotations

import re

import pytest

from nmt_cli.errors import UsageError
from nmt_cli.preparing.corpus import load_corpus
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.reproducing.experiments import EXPERIMENTS, Expected, Experiment, Figure, exactly, find_experiment
from nmt_cli.training.micro_batch_size import estimate

ALL = list(EXPERIMENTS.values())
by_name = pytest.mark.parametrize("experiment", ALL, ids=lambda experiment: experiment.name)
BLEU = EXPERIMENTS["base-en-de"].test["paper BLEU"]


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


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (27.30, "as expected"),
        (26.80, "as expected"),  # the tolerance itself is within
        (26.79, "below by 0.51"),
        (27.80, "as expected"),
        (28.05, "above by 0.75"),
    ],
)
def test_a_figure_is_judged_by_its_tolerance(measured: float, verdict: str) -> None:
    figure = Figure("paper BLEU", BLEU, measured)
    assert figure.verdict == verdict
    assert figure.has_failed == verdict.startswith("below")


def test_of_two_printed_figures_neither_is_missed() -> None:
    both = EXPERIMENTS["big-en-fr"].test["paper BLEU"]
    assert (both.low, both.high) == (41.0, 41.8)
    verdicts = {value: Figure("paper BLEU", both, value).verdict for value in (40.4, 40.6, 41.4, 42.2, 42.4)}
    assert verdicts == {
        40.4: "below by 0.60",
        40.6: "as expected",
        41.4: "as expected",
        42.2: "as expected",
        42.4: "above by 0.60",
    }
    assert Figure("paper BLEU", both, 41.4).expected_text == "41.0 to 41.8 ± 0.5"


def test_a_count_is_exact() -> None:
    assert Figure("updates", exactly(100_000, "here"), 100_000).verdict == "as expected"
    assert Figure("updates", exactly(100_000, "here"), 99_999).verdict == "below by 1"


def test_a_rehearsal_is_compared_with_nothing_and_does_not_fail() -> None:
    figure = Figure("paper BLEU", BLEU, 0.0, is_rehearsed=True)
    assert (figure.verdict, figure.has_failed) == ("not comparable: rehearsal", False)


def test_only_the_figure_that_decides_fails() -> None:
    sacrebleu = EXPERIMENTS["base-en-de"].test["sacreBLEU"]
    assert Figure("sacreBLEU", sacrebleu, 10.0).verdict == "below by 16.60"
    assert not Figure("sacreBLEU", sacrebleu, 10.0).has_failed


def test_context_is_told_and_not_judged() -> None:
    hours = EXPERIMENTS["base-en-de"].training["hours"]
    assert Figure("hours", hours, 0.8).verdict == "for context"
    assert Figure("hours", hours, 0.8).expected_text == "12 h"
    assert Figure("chrF2", None, 57.3).verdict == "not in the paper"
    assert Figure("chrF2", None, 57.3).expected_text == ""


def test_figures_are_shown_in_their_units() -> None:
    parameters = Figure("parameters", Expected(65e6, 65e6, 1.95e6, "Table 3"), 65_073_152)
    assert (parameters.measured_text, parameters.expected_text) == ("65.1 million", "65 ± 2 million")
    perplexity = Figure("perplexity", Expected(4.92, 4.92, 0.4, "Table 3"), 5.0)
    assert (perplexity.measured_text, perplexity.expected_text) == ("5.00", "4.92 ± 0.40")
    assert Figure("pairs read", exactly(4_508_785, "hub"), 10_000).measured_text == "10,000"
