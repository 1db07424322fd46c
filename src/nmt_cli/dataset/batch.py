"""Batches: sentence pairs gathered from the token files, packed end to end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nmt_cli.dataset.rows import Array, Rows
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


def make_batch(rows: Rows, data: TokenPairs, *, device: torch.device) -> Batch:
    """The pairs of some rows, at least one, on `device`."""
    source = _gather(data.src, rows["src_start"], rows["src_length"], device=device)
    target = _gather(data.tgt, rows["tgt_start"], rows["tgt_length"], device=device)
    inputs = target.ids.roll(1)
    inputs[target.cu_seqlens[:-1].long()] = BOS
    shifted = Packed(inputs, target.cu_seqlens, target.max_len, target.num_empty)
    return Batch(source, shifted, target.ids[: target.num_tokens])


def _gather(side: TokenFile, starts: Array, lengths: Array, *, device: torch.device) -> Packed:
    cu_seqlens = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    num_tokens = int(cu_seqlens[-1])
    num_empty = -num_tokens % _SLOTS
    ids = np.full(num_tokens + num_empty, PAD, dtype=np.int64)
    ids[:num_tokens] = side.gather(starts, lengths)
    return Packed(
        torch.from_numpy(ids).to(device), torch.from_numpy(cu_seqlens).to(device), int(lengths.max()), num_empty
    )
