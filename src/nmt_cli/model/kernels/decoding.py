"""Kernels in Triton for one decoder step of a search; `static_cache.py` launches them, each beside the same in PyTorch.

Shapes: B sentences, W hypotheses per sentence, R = B * W rows, S source tokens, L positions, D d_model, H heads,
K = d_k, V = d_v. Sums and statistics are float32. Widths may be any; `COLUMNS`, `KEYS` and `VALUES` are the next powers
of two.
"""

from __future__ import annotations

from subprocess import SubprocessError

import torch
import triton
import triton.language as tl
from triton.errors import TritonError


def check(device: torch.device) -> None:
    """Compile and launch the smallest kernel; RuntimeError if Triton cannot, for example without a C compiler."""
    x, numbers = torch.zeros(1, 16, device=device), torch.zeros(1, dtype=torch.long, device=device)
    try:
        embed[(1,)](numbers, x, None, numbers, x, 1.0, WIDTH=16, COLUMNS=16)
    except (TritonError, OSError, SubprocessError) as problem:
        raise RuntimeError(f"{type(problem).__name__}: {problem}") from problem


@triton.jit
def embed(ids, weight, table, counters, out, scale, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of `weight` times `scale`, plus row `counters[0]` of `table` [positions, D] if there is one: out [R, D]."""
    row = tl.program_id(0)
    columns = tl.arange(0, COLUMNS)
    is_real = columns < WIDTH
    x = tl.load(weight + tl.load(ids + row) * WIDTH + columns, mask=is_real).to(tl.float32) * scale
    if table is not None:
        x += tl.load(table + tl.load(counters) * WIDTH + columns, mask=is_real).to(tl.float32)
    tl.store(out + row * WIDTH + columns, x, mask=is_real)


@triton.jit
def attend_to_past(
    qkv,
    cache,
    ancestors,
    counters,
    cos,
    sin,
    out,
    beam,
    length,
    scale,
    HEADS: tl.constexpr,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    TILE: tl.constexpr,
):
    """One head of one hypothesis attends to its own past and itself: out [R, H V].

    The new key and value of qkv [R, H (2 K + V)] go into the cache [B, L W, H (K + V)]; the slot of a hypothesis is
    position * W + its number. `ancestors` [R, L] has the numbers that a hypothesis had at positions before
    `counters[0]`. With `cos` and `sin` [positions, K / 2], queries and keys are turned by their position.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    place = tl.load(counters).to(tl.int32)
    key_columns, value_columns = tl.arange(0, KEYS), tl.arange(0, VALUES)
    width = HEADS * (D_K + D_V)
    token = qkv + row * (HEADS * D_K + width)
    query = token + head * D_K
    q = _turned(query, cos, sin, place, key_columns, D_K) * scale
    k = _turned(query + HEADS * D_K, cos, sin, place, key_columns, D_K)
    v = tl.load(token + 2 * HEADS * D_K + head * D_V + value_columns, mask=value_columns < D_V, other=0.0)

    past = cache + (row // beam).to(tl.int64) * length * beam * width
    own = past + (place * beam + row % beam) * width
    tl.store(own + head * D_K + key_columns, k, mask=key_columns < D_K)
    tl.store(own + HEADS * D_K + head * D_V + value_columns, v, mask=value_columns < D_V)

    largest, total, mixed = tl.sum(q * k), 1.0, v.to(tl.float32)
    for start in range(0, place, TILE):
        positions = start + tl.arange(0, TILE)
        is_past = positions < place
        numbers = tl.load(ancestors + row * length + positions, mask=is_past, other=0)
        slots = past + (positions * beam + numbers) * width
        keys = slots[:, None] + head * D_K + key_columns[None, :]
        values = slots[:, None] + HEADS * D_K + head * D_V + value_columns[None, :]
        largest, total, mixed = _seen(q, keys, values, is_past, largest, total, mixed, D_K, D_V)
    tl.store(out + (row * HEADS + head) * D_V + value_columns, mixed / total, mask=value_columns < D_V)


@triton.jit
def attend_to_source(
    queries,
    cross,
    lengths,
    out,
    beam,
    num_slots,
    scale,
    HEADS: tl.constexpr,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    TILE: tl.constexpr,
):
    """One head of one hypothesis, queries [R, H K], attends to cross [B, S, H (K + V)] up to lengths [B]: [R, H V]."""
    row, head = tl.program_id(0), tl.program_id(1)
    key_columns, value_columns = tl.arange(0, KEYS), tl.arange(0, VALUES)
    width = HEADS * (D_K + D_V)
    query = queries + (row * HEADS + head) * D_K
    q = tl.load(query + key_columns, mask=key_columns < D_K, other=0.0).to(tl.float32) * scale
    sentence = row // beam
    length = tl.load(lengths + sentence)
    source = cross + sentence.to(tl.int64) * num_slots * width

    largest, total, mixed = -float("inf"), 0.0, tl.zeros([VALUES], tl.float32)
    for start in range(0, length, TILE):
        positions = start + tl.arange(0, TILE)
        slots = source + positions * width
        keys = slots[:, None] + head * D_K + key_columns[None, :]
        values = slots[:, None] + HEADS * D_K + head * D_V + value_columns[None, :]
        largest, total, mixed = _seen(q, keys, values, positions < length, largest, total, mixed, D_K, D_V)
    tl.store(out + (row * HEADS + head) * D_V + value_columns, mixed / total, mask=value_columns < D_V)


@triton.jit
def _turned(vector, cos, sin, place, columns, D_K: tl.constexpr):
    """The K components at `vector`, turned as `Rotation` does, and rounded as the cache rounds them."""
    is_real = columns < D_K
    x = tl.load(vector + columns, mask=is_real, other=0.0)
    if cos is not None:
        half = D_K // 2
        angle = place * half + columns % half
        other = tl.load(vector + (columns + half) % D_K, mask=is_real, other=0.0).to(tl.float32)
        turned = x.to(tl.float32) * tl.load(cos + angle, mask=is_real, other=0.0)
        turned += other * tl.load(sin + angle, mask=is_real, other=0.0) * tl.where(columns < half, -1.0, 1.0)
        x = turned.to(x.dtype)
    return x.to(tl.float32)


@triton.jit
def _seen(q, keys, values, mask, largest, total, mixed, D_K: tl.constexpr, D_V: tl.constexpr):
    """The sums of a softmax after more keys: largest score, sum of exponentials, sum of values weighted by them."""
    key_mask = mask[:, None] & (tl.arange(0, keys.shape[1]) < D_K)[None, :]
    value_mask = mask[:, None] & (tl.arange(0, values.shape[1]) < D_V)[None, :]
    k = tl.load(keys, mask=key_mask, other=0.0).to(tl.float32)
    v = tl.load(values, mask=value_mask, other=0.0).to(tl.float32)
    scores = tl.where(mask, tl.sum(q[None, :] * k, axis=1), -float("inf"))
    new_largest = tl.maximum(largest, tl.max(scores))
    shrink = tl.exp(largest - new_largest)
    weights = tl.exp(scores - new_largest)
    mixed = mixed * shrink + tl.sum(weights[:, None] * v, axis=0)
    return new_largest, total * shrink + tl.sum(weights), mixed
