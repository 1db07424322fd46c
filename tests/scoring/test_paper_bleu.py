"""The paper's BLEU by hand: tokens, compounds, punctuation, and what it says of other languages."""

from __future__ import annotations

import pytest

from nmt_cli.scoring.metrics import EvaluationSet, score
from nmt_cli.scoring.paper_bleu import PaperText, comparable
from tests.scoring.shell import run


def test_compounds_are_split_for_german_alone_and_as_the_script_does() -> None:
    assert PaperText("de").reference("Chat-Fenster") == "Chat ##AT##-##AT## Fenster"
    # The substitution takes both neighbours with it, so that the second hyphen of a-b-c stays; but it works on bytes.
    assert PaperText("de").reference("a-b-c") == "a ##AT##-##AT## b-c"
    assert PaperText("de").reference("A-Ö-B") == "A ##AT##-##AT## Ö ##AT##-##AT## B"
    assert PaperText("fr").reference("grand-père") == "grand-père"


def test_unicode_punctuation_becomes_ascii_in_the_hypothesis_alone() -> None:
    text = PaperText("de")
    assert text.hypothesis("“Ja”，sagt er。") == "&quot; Ja &quot; , sagt er ."
    assert text.reference("“Ja”") == "“ Ja ”"


@pytest.mark.parametrize("line", ["Er wurde 28.", "Das sagt Bart. ", "Teil A."])
def test_a_final_full_stop_stands_apart_whatever_is_before_it(line: str) -> None:
    assert PaperText("de").reference(line) == f"{line.strip()[:-1]} ."


def test_a_blank_line_and_an_ellipsis_stay() -> None:
    assert PaperText("de").reference("") == ""
    assert PaperText("de").reference("Nun ja...") == "Nun ja ..."


def test_without_a_match_of_four_words_it_is_zero_like_multi_bleu() -> None:
    against = EvaluationSet([["a b c x y z"]], target_language="de")
    report, bleu = score(["a b c d e f"], against, metrics=["paper-bleu", "bleu"], confidence=True)
    assert (report.value, report.metric) == (0, "paper-BLEU")
    assert bleu.value > 0
    assert "|bs:1000|seed:12345|" in report.signature


def test_a_language_without_abbreviations_is_named(caplog: pytest.LogCaptureFixture) -> None:
    PaperText("de")
    assert caplog.messages == []
    PaperText("xx")
    assert caplog.messages == ["Moses knows no abbreviations of the language 'xx'; it takes those of English"]


def test_only_the_paper_s_own_languages_are_compared_with_the_paper() -> None:
    assert "the paper's 27.3 (base) and 28.4 (big)" in comparable("en-de")
    assert "the paper's 38.1 (base) and 41.8 (big)" in comparable("en-fr")
    assert "the paper's" not in comparable("fr-de")
    assert "the paper's" not in comparable("en-cs")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("languages", ["en-DE", "en-de_AT"])
def test_the_language_counts_and_not_how_its_code_is_written(languages: str) -> None:
    arguments = ["ref", "-i", "hyp", "-m", "paper-bleu", "-l"]
    assert run(*arguments, languages) == run(*arguments, "en-de")


def test_without_a_language_it_is_a_programmer_s_mistake() -> None:
    with pytest.raises(ValueError, match="known language"):
        score(["a"], EvaluationSet([["a"]]), metrics=["paper-bleu"], confidence=False)
