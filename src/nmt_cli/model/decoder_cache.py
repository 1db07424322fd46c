"""Keys and values that a decoder keeps from step to step.

Shapes: B sentences, W hypotheses per sentence, R = B * W rows, S source tokens, N slots in use, C slots in memory,
H heads, K = d_k, V = d_v.

Each token of each hypothesis has a slot of its sentence. A mask says which slots are a hypothesis's own past. Choosing
hypotheses reorders the mask; keys and values stay in place. All hypotheses of a sentence attend to its slots in one
product. When memory grows, slots that belong to no open hypothesis are dropped.

If a CPU multiplies in bf16, attention sees a multiple of 8 slots and source tokens, and a mask hides the rest. oneDNN
prepares a product for each new shape, which takes longer than a small product (docs/design/cpu-search.md#cache).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt_cli.model.layers import CrossAttention, SelfAttention
from nmt_cli.model.packing import Packed, round_up, to_rectangle

_GROWTH_STEPS = 8  # steps by which memory grows if shapes need no multiple; unused slots are dropped at the same time
_SHAPE_MULTIPLE = 8  # slots and source tokens are seen in multiples of this if a new shape costs time


class Slots(NamedTuple):
    """New tokens have the slots from `start` to `end`; attention sees `visible` slots, and memory has `capacity`."""

    start: int
    end: int
    visible: int
    capacity: int


class CacheStep(NamedTuple):
    """One more token per row: the position [1] of the tokens, their slots, and what each hypothesis sees.

    `slot_bias` [B, 1, W, visible] is added to scores: 0 at the slots of a hypothesis's own past, and -inf elsewhere.
    It is None if a hypothesis sees every slot.
    """

    position: Tensor
    slots: Slots
    slot_bias: Tensor | None


class LayerCache:
    """One decoder layer: cross-attention keys and values per source token, self-attention ones per slot."""

    def __init__(self, cross_keys: Tensor, cross_values: Tensor) -> None:
        """`cross_keys` [B, H, S, K] and `cross_values` [B, H, S, V]."""
        self.cross_keys, self.cross_values = cross_keys, cross_values
        self._keys, self._values = cross_keys[:, :, :0], cross_values[:, :, :0]

    @classmethod
    def of_source(cls, module: CrossAttention, memory: Tensor, source: Packed, *, source_slots: int) -> LayerCache:
        """A cache over memory [M, D]: each sentence has this many source slots, and empty slots hold zeros."""
        rectangles = (to_rectangle(x, source).transpose(1, 2) for x in module.keys_values(memory))
        k, v = (F.pad(x, (0, 0, 0, source_slots - source.max_len)).contiguous() for x in rectangles)
        return cls(k, v)

    def self_attend(self, module: SelfAttention, x: Tensor, *, step: CacheStep) -> Tensor:
        """Self-attention [R, H * V] of the step's tokens x [R, D], whose keys and values go into its slots."""
        num_sentences, heads, slots = len(self.cross_keys), module.heads, step.slots
        if module.rotary is None and module.d_k == module.d_v:
            # One view of the product shows queries, keys and values.
            qkv = module.qkv.forward(x).view(num_sentences, -1, 3, heads, module.d_k)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        else:
            q, k, v = (
                vectors.view(num_sentences, -1, *vectors.shape[1:]).transpose(1, 2)
                for vectors in module.project(x, step.position)
            )
        self._keys, self._values = _grow(self._keys, slots), _grow(self._values, slots)
        self._keys[:, :, slots.start : slots.end] = k
        self._values[:, :, slots.start : slots.end] = v
        return _attend(q, self._keys[:, :, : slots.visible], self._values[:, :, : slots.visible], bias=step.slot_bias)

    def cross_attend(self, module: CrossAttention, x: Tensor, *, bias: Tensor | None) -> Tensor:
        """Attention [R, H * V] of tokens x [R, D] to the source; `bias` [B, 1, 1, S] is added to the scores."""
        q = module.q.forward(x).view(len(self.cross_keys), -1, module.heads, module.d_k).transpose(1, 2)
        return _attend(q, self.cross_keys, self.cross_values, bias=bias)

    def select_sentences(self, sentences: Tensor) -> None:
        """Keep only `sentences` [B'], in this order."""
        self.cross_keys = self.cross_keys.index_select(0, sentences)
        self.cross_values = self.cross_values.index_select(0, sentences)
        self._keys, self._values = self._keys.index_select(0, sentences), self._values.index_select(0, sentences)

    def select_slots(self, chosen: Tensor, *, capacity: int) -> None:
        """Keep only the chosen slots [B, N] of each sentence, in this order, with memory for `capacity` slots."""
        self._keys = _gather_slots(self._keys, chosen, capacity=capacity)
        self._values = _gather_slots(self._values, chosen, capacity=capacity)


