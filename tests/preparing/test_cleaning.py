from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from nmt_cli.errors import DataError
from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.cleaning.rules import (
    EXAMPLES_PER_REASON,
    REASONS,
    CleaningCounts,
    CleaningRules,
    KeptPairs,
)
from nmt_cli.preparing.cleaning.side_rules import ScriptRule
from nmt_cli.preparing.corpus import CleaningConfig
from nmt_cli.preparing.sources.base import CorpusLanguages
from nmt_cli.text_encoding import is_unicode
from nmt_cli.tokenization.white_space import normalize_spaces

Pairs = list[tuple[str, str]]

EN_DE = CorpusLanguages(source="en", target="de")
OFF: dict[str, Any] = {
    "max_words": None,
    "max_characters": None,
    "max_length_ratio": None,
    "identical_sides": False,
    "control_characters": False,
    "duplicates": False,
}
# What a careful reader would say of each pair, by hand.
JUDGED: list[tuple[str | None, str, str]] = [
    (None, "A dog runs.", "Ein Hund rennt."),
    ("empty", "", "Nichts."),
    ("empty", "Nothing.", " \u00a0 "),
    ("empty", "", ""),  # and not: identical sides
    ("too long", "a " * 251, "b " * 120),
    (None, "a " * 250, "b " * 240),
    ("too long", "a\u00a0" * 251, "b " * 240),  # a no-break space parts words too
    ("too long", "x" * 2001, "y" * 2000),
    (None, "x" * 2000, "y" * 2000),
    (None, "\U0001f600" * 2000, "y" * 2000),  # characters, not bytes
    ("length ratio", "By the way, what is this?", "Was?"),
    (None, "abcdefghi", "abc"),  # exactly 3
    ("length ratio", "abcdefghij", "abc"),
    ("identical sides", "Copyright 2014", "Copyright 2014"),
    ("identical sides", " Copyright 2014", "Copyright  2014 "),
    ("invalid UTF-8", b"caf\xe9 is closed".decode("utf-8", "surrogateescape"), "Das Café ist zu"),
    ("invalid UTF-8", "half a character", "\ud83d"),
    ("control characters", "bell\x07 rings", "Glocke läutet"),
    ("control characters", "it costs 5 \x80", "es kostet 5 €"),
    ("control characters", "a\ttab inside", "ein Tabulator"),
    ("line break", "one\nline too many", "eine Zeile"),
    ("line break", "one line", "eine\r\nZeile"),
    (None, "line ends outside\n", "enden außen\r\n"),
    (None, "A dog runs.", "Ein Hund läuft."),
    (None, "zero\u200bwidth, line\u2028separator", "ist kein Steuerzeichen"),
    (None, "...", "…!"),  # the rules for these are off
]
DROPPED = {reason: sum(1 for judged, _, _ in JUDGED if judged == reason) for reason in REASONS}


def chunk(pairs: Pairs, *, first_line: int = 1) -> Chunk:
    return Chunk([src for src, _ in pairs], [tgt for _, tgt in pairs], first_line, "train.en")


def apply(pairs: Pairs, *, languages: CorpusLanguages = EN_DE, **config: Any) -> KeptPairs:
    return CleaningRules(CleaningConfig(**config), languages).apply(chunk(pairs))


def dropped_from(pairs: Pairs, languages: tuple[str, str] = ("en", "de"), **config: Any) -> dict[str, int]:
    """The number of pairs dropped for each reason."""
    counts = apply(pairs, languages=CorpusLanguages(source=languages[0], target=languages[1]), **config).counts
    return {reason: dropped.count for reason, dropped in counts.dropped.items() if dropped.count}


def reason_of(src: str, tgt: str, **config: Any) -> str | None:
    """Why a single pair is dropped by these rules alone."""
    return next(iter(dropped_from([(src, tgt)], **{**OFF, **config})), None)


def test_every_pair_is_judged_as_by_hand() -> None:
    cleaned = apply([(src, tgt) for _, src, tgt in JUDGED])
    kept = [(src.strip(), tgt.strip()) for judged, src, tgt in JUDGED if judged is None]
    assert list(zip(cleaned.src, cleaned.tgt, strict=True)) == kept
    assert cleaned.indices == [index for index, (judged, _, _) in enumerate(JUDGED) if judged is None]
    assert {reason: dropped.count for reason, dropped in cleaned.counts.dropped.items()} == DROPPED
    assert (cleaned.counts.read, cleaned.counts.kept) == (len(JUDGED), len(kept))
    assert cleaned.counts.tidied == 2


