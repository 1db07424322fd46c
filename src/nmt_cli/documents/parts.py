"""A document in parts: strings that stay as they are, and blocks of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nmt_cli.documents.marked_text import MarkedText


@dataclass(frozen=True, slots=True)
class Block:
    """A block of text, and the function that writes it or its translation with its markup."""

    text: MarkedText
    write: Callable[[MarkedText], str]

    def respelled(self, spell: Callable[[str], str]) -> Block:
        """The block, whose writing another function then changes."""
        return Block(self.text, lambda block: spell(self.write(block)))


Part: TypeAlias = str | Block


def blocks_of(parts: Sequence[Part]) -> list[MarkedText]:
    """The texts of the blocks among the parts, in order."""
    return [part.text for part in parts if isinstance(part, Block)]


def render_parts(parts: Sequence[Part], blocks: Iterator[MarkedText]) -> str:
    """The parts together, with the next of `blocks` in the place of each block."""
    return "".join(part if isinstance(part, str) else part.write(next(blocks)) for part in parts)