@dataclass(slots=True)
class DecoderCache:
    """The caches of all layers, and which slots and source tokens each hypothesis sees.

    `source_bias` [B, 1, 1, S] is added to scores of source tokens: 0, or -inf at padding; None if there is no padding.
    `slot_bias` [B, W, C] is added to scores of slots: 0 at the slots of a hypothesis's own past, -inf elsewhere. It is
    None as long as each sentence has one hypothesis, which sees every slot.
    """

    layers: list[LayerCache]
    source_bias: Tensor | None
    shape_multiple: int
    num_tokens: int = 0
    num_slots: int = 0
    slot_bias: Tensor | None = None

    @classmethod
    def of_source(cls, modules: Iterable[CrossAttention], memory: Tensor, source: Packed) -> DecoderCache:
        """An empty cache over memory [M, D] of B sentences."""
        shape_multiple = _shape_multiple_of(memory)
        source_slots = round_up(source.max_len, shape_multiple)
        layers = [LayerCache.of_source(module, memory, source, source_slots=source_slots) for module in modules]
        bias = None
        if source_slots > source.max_len or not source.is_rectangular:
            bias = memory.new_full((source.num_sentences, 1, 1, source_slots), -torch.inf, dtype=_score_dtype(memory))
            bias[:, 0, 0, : source.max_len].masked_fill_(source.keep_mask, 0.0)
        return cls(layers, bias, shape_multiple)

    @property
    def num_sentences(self) -> int:
        """B."""
        return len(self.layers[0].cross_keys)

    def begin_step(self, num_rows: int, *, like: Tensor) -> CacheStep:
        """Reserve slots for one more token per row; the model computes with tensors like `like`."""
        width = num_rows // self.num_sentences
        position = torch.full((1,), self.num_tokens, device=like.device)
        self.num_tokens += 1
        if self.slot_bias is not None and self.slot_bias.size(2) < self.num_slots + width:
            self._drop_dead_slots(width)
        start, self.num_slots = self.num_slots, self.num_slots + width
        visible = round_up(self.num_slots, self.shape_multiple)
        slots = Slots(start, self.num_slots, visible, self._capacity_for(start, width))
        if self.slot_bias is None:
            bias = None if self.shape_multiple == 1 else _slot_bias_of_one_hypothesis(slots, like)
            return CacheStep(position, slots, bias)
        if self.slot_bias.size(2) < visible:
            new_slots = self.slot_bias.new_full((*self.slot_bias.shape[:2], slots.capacity - start), -torch.inf)
            self.slot_bias = torch.cat([self.slot_bias[:, :, :start], new_slots], dim=2)
        self.slot_bias[:, :, start : slots.end].diagonal(dim1=1, dim2=2).zero_()
        return CacheStep(position, slots, self.slot_bias[:, None, :, :visible])

    def select(self, *, rows: Tensor, sentences: Tensor | None) -> None:
        """Go on from `rows` [R'], grouped by sentence, and with `sentences` [B'] only; None keeps all sentences."""
        remaining = self.num_sentences if sentences is None else len(sentences)
        width = len(rows) // remaining
        if width > 1 and self.slot_bias is None:
            keys = self.layers[0].cross_keys
            self.slot_bias = keys.new_zeros(len(keys), 1, self.num_slots, dtype=_score_dtype(keys))
        if self.slot_bias is not None:
            self.slot_bias = self.slot_bias.flatten(0, 1).index_select(0, rows).view(remaining, width, -1)
        if sentences is not None:
            for layer in self.layers:
                layer.select_sentences(sentences)
            if self.source_bias is not None:
                self.source_bias = self.source_bias.index_select(0, sentences)

    def _drop_dead_slots(self, width: int) -> None:
        """Drop slots that belong to no open hypothesis, if attention then sees fewer slots.

        The host waits for the device.
        """
        assert self.slot_bias is not None
        is_live = (self.slot_bias[:, :, : self.num_slots] == 0).any(dim=1)
        num_live = int(is_live.sum(dim=1).max())
        if round_up(num_live + width, self.shape_multiple) >= round_up(self.num_slots + width, self.shape_multiple):
            return
        capacity = self._capacity_for(num_live, width)
        chosen = is_live.byte().argsort(dim=1, stable=True)[:, self.num_slots - num_live :]
        for layer in self.layers:
            layer.select_slots(chosen, capacity=capacity)
        bias = self.slot_bias.gather(2, chosen[:, None].expand(-1, width, -1))
        self.slot_bias = F.pad(bias, [0, capacity - num_live], value=-torch.inf)
        self.num_slots = num_live

    def _capacity_for(self, num_slots: int, width: int) -> int:
        """Slots to allocate if `num_slots` are in use and a step needs `width` more."""
        # In bf16 a product with a part of a tensor copies that part, so all memory is seen.
        if self.shape_multiple > 1:
            return round_up(num_slots + width, self.shape_multiple)
        return num_slots + _GROWTH_STEPS * width


