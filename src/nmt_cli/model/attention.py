"""Scaled dot-product attention over packed sentences (section 3.2), and its kernels.

Shapes: N, M packed query and key tokens, B sentences, T, S the longest, H heads, K = d_k, V = d_v.
"""

from __future__ import annotations

from functools import cache
from subprocess import SubprocessError
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from nmt_cli.devices import SHORT_SENTENCE_TOKENS, missing_for_triton
from nmt_cli.errors import first_line
from nmt_cli.memory import is_out_of_memory
from nmt_cli.model.cpu_attention import attend_cpu
from nmt_cli.model.dropout import Dropout
from nmt_cli.model.packing import Layout, Packed, Projections, Spans, from_rectangle, to_rectangle

Kernel = Literal["triton", "varlen", "sdpa", "products"]

_TRITON_WIDTHS = range(8, 129, 8)
# Without cuDNN's, which plans a kernel for each shape: shapes change from batch to batch.
_SDPA_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attend(
    projections: Projections,
    *,
    queries: Layout,
    keys: Layout,
    is_causal: bool,
    window: int | None,
    dropout: Dropout,
) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)) V within each sentence (equation 1), [N, H, V], with dropout of the softmax.

    `window` restricts a token to its neighbours within window // 2 on either side (section 4). Only the kernels
    "triton" and "varlen" take `Spans`.
    """
    q = projections.matrices[0]
    kernel = choose_kernel(
        q.device,
        q.dtype,
        d_k=projections.d_k,
        d_v=projections.d_v,
        window=window,
        length_bound=max(queries.length_bound, keys.length_bound),
        has_dropout=dropout.is_on,
    )
    if kernel in ("triton", "varlen"):
        return _attend_spans(
            kernel, projections, queries=queries, keys=keys, is_causal=is_causal, window=window, dropout=dropout
        )
    assert isinstance(queries, Packed)
    assert isinstance(keys, Packed)
    q, k, v = projections.by_head()
    probability = dropout.probability if dropout.is_on else 0.0
    if kernel == "products":
        return attend_cpu(q, k, v, queries=queries, keys=keys, is_causal=is_causal, window=window, dropout=probability)
    q_BHTK, k_BHSK, v_BHSV = (
        to_rectangle(x, layout).transpose(1, 2) for x, layout in ((q, queries), (k, keys), (v, keys))
    )
    mask = _mask(queries, keys, is_causal=is_causal, window=window)
    with sdpa_kernel(_SDPA_BACKENDS):
        out_BHTV = F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSV, attn_mask=mask, dropout_p=probability)
    return from_rectangle(out_BHTV.transpose(1, 2), queries)


def choose_kernel(
    device: torch.device,
    dtype: torch.dtype,
    *,
    d_k: int,
    d_v: int,
    window: int | None,
    length_bound: int,
    has_dropout: bool,
) -> Kernel:
    """The kernel for attention among sentences of at most `length_bound` tokens.

    On CUDA in bf16, our own kernel serves short sentences, dropout, and widths and windows that torch's variable-length
    kernel refuses; torch's serves the rest. In other precisions CUDA has torch's fused kernels over a padded rectangle.
    On a CPU those take ten times as long on sentences as matrix products (docs/design/cpu-training.md#attention).
    """
    if device.type != "cuda":
        return "products"
    from nmt_cli.model.cuda_attention import varlen_supports

    can_use_varlen = not has_dropout and varlen_supports(dtype, d_k=d_k, d_v=d_v, window=window)
    suits_triton = dtype == torch.bfloat16 and d_k in _TRITON_WIDTHS and d_v in _TRITON_WIDTHS
    is_wanted = suits_triton and (length_bound <= SHORT_SENTENCE_TOKENS or not can_use_varlen)
    if is_wanted and triton_problem(device) is None:
        return "triton"
    return "varlen" if can_use_varlen else "sdpa"


def triton_problem(device: torch.device) -> str | None:
    """Why our kernels in Triton do not run on a device; None if they do. The first question launches a kernel."""
    return _triton_problem_of_gpu(device.index or 0) if device.type == "cuda" else "not a GPU"


# torch.compile cannot trace the question. `torch.compiler.assume_constant_result` also imports the compiler: seconds.
triton_problem._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _triton_problem_of_gpu(index: int) -> str | None:
    if (missing := missing_for_triton()) is not None:
        return str(missing)
    try:
        from nmt_cli.model.kernels import search

        search.check(torch.device("cuda", index))
    except (AssertionError, ImportError, OSError, RuntimeError, SubprocessError) as error:
        # Triton asserts that libcuda.so is found, and lets errors of its compiler through.
        if is_out_of_memory(error, counts_vague_errors=False):
            raise
        return f"{type(error).__name__}: {first_line(error)}"
    return None


def _mask(queries: Packed, keys: Packed, *, is_causal: bool, window: int | None) -> Tensor | None:
    """The keys that each query sees, [B or 1, 1, T or 1, S]; None if every query sees all keys.

    A padded query sees at least one key: a row without keys would be NaN.
    """
    if is_causal:
        return torch.ones(queries.max_len, keys.max_len, dtype=torch.bool, device=keys.ids.device).tril()[None, None]
    if window is None:
        return None if keys.is_rectangular else keys.keep_mask[:, None, None, :]
    positions = torch.arange(queries.max_len, device=keys.ids.device)
    near_TS = (positions[:, None] - positions).abs() <= window // 2
    near_or_padded_BTS = near_TS | ~queries.keep_mask[:, :, None]
    return (near_or_padded_BTS & keys.keep_mask[:, None, :])[:, None]


def _attend_spans(
    kernel: Kernel,
    projections: Projections,
    *,
    queries: Layout,
    keys: Layout,
    is_causal: bool,
    window: int | None,
    dropout: Dropout,
) -> Tensor:
    """Attention by a kernel that takes `Spans`, with zeros in slots that no sentence covers."""
    from nmt_cli.model.cuda_attention import attend_triton, attend_varlen

    layouts = [queries, keys, keys][: len(projections.matrices)]
    covered = [x[: len(x) - _num_uncovered(layout)] for x, layout in zip(projections.matrices, layouts, strict=True)]
    projections = projections._replace(matrices=covered)
    q_spans, k_spans = (layout if isinstance(layout, Spans) else layout.spans for layout in (queries, keys))
    if kernel == "triton":
        mixed = attend_triton(
            projections, queries=q_spans, keys=k_spans, is_causal=is_causal, window=window, dropout=dropout
        )
    else:
        assert not dropout.is_on, "torch's variable-length kernel has none"
        mixed = attend_varlen(projections, queries=q_spans, keys=k_spans, is_causal=is_causal, window=window)
    mixed = mixed.unflatten(-1, (projections.heads, projections.d_v))
    num_uncovered = _num_uncovered(queries)
    return F.pad(mixed, (0, 0, 0, 0, 0, num_uncovered)) if num_uncovered else mixed


def _num_uncovered(layout: Layout) -> int:
    """Slots at the end that no sentence covers. In `Spans`, and in batches of a training, dummy sentences cover all."""
    if isinstance(layout, Spans) or layout.cu_seqlens.numel() > layout.num_sentences + 1:
        return 0
    return layout.num_empty
