"""Scores of single sentences against sacreBLEU's own, and the sentences in which two systems differ most."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from tests.scoring.shell import BASE, HYP, REF, columns, on_a_terminal, run

pytestmark = pytest.mark.usefixtures("folder")


def test_every_sentence_has_sacrebleu_s_scores() -> None:
    header, *rows = columns(run("ref", "-i", "hyp", "--sentence", "-m", "bleu,chrf,ter,chrf++"))
    assert header == ["line", "BLEU", "chrF2", "TER", "chrF2++"]
    metrics = [BLEU(effective_order=True), CHRF(), TER(), CHRF(word_order=2)]
    for number, (row, hyp, ref) in enumerate(zip(rows, HYP.splitlines(), REF.splitlines(), strict=True), 1):
        assert row == [str(number), *(f"{metric.sentence_score(hyp, [ref]).score:.2f}" for metric in metrics)]


def test_a_baseline_stands_beside_each_score_with_the_difference() -> None:
    header, *rows = columns(run("ref", "-i", "hyp", "--baseline", "base", "--sentence", "-m", "ter"))
    assert header == ["line", "TER", "TER baseline", "TER difference"]
    assert [row[1:] for row in rows] == [
        ["0.00", "0.00", "0.00"],
        ["50.00", "0.00", "50.00"],
        ["20.00", "80.00", "-60.00"],
    ]


def test_json_has_the_signatures_and_full_precision() -> None:
    result = json.loads(run("ref", "-i", "hyp", "--sentence", "-m", "bleu", "--json"))
    assert "|eff:yes|" in result["signatures"]["BLEU"]
    expected = [
        {"line": number, "BLEU": BLEU(effective_order=True).sentence_score(hyp, [ref]).score}
        for number, (hyp, ref) in enumerate(zip(HYP.splitlines(), REF.splitlines(), strict=True), 1)
    ]
    assert result["sentences"] == expected


def test_the_largest_gains_and_losses_are_readable_in_a_pipe() -> None:
    # With TER a gain is a fall.
    assert run("ref", "-i", "hyp", "-s", "src", "--baseline", "base", "--differences", "5", "-m", "ter") == (
        "gain 1, line 3: TER 80.00 to 20.00 (-60.00)\n"
        "source    A man reads the book.\n"
        "reference Ein Mann liest das Buch.\n"
        "baseline  Mann Buch lesen.\n"
        "system    Ein Mann liest ein Buch.\n"
        "\n"
        "loss 1, line 2: TER 0.00 to 50.00 (+50.00)\n"
        "source    Two women go home.\n"
        "reference Zwei Frauen gehen heim.\n"
        "baseline  Zwei Frauen gehen heim.\n"
        "system    Zwei Frauen gehen nach Hause.\n"
        "\n"
    )


def test_no_more_than_asked_for_are_shown_largest_first(folder: Path) -> None:
    texts = {"many": REF * 3, "old": BASE + REF + BASE.replace("Buch lesen", "x"), "new": HYP * 3}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    many, old, new = (text.splitlines() for text in texts.values())
    scores = [
        [CHRF().sentence_score(*pair) for pair in zip(side, ([line] for line in many), strict=True)]
        for side in (new, old)
    ]
    gains = {line: one.score - other.score for line, (one, other) in enumerate(zip(*scores, strict=True), 1)}
    result = json.loads(run("many", "-i", "new", "--baseline", "old", "--differences", "2", "-m", "chrf", "--json"))
    assert [entry["line"] for entry in result["gains"]] == sorted(gains, key=lambda line: -gains[line])[:2]
    assert [entry["line"] for entry in result["losses"]] == sorted(gains, key=lambda line: gains[line])[:2]
    gain = result["gains"][0]
    assert gain["chrF2 difference"] == gain["chrF2"] - gain["chrF2 baseline"] > 0
    assert (gain["references"], gain["baseline"]) == (["Ein Mann liest das Buch."], "Mann x.")


def test_differences_need_nothing_of_the_metrics_after_the_first(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    command = ["ref", "-i", "hyp", "--baseline", "base", "--differences", "1", "-m"]
    assert run(*command, "chrf,comet") == run(*command, "chrf")  # no source and no COMET
    assert "--differences compares by the first metric alone: chrf" in caplog.messages
    assert run(*command, "chrf,bleu", "-l", "en-de", "--lowercase") == run(*command, "chrf")  # the options are bleu's


def test_a_terminal_does_not_obey_a_translation(folder: Path) -> None:
    (folder / "hostile").write_text(HYP.replace("ein Buch", "\x1b[2Jein Buch"), encoding="utf-8")
    output = on_a_terminal(["ref", "-i", "hostile", "--baseline", "base", "--differences", "1"], COLUMNS="80")
    assert "\x1b[2J" not in output
    assert "\\x1b[2Jein" in output
