"""Attention on a GPU over packed sentences: torch's variable-length kernel, and our own for short sentences.

Torch's kernel has tiles of 128 queries and keys, which sentences of 25 tokens leave empty. Our kernels are an operator
that torch.compile takes as it is. Import this module inside functions, because it brings in torch's compiler.

Shapes: N, M slots of queries and keys, H heads, K = d_k, V = d_v.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from nmt_cli.model.cuda_graphs import launching_on
from nmt_cli.model.dropout import Dropout, keep_limit
from nmt_cli.model.packing import Projections, Spans

_WIDE_HEAD = 64  # wider heads have tiles of half as many rows, so that registers suffice
_MAX_REGISTERS = 255  # that a thread can have
# Later versions of torch express causal attention as a window. Torch 2.10 has no windows, and takes `is_causal`.
_TAKES_WINDOW = "window_size" in inspect.signature(varlen_attn).parameters


def attend_varlen(
    projections: Projections, *, queries: Spans, keys: Spans, is_causal: bool, window: int | None
) -> Tensor:
    """Attention within each sentence, [N, H * V]; torch.compile can trace it.

    Slots outside of all sentences, and their gradients, are left unwritten, and may be NaN.
    """
    options: dict[str, Any] = {}
    if _TAKES_WINDOW:
        options["window_size"] = (-1, 0) if is_causal else (_reach(window), _reach(window))
    else:
        options["is_causal"] = is_causal
    q, k, v = projections.by_head()
    out = varlen_attn(q, k, v, queries.cu_seqlens, keys.cu_seqlens, queries.length_bound, keys.length_bound, **options)
    assert isinstance(out, Tensor)
    return out.flatten(1)


def varlen_supports(dtype: torch.dtype, *, d_k: int, d_v: int, window: int | None) -> bool:
    """Whether torch's kernel takes such queries and keys."""
    are_widths_supported = d_k == d_v <= 256 and d_k % 8 == 0
    return dtype == torch.bfloat16 and are_widths_supported and (window is None or _TAKES_WINDOW)


def attend_triton(
    projections: Projections,
    *,
    queries: Spans,
    keys: Spans,
    is_causal: bool,
    window: int | None,
    dropout: Dropout,
) -> Tensor:
    """Attention within each sentence, [N, H * V], with dropout of the softmax.

    A query without keys gets zeros. Slots outside of all sentences, and their gradients, are left unwritten, and may be
    NaN.
    """
    (matrices, heads, d_k, d_v), reach = projections, _reach(window)
    seed, probability = dropout.kernel_arguments(matrices[0].device)
    out: Tensor = _attention(
        list(matrices), queries.cu_seqlens, keys.cu_seqlens, seed, heads, d_k, d_v, is_causal, reach, probability
    )[0]
    return out


def _reach(window: int | None) -> int:
    """The distance at which a token still sees another; -1 for any distance."""
    return -1 if window is None else window // 2


@torch.library.custom_op("nmt::attention", mutates_args=())
def _attention(
    matrices: list[Tensor],
    cu_queries: Tensor,
    cu_keys: Tensor,
    seed: Tensor | None,
    heads: int,
    d_k: int,
    d_v: int,
    is_causal: bool,
    reach: int,
    dropout_probability: float,
) -> tuple[Tensor, Tensor]:
    """The attention output of each query [N, H * V], and the base-2 logarithm of its sum of 2^score [H, N].

    `seed` [2] determines the dropout mask, as in `Dropout`; None drops nothing.
    """
    from nmt_cli.model.kernels import attention  # brings in Triton

    projections = Projections(matrices, heads, d_k, d_v)
    q, k, v = projections.split()
    out, logsumexp = _empty_results(projections)
    with launching_on(q.device):
        attention.forward_kernel[_grid(cu_queries, projections)](
            q, k, v, out, logsumexp, cu_queries, cu_keys, seed, len(q),
            STRIDES=tuple(x.stride(0) for x in (q, k, v)),
            **_options(projections, is_causal=is_causal, reach=reach, dropout_probability=dropout_probability),
            maxnreg=_forward_registers(projections, is_causal=is_causal, dropout_probability=dropout_probability),
        )  # fmt: skip
    return out, logsumexp


