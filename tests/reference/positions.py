"""Position encodings, number by number, from their formulas."""

from __future__ import annotations

import math


def sinusoid(position: int, column: int, d_model: int) -> float:
    """Section 3.5: sin(pos / 10000^(2i / d_model)) in column 2i, the cosine of the same in column 2i + 1."""
    pair = column // 2
    angle = position / math.pow(10000, 2 * pair / d_model)
    return math.cos(angle) if column % 2 else math.sin(angle)


def sinusoid_in_halves(position: int, column: int, d_model: int) -> float:
    """tensor2tensor's get_timing_signal_1d: wavelengths from 1 to 10000 inclusive, sines left, cosines right."""
    half = d_model // 2
    step = math.log(10000) / (half - 1)
    angle = position * math.exp(-step * (column % half))
    return math.sin(angle) if column < half else math.cos(angle)
