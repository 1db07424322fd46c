"""Markup: documents come back as they were but for their text, and tags stand on the words that they stood on."""

from __future__ import annotations

import html
import re
import string
import time
from collections.abc import Callable, Iterable, Sequence
from html.parser import HTMLParser
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt_cli.documents.kept_text import find_kept
from nmt_cli.documents.marked_text import MarkedText
from nmt_cli.documents.markup import MarkupDocument, parse_markup
from nmt_cli.documents.markup_tokens import HTML, XML, MarkupRules
from nmt_cli.tokenization.pieces import Link, Range

WORD = re.compile(r"\S+")


def word_links(source: str, target: str, pairs: Sequence[tuple[int, int]]) -> list[Link]:
    """Links between words, given by their numbers in both texts."""
    sources = [match.span() for match in WORD.finditer(source)]
    targets = [match.span() for match in WORD.finditer(target)]
    return [Link(*sources[first], *targets[second]) for first, second in pairs]


def reordered(block: MarkedText, order: Callable[[list[Range]], Iterable[Range]]) -> MarkedText:
    """The block translated into a language with another order of words, all in capitals, but for kept text."""
    words = [*block.kept]
    for match in WORD.finditer(block.text):
        if not any(start < match.end() and match.start() < end for start, end in block.kept):
            words.append(match.span())
    text, links = "", []
    for start, end in order(words):
        word = block.text[start:end] if (start, end) in block.kept else block.text[start:end].upper()
        text += " " if text else ""
        links.append(Link(start, end, len(text), len(text) + len(word)))
        text += word
    return block.translated(text, links)


def translated(document: MarkupDocument) -> str:
    return document.render([reordered(block, lambda words: sorted(words, reverse=True)) for block in document.blocks])


def same(document: MarkupDocument) -> str:
    """The document with each text as its own translation."""
    blocks = []
    for block in document.blocks:
        words = [match.span() for match in WORD.finditer(block.text)]
        links = [Link(*span, *span) for span in [*words, *block.kept]]
        blocks.append(block.translated(block.text, links))
    return document.render(blocks)


