"""Batches: sentence pairs gathered from the memory-mapped token files, packed end to end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nmt_cli.dataset.plan import Array
from nmt_cli.dataset.store import TokenFile, TokenPairs
from nmt_cli.model.packing import Packed
from nmt_cli.tokenization.tokenizer import BOS, PAD

_SLOTS = 128


@dataclass(frozen=True, slots=True)
class Batch:
    """Source [M], the decoder's input [N] (the target shifted right behind BOS), and the gold pieces of its tokens.

    M and N are multiples of 128, the rest empty slots: sizes come again, and what libraries and compilers keep for a
    size serves many updates. With a new size in each, oneDNN prepares every matrix product anew (docs/LOG.md).
    """

    source: Packed
    target: Packed
    gold: Tensor


def make_batch(pairs: Array, data: TokenPairs, *, device: torch.device) -> Batch:
    """The given pairs, at least one, on `device`."""
    source, target = _gather(data.src, pairs, device=device), _gather(data.tgt, pairs, device=device)
    inputs = target.ids.roll(1)
    inputs[target.cu_seqlens[:-1].long()] = BOS
    shifted = Packed(inputs, target.cu_seqlens, target.max_len, target.num_empty)
    return Batch(source, shifted, target.ids[: target.num_tokens])


def _gather(side: TokenFile, pairs: Array, *, device: torch.device) -> Packed:
    lengths = side.lengths[pairs].astype(np.int64)
    ends = np.cumsum(lengths)
    from_start = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    num_empty = int(-ends[-1] % _SLOTS)
    ids = np.full(ends[-1] + num_empty, PAD, dtype=np.int64)
    ids[: ends[-1]] = side.ids[np.repeat(side.offsets[pairs], lengths) + from_start]
    cu_seqlens = torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32))
    return Packed(torch.from_numpy(ids).to(device), cu_seqlens.to(device), int(lengths.max()), num_empty)
