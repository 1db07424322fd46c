"""The tokens of HTML, XML and text with tags: start and end tags, text, and what stays; and the rules of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

# Possessive quantifiers: no text takes more than a few passes.
_TAG = re.compile(
    r"<(?P<slash>/?)(?P<name>[A-Za-z_][^\s<>/\"'=]*+)(?P<attributes>(?:=\s*+(?:\"[^\"]*+\"|'[^']*+')|[^<>])*+)>"
)
# In HTML, this slash is part of a value.
_VALUE_WITH_SLASH = re.compile(r"=\s*[^\s\"'=]*/\Z")
# In plain text a value tells <b id=1> from the comparisons in "a <b and c> d".
_PLAIN_ATTRIBUTES = re.compile(r"[\s/]*+|[^=]*+=.*", re.DOTALL)
# At the end of a fragment.
_CUT_TAG = re.compile(r"<(?:/[A-Za-z_]|[A-Za-z_][\w:.-]*+\s++[\w:.-]++\s*+=)[^<>]*+\Z")
# As content systems store HTML in XML: &lt;b class="x"&gt;.
_ESCAPED_TAG = re.compile(
    r"&lt;(?P<slash>/?)(?P<name>[A-Za-z][\w:.-]*+)"
    r"(?:\s++[\w:.@-]++\s*+=\s*+(?:\"[^\"<>]*+\"|'[^'<>]*+'|&quot;(?:(?!&quot;)[^<>])*+&quot;|[^\s\"'<>&]++))*+"
    r"\s*+(?P<end>/?)&gt;"
)
CDATA, CDATA_END = "<![CDATA[", "]]>"
_OTHER = (("<!--", "-->"), (CDATA, CDATA_END), ("<%", "%>"), ("<?", ">"), ("<!", ">"))
# With the entities that a document declares itself.
_DOCTYPE = re.compile(r"<!doctype\b(?:[^\[>\"']++|\"[^\"]*+\"|'[^']*+')*+(?:\[.*?\]\s*+)?>", re.IGNORECASE | re.DOTALL)
_DOCTYPE_BEGINS = "<!doctype"
# References that only the document itself can explain. In plain text, which has no escapes: all references, and codes
# of subtitles ({\\an8}, <00:01.500>) and of templates ({% if %}).
_CODES = {
    "html": re.compile(r"(<\d+(?::\d+)+\.\d+>)"),
    "xml": re.compile(r"(&(?!(?:amp|lt|gt|quot|apos|#\w+);)[\w.:-]+;)"),
    "plain": re.compile(r"(&(?:#?\w+);|\{\\[^{}\n]*\}|\{%[^\n]*?%\}|<\d[\d:.]*>)"),
}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HTML_BLOCKS = _names(
    """
    address article aside base blockquote body br button caption center col colgroup dd details dialog dir div dl dt
    fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe legend li
    link main menu meta nav noscript object ol optgroup option p pre script search section select source style summary
    table tbody td template textarea tfoot th thead title tr track ul video audio canvas
    """
)
_HTML_KEPT = _names("code kbd math pre samp script style svg textarea tt var")
_HTML_VOID = _names("area base br col embed hr img input link meta param source track wbr")
_HTML_RAW = _names("script style textarea rt rp")
# Nothing is markup up to the end tag, which readings above words may lack.
_RAW_END = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in _HTML_RAW} | dict.fromkeys(
    ("rt", "rp"), re.compile(r"</r[tp]\s*>|(?=<r[btp]\b|</ruby\b)", re.IGNORECASE)
)


@dataclass(frozen=True, slots=True)
class MarkupRules:
    """Which elements are blocks, inline or kept; names are lower-case in HTML.

    If `blocks` is None, they are found by the structure: an element stands inside a line if there is text beside it, or
    beside an element around it. `inline` names others that do, and `splitting` names further blocks. What is inside of
    `kept` elements is not translated. Plain text may have tags, and `&`, `<` and `>` mean themselves in it.
    """

    language: Literal["html", "xml", "plain"]
    blocks: frozenset[str] | None
    inline: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    splitting: frozenset[str] = frozenset()


HTML = MarkupRules("html", blocks=_HTML_BLOCKS, kept=_HTML_KEPT)
# What stands in these is code of other programs, as in XLIFF and TMX.
XML = MarkupRules("xml", blocks=None, kept=_names("bpt ept it ph ut"), splitting=_names("br"))
PLAIN = MarkupRules("plain", blocks=_HTML_BLOCKS, kept=_HTML_KEPT)
MARKUP = {"html": HTML, "xml": XML}
"""The rules of usual markup, by its name."""


class Token(NamedTuple):
    """A piece of a document; `name` is of a tag, and `attributes` is what stands after it.

    `other` is markup without a name, which stays as it is.
    """

    kind: Literal["text", "open", "close", "empty", "other"]
    raw: str
    name: str = ""
    attributes: str = ""


def is_cdata(token: Token) -> bool:
    """Whether a token is a section of CDATA, whose text is written as it is."""
    return token.raw.startswith(CDATA)


def cdata_text(token: Token) -> str:
    """What is in a section of CDATA."""
    return token.raw[len(CDATA) : -len(CDATA_END)]


def markup_tokens(text: str, rules: MarkupRules) -> Iterator[Token]:
    """The document in pieces, which together are the text."""
    start = position = 0  # of the text that has begun, and of the search
    unclosed: set[str] = set()
    while (position := text.find("<", position)) >= 0:
        token, end = _markup_at(text, position, unclosed, rules)
        if token is None:
            position += 1
            continue
        yield from _text_tokens(text[start:position], rules)
        yield token
        start = position = end
    cut = None if rules is PLAIN else _CUT_TAG.search(text, start)
    end = cut.start() if cut else len(text)
    yield from _text_tokens(text[start:end], rules)
    if cut:
        yield Token("other", cut[0])


def _markup_at(text: str, position: int, unclosed: set[str], rules: MarkupRules) -> tuple[Token | None, int]:
    """The token of the markup at a position, if there is any, and its end. `unclosed` has the ends that do not come."""
    if text[position : position + len(_DOCTYPE_BEGINS)].lower() == _DOCTYPE_BEGINS and _DOCTYPE_BEGINS not in unclosed:
        if doctype := _DOCTYPE.match(text, position):
            return Token("other", doctype[0]), doctype.end()
        unclosed.add(_DOCTYPE_BEGINS)
    for opening, closing in _OTHER:
        if text.startswith(opening, position):
            end = -1 if closing in unclosed else text.find(closing, position + len(opening))
            if end < 0:
                unclosed.add(closing)
                continue
            return Token("other", text[position : end + len(closing)]), end + len(closing)
    match = _TAG.match(text, position)
    if match is None or (rules.language == "plain" and not _PLAIN_ATTRIBUTES.fullmatch(match["attributes"])):
        return None, position
    # In WebVTT a name has classes after it.
    name = match["name"] if rules.language == "xml" else match["name"].lower().partition(".")[0]
    if match["slash"]:
        return Token("close", match[0], name), match.end()
    is_void = rules.language != "xml" and name in _HTML_VOID
    attributes = match["attributes"]
    is_closed = attributes.endswith("/") and (rules.language == "xml" or not _VALUE_WITH_SLASH.search(attributes))
    if is_void or is_closed:
        return Token("empty", match[0], name, attributes), match.end()
    if rules.language != "xml" and name in _HTML_RAW and name not in unclosed:
        found = _RAW_END[name].search(text, match.end())
        if found is not None:
            return Token("other", text[position : found.end()], name), found.end()
        unclosed.add(name)
    return Token("open", match[0], name, attributes), match.end()


def _text_tokens(text: str, rules: MarkupRules) -> Iterator[Token]:
    """The text, apart from escaped tags and references that only the document itself can explain."""
    runs = _CODES[rules.language].split(text)
    for index, run in enumerate(runs):
        if index % 2:
            yield Token("other", run)
            continue
        position = 0
        for tag in _ESCAPED_TAG.finditer(run) if rules.language != "plain" else ():
            if position < tag.start():
                yield Token("text", run[position : tag.start()])
            # The name is that of no element, so the tag is inline.
            yield Token("close" if tag["slash"] else "empty" if tag["end"] else "open", tag[0], f"&{tag['name']}")
            position = tag.end()
        if position < len(run):
            yield Token("text", run[position:])


def matching_tags(tokens: Sequence[Token]) -> dict[int, int]:
    """The end tag of each start tag that has one, by index, and the other way round.

    An end tag ends the last open element of its name; those begun after it have no end tag then.
    """
    pairs: dict[int, int] = {}
    open_indices: list[int] = []
    num_open: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token.kind == "open":
            open_indices.append(index)
            num_open[token.name] = num_open.get(token.name, 0) + 1
        elif token.kind == "close" and num_open.get(token.name):
            while True:
                other = open_indices.pop()
                num_open[tokens[other].name] -= 1
                if tokens[other].name == token.name:
                    break
            pairs[other], pairs[index] = index, other
    return pairs
