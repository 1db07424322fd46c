"""Lines in capitals and in title case are translated as sentences, those in capitals into capitals."""

from __future__ import annotations

from typing import Any

import pytest

from nmt_cli.api import Translator
from nmt_cli.recipe.schema import TrainedLines
from nmt_cli.tokenization.casing import as_sentence, capitalised, casing_of, in_capitals
from nmt_cli.tokenization.pieces import Link
from tests.decoding.trained import HELD_OUT

LINES = [source for source, _ in HELD_OUT[:40]]


def test_a_line_is_answered_in_its_casing(translator: Translator) -> None:
    plain = [translation.text for translation in translator.translate(LINES)]
    in_capitals = translator.translate([line.upper() for line in LINES], alignments=True)
    assert [translation.text for translation in in_capitals] == [text.upper() for text in plain]
    for line, translation in zip(LINES, in_capitals, strict=True):
        for link in translation.links:
            assert link.source_end <= len(line)
            assert not translation.text[link.target_start : link.target_end].isspace()
    in_title_case = translator.translate([line.title() for line in LINES])
    assert [translation.text for translation in in_title_case] == plain
    first_words = [text.split()[0] for text in plain]
    for prefixes, texts in (
        ([word.upper() for word in first_words], [text.upper() for text in plain]),
        (first_words, plain),
    ):
        begun = translator.translate([line.upper() for line in LINES], prefixes=prefixes)
        assert [translation.text for translation in begun] == texts
    address = "https://example.com/sea"
    (kept,) = translator.translate([f"{LINES[0].upper()[:-1]} {address}"], copy_symbols=True)
    assert address in kept.text
    assert kept.text.replace(address, "").isupper()


def test_a_model_that_saw_many_such_lines_reads_them_as_they_are(translator: Translator) -> None:
    trained = TrainedLines(several_sentences=0.0, in_capitals=0.02, usual_longest=20)
    options: dict[str, Any] = {"tokenizer": translator._engine.source, "language": "en", "trained": trained}
    assert as_sentence("THE OLD SEA", [], **options) == ("THE OLD SEA", None)
    assert as_sentence("The Old Sea Is Here", [], **options) == ("The old sea is here", "title")


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("STOP! DON'T GO.", "en", "capitals"),
        ("WARNING", "en", "capitals"),
        ("NATO", "en", None),
        ("ВНИМАНИЕ, ОСТОРОЖНО", "ru", "capitals"),
        ("The Old Man of the Sea Rides Home", "en", "title"),
        ("Der Hund Und Die Katze", "de", None),
        ("John Smith", "en", None),
        ("The sea is old in Berlin.", "en", None),
        ("Is Tom in Boston?", "en", None),
        ("Is Tom in Boston, Mary?", "en", None),
        ("海が古い", "ja", None),
        ("アメリカのNASAとJAXAが協力する", "ja", None),
        ("UNESCO는 파리에 본부를 두고 있다.", "ko", None),
        ("ארגון UNESCO הודיע היום כי", "he", None),
        ("वह IBM और NASA में काम करता है।", "hi", None),
        ("12:30", "en", None),
    ],
)
def test_casing_of_a_text(text: str, language: str, expected: str | None) -> None:
    assert casing_of(text, language) == expected


def test_capitals_are_those_of_the_language_and_move_links() -> None:
    links = [Link(0, 3, 0, 6), Link(4, 7, 7, 10)]
    assert in_capitals("Straße ist", links, [], "de") == (
        "STRASSE IST",
        [Link(0, 3, 0, 7), Link(4, 7, 8, 11)],
    )
    assert in_capitals("iki kız", [], [], "tr")[0] == "İKİ KIZ"
    assert in_capitals("τελευταία νέα", [], [], "el")[0] == "ΤΕΛΕΥΤΑΙΑ ΝΕΑ"
    assert in_capitals("sieh {name} an", [], [(5, 11)], "de")[0] == "SIEH {name} AN"


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("iyi", "tr", "İyi"),
        ("ijs", "nl", "IJs"),
        ("სადგური", "ka", "სადგური"),
        ("eBay", "de", "eBay"),
        ("éa", "fr", "Éa"),
    ],
)
def test_the_first_letter_of_a_sentence_is_that_of_the_language(text: str, language: str, expected: str) -> None:
    assert capitalised(text, language) == expected
