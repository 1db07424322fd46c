"""Texts in sentences, and put together again."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.serving.texts import split_text
from nmt_cli.tokenization.sentence_splitting import split_sentences

TEXT = "  One. Two!\r\n\r\n\tThree, four? \n"


def test_whitespace_and_line_breaks_stay() -> None:
    whole = split_text(TEXT, fits=lambda text: True, by_sentence=False)
    assert whole.sentences == ["One. Two!", "Three, four?"]
    assert whole.join(["Eins.", "Drei?"]) == "  Eins.\r\n\r\n\tDrei? \n"
    sentences = split_text(TEXT, fits=lambda text: True, by_sentence=True)
    assert sentences.sentences == ["One.", "Two!", "Three, four?"]
    parts = split_text(TEXT, fits=lambda text: len(text) <= 6, by_sentence=False)
    assert parts.sentences == ["One.", "Two!", "Three,", "four?"]
    assert parts.join(["1", "2", "3", "4"]) == "  1 2\r\n\r\n\t3 4 \n"


@pytest.mark.parametrize(
    "text", ["." * 10_000, "x" * 5000 + " ." * 2500, ". " * 5000, "a. " * 3333, "。" * 10_000, "a" + " " * 9998 + "b"]
)
def test_no_text_takes_quadratic_time(text: str) -> None:
    text *= 4
    started = time.process_time()
    found = split_text(text, fits=lambda text: True, by_sentence=True)
    assert time.process_time() - started < 3  # linear: 0.1 s; it was sixteen times seconds to minutes
    assert found.join(found.sentences) == text


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("One. Two! Three? Four", ["One. ", "Two! ", "Three? ", "Four"]),
        ("Mr. Smith met Dr. J. R. Brown. He left.", ["Mr. Smith met Dr. J. R. Brown. ", "He left."]),
        ("Am 3. Mai, z. B. um 5.30 Uhr. Gut.", ["Am 3. Mai, z. B. um 5.30 Uhr. ", "Gut."]),
        ("He said: “Go!” Then he went.", ["He said: “Go!” ", "Then he went."]),
        ("wait... what? no.", ["wait... what? no."]),
        ("Er kam … Sie ging. „Halt!“, rief er.", ["Er kam … ", "Sie ging. ", "„Halt!“, rief er."]),
        ("今日は。元気？はい", ["今日は。", "元気？", "はい"]),
        ("好。。", ["好。。"]),
        ("The U.S. Senate voted. ¿Qué? No!", ["The U.S. Senate voted. ", "¿Qué? ", "No!"]),
        ("", []),
    ],
)
def test_sentences_of_a_line(line: str, sentences: list[str]) -> None:
    assert split_sentences(line) == sentences


@pytest.mark.parametrize("longest", [4, 1000])
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from(" \n\r\t.!\u2028"), max_size=80))
def test_nothing_is_lost_between_sentences(longest: int, text: str) -> None:
    found = split_text(text, fits=lambda text: len(text) <= longest, by_sentence=longest > 4)
    assert found.join(found.sentences) == text
    assert all(sentence == sentence.strip() != "" for sentence in found.sentences)
    assert all(not gap.strip() for gap in found.gaps)


def test_control_characters_are_spaces_to_the_model() -> None:
    assert split_text("a\x00b\x07c", fits=lambda text: True, by_sentence=True).sentences == ["a b c"]
    assert split_text("\x00", fits=lambda text: True, by_sentence=True).sentences == []