def test_examples_are_the_first_and_name_their_line() -> None:
    rules, counts = CleaningRules(CleaningConfig(), EN_DE), CleaningCounts()
    counts.add(rules.apply(chunk([("good", "gut"), ("", "a")], first_line=101)).counts)
    counts.add(rules.apply(chunk([("", f"{number}") for number in range(9)], first_line=201)).counts)
    examples = counts.dropped["empty"].examples
    assert [example.where for example in examples] == ["train.en:102", "train.en:201", "train.en:202"]
    assert len(examples) == EXAMPLES_PER_REASON
    assert [example.target for example in examples] == ["a", "0", "1"]
    assert counts.dropped["empty"].count == 10


def test_examples_show_what_cannot_be_printed() -> None:
    counts = apply([(b"caf\xe9".decode("utf-8", "surrogateescape"), "\ud83d"), ("a\x00b", "x" * 500)]).counts
    invalid, control = (counts.dropped[reason].examples[0] for reason in ("invalid UTF-8", "control characters"))
    assert (invalid.source, invalid.target) == ("caf\\xe9", "\\ud83d")
    assert control.source == "a\\x00b"
    assert control.target == "x" * 160 + " …"


def test_malformed_records_are_counted_with_what_was_read() -> None:
    broken = Chunk(["a b", "{not json"], ["c d", ""], 1, "train.jsonl", frozenset({1}))
    cleaned = CleaningRules(CleaningConfig(), EN_DE).apply(broken)
    assert (cleaned.src, cleaned.tgt, cleaned.indices) == (["a b"], ["c d"], [0])
    assert cleaned.counts.dropped["malformed record"].count == 1
    assert cleaned.counts.dropped["malformed record"].examples[0].source == "{not json"


@pytest.mark.parametrize(
    ("languages", "src", "tgt", "is_kept"),
    [
        (("en", "zh"), "I would like to book a table for four.", "我想订一张四人桌。", True),
        (("en", "ja"), "Internationalisation is hard.", "国際化は難しい。", True),
        (("en", "zh"), "Yes, and here comes something else altogether.", "是的。", False),
        (("zh", "ja"), "好。", "はい、わかりました。ありがとうございます。", False),
        (("en", "th"), "Thank you very much, my dear old friend.", "ขอบคุณมาก", False),
        (("zh_Latn", "en"), "Nǐ hǎo!", "Hello there, my dear old friend!", False),
    ],
)
def test_the_length_ratio_follows_the_scripts(languages: tuple[str, str], src: str, tgt: str, is_kept: bool) -> None:
    assert dropped_from([(src, tgt)], languages) == ({} if is_kept else {"length ratio": 1})


def test_rules_that_are_off_drop_nothing() -> None:
    counts = apply([(src, tgt) for _, src, tgt in JUDGED], **OFF).counts
    always = DROPPED["empty"] + DROPPED["invalid UTF-8"] + DROPPED["line break"]
    assert counts.read - counts.kept == always


@pytest.mark.parametrize(
    ("src", "tgt", "config", "reason"),
    [
        ("one two", "eins zwei", {"min_words": 2}, None),
        ("one", "eins zwei", {"min_words": 2}, "too short"),
        ("one\u2003two", "eins zwei", {"min_words": 2}, None),
        ("one", "eins zwei", {"min_words": 2, "max_word_ratio": 1.0}, "too short"),  # the first reason counts
        ("abc", "abcd", {"min_characters": 4}, "too short"),
        ("a b c d", "efgh", {"max_word_ratio": 4.0}, None),
        ("a b c d e", "efgh", {"max_word_ratio": 4.0}, "length ratio"),
        ("!", "?", {"punctuation_only": True}, "punctuation only"),
        ("Yes!", "👍🏽 →", {"punctuation_only": True}, "punctuation only"),
        ("§ 5", "(5)", {"punctuation_only": True}, None),
        ("«ça»", "...é", {"punctuation_only": True}, None),
        ("http://a.de/x?y=1", "siehe http://a.de", {"url_only": True}, "URL only"),
        ("see http://a.de", "siehe http://a.de", {"url_only": True}, None),
        ("(WWW.example.org)", "text", {"url_only": True}, "URL only"),
        ("http://a.de now", "text", {"url_only": True}, None),
        ("http://" * 400 + " x", "text", {"url_only": True}, None),  # in linear time
        ("a.....b", "text", {"max_repeated_characters": 5}, None),
        ("a......b", "text", {"max_repeated_characters": 5}, "repeated characters"),
        ("text", "😀" * 6, {"max_repeated_characters": 5}, "repeated characters"),
        ("ababababab", "abcabcabcabc", {"max_repeated_characters": 1}, None),
    ],
)
def test_further_rules_judge_as_by_hand(src: str, tgt: str, config: dict[str, Any], reason: str | None) -> None:
    assert reason_of(src, tgt, **config) == reason
    # Whichever side it is, and wherever the pair stands.
    assert reason_of(tgt, src, **config) == reason
    others = [("two words", "zwei Wörter")] * 3
    cleaned = apply([*others, (src, tgt), *others, (tgt, src)], **{**OFF, **config})
    assert cleaned.counts.kept == 6 + 2 * (reason is None)


