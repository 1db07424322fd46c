"""Languages: their codes as people spell them, their names and scripts, and the language of a text."""

from __future__ import annotations

import pytest

from nmt_cli.errors import UsageError
from nmt_cli.languages import (
    detect_language,
    identify_language,
    is_language,
    language_name,
    match_code,
    parse_languages,
    script_of,
    short_code,
    standard_code,
)


@pytest.mark.parametrize(
    ("code", "script"),
    [
        ("de", "Latn"),
        ("RU", "Cyrl"),
        ("sr", "Cyrl"),
        ("sr-Latn", "Latn"),
        ("sr_Latn_RS", "Latn"),
        ("zh", "Hans"),
        ("zh-Hant-TW", "Hant"),
        ("zh-HK", "Hant"),
        ("zho_Hans", "Hans"),
        ("ell", "Grek"),
        ("grc", "Grek"),
        ("jpn", "Jpan"),
        ("ko-KR", "Kore"),
        ("pt-BR", "Latn"),
        ("iku", "Cans"),
        ("made-up", "Latn"),
    ],
)
def test_codes_name_their_script(code: str, script: str) -> None:
    assert script_of(code) == script


def test_codes_of_three_letters_are_those_of_two() -> None:
    codes = ["deu", "ger_Latn", "de-AT", "EN", "nob", "gsw", "kmr_Latn", "plt", "ekk", "gaz", "pbt_Arab", "cmn", "fil"]
    short = ["de", "de", "de", "en", "no", "gsw", "ku", "mg", "et", "om", "ps", "zh", "tl"]
    assert [short_code(code) for code in codes] == short


@pytest.mark.parametrize(
    ("code", "standard"),
    [
        *(("pt_br", "pt-BR"), ("por-BR", "pt-BR"), ("pb", "pt-BR"), ("zho_Hant", "zh-Hant"), ("zt", "zh-Hant")),
        *(("zh-CHS", "zh-Hans"), ("iw", "he"), ("in", "id"), ("ji", "yi"), ("jw", "jv"), ("mo", "ro"), ("eng", "en")),
        *(("deu_Latn", "de"), ("en_us.UTF-8", "en-US"), ("sr_RS@latin", "sr-Latn-RS"), ("no code", "no code")),
    ],
)
def test_odd_codes_are_written_as_bcp_47_has_them(code: str, standard: str) -> None:
    assert standard_code(code) == standard


@pytest.mark.parametrize(
    ("wanted", "codes", "found"),
    [
        ("DE", "en de", "de"),
        ("EN-US", "en de", "en"),
        ("deu", "en de", "de"),
        ("xx", "en de", None),
        ("iw", "he", "he"),
        ("he", "iw", "iw"),
        ("fil", "tl", "tl"),
        ("nb", "nn no", "no"),
        ("nn", "no", None),
        ("cmn", "yue zh", "zh"),
        # The script decides, whether the code names it or not.
        ("zh-TW", "zh-Hans zh", None),
        ("zh-HK", "zh-CN zh-TW", "zh-TW"),
        ("zt", "zh zh_Hant", "zh_Hant"),
        ("zh", "zh-Hant zh-CN", "zh-CN"),
        ("sr-Latn", "sr", None),
        ("en_", "en-GB en", "en"),
        ("sr_Latn", "sr sr-Latn-RS", "sr-Latn-RS"),
        ("uz-Cyrl", "uz", None),
        # The nearest region comes first.
        ("pt-BR", "pt-PT pt", "pt"),
        ("pb", "pt pt_BR", "pt_BR"),
        ("pt", "pt-PT pt-BR", "pt-BR"),
        ("pt-PT", "pt-BR pt", "pt"),
        ("en-AU", "en-US en-GB", "en-GB"),
    ],
)
def test_codes_are_matched_by_language_script_and_region(wanted: str, codes: str, found: str | None) -> None:
    assert match_code(wanted, codes.split()) == found


def test_the_parts_of_a_code_are_joined_by_a_line() -> None:
    with pytest.raises(UsageError, match="'en-pt-BR' is not SOURCE-TARGET"):
        parse_languages("en-pt-BR")
    assert parse_languages("en-pt_BR") == ("en", "pt_BR")


def test_names_tell_scripts_and_regions_apart() -> None:
    codes = ["de", "deu", "pt_BR", "no", "zh", "zho_Hans", "zh-Hant", "sr-Latn", "xyz", "?"]
    names = ["German", "German", "Portuguese (Brazil)", "Norwegian", "Chinese", "Chinese (Simplified)"]
    names += ["Chinese (Traditional)", "Serbian (Latin)", "xyz", "?"]
    assert [language_name(code) for code in codes] == names


def test_languages_are_called_by_name_or_code() -> None:
    names = ["German", "english", "id", "No", "DE", "Text", "text.fr", "Chinese", "key", ""]
    assert [name for name in names if is_language(name)] == ["German", "english", "DE", "text.fr", "Chinese"]


_MANY = "en de fr es ru zh hi bn"


@pytest.mark.parametrize(
    ("text", "among", "code"),
    [
        ("Das Haus steht am alten Meer.", "en de", "de"),
        ("Das Haus steht am alten Meer.", "xx fr en de", "de"),
        ("Das Haus steht am alten Meer.", "hsb de", "de"),
        ("Das ist gut", _MANY, "de"),
        # No letter, or none that tells the languages apart.
        *((text, _MANY, None) for text in ("", "ok", "Hi", "123", "12:30", "😀", "• – …")),
        ("Paris", "en de", None),
        ("the house", "xx yy", None),
        # The script of the text.
        ("你好", "en de", None),
        ("Привет, мир", "en de", None),
        ("Да", _MANY, "ru"),
        ("ok", "ru en", "en"),
        ("नमस्ते", _MANY, "hi"),
        ("请打开 Settings 然后点击 Update", "en zh", "zh"),
        ("東京タワーに行きました", "zh ja", "ja"),
        ("我今天去了北京", "zh ja", "zh"),
        ("這是一個好主意", "zh-Hans zh-Hant", "zh-Hant"),
        ("这是一个好主意", "zh_TW en zh", "zh"),
        ("你是我的好朋友", "zh_TW en zh", "zh"),
        ("Dobar dan svima", "sr sr-Latn", "sr-Latn"),
        ("Добар дан свима", "sr-Latn sr", "sr"),
    ],
)
def test_a_language_is_detected_by_script_and_words_or_not_at_all(text: str, among: str, code: str | None) -> None:
    found = detect_language(text, among=among.split())
    assert (None if found is None else found.code) == code
    assert found is None or 0 < found.confidence <= 1
    assert detect_language(text, among=among.split()[::-1]) == found


def test_a_language_without_a_second_candidate_is_compared_with_all_of_its_script() -> None:
    found = detect_language("Das Haus steht am alten Meer.", among=["en"])
    assert found is not None
    assert found.confidence < 0.1
    other = identify_language("明天我们一起去公园看电影吧")
    assert other is not None
    assert other.code == "zh"
