"""Batches: the token ids of pairs as tensors, packed end to end as the model takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt_cli.dataset.links import TokenLinks, WordLinks
from nmt_cli.dataset.micro_batches import MicroBatchShape
from nmt_cli.dataset.prepared_data import Array, Rows, TokenizedSide, TokenPairs, count_tokens
from nmt_cli.devices import SHORT_SENTENCE_TOKENS
from nmt_cli.model.packing import Packed, round_up
from nmt_cli.tokenization.tokenizer import BOS, PAD

_SLOT_MULTIPLE = 128  # for batches without a shape: libraries and compilers prepare each size that occurs


@dataclass(frozen=True, slots=True)
class Batch:
    """Source [M], the decoder's input [N] (the target shifted right behind BOS), and the gold tokens [N] to predict.

    Empty slots come last, with PAD in all three. M and N are the slots of the shape, or else multiples of 128. A
    training with guided alignment has `links`, whose number differs from batch to batch.
    """

    source: Packed
    target: Packed
    gold: Tensor
    links: TokenLinks | None = None

    def tensors(self) -> list[Tensor]:
        """All tensors of the batch, always in the same order."""
        source, target = self.source, self.target
        packed = [source.ids, source.cu_seqlens, source.positions, target.ids, target.cu_seqlens, target.positions]
        return [*packed, self.gold, *([] if self.links is None else [self.links.places, self.links.shares])]

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with the function applied to each of its tensors."""
        source, target = (
            replace(
                side, ids=function(side.ids), cu_seqlens=function(side.cu_seqlens), positions=function(side.positions)
            )
            for side in (self.source, self.target)
        )
        links = None if self.links is None else self.links.map_tensors(function)
        return Batch(source, target, function(self.gold), links)

    def to(self, device: torch.device) -> Batch:
        """The batch on `device`; if its memory is pinned, the host does not wait for the copies."""
        return self.map_tensors(lambda tensor: tensor.to(device, non_blocking=tensor.is_pinned()))


def make_batch(
    rows: Rows,
    data: TokenPairs,
    *,
    device: torch.device,
    shape: MicroBatchShape | None,
    pinned: bool,
    word_links: WordLinks | None = None,
) -> Batch:
    """The batch of one or more rows on `device`; if `pinned`, it passes through pinned memory of the host.

    Without a shape, there are as many slots as tokens, rounded up. Raises ValueError if the pairs do not fit the shape.
    """
    src_tokens, tgt_tokens = (count_tokens(rows, side=side) for side in ("src", "tgt"))
    if shape is None:
        src_slots, tgt_slots = (round_up(tokens, _SLOT_MULTIPLE) for tokens in (src_tokens, tgt_tokens))
        num_dummies, max_sentences = 0, len(rows)
    elif shape.holds(src_tokens=src_tokens, tgt_tokens=tgt_tokens, num_pairs=len(rows)):
        src_slots, tgt_slots, max_sentences = shape.src_slots, shape.tgt_slots, shape.max_sentences
        num_dummies = shape.num_dummies(src_tokens=src_tokens, tgt_tokens=tgt_tokens)
    else:
        raise ValueError(f"{len(rows)} pairs of {src_tokens} and {tgt_tokens} tokens do not fit {shape}")
    pack = partial(_pack_side, rows=rows, num_dummies=num_dummies, max_sentences=max_sentences)
    source, target = pack(data.src, side="src", slots=src_slots), pack(data.tgt, side="tgt", slots=tgt_slots)
    if shape is not None:
        are_short = max(source.max_len, target.max_len) <= SHORT_SENTENCE_TOKENS
        length_bound = SHORT_SENTENCE_TOKENS if are_short else shape.length_bound
        source, target = replace(source, length_bound=length_bound), replace(target, length_bound=length_bound)
    links = None
    if word_links is not None:
        src_ids, tgt_ids = (side.ids[: side.num_tokens].numpy() for side in (source, target))
        links = word_links.of_tokens(rows, src_ids, tgt_ids)
    batch = Batch(source, _decoder_input(target), target.ids, links)
    return (batch.map_tensors(Tensor.pin_memory) if pinned else batch).to(device)


def _pack_side(
    side_tokens: TokenizedSide, rows: Rows, *, side: str, slots: int, num_dummies: int, max_sentences: int
) -> Packed:
    """The sentences of one side, end to end in `slots`, on the host; `length_bound` is its longest sentence."""
    lengths: Array = rows[f"{side}_length"].astype(np.int64)
    num_filled = int(lengths.sum())
    num_empty = slots - num_filled
    ids = np.full(slots, PAD, dtype=np.int64)
    ids[:num_filled] = side_tokens.gather(rows[f"{side}_start"], lengths)
    # Dummies share the empty slots evenly. The sentences after them are empty, and begin where the last dummy ends.
    cu_seqlens = np.full(max_sentences + 1, slots if num_dummies else num_filled, dtype=np.int32)
    cu_seqlens[0] = 0
    np.cumsum(lengths, out=cu_seqlens[1 : len(lengths) + 1])
    ends = num_filled + num_empty * np.arange(1, num_dummies + 1) // max(num_dummies, 1)
    cu_seqlens[len(lengths) + 1 : len(lengths) + 1 + num_dummies] = ends
    positions = np.zeros(slots, dtype=np.int64)
    positions[:num_filled] = np.arange(num_filled) - np.repeat(cu_seqlens[: len(lengths)], lengths)
    longest = int(lengths.max())
    return Packed(
        ids=torch.from_numpy(ids),
        cu_seqlens=torch.from_numpy(cu_seqlens),
        positions=torch.from_numpy(positions),
        num_sentences=len(lengths),
        max_len=longest,
        num_empty=num_empty,
        length_bound=longest,
    )


def _decoder_input(gold: Packed) -> Packed:
    """The decoder's input for gold tokens: each sentence starts with BOS and loses its EOS."""
    ids: NDArray[np.int64] = np.roll(gold.ids.numpy(), 1)
    ids[gold.cu_seqlens.numpy()[: gold.num_sentences]] = BOS
    ids[gold.num_tokens :] = PAD
    return replace(gold, ids=torch.from_numpy(ids))
