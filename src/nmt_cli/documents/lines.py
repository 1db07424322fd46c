"""Lines of text, which may have tags."""

from __future__ import annotations

import re
from collections.abc import Callable

from nmt_cli.documents.icu_messages import ICU_ARGUMENT
from nmt_cli.documents.markup import parse_markup
from nmt_cli.documents.markup_tokens import PLAIN
from nmt_cli.documents.parts import Part

# A plural of ICU may have several.
_TEXT = rf"(?:[^\r\n{{]++|{ICU_ARGUMENT}|\{{)"
_LINE = re.compile(rf"{_TEXT}++")
_LINE_WITH_END = re.compile(rf"{_TEXT}*+(?:\r\n?|\n)|{_TEXT}++")


def lines_of(text: str) -> list[str]:
    """The lines of a text with their ends."""
    return _LINE_WITH_END.findall(text)


def text_parts(text: str, escape: Callable[[str], str] = str) -> list[Part]:
    """Each line of a text as a block, with its tags; `escape` writes text as the document spells it."""
    parts: list[Part] = []
    position = 0
    for match in _LINE.finditer(text):
        parts.append(escape(text[position : match.start()]))
        for part in parse_markup(match[0], PLAIN).parts:
            parts.append(escape(part) if isinstance(part, str) else part.respelled(escape))
        position = match.end()
    return [*parts, escape(text[position:])]
