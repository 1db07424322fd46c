"""The table of experiments agrees with the recipes and corpora that travel with the package, and with the model."""

from __future__ import annotations

import re

import pytest

from nmt_cli.errors import UsageError
from nmt_cli.preparing.corpus_loading import load_corpus
from nmt_cli.recipe.loading import load_recipe
from nmt_cli.reproducing.experiments import EXPERIMENTS, Expected, Experiment, Figure, expected_exactly, find_experiment
from nmt_cli.training.micro_batch_size import estimate_device_needs

ALL = list(EXPERIMENTS.values())
by_name = pytest.mark.parametrize("experiment", ALL, ids=lambda experiment: experiment.name)
BLEU = EXPERIMENTS["base-en-de"].expected["score newstest2014"]["paper BLEU"]


@by_name
def test_recipe_and_corpus_belong_together(experiment: Experiment) -> None:
    recipe, corpus = load_recipe(experiment.recipe), load_corpus(experiment.corpora[0], overrides=()).corpus
    expected = {name: figure.low for figures in experiment.expected.values() for name, figure in figures.items()}
    assert recipe.corpus == experiment.corpora[0]
    assert experiment.name.endswith(f"{corpus.languages.source}-{corpus.languages.target}")
    assert expected["vocabulary"] == corpus.tokenizer.vocab_size
    assert expected["updates"] == recipe.training.updates
    assert expected["checkpoints"] == recipe.averaging.last
    if corpus.pairs is not None:
        stated = [corpus.pairs.train, corpus.pairs.valid, corpus.pairs.test]
        assert [expected[name] for name in ("pairs read", "newstest2013 pairs", "newstest2014 pairs")] == stated


@by_name
def test_the_model_has_as_many_parameters_as_table_3_says(experiment: Experiment) -> None:
    expected = experiment.expected["train"].get("parameters")
    if expected is None:
        assert experiment.name.endswith("en-fr")  # Table 3 is of English to German
        return
    pieces = int(experiment.expected["prepare"]["vocabulary"].low)
    recipe = load_recipe(experiment.recipe)
    counted = estimate_device_needs(
        recipe, source_vocab=pieces, target_vocab=pieces, precision="fp32", world_size=1
    ).num_parameters
    assert Figure("parameters", expected, counted).verdict == "as expected"


@by_name
def test_the_recipe_tells_the_same_bleu(experiment: Experiment) -> None:
    told = [float(number) for number in re.findall(r"(\d\d\.\d)\b", load_recipe(experiment.recipe).description)]
    figures = experiment.expected["score newstest2014"]
    assert {figures["paper BLEU"].low, figures["paper BLEU"].high} <= set(told)
    if "sacreBLEU" in figures:
        assert figures["sacreBLEU"].low in told


@pytest.mark.parametrize("size", ["base", "big"])
def test_sacrebleu_is_expected_as_far_below_the_papers_bleu_as_the_authors_own_model_has_it(size: str) -> None:
    figures = EXPERIMENTS[f"{size}-en-de"].expected["score newstest2014"]
    measured = 29.02 - 27.52  # tensor2tensor issue 317
    assert figures["paper BLEU"].low - figures["sacreBLEU"].low == pytest.approx(measured)


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


BOTH = EXPERIMENTS["big-en-fr"].expected["score newstest2014"]["paper BLEU"]
SACREBLEU = EXPERIMENTS["base-en-de"].expected["score newstest2014"]["sacreBLEU"]
HOURS = EXPERIMENTS["base-en-de"].expected["train"]["hours"]


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        (Figure("paper BLEU", BLEU, 27.30), "as expected"),
        (Figure("paper BLEU", BLEU, 26.80), "as expected"),  # the tolerance itself is within
        (Figure("paper BLEU", BLEU, 26.79), "below by 0.51"),
        (Figure("paper BLEU", BLEU, 27.80), "as expected"),
        (Figure("paper BLEU", BLEU, 28.05), "above by 0.75"),
        (Figure("paper BLEU", BOTH, 40.4), "below by 0.60"),  # of two printed figures neither is missed
        (Figure("paper BLEU", BOTH, 40.6), "as expected"),
        (Figure("paper BLEU", BOTH, 42.2), "as expected"),
        (Figure("paper BLEU", BOTH, 42.4), "above by 0.60"),
        (Figure("paper BLEU", BLEU, 0.0, is_judged=False), "not comparable: rehearsal"),
        (Figure("sacreBLEU", SACREBLEU, 10.0), "below by 15.80"),
        (Figure("updates", expected_exactly(100_000, "here"), 100_000), "as expected"),  # a count is exact
        (Figure("updates", expected_exactly(100_000, "here"), 99_999), "below by 1"),
        (Figure("hours", HOURS, 0.8), "for context"),
        (Figure("chrF2", None, 57.3), "not in the paper"),
    ],
)
def test_a_figure_is_judged_by_its_tolerance_and_the_papers_bleu_decides(figure: Figure, verdict: str) -> None:
    assert figure.verdict == verdict
    assert figure.has_failed == (figure.name == "paper BLEU" and verdict.startswith("below"))


@pytest.mark.parametrize(
    ("figure", "expected", "measured"),
    [
        (Figure("parameters", Expected(65e6, 65e6, 1.95e6, "Table 3"), 65_073_152), "65 ± 2 million", "65.1 million"),
        (Figure("perplexity", Expected(4.92, 4.92, 0.4, "Table 3"), 5.0), "4.92 ± 0.40", "5.00"),
        (Figure("paper BLEU", BOTH, 41.4), "41.0 to 41.8 ± 0.5", "41.40"),
        (Figure("pairs read", expected_exactly(4_508_785, "hub"), 10_000), "4,508,785", "10,000"),
        (Figure("hours", HOURS, 0.8), "12 h", "0.8 h"),
        (Figure("chrF2", None, 57.3), "", "57.30"),
    ],
)
def test_figures_are_shown_in_their_units(figure: Figure, expected: str, measured: str) -> None:
    assert (figure.expected_text, figure.measured_text) == (expected, measured)
