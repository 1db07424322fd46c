"""Plurals and selections of ICU messages, {n, plural, one {# dog} other {# dogs}}: their branches are texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce
from typing import Final

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


@dataclass(frozen=True, slots=True)
class IcuArgument:
    """A plural or a selection in a text, from `start` to `end`, and the ranges of the texts of its branches."""

    start: int
    end: int
    branches: list[Range]
    is_plural: bool


def find_icu_argument(text: str) -> IcuArgument | None:
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
    return IcuArgument(*match.span(), branches, is_plural="select," not in "".join(match["begins"].split()))
