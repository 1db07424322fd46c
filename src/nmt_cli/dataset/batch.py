"""Batches: sentence pairs gathered from the memory-mapped token files, packed end to end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nmt_cli.dataset.plan import Array
from nmt_cli.dataset.store import TokenFile, TokenPairs
from nmt_cli.model.packing import Packed
from nmt_cli.tokenization.tokenizer import BOS


@dataclass(frozen=True, slots=True)
class Batch:
    """Source [M], the decoder's input [N] (the target shifted right behind BOS), and the gold pieces [N]."""

    source: Packed
    target: Packed
    gold: Tensor


def make_batch(pairs: Array, data: TokenPairs, *, device: torch.device) -> Batch:
    """The given pairs, at least one, on `device`."""
    source, target = _gather(data.src, pairs, device=device), _gather(data.tgt, pairs, device=device)
    inputs = target.ids.roll(1)
    inputs[target.cu_seqlens[:-1].long()] = BOS
    return Batch(source, Packed(inputs, target.cu_seqlens, target.max_len), target.ids)


def _gather(side: TokenFile, pairs: Array, *, device: torch.device) -> Packed:
    lengths = side.lengths[pairs].astype(np.int64)
    ends = np.cumsum(lengths)
    from_start = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    ids = side.ids[np.repeat(side.offsets[pairs], lengths) + from_start].astype(np.int64)
    cu_seqlens = np.concatenate([[0], ends]).astype(np.int32)
    return Packed(torch.from_numpy(ids).to(device), torch.from_numpy(cu_seqlens).to(device), int(lengths.max()))
