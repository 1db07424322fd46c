"""The largest values of long rows, the same ones whatever the hardware."""

from __future__ import annotations

import torch
from torch import Tensor

# Columns whose largest is looked at first, where there are many more of them than are wanted.
_BLOCK = 64


def first_largest(x: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of each row of x [R, V], count < V, and their columns, in the order of the columns.

    Of equal values the first columns are taken: torch.topk leaves that open, and logits in bf16 are often equal.
    """
    values, columns = _largest(x, count=count + 1)
    tied = (values[:, count - 1] == values[:, count]).nonzero().squeeze(1)
    columns = columns[:, :count]
    if len(tied) > 0:
        least = values[tied, count][:, None]
        is_larger, is_equal = x[tied] > least, x[tied] == least
        room = count - is_larger.sum(dim=-1, keepdim=True)
        is_taken = is_larger | (is_equal & (is_equal.cumsum(dim=-1) <= room))
        columns[tied] = is_taken.nonzero()[:, 1].view(-1, count)
    columns = columns.sort(dim=-1).values
    return x.gather(1, columns), columns


def _largest(x: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
    """torch.topk; on a CPU among the blocks of columns with the largest maxima, which hold the largest values."""
    num_blocks = x.size(1) // _BLOCK
    if x.device.type != "cpu" or num_blocks < 2 * count:
        return torch.topk(x, count)
    whole = x[:, : num_blocks * _BLOCK].unflatten(1, (num_blocks, _BLOCK))
    blocks = whole.amax(dim=-1).topk(count, sorted=False).indices
    starts = blocks * _BLOCK
    places = (starts[:, :, None] + torch.arange(_BLOCK)).flatten(1)
    rest = torch.arange(num_blocks * _BLOCK, x.size(1)).expand(len(x), -1)
    places = torch.cat([places, rest], dim=1)
    values, order = x.gather(1, places).topk(count)
    return values, places.gather(1, order)
