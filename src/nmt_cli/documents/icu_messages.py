"""Plurals and selections of ICU messages, {n, plural, one {# dog} other {# dogs}}: their branches are texts."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from nmt_cli.documents.markup_tokens import Token
from nmt_cli.tokenization.pieces import Range

_BEGINS = r"\{\s*[\w.-]+\s*,\s*(?:plural|select|selectordinal)\s*,"
_DEEPEST = 6
_BALANCED = reduce(lambda inner, _: rf"(?:[^{{}}]++|\{{{inner}\}})*+", range(_DEEPEST), "[^{}]*+")
ICU_ARGUMENT: Final = rf"{_BEGINS}{_BALANCED}\}}"
"""The pattern of a plural or a selection, with its branches."""
_ARGUMENT = re.compile(rf"(?P<begins>{_BEGINS})\s*(?:offset\s*:\s*\d+\s*)?(?P<branches>{_BALANCED})\}}")
_BRANCH = re.compile(rf"\s*(?:=\d+|[\w-]+)\s*\{{(?P<text>{_BALANCED})\}}\s*")
# More of them in a text would make a text of each combination of their branches.
_MOST_ARGUMENTS = 3


def icu_branches(tokens: Sequence[Token], *, kept: Collection[int]) -> list[str | list[Token]] | None:
    """The texts of the branches of an ICU argument, each with what stands around it, and the syntax between them.

    None if there is no such argument outside of the `kept` tokens, which are given by their indices.
    """
    text = "".join(
        "\0" if token.kind != "text" else "\0" * len(token.raw) if index in kept else token.raw
        for index, token in enumerate(tokens)
    )
    if (argument := _find_argument(text)) is None:
        return None
    before, after = _slice(tokens, 0, argument.start), _slice(tokens, argument.end, len(text))
    pieces: list[str | list[Token]] = []
    has_text = any(map(str.isalpha, text[: argument.start] + text[argument.end :]))
    if argument.is_plural and has_text:  # a number sign means the number inside of the argument alone
        before, after = (_with_signs(around, [Token("other", "'#'")]) for around in (before, after))
    sign = [Token("open", "", "#"), Token("text", "#"), Token("close", "", "#")]
    position = argument.start
    for start, end in argument.branches:
        branch = _slice(tokens, start, end)
        branch = _with_signs(branch, sign) if argument.is_plural else branch
        pieces += [text[position:start], [*before, *branch, *after] if has_text else branch]
        position = end
    pieces.append(text[position : argument.end])
    if not has_text:
        pieces = ["".join(token.raw for token in before), *pieces, "".join(token.raw for token in after)]
    return pieces


@dataclass(frozen=True, slots=True)
class _IcuArgument:
    """A plural or a selection in a text, from `start` to `end`, and the ranges of the texts of its branches."""

    start: int
    end: int
    branches: list[Range]
    is_plural: bool


def _find_argument(text: str) -> _IcuArgument | None:
    """The first plural or selection of a text; None if it has none, a damaged one, or too many."""
    match = _ARGUMENT.search(text)
    if match is None or len(re.findall(_BEGINS, text)) > _MOST_ARGUMENTS:
        return None
    branches: list[Range] = []
    position, end = match.span("branches")
    while position < end and (branch := _BRANCH.match(text, position, end)):
        branches.append(branch.span("text"))
        position = branch.end()
    if position < end or not branches:
        return None
    return _IcuArgument(*match.span(), branches, is_plural="select," not in "".join(match["begins"].split()))


def _slice(tokens: Sequence[Token], start: int, end: int) -> list[Token]:
    """The tokens between two characters of their text, in which any other token is one character."""
    found: list[Token] = []
    position = 0
    for token in tokens:
        length = len(token.raw) if token.kind == "text" else 1
        first, last = max(start - position, 0), min(end - position, length)
        if first < last:
            found.append(Token("text", token.raw[first:last]) if token.kind == "text" else token)
        position += length
    return found


def _with_signs(tokens: Sequence[Token], sign: Sequence[Token]) -> list[Token]:
    """The tokens, in whose text `sign` stands for each number sign."""
    found: list[Token] = []
    for token in tokens:
        runs = re.split(r"(?<!&)#", token.raw) if token.kind == "text" else []
        found += [token] if not runs else []
        for number, run in enumerate(runs):
            found += [*(sign if number else ()), *([Token("text", run)] if run else ())]
    return found
