"""Residual, dropout and norm after the matrix products of a layer, in one kernel; the gradients of bias and ReLU.

Shapes: N tokens, D d_model, F d_ff. Statistics and sums are float32. Gradients of biases and norms are sums of columns,
which two kernels take in a fixed order, so they are the same in each run.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from nmt_cli.model.cuda_graphs import launching_on
from nmt_cli.model.dropout import HASH_FACTORS, keep_limit

_ELEMENTS_PER_PROGRAM = 2048  # elements that a program of `_norm_kernel` holds at a time
_MAX_PROGRAMS = 396  # programs that share the rows of a backward pass: three for each multiprocessor of an H100 or H200
_RELU_ROWS, _RELU_COLUMNS = 16, 256  # the tile of a program of `_relu_backward_kernel`
_SUM_ROWS, _SUM_COLUMNS = 128, 32  # the tile of a program of `_sum_rows_kernel`
_FIRST_FACTOR, _SECOND_FACTOR = (tl.constexpr(factor) for factor in HASH_FACTORS)


@torch.library.custom_op("nmt::residual_norm", mutates_args=())
def residual_norm(
    x: Tensor,
    sublayer_output: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor,
    norm_bias: Tensor,
    seed: Tensor | None,
    dropout: float,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """LayerNorm(x + Dropout(sublayer_output + bias)) [N, D] (sections 3.1 and 5.4), and the statistics of its rows.

    x and sublayer_output [N, D], contiguous; `bias` [D] is the bias of the sub-layer's last product; norm_weight and
    norm_bias [D]. Statistics [2, N] float32 are the mean and 1 / deviation of each row. `seed` [2] determines the
    dropout mask, as in `Dropout`; None drops nothing.
    """
    y, statistics = torch.empty_like(x), x.new_empty(2, len(x), dtype=torch.float32)
    _launch_norm(
        x, sublayer_output, bias, norm_weight, norm_bias,
        seed=seed, dropout=dropout, epsilon=epsilon, is_rms=False, updates_x=False, y=y, statistics=statistics,
    )  # fmt: skip
    return y, statistics


@residual_norm.register_fake
def _(x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(2, len(x), dtype=torch.float32)


@torch.library.custom_op("nmt::residual_norm_backward", mutates_args=())
def residual_norm_backward(
    gradient: Tensor,
    x: Tensor,
    sublayer_output: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor,
    statistics: Tensor,
    seed: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x [N, D], of sublayer_output [N, D], and of norm_weight, norm_bias and bias, together [3, D]."""
    num_rows, width = x.shape
    x_gradient, sublayer_gradient = torch.empty_like(x), torch.empty_like(x)
    options = _options(width, dropout)
    num_programs = min(_MAX_PROGRAMS, triton.cdiv(num_rows, options["ROWS"]))
    sums = x.new_empty(num_programs, 3, width, dtype=torch.float32)
    with launching_on(x.device):
        _norm_backward_kernel[(num_programs,)](
            gradient, x, sublayer_output, bias, norm_weight, statistics, seed,
            x_gradient, sublayer_gradient, sums, num_rows, width,
            **options,
        )  # fmt: skip
    return x_gradient, sublayer_gradient, _sum_of_programs(sums, like=norm_weight)


@residual_norm_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, sublayer_output: Tensor, bias: Tensor | None, norm_weight: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x), norm_weight.new_empty(3, x.size(1))


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, sublayer_output, bias, norm_weight, _, seed, ctx.dropout, _ = inputs
    ctx.set_materialize_grads(False)  # no zeros are made for the statistics, which nothing uses
    ctx.save_for_backward(x, sublayer_output, bias, norm_weight, output[1], seed)


def _backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
    x, sublayer_output, bias, norm_weight, statistics, seed = ctx.saved_tensors
    x_gradient, sublayer_gradient, sums = residual_norm_backward(
        gradient.contiguous(), x, sublayer_output, bias, norm_weight, statistics, seed, ctx.dropout
    )
    norm_weight_gradient, norm_bias_gradient, bias_gradient = sums
    if bias is None:
        bias_gradient = None
    return x_gradient, sublayer_gradient, bias_gradient, norm_weight_gradient, norm_bias_gradient, None, None, None


residual_norm.register_autograd(_backward, setup_context=_keep_for_backward)


def add_norm(
    x: Tensor, sublayer_output: Tensor, bias: Tensor | None, norm: nn.LayerNorm | nn.RMSNorm, *, updates_x: bool
) -> Tensor:
    """norm(x + sublayer_output + bias) [N, D] without gradients; with `updates_x`, x becomes the sum."""
    y, is_rms = torch.empty_like(x), isinstance(norm, nn.RMSNorm)
    norm_bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    assert norm.eps is not None, "the recipe has one"
    _launch_norm(
        x, sublayer_output, bias, norm.weight, norm_bias,
        seed=None, dropout=0.0, epsilon=norm.eps, is_rms=is_rms, updates_x=updates_x, y=y, statistics=None,
    )  # fmt: skip
    return y


