"""Scores against sacreBLEU's own command, and by hand; those of WMT22 are in test_score_command.py."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nmt_cli
from nmt_cli.errors import UsageError
from nmt_cli.scoring import metrics
from nmt_cli.scoring.metrics import EvaluationSet, ScoreReport, bleu

_HYPOTHESES = ["Der Hund schläft im Garten .", "Zwei Frauen gehen nach Hause.", "Ein Mann liest ein Buch."]
_REFERENCES = ["Der Hund schläft im Garten.", "Zwei Frauen gehen heim.", "Ein Mann liest das Buch."]


def score(hypotheses: list[str], references: list[list[str]], **options: Any) -> list[ScoreReport]:
    return metrics.score(hypotheses, EvaluationSet(references), **options)


def test_scores_confidence_and_signature_are_those_of_sacrebleu_s_command(tmp_path: Path) -> None:
    for name, lines in (("hyp", _HYPOTHESES), ("ref", _REFERENCES)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "hyp", "-m", "bleu", "chrf", "ter", "--confidence"]
    command += ["--chrf-word-order", "2"]
    output = subprocess.run(
        [*command, "--format", "text", "--width", "4"], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    reports = score(_HYPOTHESES, [_REFERENCES], metrics=["bleu", "chrf++", "ter"], confidence=True)
    for report, line in zip(reports, output.strip().split("\n"), strict=True):
        line = line.strip()
        assert line.startswith(f"{report.metric}|{report.signature} = {report.value:.4f} (")
        assert f"± {report.confidence:.4f})" in line


def test_bleu_of_one_sentence_is_what_the_formula_gives() -> None:
    # 5 of 6 unigrams, 4 of 5 bigrams, 3 of 4 trigrams, 2 of 3 4-grams; as long as the reference: no brevity penalty.
    report = bleu(["a b c d e f"], ["a b c d e g"])
    assert report.value == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)
    shorter = bleu(["a b c d"], ["a b c d e"])
    assert shorter.value == pytest.approx(100 * math.exp(1 - 5 / 4))


def test_ter_of_one_edit_in_four_words_is_25() -> None:
    (report,) = score(["a b x d"], [["a b c d"]], metrics=["ter"], confidence=False)
    assert report == ScoreReport("TER", 25.0, report.signature, None)


def test_a_second_reference_can_only_help() -> None:
    (one,) = score(["a b c d e"], [["a b c d x"]], metrics=["bleu"], confidence=False)
    (two,) = score(["a b c d e"], [["a b c d x"], ["a b c d e"]], metrics=["bleu"], confidence=False)
    assert one.value < 99
    assert two.value == pytest.approx(100)


def test_the_confidence_of_identical_lines_is_zero() -> None:
    reports = score(["a b c d e"] * 20, [["a b c d x"] * 20], metrics=["bleu", "chrf", "ter"], confidence=True)
    assert [report.confidence for report in reports] == [0.0, 0.0, 0.0]
    assert all("|bs:1000|seed:12345|" in report.signature for report in reports)


def test_carriage_returns_change_no_score() -> None:
    plain = score(_HYPOTHESES, [_REFERENCES], metrics=["bleu", "chrf", "ter"], confidence=False)
    with_returns = score(
        [f"{line}\r" for line in _HYPOTHESES], [_REFERENCES], metrics=["bleu", "chrf", "ter"], confidence=False
    )
    assert len(plain) == 3
    assert plain == with_returns


def test_chinese_has_the_tokens_of_sacrebleu_s_command(tmp_path: Path) -> None:
    hypotheses, references = ["我喜欢吃红苹果。", "他在家里看书。"], ["我喜欢吃苹果。", "他在家看一本书。"]
    for name, lines in (("hyp", hypotheses), ("ref", references)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "hyp", "-l", "en-zh", "-m", "bleu", "-w", "4", "-b"]
    output = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    against = EvaluationSet([references], target_language="zh")
    (report,) = metrics.score(hypotheses, against, metrics=["bleu"], confidence=False)
    assert f"{report.value:.4f}" == output.strip()
    assert report.value > 20
    assert "|tok:zh|" in report.signature


def test_a_tokenizer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    against = EvaluationSet([["本を読む。"]], target_language="ja")
    with pytest.raises(UsageError) as caught:
        metrics.score(["本を読む。"], against, metrics=["bleu"], confidence=False)
    assert caught.value.message == "BLEU needs a tokenizer for the language 'ja' that is not installed"
    assert caught.value.hint == "pip install 'sacrebleu[ja]', or leave bleu out of -m"


def test_validation_may_score_blank_and_odd_output() -> None:
    assert bleu(["", "▁ @@ x"], ["a b", "c d"]).value == 0.0


@pytest.mark.parametrize(("hypotheses", "references"), [([], [[]]), (["a"], []), (["a"], [["b", "c"]])])
def test_what_does_not_fit_together_is_a_programmer_s_mistake(
    hypotheses: list[str], references: list[list[str]]
) -> None:
    with pytest.raises(ValueError, match="cannot be scored"):
        score(hypotheses, references, metrics=["bleu"], confidence=False)


def test_the_report_is_part_of_the_public_api() -> None:
    assert nmt_cli.ScoreReport is ScoreReport


def test_a_confidence_interval_of_chrf_survives_resamples_without_a_match() -> None:
    hypotheses, references = ["xyz", "a cat", "qqq"], ["abc", "a cat", "fgh"]
    (report,) = score(hypotheses, [references], metrics=["chrf"], confidence=True)
    assert report.confidence is not None
    assert 0 < report.confidence < 100
