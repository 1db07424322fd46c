"""Kernels in Triton for one step of a beam search: of the decoder, and of the choice of the next pieces.

`model/static_cache.py` and `decoding/search/static_state.py` launch them.

Shapes: B sentences, W hypotheses per sentence, R = B * W rows, S source tokens, L positions, D d_model, H heads,
K = d_k, V = d_v, C candidates per sentence, F kept endings per sentence, N blocks of columns of the logits. Sums and
statistics are float32. Sizes may be any; `COLUMNS`, `KEYS`, `VALUES`, `BEAM`, `BLOCKS`, `CANDIDATES` and `ENDINGS` are
the next powers of two. `counters` and `masks_and_penalties` belong to `StaticState`; EOS is the last special piece.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.errors import TritonError

from nmt_cli.model.cuda_graphs import launching_on

_INDEX_BITS = tl.constexpr(32)
_INDEX_MASK = tl.constexpr((1 << 32) - 1)
_NO_KEY = tl.constexpr(-(1 << 63))


def check(device: torch.device) -> None:
    """Compile and launch the smallest kernel; RuntimeError if Triton refuses it."""
    x, numbers = torch.zeros(1, 16, device=device), torch.zeros(1, dtype=torch.long, device=device)
    try:
        with launching_on(device):
            embed[(1,)](numbers, x, None, numbers, x, 1.0, WIDTH=16, COLUMNS=16)
    except TritonError as error:
        raise RuntimeError(str(error)) from error


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
    qkv, cache, ancestors, counters, cos, sin, out, beam, length, scale,
    HEADS: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """One head of one hypothesis attends to its own past and itself: out [R, H V].

    The new key and value of qkv [R, H (2 K + V)] go into the cache [B, L W, H (K + V)]; the slot of a hypothesis is
    position * W + its number. `ancestors` [R, L] has the numbers that a hypothesis had at positions before
    `counters[0]`. With `cos` and `sin` [positions, K / 2], queries and keys are rotated by their position.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(counters).to(tl.int32)
    key_columns, value_columns = tl.arange(0, KEYS), tl.arange(0, VALUES)
    width = HEADS * (D_K + D_V)
    token = qkv + row * (HEADS * D_K + width)
    query = token + head * D_K
    q = _rotate(query, cos, sin, position, key_columns, D_K) * scale
    k = _rotate(query + HEADS * D_K, cos, sin, position, key_columns, D_K)
    v = tl.load(token + 2 * HEADS * D_K + head * D_V + value_columns, mask=value_columns < D_V, other=0.0)

    past = cache + (row // beam).to(tl.int64) * length * beam * width
    own = past + (position * beam + row % beam) * width
    tl.store(own + head * D_K + key_columns, k, mask=key_columns < D_K)
    tl.store(own + HEADS * D_K + head * D_V + value_columns, v, mask=value_columns < D_V)

    largest, total, mixed = tl.sum(q * k), 1.0, v.to(tl.float32)
    for start in range(0, position, TILE):
        positions = start + tl.arange(0, TILE)
        is_past = positions < position
        numbers = tl.load(ancestors + row * length + positions, mask=is_past, other=0)
        slots = past + (positions * beam + numbers) * width
        keys = slots[:, None] + head * D_K + key_columns[None, :]
        values = slots[:, None] + HEADS * D_K + head * D_V + value_columns[None, :]
        largest, total, mixed = _attend_to_tile(q, keys, values, is_past, largest, total, mixed, D_K, D_V)
    tl.store(out + (row * HEADS + head) * D_V + value_columns, mixed / total, mask=value_columns < D_V)


@triton.jit
def attend_to_source(
    queries, cross, lengths, out, beam, num_slots, scale,
    HEADS: tl.constexpr, D_K: tl.constexpr, D_V: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
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
        largest, total, mixed = _attend_to_tile(q, keys, values, positions < length, largest, total, mixed, D_K, D_V)
    tl.store(out + (row * HEADS + head) * D_V + value_columns, mixed / total, mask=value_columns < D_V)


@triton.jit
def _rotate(vector, cos, sin, position, columns, D_K: tl.constexpr):
    """The K components at `vector`, rotated as by `RotaryEmbedding`, and rounded as in the cache."""
    is_real = columns < D_K
    x = tl.load(vector + columns, mask=is_real, other=0.0)
    if cos is not None:
        half = D_K // 2
        angle = position * half + columns % half
        other = tl.load(vector + (columns + half) % D_K, mask=is_real, other=0.0).to(tl.float32)
        rotated = x.to(tl.float32) * tl.load(cos + angle, mask=is_real, other=0.0)
        rotated += other * tl.load(sin + angle, mask=is_real, other=0.0) * tl.where(columns < half, -1.0, 1.0)
        x = rotated.to(x.dtype)
    return x.to(tl.float32)


@triton.jit
def _attend_to_tile(q, keys, values, mask, largest, total, mixed, D_K: tl.constexpr, D_V: tl.constexpr):
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


@triton.jit
def summarise_blocks(
    logits, masks_and_penalties, counters, largest, log_sums, stride, vocabulary, num_blocks,
    NUM_SPECIAL: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The largest allowed logit and the logarithm of the sum of exp of each block of columns: both [R, N]."""
    row = tl.program_id(0)
    blocks = tl.program_id(1) * TILE + tl.arange(0, TILE)
    columns = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = tl.load(logits + row.to(tl.int64) * stride + columns, mask=columns < vocabulary, other=-float("inf"))
    x = x.to(tl.float32)
    top = tl.maximum(tl.max(x, axis=1), -1e30)
    sums = tl.log(tl.sum(tl.exp(x - top[:, None]), axis=1)) + top
    allowed = x + _special_mask_at(masks_and_penalties, counters, columns, NUM_SPECIAL)
    index = row * num_blocks + blocks
    tl.store(largest + index, tl.max(allowed, axis=1), mask=blocks < num_blocks)
    tl.store(log_sums + index, sums, mask=blocks < num_blocks)


@triton.jit
def choose_candidates(
    logits, largest, log_sums, masks_and_penalties, counters, log_probs, nodes,
    tree_log_probs, tree_tokens, tree_parents, hypotheses,
    stride, vocabulary, num_blocks, beam, num_candidates,
    NUM_SPECIAL: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BEAM: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Write a sentence's C best continuations, best first, to row `counters[1]` of `tree_*` and to `hypotheses` [B, C].

    Only the C best blocks are looked at: each has a continuation that is at least as good as all in other blocks.
    """
    sentence = tl.program_id(0)
    hypothesis, block = tl.arange(0, BEAM), tl.arange(0, BLOCKS)
    rows = sentence * beam + hypothesis
    is_open = hypothesis < beam
    is_block = is_open[:, None] & (block < num_blocks)[None, :]
    index = rows[:, None] * num_blocks + block[None, :]
    start = tl.load(log_probs + rows, mask=is_open, other=-float("inf")) - _row_logsumexp(log_sums + index, is_block)
    totals = tl.load(largest + index, mask=is_block, other=-float("inf")) + start[:, None]
    keys = _sort_keys(totals, hypothesis[:, None] * num_blocks + block[None, :], is_block)
    _, chosen = _topk(keys, num_candidates, CANDIDATES)

    candidate = tl.arange(0, CANDIDATES)
    number = chosen // num_blocks  # of the hypothesis
    columns = (chosen % num_blocks)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    # A tiny vocabulary has fewer blocks than candidates: `chosen` is then -1.
    is_column = ((candidate < num_candidates) & (chosen >= 0))[:, None] & (columns < vocabulary)
    row = (sentence * beam + number).to(tl.int64)
    x = tl.load(logits + row[:, None] * stride + columns, mask=is_column, other=-float("inf")).to(tl.float32)
    x += _special_mask_at(masks_and_penalties, counters, columns, NUM_SPECIAL)
    starts = tl.sum(tl.where(hypothesis[None, :] == number[:, None], start[None, :], 0.0), axis=1)
    keys = _sort_keys(x + starts[:, None], number[:, None] * vocabulary + columns, is_column)
    totals, continuation = _topk(keys, num_candidates, CANDIDATES)

    number = continuation // vocabulary
    is_real = candidate < num_candidates
    parents = tl.load(nodes + sentence * beam + number, mask=is_real)
    out = sentence * num_candidates + candidate
    tree = tl.load(counters + 1) * tl.num_programs(0) * num_candidates + out
    tl.store(tree_log_probs + tree, totals, mask=is_real)
    tl.store(tree_tokens + tree, continuation % vocabulary, mask=is_real)
    tl.store(tree_parents + tree, parents, mask=is_real)
    tl.store(hypotheses + out, number, mask=is_real)


@triton.jit
def sort_candidates(
    tree_log_probs, tree_tokens, hypotheses, masks_and_penalties, counters, limits, penalties_at_limit, ids, log_probs,
    nodes, ancestors, finished_log_probs, finished_scores, finished_nodes, is_done,
    beam, num_candidates, num_endings, length,
    NUM_SPECIAL: tl.constexpr, CANDIDATES: tl.constexpr, ENDINGS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Sort a sentence's candidates into finished and open ones. Writes `ids` and all after it, up to `is_done`."""
    sentence = tl.program_id(0)
    position = tl.load(counters).to(tl.int32)
    candidate = tl.arange(0, CANDIDATES)
    is_real = candidate < num_candidates
    index = sentence * num_candidates + candidate
    tree = tl.load(counters + 1) * tl.num_programs(0) * num_candidates + index
    totals = tl.load(tree_log_probs + tree, mask=is_real, other=-float("inf"))
    tokens = tl.load(tree_tokens + tree, mask=is_real, other=0)
    numbers = tl.load(hypotheses + index, mask=is_real, other=0)
    new_nodes = tl.load(counters + 2) + index

    is_end = is_real & (tokens == NUM_SPECIAL - 1)
    rank = _ranks(is_real, is_end)
    is_kept = is_real & (rank < beam)
    open_totals = tl.where(is_end, -float("inf"), totals)
    row = sentence * beam + rank
    tl.store(ids + row, tokens, mask=is_kept)
    tl.store(log_probs + row, open_totals, mask=is_kept)
    tl.store(nodes + row, new_nodes, mask=is_kept)
    _copy_ancestors(ancestors + sentence * beam * length, numbers, rank, is_kept, position, length, TILE)

    is_last = tl.load(limits + sentence) <= position + 1
    was_done = tl.load(is_done + sentence) != 0
    ends = (is_end | (is_kept & is_last)) & (was_done == 0)
    penalty = tl.load(masks_and_penalties + position * (NUM_SPECIAL + 1) + NUM_SPECIAL)
    ended = tl.where(ends, totals / penalty, -float("inf"))
    # In a tie: kept endings first, then those with EOS, then those cut at the limit.
    order = num_endings + candidate + tl.where(is_end, 0, num_candidates)
    first = sentence * num_endings
    kept = (finished_scores + first, finished_log_probs + first, finished_nodes + first)
    worst = _merge_finished(kept, (_sort_keys(ended, order, is_real), totals, new_nodes), num_endings, ENDINGS)
    best = tl.max(tl.where(rank == 0, open_totals, -float("inf")))
    is_decided = worst >= best / tl.load(penalties_at_limit + sentence)
    tl.store(is_done + sentence, was_done | is_last | is_decided)


@triton.jit
def _ranks(is_real, is_end):
    """The ranks [C] of the candidates if the ending ones follow the others."""
    goes_on = (is_real & (is_end == 0)).to(tl.int32)
    return tl.where(is_end, tl.sum(goes_on) + tl.cumsum(is_end.to(tl.int32)), tl.cumsum(goes_on)) - 1


@triton.jit
def _copy_ancestors(ancestors, numbers, rank, is_kept, position, length, TILE: tl.constexpr):
    """Give hypotheses `rank` the past of `numbers`, and `numbers` at `position`: rows of ancestors [W, L]."""
    for start in range(0, position + 1, TILE):
        positions = start + tl.arange(0, TILE)
        mask = is_kept[:, None] & (positions <= position)[None, :]
        past = tl.load(ancestors + numbers[:, None] * length + positions[None, :], mask=mask)
        past = tl.where((positions == position)[None, :], numbers[:, None], past)
        # All rows are read before any is overwritten.
        tl.debug_barrier()
        tl.store(ancestors + rank[:, None] * length + positions[None, :], past, mask=mask)


@triton.jit
def _merge_finished(kept, candidates, num_endings, ENDINGS: tl.constexpr):
    """Keep the best F of F kept endings and the candidates, best first; returns the worst score.

    Kept are pointers to scores, log-probabilities and nodes; candidates are keys, log-probabilities and nodes.
    """
    scores, log_probs, nodes = kept
    ended, ended_log_probs, ended_nodes = candidates
    ending = tl.arange(0, ENDINGS)
    is_real = ending < num_endings
    keys = _sort_keys(tl.load(scores + ending, mask=is_real, other=0.0), ending, is_real)
    old_log_probs = tl.load(log_probs + ending, mask=is_real, other=0.0)
    old_nodes = tl.load(nodes + ending, mask=is_real, other=0)
    # All are read before any is overwritten.
    tl.debug_barrier()
    worst = -float("inf")
    for rank in range(num_endings):
        best = tl.maximum(tl.max(keys), tl.max(ended))
        worst = _values_of(best)
        is_old, is_new = keys == best, ended == best
        log_prob = tl.max(tl.where(is_old, old_log_probs, -float("inf")))
        log_prob = tl.maximum(log_prob, tl.max(tl.where(is_new, ended_log_probs, -float("inf"))))
        node = tl.maximum(tl.max(tl.where(is_old, old_nodes, -1)), tl.max(tl.where(is_new, ended_nodes, -1)))
        tl.store(scores + rank, worst)
        tl.store(log_probs + rank, log_prob)
        tl.store(nodes + rank, node)
        keys, ended = tl.where(is_old, _NO_KEY, keys), tl.where(is_new, _NO_KEY, ended)
    return worst


@triton.jit
def _row_logsumexp(pointers, mask):
    """The logarithm of the sum of exp of each row [W] of the numbers at pointers [W, N]."""
    x = tl.load(pointers, mask=mask, other=-1e30)
    top = tl.max(x, axis=1)
    return top + tl.log(tl.sum(tl.exp(x - top[:, None]), axis=1))


@triton.jit
def _special_mask_at(masks_and_penalties, counters, columns, NUM_SPECIAL: tl.constexpr):
    """The mask of the special pieces at this position, 0 in other columns."""
    return tl.load(
        masks_and_penalties + tl.load(counters) * (NUM_SPECIAL + 1) + columns,
        mask=(columns >= 0) & (columns < NUM_SPECIAL),
        other=0.0,
    )


@triton.jit
def _sort_keys(values, indices, mask):
    """Integers in the order of the values; a lower index wins a tie. Outside the mask they are `_NO_KEY`."""
    ascending = _order_preserving(values.to(tl.int32, bitcast=True)).to(tl.int64)
    return tl.where(mask, (ascending << _INDEX_BITS) | (indices.to(tl.int64) ^ _INDEX_MASK), _NO_KEY)


@triton.jit
def _values_of(keys):
    """The values of keys."""
    return _order_preserving((keys >> _INDEX_BITS).to(tl.int32)).to(tl.float32, bitcast=True)


@triton.jit
def _order_preserving(bits):
    """The bits of floats as integers in the order of the floats; applied again, the bits."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _topk(keys, count, SIZE: tl.constexpr):
    """Values and indices of the `count` largest of keys [A, B], largest first, [SIZE]; -1 is no index."""
    position = tl.arange(0, SIZE)
    largest = tl.full([SIZE], _NO_KEY, tl.int64)
    for rank in range(count):
        best = tl.max(tl.max(keys, axis=1), axis=0)
        largest = tl.where(position == rank, best, largest)
        keys = tl.where(keys == best, _NO_KEY, keys)
    return _values_of(largest), ((largest & _INDEX_MASK) ^ _INDEX_MASK).to(tl.int32)
