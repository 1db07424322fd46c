"""The package's source as syntax trees, for the tests that read it instead of running it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "nmt_cli"


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed file; `path` is relative to the package, as in `model/attention.py`."""

    path: str
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """The module or folder directly below nmt_cli that the file is, or lies in; empty for nmt_cli/__init__.py."""
        first = PurePosixPath(self.path).parts[0].removesuffix(".py")
        return "" if first == "__init__" else first

    @property
    def name(self) -> str:
        """The dotted name that the file is imported by."""
        return ".".join(["nmt_cli", *PurePosixPath(self.path).with_suffix("").parts]).removesuffix(".__init__")

    def at(self, node: ast.AST, what: str) -> str:
        """A violation and its place: `file:line what`."""
        return f"{self.path}:{getattr(node, 'lineno', 1)} {what}"


Rule = Callable[[Sequence[Module]], Iterator[str]]
"""From modules to violations, each with its place."""


def parse(path: str, text: str) -> Module:
    return Module(path, text, ast.parse(text, filename=path))


@functools.cache
def package_modules() -> list[Module]:
    files = sorted(SOURCE.rglob("*.py"))
    return [parse(file.relative_to(SOURCE).as_posix(), file.read_text(encoding="utf-8")) for file in files]


def assert_kept(rule: Rule) -> None:
    violations = list(rule(package_modules()))
    assert not violations, "\n" + "\n".join(violations)


def dotted_name(node: ast.AST) -> str:
    """`a.b.c` for such an expression; starts with a dot, or is empty, for anything that is not a plain name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def called(node: ast.AST) -> str:
    """The dotted name of what a call calls; empty where `node` is no call."""
    return dotted_name(node.func) if isinstance(node, ast.Call) else ""
