"""Attention within packed sentences, in Triton: one program for each sentence and head, in tiles of a few tokens.

The algorithm is FlashAttention-2's (Dao 2023, arXiv:2307.08691, section 3.1). The backward pass computes the scores
again: in one sweep for keys and values, in another for queries. One program adds up each gradient in a fixed order, so
gradients are the same in every run.

Matrices [N, ...] of queries and [M, ...] of keys and values hold H heads side by side, K = d_k or V = d_v columns each.
`STRIDES` are the columns from row to row of the projections, then of their gradients. `cu_queries` and `cu_keys` say
where sentences start and end; slots outside of all sentences are neither read nor written. A token sees tokens up to
`REACH` places away; -1 stands for all.

With a seed, weights have dropout: `is_kept` says which, by an index of query, head and key. `LIMIT` and `SCALE` are as
in `nmt_cli.model.kernels.residual_norm`. The backward pass computes the mask again.
"""

import math

import triton
import triton.language as tl

from nmt_cli.model.kernels.residual_norm import is_kept

_LOG2_E = tl.constexpr(math.log2(math.e))
_BELOW_ALL = tl.constexpr(-1e30)  # lower than any score, but finite: infinity minus infinity would be NaN
# 2^32 over the golden ratio. Multiples of it, modulo 2^32, stay far apart, so rows of weights share no indices.
_ROW_STRIDE = tl.constexpr(0x9E3779B9)


@triton.jit(do_not_specialize=["num_slots"])
def forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, logsumexp_ptr, cu_queries, cu_keys, seed_ptr, num_slots,
    STRIDES: tl.constexpr, HEADS: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr, IS_CAUSAL: tl.constexpr,
    REACH: tl.constexpr, LIMIT: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Attention of one sentence and head: tiles of queries, each with a running softmax over tiles of keys.

    Writes the output of each query [N, H * V], and the base-2 logarithm of its sum of 2^score, [H, N] float32.
    """
    sentence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    q_start, num_queries = _span(cu_queries, sentence)
    k_start, num_keys = _span(cu_keys, sentence)
    q_ptr += q_start * STRIDES[0] + head * D_K
    k_ptr += k_start * STRIDES[1] + head * D_K
    v_ptr += k_start * STRIDES[2] + head * D_V
    out_ptr += q_start * (HEADS * D_V) + head * D_V
    logsumexp_ptr += head.to(tl.int64) * num_slots + q_start
    for q_first in range(0, num_queries, ROWS):
        queries = q_first + tl.arange(0, ROWS)
        q = _load(q_ptr, queries, num_queries, STRIDES[0], D_K)
        largest = tl.full([ROWS], _BELOW_ALL, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, _columns(D_V)], tl.float32)
        first, end = _key_range(q_first, num_keys, IS_CAUSAL, REACH, ROWS)
        for k_first in range(first, end, ROWS):
            keys = k_first + tl.arange(0, ROWS)
            k = _load(k_ptr, keys, num_keys, STRIDES[1], D_K)
            v = _load(v_ptr, keys, num_keys, STRIDES[2], D_V)
            is_seen = _seen_mask(queries[:, None], keys[None, :], num_keys, IS_CAUSAL, REACH)
            scores = tl.where(is_seen, _multiply(q, tl.trans(k)) * (D_K**-0.5 * _LOG2_E), -float("inf"))
            larger = tl.maximum(largest, tl.max(scores, 1))
            weights = tl.exp2(scores - larger[:, None])
            factor = tl.exp2(largest - larger)
            total = total * factor + tl.sum(weights, 1)
            if seed_ptr is not None:
                weights *= _dropout(
                    ((q_start + queries) * HEADS + head)[:, None], keys[None, :], seed_ptr, LIMIT, SCALE
                )
            mixed = _multiply(weights, v, mixed * factor[:, None])
            largest = larger
        total = tl.where(total > 0, total, 1.0)  # a query without keys gets zeros
        _store(out_ptr, mixed * (1 / total)[:, None], queries, num_queries, HEADS * D_V, D_V)
        tl.store(logsumexp_ptr + queries, largest + tl.log2(total), mask=queries < num_queries)


@triton.jit(do_not_specialize=["num_slots"])
def backward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, d_out_ptr, logsumexp_ptr, dq_ptr, dk_ptr, dv_ptr, cu_queries, cu_keys, seed_ptr,
    num_slots,
    STRIDES: tl.constexpr, HEADS: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr, IS_CAUSAL: tl.constexpr,
    REACH: tl.constexpr, LIMIT: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Gradients of one sentence and head: of each tile of keys and values, then of each tile of queries."""
    sentence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    q_start, num_queries = _span(cu_queries, sentence)
    k_start, num_keys = _span(cu_keys, sentence)
    q_ptr += q_start * STRIDES[0] + head * D_K
    k_ptr += k_start * STRIDES[1] + head * D_K
    v_ptr += k_start * STRIDES[2] + head * D_V
    dq_ptr += q_start * STRIDES[3] + head * D_K
    dk_ptr += k_start * STRIDES[4] + head * D_K
    dv_ptr += k_start * STRIDES[5] + head * D_V
    out_ptr += q_start * (HEADS * D_V) + head * D_V
    d_out_ptr += q_start * (HEADS * D_V) + head * D_V
    logsumexp_ptr += head.to(tl.int64) * num_slots + q_start
    first_row = q_start * HEADS + head  # of weights: those of the first query
    in_one_sweep = (num_keys > 0) & (num_keys <= ROWS) & (REACH < 0)
    for k_first in range(0, num_keys, ROWS):
        _key_gradients(
            k_first, q_ptr, k_ptr, v_ptr, out_ptr, d_out_ptr, logsumexp_ptr, dq_ptr, dk_ptr, dv_ptr, seed_ptr,
            first_row, num_queries, num_keys, in_one_sweep,
            STRIDES, HEADS, D_K, D_V, IS_CAUSAL, REACH, LIMIT, SCALE, ROWS,
        )  # fmt: skip
    for q_first in range(0, tl.where(in_one_sweep, 0, num_queries), ROWS):
        _query_gradients(
            q_first, q_ptr, k_ptr, v_ptr, out_ptr, d_out_ptr, logsumexp_ptr, dq_ptr, seed_ptr,
            first_row, num_queries, num_keys,
            STRIDES, HEADS, D_K, D_V, IS_CAUSAL, REACH, LIMIT, SCALE, ROWS,
        )  # fmt: skip


