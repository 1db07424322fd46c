"""torch's variable-length attention, in the forms that its signature has had since torch 2.10.

Imported where it is needed: it brings in torch's compiler. Shapes: N, M slots of queries and keys, H heads,
K = d_k = d_v.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from nmt_cli.model.packing import Spans
from nmt_cli.model.projections import Projections

_LARGEST_HEAD = 256
_HEAD_MULTIPLE = 8
# A window says causal too; torch 2.10 knows no windows and takes `is_causal` instead.
_TAKES_WINDOW = "window_size" in inspect.signature(varlen_attn).parameters


def attend_varlen(
    projections: Projections, *, queries: Spans, keys: Spans, is_causal: bool, window: int | None
) -> Tensor:
    """Attention within each sentence, [N, H * V]; torch.compile can trace it.

    What slots outside of all sentences hold afterwards, and in the gradients, is left to chance: NaN, perhaps.
    """
    options: dict[str, Any] = {}
    if _TAKES_WINDOW:
        reach = -1 if window is None else window // 2
        options["window_size"] = (-1, 0) if is_causal else (reach, reach)
    else:
        options["is_causal"] = is_causal
    q, k, v = projections.by_head()
    out = varlen_attn(q, k, v, queries.cu_seqlens, keys.cu_seqlens, queries.bound, keys.bound, **options)
    assert isinstance(out, Tensor)
    return out.flatten(1)


def serves(dtype: torch.dtype, *, d_k: int, d_v: int, window: int | None) -> bool:
    """Whether the kernel takes such queries and keys on CUDA."""
    has_its_widths = d_k == d_v <= _LARGEST_HEAD and d_k % _HEAD_MULTIPLE == 0
    return dtype == torch.bfloat16 and has_its_widths and (window is None or _TAKES_WINDOW)
