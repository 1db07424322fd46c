"""The best continuations of hypotheses, with ties broken alike on all hardware.

Shapes: B sentences, W hypotheses per sentence, R = B * W rows, V vocabulary, C continuations per sentence.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Columns per block: if there are many columns, the maximum of each block is compared first.
_BLOCK = 64
_PLACES = 1 << 32


def first_argmax(log_probs: Tensor) -> Tensor:
    """The column [R] of the largest number of each row of log_probs [R, V]; in a tie the first one."""
    vocabulary = log_probs.size(1)
    num_blocks = vocabulary // _BLOCK
    if num_blocks < 2:
        return log_probs.argmax(dim=1)
    blocks = log_probs[:, : num_blocks * _BLOCK].unflatten(1, (num_blocks, _BLOCK)).amax(dim=-1)
    if num_blocks * _BLOCK < vocabulary:
        rest = log_probs[:, num_blocks * _BLOCK :].amax(dim=1, keepdim=True)
        blocks = torch.cat([blocks, rest], dim=1)
    # `argmax` finds the first one, but compares numbers one by one.
    places = blocks.argmax(dim=1, keepdim=True) * _BLOCK + torch.arange(_BLOCK, device=log_probs.device)
    places = places.clamp_(max=vocabulary - 1)
    chosen = log_probs.gather(1, places).argmax(dim=1, keepdim=True)
    found: Tensor = places.gather(1, chosen).squeeze(1)
    return found


def topk_continuations(log_probs: Tensor, before: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest sums of `before` [B, W] and log_probs [R, V], and their places w * V + v; both [B, C].

    The largest sum comes first, and in a tie the smallest place: torch.topk leaves ties open, and logits in bf16 are
    often equal. Sums are float32, and W * V is less than 2 ** 32.
    """
    vocabulary = log_probs.size(1)
    by_sentence = log_probs.view(len(before), -1, vocabulary)
    num_blocks = vocabulary // _BLOCK
    if num_blocks * before.size(1) < 2 * count:
        totals = (by_sentence + before[:, :, None]).flatten(1)
        return _first_largest(totals, torch.arange(totals.size(1), device=totals.device), count=count)
    # Each of the `count` best blocks has a sum that comes before all sums of the other blocks.
    whole = by_sentence[:, :, : num_blocks * _BLOCK].unflatten(2, (num_blocks, _BLOCK))
    largest = (whole.amax(dim=-1) + before[:, :, None]).flatten(1)
    _, blocks = _first_largest(largest, torch.arange(largest.size(1), device=largest.device), count=count)
    starts = blocks // num_blocks * vocabulary + blocks % num_blocks * _BLOCK
    places = (starts[:, :, None] + torch.arange(_BLOCK, device=starts.device)).flatten(1)
    if num_blocks * _BLOCK < vocabulary:
        rest = torch.arange(num_blocks * _BLOCK, vocabulary, device=starts.device)
        rows = torch.arange(before.size(1), device=starts.device) * vocabulary
        places = torch.cat([places, (rows[:, None] + rest).flatten().expand(len(places), -1)], dim=1)
    values = by_sentence.flatten(1).gather(1, places)
    return _first_largest(values + before.gather(1, places // vocabulary), places, count=count)


def _first_largest(values: Tensor, places: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
    """The largest values [B, N], in a tie the ones with the smallest `places`, and their places; both [B, C].

    Both numbers make one key: the bits of the float, changed so that they ascend with it, and the inverted place.
    """
    keys = (_ascending(values.view(torch.int32)).long() * _PLACES + (_PLACES - 1 - places)).topk(count).values
    return _ascending((keys >> 32).int()).view(torch.float32), _PLACES - 1 - (keys & (_PLACES - 1))


def _ascending(bits: Tensor) -> Tensor:
    """The bits [B, N] of floats as integers in the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
