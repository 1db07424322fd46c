"""The pages of the documentation as Markdown tokens: fenced blocks with their marks, links, anchors, inline code.

A mark is an HTML comment right before a block, `<!-- needs: gpus -->`, and says how the block is run in the tests:
    needs: WHAT     it needs more than a machine without a network has: `nmt` is run with --dry-run, other programs are
                    stand-ins (programs.py)
    file: NAME      it is no command but the content of this file, for the blocks after it
    exits: CODE     in the tests, with a model of six updates, it ends with this exit code
    figures: differ the numbers shown come from a full run; any others in their places will do; warnings do not count
    words: differ   the text shown comes from a full run; only the number of lines is compared; warnings do not count
`<!-- begins: WHAT -->` anywhere on a page says what lies in the folder in which its blocks are run one after the other;
otherwise it is empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
MEASUREMENTS = {ROOT / "docs" / "benchmarks" / "README.md", ROOT / "docs" / "paper-measured.md"}
NEEDS = {"network", "gpus", "docker", "slurm", "torchrun"}
BEGINNINGS = {"nothing", "text", "demo", "stopped"}
MARKS = {"needs", "file", "exits", "figures", "words", "begins"}

_MARK = re.compile(r"<!-- ([a-z]+): (\S+) -->")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: where it stands, its language, its text, and its marks."""

    where: str
    language: str
    text: str
    marks: dict[str, str]


@dataclass(frozen=True, slots=True)
class Page:
    """A Markdown file."""

    path: Path
    tokens: list[Token]

    @property
    def name(self) -> str:
        """Its path from the root of the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def begins(self) -> str:
        """The name of the files that lie in the folder before its first block."""
        marks: dict[str, str] = dict(_MARK.findall(self.path.read_text(encoding="utf-8")))
        return marks.get("begins", "nothing")

    def blocks(self) -> Iterator[Block]:
        """The fenced blocks in order."""
        marks: dict[str, str] = {}
        for token in self.tokens:
            if token.type == "html_block":
                marks |= dict(_MARK.findall(token.content))
                continue
            if token.type == "fence":
                assert token.map is not None
                yield Block(f"{self.name}:{token.map[0] + 1}", token.info.strip(), token.content, marks)
            marks = {}

    def inline(self) -> Iterator[Token]:
        """The tokens within paragraphs, headings and cells of tables."""
        for token in self.tokens:
            yield from token.children or []

    def anchors(self) -> set[str]:
        """The names that may follow `#`: headings, as code hosts turn them into identifiers."""
        titles = [
            "".join(child.content for child in token.children or [])
            for before, token in zip(self.tokens, self.tokens[1:], strict=False)
            if before.type == "heading_open"
        ]
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def read_page(path: Path) -> Page:
    return Page(path, MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8")))


def pages() -> list[Page]:
    return [read_page(path) for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]


def guides() -> list[Page]:
    """All pages but the measurements: what was measured is not run again."""
    return [page for page in pages() if page.path not in MEASUREMENTS]
