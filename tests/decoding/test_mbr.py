"""Minimum Bayes risk against sums written out."""

from __future__ import annotations

from typing import Any

import pytest
import sacrebleu

from nmt_cli.api import Translator
from nmt_cli.decoding.translation import expected_utilities, relative_probabilities
from tests.decoding.trained import HELD_OUT

TEXTS = ["the old sea is cold", "the old sea was cold", "a house", "the old sea is cold"]


def test_utility_is_the_weighed_mean_over_all_candidates() -> None:
    weights = [0.5, 0.25, 0.125, 1.0]
    chrf = expected_utilities(TEXTS, weights, utility="chrf", target_language="en")
    bleu = expected_utilities(TEXTS, weights, utility="bleu", target_language="en")
    for place, text in enumerate(TEXTS):
        by_chrf = [sacrebleu.sentence_chrf(text, [other]).score for other in TEXTS]
        by_bleu = [sacrebleu.sentence_bleu(text, [other]).score for other in TEXTS]
        for ours, each in ((chrf, by_chrf), (bleu, by_bleu)):
            expected = sum(w * value for w, value in zip(weights, each, strict=True)) / sum(weights)
            assert ours[place] == pytest.approx(expected)
    assert max(chrf) == chrf[0] == chrf[3]
    assert relative_probabilities([-1000.0, -1000.0 - 0.6931471805599453]) == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize(
    ("language", "texts"),
    [
        ("zh", ["我今天去公园散步。", "我今天去公园跑步。", "天气很好。"]),
        ("th", ["วันนี้อากาศดีมาก", "วันนี้อากาศร้อนมาก", "ฉันชอบแมว"]),
        ("ja", ["今日は天気がいいです。", "今日は天気が悪いです。", "猫が好きだ。"]),
    ],
)
def test_bleu_compares_texts_without_spaces(language: str, texts: list[str]) -> None:
    first, second, other = expected_utilities(texts, [1.0] * 3, utility="bleu", target_language=language)
    assert min(first, second) > other + 5
    assert other > 100 / 3


@pytest.mark.parametrize("options", [{"beam": 6}, {"samples": 8, "seed": 3}])
def test_the_chosen_one_has_the_highest_utility(translator: Translator, options: dict[str, Any]) -> None:
    lines = ["", *(source for source, _ in HELD_OUT[:8])]
    number = options.get("beam") or options["samples"]
    lists = translator.translate(lines, nbest=number, **options)
    chosen = translator.translate(lines, mbr="chrf", nbest=2, **options)
    assert chosen[0] == lists[0]
    for ranked, best in zip(lists[1:], chosen[1:], strict=True):
        candidates = [ranked, *ranked.alternatives]
        weights = (
            [1.0] * number if "samples" in options else relative_probabilities([one.log_prob for one in candidates])
        )
        texts = [one.text for one in candidates]
        utilities = expected_utilities(texts, weights, utility="chrf", target_language="de")
        assert best.utility == pytest.approx(max(utilities))
        assert best.text == candidates[utilities.index(max(utilities))].text
        assert len(best.alternatives) == 1
        assert best.alternatives[0].utility is not None
        assert best.utility is not None
        assert best.alternatives[0].utility <= best.utility
