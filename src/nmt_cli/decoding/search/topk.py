"""The largest of many columns, and in a tie the first: the best token, and the best continuations of a beam.

torch's argmax and topk over a vocabulary take as long as a layer. So only the maxima of blocks of columns are compared,
and then the columns of the best blocks. Shapes: B sentences, W hypotheses per sentence, R = B * W rows,
C continuations per sentence, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_BLOCK_COLUMNS = 64
_INDEX_RANGE = 1 << 32  # indices are smaller, and fit into the low half of a key


def first_argmax(log_probs: Tensor) -> Tensor:
    """The column [R] of the largest number of each row of log_probs [R, V]; in a tie the first one."""
    vocabulary = log_probs.size(1)
    num_blocks = vocabulary // _BLOCK_COLUMNS
    if num_blocks < 2:
        return log_probs.argmax(dim=1)
    in_blocks = num_blocks * _BLOCK_COLUMNS
    maxima = log_probs[:, :in_blocks].unflatten(1, (num_blocks, _BLOCK_COLUMNS)).amax(dim=-1)
    if in_blocks < vocabulary:
        maxima = torch.cat([maxima, log_probs[:, in_blocks:].amax(dim=1, keepdim=True)], dim=1)
    starts = maxima.argmax(dim=1, keepdim=True) * _BLOCK_COLUMNS
    columns = (starts + torch.arange(_BLOCK_COLUMNS, device=log_probs.device)).clamp_(max=vocabulary - 1)
    first_largest = log_probs.gather(1, columns).argmax(dim=1, keepdim=True)
    argmax: Tensor = columns.gather(1, first_largest).squeeze(1)
    return argmax


class Continuations(NamedTuple):
    """Continuations of the open hypotheses of each sentence, best first; all [B, C].

    `hypotheses` are the numbers, below W, of the hypotheses that they continue.
    """

    log_probs: Tensor
    tokens: Tensor
    hypotheses: Tensor


def topk_continuations(log_probs: Tensor, prefix_log_probs: Tensor, *, count: int) -> Continuations:
    """The `count` largest sums of the log-probabilities of an open hypothesis [B, W] and of a next token [R, V].

    In a tie the earlier hypothesis comes first, then the smaller token: torch.topk leaves ties open, and logits in bf16
    are often equal. Sums are float32, and W * V is less than 2 ** 32.
    """
    vocabulary = log_probs.size(1)
    by_sentence = log_probs.view(len(prefix_log_probs), -1, vocabulary)
    num_blocks = vocabulary // _BLOCK_COLUMNS
    if num_blocks * prefix_log_probs.size(1) < 2 * count:  # the best blocks would be most of them
        totals = (by_sentence + prefix_log_probs[:, :, None]).flatten(1)
        sums, indices = _stable_topk(totals, torch.arange(totals.size(1), device=totals.device), count=count)
        return Continuations(sums, indices % vocabulary, indices // vocabulary)
    # Each of the `count` best blocks has a sum that comes before all sums of the other blocks.
    in_blocks = num_blocks * _BLOCK_COLUMNS
    whole_blocks = by_sentence[:, :, :in_blocks].unflatten(2, (num_blocks, _BLOCK_COLUMNS))
    maxima = (whole_blocks.amax(dim=-1) + prefix_log_probs[:, :, None]).flatten(1)
    _, blocks = _stable_topk(maxima, torch.arange(maxima.size(1), device=maxima.device), count=count)
    starts = (blocks // num_blocks) * vocabulary + (blocks % num_blocks) * _BLOCK_COLUMNS
    indices = (starts[:, :, None] + torch.arange(_BLOCK_COLUMNS, device=starts.device)).flatten(1)
    if in_blocks < vocabulary:  # the columns after the last whole block, of each hypothesis
        columns = torch.arange(in_blocks, vocabulary, device=starts.device)
        row_starts = torch.arange(prefix_log_probs.size(1), device=starts.device) * vocabulary
        indices = torch.cat([indices, (row_starts[:, None] + columns).flatten().expand(len(indices), -1)], dim=1)
    values = by_sentence.flatten(1).gather(1, indices)
    sums, indices = _stable_topk(values + prefix_log_probs.gather(1, indices // vocabulary), indices, count=count)
    return Continuations(sums, indices % vocabulary, indices // vocabulary)


def _stable_topk(values: Tensor, indices: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
    """The largest values [B, N], in a tie the ones with the smallest `indices`, and their indices; both [B, C].

    Both numbers make one key: the bits of the float, changed so that they ascend with it, and the inverted index.
    """
    high = _order_preserving(values.view(torch.int32)).long() * _INDEX_RANGE
    keys = (high + (_INDEX_RANGE - 1 - indices)).topk(count).values
    return _order_preserving((keys >> 32).int()).view(torch.float32), _INDEX_RANGE - 1 - (keys & (_INDEX_RANGE - 1))


def _order_preserving(bits: Tensor) -> Tensor:
    """The bits [B, N] of floats as integers in the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
