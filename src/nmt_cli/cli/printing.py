"""The forms in which commands print on stdout: JSON, facts with labels, and tables."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import typer

from nmt_cli.console import without_controls, wrap

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# The width of output that is not wrapped: no table is wider.
_MAX_WIDTH = 1000
LABEL_WIDTH = 13


def is_terminal() -> bool:
    """True if stdout is a terminal that is not dumb."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def print_json(value: object) -> None:
    """Print one JSON value; numbers that JSON does not have, such as NaN, become null."""
    value = json.loads(json.dumps(value), parse_constant=lambda _: None)
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print each fact behind its label; a fact of several lines stays in its column."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    width = console.width - LABEL_WIDTH if is_terminal() else _MAX_WIDTH
    for label, fact in facts:
        for index, line in enumerate(wrap(without_controls(fact), width=width, indent=0)):
            first_column = label if index == 0 else ""
            console.print(Text.assemble((f"{first_column:<{LABEL_WIDTH}}", "bold"), line), soft_wrap=True)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right_aligned: Collection[str]) -> None:
    """Print a table: drawn on a terminal, else with tabs.

    A terminal shows the columns `right_aligned` on the right, and never wraps them.
    """
    if not is_terminal():
        _print_with_tabs(header, rows)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        justify: Literal["right", "left"] = "right" if name in right_aligned else "left"
        table.add_column(name, justify=justify, no_wrap=name in right_aligned, overflow="fold")
    for row in rows:
        table.add_row(*map(without_controls, row))
    print_whole(Console(highlight=False, markup=False, emoji=False), table)


def print_list(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, right_aligned: Collection[str], num_sentence_columns: int
) -> None:
    """Print a table whose last columns are sentences: on a terminal they stand below their row, else behind tabs."""
    if not is_terminal():
        _print_with_tabs(header, rows)
        return
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    cells = [header, *([without_controls(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)][:-num_sentence_columns]
    for index, row in enumerate(cells):
        aligned = [
            cell.rjust(width) if name in right_aligned else cell.ljust(width)
            for name, cell, width in zip(header, row, widths, strict=False)  # without the columns of sentences
        ]
        is_header = index == 0
        console.print(Text("  ".join(aligned).rstrip(), style="bold" if is_header else ""), soft_wrap=True)
        if not is_header:
            sentences = "; ".join(sentence for sentence in reversed(row[-num_sentence_columns:]) if sentence)
            console.print(Padding(Text(sentences, style="dim"), (0, 0, 0, 4)))


def print_whole(console: Console, table: Table) -> None:
    """Print a table as wide as its columns need: a narrow terminal wraps its lines, and no figure is cut off."""
    from rich.measure import Measurement

    needed = Measurement.get(console, console.options.update(max_width=_MAX_WIDTH), table).minimum
    if needed > console.width:
        table.width = needed
    console.print(table, crop=False, no_wrap=needed > console.width)


def _print_with_tabs(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    typer.echo("\n".join("\t".join(map(without_controls, row)) for row in (header, *rows)))
