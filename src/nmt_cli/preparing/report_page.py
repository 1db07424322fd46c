"""The report of prepared data as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_BAR = 30


def render_page(report: dict[str, Any]) -> str:
    """The whole report as Markdown text."""
    languages = report["languages"]
    parts = [
        [f"# Prepared data: {report['name']} ({languages['source']} to {languages['target']})", ""],
        _origin(report),
        _splits(report),
        _vocabulary(report),
        _cleaning(report["cleaning"]),
        _overlap(report["overlap"]),
        _histogram(report),
        _examples(report["examples"]),
    ]
    return "\n".join(line for part in parts for line in part)


def _origin(report: dict[str, Any]) -> Iterator[str]:
    if report["description"]:
        yield report["description"]
        yield ""
    yield f"Licence of the text: {report['licence'] or 'not stated'}."
    yield ""


def _splits(report: dict[str, Any]) -> Iterator[str]:
    yield from _heading("Size and lengths", "Pieces are counted without EOS.")
    rows = [
        [
            split if side == "source" else "",
            f"{report['pairs'][split]:,}" if side == "source" else "",
            report["languages"][side],
            *(f"{facts['words'][key]:,}" for key in ("mean", "p50", "p99", "max")),
            *(f"{facts['pieces'][key]:,}" for key in ("mean", "p50", "p99", "max")),
            f"{facts['pieces_per_word']:.2f}",
            f"{facts['unknown_rate']:.4%}",
            f"{facts['byte_rate']:.4%}",
        ]
        for split, sides in report["splits"].items()
        for side, facts in sides.items()
    ]
    head = ["split", "pairs", "side", "words, mean", "median", "99 %", "max", "pieces, mean", "median", "99 %", "max"]
    yield from _table([*head, "pieces a word", "unknown", "bytes"], rows)


def _vocabulary(report: dict[str, Any]) -> Iterator[str]:
    vocabulary = report["vocabulary"]
    yield from _heading("Vocabulary", "shared by both languages" if vocabulary["shared"] else "one for each language")
    rows = [
        [
            report["languages"][side],
            *(f"{vocabulary[side][key]:,}" for key in ("size", "sampled", "lines", "skipped")),
            f"{report['splits']['train'][side]['pieces_used']:,}",
        ]
        for side in ("source", "target")
    ]
    head = ["side", "pieces", "lines trained on", "of lines", "unusable lines", "pieces used in training text"]
    yield from _table(head, rows)


def _cleaning(cleaning: dict[str, Any]) -> Iterator[str]:
    read, kept = cleaning["read"], cleaning["kept"]
    yield from _heading(
        "Cleaning",
        f"{kept:,} of {read:,} training pairs are kept ({kept / read:.2%}); "
        f"{cleaning['tidied']:,} of them lost outer or repeated spaces.",
    )
    dropped = {reason: facts for reason, facts in cleaning["dropped"].items() if facts["count"]}
    if not dropped:
        return
    rows = [[reason, f"{facts['count']:,}", f"{facts['count'] / read:.3%}"] for reason, facts in dropped.items()]
    yield from _table(["dropped for", "pairs", "share"], rows)
    for reason, facts in dropped.items():
        yield f"First dropped for {reason}:"
        yield ""
        for example in facts["examples"]:
            yield f"- {example['where']}: {_code(example['source'])} / {_code(example['target'])}"
        yield ""


def _overlap(overlap: dict[str, Any]) -> Iterator[str]:
    yield from _heading("Overlap with the training text", "Lines of the split that occur in training, spaces aside.")
    rows = [
        [split, *(f"{facts[key]:,}" for key in ("lines", "pairs", "sources", "targets"))]
        for split, facts in overlap.items()
    ]
    yield from _table(["split", "lines", "as a pair", "source", "target"], rows)


def _histogram(report: dict[str, Any]) -> Iterator[str]:
    yield from _heading("Training sentences by length in pieces", "")
    bins = {side: report["splits"]["train"][side]["pieces"]["histogram"] for side in ("source", "target")}
    longest = max(bins.values(), key=len)
    peak = max(one["sentences"] for side in bins.values() for one in side)
    rows = []
    for index, edges in enumerate(longest):
        counts = [side[index]["sentences"] if index < len(side) else 0 for side in bins.values()]
        label = f"{edges['from']} - {edges['to']}" if edges["to"] is not None else f"{edges['from']} and more"
        label = "0" if edges["to"] == 0 else label
        rows.append([label, *(cell for count in counts for cell in (f"{count:,}", "█" * round(_BAR * count / peak)))])
    languages = report["languages"]
    yield from _table(["pieces", languages["source"], "", languages["target"], ""], rows)


def _examples(examples: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield from _heading("Pairs drawn from the training text", "")
    for example in examples:
        for side in ("source", "target"):
            yield f"- {example[side]['text']}  "
            yield f"  {_code(' '.join(example[side]['pieces']))}"
        yield ""


def _heading(title: str, note: str) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    if note:
        yield note
        yield ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _code(text: str) -> str:
    """Text between as many backquotes as its own do not close."""
    fence = "`"
    while fence in text:
        fence += "`"
    inner = f" {text} " if text.startswith("`") or text.endswith("`") else text
    return f"{fence}{inner or ' '}{fence}"
