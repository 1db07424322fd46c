"""Batches: sentence pairs gathered from the token files, packed end to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt_cli.dataset.micro_batches import MicroBatchShape
from nmt_cli.dataset.store import Array, Rows, TokenFile, TokenPairs, sum_lengths
from nmt_cli.model.packing import SHORT, Packed
from nmt_cli.tokenization.tokenizer import BOS, PAD

_SLOTS = 128


@dataclass(frozen=True, slots=True)
class Batch:
    """Source [M], the decoder's input [N] (the target shifted right behind BOS), and the gold pieces [N] of its slots.

    Empty slots come last, PAD in all three. Sizes come again, and what libraries and compilers keep for a size serves
    many updates: with a shape M and N are its slots, without one multiples of 128.
    """

    source: Packed
    target: Packed
    gold: Tensor

    def tensors(self) -> list[Tensor]:
        """All that it has on its device, in one order."""
        sides = (self.source, self.target)
        return [*(part for side in sides for part in (side.ids, side.cu_seqlens, side.positions)), self.gold]

    def each(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with what the function makes of each of its tensors."""
        source, target = (
            replace(
                side, ids=function(side.ids), cu_seqlens=function(side.cu_seqlens), positions=function(side.positions)
            )
            for side in (self.source, self.target)
        )
        return Batch(source, target, function(self.gold))

    def to(self, device: torch.device) -> Batch:
        """The batch on `device`; from pinned memory the host does not wait for the copies."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=tensor.is_pinned()))


def make_batch(
    rows: Rows, data: TokenPairs, *, device: torch.device, shape: MicroBatchShape | None, pinned: bool
) -> Batch:
    """The pairs of some rows, at least one, made on the host, in pinned memory if that is asked for, then on `device`.

    With a shape, it must hold them. Without one the slots are the tokens, rounded up.
    """
    tokens = {side: sum_lengths(rows, side=side) for side in ("src", "tgt")}
    if shape is None:
        src_slots, tgt_slots = (-(-count // _SLOTS) * _SLOTS for count in tokens.values())
        num_dummies, sentences = 0, len(rows)
    elif shape.holds(src_tokens=tokens["src"], tgt_tokens=tokens["tgt"], num_pairs=len(rows)):
        src_slots, tgt_slots, sentences = shape.src_slots, shape.tgt_slots, shape.sentences
        num_dummies = shape.num_dummies(src_tokens=tokens["src"], tgt_tokens=tokens["tgt"])
    else:
        raise ValueError(f"{len(rows)} pairs of {tokens} tokens do not fit {shape}")
    source = _gather(data.src, rows, "src", slots=src_slots, num_dummies=num_dummies, sentences=sentences)
    target = _gather(data.tgt, rows, "tgt", slots=tgt_slots, num_dummies=num_dummies, sentences=sentences)
    if shape is not None:
        bound = SHORT if max(source.max_len, target.max_len) <= SHORT else shape.longest
        source, target = replace(source, bound=bound), replace(target, bound=bound)
    batch = Batch(source, _shifted(target), target.ids)
    return (batch.each(Tensor.pin_memory) if pinned else batch).to(device)


def _gather(side: TokenFile, rows: Rows, name: str, *, slots: int, num_dummies: int, sentences: int) -> Packed:
    """The sentences of one side in so many slots, on the host, `bound` being the longest of them."""
    lengths: Array = rows[f"{name}_length"].astype(np.int64)
    num_tokens = int(lengths.sum())
    num_empty = slots - num_tokens
    ids = np.full(slots, PAD, dtype=np.int64)
    ids[:num_tokens] = side.gather(rows[f"{name}_start"], lengths)
    cu_seqlens = np.full(sentences + 1, slots if num_dummies else num_tokens, dtype=np.int32)
    cu_seqlens[0] = 0
    np.cumsum(lengths, out=cu_seqlens[1 : len(lengths) + 1])
    ends = num_tokens + num_empty * np.arange(1, num_dummies + 1) // max(num_dummies, 1)
    cu_seqlens[len(lengths) + 1 : len(lengths) + 1 + num_dummies] = ends
    positions = np.zeros(slots, dtype=np.int64)
    positions[:num_tokens] = np.arange(num_tokens) - np.repeat(cu_seqlens[: len(lengths)], lengths)
    longest = int(lengths.max())
    return Packed(
        ids=torch.from_numpy(ids),
        cu_seqlens=torch.from_numpy(cu_seqlens),
        positions=torch.from_numpy(positions),
        num_sentences=len(lengths),
        max_len=longest,
        num_empty=num_empty,
        bound=longest,
    )


def _shifted(gold: Packed) -> Packed:
    """The decoder's input for gold pieces: each sentence moved one place, behind BOS."""
    ids: NDArray[np.int64] = np.roll(gold.ids.numpy(), 1)
    ids[gold.cu_seqlens.numpy()[: gold.num_sentences]] = BOS
    ids[gold.num_tokens :] = PAD
    return replace(gold, ids=torch.from_numpy(ids))
