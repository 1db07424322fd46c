"""An update's pairs dealt out to micro-batches of one shape, so that both sides of each fit."""

from __future__ import annotations

import numpy as np

from nmt_cli.dataset.rows import Array, Rows
from nmt_cli.dataset.shape import Shape

_CANDIDATES = 64  # rows of a micro-batch that are looked at for a swap: one of 4,096 swaps fits to about a token
_SWAPS = 16  # for each micro-batch, before another round of all devices is taken


def micro_batches(rows: Rows, *, shape: Shape, count: int, world_size: int) -> list[Rows]:
    """An update's rows in `count` micro-batches that fit the shape, or a multiple of `world_size` more where need be.

    Micro-batch i goes to rank i % world_size; one may be empty where an update has few pairs. Within each, rows ascend
    by target, then source length. Raises ValueError where a single sentence does not fit.
    """
    src, tgt = (rows[f"{side}_length"].astype(np.int64) for side in ("src", "tgt"))
    for lengths, slots in ((src, shape.src_slots), (tgt, shape.tgt_slots)):
        if (longest := int(lengths.max(initial=0))) > slots:
            raise ValueError(f"a sentence of {longest} pieces does not fit {slots} slots")
    place = np.lexsort((src, tgt))
    rows, src, tgt = rows[place], src[place], tgt[place]
    while True:
        part = _serpentine(len(rows), count)
        if _evened_out(part, src, tgt, shape=shape, count=count):
            return [rows[part == number] for number in range(count)]
        count += world_size


def fitting(rows: Rows, *, shape: Shape) -> Rows:
    """The first rows, at least one, that fit the shape."""
    src, tgt = (np.cumsum(rows[f"{side}_length"], dtype=np.int64) for side in ("src", "tgt"))
    size = len(rows)
    while size > 1 and not shape.holds(src_tokens=int(src[size - 1]), tgt_tokens=int(tgt[size - 1]), num_pairs=size):
        size -= 1
    return rows[:size]


def _serpentine(num_rows: int, count: int) -> Array:
    """To and fro over the micro-batches, from the last row, the longest, to the first: the micro-batch of each row."""
    lap, within = np.divmod(np.arange(num_rows)[::-1], count)
    return np.where(lap % 2 == 1, count - 1 - within, within)


def _evened_out(part: Array, src: Array, tgt: Array, *, shape: Shape, count: int) -> bool:
    """True where every micro-batch fits, after swaps of rows that are made in `part`.

    Each swap is one of the micro-batch that exceeds the shape most with another, the one that most reduces by how much
    both exceed it; a row may also be given and none taken.
    """
    slots = np.array([shape.src_slots, shape.tgt_slots])
    lengths = np.stack([src, tgt], axis=1)
    if (lengths.sum(axis=0) > count * slots).any():
        return False
    sums = np.stack([np.bincount(part, weights=side, minlength=count) for side in (src, tgt)], axis=1).astype(np.int64)
    for _ in range(_SWAPS * count):
        excess = np.maximum(sums - slots, 0).sum(axis=1)
        if not excess.any():
            break
        worst = int(excess.argmax())
        room = ((slots - sums) / slots).min(axis=1)
        for other in np.argsort(-room, kind="stable").tolist():
            if other != worst and _swap(part, lengths, sums, slots, worst, other):
                break
        else:
            return False
    sizes = np.bincount(part, minlength=count)
    return all(
        size == 0 or shape.holds(src_tokens=src_sum, tgt_tokens=tgt_sum, num_pairs=size)
        for size, (src_sum, tgt_sum) in zip(sizes.tolist(), sums.tolist(), strict=True)
    )


def _swap(part: Array, lengths: Array, sums: Array, slots: Array, worst: int, other: int) -> bool:
    """Make the best swap between two micro-batches in `part` and `sums`; False where none is better than none."""
    given, taken = (_candidates(part, number) for number in (worst, other))
    over = sums[[worst, other]] - slots
    total = np.zeros((len(given) + 1, len(taken) + 1), dtype=np.int64)
    for side in (0, 1):
        change = np.subtract.outer(_with_none(lengths[given, side]), _with_none(lengths[taken, side]))
        total += np.maximum(over[0, side] - change, 0)
        total += np.maximum(over[1, side] + change, 0)
    best = int(total.argmin())
    if total.flat[best] >= np.maximum(over, 0).sum():
        return False
    give, take = divmod(best, len(taken) + 1)
    part[given[give : give + 1]], part[taken[take : take + 1]] = other, worst
    moved = lengths[given[give : give + 1]].sum(axis=0) - lengths[taken[take : take + 1]].sum(axis=0)
    sums[worst] -= moved
    sums[other] += moved
    return True


def _candidates(part: Array, number: int) -> Array:
    """Rows of a micro-batch, of all lengths."""
    rows = np.flatnonzero(part == number)
    return rows[:: max(1, -(-len(rows) // _CANDIDATES))]


def _with_none(lengths: Array) -> Array:
    """The lengths of rows, and of none."""
    return np.append(lengths, 0)
