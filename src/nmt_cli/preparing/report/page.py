"""The report of prepared data as a page for a browser, from the template report.html."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nmt_cli.preparing.report.charts import length_chart
from nmt_cli.templates.render import render

Report = Mapping[str, Any]

_MAX_INPUTS = 200
_MANY_DROPPED = 0.3


def render_page(report: Report) -> str:
    """The whole report as HTML; every text in it is escaped."""
    languages, train = report["languages"], report["splits"]["train"]
    bins = {unit: {side: train[side][unit]["histogram"] for side in train} for unit in ("words", "pieces")}
    charts = [length_chart(sides, languages=languages, unit=unit) for unit, sides in bins.items()]
    findings = [*report["warnings"], *_findings(report)]
    numbers = {"large": large, "share": share, "size": size}
    return render("report.html", report=report, findings=findings, charts=charts, max_inputs=_MAX_INPUTS, **numbers)


def share(part: float, whole: float) -> str:
    """A part as a percentage of the whole: 41.3%, 2.66%, 0.0031%. Only nothing is 0%, and only the whole is 100%."""
    percent = 100 * part / whole if whole else 0.0
    if percent in (0, 100):
        return f"{percent:.0f}%"
    if 99.9 < percent < 100:
        return f"{min(percent, 99.99):.2f}%"
    return f"{percent:.1f}%" if percent >= 10 else f"{percent:.2f}%" if percent >= 0.1 else f"{percent:.2g}%"


def large(number: int) -> str:
    """A count, in millions from ten million on: 969,026, 4,508,785, 36.25 million."""
    return f"{number / 1e6:,.4g} million" if number >= 10_000_000 else f"{number:,}"


def size(num_bytes: int) -> str:
    """A number of bytes in the unit that suits it."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes:,} bytes"


def _findings(report: Report) -> Iterator[str]:
    """Reasons to doubt the data, found in the report's figures."""
    read, kept = report["cleaning"]["read"], report["cleaning"]["kept"]
    if read == report["limit"]:
        yield f"This is a try: no more than the first {read:,} training pairs were read (limit)."
    is_left = report["settings"]["cleaning"]["overlap"]["value"] == "report"
    for split, facts in report["overlap"].items():
        if facts["pairs"] and is_left:
            name = "validation" if split == "valid" else split
            yield (
                f"{facts['pairs']:,} of {facts['lines']:,} pairs of the {name} text are in the training text "
                f"too ({share(facts['pairs'], facts['lines'])}): scores on them are too good. "
                "The setting cleaning.overlap=pairs drops them from the training text."
            )
    if read - kept > _MANY_DROPPED * read:
        yield f"Only {share(kept, read)} of the training pairs are kept: see below for what the others were dropped."
