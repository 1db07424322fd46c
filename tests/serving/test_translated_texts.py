"""Texts in sentences, and put together again."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.serving.translated_texts import split_text
from nmt_cli.tokenization.split_text import SplitText
from nmt_cli.tokenization.white_space import is_blank

EN_DE = LanguagePair(source="en", target="de")
TEXT = "  One. Two!\r\n\r\n\tThree, four? \n"


def joined(split: SplitText, translations: list[str], languages: LanguagePair = EN_DE) -> str:
    return split.joined(translations, [()] * len(translations), languages, keeps_breaks=True)[0]


def test_whitespace_and_line_breaks_stay() -> None:
    whole = split_text(TEXT, "en", fits=lambda text: True, is_split=lambda line: False)
    assert whole.sentences == ["One. Two!", "Three, four?"]
    assert joined(whole, ["Eins.", "Drei?"]) == "  Eins.\r\n\r\n\tDrei? \n"
    sentences = split_text(TEXT, "en", fits=lambda text: True, is_split=lambda line: True)
    assert sentences.sentences == ["One.", "Two!", "Three, four?"]
    parts = split_text(TEXT, "en", fits=lambda text: len(text) <= 6, is_split=lambda line: False)
    assert parts.sentences == ["One.", "Two!", "Three,", "four?"]
    assert joined(parts, ["1", "2", "3", "4"]) == "  1 2\r\n\r\n\t3 4 \n"


@pytest.mark.parametrize(
    "text", ["." * 10_000, "x" * 5000 + " ." * 2500, ". " * 5000, "a. " * 3333, "。" * 10_000, "a" + " " * 9998 + "b"]
)
def test_no_text_takes_quadratic_time(text: str) -> None:
    text *= 4
    started = time.process_time()
    found = split_text(text, "en", fits=lambda text: True, is_split=lambda line: True)
    assert time.process_time() - started < 3  # linear: 0.1 s; it was sixteen times seconds to minutes
    assert found.text == text


@pytest.mark.parametrize("longest", [4, 1000])
@given(
    st.text(
        st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<") | st.sampled_from(" \n\r\t.!\u2028"),
        max_size=80,
    )
)
def test_nothing_is_lost_between_sentences(longest: int, text: str) -> None:
    found = split_text(text, "en", fits=lambda text: len(text) <= longest, is_split=lambda line: longest > 4)
    assert found.text == text
    assert all(sentence == sentence.strip() != "" for sentence in found.sentences)
    assert all(map(is_blank, found.gaps))


@pytest.mark.parametrize(
    ("languages", "text", "translations", "expected"),
    [
        ("en-de", "A。B！C", ["Eins.", "Zwei!", "Drei"], "Eins. Zwei! Drei"),
        ("zh-en", "甲。\n乙。丙。", ["One.", "Two.", "Three."], "One.\nTwo. Three."),
        ("en-zh", "One.  Two? Three.", ["一。", "二？”", "三。"], "一。二？”三。"),
        ("en-ja_JP", "One.\n\nTwo.", ["一。", "二。"], "一。\n\n二。"),
        ("en-zh", "One. Two.", ["iPhone.", "二。"], "iPhone. 二。"),
        ("en-th", "One. Two.", ["หนึ่ง", "สอง"], "หนึ่ง สอง"),
        ("ja-ko", "一。二。", ["하나.", "둘."], "하나. 둘."),
        ("en-de", "One.😀", ["Eins.", "😀"], "Eins.😀"),
    ],
)
def test_sentences_are_joined_as_the_target_is_written(
    languages: str, text: str, translations: list[str], expected: str
) -> None:
    source, _, target = languages.partition("-")
    found = split_text(text, source, fits=lambda text: True, is_split=lambda line: True)
    assert joined(found, translations, LanguagePair(source=source, target=target)) == expected


def test_what_stays_is_in_one_sentence_beside_tags() -> None:
    text = "Say {user.It} now.1 It is <i>in</i> <a href='https://x.org/?a.It'/>https://x.org/?a=1&b.It=2, or not."
    note = text.index("1")
    found = split_text(
        text, "en", fits=lambda text: len(text) <= 20, is_split=lambda line: True, kept=[(note, note + 1)]
    )
    assert found.sentences == ["Say {user.It} now.1", "It is", "in", "https://x.org/?a=1&b.It=2", ", or not."]
    assert found.kept_by_sentence() == [[(4, 13), (18, 19)], [], [], [(0, 25)], []]
    assert found.text == text


def test_what_nobody_sees_is_no_sentence() -> None:
    for text in ("\x00", "\u200b", " \ufeff\u00ad\n\u2060 "):
        found = split_text(text, "en", fits=lambda text: True, is_split=lambda line: True)
        assert (found.sentences, joined(found, [])) == ([], text)
