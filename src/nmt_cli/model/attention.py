"""Scaled dot-product attention over packed sentences (section 3.2), and its kernels.

Shapes: N, M packed query and key tokens, B sentences, T, S the longest, H heads, K = d_k, V = d_v.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt_cli.model.packing import Layout, Packed, Spans, from_rectangle, to_rectangle
from nmt_cli.model.products import attend_products

Kernel = Literal["varlen", "sdpa", "products"]


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, queries: Layout, keys: Layout, is_causal: bool, window: int | None
) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)) V within each sentence (equation 1), [N, H, V].

    q [N, H, K], k [M, H, K], v [M, H, V]. `window` restricts a token to its neighbours within window // 2 on either
    side (section 4). `Spans` are for the variable-length kernel alone.
    """
    kernel = choose_kernel(q.device, q.dtype, d_k=q.size(-1), d_v=v.size(-1), window=window)
    if kernel == "varlen":
        return _varlen(q, k, v, queries=queries, keys=keys, is_causal=is_causal, window=window)
    assert isinstance(queries, Packed), "needs the sentences themselves"
    assert isinstance(keys, Packed), "needs the sentences themselves"
    if kernel == "products":
        return attend_products(q, k, v, queries=queries, keys=keys, is_causal=is_causal, window=window)
    q_BHTK, k_BHSK, v_BHSV = (
        to_rectangle(x, layout).transpose(1, 2) for x, layout in ((q, queries), (k, keys), (v, keys))
    )
    mask = _mask(queries, keys, is_causal=is_causal, window=window)
    out_BHTV = F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSV, attn_mask=mask)
    return from_rectangle(out_BHTV.transpose(1, 2), queries)


def choose_kernel(device: torch.device, dtype: torch.dtype, *, d_k: int, d_v: int, window: int | None) -> Kernel:
    """Which kernel serves attention.

    torch's variable-length one on CUDA in bf16; else torch's fused one over a padded rectangle on CUDA, and on a CPU,
    where that takes ten times as long on sentences (docs/LOG.md), plain matrix products.
    """
    if device.type != "cuda":
        return "products"
    from nmt_cli.model.varlen import serves

    return "varlen" if serves(dtype, d_k=d_k, d_v=d_v, window=window) else "sdpa"


def _mask(queries: Packed, keys: Packed, *, is_causal: bool, window: int | None) -> Tensor | None:
    """Which keys each query sees, [B or 1, 1, T or 1, S]; None where that is all of them.

    A padded query may see anything but nothing: a row without keys would be NaN.
    """
    if is_causal:
        return torch.ones(queries.max_len, keys.max_len, dtype=torch.bool, device=keys.ids.device).tril()[None, None]
    if window is None:
        return None if keys.is_rectangular else keys.keep_mask[:, None, None, :]
    rows = torch.arange(queries.max_len, device=keys.ids.device)
    near_TS = (rows[:, None] - rows).abs() <= window // 2
    near_BTS = near_TS | ~queries.keep_mask[:, :, None]
    return (near_BTS & keys.keep_mask[:, None, :])[:, None]


def _varlen(
    q: Tensor, k: Tensor, v: Tensor, *, queries: Layout, keys: Layout, is_causal: bool, window: int | None
) -> Tensor:
    """torch's variable-length kernel, and zeros in slots that no sentence covers."""
    from nmt_cli.model.varlen import attend_varlen

    num_left = 0 if isinstance(queries, Spans) or _is_covered(queries) else queries.num_empty
    q_spans, k_spans = (side if isinstance(side, Spans) else side.spans for side in (queries, keys))
    q = q[: len(q) - num_left]
    mixed = attend_varlen(q, k, v, queries=q_spans, keys=k_spans, is_causal=is_causal, window=window)
    return F.pad(mixed, (0, 0, 0, 0, 0, num_left)) if num_left else mixed


def _is_covered(layout: Packed) -> bool:
    """Whether there are no empty slots, or dummy sentences behind the real ones, which then cover them all."""
    return layout.num_empty == 0 or layout.cu_seqlens.numel() > layout.num_sentences + 1
