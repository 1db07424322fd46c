"""Lines of text, with tags or without."""

from __future__ import annotations

import re
from collections.abc import Callable

from nmt_cli.documents.marked_text import MarkedText
from nmt_cli.documents.markup import PLAIN, parse_markup, write_plain
from nmt_cli.documents.parts import Block, Part

_LINE = re.compile(r"[^\r\n]+")


def text_parts(text: str) -> list[Part]:
    """Each line of a text as a block; tags are text as well."""
    parts: list[Part] = []
    position = 0
    for match in _LINE.finditer(text):
        line = match[0].strip()
        start = match.start() + match[0].find(line)
        if any(map(str.isalpha, line)):
            parts += [text[position:start], Block(MarkedText(line), write_plain)]
            position = start + len(line)
    return [*parts, text[position:]]


def marked_parts(text: str, escape: Callable[[str], str]) -> list[Part]:
    """Each line of a text with tags as a block; `escape` writes text as the document spells it."""
    parts: list[Part] = []
    position = 0
    for match in _LINE.finditer(text):
        parts.append(escape(text[position : match.start()]))
        for part in parse_markup(match[0], PLAIN).parts:
            parts.append(escape(part) if isinstance(part, str) else _escaped(part, escape))
        position = match.end()
    return [*parts, escape(text[position:])]


def _escaped(block: Block, escape: Callable[[str], str]) -> Block:
    return Block(block.text, lambda translation: escape(block.write(translation)))
