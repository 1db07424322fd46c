"""A CPU kernel for torch's variable-length attention, in float64 a sentence at a time.

As torch's kernel on CUDA does, it leaves rows that no sentence covers unwritten; here they are NaN for certain.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor


@cache
def register() -> None:
    """Let torch's operator work on CPUs, forward and backward, for as long as the process lasts."""
    from torch.nn.attention import varlen

    varlen._varlen_attn.register_kernel("cpu")(_forward)
    varlen._varlen_attn_backward.register_kernel("cpu")(_backward)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: list[int] | None = None,
    *others: object,
) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.full_like(query, torch.nan)
    logsumexp = torch.full((query.size(1), query.size(0)), torch.nan)
    for q_rows, k_rows in _sentences(cu_seq_q, cu_seq_k, max_q, max_k):
        scores_HTS = _scores(query[q_rows], key[k_rows], is_causal=is_causal, scale=scale, window_size=window_size)
        out[q_rows] = torch.einsum("hts,shv->thv", scores_HTS.softmax(2), value[k_rows].double()).to(out.dtype)
        logsumexp[:, q_rows] = scores_HTS.logsumexp(2).float()
    return out, logsumexp, torch.zeros(2, dtype=torch.uint64)


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool,
    rng_state: Tensor,
    scale: float | None = None,
    window_size: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.full_like(x, torch.nan) for x in (query, key, value))
    factor = scale or query.size(-1) ** -0.5
    for q_rows, k_rows in _sentences(cu_seq_q, cu_seq_k, max_q, max_k):
        q, k, v, d_out = (x.double() for x in (query[q_rows], key[k_rows], value[k_rows], grad_out[q_rows]))
        weights_HTS = _scores(q, k, is_causal=is_causal, scale=scale, window_size=window_size).softmax(2)
        d_weights_HTS = torch.einsum("thv,shv->hts", d_out, v)
        mean_HT1 = (weights_HTS * d_weights_HTS).sum(2, keepdim=True)
        d_scores_HTS = weights_HTS * (d_weights_HTS - mean_HT1) * factor
        dq[q_rows] = torch.einsum("hts,shk->thk", d_scores_HTS, k).to(dq.dtype)
        dk[k_rows] = torch.einsum("hts,thk->shk", d_scores_HTS, q).to(dk.dtype)
        dv[k_rows] = torch.einsum("hts,thv->shv", weights_HTS, d_out).to(dv.dtype)
    return dq, dk, dv


def _sentences(cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int) -> Iterator[tuple[slice, slice]]:
    """The slots of each sentence, empty ones too; none may be longer than torch's kernel has been told."""
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert len(cu_q) == len(cu_k)
    q_ends, k_ends = cu_q.tolist(), cu_k.tolist()
    for number in range(len(q_ends) - 1):
        q_rows, k_rows = slice(*q_ends[number : number + 2]), slice(*k_ends[number : number + 2])
        num_queries, num_keys = q_rows.stop - q_rows.start, k_rows.stop - k_rows.start
        assert num_queries <= max_q
        assert num_keys <= max_k
        yield q_rows, k_rows


def _scores(q: Tensor, k: Tensor, *, is_causal: bool, scale: float | None, window_size: list[int] | None) -> Tensor:
    """q [T, H, K], k [S, H, K] to [H, T, S] in float64, -inf where a query does not see a key."""
    left, right = window_size or (-1, -1)
    scores_HTS = torch.einsum("thk,shk->hts", q.double(), k.double()) * (scale or q.size(-1) ** -0.5)
    ahead_TS = torch.arange(len(k)) - torch.arange(len(q))[:, None]
    hidden_TS = (ahead_TS > 0) & is_causal
    if left >= 0:
        hidden_TS |= ahead_TS < -left
    if right >= 0:
        hidden_TS |= ahead_TS > right
    return scores_HTS.masked_fill(hidden_TS, -torch.inf)
