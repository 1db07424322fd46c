from __future__ import annotations

import sys

import pytest

from nmt_cli.errors import DataError
from nmt_cli.languages import language_identifier
from nmt_cli.preparing.chunks import ParsedChunk
from nmt_cli.preparing.cleaning.rules import REASONS, CleaningRules
from nmt_cli.preparing.cleaning.scripts import LanguageRule, ScriptRule
from nmt_cli.preparing.corpus import CleaningConfig
from nmt_cli.preparing.sources.base import CorpusLanguages


@pytest.mark.parametrize(
    ("code", "kept", "dropped"),
    [
        ("de", ["Straße", "5 €", "", "Wörter слово", "ǅ ǆ ﬁ Ⅷ", "𝐀𝐁 ʻ", "Ａｂｃ"], ["слово a", "の", "Ελλάδα"]),
        ("ru", ["Это слово", "Linux и Россия", "1914", "!"], ["word", "Linux и", "Ελλάδα"]),
        ("el", ["Ελληνικά", "ἀρχή", "µ"], ["Cyrl Ω", "слово"]),
        ("ja", ["これはペンです", "東京", "ｶﾀｶﾅ", "々〆"], ["word", "한국어"]),
        ("zh", ["这是一本书", "𠀀𠀁", "ㄅㄆ"], ["これはペンです", "book"]),
        ("ko", ["한국어", "韓國", "ㅋㅋ"], ["かな", "book"]),
        ("ar", ["مرحبا", "ﷲ", "مـرحبا"], ["שלום", "salam"]),
        ("hi", ["नमस्ते दुनिया", "क्‍ष"], ["নমস্কার", "namaste"]),
        ("am", ["ሰላም"], ["selam"]),
    ],
)
def test_the_script_rule_judges_as_by_hand(code: str, kept: list[str], dropped: list[str]) -> None:
    rule = ScriptRule(code)
    texts = [text for pair in zip(kept, dropped, strict=False) for text in pair]
    texts += [*kept[len(dropped) :], *dropped[len(kept) :]]
    assert [texts[place] for place in rule(texts)] == [text for text in texts if text in dropped]
    assert rule([]) == []


def clean(pairs: list[tuple[str, str]], config: CleaningConfig, source: str, target: str) -> dict[str, int]:
    rules = CleaningRules(config, CorpusLanguages(source=source, target=target))
    tally = rules.apply(ParsedChunk([src for src, _ in pairs], [tgt for _, tgt in pairs], 1, "train")).tally
    return {reason: tally.dropped[reason].count for reason in REASONS if tally.dropped[reason].count}


def test_each_side_has_its_own_script() -> None:
    pairs = [("a book", "книга"), ("книга", "a book"), ("book", "book!"), ("книга", "книга!")]
    assert clean(pairs, CleaningConfig(other_script=True), "en", "ru") == {"other script": 3}
    assert clean(pairs, CleaningConfig(other_script=True), "ru", "en") == {"other script": 3}


ENGLISH = "The committee will meet again in the second week of September."
GERMAN = "Der Ausschuss wird in der zweiten Septemberwoche erneut tagen."


def test_text_in_another_language_is_found() -> None:
    pytest.importorskip("py3langid")
    pairs = [
        (ENGLISH, GERMAN),
        (ENGLISH, f"{ENGLISH} Thank you."),  # not translated
        (GERMAN, GERMAN + " Danke."),
        (ENGLISH, "Le comité se réunira de nouveau la deuxième semaine de septembre."),
        ("Yes, the New York Times.", "Die New York Times!"),  # too short to say
    ]
    config = CleaningConfig(other_language=True)
    assert clean(pairs, config, "en", "de") == {"other language": 3}
    assert clean(pairs, config, "eng_Latn", "deu_Latn") == {"other language": 3}
    assert clean([(GERMAN, ENGLISH)], config, "de-AT", "en-GB") == {}


def test_languages_near_to_each_other_are_not_dropped() -> None:
    pytest.importorskip("py3langid")
    danish = "Udvalget mødes igen i den anden uge af september, siger formanden."
    norwegian = "Utvalget møtes igjen i den andre uken i september, sier lederen."
    assert LanguageRule("nb")([norwegian, ENGLISH]) == [1]
    assert LanguageRule("da")([danish, GERMAN]) == [1]


def test_a_language_that_cannot_be_identified_is_an_error() -> None:
    pytest.importorskip("py3langid")
    with pytest.raises(DataError) as caught:
        CleaningRules(CleaningConfig(other_language=True), CorpusLanguages(source="en", target="tlh"))
    assert caught.value.message == "py3langid cannot identify 'tlh'"
    assert caught.value.where == "cleaning.other_language"
    assert caught.value.hint == "switch the rule off: --set cleaning.other_language=false"


def test_the_error_without_py3langid_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "py3langid"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "py3langid", None)
    language_identifier.cache_clear()
    with pytest.raises(DataError) as caught:
        CleaningRules(CleaningConfig(other_language=True), CorpusLanguages(source="en", target="de"))
    assert "py3langid, which is not installed" in caught.value.message
    assert caught.value.hint == "pip install 'nmt-cli[langid]'"
    CleaningRules(CleaningConfig(), CorpusLanguages(source="en", target="de"))
