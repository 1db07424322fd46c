"""Which sentences leave the batch of a search when they are done."""

from __future__ import annotations

from torch import Tensor

# Sentences that are done leave when they are at least this share of the batch: each time, what is kept is copied.
_SHARE = 1 / 8
# A multiple of so many stays, beyond as many: a CPU prepares matrix products anew for each new number of rows.
_STAYING = 8


def who_leaves(is_done: Tensor) -> tuple[Tensor, Tensor] | None:
    """The sentences that leave and those that stay, ascending, of is_done [B] bool; None where all stay.

    Some that are done may stay. The host waits for the device.
    """
    num_open = len(is_done) - int(is_done.sum())
    num_staying = num_open if num_open < _STAYING else -(-num_open // _STAYING) * _STAYING
    num_leaving = len(is_done) - num_staying
    if num_leaving <= 0 or (num_staying > 0 and num_leaving < len(is_done) * _SHARE):
        return None
    order = is_done.byte().argsort(descending=True, stable=True)
    return order[:num_leaving], order[num_leaving:].sort().values
