"""Markdown: paragraphs, headings, items and cells are blocks; emphasis, links and code are marks in them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from markdown_it import MarkdownIt
from markdown_it.common.utils import normalizeReference
from markdown_it.rules_block import StateBlock

from nmt_cli.documents.kept_text import SHORTCODE
from nmt_cli.documents.marked_text import LETTER_WITHOUT_SPACES, MarkedText
from nmt_cli.documents.markup import parse_markup, parts_between, write_plain
from nmt_cli.documents.markup_tokens import HTML, PLAIN, Token, markup_tokens
from nmt_cli.documents.parts import Block, Part

_MOST = 2000  # bounds keep text with many beginnings and no ends from taking long
_FRONT_MATTER = re.compile(r"\A(---|\+\+\+)[ \t]*\r?\n(?s:.*?)\n\1[ \t]*(?:\r?\n|\Z)")
_DISPLAYED = rf"\$\$[^$]{{1,{_MOST}}}\$\$"
_HARD_BREAK = re.compile(rf"{_DISPLAYED}|(?P<mark>(?:(?<! ) {{2,}}+|\\)\r?\n[ \t>]*)")
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
# Boxes of GitHub, fences, tables of contents and attributes; boxes and tabs of MkDocs, whose text is indented below
# them; definitions and footnotes, whose text begins beside them.
_MARKER = re.compile(
    r"(?:\[![\w-]+\][+-]?|:{3,}[ \t]*(?:\{[^{}\n]*\}[ \t]*)?[\w-]*(?:\{[^{}\n]*\})?)(?=\s|\[|\Z)[ \t]*(?P<title>.*)"
    r"|(?:\[\[?_?toc_?\]\]?|\{:[^{}\n]*\})[ \t]*\Z"
    r"|(?P<box>(?:!!!|\?\?\?\+?)[ \t]+[\w-]+[\w \t-]*|===[!+]*[ \t]+(?=\"))(?:\"(?P<quoted>.*)\")?[ \t]*\Z"
    r"|(?P<beside>[:~][ \t]+|(?P<footnote>\[\^[^\]\s]{1,99}\]:[ \t]+))(?=\S)",
    re.IGNORECASE,
)
_FORMULA = re.compile(rf"{_DISPLAYED}[ \t]*$", re.MULTILINE)
_QUOTE = re.compile(r"\A[ \t]*(?:>[ \t]?)*")
# With a backslash before it, a number or a sign does not begin an item, a heading or a quote.
_BEGINS_BLOCK = re.compile(r"\A(\d{1,9}(?=[.)](?:\s|\Z))|(?=(?:[-+*]|#{1,6})(?:\s|\Z)|>))")
# The elements of HTML for each sign of emphasis, the outer first; _ is as *.
_ELEMENTS = {"*": ["em"], "**": ["strong"], "***": ["em", "strong"], "~~": ["del"]}
_INDENT = 4  # of the text below a box or a footnote
_MOST_NESTED = 10  # the parser reads nothing inside of 20 elements
_DEEPEST = 100
# Code, formulas and addresses; then footnotes, boxes, emoji, references, templates and comments.
_KEPT = (
    rf"(?P<ticks>`+)(?!`).{{1,{_MOST}}}?(?<!`)(?P=ticks)(?!`)"
    rf"|{_DISPLAYED}(?!\d)|\$[^$\s](?:[^$\n]{{,{_MOST}}}[^$\s])?\$(?!\d)"
    rf"|<[a-z][a-z+.-]{{,30}}:[^<>\s]{{,{_MOST}}}>|!\[\[[^\[\]\n]{{1,{_MOST}}}\]\]|\[\[[^\[\]|\n]{{1,{_MOST}}}\]\](?![(\[])"
)
_OTHER = (
    r"\[\^[^\]\s]{1,99}\]:?|\[[ x]\](?=\s)|&(?:#?\w{1,30});"
    rf"|\{{%[^\n]{{,{_MOST}}}?%\}}|<!--.{{,{_MOST}}}?-->|{SHORTCODE}"
)
_ADDRESS = rf"\((?:[^()\\]|\\.|\([^()]{{,{_MOST}}}\)){{,{_MOST}}}\)|\[[^\[\]]{{,{_MOST}}}\]"
_LINK_END = rf"\](?:{_ADDRESS})?(?:\{{[:.#][^{{}}]{{,99}}\}})?"
_INLINE = re.compile(
    rf"(?P<kept>{_KEPT})|(?P<page>\[\[[^\[\]|\n]{{1,{_MOST}}}\|)(?P<shown>[^\[\]|\n]{{1,{_MOST}}})\]\]"
    rf"|(?P<escaped>\\[!#-&(-/:-@\[-`{{-~])|(?P<needless>\\(?=[\"']))|(?P<other>{_OTHER})"
    rf"|(?P<tag></?[a-z][^<>]{{,{_MOST}}}>)|(?P<open>!?\[)|(?P<close>{_LINK_END})|(?P<emphasis>\*+|_+|~~+)",
    re.DOTALL | re.IGNORECASE,
)


def markdown_parts(text: str) -> list[Part]:
    """The blocks of a Markdown document, GitHub's kind; code, front matter and addresses stay as they are."""
    front_matter = _FRONT_MATTER.match(text)
    start = front_matter.end() if front_matter else 0
    lines = _LINE.findall(text[start:])
    starts = [start]
    for line in lines:
        starts.append(starts[-1] + len(line))
    parts: list[Part] = []
    position = 0
    references: set[str] = set()
    for first, end, content, column in _texts(text[start:], references):
        if content is None:  # a block of HTML
            block = text[starts[first] : starts[end]].rstrip("\r\n")
            parts += [text[position : starts[first]], *_html_parts(block)]
            position = starts[first] + len(block)
            continue
        found = _range_of_block(text, content, max(position, starts[first] + column), starts[end])
        if found is not None:
            parts += [text[position : found[0]], *_line_parts(text[slice(*found)], references)]
            position = found[1]
    return [*parts, text[position:]]


