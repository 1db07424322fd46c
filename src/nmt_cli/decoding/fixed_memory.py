"""The memory of a beam search in fixed shapes: a few sizes, and tensors that keep their addresses.

Shapes: B sentences, W hypotheses a sentence, C candidates a sentence, S source tokens, T pieces, F finished hypotheses
a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nmt_cli.decoding.hypotheses import Endings
from nmt_cli.model.fixed_step import FixedCache, fixed_widths
from nmt_cli.model.transformer import Transformer

# Each size costs a recording, and what is empty costs little as long as a step is bound by its number of kernels.
_FEW_SENTENCES = (1, 4)
_SENTENCES, _SOURCE, _LENGTH = 16, 32, 32


class Sizes(NamedTuple):
    """Sentences, source tokens and pieces that there is room for, open hypotheses, and finished ones that are kept."""

    sentences: int
    source: int
    length: int
    beam: int
    nbest: int

    @classmethod
    def that_hold(cls, *, sentences: int, source: int, length: int, beam: int, nbest: int) -> Sizes:
        """The least of the sizes that there are."""
        few = [size for size in _FEW_SENTENCES if size >= sentences]
        rounded = few[0] if few else _doubled(_SENTENCES, sentences)
        return cls(rounded, _doubled(_SOURCE, source), _doubled(_LENGTH, length), beam, nbest)

    @property
    def candidates(self) -> int:
        """Continuations of a sentence that are looked at in a step: twice the beam, and one in greedy search."""
        return 2 * self.beam if self.beam > 1 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a step reads and writes.

    `counters` are the number of pieces of each hypothesis, the step's row of the tree, and the next node's number. Each
    step adds `increments` to them. `rules` [max_positions, 5] says for each place what is added to ln P of the first
    four pieces, and the penalty of a hypothesis that ends there. `ancestors` [B, W, T] says which of the W hypotheses
    each hypothesis was at each earlier place. `tree_*` [T, B, C] hold the candidates since the tree was last read.
    """

    sizes: Sizes
    caches: list[FixedCache]
    source_lengths: Tensor
    ancestors: Tensor
    counters: Tensor
    increments: Tensor
    rules: Tensor
    limits: Tensor
    last_penalties: Tensor
    ids: Tensor
    log_probs: Tensor
    nodes: Tensor
    finished: Endings
    is_done: Tensor
    tree_pieces: Tensor
    tree_parents: Tensor
    tree_log_probs: Tensor

    def of_sentences(self) -> list[Tensor]:
        """What belongs to each sentence, [B, ...], but its past."""
        finished = self.finished
        cross = [layer for cache in self.caches for layer in cache.cross]
        chosen = [self.limits, self.last_penalties, self.ids, self.log_probs, self.nodes, self.is_done]
        return [*cross, self.source_lengths, *chosen, finished.log_probs, finished.scores, finished.nodes]


class Memory:
    """Room for the states of all sizes, one at a time: the same tensors, as large as the largest had to be."""

    def __init__(self, models: Sequence[Transformer], *, device: torch.device) -> None:
        self._models = models
        self._device = device
        self._dtype = models[0].output_weight.dtype
        self._max_positions = min(model.config.max_positions for model in models)
        self._flat: dict[str, Tensor] = {}
        self._before_moving: Callable[[], None] = lambda: None

    def state(self, sizes: Sizes, *, before_moving: Callable[[], None]) -> State:
        """The state of these sizes, its content open.

        `before_moving` is called before a tensor gives way to a larger one, at another address.
        """
        self._before_moving = before_moving
        try:
            return self._state(sizes)
        finally:
            self._before_moving = lambda: None

    def _state(self, sizes: Sizes) -> State:
        sentences, beam, candidates, nbest = sizes.sentences, sizes.beam, sizes.candidates, sizes.nbest
        slots = sizes.length * beam
        caches = [self._cache(number, sizes, slots=slots) for number in range(len(self._models))]
        tree = (sizes.length, sentences, candidates)
        return State(
            sizes=sizes,
            caches=caches,
            source_lengths=self._take("source_lengths", (sentences,), torch.int32),
            ancestors=self._take("ancestors", (sentences, beam, sizes.length), torch.int32),
            counters=self._take("counters", (3,), torch.long),
            increments=torch.tensor([1, 1, sentences * candidates], device=self._device),
            rules=self._take("rules", (self._max_positions, 5), torch.float32),
            limits=self._take("limits", (sentences, 1), torch.long),
            last_penalties=self._take("last_penalties", (sentences, 1), torch.float32),
            ids=self._take("ids", (sentences, beam), torch.long),
            log_probs=self._take("log_probs", (sentences, beam), torch.float32),
            nodes=self._take("nodes", (sentences, beam), torch.long),
            finished=Endings(
                self._take("finished_log_probs", (sentences, nbest), torch.float32),
                self._take("finished_scores", (sentences, nbest), torch.float32),
                self._take("finished_nodes", (sentences, nbest), torch.long),
            ),
            is_done=self._take("is_done", (sentences, 1), torch.bool),
            tree_pieces=self._take("tree_pieces", tree, torch.long),
            tree_parents=self._take("tree_parents", tree, torch.long),
            tree_log_probs=self._take("tree_log_probs", tree, torch.float32),
        )

    def _cache(self, number: int, sizes: Sizes, *, slots: int) -> FixedCache:
        own, cross = [], []
        for layer, width in enumerate(fixed_widths(self._models[number])):
            name = f"{number}.{layer}"
            own.append(self._take(f"own.{name}", (sizes.sentences, slots, width), self._dtype))
            cross.append(self._take(f"cross.{name}", (sizes.sentences, sizes.source, width), self._dtype))
        return FixedCache(own, cross)

    def _take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The beginning of the tensor of that name; it is zero, or was written to before, and so is never NaN."""
        size = math.prod(shape)
        if name not in self._flat or self._flat[name].numel() < size:
            if self._flat.pop(name, None) is not None:
                self._before_moving()
            self._flat[name] = torch.zeros(size, dtype=dtype, device=self._device)
        return self._flat[name][:size].view(shape)


def _doubled(least: int, needed: int) -> int:
    """The least of `least`, twice that, and so on, that is enough."""
    return least << max(0, math.ceil(math.log2(needed / least))) if needed > least else least
