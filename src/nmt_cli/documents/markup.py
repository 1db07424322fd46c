"""HTML and XML: a document as markup that stays, and blocks of text with inline markup.

Nothing is repaired. All but the text for a reader stays as it is, byte for byte. So fragments, templates and tags that
are never closed are no errors: a tag without its other half is an empty mark at its place.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from nmt_cli.documents.icu_messages import icu_branches
from nmt_cli.documents.marked_text import Mark, MarkedText
from nmt_cli.documents.markup_tokens import (
    CDATA,
    CDATA_END,
    PLAIN,
    MarkupRules,
    Token,
    cdata_text,
    is_cdata,
    markup_tokens,
    matching_tags,
)
from nmt_cli.documents.parts import Block, Part, blocks_of, render_parts

_NOT_TRANSLATED = re.compile(
    r"(?:^|\s)(?:translate\s*=\s*[\"']?no\b|translatable\s*=\s*[\"']false\b|mtype\s*=\s*[\"']protected|class\s*=\s*(?:\"[^\"]*\bnotranslate\b|'[^']*\bnotranslate\b|notranslate\b))",
    re.IGNORECASE,
)
_SPACES = re.compile(r"[ \t\r\n\f]+")
# Also read from the end of a run, reversed: `;psbn&` is `&nbsp;`.
_SPACE = re.compile(r"(?:\s|&nbsp;|;psbn&|&#160;|;061#&|&#xa0;|;0ax#&)*+", re.IGNORECASE)
_REFERENCE = re.compile(r"&(?:#\d+|#x[0-9a-f]+|\w+);", re.IGNORECASE)
# A character that a document may spell as a reference throughout; those of an address only hide it.
_WITH_REFERENCE = re.compile(r"[^\s\w.:/&<>-]", re.ASCII)
# As programs of Android name another text: @string/ok, ?android:attr/title.
_RESOURCE = re.compile(r"[@?](?:[\w.]+:)?\w+/[\w.]+")
_SYMBOL = re.compile(r"[^\s.,:;!?…'\"’‘“”„«»()\[\]/–—-]")


@dataclass(frozen=True, slots=True)
class MarkupDocument:
    """A document in parts: strings of markup, and blocks of text."""

    parts: Sequence[Part]

    @property
    def blocks(self) -> list[MarkedText]:
        """The blocks of text, in order."""
        return blocks_of(self.parts)

    @property
    def plain(self) -> str:
        """The text of the blocks, without tags."""
        return "\n".join(block.text for block in self.blocks)

    def render(self, blocks: Sequence[MarkedText]) -> str:
        """The document with other blocks, in the same order."""
        return render_parts(self.parts, iter(blocks))


def parse_markup(text: str, rules: MarkupRules) -> MarkupDocument:
    """The document of a text in HTML or XML, whole or a fragment."""
    tokens = list(markup_tokens(text, rules))
    pairs = matching_tags(tokens)
    is_inline = _inline_by_structure(tokens, pairs) if rules.blocks is None else {}
    is_block = [bool(one.name) and _is_block(one, index, pairs, rules, is_inline) for index, one in enumerate(tokens)]
    # An element around blocks is one, too.
    num_blocks = [0, *accumulate(is_block)]
    for start, end in pairs.items():
        if start < end and num_blocks[start + 1] < num_blocks[end] and tokens[start].name not in rules.inline:
            is_block[start] = is_block[end] = True
    write = block_writer(tokens, rules)
    parts: list[Part] = []
    indices: list[int] = []  # of the tokens of the block that has begun
    index = 0
    while index < len(tokens):
        token = tokens[index]
        end = (pairs.get(index, index) if token.kind == "open" and _is_kept(token, rules) else index) + 1
        if is_cdata(token) and rules.language == "xml":
            parts += [*block_parts(tokens, indices, pairs, rules, write), *cdata_parts(token)]
            indices = []
        elif is_block[index]:
            parts += block_parts(tokens, indices, pairs, rules, write)
            indices = []
            parts += [other.raw for other in tokens[index:end]]
        else:
            indices += range(index, end)
        index = end
    parts += block_parts(tokens, indices, pairs, rules, write)
    return MarkupDocument([part for part in parts if part != ""])


def cdata_parts(token: Token) -> list[Part]:
    """The parts of a section of CDATA, which may hold tags."""
    return [CDATA, *parse_markup(cdata_text(token), PLAIN).parts, CDATA_END]


def parts_between(
    tokens: Sequence[Token],
    rules: MarkupRules,
    write: Callable[[MarkedText], str],
    *,
    separator_parts: Callable[[Token], Sequence[Part]],
) -> list[Part]:
    """The blocks between separators: tokens for which `separator_parts` gives parts; for others it gives none."""
    pairs = matching_tags(tokens)
    parts: list[Part] = []
    start = 0
    for end, token in enumerate([*tokens, None]):
        separator = () if token is None else separator_parts(token)
        if separator or token is None:
            parts += block_parts(tokens, range(start, end), pairs, rules, write) if start < end else []
            parts += separator
            start = end + 1
    return parts


def block_writer(tokens: Sequence[Token], rules: MarkupRules) -> Callable[[MarkedText], str]:
    """The function that writes a block as the document spells characters."""
    if rules.language == "plain":
        return write_plain
    spellings = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
    for token in tokens:
        if token.kind == "text":
            for match in _REFERENCE.finditer(token.raw):
                character = html.unescape(match[0])
                if _WITH_REFERENCE.fullmatch(character):
                    spellings[character] = match[0]
    table = str.maketrans(spellings)
    return lambda block: block.render(lambda text: text.translate(table))


def write_plain(block: MarkedText) -> str:
    """The block of a text that has no spelling of its own for any character."""
    return block.render(str)


def _inline_by_structure(tokens: Sequence[Token], pairs: dict[int, int]) -> dict[int, bool]:
    """Whether each tag stands in a line: there is text beside it, or beside an element around it."""
    parents: list[int] = [-1]
    parent_of: dict[int, int] = {}
    has_text: set[int] = set()
    for index, token in enumerate(tokens):
        if token.kind == "close" and index in pairs:
            parents.pop()
        elif token.kind == "text":
            if token.raw.strip():
                has_text.add(parents[-1])
        else:
            parent_of[index] = parents[-1]
            if token.kind == "open" and index in pairs:
                parents.append(index)
    is_inline: dict[int, bool] = {-1: False}
    for index, parent in parent_of.items():
        is_inline[index] = is_inline[parent] or parent in has_text
    return is_inline


def _is_block(token: Token, index: int, pairs: dict[int, int], rules: MarkupRules, is_inline: dict[int, bool]) -> bool:
    if token.name in rules.inline:
        return False
    if token.name in rules.splitting:
        return True
    if rules.blocks is not None:
        return token.name in rules.blocks
    start = pairs.get(index, index) if token.kind == "close" else index
    return not is_inline.get(start, False)


def _is_kept(token: Token, rules: MarkupRules) -> bool:
    return token.name in rules.kept or bool(_NOT_TRANSLATED.search(token.attributes))


def block_parts(
    tokens: Sequence[Token],
    indices: Sequence[int],
    pairs: dict[int, int],
    rules: MarkupRules,
    write: Callable[[MarkedText], str],
) -> list[Part]:
    """The block of these tokens, with the space before and after it; only markup if it has no letters.

    There is one for each branch of a plural or a selection of ICU.
    """
    opening = [index for index in indices if tokens[index].kind == "open" and _is_kept(tokens[index], rules)]
    inside = {index for start in opening for index in range(start, pairs.get(start, start))}
    kept = [number for number, index in enumerate(indices) if index in inside]
    if (branches := icu_branches([tokens[index] for index in indices], kept=kept)) is not None:
        parts: list[Part] = []
        for piece in branches:
            parts += (
                [piece]
                if isinstance(piece, str)
                else block_parts(piece, range(len(piece)), matching_tags(piece), rules, write)
            )
        return parts
    first, last = 0, len(indices)
    while first < last and _is_space(tokens[indices[first]]):
        first += 1
    while last > first and _is_space(tokens[indices[last - 1]]):
        last -= 1
    builder = _BlockBuilder(tokens, pairs, rules)
    block = builder.build(indices[first:last])
    text = builder.translated_text
    if not any(map(str.isalpha, text)) or (rules.language == "xml" and _RESOURCE.fullmatch(text.strip())):
        return ["".join(tokens[index].raw for index in indices)]
    before = "".join(tokens[index].raw for index in indices[:first])
    after = "".join(tokens[index].raw for index in indices[last:])
    first_run, last_run = (
        token.raw if token.kind == "text" else "" for token in (tokens[indices[first]], tokens[indices[last - 1]])
    )
    before += first_run[: _space_before(first_run)]
    after = last_run[len(last_run) - _space_before(last_run[::-1]) :] + after
    return [before, Block(block, write), after]


def _is_space(token: Token) -> bool:
    """Whether a token is nothing but white space, such as a reference to it."""
    return token.kind in ("text", "other") and not html.unescape(token.raw).strip()


def _space_before(raw: str) -> int:
    """The characters of space with which a run of a document begins, or one that is read backwards."""
    match = _SPACE.match(raw)
    return match.end() if match else 0


class _BlockBuilder:
    """The text of a block's tokens, with its marks."""

    def __init__(self, tokens: Sequence[Token], pairs: dict[int, int], rules: MarkupRules) -> None:
        self._tokens, self._pairs, self._rules = tokens, pairs, rules
        self._text: list[str] = []
        self._length = 0
        self._marks: list[Mark] = []
        self._open: list[tuple[int, int]] = []  # the index of each open mark, and of its end tag
        self.translated_text = ""

    def build(self, indices: Sequence[int]) -> MarkedText:
        """The text in which each run of white space is a space, without one at the beginning and the end."""
        is_inside = set(indices)
        symbols = self._elements_of_symbols(indices)
        start_of_kept, end_of_kept, kept_text = -1, -1, ""
        for index in indices:
            token = self._tokens[index]
            if index <= end_of_kept:
                kept_text += self._as_text(token.raw) if token.kind == "text" else ""
                if index == end_of_kept:
                    raw = "".join(kept.raw for kept in self._tokens[start_of_kept : index + 1])
                    start = self._length
                    self._add(" ".join(kept_text.split()))
                    self._marks.append(Mark(start, self._length, raw, "", self._parent, is_kept=True))
                continue
            pair = self._pairs.get(index, -1)
            if token.kind == "text":
                self.translated_text += self._as_text(token.raw)
                self._add(self._as_text(token.raw))
            elif (character := self._referenced(token)) in ("&", "<", ">"):
                self._marks.append(Mark(self._length, self._length + 1, token.raw, "", self._parent, is_kept=True))
                self._add(character)
            elif character:
                self.translated_text += character
                self._add(self._as_text(character))
            elif index in symbols or (token.kind == "open" and pair in is_inside and _is_kept(token, self._rules)):
                start_of_kept, end_of_kept, kept_text = index, pair, ""
            elif token.kind == "open" and pair in is_inside:
                mark = Mark(self._length, self._length, token.raw, "", self._parent)
                self._open.append((len(self._marks), pair))
                self._marks.append(mark)
            elif self._open and self._open[-1][1] == index:
                opened, _ = self._open.pop()
                self._marks[opened] = replace(self._marks[opened], end=self._length, closing=token.raw)
            else:
                self._marks.append(Mark(self._length, self._length, token.raw, "", self._parent))
        text = "".join(self._text)
        start, end = len(text) - len(text.lstrip()), len(text.rstrip())
        last = next((index for index, mark in enumerate(self._marks) if end < mark.start), None)
        if last is not None:  # the space at the end belongs to the mark after it
            self._marks[last] = replace(self._marks[last], opening=" " + self._marks[last].opening)
        marks = [
            replace(mark, start=min(max(mark.start, start), end) - start, end=min(max(mark.end, start), end) - start)
            for mark in self._marks
        ]
        return MarkedText(text[start:end], tuple(marks))

    def _elements_of_symbols(self, indices: Sequence[int]) -> set[int]:
        """The start tags of elements without a letter that are no mere punctuation, such as <sup>2</sup>."""
        found: set[int] = set()
        counts_at: dict[int, tuple[int, int]] = {}
        num_letters = num_symbols = 0
        for index in indices:
            token, pair = self._tokens[index], self._pairs.get(index, -1)
            if token.kind == "text":
                text = self._as_text(token.raw)
                num_letters += any(map(str.isalpha, text))
                num_symbols += bool(_SYMBOL.search(text))
            elif token.kind == "open":
                counts_at[index] = num_letters, num_symbols
            elif pair in counts_at and counts_at[pair][0] == num_letters and counts_at[pair][1] < num_symbols:
                found.add(pair)
        return found

    def _referenced(self, token: Token) -> str:
        """The characters that a reference in plain text, such as &eacute;, stands for; else nothing."""
        if self._rules.language != "plain" or token.kind != "other" or not _REFERENCE.fullmatch(token.raw):
            return ""
        characters = html.unescape(token.raw)
        return "" if characters == token.raw else characters

    @property
    def _parent(self) -> int:
        return self._open[-1][0] if self._open else -1

    def _add(self, text: str) -> None:
        """Add text; a space after a space, or at the beginning, is left out, or belongs to the empty mark before it."""
        if text.startswith(" ") and (not self._length or self._text[-1].endswith(" ")):
            text = text[1:]
            last = len(self._marks) - 1
            is_open = any(index == last for index, _ in self._open[-1:])
            if last >= 0 and not is_open and self._marks[last].start == self._length and not self._marks[last].closing:
                self._marks[last] = replace(self._marks[last], opening=self._marks[last].opening + " ")
        if text:
            self._text.append(text)
            self._length += len(text)

    def _as_text(self, raw: str) -> str:
        """The characters that a run of text in a document stands for; white space is a space."""
        text = _SPACES.sub(" ", raw)
        return text if self._rules.language == "plain" else html.unescape(text)
