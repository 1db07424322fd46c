"""Languages: their codes as people spell them, their names and scripts, and the language of a text."""

from __future__ import annotations

import pytest

from nmt_cli.errors import UsageError
from nmt_cli.languages import (
    DetectedLanguage,
    detect_language,
    language_name,
    match_code,
    parse_languages,
    script_of,
    short_code,
)


@pytest.mark.parametrize(
    ("code", "script"),
    [
        ("de", "Latn"),
        ("RU", "Cyrl"),
        ("sr", "Cyrl"),
        ("sr-Latn", "Latn"),
        ("sr_Latn_RS", "Latn"),
        ("zh", "Hani"),
        ("zh-Hant-TW", "Hani"),
        ("zh-CN", "Hani"),
        ("zho_Hans", "Hani"),
        ("ell", "Grek"),
        ("jpn", "Jpan"),
        ("ko-KR", "Kore"),
        ("pt-BR", "Latn"),
        ("made-up", "Latn"),
    ],
)
def test_codes_name_their_script(code: str, script: str) -> None:
    assert script_of(code) == script


def test_codes_of_three_letters_are_those_of_two() -> None:
    assert [short_code(code) for code in ("deu", "ger_Latn", "de-AT", "EN", "nob", "gsw")] == [
        *("de", "de", "de", "en", "no", "gsw")
    ]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("de", "de"), ("DE", "de"), ("de-AT", "de"), ("EN-US", "en"), ("pt_BR", "pt-br"), ("deu", "de"), ("xx", None)],
)
def test_codes_are_matched_as_clients_spell_them(wanted: str, found: str | None) -> None:
    assert match_code(wanted, ["en", "de", "pt-br"]) == found


def test_a_pair_of_languages_is_read_with_the_parts_of_its_codes() -> None:
    assert parse_languages("en-es_419") == ("en", "es_419")
    with pytest.raises(UsageError) as caught:
        parse_languages("en-pt-BR")
    assert caught.value.hint.endswith("--languages en-pt_BR")


def test_names_of_languages() -> None:
    names = ["German", "German", "Portuguese", "Norwegian", "tlh"]
    assert [language_name(code) for code in ("de", "deu", "pt-BR", "nb", "tlh")] == names


def test_detection_is_among_the_languages_there_are() -> None:
    def code(text: str, *among: str) -> str | None:
        found = detect_language(text, among=among)
        return None if found is None else found.code

    german = "Das Haus steht am alten Meer."
    assert code(german, "en", "de") == "de"
    assert code(german, "en", "fr") in ("en", "fr")
    assert code(german, "xx", "fr", "en", "de") == "de"
    assert detect_language(german, among=["de", "en"]) == detect_language(german, among=["en", "de"])
    assert detect_language("the house", among=["fr"]) == DetectedLanguage("fr", 1.0, is_only=True)
    assert code("the house", "xx", "yy") is None
    assert code("the house", "xx", "en") is None
