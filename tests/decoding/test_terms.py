"""Terms: lists of them, where they stand in text, and translations that must have them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.api import Translator
from nmt_cli.decoding.placed_terms import beginnings_with_terms
from nmt_cli.decoding.terms import TermList, missing_terms
from nmt_cli.errors import DataError, UsageError
from nmt_cli.tokenization.pieces import Link
from tests.artifacts.builders import save_tiny, tiny_recipe
from tests.decoding.trained import HELD_OUT


def table(tmp_path: Path, text: str, name: str = "terms.tsv") -> Path:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / name


def found(terms: dict[str, Sequence[str]], text: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(text[one.start : one.end], one.targets) for one in TermList(terms).find(text)]


@pytest.mark.parametrize(
    ("terms", "text", "expected"),
    [
        ({"house": ["Haus"]}, "a house, the houses, a house-boat, house- and home", [("house", ("Haus",))] * 2),
        ({"house-boat": ["Boot"]}, "a house-boat", [("house-boat", ("Boot",))]),
        ({"house": ["Haus"]}, "HOUSE and House", []),  # as typed, inside a sentence
        ({"house": ["haus"]}, "House! “House” is it.", [("House", ("haus",)), ("House", ("haus",))]),
        ({"York": ["Y"], "New York": ["NY"]}, "New York and York", [("New York", ("NY",)), ("York", ("Y",))]),
        ({"a b": ["1"], "b c d": ["2"]}, "a b c d", [("b c d", ("2",))]),  # the longest ones first
        ({"New  York": ["NY"]}, "in New\tYork", [("New\tYork", ("NY",))]),
        ({"C++": ["C++"], "%": ["Prozent"]}, "C++ is 5% of it", [("C++", ("C++",)), ("%", ("Prozent",))]),
        ({"O'Neil": ["O"], "e-mail": ["E"]}, "O’Neil's e‑mail", [("O’Neil", ("O",)), ("e‑mail", ("E",))]),
        ({"中国": ["China"]}, "我爱中国人", [("中国", ("China",))]),
        ({"हिन्द": ["x"]}, "हिन्दी", []),  # its vowel signs belong to a word
        ({"small": ["klein"]}, "Dr. Small is here", []),  # a name, after an abbreviation
        ({"New": ["N"], "New York": ["NY"]}, "the New", [("New", ("N",))]),  # the longer one would go beyond the end
        ({"new": ["N"], "new york": ["NY"]}, "New", [("New", ("N",))]),
        ({}, "nothing", []),
    ],
)
def test_terms_are_found_as_whole_words(
    terms: dict[str, Sequence[str]], text: str, expected: list[tuple[str, tuple[str, ...]]]
) -> None:
    assert found(terms, text) == expected


def test_each_place_in_a_translation_counts_for_one_term() -> None:
    occurrences = TermList({"house": ["Haus", "Hauses"], "New York": ["New York"], "york": ["York"]})
    text = "house and house in New York by york"
    assert missing_terms(occurrences.find(text), "des Hauses und das Haus in New York bei York") == []
    assert missing_terms(occurrences.find(text), "das Haus in New York") == [1, 3]
    assert missing_terms(occurrences.find("house"), "Haustür und Gartenhaus") == [0]


def test_a_list_is_read_from_tsv_and_csv(tmp_path: Path) -> None:
    expected = [("big house", ("Villa", "Villen")), ("cat", ("Katze",))]
    for name, text in {
        "a.tsv": "\ufeffsrc\ttgt\nbig house\tVilla|Villen\r\n\r\ncat\tKatze\n",
        "b.csv": 'Source;Target\nbig house;Villa|Villen\n"cat";"Katze"\ncat;Katze\n',
        "c.csv": 'cat,Katze\n"big\nhouse",Villa | Villen\n',
        "d.csv": "Target,Source\nVilla|Villen,big house\nKatze,cat\n",
        "e.csv": "so, so;mäßig\nbig house;Villa|Villen\ncat;Katze\n",
    }.items():
        terms = TermList.read(table(tmp_path, text, name))
        text = "a big house, a cat"
        assert [(text[one.start : one.end], one.targets) for one in terms.find(text)] == expected
        assert len(terms) == 2 + (name == "e.csv")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a\tb\n\n\tc\n", 3, "empty term"),
        ("a\tb\nc\t \n", 2, "empty translation"),
        ("a\tb|\n", 1, "empty translation"),
        ("a\tb\nc\td\na\te\n", 3, "translates 'a' by 'e', but it is 'b' in line 1"),
        ("a\tb\nword\n", 2, "1 column,"),
        ("a\tb\tc\n", 1, "3 columns"),
    ],
)
def test_a_wrong_list_is_refused_with_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as error:
        TermList.read(table(tmp_path, text))
    assert error.value.where == f"{tmp_path / 'terms.tsv'}:{line}"


def test_a_byte_that_is_not_utf8_is_named_with_its_line_behind_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_bytes(b"\xef\xbb\xbfa\tb\n\xff\tc\n")
    with pytest.raises(DataError, match="line 2 is not UTF-8: it has the byte 0xff"):
        TermList.read(tmp_path / "terms.tsv")


def test_a_list_without_terms_is_refused(tmp_path: Path) -> None:
    for text in ("", "source\ttarget\n\n"):
        with pytest.raises(DataError, match="there are no terms in"):
            TermList.read(table(tmp_path, text))


def test_a_hundred_thousand_terms_are_quick(tmp_path: Path) -> None:
    rows = [f"the term {number} of {number % 97}\tder Begriff {number}" for number in range(100_000)]
    started = time.process_time()
    terms = TermList.read(table(tmp_path, "\n".join(rows)))
    text = " ".join(f"and the term {number} of {number % 97}" for number in range(0, 100_000, 50))
    assert len(terms.find(text)) == 2000
    assert time.process_time() - started < 20


def test_a_term_that_is_there_stays_between_the_words_of_another() -> None:
    links = linked(("sees", "der"), ("dog", "Hund"), ("sees", "sieht"))
    terms = TermList({"dog": ["Hund"], "sees": ["schaut"]}).find(SOURCE)
    assert [*beginnings_with_terms(FREE, links, terms, num_fixed=0, num_more=1)] == ["schaut Hund"]


def test_a_blank_term_is_refused(translator: Translator) -> None:
    for blank in ({" ": "x"}, {"dog": ""}, {"dog": ["Hund", " "]}):
        with pytest.raises(DataError, match="terms has an empty"):
            translator.translate(["the dog"], terms=blank)


def test_a_term_may_begin_the_translation_of_a_line_that_it_does_not_begin(translator: Translator) -> None:
    line = "my sister paints the moon now."
    (free,) = translator.translate([line])
    (first, *_) = free.text.split()
    (bound,) = translator.translate([line], terms={"now": first.lower()})
    assert (bound.text, bound.unmet_terms) == (free.text, ())


def test_a_term_is_set_apart_from_words_as_its_script_is() -> None:
    (dog,) = TermList({"dog": ["Köter"]}).find("dog")
    (man,) = TermList({"man": ["先生"]}).find("man")
    assert [*beginnings_with_terms("Ein Hund.", [], [dog], num_fixed=0, num_more=1)] == ["Köter Ein"]
    links = [Link(0, 3, 2, 4)]
    assert [*beginnings_with_terms("一个男人在街上。", links, [man], num_fixed=0, num_more=0)] == ["一个先生"]


def test_terms_stay_out_of_kept_text_and_of_other_names(translator: Translator) -> None:
    terms = TermList({"dog": ["Köter"], "ebay": ["eBay"]})
    (line,) = translator.translate(['a <b translate="no">dog</b> sees a dog'], terms=terms, markup="html")
    assert line.text.count("Köter") == 1
    assert '<b translate="no">dog</b>' in line.text
    capitals = TermList({"Red Dog": ["Roter Köter"]})
    (line,) = translator.translate(["THE RED DOG SEES A HOUSE"], terms=capitals)
    assert "ROTER KÖTER" in line.text
    (line,) = translator.translate(["THE RED DOG SEES A HOUSE {0}"], terms=capitals, copy_symbols=True)
    assert "ROTER KÖTER" in line.text
    assert "{0}" in line.text
    unlike = TermList({"US": "USA", "us": "uns", "Dog": "Hund", "dog": "Hund"})
    assert [one.targets for one in unlike.find_without_case("THE DOG SEES US")] == [("Hund",)]
    (ebay,) = terms.find("Ebay sells dogs")
    assert (ebay.term, ebay.targets) == ("ebay", ("eBay",))


SOURCE, FREE = "the dog sees a bicycle", "der Hund sieht ein Fahrrad."


def linked(*pairs: tuple[str, str]) -> list[Link]:
    """Links between words of `SOURCE` and `FREE`."""
    return [
        Link(start := SOURCE.index(source), start + len(source), other := FREE.index(target), other + len(target))
        for source, target in pairs
    ]


@pytest.mark.parametrize(
    ("terms", "num_more", "expected"),
    [
        ({"bicycle": ["Velo"]}, 0, ["der Hund sieht ein Velo."]),
        ({"bicycle": ["Velo"]}, 1, ["der Hund sieht ein Velo."]),
        ({"dog": ["Köter"], "bicycle": ["Velo"]}, 0, ["der Köter sieht ein Velo."]),
        ({"dog": ["Hunde", "Köter"]}, 1, ["der Hunde sieht", "der Köter sieht"]),
        ({"the dog": ["Bello"]}, 0, ["Bello"]),
        ({"a": ["(irgend)ein"]}, 0, ["der Hund sieht (irgend)ein"]),  # no link: after the word before
        ({"dog": ["Hund"], "sees": ["schaut"]}, 0, ["der Hund schaut"]),
        ({"the": ["dieser"]}, 0, ["dieser"]),
        ({"dog": ["Zeta"], "a": ["Alpha"]}, 1, ["der Zeta sieht Alpha ein"]),
    ],
)
def test_missing_terms_take_the_places_of_the_words_that_translate_theirs(
    terms: dict[str, Sequence[str]], num_more: int, expected: list[str]
) -> None:
    links = linked(("the", "der"), ("dog", "Hund"), ("sees", "sieht"), ("bicycle", "Fahrrad"))
    found = TermList(terms).find(SOURCE)
    assert [*beginnings_with_terms(FREE, links, found, num_fixed=0, num_more=num_more)] == expected


TERMS = {"dog": ["Köter"], "house": ["Gebäude", "Häuschen"], "bread": ["Brot"], "nobody": ["kein Mensch"]}


@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"nbest": 2}, {"mbr": "chrf"}, {"stop_loops": True}])
def test_a_translation_has_its_terms_and_otherwise_stays(translator: Translator, options: dict[str, Any]) -> None:
    lines, terms = [source for source, _ in HELD_OUT[:60]], TermList(TERMS)
    free = translator.translate(lines, **options)
    bound = translator.translate(lines, terms=terms, **options)
    num_changed = 0
    for line, before, after in zip(lines, free, bound, strict=True):
        occurrences = terms.find(line)
        for translation in (after, *after.alternatives):
            assert not missing_terms(occurrences, translation.text)
            assert translation.unmet_terms == ()
        if not (options.keys() & {"nbest", "mbr"} or missing_terms(occurrences, before.text)):
            assert after == before
        num_changed += after.text != before.text
    assert num_changed > 5


def test_what_cannot_be_met_is_told(translator: Translator) -> None:
    terms = TermList({"dog": ["Hund " * 200], "house": ["Haus"]})
    (translation,) = translator.translate(["the dog sees a house. nobody sees the dog."], terms=terms)
    assert translation.unmet_terms == ("dog", "dog")
    assert "Haus" in translation.text


def test_a_prefix_counts_and_samples_are_refused(translator: Translator) -> None:
    terms = TermList({"dog": ["Köter"]})
    (translation,) = translator.translate(["the dog sees a house"], prefixes=["der Köter"], terms=terms)
    assert translation.text.startswith("der Köter ")
    assert translation.text.count("Köter") == 1
    with pytest.raises(UsageError) as error:
        translator.translate(["the dog"], terms=terms, samples=2)
    assert error.value.setting == "terms"


def test_a_term_of_a_script_without_spaces_stands_anywhere(tmp_path: Path) -> None:
    save_tiny(tmp_path / "model", spm_folder=tmp_path, recipe=tiny_recipe(), languages="en-zh")
    model = Translator.from_pretrained(tmp_path / "model", device="cpu")
    (translation,) = model.translate(["a small house"], terms=TermList({"house": ["房子"]}))
    assert "房子" in translation.text
    assert translation.unmet_terms == ()
