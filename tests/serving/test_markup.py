"""Text with tags through all APIs: every tag comes back, and the words are those of the plain text."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import deepl
import pytest

from nmt_cli.api import Translator
from tests.serving.servers import FORM, Server
from tests.serving.test_clients import translate_text

_TAG = re.compile(r"<[^<>]*>")
PLAIN = "the old sea stands by a small house"
MARKED = [
    "the <b>old</b> sea stands by a <i class='x'>small</i> house",
    '<a href="/x?a=1&amp;b=2">the old <em>sea</em></a> stands by a small house',
    "the old sea<wbr/> stands by a small house<img src=x>",
    "<b>the old sea stands</b> by a small house",
    # Crossed, unclosed and never opened.
    "the <b>old <i>sea</b> stands</i> by a small house",
    "the old <b>sea stands by a small house",
]


def translated(server: Server, text: str, kind: str) -> list[str]:
    """The answers of all three APIs."""
    own = {"text": text, "source": "en", "target": "de", "format": kind}
    found = [server.post("/v1/translate", own).json["translations"][0]["text"]]
    asked = {"text": text, "source_lang": "EN", "target_lang": "DE", "tag_handling": kind}
    found.append(server.post("/v2/translate", asked).json["translations"][0]["text"])
    if kind == "html":
        libre = {"q": text, "source": "en", "target": "de", "format": "html"}
        found.append(server.post("/translate", libre).json["translatedText"])
    return found


@pytest.mark.parametrize("kind", ["html", "xml"])
@pytest.mark.parametrize("text", MARKED)
def test_each_tag_comes_back_as_it_was_around_the_words_of_the_plain_text(
    server: Server, translator: Translator, kind: str, text: str
) -> None:
    expected = translator.translate([PLAIN])[0].text
    for found in translated(server, text, kind):
        assert sorted(_TAG.findall(found)) == sorted(_TAG.findall(text))
        assert html.unescape(_TAG.sub("", found)) == expected


def test_blocks_are_translated_one_by_one_and_what_is_no_text_stays(server: Server, translator: Translator) -> None:
    first, second = (html.escape(one.text, quote=False) for one in translator.translate(["the sea", "a small house"]))
    shape = (
        "<!DOCTYPE html><html><head><style>p > b {{}}</style><!-- the old sea --></head>\n<body>\n  <p id=1>{}</p>\n"
        "<script>if (a < b) the('sea');</script><ul><li>{}</li></ul><pre>the  sea</pre></body></html>\n"
    )
    sent = shape.format("the sea", "a small house")
    assert translated(server, sent, "html") == [shape.format(first, second)] * 3


@pytest.mark.parametrize(
    "kept",
    [
        '<span translate="no">Old. Sea</span>',
        "<span class='a notranslate'>old sea</span>",
        "<code>x. Y &lt;b&gt; z</code>",
        "<code> the sea</code>",
    ],
)
def test_what_is_not_to_be_translated_stays_in_its_sentence(server: Server, kept: str) -> None:
    for text in (f"the house by {kept} stands", f"The house stands. {kept} stands by a house.", f"the sea. {kept}, 5."):
        for found in translated(server, text, "html"):
            assert found.count(kept) == 1
            inside = html.unescape(_TAG.sub("", kept)).strip()
            assert html.unescape(_TAG.sub("", found)).count(inside) == 1


def test_alternatives_and_sentences_have_their_markup_and_their_plain_text(server: Server) -> None:
    asked = {"q": MARKED[0], "source": "en", "target": "de", "format": "html", "alternatives": 1}
    answer = server.post("/translate", asked).json
    for text in (answer["translatedText"], *answer["alternatives"]):
        assert sorted(_TAG.findall(text)) == sorted(_TAG.findall(MARKED[0]))
    own = {"text": f"<p>{MARKED[0]}</p><p>the sea</p>", "source": "en", "target": "de", "format": "html", "nbest": 2}
    (found,) = server.post("/v1/translate", own).json["translations"]
    assert [sentence["source"] for sentence in found["sentences"]] == [PLAIN, "the sea"]
    assert "<" not in found["sentences"][0]["text"]
    assert found["score"] == pytest.approx(sum(sentence["score"] for sentence in found["sentences"]))
    assert found["alternatives"][0]["text"].startswith("<p>")
    assert found["sentences"][0].keys() == {
        "text",
        "score",
        "log_prob",
        "source",
        "alternatives",
        "alignment",
        "unmet_terms",
    }


def test_deepls_tags_say_what_is_ignored_and_what_splits(server: Server, translator: Translator) -> None:
    client = deepl.DeepLClient("any", server_url=server.url)

    def translate(text: str, **options: Any) -> str:
        result = translate_text(client, text, source_lang="EN", target_lang="DE", tag_handling="xml", **options)
        return result.text

    sea, house, both = (one.text for one in translator.translate(["the old sea", "a house", "the old sea a house"]))
    assert translate("<d><t>the old sea</t><t>a house</t></d>") == f"<d><t>{sea}</t><t>{house}</t></d>"
    ignored = translate("the old sea <x>a house</x> <y id='1'/>", ignore_tags="x,z")
    assert "<x>a house</x>" in ignored
    joined = translate("<d><t>the old sea</t> <t>a house</t></d>", outline_detection=False)
    assert _TAG.sub("", joined) == both
    inline = translate("<d><t>the old sea</t> <t>a house</t></d>", non_splitting_tags=["t"])
    assert _TAG.sub("", inline) == both
    split = translate("the old sea <t>a house</t>", splitting_tags=["t"])
    assert split == f"{sea} <t>{house}</t>"
    assert translate("<d><t>the old\nsea</t></d>", split_sentences="nonewlines") == f"<d><t>{sea}</t></d>"
    result = translate_text(client, "<b>the sea</b>", source_lang="EN", target_lang="DE", tag_handling="html")
    assert result.billed_characters == len("the sea")


def test_a_text_in_the_targets_language_comes_back_as_it_is(server: Server) -> None:
    text = "<p>Das <b>Haus</b> steht am &auml;lteren Meer, und das ist&nbsp;so.</p>"
    answer = server.post("/translate", {"q": text, "source": "auto", "target": "de", "format": "html"}).json
    assert html.unescape(answer["translatedText"]) == html.unescape(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("<b>" * 10_000 + "the sea" + "</b>" * 10_000, id="nested"),
        pytest.param("<p>" * 10_000 + "the sea", id="unclosed"),
        pytest.param("<b>a</b> " * 2000, id="many"),
        pytest.param("<i/>" * 20_000 + "the sea", id="empty"),
        pytest.param("<" * 9000, id="angles"),
        pytest.param("<a b='" * 200, id="quotes"),
        pytest.param(
            '<!DOCTYPE x [<!ENTITY a "sea"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">'
            '<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]><x>the &c; &c; sea</x>',
            id="entities",
        ),
    ],
)
def test_markup_that_is_wrong_or_huge_is_answered_and_stalls_nobody(server: Server, text: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = {"q": text, "source": "en", "target": "de", "format": "html"}
        asking = pool.submit(server.post, "/translate", asked)
        slowest = 0.0
        while not asking.done():
            started = time.perf_counter()
            assert server.get("/health").status == 200
            slowest = max(slowest, time.perf_counter() - started)
            time.sleep(0.01)
        answer = asking.result()
    assert answer.status in (200, 413), answer.body
    assert slowest < 5
    if answer.status == 200:
        assert sorted(_TAG.findall(answer.json["translatedText"])) == sorted(_TAG.findall(text))


MASTODON = (
    '<p><span class="h-card" translate="no"><a href="https://example.org/@tom" class="u-url mention">'
    "@<span>tom</span></a></span> the old sea<br />a house "
    "<a href='https://example.org/tags/sea' class='mention hashtag' rel='tag'>#<span>sea</span></a></p>"
    '<p><a href="https://example.org/a?b=1&amp;c=2" target="_blank"><span class="invisible">https://</span>'
    "<span>example.org/a</span></a></p>"
)
DISCOURSE = (
    '<p>The <em>old</em> sea <img src="/images/emoji/smile.png?v=12" title=":smile:" alt=":smile:" loading="lazy">'
    '</p>\n<pre><code class="lang-sh">cd the/sea &amp;&amp; ls\n</code></pre>\n'
    '<aside class="quote no-group" data-username="ann"><blockquote>\n<p>A <strong>small</strong> house</p>\n'
    "</blockquote></aside>"
)
# What programs send: path, kind of body, fields, and where the translation of the first text is. Mastodon leaves the
# language to the server if the author of a post named none.
REQUESTS: dict[str, tuple[str, str, dict[str, Any], Callable[[Any], str]]] = {
    "Mastodon": (
        "/translate",
        "application/json",
        {"q": [MASTODON, "the sea"], "source": "auto", "target": "de", "format": "html", "api_key": None},
        lambda answer: answer["translatedText"][0],
    ),
    "Mastodon with DeepL": (
        "/v2/translate",
        FORM,
        {"text": [MASTODON, "the sea"], "source_lang": "", "target_lang": "de", "tag_handling": "html"},
        lambda answer: answer["translations"][0]["text"],
    ),
    "Discourse": (
        "/translate",
        FORM,
        {"q": DISCOURSE, "source": "en", "target": "de", "format": "html", "api_key": ""},
        lambda answer: answer["translatedText"],
    ),
    "wagtail-localize": (
        "//translate",
        "application/json",
        {"q": ['the <a id="a1">old sea</a> and a <b>house</b>'], "source": "en", "target": "de", "format": "html"},
        lambda answer: answer["translatedText"][0],
    ),
    "Weblate with DeepL": (
        "/v2/translate",
        "application/json",
        {
            "text": ['the <x id="4"></x> old sea &amp; <x id="19"></x>'],
            "source_lang": "EN",
            "target_lang": "DE",
            "formality": "default",
            "tag_handling": "xml",
            "ignore_tags": ["x"],
        },
        lambda answer: answer["translations"][0]["text"],
    ),
    "Weblate": (
        "/translate",
        "application/json",
        {"q": ["Tom's house & the old sea"], "source": "en", "target": "de", "api_key": ""},
        lambda answer: answer["translatedText"][0],
    ),
}


@pytest.mark.parametrize("program", REQUESTS)
def test_programs_get_all_tags_of_their_texts_back(server: Server, program: str) -> None:
    path, kind, fields, read = REQUESTS[program]
    body = urlencode(fields, doseq=True).encode() if kind == FORM else json.dumps(fields).encode()
    found = read(server.post(path, body, Content_Type=kind, Authorization="DeepL-Auth-Key any").json)
    sent = next(iter(fields.values()))
    text = sent if isinstance(sent, str) else sent[0]
    assert sorted(_TAG.findall(found)) == sorted(_TAG.findall(text))
    for kept in ("@<span>tom</span>", "cd the/sea &amp;&amp; ls\n"):
        assert (kept in found) == (kept in text)
