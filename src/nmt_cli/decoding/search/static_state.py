"""The state of a search in memory of fixed shapes, and its step by kernels from logits to the next open hypotheses.

Shapes: B sentences, W hypotheses per sentence, R = B * W rows, C candidates per sentence, F kept finished hypotheses
per sentence, L positions, V vocabulary.

The kernels are in Triton (`model/kernels/search.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from nmt_cli.decoding.search.hypotheses import FinishedHypotheses
from nmt_cli.model.static_cache import StaticCache
from nmt_cli.tokenization.tokenizer import EOS

# Each size costs a recording, so there are few sizes: small batches, and powers of two from a minimum on. Unused room
# costs little: the time of a step depends more on its number of kernels than on the size of its tensors.
_SMALL_BATCHES = (1, 4)
_MIN_SENTENCES, _MIN_SOURCE_TOKENS, _MIN_POSITIONS = 16, 32, 32
NUM_SPECIAL = EOS + 1  # the special pieces have the first ids, and EOS is the last of them
# The kernels take the largest logit of each block of columns, so that they sort few numbers.
_MAX_BLOCKS, _MIN_BLOCK_COLUMNS = 512, 8
_LOGITS_PER_PROGRAM = 2048
_POSITIONS_PER_TILE = 64  # of `ancestors`, copied at once
_SORT_KEYS_PER_WARP = 1024  # as many as fit into its registers
MAX_BEAM = 32  # one program holds the block maxima of all hypotheses of a sentence


class StaticSizes(NamedTuple):
    """Room for B sentences, S source tokens and L positions, with W open and F finished hypotheses per sentence."""

    num_sentences: int
    source_tokens: int
    positions: int
    beam: int
    nbest: int

    @classmethod
    def with_room(cls, *, num_sentences: int, source_tokens: int, positions: int, beam: int, nbest: int) -> StaticSizes:
        """The smallest sizes with enough room."""
        small_batches = (size for size in _SMALL_BATCHES if size >= num_sentences)
        return cls(
            next(small_batches, _double_until(num_sentences, start=_MIN_SENTENCES)),
            _double_until(source_tokens, start=_MIN_SOURCE_TOKENS),
            _double_until(positions, start=_MIN_POSITIONS),
            beam,
            nbest,
        )

    @property
    def candidates(self) -> int:
        """Continuations per sentence that a step considers: twice the beam, and one in greedy search."""
        return 2 * self.beam if self.beam > 1 else 1


@dataclass(slots=True, kw_only=True)
class StaticState:
    """All tensors that a step reads and writes, whether the step ran once, and the recording of the step.

    A recording reads the same addresses in each step. So `counters` [3] are on the device: the number of tokens of each
    open hypothesis, the row of `tree_*` for the candidates of this step, and the number of the first of them in the
    whole tree.

    `masks_and_penalties` [positions, NUM_SPECIAL + 1] have a row per position. Its first columns, 0 or -inf, are added
    to the log-probabilities of the special pieces. Its last column is the length penalty of an end there.

    `ids`, `log_probs` and `nodes` [B, W] are the newest token, the log-probability and the tree node of each open
    hypothesis. `limits`, `penalties_at_limit`, `is_done` and `source_lengths` are [B].

    `ancestors` [B, W, L] tell which of the W hypotheses each hypothesis was at each earlier position. `tree_*`
    [L, B, C] hold the candidates of the steps since the host last read the tree, a row per step.
    """

    sizes: StaticSizes
    caches: list[StaticCache]
    source_lengths: Tensor
    ancestors: Tensor
    counters: Tensor
    masks_and_penalties: Tensor
    limits: Tensor
    penalties_at_limit: Tensor
    ids: Tensor
    log_probs: Tensor
    nodes: Tensor
    finished: FinishedHypotheses
    is_done: Tensor
    tree_tokens: Tensor
    tree_parents: Tensor
    tree_log_probs: Tensor
    is_warm: bool = False
    replay: Callable[[], None] | None = None
    _increments: Tensor = field(init=False)

    def __post_init__(self) -> None:
        num_new_nodes = self.sizes.num_sentences * self.sizes.candidates
        self._increments = torch.tensor([1, 1, num_new_nodes], device=self.counters.device)

    def start_tree(self, *, position: int, first_new_node: int) -> None:
        """Set the counters for a step that writes the first row of the tree."""
        self.counters.copy_(torch.tensor([position, 0, first_new_node]))

    def advance_counters(self) -> None:
        """Set the counters for the next step."""
        self.counters.add_(self._increments)

    def tensors_by_sentence(self) -> list[Tensor]:
        """The tensors [B, ...] of the sentences, without the past of their hypotheses."""
        sources = [*(layer for cache in self.caches for layer in cache.cross), self.source_lengths]
        hypotheses = [self.ids, self.log_probs, self.nodes, *self.finished]
        return [*sources, self.limits, self.penalties_at_limit, *hypotheses, self.is_done]


def choose_candidates(state: StaticState, logits: Tensor) -> Tensor:
    """The hypotheses [B, C] that the best candidates continue; the candidates go into the tree's next row.

    They are the same as from `topk_continuations`, for logits [R, V].
    """
    from triton import cdiv, next_power_of_2

    from nmt_cli.model.kernels import search as kernels

    sizes, (num_rows, vocabulary) = state.sizes, logits.shape
    block = max(_MIN_BLOCK_COLUMNS, next_power_of_2(cdiv(vocabulary, _MAX_BLOCKS)))
    num_blocks = cdiv(vocabulary, block)
    tile = min(next_power_of_2(num_blocks), max(1, _LOGITS_PER_PROGRAM // block))
    largest = torch.empty(num_rows, num_blocks, device=logits.device)
    log_sums = torch.empty_like(largest)
    hypotheses = torch.empty(sizes.num_sentences, sizes.candidates, dtype=torch.int32, device=logits.device)
    kernels.summarise_blocks[(num_rows, cdiv(num_blocks, tile))](
        logits, state.masks_and_penalties, state.counters, largest, log_sums, logits.stride(0), vocabulary, num_blocks,
        NUM_SPECIAL=NUM_SPECIAL, BLOCK=block, TILE=tile,
    )  # fmt: skip
    kernels.choose_candidates[(sizes.num_sentences,)](
        logits, largest, log_sums, state.masks_and_penalties, state.counters, state.log_probs, state.nodes,
        state.tree_log_probs, state.tree_tokens, state.tree_parents, hypotheses,
        logits.stride(0), vocabulary, num_blocks, sizes.beam, sizes.candidates,
        NUM_SPECIAL=NUM_SPECIAL, BLOCK=block, BLOCKS=next_power_of_2(num_blocks), BEAM=next_power_of_2(sizes.beam),
        CANDIDATES=next_power_of_2(sizes.candidates),
        num_warps=min(16, max(4, next_power_of_2(sizes.beam) * next_power_of_2(num_blocks) // _SORT_KEYS_PER_WARP)),
    )  # fmt: skip
    return hypotheses


def advance_hypotheses(state: StaticState, hypotheses: Tensor) -> None:
    """Continue the sentences by the candidates of the tree's current row, whose parents are `hypotheses` [B, C].

    Candidates with EOS end. The W best others are the new open hypotheses; they end too if the sentence reached its
    limit. A sentence is done at its limit, or if none of its open hypotheses can improve its finished ones.
    """
    from triton import next_power_of_2

    from nmt_cli.model.kernels import search as kernels

    sizes = state.sizes
    kernels.sort_candidates[(sizes.num_sentences,)](
        state.tree_log_probs, state.tree_tokens, hypotheses, state.masks_and_penalties, state.counters, state.limits,
        state.penalties_at_limit, state.ids, state.log_probs, state.nodes, state.ancestors, *state.finished,
        state.is_done, sizes.beam, sizes.candidates, sizes.nbest, sizes.positions,
        NUM_SPECIAL=NUM_SPECIAL, CANDIDATES=next_power_of_2(sizes.candidates), ENDINGS=next_power_of_2(sizes.nbest),
        TILE=_POSITIONS_PER_TILE, num_warps=min(16, max(1, next_power_of_2(sizes.candidates) // 8)),
    )  # fmt: skip


def _double_until(needed: int, *, start: int) -> int:
    """The smallest power of two that is at least `needed` and at least `start`, itself a power of two."""
    return max(start, 1 << (needed - 1).bit_length())
