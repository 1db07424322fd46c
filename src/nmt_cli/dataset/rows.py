"""Rows: pairs of a split and where their sentences lie, as plans list them and batches are gathered from them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.integer]
Rows = npt.NDArray[np.void]
"""[n] with the fields `pair`, `src_start` and `tgt_start` (in the ids of that side), `src_length`, `tgt_length`."""


def row_type(*, num_pairs: int, num_tokens: int, longest: int) -> np.dtype[np.void]:
    """The type of rows, each field as narrow as so many pairs, tokens on a side and tokens of a sentence allow."""
    start, length = narrowest(num_tokens), narrowest(longest)
    return np.dtype(
        [
            ("pair", narrowest(num_pairs)),
            ("src_start", start),
            ("tgt_start", start),
            ("src_length", length),
            ("tgt_length", length),
        ]
    )


def narrowest(largest: int) -> str:
    """The code of the narrowest little-endian unsigned type that holds numbers up to `largest`."""
    return next(f"<u{size}" for size in (2, 4, 8) if largest < 1 << 8 * size)


def fill_rows(dtype: np.dtype[np.void], pairs: Array, src_offsets: Array, tgt_offsets: Array) -> Rows:
    """The rows of some pairs [n], given where each sentence of the split begins, and where the last one ends."""
    rows = np.empty(len(pairs), dtype=dtype)
    rows["pair"] = pairs
    for side, offsets in (("src", src_offsets), ("tgt", tgt_offsets)):
        rows[f"{side}_start"] = starts = offsets[pairs]
        rows[f"{side}_length"] = offsets[pairs + 1] - starts
    return rows


def sum_lengths(rows: Rows, *, side: str) -> int:
    """The tokens of one side, `src` or `tgt`, with EOS."""
    return int(rows[f"{side}_length"].sum(dtype=np.int64))