def test_a_run_does_not_reach_from_one_text_into_the_next() -> None:
    cleaned = apply([("xaaa", "b"), ("aaax", "b"), ("aaaa", "b")], **{**OFF, "max_repeated_characters": 3})
    assert cleaned.src == ["xaaa", "aaax"]
    assert cleaned.counts.dropped["repeated characters"].examples[0].where == "train.en:3"


def test_bounds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValidationError, match="min_words is 9, above max_words, which is 5"):
        CleaningConfig(min_words=9, max_words=5)
    with pytest.raises(ValidationError, match="min_characters is 2001, above max_characters, which is 2000"):
        CleaningConfig(min_characters=2001)
    assert CleaningConfig(min_words=5, max_words=5).min_words == 5


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


def test_each_side_has_its_own_script() -> None:
    pairs = [("a book", "книга"), ("книга", "a book"), ("book", "book!"), ("книга", "книга!")]
    for languages in (("en", "ru"), ("ru", "en")):
        assert dropped_from(pairs, languages, other_script=True) == {"other script": 3}


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
    for languages in (("en", "de"), ("eng_Latn", "deu_Latn")):
        assert dropped_from(pairs, languages, other_language=True) == {"other language": 3}
    assert dropped_from([(GERMAN, ENGLISH)], ("de-AT", "en-GB"), other_language=True) == {}


def test_a_language_that_cannot_be_identified_is_an_error() -> None:
    pytest.importorskip("py3langid")
    with pytest.raises(DataError) as caught:
        dropped_from([], ("en", "tlh"), other_language=True)
    assert caught.value.message == "py3langid cannot identify 'tlh'"
    assert caught.value.where == "cleaning.other_language"
    assert caught.value.hint == "switch the rule off: --set cleaning.other_language=false"


def test_the_error_without_py3langid_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid", None)
    with pytest.raises(DataError) as caught:
        dropped_from([], ("en", "de"), other_language=True)
    assert "py3langid, which is not installed" in caught.value.message
    assert caught.value.where == "cleaning.other_language"
    assert caught.value.hint == "pip install 'nmt-cli[langid]'"
    assert dropped_from([], ("en", "de")) == {}


# Texts that come near every rule; also surrogates, white space of all kinds, combining and astral characters.
TEXTS = st.text(st.sampled_from("ab.5 \u00a0\u2003\n\t\x85\ud800äжの👍\u0301/:w"), max_size=12)
CONFIGS = st.builds(
    CleaningConfig,
    min_words=st.sampled_from([None, 1, 2]),
    max_words=st.sampled_from([None, 2, 3]),
    min_characters=st.sampled_from([None, 2]),
    max_characters=st.sampled_from([None, 6]),
    max_length_ratio=st.sampled_from([None, 1.5]),
    max_word_ratio=st.sampled_from([None, 1.5]),
    identical_sides=st.booleans(),
    control_characters=st.booleans(),
    punctuation_only=st.booleans(),
    url_only=st.booleans(),
    max_repeated_characters=st.sampled_from([None, 1, 2]),
    other_script=st.booleans(),
)
PAIRS = st.lists(st.tuples(TEXTS, TEXTS), max_size=12)


