"""Translations that differ in the word after a beginning, by the trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.cli.decode import decode
from nmt_cli.decoding.next_words import best_of_each_word
from nmt_cli.decoding.translator import Translation, Translator
from nmt_cli.errors import DataError, UsageError

LINE = "the dog sees a house by the sea"


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator.from_pretrained(trained, device="cpu")


def texts(translation: Translation) -> list[str]:
    return [one.text for one in (translation, *translation.alternatives)]


def test_each_translation_keeps_the_beginning_and_has_another_word_after_it(translator: Translator) -> None:
    (best,) = translator.translate([LINE])
    begun = best.text.split()[:3]
    found = translator.translate([LINE, "", LINE], prefixes=[" ".join(begun), "", ""], next_words=6)
    assert found[1].text == ""
    for one, start in ((found[0], begun), (found[2], [])):
        words = [text.split() for text in texts(one)]
        assert 1 < len(words) <= 6
        assert all(row[: len(start)] == start for row in words)
        after = [row[len(start)] for row in words]
        assert len(set(after)) == len(after)
        scores = [one.score, *(other.score for other in one.alternatives)]
        assert scores == sorted(scores, reverse=True)
    # The best of all translations is among those of its own first word.
    assert found[2].text == best.text


def test_what_no_word_follows_is_translated_to_its_end(translator: Translator) -> None:
    (best,) = translator.translate([LINE])
    (found,) = translator.translate([LINE], prefixes=[best.text], next_words=3)
    assert found.text.startswith(best.text)


def test_of_each_word_the_best_translation_counts() -> None:
    def made(text: str, score: float) -> Translation:
        return Translation(text, score, score, 3)

    given = [made("a b c", -3), made("a x c", -2), made("a b d", -1), made("y b", -0.5), made("a", -0.1)]
    best = best_of_each_word(given, " a ")
    assert texts(best) == ["a b d", "a x c"]
    assert best_of_each_word(given, "z").text == "a"


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"next_words": 0}, "--next-words is 0, but should be at least 1", "--next-words 5"),
        (
            {"next_words": 2, "nbest": 2},
            "--next-words and --nbest each say which translations of a line are wanted",
            "leave one of them out: --next-words, or --nbest",
        ),
        (
            {"next_words": 2, "mbr": "chrf"},
            "--next-words and --mbr each say which translations of a line are wanted",
            "leave one of them out: --next-words, or --mbr",
        ),
        (
            {"next_words": 2, "samples": 2},
            "--next-words and --samples each say which translations of a line are wanted",
            "leave one of them out: --next-words, or --samples",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    translator: Translator, options: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as error:
        translator.translate([LINE], **options)
    assert (error.value.message, error.value.where, error.value.hint) == (message, "--next-words", hint)


def test_several_models_cannot_tell_what_follows(trained: Path) -> None:
    together = Translator.from_pretrained([trained, trained], device="cpu")
    with pytest.raises(UsageError) as error:
        together.translate([LINE], next_words=2)
    assert error.value.message == "several models together cannot tell which words may follow"
    assert error.value.hint == "take --engine torch with one model"


def test_the_command_writes_a_row_for_each_word(trained: Path, tmp_path: Path) -> None:
    source, prefix, output = (tmp_path / name for name in ("text", "prefixes", "out"))
    source.write_text(f"{LINE}\n\n")
    prefix.write_text("der Hund\n\n")
    common: dict[str, Any] = {"model": [trained], "source": source, "prefix": prefix, "device": "cpu", "next_words": 3}
    decode(**common, output=output, form="tsv")
    rows = [row.split("\t") for row in output.read_text().splitlines()]
    assert [row[:2] for row in rows] == [*(["1", str(rank)] for rank in range(1, len(rows))), ["2", "1"]]
    assert all(row[4].startswith("der Hund ") for row in rows[:-1])
    decode(**common, output=tmp_path / "json", form="jsonl")
    first = json.loads((tmp_path / "json").read_text().splitlines()[0])
    assert [first["text"], *(one["text"] for one in first["alternatives"])] == [row[4] for row in rows[:-1]]
    with pytest.raises(UsageError, match="--format text has nothing but the translation, so no room for --next-words"):
        decode(**common, output=tmp_path / "text.out")
    prefix.write_text("der Hund\n")
    with pytest.raises(DataError, match=r"text has 2 lines, .*prefixes has 1"):
        decode(**common, output=tmp_path / "short", form="tsv")
