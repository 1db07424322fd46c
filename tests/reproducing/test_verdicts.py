from __future__ import annotations

import pytest

from nmt_cli.reproducing.experiments import EXPERIMENTS, Expected, exactly
from nmt_cli.reproducing.verdicts import Figure

BLEU = EXPERIMENTS["base-en-de"].test["paper BLEU"]


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
