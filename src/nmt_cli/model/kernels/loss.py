"""The label-smoothed loss of logits and its gradient, in one kernel (section 5.4)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmt_cli.devices import launching_on

_COLUMNS = 4096  # columns that a program holds at a time


def gradients_by_rows(logits: Tensor, gold: Tensor, vocab: int, smoothing: float, *, pad: int) -> tuple[Tensor, Tensor]:
    """The losses summed over the rows of logits [R, W], which the gradient overwrites.

    It is a `training.loss.LossAndGradient`. Rows whose gold is `pad` are empty. A program reads a row twice: for its
    statistics, then for its gradient. The second time the row comes from the cache.
    """
    num_rows, width = logits.shape
    losses = logits.new_empty(2, num_rows, dtype=torch.float32)
    with launching_on(logits.device):
        _loss_kernel[(num_rows,)](
            *(logits, gold, losses, num_rows, width, vocab, smoothing), PAD=pad, COLUMNS=_COLUMNS, num_warps=16
        )
    smoothed, nll = losses.sum(1).unbind()
    return smoothed, nll


@triton.jit
def _loss_kernel(
    logits_ptr, gold_ptr, losses_ptr, num_rows, width, vocab, smoothing, PAD: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    gold = tl.load(gold_ptr + row).to(tl.int32)
    is_token = gold != PAD
    place = logits_ptr + row.to(tl.int64) * width
    # Each lane keeps its own largest score and a sum relative to it; after the row, lanes are combined.
    largest = tl.full([COLUMNS], -1e30, tl.float32)
    exponentials = tl.zeros([COLUMNS], tl.float32)
    scores = tl.zeros([COLUMNS], tl.float32)
    for start in range(0, vocab, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        is_piece = column < vocab
        score = tl.load(place + column, is_piece, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)
        larger = tl.maximum(largest, score)
        exponentials = exponentials * tl.exp(largest - larger) + tl.exp(score - larger)
        scores += tl.where(is_piece, score, 0.0)
        largest = larger
    top = tl.max(largest, 0)
    logsumexp = top + tl.log(tl.sum(exponentials * tl.exp(largest - top), 0))
    nll = logsumexp - tl.load(place + gold).to(tl.float32)
    mean_nll = logsumexp - tl.sum(scores, 0) / vocab
    tl.store(losses_ptr + row, tl.where(is_token, (1 - smoothing) * nll + smoothing * mean_nll, 0.0))
    tl.store(losses_ptr + num_rows + row, tl.where(is_token, nll, 0.0))
    tl.debug_barrier()  # all lanes have read the gold piece's score, which is about to be overwritten
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        score = tl.load(place + column, column < vocab, other=-float("inf"), eviction_policy="evict_first")
        wanted = tl.where(column == gold, 1 - smoothing + smoothing / vocab, smoothing / vocab)
        gradient = tl.exp(score.to(tl.float32) - logsumexp) - wanted
        gradient = tl.where((column < vocab) & is_token, gradient, 0.0)
        tl.store(place + column, gradient.to(logits_ptr.dtype.element_ty), column < width)
