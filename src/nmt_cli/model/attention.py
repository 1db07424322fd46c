"""Scaled dot-product attention over packed sentences (section 3.2), and its kernels.

Shapes: N, M packed query and key tokens, B sentences, T, S the longest, H heads, K = d_k, V = d_v.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt_cli.model.packing import Packed, from_rectangle, to_rectangle

Kernel = Literal["varlen", "sdpa", "products"]
_LARGEST_VARLEN_HEAD = 256
_VARLEN_HEAD_MULTIPLE = 8


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, queries: Packed, keys: Packed, is_causal: bool, window: int | None
) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)) V within each sentence (equation 1), [N, H, V].

    q [N, H, K], k [M, H, K], v [M, H, V]. `window` restricts a token to its neighbours within window // 2 on either
    side (section 4).
    """
    kernel = choose_kernel(q.device, q.dtype, d_k=q.size(-1), d_v=v.size(-1), window=window)
    if kernel == "varlen":
        q, k, v = q[: queries.num_tokens], k[: keys.num_tokens], v[: keys.num_tokens]
        mixed = _varlen(q, k, v, queries=queries, keys=keys, is_causal=is_causal, window=window)
        return F.pad(mixed, (0, 0, 0, 0, 0, queries.num_empty))
    q_BHTK, k_BHSK, v_BHSV = (
        to_rectangle(x, layout).transpose(1, 2) for x, layout in ((q, queries), (k, keys), (v, keys))
    )
    mask = _mask(queries, keys, is_causal=is_causal, window=window)
    if kernel == "products":
        out_BHTV = _products(q_BHTK, k_BHSK, v_BHSV, mask=mask)
    else:
        out_BHTV = F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSV, attn_mask=mask)
    return from_rectangle(out_BHTV.transpose(1, 2), queries)


def choose_kernel(device: torch.device, dtype: torch.dtype, *, d_k: int, d_v: int, window: int | None) -> Kernel:
    """Which kernel serves attention.

    torch's variable-length one on CUDA in bf16; else, over a padded rectangle, torch's fused one on CUDA and plain
    matrix products on a CPU, where the fused one takes ten times as long on sentences (docs/LOG.md).
    """
    if device.type != "cuda":
        return "products"
    has_its_widths = d_k == d_v <= _LARGEST_VARLEN_HEAD and d_k % _VARLEN_HEAD_MULTIPLE == 0
    if dtype != torch.bfloat16 or not has_its_widths or not _varlen_parameters():
        return "sdpa"
    return "varlen" if window is None or "window_size" in _varlen_parameters() else "sdpa"


def _products(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None) -> Tensor:
    """q [B, H, T, K], k [B, H, S, K], v [B, H, S, V] to [B, H, T, V]."""
    scores_BHTS = (q * q.size(-1) ** -0.5) @ k.mT
    if mask is not None:
        scores_BHTS = scores_BHTS.masked_fill_(~mask, -torch.inf)
    out_BHTV: Tensor = scores_BHTS.softmax(-1) @ v
    return out_BHTV


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
    q: Tensor, k: Tensor, v: Tensor, *, queries: Packed, keys: Packed, is_causal: bool, window: int | None
) -> Tensor:
    """torch's variable-length kernel; torch 2.10 takes `is_causal`, later ones a window that also says causal."""
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {}
    if "window_size" in _varlen_parameters():
        reach = -1 if window is None else window // 2
        options["window_size"] = (-1, 0) if is_causal else (reach, reach)
    else:
        options["is_causal"] = is_causal
    out = varlen_attn(q, k, v, queries.cu_seqlens, keys.cu_seqlens, queries.max_len, keys.max_len, **options)
    assert isinstance(out, Tensor)
    return out


@cache
def _varlen_parameters() -> frozenset[str]:
    """The parameters of torch's variable-length attention; none where this torch lacks it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)