def _texts(text: str, references: set[str]) -> Iterator[tuple[int, int, str | None, int]]:
    """The lines of each piece of text, in order, its content, and a column of the first line before it.

    Without content, they are lines of HTML. The labels of addresses are added to `references`.
    """
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.disable("inline")
    for name, read in {"formula": _read_formula, "marker": _read_marker}.items():
        parser.block.ruler.before("list", name, read, {"alt": ["paragraph", "reference", "blockquote", "list"]})
    environment: dict[str, dict[str, object]] = {}
    tokens = parser.parse(text, environment)
    references |= {*environment.get("references", ())}
    for token in tokens:
        if token.map is not None and token.type == "inline" and token.content:
            yield token.map[0], token.map[1], token.content, token.meta.get("column", 0)
        elif token.map is not None and token.type == "html_block":
            yield token.map[0], token.map[1], None, 0


def _read_formula(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    """Read a formula that has its lines for itself."""
    formula = _FORMULA.match(state.src, state.bMarks[first] + state.tShift[first])
    last = first + formula[0].count("\n") if formula else end
    if last >= end or state.is_code_block(first):
        return False
    if not silent:
        state.line = last + 1
    return True


def _read_marker(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    """Read a line that begins with a marker, and the blocks that stand below it or beside it."""
    start = state.bMarks[first] + state.tShift[first]
    is_text = state.is_code_block(first) or state.level > _MOST_NESTED
    marker = None if is_text else _MARKER.match(state.src[start : state.eMarks[first]])
    if marker is None or silent:
        return marker is not None
    if beside := marker["beside"]:
        width = _INDENT if marker["footnote"] else len(beside.expandtabs())
        return _read_indented(state, first, end, state.sCount[first] + width, beside=len(beside))
    state.line = first + 1
    title = "quoted" if marker["quoted"] else "title"
    token = state.push("inline", "", 0)
    token.map, token.content = [first, first + 1], (marker[title] or "").strip()
    token.meta["column"] = start + max(marker.start(title), 0) - (state.src.rfind("\n", 0, start) + 1)
    return _read_indented(state, first + 1, end, state.blkIndent + _INDENT) if marker["box"] else True


def _read_indented(state: StateBlock, first: int, end: int, indent: int, *, beside: int = 0) -> bool:
    """Read the blocks that are indented so far. The first of them may stand beside a marker of its line."""
    place = state.bMarks[first], state.tShift[first], state.sCount[first]
    indent_before = state.blkIndent
    state.level += 1
    if beside:
        state.bMarks[first], state.tShift[first], state.sCount[first] = place[0] + place[1] + beside, 0, indent
    state.blkIndent = indent
    state.md.block.tokenize(state, first, end)
    state.blkIndent = indent_before
    state.level -= 1
    state.bMarks[first], state.tShift[first], state.sCount[first] = place
    return True


def _range_of_block(text: str, content: str, start: int, end: int) -> tuple[int, int] | None:
    """The range of a block's lines in the text, with the marks of the block before each line; None if it has none."""
    first = last = -1
    for line in content.split("\n"):
        place = text.find(line, max(start, last), end)
        if place < 0:  # in a cell of a table
            line = line.replace("|", "\\|")
            place = text.find(line, max(start, last), end)
        if place < 0:
            return None
        first = place if first < 0 else first
        last = place + len(line)
    return first, last


def _html_parts(block: str) -> list[Part]:
    """The parts of a block of HTML, whose lines may be those of a quote."""
    mark = _QUOTE.findall(block)[0]
    lines = block.split("\n")
    if not all(line.startswith(mark) for line in lines):
        mark = ""
    parts = parse_markup("\n".join(line.removeprefix(mark) for line in lines), HTML).parts

    def quoted(markup: str) -> str:
        return markup.replace("\n", f"\n{mark}")

    return [mark, *(quoted(part) if isinstance(part, str) else part.respelled(quoted) for part in parts)]


def _line_parts(content: str, references: Collection[str]) -> list[Part]:
    """The parts of a block's text, which hard breaks and <br> divide."""
    parts: list[Part] = []
    position = 0
    for match in [*(found for found in _HARD_BREAK.finditer(content) if found["mark"]), None]:
        end = len(content) if match is None else match.start()
        line = re.sub(r"\r?\n[ \t]*(?:>[ \t]?)*", " ", content[position:end])
        tokens = list(_tokens(line, references))
        for part in parts_between(
            tokens, PLAIN, _write, separator_parts=lambda token: [token.raw] if token.name == "br" else []
        ):
            if isinstance(part, Block) and not _BEGINS_BLOCK.match(part.text.text):
                part = part.respelled(lambda line: _BEGINS_BLOCK.sub(r"\1\\", line))
            parts.append(part)
        if match is not None:
            parts.append(match[0])
            position = match.end()
    return parts


def _write(block: MarkedText) -> str:
    """The block. Where Markdown reads no emphasis beside Chinese or Thai, it is written as `*`, or as tags of HTML."""
    text, marks = block.text, list(block.marks)
    edges = {(mark.parent, edge) for mark in marks for edge in (mark.start, mark.end)}
    for index, mark in enumerate(block.marks):
        inner = text[mark.start : mark.end]
        beside = text[max(mark.start - 1, 0) : mark.start] + text[mark.end : mark.end + 1]
        sign = mark.opening.replace("_", "*")
        is_read = inner and not LETTER_WITHOUT_SPACES.search(beside)
        if sign not in _ELEMENTS or mark.closing != mark.opening or is_read:
            continue
        has_letters_at_edges = inner[:1].isalnum() and inner[-1:].isalnum()
        if has_letters_at_edges and edges.isdisjoint([(index, mark.start), (index, mark.end)]):
            opening = closing = sign
        else:
            opening = "".join(f"<{name}>" for name in _ELEMENTS[sign])
            closing = "".join(f"</{name}>" for name in reversed(_ELEMENTS[sign]))
        marks[index] = replace(mark, opening=opening, closing=closing)
    return write_plain(MarkedText(text, tuple(marks)))


def _tokens(line: str, references: Collection[str]) -> Iterator[Token]:
    """The text of a line with its markup, which may be tags of HTML."""
    open_names: list[tuple[str, int]] = []  # with the place of what is inside
    links = _brackets_of_links(line, references)
    position = 0
    for match in _INLINE.finditer(line):
        is_text = (match["open"] or match["close"]) and match.start() not in links
        token = None if is_text else _token(match, line, open_names, references)
        if token is None:
            continue
        yield from markup_tokens(line[position : match.start()], PLAIN)
        if match["page"]:
            yield from (
                Token("open", match["page"], "[["),
                *_tokens(match["shown"], references),
                Token("close", "]]", "[["),
            )
        elif match["kept"] or match["escaped"]:
            opening, closing = ("\\", "") if match["escaped"] else [match["ticks"] or ""] * 2
            inner = match[0].removeprefix(opening).removesuffix(closing)
            yield from (Token("open", opening, "code"), Token("text", inner), Token("close", closing, "code"))
        else:
            yield token
        position = match.end()
    yield from markup_tokens(line[position:], PLAIN)


def _brackets_of_links(line: str, references: Collection[str]) -> set[int]:
    """Where the brackets stand that are those of links: with an address after them, or around the label of one."""
    begun: list[re.Match[str]] = []
    found: set[int] = set()
    for match in _INLINE.finditer(line):
        if match["open"]:
            begun.append(match)
        elif match["close"] and begun:
            opening = begun.pop()
            label = line[opening.end() : match.start()]
            if match[0] != "]" or normalizeReference(label) in references:
                found |= {opening.start(), match.start()}
    return found


def _token(match: re.Match[str], line: str, opened: list[tuple[str, int]], references: Collection[str]) -> Token | None:
    """The token of a match; None if it is text.

    `opened` has the name of each open element, and the index at which its content begins.
    """
    raw = match[0]
    if match["kept"] or match["escaped"] or match["page"] or match["other"]:
        return Token("other", raw)
    if match["needless"]:  # the backslash before a quotation mark or an apostrophe
        return Token("text", "")
    if match["tag"]:
        return None
    if match["open"]:
        opened.append(("[", match.end()))
        return Token("open", raw, "[")
    names = [name for name, _ in opened[-_DEEPEST:]]
    if match["close"]:
        if "[" not in names:
            return None
        content = line[_close("[", opened) : match.start()]
        # The text of a link may also be the label of its address.
        if raw in ("]", "][]") and normalizeReference(content) in references:
            raw = f"][{content}]"
        return Token("close", raw, "[")
    before, after = line[: match.start()][-1:], line[match.end() :][:1]
    can_close = bool(before.strip()) and raw in names
    can_open = bool(after.strip())
    if raw[0] == "_":  # inside of words it is a letter
        can_close, can_open = can_close and not after.isalnum(), can_open and not before.isalnum()
    if can_close:
        _close(raw, opened)
        return Token("close", raw, raw)
    if can_open and raw in line[match.end() : match.end() + _MOST]:
        opened.append((raw, match.end()))
        return Token("open", raw, raw)
    return None


def _close(name: str, opened: list[tuple[str, int]]) -> int:
    """Close the last element of this name, with all elements inside of it, and return where its content begins."""
    while True:
        other, start = opened.pop()
        if other == name:
            return start