@settings(max_examples=300)
@given(pairs=PAIRS, config=CONFIGS)
def test_what_is_kept_breaks_no_rule_and_counts_add_up(pairs: Pairs, config: CleaningConfig) -> None:
    cleaned = CleaningRules(config, EN_DE).apply(chunk(pairs))
    kept = list(zip(cleaned.src, cleaned.tgt, strict=True))
    assert kept == [(normalize_spaces(pairs[index][0]), normalize_spaces(pairs[index][1])) for index in cleaned.indices]
    assert cleaned.counts.tidied == sum(pair != pairs[index] for pair, index in zip(kept, cleaned.indices, strict=True))
    for src, tgt in kept:
        lengths = sorted(len(side) for side in (src, tgt))
        words = sorted(len(side.split()) for side in (src, tgt))
        assert lengths[0] >= max(1, config.min_characters or 0)
        assert words[0] >= (config.min_words or 0)
        assert lengths[1] <= (config.max_characters or 99)
        assert words[1] <= (config.max_words or 99)
        assert lengths[1] <= (config.length_ratio(EN_DE) or 99) * lengths[0]
        assert words[1] <= (config.max_word_ratio or 99) * words[0]
        assert src != tgt or not config.identical_sides
        for side in (src, tgt):
            assert is_unicode(side)
            assert "\n" not in side
            assert not config.control_characters or not {"\t", "\x85"} & {*side}
            assert not config.punctuation_only or any(letter.isalnum() for letter in side)
            run = config.max_repeated_characters
            assert run is None or all(letter * (run + 1) not in side for letter in side)
            assert not config.other_script or 2 * sum(map(side.count, "жの")) <= sum(map(side.count, "abäwжの"))
    assert cleaned.counts.kept == len(kept)
    assert cleaned.counts.read == len(pairs)
    for dropped in cleaned.counts.dropped.values():
        assert len(dropped.examples) == min(dropped.count, EXAMPLES_PER_REASON)


@given(pairs=PAIRS, config=CONFIGS, cut=st.integers(0, 12))
def test_a_chunk_is_cleaned_as_its_pieces_are(pairs: Pairs, config: CleaningConfig, cut: int) -> None:
    rules = CleaningRules(config, EN_DE)
    whole = rules.apply(chunk(pairs))
    pieces = [rules.apply(chunk(pairs[:cut])), rules.apply(chunk(pairs[cut:], first_line=1 + min(cut, len(pairs))))]
    counts = CleaningCounts()
    for piece in pieces:
        counts.add(piece.counts)
    assert counts == whole.counts
    assert [*pieces[0].src, *pieces[1].src] == whole.src
    assert [*pieces[0].tgt, *pieces[1].tgt] == whole.tgt


@given(pairs=PAIRS, config=CONFIGS)
def test_each_pair_counts_for_the_first_rule_that_drops_it(pairs: Pairs, config: CleaningConfig) -> None:
    """Asked alone, every rule that is on may drop a pair; of those that do, the first in the list gets the count."""
    on = {key: value for key, value in config.model_dump().items() if value not in (None, False)}
    expected = dict.fromkeys(REASONS, 0)
    for pair in pairs:
        alone = {reason_of(*pair, **{key: value}) for key, value in on.items() if not key.startswith(("dup", "over"))}
        alone |= {reason_of(*pair)}
        if first := next((reason for reason in REASONS if reason in alone), None):
            expected[first] += 1
    counts = CleaningRules(config, EN_DE).apply(chunk(pairs)).counts
    assert {reason: dropped.count for reason, dropped in counts.dropped.items()} == expected


def test_the_guide_has_a_row_for_each_reason_with_the_keys_of_its_rule() -> None:
    guide = (Path(__file__).parents[2] / "docs/how-to/clean-data.md").read_text(encoding="utf-8")
    table = guide.partition("| counted as |")[2].partition("\n\n")[0].splitlines()[2:]
    rows: dict[str, tuple[str, ...]] = {}
    for name, keys in ([cell.strip() for cell in row.split("|")[1:3]] for row in table):
        name = name or [*rows][-1]  # a second row of the same reason
        rows[name] = (*rows.get(name, ()), *re.findall(r"`cleaning\.(\w+)`", keys))
    assert [*rows.items()] == [(name, reason.keys) for name, reason in REASONS.items()]
    assert {key for keys in rows.values() for key in keys} == {*CleaningConfig.model_fields}


@given(text=st.text())
def test_tidying_only_touches_space(text: str) -> None:
    tidied = normalize_spaces(text)
    assert tidied.split() == text.split()
    assert normalize_spaces(tidied) == tidied
    assert "  " not in tidied