class Tree(HTMLParser):
    """The nested elements of a document with their attributes, each as text, with neighbours in any order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, list[str]]] = [("", [])]
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append((tag, [f" {attrs}"]))
        if tag in ("br", "hr", "img"):
            self.handle_endtag(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        name, inner = self.open.pop()
        assert name == tag
        self.open[-1][1].append(f"<{name}{''.join(sorted(inner))}>")

    def handle_comment(self, data: str) -> None:
        self.open[-1][1].append(f"<!{data}>")


def tree(text: str) -> list[str]:
    ((_, elements),) = Tree(text).open
    return sorted(elements)


TEXTS = st.text(st.sampled_from(string.ascii_lowercase[:6] + "   .,é中&<"), max_size=12).map(
    lambda text: text.replace("&", "&amp;").replace("<", "&lt;")
)
ELEMENTS = st.sampled_from(["b", "i", "a", "span", "p", "div", "li", "code", "em"])
EMPTY = st.sampled_from(["<br>", "<img src='a'>", "<!-- c -->"])
FRAGMENTS = st.recursive(
    st.one_of(TEXTS, EMPTY),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map("".join),
        st.builds(lambda name, content, id: f'<{name} id="{id}">{content}</{name}>', ELEMENTS, inner, st.integers(0)),
    ),
    max_leaves=12,
)


# What content systems send: sentences with nested inline markup, in paragraphs, lists, tables and figures.
SENTENCES = [
    *("The old sea", " is blue, ", "and {name} pays 5&nbsp;&euro; &lt; 10%. ", "Don&#8217;t go!", " Fish &amp; chips"),
    *("<br />", "<code>if a &lt; b:</code>", "<!-- a <b>note</b> -->", "https://example.org/?a=1&amp;b=2"),
    '<img class="alignleft" src="/a.jpg" alt="The sea, &quot;blue&quot;" width=300>',
    '<span class="notranslate">Acme <b>Inc.</b></span>',
]
INLINE = [
    '<a href="/?x=1&amp;y=2" target="_blank" rel=\'nofollow\'>{}</a>',
    """<span style="font-family: 'A'">{}</span>""",
    *("<strong>{}</strong>", "<em>{} </em>", "<u>{}</u>"),
]
BLOCKS = [
    '<p class="x">{}</p>\n',
    "<h2>{}</h2>\n",
    "<!-- wp:paragraph -->\n<p>{}</p>\n<!-- /wp:paragraph -->\n",
    '<figure><img src="/a.png"><figcaption>{}</figcaption></figure>',
    '<pre><code class="python">x = 1\nprint(x)</code></pre>\n<hr>',
    "<table><tr><th>{}</th><td>{}</td></tr></table>",
    "<ul>\n <li>{}<ol><li>{}</li></ol></li>\n <li><p>{}</p></li>\n</ul>\n",
    "<blockquote><p>{}</p><p>{}</p></blockquote>",
]


def page(random: Random) -> str:
    """A fragment of real shape."""

    def line(depth: int) -> str:
        kinds = [SENTENCES, INLINE] if depth else [SENTENCES]
        return "".join(filled(random.choice(random.choice(kinds)), depth - 1) for _ in range(random.randint(1, 4)))

    def filled(markup: str, depth: int) -> str:
        return re.sub(r"\{\}", lambda _: line(depth), markup)

    return "".join(filled(random.choice(BLOCKS), 3) for _ in range(random.randint(1, 3)))


@given(FRAGMENTS | st.randoms(use_true_random=False).map(page))
@settings(max_examples=2000, deadline=None)
def test_tags_are_nested_as_they_were(fragment: str) -> None:
    assert tree(translated(parse_markup(fragment, HTML))) == tree(fragment)


@given(st.text(st.sampled_from("<>/&;!-\"'= abip\n[]?"), max_size=60), st.sampled_from([HTML, XML]))
@settings(max_examples=1000, deadline=None)
def test_nothing_is_lost_of_what_is_no_document(text: str, rules: MarkupRules) -> None:
    def visible(markup: str) -> str:
        return "".join(html.unescape(markup).split())

    assert visible(same(parse_markup(text, rules))) == visible(text)


@pytest.mark.parametrize(
    "document",
    [
        '<!DOCTYPE html>\n<HTML lang=en>\n<head><title>The sea</title>\n<script>a < b || x("</p>")</script></head>',
        '<p class="a">One <b id=x data-y=\'"\'>two</b>, <i/>three&nbsp;&copy; &lt;four&gt;.</p>\n\n<td>five<td>six',
        '<!DOCTYPE r [<!ENTITY x "a > b">\n<!ENTITY y "c">]>\n<p>one two</p>',
        "<p>&nbsp; one <b>two</b>&nbsp;</p>",
        '<a href="?a=1&amp;b=2" @click="go(a > b)" disabled>one</a>',
        "<b>one<br>two</b> <b>three</b>",
        "<b>one</b> two </b",
        "one &amp; two <a href='x",
        "<p>one <b>two <i>three</b> four</i> five</p></div>",
        "<p>see <code>a < b</code>, <span translate=no>a <b>sea</b></span>, <em class='x notranslate'>sun</em></p>",
        "<p>my<code>_</code>name 2 <code>*</code> 3",
        "<p>It&#39;s C&#35;, A &amp; B&#59; &copy;&nbsp;&#x45F;</p>",
        "<ul>\n  <li>one</li>\n  <li><p>two</p></li>\n</ul>\n<!-- a <b> c -->",
    ],
)
def test_a_document_stays_byte_for_byte_but_for_its_text(document: str) -> None:
    assert same(parse_markup(document, HTML)) == document


def test_references_that_hide_an_address_change_no_other_text() -> None:
    hidden = "".join(f"&#{ord(character)};" for character in "joe1@x.com")
    text = "<p>A joke &amp; 1 exam. &lt;</p>"
    assert same(parse_markup(f"<p>{hidden}</p>{text}", HTML)) == f"<p>joe1&#64;x.com</p>{text}"


def test_elements_of_xml_with_text_beside_them_are_inline() -> None:
    document = parse_markup('<r>\n <t>One <g id="1">two</g> three.<br/>four</t>\n <t><g>five</g></t>\n</r>', XML)
    assert [block.text for block in document.blocks] == ["One two three.", "four", "five"]


@pytest.mark.parametrize(
    ("source", "target", "pairs", "expected"),
    [
        (
            "The <b>red</b> <i>house</i> is <img/>big.",
            "La maison rouge est grande.",
            [(0, 0), (2, 1), (1, 2), (3, 3), (4, 4)],
            "La <i>maison</i> <b>rouge</b> est <img/>grande.",
        ),
        # Quotation marks go with the word, the comma does not.
        (
            'He said <q>"no"</q>, <b>then</b>, left.',
            "Er sagte „nein“, ging dann.",
            [(0, 0), (1, 1), (2, 2), (3, 4), (4, 3)],
            "Er sagte <q>„nein“</q>, ging <b>dann</b>.",
        ),
        # A word that attention left out has its place.
        ("a <b>very</b> old sea", "ein altes Meer", [(0, 0), (2, 1), (3, 2)], "ein <b>altes</b> Meer"),
        ("<b>all of it</b>", "alles", [], "<b>alles</b>"),
        ("<b>red <i>house</i></b> here", "hier rotes Haus", [(0, 1), (1, 2), (2, 0)], "hier <b>rotes <i>Haus</i></b>"),
        # A tag on nothing but a mark.
        ("one<b>.</b>", "eins.", [(0, 0)], "eins<b>.</b>"),
        # Attention leads from an address to the words around it.
        ("see <a>sea</a> x@y.z", "x@y.z siehe Meer", [(0, 1), (1, 2), (1, 0), (2, 0)], "x@y.z siehe <a>Meer</a>"),
        # Tags that are escaped, as content systems store them.
        ("&lt;b&gt;one&lt;/b&gt; 2 &lt; 3", "2 < 3 eins", [(0, 3), (1, 0)], "2 < 3 &lt;b&gt;eins&lt;/b&gt;"),
        ("one <img src=a> two", "zwei eins", [(0, 1), (1, 0)], "zwei <img src=a> eins"),
    ],
)
def test_tags_stand_on_the_words_that_translate_theirs(
    source: str, target: str, pairs: Sequence[tuple[int, int]], expected: str
) -> None:
    (block,) = parse_markup(source, HTML).blocks
    assert block.translated(target, word_links(block.text, target, pairs)).render(str) == expected


@pytest.mark.parametrize(
    "document",
    [
        "<b>" * 10_000 + "sea" + "</b>" * 10_000,
        "<b>sea" * 10_000,
        "<!--" * 100_000,
        "<a <b>'" * 20_000 + "sea",
        "<pre>" * 10_000,
        "<!doctype a[" * 10_000,
    ],
)
def test_markup_that_never_ends_takes_little_time(document: str) -> None:
    assert html.unescape(same(parse_markup(document, HTML))).count("<") == document.count("<")


@pytest.mark.parametrize(
    "document",
    [
        "one <b>two</b> " * 10_000,
        "<b>one " * 10_000 + "</b>" * 10_000,
        "one <code>{0}</code> " * 10_000,
        "<b>, </b> . " * 10_000 + "one",
    ],
)
@pytest.mark.parametrize("is_linked", [True, False])
def test_thousands_of_elements_in_a_block_take_about_linear_time(document: str, is_linked: bool) -> None:
    (block,) = parse_markup(document, HTML).blocks
    spans = [*block.kept, *(match.span() for match in WORD.finditer(block.text) if is_linked)]
    start = time.process_time()
    found = block.translated(block.text, [Link(*span, *span) for span in spans]).render(str)
    assert time.process_time() - start < 5
    assert found.count("<") == document.count("<")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('[gallery ids="1,2" link=file] one', ['[gallery ids="1,2" link=file]']),
        ("[caption id='a']one[/caption]", ["[caption id='a']", "[/caption]"]),
        ("one :smile: :+1:", [":smile:", ":+1:"]),
        ("one [sic] [1] at 10:30:45, a::bc::d: ef: [one](a)", []),
        ("50%-e, 30%-os, 20%i, 100% sicher, 5 % der, 45%F.i.T., $100 million, $1,000, US$5, $5m, Ke$ha", []),
        ("%d%%, %-d %5.1f %lu %@, 0%d:%02d", ["%d", "%-d", "%5.1f", "%lu", "%@", "%d", "%02d"]),
        ("请访问https://x.org/中国，或写信给a.b@x.org谢谢", ["https://x.org/中国", "a.b@x.org"]),
        ("为$name有%d个文件, 파일%s을", ["$name", "%d", "%s"]),
        ("$1$2, $3. $name", ["$1", "$2", "$3", "$name"]),
        ("Say {name}, see https://example.org/a.", ["{name}", "https://example.org/a"]),
    ],
)
def test_codes_of_other_programs_are_found_and_no_words(text: str, kept: list[str]) -> None:
    assert [text[start:end] for start, end in find_kept(text)] == kept


@pytest.mark.parametrize(
    "text",
    [
        "{ " + "letters" * 10_000,
        "if (x) { return the value of " * 5_000,
        "a-" * 50_000,
        "a.b" * 50_000,
        '[a b="' * 20_000,
        "[a b=1 " * 20_000,
        "[a]" * 20_000,
        "{n, plural, " * 5_000,
    ],
)
def test_addresses_and_placeholders_are_found_in_one_pass(text: str) -> None:
    assert find_kept(text) == []
