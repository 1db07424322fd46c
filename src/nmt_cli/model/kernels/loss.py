"""Kernels for the label-smoothed loss (section 5.4 of the paper) with its gradient, of one pass or of two passes.

Shapes as in `training.loss`: R rows of logits with W columns; the first V = `vocab` columns are pieces.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmt_cli.model.cuda_graphs import launching_on

_COLUMNS_PER_TILE = 4096  # columns that a program holds at a time
_BELOW_ALL = tl.constexpr(-1e30)  # lower than any score, but finite: infinity minus infinity would be NaN


def loss_and_gradient(logits: Tensor, gold: Tensor, vocab: int, smoothing: float, *, pad: int) -> tuple[Tensor, Tensor]:
    """Replace logits [R, W] by their gradient; return the summed smoothed loss and the summed NLL.

    It is a `training.loss.LossAndGradient`. Rows whose gold is `pad` are empty. A program reads a row twice: for its
    statistics, then for its gradient. The second time the row comes from the cache.
    """
    num_rows, width = logits.shape
    losses = logits.new_empty(2, num_rows, dtype=torch.float32)
    with launching_on(logits.device):
        _loss_kernel[(num_rows,)](
            logits, gold, losses, num_rows, width, vocab, smoothing, PAD=pad, COLUMNS=_COLUMNS_PER_TILE, num_warps=16
        )
    smoothed, nll = losses.sum(1).unbind()
    return smoothed, nll


def loss_and_gradient_of_both_passes(
    logits: Tensor, gold: Tensor, vocab: int, smoothing: float, *, weights: tuple[float, float, float, float], pad: int
) -> tuple[Tensor, ...]:
    """The same for `Consistency.loss_and_gradient`, whose sums it returns; a program reads both rows of a token twice.

    `weights` multiply the two smoothed losses and the two divergences.
    """
    num_tokens, width = len(logits) // 2, logits.size(1)
    losses = logits.new_empty(3, num_tokens, dtype=torch.float32)
    with launching_on(logits.device):
        _both_passes_kernel[(num_tokens,)](
            logits, gold, losses, num_tokens, width, vocab, smoothing, *weights,
            PAD=pad, COLUMNS=_COLUMNS_PER_TILE // 2, num_warps=16,
        )  # fmt: skip
    return losses.sum(1).unbind()


@triton.jit
def _loss_kernel(
    logits_ptr, gold_ptr, losses_ptr, num_rows, width, vocab, smoothing, PAD: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """The losses of a row, which is then overwritten with its gradient."""
    row = tl.program_id(0)
    gold = tl.load(gold_ptr + row).to(tl.int32)
    is_token = gold != PAD
    row_ptr = logits_ptr + row.to(tl.int64) * width
    # A column of a tile keeps its own largest score, and a sum relative to this score. The sums are joined at the end.
    largest = tl.full([COLUMNS], _BELOW_ALL, tl.float32)
    exponentials = tl.zeros([COLUMNS], tl.float32)
    scores = tl.zeros([COLUMNS], tl.float32)
    for start in range(0, vocab, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        is_piece = column < vocab
        score = tl.load(row_ptr + column, is_piece, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)
        larger = tl.maximum(largest, score)
        exponentials = exponentials * tl.exp(largest - larger) + tl.exp(score - larger)
        scores += tl.where(is_piece, score, 0.0)
        largest = larger
    top = tl.max(largest, 0)
    logsumexp = top + tl.log(tl.sum(exponentials * tl.exp(largest - top), 0))
    nll = logsumexp - tl.load(row_ptr + gold).to(tl.float32)
    mean_nll = logsumexp - tl.sum(scores, 0) / vocab
    tl.store(losses_ptr + row, tl.where(is_token, (1 - smoothing) * nll + smoothing * mean_nll, 0.0))
    tl.store(losses_ptr + num_rows + row, tl.where(is_token, nll, 0.0))
    tl.debug_barrier()  # all lanes have read the gold piece's score, which is about to be overwritten
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        score = tl.load(row_ptr + column, column < vocab, other=-float("inf"), eviction_policy="evict_first")
        target_prob = tl.where(column == gold, 1 - smoothing + smoothing / vocab, smoothing / vocab)
        gradient = tl.exp(score.to(tl.float32) - logsumexp) - target_prob
        gradient = tl.where((column < vocab) & is_token, gradient, 0.0)
        tl.store(row_ptr + column, gradient.to(logits_ptr.dtype.element_ty), column < width)


@triton.jit
def _both_passes_kernel(
    logits_ptr, gold_ptr, losses_ptr, num_tokens, width, vocab, smoothing,
    p_loss_weight, q_loss_weight, pq_weight, qp_weight, PAD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Losses and gradients of both rows of a token, whose distributions are P and Q; `Consistency` has the formulas.

    `pq_weight` is the weight of KL(P || Q), and `qp_weight` of KL(Q || P).
    """
    token = tl.program_id(0)
    gold = tl.load(gold_ptr + 2 * token).to(tl.int32)
    is_token = gold != PAD
    p_row_ptr = logits_ptr + token.to(tl.int64) * 2 * width
    q_row_ptr = p_row_ptr + width
    # As in `_loss_kernel`, for both rows. Also, exponentials times the difference of the scores give the divergences.
    p_largest, q_largest = tl.full([COLUMNS], _BELOW_ALL, tl.float32), tl.full([COLUMNS], _BELOW_ALL, tl.float32)
    p_exponentials, q_exponentials = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    p_differences, q_differences = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    p_scores, q_scores = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    for start in range(0, vocab, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        is_piece = column < vocab
        p_score = tl.load(p_row_ptr + column, is_piece, other=_BELOW_ALL, eviction_policy="evict_last").to(tl.float32)
        q_score = tl.load(q_row_ptr + column, is_piece, other=_BELOW_ALL, eviction_policy="evict_last").to(tl.float32)
        p_larger, q_larger = tl.maximum(p_largest, p_score), tl.maximum(q_largest, q_score)
        p_scale, q_scale = tl.exp(p_largest - p_larger), tl.exp(q_largest - q_larger)
        p_exponential = tl.where(is_piece, tl.exp(p_score - p_larger), 0.0)
        q_exponential = tl.where(is_piece, tl.exp(q_score - q_larger), 0.0)
        p_exponentials = p_exponentials * p_scale + p_exponential
        q_exponentials = q_exponentials * q_scale + q_exponential
        p_differences = p_differences * p_scale + p_exponential * (p_score - q_score)
        q_differences = q_differences * q_scale + q_exponential * (p_score - q_score)
        p_scores += tl.where(is_piece, p_score, 0.0)
        q_scores += tl.where(is_piece, q_score, 0.0)
        p_largest, q_largest = p_larger, q_larger
    p_top, q_top = tl.max(p_largest, 0), tl.max(q_largest, 0)
    p_scale, q_scale = tl.exp(p_largest - p_top), tl.exp(q_largest - q_top)
    p_sum, q_sum = tl.sum(p_exponentials * p_scale, 0), tl.sum(q_exponentials * q_scale, 0)
    p_logsumexp, q_logsumexp = p_top + tl.log(p_sum), q_top + tl.log(q_sum)
    kl_pq = tl.sum(p_differences * p_scale, 0) / p_sum - (p_logsumexp - q_logsumexp)
    kl_qp = (p_logsumexp - q_logsumexp) - tl.sum(q_differences * q_scale, 0) / q_sum
    p_nll = p_logsumexp - tl.load(p_row_ptr + gold).to(tl.float32)
    q_nll = q_logsumexp - tl.load(q_row_ptr + gold).to(tl.float32)
    p_mean_nll, q_mean_nll = p_logsumexp - tl.sum(p_scores, 0) / vocab, q_logsumexp - tl.sum(q_scores, 0) / vocab
    nll = p_loss_weight * p_nll + q_loss_weight * q_nll
    mean_nll = p_loss_weight * p_mean_nll + q_loss_weight * q_mean_nll
    kl = pq_weight * kl_pq + qp_weight * kl_qp
    tl.store(losses_ptr + token, tl.where(is_token, (1 - smoothing) * nll + smoothing * mean_nll + kl, 0.0))
    tl.store(losses_ptr + num_tokens + token, tl.where(is_token, nll, 0.0))
    tl.store(losses_ptr + 2 * num_tokens + token, tl.where(is_token, kl / (pq_weight + qp_weight), 0.0))
    tl.debug_barrier()  # all lanes have read the gold piece's scores, which are about to be overwritten
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        is_piece = column < vocab
        p_score = tl.load(p_row_ptr + column, is_piece, other=0.0, eviction_policy="evict_first").to(tl.float32)
        q_score = tl.load(q_row_ptr + column, is_piece, other=0.0, eviction_policy="evict_first").to(tl.float32)
        p_log_prob, q_log_prob = p_score - p_logsumexp, q_score - q_logsumexp
        p, q, log_ratio = tl.exp(p_log_prob), tl.exp(q_log_prob), p_log_prob - q_log_prob
        target_prob = tl.where(column == gold, 1 - smoothing + smoothing / vocab, smoothing / vocab)
        p_gradient = p_loss_weight * (p - target_prob) + pq_weight * p * (log_ratio - kl_pq) + qp_weight * (p - q)
        q_gradient = q_loss_weight * (q - target_prob) + pq_weight * (q - p) - qp_weight * q * (log_ratio + kl_qp)
        is_kept = is_piece & is_token
        p_gradient, q_gradient = tl.where(is_kept, p_gradient, 0.0), tl.where(is_kept, q_gradient, 0.0)
        tl.store(p_row_ptr + column, p_gradient.to(logits_ptr.dtype.element_ty), column < width)
        tl.store(q_row_ptr + column, q_gradient.to(logits_ptr.dtype.element_ty), column < width)
