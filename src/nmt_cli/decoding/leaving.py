"""Which sentences leave the batch of a search when they are done."""

from __future__ import annotations

import torch
from torch import Tensor

# What stays is a multiple of this part of the next power of two: a CPU prepares matrix products anew for each new
# number of rows, and who leaves costs as much as some rows.
_GRAINS = 16


def who_leaves(is_done: Tensor) -> tuple[Tensor, Tensor] | None:
    """The sentences that leave and those that stay, of is_done [B] bool; None where all stay.

    Some that are done may stay. Those that stay keep their places as far as these are there still, so that little is
    moved; others take the places that get free. The host waits for the device.
    """
    done = is_done.tolist()
    num_open = done.count(False)
    grain = max(1, (1 << max(0, num_open - 1).bit_length()) // _GRAINS)
    num_staying = -(-num_open // grain) * grain
    num_leaving = len(done) - num_staying
    if num_leaving <= 0:
        return None
    # The last ones leave no places free.
    leaving = [place for place, is_over in enumerate(done) if is_over][-num_leaving:]
    movers = set(range(num_staying, len(done))).difference(leaving)
    kept = list(range(num_staying))
    for place, mover in zip(leaving, sorted(movers), strict=False):
        kept[place] = mover
    return torch.tensor(leaving, device=is_done.device), torch.tensor(kept, dtype=torch.long, device=is_done.device)