def _launch_norm(
    x: Tensor,
    sublayer_output: Tensor,
    bias: Tensor | None,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    *,
    seed: Tensor | None,
    dropout: float,
    epsilon: float,
    is_rms: bool,
    updates_x: bool,
    y: Tensor,
    statistics: Tensor | None,
) -> None:
    """Write norm(x + Dropout(sublayer_output + bias)) into y, and its statistics if there is a tensor for them."""
    num_rows, width = x.shape
    options = _options(width, dropout)
    with launching_on(x.device):
        _norm_kernel[(triton.cdiv(num_rows, options["ROWS"]),)](
            x, sublayer_output, bias, norm_weight, norm_bias, seed, y, statistics, num_rows, width,
            EPSILON=epsilon, IS_RMS=is_rms, UPDATES_X=updates_x, **options,
        )  # fmt: skip


@torch.library.custom_op("nmt::relu_backward", mutates_args=())
def relu_backward(gradient: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient [N, F] of a ReLU's input, from its output `hidden` and the output's gradient, and its sum [F]."""
    num_rows, width = hidden.shape
    input_gradient = torch.empty_like(hidden)
    num_blocks = triton.cdiv(width, _RELU_COLUMNS)
    num_programs = max(1, min(4 * _MAX_PROGRAMS // num_blocks, triton.cdiv(num_rows, _RELU_ROWS)))
    sums = hidden.new_empty(num_programs, 1, width, dtype=torch.float32)
    with launching_on(hidden.device):
        _relu_backward_kernel[(num_programs, num_blocks)](
            gradient, hidden, input_gradient, sums, num_rows, width,
            ROWS=_RELU_ROWS, COLUMNS=_RELU_COLUMNS, num_warps=4,
        )  # fmt: skip
    return input_gradient, _sum_of_programs(sums, like=hidden)[0]


@relu_backward.register_fake
def _(gradient: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(hidden), hidden.new_empty(hidden.size(1))


def _sum_of_programs(sums: Tensor, *, like: Tensor) -> Tensor:
    """The sum [K, D] of the sums of all programs [P, K, D], in the precision of `like`."""
    num_programs, num_sums, width = sums.shape
    total = like.new_empty(num_sums, width)
    grid = (triton.cdiv(num_sums * width, _SUM_COLUMNS),)
    with launching_on(sums.device):
        _sum_rows_kernel[grid](
            sums, total, num_programs, num_sums * width, ROWS=_SUM_ROWS, COLUMNS=_SUM_COLUMNS, num_warps=4
        )
    return total


def _options(width: int, dropout: float) -> dict[str, Any]:
    """The tile that a program takes at a time, the limit of hashes that dropout keeps, and the scale of the rest."""
    columns = triton.next_power_of_2(width)
    rows = max(1, _ELEMENTS_PER_PROGRAM // columns)
    return {
        "ROWS": rows,
        "COLUMNS": columns,
        "num_warps": min(16, max(4, rows * columns // 512)),
        "LIMIT": keep_limit(1 - dropout),
        "SCALE": 1 / (1 - dropout),
    }


@triton.jit
def is_kept(index, seed, LIMIT: tl.constexpr):
    """Whether dropout keeps the elements with these indices: the hash of `nmt_cli.model.dropout`."""
    bits = (index ^ tl.load(seed)).to(tl.uint32, bitcast=True)
    bits = (bits ^ (bits >> 16)) * _FIRST_FACTOR
    bits = bits ^ tl.load(seed + 1).to(tl.uint32, bitcast=True)
    bits = (bits ^ (bits >> 15)) * _SECOND_FACTOR
    return bits.to(tl.int32, bitcast=True) < LIMIT


@triton.jit
def _after_dropout(
    sublayer_output_ptr, bias_ptr, seed_ptr, index, column, mask, width, LIMIT: tl.constexpr, SCALE: tl.constexpr
):  # fmt: skip
    """Dropout(sublayer_output + bias) of a tile."""
    sublayer_output = tl.load(sublayer_output_ptr + index, mask, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        sublayer_output += tl.load(bias_ptr + column, column < width, other=0.0).to(tl.float32)
    if seed_ptr is not None:
        sublayer_output = tl.where(is_kept(index, seed_ptr, LIMIT), sublayer_output * SCALE, 0.0)
    return sublayer_output


@triton.jit
def _norm_kernel(
    x_ptr, sublayer_output_ptr, bias_ptr, norm_weight_ptr, norm_bias_ptr, seed_ptr, y_ptr, statistics_ptr,
    num_rows, width,
    EPSILON: tl.constexpr, LIMIT: tl.constexpr, SCALE: tl.constexpr, IS_RMS: tl.constexpr, UPDATES_X: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """y = norm(x + Dropout(sublayer_output + bias)) of some rows; `UPDATES_X` also writes the sum into x."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < num_rows) & (column < width)
    index = row * width + column
    sublayer_output = _after_dropout(sublayer_output_ptr, bias_ptr, seed_ptr, index, column, mask, width, LIMIT, SCALE)
    total = tl.load(x_ptr + index, mask, other=0.0).to(tl.float32) + sublayer_output
    if UPDATES_X:
        tl.store(x_ptr + index, total.to(x_ptr.dtype.element_ty), mask)
    total = tl.where(mask, total, 0.0)
    mean = tl.zeros([ROWS, 1], tl.float32)
    if not IS_RMS:
        mean = tl.sum(total, 1, keep_dims=True) / width
    centred = tl.where(mask, total - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1, keep_dims=True) / width + EPSILON)
    y = centred * scale * tl.load(norm_weight_ptr + column, column < width, other=0.0).to(tl.float32)
    if norm_bias_ptr is not None:
        y += tl.load(norm_bias_ptr + column, column < width, other=0.0).to(tl.float32)
    tl.store(y_ptr + index, y.to(y_ptr.dtype.element_ty), mask)
    if statistics_ptr is not None:
        tl.store(statistics_ptr + row, mean, row < num_rows)
        tl.store(statistics_ptr + num_rows + row, scale, row < num_rows)