def _shape_multiple_of(x: Tensor) -> int:
    """The multiple in which attention over tensors like x sees slots and source tokens."""
    return _SHAPE_MULTIPLE if x.device.type == "cpu" and x.dtype == torch.bfloat16 else 1


def _score_dtype(x: Tensor) -> torch.dtype:
    """The precision in which scores of tensors like x are summed: float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)


def _attend(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(d_k) + bias) V for q [B, H, W, K], by rows: [R, H * V].

    Plain products: with few queries per sentence, torch's fused kernels take longer, and not all of them take a mask.
    The softmax has the bias's precision, float32: torch's softmax of short rows in bf16 takes three times as long.
    """
    scores_BHWN = q @ k.mT
    if bias is None:
        scores_BHWN = scores_BHWN.to(_score_dtype(q)) * q.size(-1) ** -0.5
    else:
        scores_BHWN = torch.add(bias, scores_BHWN, alpha=q.size(-1) ** -0.5)
    mixed_BHWV: Tensor = scores_BHWN.softmax(-1).to(q.dtype) @ v
    num_rows = q.size(0) * q.size(2)
    return mixed_BHWV.transpose(1, 2).reshape(num_rows, -1)


def _slot_bias_of_one_hypothesis(slots: Slots, like: Tensor) -> Tensor:
    """The bias if every slot in use is a hypothesis's own, [1, 1, 1, visible]."""
    bias = like.new_zeros(1, 1, 1, slots.visible, dtype=_score_dtype(like))
    bias[..., slots.end :] = -torch.inf
    return bias


def _grow(keys: Tensor, slots: Slots) -> Tensor:
    """Keys or values [B, H, C, .] with memory for `slots`; new slots are 0."""
    if slots.visible <= keys.size(2):
        return keys
    grown = keys.new_empty(keys.size(0), keys.size(1), slots.capacity, keys.size(3))
    grown[:, :, : slots.start] = keys[:, :, : slots.start]
    grown[:, :, slots.start :] = 0
    return grown


def _gather_slots(keys: Tensor, chosen: Tensor, *, capacity: int) -> Tensor:
    """The chosen slots [B, N] of keys or values [B, H, C, .], followed by zeros up to `capacity` slots."""
    num_sentences, heads, num_slots, width = keys.shape
    first_rows = torch.arange(num_sentences * heads, device=keys.device).view(num_sentences, heads, 1) * num_slots
    vectors = keys.reshape(-1, width).index_select(0, (first_rows + chosen[:, None]).flatten())
    gathered = keys.new_zeros(num_sentences, heads, capacity, width)
    gathered[:, :, : chosen.size(1)] = vectors.view(num_sentences, heads, -1, width)
    return gathered
