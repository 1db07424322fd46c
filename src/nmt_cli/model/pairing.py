"""Groups of sentences of like length, each a rectangle of queries and one of keys, for attention on a CPU.

Shapes: B sentences of a group, T and S the widths of its rectangles, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt_cli.model.packing import Packed

Integers = NDArray[np.int64]

_LEAST_KEYS = 16  # a softmax over fewer than 16 float32 takes torch ten times as long
# oneDNN prepares a product anew for each new shape, for half a millisecond: widths and counts are such as come again.
_WIDTHS, _SENTENCES = 8, 16
_MOST_PIECES = 24
# What a head costs in forward and backward pass, in ns on one machine: only the ratios matter, and those not much.
_COST_OF_SLOT, _COST_OF_GROUP = 36, 12_000


class Side:
    """The rectangles of one side of the groups: which tokens lie in them, and where each token lies.

    A rectangle with heads is [B * H, width] rows; those of all groups follow each other. Tensors are made when they are
    first asked for, and kept for the other layers.
    """

    def __init__(
        self, starts: Integers, lengths: Integers, groups: list[Integers], widths: list[int], *, num_repeats: int
    ) -> None:
        """Sentences by where they start and how long they are, and the numbers of those in each group.

        The first `num_repeats` of the first group are there for the count, and come again behind.
        """
        self._starts, self._lengths = starts, lengths
        self._groups, self._widths, self._num_repeats = groups, widths, num_repeats
        self._kept: dict[tuple[str, int, int], Tensor] = {}

    def split(self, rows: Tensor, heads: int) -> list[Tensor]:
        """The rectangles [B * H, width, K] of each group in rows [all, K]."""
        batches = [len(group) * heads for group in self._groups]
        sizes = [batch * width for batch, width in zip(batches, self._widths, strict=True)]
        parts = rows.split(sizes)
        return [part.view(batch, -1, rows.size(1)) for part, batch in zip(parts, batches, strict=True)]

    def rows(self, heads: int, *, step: int) -> Tensor:
        """For each row of the rectangles, the row of token t and head h, t * step + h; padding is the last token."""
        if ("rows", heads, step) not in self._kept:
            tokens = [
                self._starts[group, None] + np.minimum(np.arange(width), self._lengths[group, None] - 1)
                for group, width in zip(self._groups, self._widths, strict=True)
            ]
            rows = [(part[:, None] * step + np.arange(heads)[:, None]).ravel() for part in tokens]
            self._kept["rows", heads, step] = torch.from_numpy(np.concatenate(rows))
        return self._kept["rows", heads, step]

    def places(self, heads: int) -> Tensor:
        """The row of the rectangles where each head of each token lies, [num_tokens * H]."""
        if ("places", heads, 0) not in self._kept:
            places, offset = np.empty((int(self._lengths.sum()), heads), dtype=np.int64), 0
            for group, width, are_tokens in zip(self._groups, self._widths, self._are_tokens(), strict=True):
                tokens = (self._starts[group, None] + np.arange(width))[are_tokens]
                rows = np.arange(len(group))[:, None] * heads * width + np.arange(width)
                places[tokens] = offset + rows[are_tokens][:, None] + np.arange(heads) * width
                offset += len(group) * heads * width
            self._kept["places", heads, 0] = torch.from_numpy(places.ravel())
        return self._kept["places", heads, 0]

    def padding(self, heads: int) -> Tensor:
        """The rows of the rectangles that are padding."""
        if ("padding", heads, 0) not in self._kept:
            are_tokens = [np.repeat(part, heads, axis=0).ravel() for part in self._are_tokens()]
            self._kept["padding", heads, 0] = torch.from_numpy((~np.concatenate(are_tokens)).nonzero()[0])
        return self._kept["padding", heads, 0]

    def _are_tokens(self) -> list[NDArray[np.bool_]]:
        """For each group, True at the tokens of its sentences, [B, width]."""
        parts = [
            np.arange(width) < self._lengths[group, None]
            for group, width in zip(self._groups, self._widths, strict=True)
        ]
        parts[0][: self._num_repeats] = False
        return parts


@dataclass(frozen=True)
class Group:
    """Sentences that share a rectangle of queries, `num_queries` wide, and one of keys, `num_keys` wide."""

    query_lengths: Integers
    key_lengths: Integers
    num_queries: int
    num_keys: int
    _kept: dict[tuple[int, torch.dtype, bool, int | None], Tensor | None] = field(default_factory=dict)

    def mask(self, heads: int, dtype: torch.dtype, *, is_causal: bool, window: int | None) -> Tensor | None:
        """-inf where a query may not look, else 0: [T, S], [B * H, 1, S] or [B * H, T, S]; None where it may always.

        A padded query may look at anything but nothing: a row without keys would be NaN.
        """
        key = (heads, dtype, is_causal, window)
        if key not in self._kept:
            seen = self._seen(is_causal=is_causal, window=window)
            self._kept[key] = None if seen is None else _as_mask(seen, heads, dtype)
        return self._kept[key]

    def _seen(self, *, is_causal: bool, window: int | None) -> NDArray[np.bool_] | None:
        queries, keys = np.arange(self.num_queries)[:, None], np.arange(self.num_keys)
        if is_causal:
            return (keys <= queries)[None]
        are_real = keys < self.key_lengths[:, None, None]
        if window is None:
            return None if are_real.all() else are_real
        is_near = (abs(queries - keys) <= window // 2) | (queries >= self.query_lengths[:, None, None])
        seen: NDArray[np.bool_] = is_near & are_real
        return seen


def _as_mask(seen: NDArray[np.bool_], heads: int, dtype: torch.dtype) -> Tensor:
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(torch.from_numpy(~seen), -torch.inf)
    return mask[0] if len(mask) == 1 else mask.repeat_interleave(heads, 0)


@dataclass(frozen=True)
class Pairing:
    """The sentences of queries and keys in groups of like length, each with as little padding as pays."""

    groups: list[Group]
    queries: Side
    keys: Side


def pairing_of(queries: Packed, keys: Packed) -> Pairing:
    """The groups of two layouts of the same sentences; made once for the two, and kept as long as `queries` is."""
    partner = None if queries is keys else keys  # a layout that held itself would have to be collected as garbage
    for known, pairing in queries.pairings:
        if known is partner:
            return pairing
    pairing = _pair(queries, keys)
    queries.pairings.append((partner, pairing))
    return pairing


def _pair(queries: Packed, keys: Packed) -> Pairing:
    (q_starts, q_lengths), (k_starts, k_lengths) = _sentences(queries), _sentences(keys)
    order = np.argsort(q_lengths + k_lengths, kind="stable")
    num_repeats = -len(order) % _SENTENCES
    order = np.concatenate([np.repeat(order[:1], num_repeats), order])
    numbers = _cut(order, q_lengths, k_lengths)
    groups = [
        Group(q_lengths[part], k_lengths[part], _width(q_lengths[part]), max(_LEAST_KEYS, _width(k_lengths[part])))
        for part in numbers
    ]
    widths = [group.num_queries for group in groups], [group.num_keys for group in groups]
    return Pairing(
        groups,
        Side(q_starts, q_lengths, numbers, widths[0], num_repeats=num_repeats),
        Side(k_starts, k_lengths, numbers, widths[1], num_repeats=num_repeats),
    )


def _sentences(layout: Packed) -> tuple[Integers, Integers]:
    """Where each sentence starts, and how long it is."""
    bounds = layout.cu_seqlens[: layout.num_sentences + 1].numpy().astype(np.int64)
    return bounds[:-1], np.diff(bounds)


def _width(lengths: Integers) -> int:
    return -(-int(lengths.max()) // _WIDTHS) * _WIDTHS


def _cut(order: Integers, q_lengths: Integers, k_lengths: Integers) -> list[Integers]:
    """The sentences, in order of length, cut where all rectangles together cost least (dynamic programming).

    Cuts lie between pieces of as many sentences each; a group is a run of pieces. `order` has whole pieces.
    """
    units = len(order) // _SENTENCES
    num_pieces = min(_MOST_PIECES, units)
    bounds = np.arange(num_pieces + 1) * units // num_pieces * _SENTENCES
    widest = [np.maximum.reduceat(lengths[order], bounds[:-1]) for lengths in (q_lengths, k_lengths)]
    costs, firsts = np.zeros(num_pieces + 1), np.zeros(num_pieces + 1, dtype=np.int64)
    for end in range(1, num_pieces + 1):
        # The widths of groups that begin at each piece and end here.
        t, s = (np.maximum.accumulate(widths[:end][::-1])[::-1] for widths in widest)
        s = np.maximum(_LEAST_KEYS, s)
        with_group = costs[:end] + (bounds[end] - bounds[:end]) * (t * s + _COST_OF_SLOT * (t + s)) + _COST_OF_GROUP
        firsts[end] = with_group.argmin()
        costs[end] = with_group[firsts[end]]
    groups, end = [], num_pieces
    while end > 0:
        groups.append(order[bounds[firsts[end]] : bounds[end]])
        end = int(firsts[end])
    return groups[::-1]