@triton.jit
def _key_gradients(
    k_first, q_ptr, k_ptr, v_ptr, out_ptr, d_out_ptr, logsumexp_ptr, dq_ptr, dk_ptr, dv_ptr, seed_ptr, first_row,
    num_queries, num_keys, in_one_sweep,
    STRIDES: tl.constexpr, HEADS: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr, IS_CAUSAL: tl.constexpr,
    REACH: tl.constexpr, LIMIT: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a tile of keys and values, added up over the tiles of queries that see them.

    If there is only one tile of keys, the gradient of each tile of queries is complete, and is written too.
    """
    keys = k_first + tl.arange(0, ROWS)
    k = _load(k_ptr, keys, num_keys, STRIDES[1], D_K)
    v = _load(v_ptr, keys, num_keys, STRIDES[2], D_V)
    dk = tl.zeros([ROWS, _columns(D_K)], tl.float32)
    dv = tl.zeros([ROWS, _columns(D_V)], tl.float32)
    first, end = _query_range(k_first, num_queries, IS_CAUSAL, REACH, ROWS)
    for q_first in range(first, end, ROWS):
        queries = q_first + tl.arange(0, ROWS)
        q = _load(q_ptr, queries, num_queries, STRIDES[0], D_K)
        d_out = _load(d_out_ptr, queries, num_queries, HEADS * D_V, D_V)
        mean = _mean_gradient(_load(out_ptr, queries, num_queries, HEADS * D_V, D_V), d_out)
        logsumexp = tl.load(logsumexp_ptr + queries, mask=queries < num_queries, other=0.0)
        is_seen = _seen_mask(queries[None, :], keys[:, None], num_keys, IS_CAUSAL, REACH)
        weights = _weights(_multiply(k, tl.trans(q)), logsumexp[None, :], is_seen, D_K)
        kept = weights
        if seed_ptr is not None:
            kept *= _dropout((first_row + queries * HEADS)[None, :], keys[:, None], seed_ptr, LIMIT, SCALE)
        dv = _multiply(kept, d_out, dv)
        d_weights = _multiply(v, tl.trans(d_out))
        d_scores = ((kept * d_weights - weights * mean[None, :]) * D_K**-0.5).to(q.dtype)
        dk = _multiply(d_scores, q, dk)
        if in_one_sweep:
            _store(dq_ptr, _multiply(tl.trans(d_scores), k), queries, num_queries, STRIDES[3], D_K)
    _store(dk_ptr, dk, keys, num_keys, STRIDES[4], D_K)
    _store(dv_ptr, dv, keys, num_keys, STRIDES[5], D_V)


@triton.jit
def _query_gradients(
    q_first, q_ptr, k_ptr, v_ptr, out_ptr, d_out_ptr, logsumexp_ptr, dq_ptr, seed_ptr, first_row, num_queries,
    num_keys,
    STRIDES: tl.constexpr, HEADS: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr, IS_CAUSAL: tl.constexpr,
    REACH: tl.constexpr, LIMIT: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a tile of queries, added up over the tiles of keys that they see."""
    queries = q_first + tl.arange(0, ROWS)
    q = _load(q_ptr, queries, num_queries, STRIDES[0], D_K)
    d_out = _load(d_out_ptr, queries, num_queries, HEADS * D_V, D_V)
    mean = _mean_gradient(_load(out_ptr, queries, num_queries, HEADS * D_V, D_V), d_out)
    logsumexp = tl.load(logsumexp_ptr + queries, mask=queries < num_queries, other=0.0)
    dq = tl.zeros([ROWS, _columns(D_K)], tl.float32)
    first, end = _key_range(q_first, num_keys, IS_CAUSAL, REACH, ROWS)
    for k_first in range(first, end, ROWS):
        keys = k_first + tl.arange(0, ROWS)
        k = _load(k_ptr, keys, num_keys, STRIDES[1], D_K)
        v = _load(v_ptr, keys, num_keys, STRIDES[2], D_V)
        is_seen = _seen_mask(queries[:, None], keys[None, :], num_keys, IS_CAUSAL, REACH)
        weights = _weights(_multiply(q, tl.trans(k)), logsumexp[:, None], is_seen, D_K)
        d_weights = _multiply(d_out, tl.trans(v))
        if seed_ptr is not None:
            d_weights *= _dropout((first_row + queries * HEADS)[:, None], keys[None, :], seed_ptr, LIMIT, SCALE)
        d_scores = weights * (d_weights - mean[:, None]) * D_K**-0.5
        dq = _multiply(d_scores, k, dq)
    _store(dq_ptr, dq, queries, num_queries, STRIDES[3], D_K)


@triton.jit
def _span(cu_seqlens, sentence):
    """Where a sentence starts, and how many tokens it has."""
    start, end = tl.load(cu_seqlens + sentence), tl.load(cu_seqlens + sentence + 1)
    return start.to(tl.int64), end - start


@triton.jit
def _key_range(q_first, num_keys, IS_CAUSAL: tl.constexpr, REACH: tl.constexpr, ROWS: tl.constexpr):
    """The first key that any query of a tile sees, and the end of those keys."""
    first, end = 0, num_keys
    if REACH >= 0:
        first, end = tl.maximum(q_first - REACH, 0), tl.minimum(end, q_first + ROWS + REACH)
    if IS_CAUSAL:
        end = tl.minimum(end, q_first + ROWS)
    return first, end


@triton.jit
def _query_range(k_first, num_queries, IS_CAUSAL: tl.constexpr, REACH: tl.constexpr, ROWS: tl.constexpr):
    """The first query that sees any key of a tile, and the end of those queries."""
    first, end = 0, num_queries
    if REACH >= 0:
        first, end = tl.maximum(k_first - REACH, 0), tl.minimum(end, k_first + ROWS + REACH)
    if IS_CAUSAL:
        first = k_first
    return first, end


@triton.jit
def _seen_mask(queries, keys, num_keys, IS_CAUSAL: tl.constexpr, REACH: tl.constexpr):
    """True if a query sees a key. Rows behind the last query are zero, and add zeros to all sums."""
    is_seen = keys < num_keys
    if IS_CAUSAL:
        is_seen = is_seen & (keys <= queries)
    if REACH >= 0:
        is_seen = is_seen & (keys - queries <= REACH) & (queries - keys <= REACH)
    return is_seen


@triton.jit
def _weights(products, logsumexp, is_seen, D_K: tl.constexpr):
    """The softmax of a tile of products of queries and keys."""
    scores = products * (D_K**-0.5 * _LOG2_E)
    return tl.exp2(tl.where(is_seen, scores - logsumexp, -float("inf")))


@triton.jit
def _dropout(row, key, seed_ptr, LIMIT: tl.constexpr, SCALE: tl.constexpr):
    """The factors of a tile of weights, and of their gradients: zero or `SCALE`. `row` counts queries and heads."""
    index = row.to(tl.uint32) * _ROW_STRIDE + key.to(tl.uint32)
    return tl.where(is_kept(index.to(tl.int32, bitcast=True), seed_ptr, LIMIT), SCALE, 0.0)


@triton.jit
def _mean_gradient(out, d_out):
    """The weighted mean of the gradients of each query's weights: its output times the gradient of its output.

    The paper calls it D.
    """
    return tl.sum(out.to(tl.float32) * d_out.to(tl.float32), 1)


@triton.jit
def _multiply(a, b, total=None):
    """The matrix product in float32, added to `total`; float32 inputs are not rounded."""
    return tl.dot(a.to(b.dtype), b, total, input_precision="ieee")


@triton.jit
def _load(pointer, rows, num_rows, STRIDE: tl.constexpr, WIDTH: tl.constexpr):
    """Some rows of a matrix, with zeros behind its last row and its last column."""
    columns = tl.arange(0, _columns(WIDTH))[None, :]
    mask = (rows < num_rows)[:, None]
    if _columns(WIDTH) > WIDTH:
        mask = mask & (columns < WIDTH)
    return tl.load(pointer + rows[:, None] * STRIDE + columns, mask=mask, other=0.0)


@triton.jit
def _store(pointer, x, rows, num_rows, STRIDE: tl.constexpr, WIDTH: tl.constexpr):
    columns = tl.arange(0, _columns(WIDTH))[None, :]
    mask = (rows < num_rows)[:, None]
    if _columns(WIDTH) > WIDTH:
        mask = mask & (columns < WIDTH)
    tl.store(pointer + rows[:, None] * STRIDE + columns, x.to(pointer.dtype.element_ty), mask=mask)


@triton.constexpr_function
def _columns(width):
    """Columns of a tile that holds a head: a power of two that the matrix units multiply."""
    return max(16, triton.next_power_of_2(width))
