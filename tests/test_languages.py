"""Languages: their codes as people spell them, their names and scripts, and the language of a text."""

from __future__ import annotations

import pytest

from nmt_cli.errors import UsageError
from nmt_cli.languages import (
    _LANGUAGE_NAMES,
    _USUAL_SCRIPTS,
    LETTER_NAME_PREFIXES,
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
        ("iu", "Cans"),
        ("iku", "Cans"),
        ("made-up", "Latn"),
    ],
)
def test_codes_name_their_script(code: str, script: str) -> None:
    assert script_of(code) == script


def test_each_script_but_the_default_is_the_usual_one_of_a_language_or_named_by_its_code() -> None:
    named_by_code = {"Latn", "Mong", "Mtei"}  # mn-Mong, mni-Mtei
    assert set(_USUAL_SCRIPTS.values()) == LETTER_NAME_PREFIXES.keys() - named_by_code


def test_tables_are_looked_up_by_the_short_code() -> None:
    assert [code for code in (*_LANGUAGE_NAMES, *_USUAL_SCRIPTS) if short_code(code) != code] == []


def test_codes_of_three_letters_are_those_of_two() -> None:
    codes = ["deu", "ger_Latn", "de-AT", "EN", "nob", "gsw", "kmr_Latn", "plt", "ekk", "gaz"]
    assert [short_code(code) for code in codes] == ["de", "de", "de", "en", "no", "gsw", "ku", "mg", "et", "om"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("de", "de"), ("DE", "de"), ("de-AT", "de"), ("EN-US", "en"), ("pt_BR", "pt-br"), ("deu", "de"), ("xx", None)],
)
def test_codes_are_matched_as_clients_spell_them(wanted: str, found: str | None) -> None:
    assert match_code(wanted, ["en", "de", "pt-br"]) == found


@pytest.mark.parametrize(
    ("pair", "meant"),
    [
        ("en-pt-BR", ["en-pt_BR"]),
        ("en-US-de", ["en_US-de"]),
        ("es-419-en", ["es_419-en"]),
        ("zh-hans-en", ["zh_hans-en"]),
        ("en-zh-hans", ["en-zh_hans"]),
        ("zh-Hant-TW-en", ["zh_Hant_TW-en"]),
        ("EN-DE-AT", ["EN-DE_AT", "EN_DE-AT"]),
        ("pt-br-en", ["pt-br_en", "pt_br-en"]),
    ],
)
def test_the_parts_of_a_code_are_joined_by_a_line_in_each_pair_that_may_be_meant(pair: str, meant: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_languages(pair)
    told = ", or ".join(f"--languages {pair}" for pair in meant)
    assert caught.value.hint == f"a hyphen separates the two languages, and _ the parts of one: {told}"
    assert ["-".join(parse_languages(pair)) for pair in meant] == meant


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
