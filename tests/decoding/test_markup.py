"""Translating markup: by a trained model of a language whose words are translated one by one, in their order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nmt_cli.api import Translator
from nmt_cli.errors import UsageError
from tests.decoding.trained import HELD_OUT

LINES = [source for source, _ in HELD_OUT[:100]]


@pytest.fixture(scope="module", params=["torch", "ctranslate2"])
def by_engine(trained: Path, request: pytest.FixtureRequest) -> Translator:
    pytest.importorskip("ctranslate2")
    return Translator.from_pretrained(trained, device="cpu", engine=request.param)


def test_text_without_its_tags_is_translated_as_ever(by_engine: Translator) -> None:
    plain = by_engine.translate(LINES, nbest=2)
    words = [line.split() for line in LINES]
    lines = [f"<p>{' '.join(['<b>' + line[0] + '</b>', *line[1:]])}<br/></p>" for line in words]
    marked = by_engine.translate(lines, nbest=2, markup="html")
    on_first_word = 0
    for one, other in zip(plain, marked, strict=True):
        assert re.sub("<.*?>", "", other.text) == one.text
        assert [re.sub("<.*?>", "", each.text) for each in other.alternatives] == [a.text for a in one.alternatives]
        assert (other.score, other.num_pieces) == (one.score, one.num_pieces)
        assert re.fullmatch(r"<p>.*<b>.+</b>.*<br/></p>", other.text)
        on_first_word += other.text.startswith("<p><b>" + one.text.split()[0] + "</b>")
    assert on_first_word >= 60  # others begin with a time of several words


def test_addresses_placeholders_and_kept_elements_are_never_changed(by_engine: Translator) -> None:
    kept = ["{0}", "%(name)s", "https://example.com/a?b=1", "me@example.com", "{{ user.name }}", "%1$s", "$1"]
    kept += ["{user.It}", "www.example.com/a!This", f"https://example.com/find?You=1{'&a=b-' * 500}"]
    lines = [f"{line} {word}" for line, word in zip(LINES, kept, strict=False)]
    lines += [f"{word}, {line}" for line, word in zip(LINES, kept, strict=False)]
    for word, translation in zip(kept * 2, by_engine.translate(lines, copy_symbols=True), strict=True):
        assert translation.text.count(word) == 1
    marked = [line.replace(kept[0], "<code class='x'>{0} <i>a</i></code>") for line in lines[:1]]
    assert "<code class='x'>{0} <i>a</i></code>" in by_engine.translate(marked, markup="html")[0].text
    (line,) = by_engine.translate([f"<p>{LINES[0]}<sup>2</sup></p>"], markup="html")
    assert "<sup>2</sup>" in line.text
    (line,) = by_engine.translate([f"<p>{LINES[0]}<sup>2</sup> {LINES[1]}</p>"], markup="html")
    assert line.text.endswith(f"<sup>2</sup> {by_engine.translate(LINES[1:2])[0].text}</p>")
    first, second, rest = LINES[0].split(" ", 2)
    (line,) = by_engine.translate([f"{first} [b]{second}[/b] [I] {rest}"], copy_symbols=True)
    assert re.fullmatch(r"[^\[]*\[b\][^\[]*\[/b\].*", line.text)
    (line,) = by_engine.translate(["{0}: {1}"], copy_symbols=True)
    assert line.text == "{0}: {1}"


def test_what_a_prefix_has_of_them_is_not_put_back_again(by_engine: Translator) -> None:
    plain = by_engine.translate(LINES[:20])
    lines = [f"{{name}}, {line} %s" for line in LINES[:20]]
    prefixes = [f"{{name}}, {one.text.split()[0]}" for one in plain]
    for prefix, one in zip(
        prefixes, by_engine.translate(lines, prefixes=prefixes, copy_symbols=True, word_scores=True), strict=True
    ):
        assert one.text.startswith(prefix)
        assert [one.text.count("{name}"), one.text[len(prefix) :].count("%s")] == [1, 1]
        assert len(one.word_log_probs) == len(one.text.split()) + 1
        assert sum(one.word_log_probs) == pytest.approx(one.log_prob, abs=1e-4)


def test_blocks_and_lines_without_text_stay(translator: Translator) -> None:
    blocks = [f"<li>{LINES[0]}</li>", "<li>12:30</li>", "<li/>"]
    first, *others = translator.translate(["".join(blocks), "", "<!-- a -->"], markup="html")
    assert first.text == f"<li>{translator.translate(LINES[:1])[0].text}</li><li>12:30</li><li/>"
    assert [other.text for other in others] == ["", "<!-- a -->"]


def test_what_goes_with_plain_text_alone_is_refused(translator: Translator) -> None:
    for options, setting in (({"markup": "rtf"}, "markup"), ({"markup": "xml", "alignments": True}, "alignments")):
        with pytest.raises(UsageError) as error:
            translator.translate(LINES[:1], **options)
        assert error.value.setting == setting
