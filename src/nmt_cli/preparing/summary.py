"""The report of prepared data as a screenful for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table


def size_table(report: dict[str, Any]) -> Table:
    """Pairs and lengths of each split and side."""
    languages, vocabulary = report["languages"], report["vocabulary"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "pairs", "side", "words", "pieces", "99 %", "longest", "a word", "in bytes"):
        table.add_column(name, justify="left" if name in ("", "side") else "right", no_wrap=True)
    for split, sides in report["splits"].items():
        for side, facts in sides.items():
            pieces = facts["pieces"]
            table.add_row(
                split if side == "source" else "",
                f"{report['pairs'][split]:,}" if side == "source" else "",
                languages[side],
                *(f"{facts[unit]['mean']:.1f}" for unit in ("words", "pieces")),
                *(f"{pieces[key]:,}" for key in ("p99", "max")),
                f"{facts['pieces_per_word']:.2f}",
                f"{facts['byte_rate']:.2%}",
            )
    sizes = [f"{vocabulary[side]['size']:,}" for side in ("source", "target")]
    kind = f"{sizes[0]} shared pieces" if vocabulary["shared"] else f"{sizes[0]} and {sizes[1]} pieces"
    table.title = f"{report['name']}: {languages['source']} to {languages['target']}, {kind}"
    table.title_justify = "left"
    return table


def summary_lines(report: dict[str, Any]) -> Iterator[str]:
    """What cleaning dropped, what training shares with the other splits, and two pairs in pieces."""
    cleaning = report["cleaning"]
    dropped = {reason: facts["count"] for reason, facts in cleaning["dropped"].items() if facts["count"]}
    number = cleaning["read"] - cleaning["kept"]
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in dropped.items())
    yield f"dropped {number:,} of {cleaning['read']:,} training pairs" + (f": {reasons}" if reasons else "")
    for split, facts in report["overlap"].items():
        if facts["sources"] or facts["targets"]:
            yield (
                f"overlap: of {facts['lines']:,} {split} lines, training contains {facts['pairs']:,} as pairs, "
                f"{facts['sources']:,} as sources, {facts['targets']:,} as targets"
            )
    for example in report["examples"][:2]:
        for side in ("source", "target"):
            yield f"{report['languages'][side]}: {' '.join(example[side]['pieces'])}"
