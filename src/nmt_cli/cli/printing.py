"""The forms in which commands print on stdout: JSON, facts with labels, and tables."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from typing import Literal

import typer


def is_terminal() -> bool:
    """True if stdout is a terminal that is not dumb."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def print_json(value: object) -> None:
    """Print one JSON value."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print each fact behind its label; a fact of several lines stays in its column."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for label, fact in facts:
        for number, line in enumerate(fact.splitlines()):
            console.print(Text.assemble((f"{'' if number else label:<13}", "bold"), line), soft_wrap=True)


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str],
    whole: Collection[str] = (),
    styles: Sequence[str] = (),
) -> None:
    """Print a table: drawn on a terminal, with the columns `right` aligned there, else with tabs.

    `whole` are columns that are never wrapped. `styles` are Rich's, one per row.
    """
    if not is_terminal():
        typer.echo("\n".join("\t".join(row) for row in (header, *rows)))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        justify: Literal["right", "left"] = "right" if name in right else "left"
        table.add_column(name, justify=justify, no_wrap=name in whole, overflow="fold")
    for row, style in zip_longest(rows, styles):
        table.add_row(*row, style=style)
    Console(highlight=False, markup=False, emoji=False).print(table)