@torch.library.custom_op("nmt::attention_backward", mutates_args=())
def _attention_backward(
    gradient: Tensor,
    matrices: list[Tensor],
    out: Tensor,
    logsumexp: Tensor,
    cu_queries: Tensor,
    cu_keys: Tensor,
    seed: Tensor | None,
    heads: int,
    d_k: int,
    d_v: int,
    is_causal: bool,
    reach: int,
    dropout_probability: float,
) -> list[Tensor]:
    """The gradient of each matrix, for the gradient [N, H * V] of the output."""
    from nmt_cli.model.kernels import attention

    projections = Projections(matrices, heads, d_k, d_v)
    q, k, v = projections.split()
    gradients = _empty_gradients(matrices)
    dq, dk, dv = projections._replace(matrices=gradients).split()
    with launching_on(q.device):
        attention.backward_kernel[_grid(cu_queries, projections)](
            q, k, v, out, gradient.contiguous(), logsumexp, dq, dk, dv, cu_queries, cu_keys, seed, len(q),
            STRIDES=tuple(x.stride(0) for x in (q, k, v, dq, dk, dv)),
            **_options(projections, is_causal=is_causal, reach=reach, dropout_probability=dropout_probability),
            maxnreg=_MAX_REGISTERS,
        )  # fmt: skip
    return gradients


@_attention.register_fake
def _(matrices: list[Tensor], cu_q: Tensor, cu_k: Tensor, seed: Any, heads: int, d_k: int, d_v: int, *_: Any) -> Any:
    return _empty_results(Projections(matrices, heads, d_k, d_v))


@_attention_backward.register_fake
def _(gradient: Tensor, matrices: list[Tensor], *_: Any) -> list[Tensor]:
    return _empty_gradients(matrices)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    matrices, cu_queries, cu_keys, seed, *ctx.options = inputs
    ctx.set_materialize_grads(False)  # no zeros are made for the logarithms, which nothing uses
    ctx.save_for_backward(*matrices, *output, cu_queries, cu_keys, seed)


def _backward(ctx: Any, gradient: Tensor, _: None) -> tuple[list[Tensor] | None, ...]:
    *matrices, out, logsumexp, cu_queries, cu_keys, seed = ctx.saved_tensors
    gradients = _attention_backward(gradient, matrices, out, logsumexp, cu_queries, cu_keys, seed, *ctx.options)
    return gradients, None, None, None, *(None for _ in ctx.options)


_attention.register_autograd(_backward, setup_context=_save_for_backward)


def _empty_results(projections: Projections) -> tuple[Tensor, Tensor]:
    """Memory for the output [N, H * V] and the logarithms [H, N]."""
    queries, heads = projections.matrices[0], projections.heads
    num_slots = queries.size(0)
    return (
        queries.new_empty(num_slots, heads * projections.d_v),
        queries.new_empty(heads, num_slots, dtype=torch.float32),
    )


def _empty_gradients(matrices: Sequence[Tensor]) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in matrices]


def _grid(cu_queries: Tensor, projections: Projections) -> tuple[int]:
    return ((len(cu_queries) - 1) * projections.heads,)


def _options(projections: Projections, *, is_causal: bool, reach: int, dropout_probability: float) -> dict[str, Any]:
    """The constants that a kernel is compiled with. One stage is enough, as most sentences fit a tile of 32 rows."""
    return {
        "HEADS": projections.heads,
        "D_K": projections.d_k,
        "D_V": projections.d_v,
        "IS_CAUSAL": is_causal,
        "REACH": reach,
        "LIMIT": keep_limit(1 - dropout_probability),
        "SCALE": 1 / (1 - dropout_probability),
        "ROWS": 32 if max(projections.d_k, projections.d_v) <= _WIDE_HEAD else 16,
        "num_warps": 2,
        "num_stages": 1,
    }


def _forward_registers(projections: Projections, *, is_causal: bool, dropout_probability: float) -> int | None:
    """The register limit per thread of the forward kernel; None: the compiler chooses.

    The compiler may choose to spill registers, so that one more block fits a multiprocessor. A limit prevents that: the
    hardware's maximum, or 144, with which seven blocks fit and nothing is spilled. Cases in which the compiler was
    measured to spill have a limit (benchmarks/gpu/kernels.py).
    """
    if dropout_probability > 0 or min(projections.d_k, projections.d_v) < _WIDE_HEAD:
        return _MAX_REGISTERS
    return None if is_causal else 144
