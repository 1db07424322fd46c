"""Figures as they are read: counts, shares, sizes and times."""

from __future__ import annotations


def share(part: float, whole: float) -> str:
    """A part in per cent of the whole: 41.3%, 2.66%, 0.0031%; 0% only for none of it, 100% only for all of it."""
    percent = 100 * part / whole if whole else 0.0
    if percent in (0, 100):
        return f"{percent:.0f}%"
    if 99.9 < percent < 100:
        return f"{min(percent, 99.99):.2f}%"
    return f"{percent:.1f}%" if percent >= 10 else f"{percent:.2f}%" if percent >= 0.1 else f"{percent:.2g}%"


def large(number: int) -> str:
    """A count, from ten million on in millions: 969,026, 4,508,785, 36.25 million."""
    return f"{number / 1e6:,.4g} million" if number >= 10_000_000 else f"{number:,}"


def size(num_bytes: int) -> str:
    """A size in the unit that suits it."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes:,} bytes"