@triton.jit
def _norm_backward_kernel(
    gradient_ptr, x_ptr, sublayer_output_ptr, bias_ptr, norm_weight_ptr, statistics_ptr, seed_ptr,
    x_gradient_ptr, sublayer_gradient_ptr, sums_ptr, num_rows, width,
    LIMIT: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of some rows of x and sublayer_output, and their sums for norm_weight, norm_bias and bias."""
    column = tl.arange(0, COLUMNS)[None, :]
    norm_weight = tl.load(norm_weight_ptr + column, column < width, other=0.0).to(tl.float32)
    norm_weight_sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    norm_bias_sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    bias_sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(tl.program_id(0) * ROWS, num_rows, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        mask = (row < num_rows) & (column < width)
        index = row * width + column
        sublayer_output = _after_dropout(
            sublayer_output_ptr, bias_ptr, seed_ptr, index, column, mask, width, LIMIT, SCALE
        )
        total = tl.load(x_ptr + index, mask, other=0.0).to(tl.float32) + sublayer_output
        mean = tl.load(statistics_ptr + row, row < num_rows, other=0.0)
        scale = tl.load(statistics_ptr + num_rows + row, row < num_rows, other=0.0)
        normed = tl.where(mask, (total - mean) * scale, 0.0)
        gradient = tl.load(gradient_ptr + index, mask, other=0.0).to(tl.float32)
        norm_weight_sums += gradient * normed
        norm_bias_sums += gradient
        gradient *= norm_weight
        mean_gradient = tl.sum(gradient, 1, keep_dims=True) / width
        mean_gradient_by_normed = tl.sum(gradient * normed, 1, keep_dims=True) / width
        gradient = (gradient - mean_gradient - normed * mean_gradient_by_normed) * scale
        tl.store(x_gradient_ptr + index, gradient.to(x_gradient_ptr.dtype.element_ty), mask)
        if seed_ptr is not None:
            gradient = tl.where(is_kept(index, seed_ptr, LIMIT), gradient * SCALE, 0.0)
        tl.store(sublayer_gradient_ptr + index, gradient.to(sublayer_gradient_ptr.dtype.element_ty), mask)
        if bias_ptr is not None:
            bias_sums += tl.where(mask, gradient, 0.0)
    row_ptr = sums_ptr + tl.program_id(0) * 3 * width + column
    tl.store(row_ptr, tl.sum(norm_weight_sums, 0, keep_dims=True), column < width)
    tl.store(row_ptr + width, tl.sum(norm_bias_sums, 0, keep_dims=True), column < width)
    tl.store(row_ptr + 2 * width, tl.sum(bias_sums, 0, keep_dims=True), column < width)


@triton.jit
def _relu_backward_kernel(
    gradient_ptr, hidden_ptr, input_gradient_ptr, sums_ptr, num_rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(tl.program_id(0) * ROWS, num_rows, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        mask = (row < num_rows) & (column < width)
        index = row.to(tl.int64) * width + column
        hidden = tl.load(hidden_ptr + index, mask, other=0.0)
        gradient = tl.load(gradient_ptr + index, mask, other=0.0)
        gradient = tl.where(hidden > 0, gradient, 0.0)
        tl.store(input_gradient_ptr + index, gradient, mask)
        sums += gradient.to(tl.float32)
    tl.store(sums_ptr + tl.program_id(0) * width + column, tl.sum(sums, 0, keep_dims=True), column < width)


@triton.jit
def _sum_rows_kernel(sums_ptr, total_ptr, num_rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, num_rows, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        total += tl.load(sums_ptr + row * width + column, (row < num_rows) & (column < width), other=0.0)
    total = tl.sum(total, 0, keep_dims=True)
    tl.store(total_ptr + column, total.to(total_ptr.dtype.element_ty), column < width)
