"""Long lines in parts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.tokenization.sentence_splitting import split_sentences, split_to_fit


def split(text: str, *, longest: int, kept: Sequence[tuple[int, int]] = ()) -> list[str]:
    return split_to_fit(text, fits=lambda part: len(part.strip()) <= longest, kept=kept)


@given(st.text(st.sampled_from("ab .,;!?\n\t。，«»\"'é")), st.integers(1, 12))
def test_nothing_is_added_or_left_out(text: str, longest: int) -> None:
    parts = split(text, longest=longest)
    assert "".join(parts) == text
    assert all(parts)
    assert all(len(part.strip()) <= longest for part in parts)


@pytest.mark.parametrize(
    ("text", "longest", "parts"),
    [
        ("It fits.", 8, ["It fits."]),
        ("", 8, []),
        ("One two. Three four. Five six.", 22, ["One two. Three four. ", "Five six."]),
        ('He said "no." Then he, of course, left.', 25, ['He said "no." ', "Then he, of course, left."]),
        ("One, two and three, four five six seven", 24, ["One, two and three, ", "four five six seven"]),
        ("No. One two three four five six seven", 24, ["No. One two three four ", "five six seven"]),
        ("one two three", 8, ["one two ", "three"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("一二三。四五六。七八", 8, ["一二三。四五六。", "七八"]),
    ],
)
def test_cut_after_a_sentence_else_a_clause_else_a_word(text: str, longest: int, parts: list[str]) -> None:
    assert split(text, longest=longest) == parts


@pytest.mark.parametrize(
    "sentences",
    [
        ["یہ پہلا جملہ ہے۔ ", "یہ دوسرا جملہ ہے۔ ", "اور تیسرا؟ ", "ہاں۔"],
        ["هل هذا سؤال؟ ", "نعم، هذا سؤال."],
        ["Սա առաջին նախադասությունն է։ ", "Սա երկրորդն է։"],
        ["ይህ የመጀመሪያው ነው። ", "ይህ ሁለተኛው ነው።"],
        ["នេះជាប្រយោគទីមួយ។ ", "នេះជាប្រយោគទីពីរ។"],
        ["ဒါက ပထမ ဝါကျပါ။", "ဒါက ဒုတိယပါ။"],
        ["यह पहला वाक्य है। ", "यह दूसरा है॥ १२ ॥"],
        ["ეს პირველია. ", "ეს მეორეა."],
        ['ကိုကိုက "သွားမယ်။" ', "(ဒါက ပထမ။) ", "ဒုတိယ။"],
        ["۱۔ پہلا اصول۔ ", "۲۔ دوسرا اصول۔"],
        ["这是第一句。", "这是第二句！"],
    ],
    ids=["ur", "ar", "hy", "am", "km", "my", "hi", "ka", "my with quotes", "ur with numbers", "zh"],
)
def test_sentences_end_at_the_marks_of_their_script(sentences: list[str]) -> None:
    text = "".join(sentences)
    assert split_sentences(text, "ur") == sentences
    assert split(text, longest=max(map(len, sentences[:2])))[0] == sentences[0]


def test_what_is_kept_is_in_one_sentence_and_a_note_closes_it() -> None:
    sentences = ["See {user.It}, {a. B} or www.x.org/a!This. ", "5 m2 fit.1,2 ", "{x} works.”*"]
    text = "".join(sentences)
    kept = [(start := text.index(word), start + len(word)) for word in ("{user.It}", "{a. B}", "www.x.org/a!This")]
    kept += [(start := text.index(word), start + 1) for word in ("2 fit", "1,", ",2", "2 {", "{x}", "*")]
    assert split_sentences(text, "en", kept) == sentences
    for longest in (1, 12, 25):
        parts = split(text, longest=longest, kept=kept)
        assert "".join(parts) == text
        assert all(any(text[start:end] in part for part in parts) for start, end in kept)


def test_a_character_that_is_too_long_is_not_cut() -> None:
    assert split_to_fit("äö", fits=lambda part: len(part.encode()) <= 1) == ["ä", "ö"]


def test_the_work_grows_with_the_text_not_with_its_square() -> None:
    read = 0

    def fits(part: str) -> bool:
        nonlocal read
        read += len(part)
        return len(part) <= 100

    assert len(split_to_fit("word " * 4000, fits=fits)) == 200
    # Each cut looks at about ten texts of at most twice a part.
    assert read < 200 * 12 * 200


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("en", ["One. ", "Two! ", "Three? ", "Four"]),
        ("en", ["Mr. Smith met Dr. J. R. Brown. ", "He left."]),
        ("de", ["Am 3. Mai, z. B. um 5.30 Uhr. ", "Gut."]),
        ("en", ["He said: “Go!” ", "Then he went."]),
        ("fr", ["Il dit : « Oui\u202f!\u202f» ", "« Non. » ", "Elle rit."]),
        ("de", ["»Siehe Kap. 3«, sagte er. ", "»Gut.«"]),
        ("en", ["wait... what? ", "no."]),
        ("en", ["the dog sleeps. ", "e.g. here it sleeps."]),
        ("de", ["Er kam … ", "Sie ging. ", "„Halt!“, rief er."]),
        ("ja", ["今日は。", "元気？", "はい"]),
        ("zh", ["好。。"]),
        ("en", ["The U.S. Senate voted. ", "¿Qué? ", "No!"]),
        ("en", []),
        ("en", ["She is 25. ", "He was born in 1999. ", "Good."]),
        ("de", ["Im Jahr 1999. ", "Der 100. Geburtstag."]),
        ("en", ["1. Come in. ", "2. Sit down!"]),
        ("en", ["Oh no. ", "It is No. 5. ", "So am I. ", "Plan B. is his."]),
        ("de", ["Er sagte „Halt“. ", "Dann ging er."]),
        ("ko", ["네. ", "감사합니다."]),
        ("en", ["It works. ", "iPhone sales rose."]),
        ("en", ["“Really?” - asks he. ", "- Yes!"]),
        ("en", ['He said: "Go. "']),
        ("ja", ["「はい。」と言った。", "次。"]),
        ("el", ["Τι κάνεις; ", "Είμαι καλά."]),
        ("en", ["Hello. ", "😀"]),
        ("en", ["Great!", "👍🏽 ❤️ ", "The next one."]),
        ("en", ["I ❤️ New York."]),
        ("en", ["😀 ", "The dog sleeps ", "💤 🏴\U000e0067\U000e007f "]),
        ("en", ["• ", "One. ", "• ", "Two."]),
        (
            "en",
            ["I live in the U.S. ", "It is big. ", "She has a Ph.D. ", "She works at Apple Inc. ", "They like her."],
        ),
        ("en", ["It is new.", "The dog uses node.js and www.example.org."]),
        ("en", ["The end.[12] ", "b) Next.\u200b", "Last.[1, 2] ", "More.¹ "]),
        (
            "en",
            ["He sleeps . ", "J . K . Rowling runs . . . ", "Well . . . no ! ", "It costs 3 . 5 million . ", "Good ."],
        ),
        ("en", ['"Well . . ." ', "He left (. . .) and . . . ", "Well . . ."]),
        ("en", ["&quot; He sleeps . ", "&quot; No , he &apos;s here . &quot;"]),
        ("en", [". Delete *.* Files now. ", "All.* ", "Done."]),
        ("en", ["# 8 for Iowa State runs.\n", "# ", "Eight."]),
        ("en", ["- ", "One.\n", "> a) ", "Two?\n  ", "## 10) ", "Three\n", "2. Four\n", "– ", "Yes - no."]),
        ("de", ["Hauptstr. 5 ist hier. ", "Es war am 3. ", "Er kam."]),
        ("it", ["Il Sig. Rossi dorme. ", "Lei no."]),
        ("he", ["הכלב ישן.\u200f ", "הרדיו חדש."]),
        ("zh", ["你好!", "我有node.js.", "很好...真的?", "OK!", "好"]),
        ("hi", ["वह आया।", "वह गया।"]),
        ("ar", ["كيف حالك؟", "أنا بخير."]),
        ("km", ["គាត់មក។", "នាងទៅ។"]),
        ("en", ["The dog\nsleeps.\n", "Apples\r\n", "Pears"]),
        ("es", ["¡Hola! ", "¿Qué tal?"]),
    ],
)
def test_sentences_of_a_line(language: str, sentences: list[str]) -> None:
    assert split_sentences("".join(sentences), language) == sentences
