"""How a step of the recorded search chooses: the best continuations, then what ends and what stays open.

Each of the two functions launches kernels in Triton, or does the same with PyTorch's operators.
Shapes: B sentences, W hypotheses per sentence, R = B * W rows, C candidates per sentence, F kept endings per sentence,
V vocabulary, L positions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nmt_cli.decoding.fixed_memory import State
from nmt_cli.decoding.hypotheses import Endings
from nmt_cli.decoding.largest import best_continuations
from nmt_cli.tokenization.tokenizer import EOS

_SPECIAL = EOS + 1  # pieces that have a column in `State.rules`
_MOST_BLOCKS, _NARROWEST_BLOCK = 512, 8  # columns are looked at in blocks, so that few are sorted
_TILE = 2048  # logits that one program reads
_POSITIONS = 64
_KEYS_PER_WARP = 1024  # they fit into its registers
_WIDEST_BEAM = 32  # one program holds the block maxima of all hypotheses of a sentence


def choose(state: State, logits: Tensor, *, is_fused: bool) -> Tensor:
    """The hypotheses [B, C] that the best continuations continue; the continuations go into the tree's next row.

    They are the C largest sums of a hypothesis's ln P and ln P of its next piece, by logits [R, V], largest first. Of
    equal sums the first hypothesis comes first, then the smaller piece.
    """
    if is_fused and state.sizes.beam <= _WIDEST_BEAM:
        return _choose_by_kernels(state, logits)
    log_probs = logits.log_softmax(dim=-1, dtype=torch.float32)
    log_probs[:, :_SPECIAL].add_(state.rules.index_select(0, state.counters[:1])[:, :_SPECIAL])
    totals, places = best_continuations(log_probs, state.log_probs, count=state.sizes.candidates)
    hypotheses, pieces = places // logits.size(1), places % logits.size(1)
    row = state.counters[1:2]
    state.tree_log_probs.index_copy_(0, row, totals[None])
    state.tree_pieces.index_copy_(0, row, pieces[None])
    state.tree_parents.index_copy_(0, row, state.nodes.gather(1, hypotheses)[None])
    return hypotheses


def _choose_by_kernels(state: State, logits: Tensor) -> Tensor:
    from nmt_cli.model.kernels import selection

    sizes, (num_rows, vocabulary) = state.sizes, logits.shape
    block = max(_NARROWEST_BLOCK, _power(-(-vocabulary // _MOST_BLOCKS)))
    num_blocks = -(-vocabulary // block)
    tile = min(_power(num_blocks), max(1, _TILE // block))
    largest = torch.empty(num_rows, num_blocks, device=logits.device)
    log_sums = torch.empty_like(largest)
    hypotheses = torch.empty(sizes.sentences, sizes.candidates, dtype=torch.int32, device=logits.device)
    selection.summarise_blocks[(num_rows, -(-num_blocks // tile))](
        logits,
        state.rules,
        state.counters,
        largest,
        log_sums,
        logits.stride(0),
        vocabulary,
        num_blocks,
        SPECIAL=_SPECIAL,
        BLOCK=block,
        TILE=tile,
    )
    selection.choose[(sizes.sentences,)](
        logits,
        largest,
        log_sums,
        state.rules,
        state.counters,
        state.log_probs,
        state.nodes,
        state.tree_log_probs,
        state.tree_pieces,
        state.tree_parents,
        hypotheses,
        logits.stride(0),
        vocabulary,
        num_blocks,
        sizes.beam,
        sizes.candidates,
        SPECIAL=_SPECIAL,
        BLOCK=block,
        BLOCKS=_power(num_blocks),
        BEAM=_power(sizes.beam),
        CANDIDATES=_power(sizes.candidates),
        num_warps=min(16, max(4, _power(sizes.beam) * _power(num_blocks) // _KEYS_PER_WARP)),
    )
    return hypotheses


def settle(state: State, hypotheses: Tensor, *, is_fused: bool) -> None:
    """Sort the candidates of the tree's present row, which continue `hypotheses` [B, C], into ended and open ones.

    Candidates with EOS end. The W best others are the new open hypotheses; they end too if the sentence reached its
    limit. A sentence is done at its limit, or if none of its open hypotheses can beat the worst kept ending.
    """
    if is_fused:
        _settle_by_kernel(state, hypotheses)
        return
    row, place = state.counters[1:2], state.counters[:1]
    totals, pieces = (column.index_select(0, row)[0] for column in (state.tree_log_probs, state.tree_pieces))
    nodes = torch.arange(totals.numel(), device=totals.device).view_as(totals) + state.counters[2:]
    is_end, is_last = pieces == EOS, state.limits <= place + 1
    open_totals, order = totals.masked_fill(is_end, -math.inf).sort(dim=1, descending=True, stable=True)
    order = order[:, : state.sizes.beam]
    state.log_probs.copy_(open_totals[:, : state.sizes.beam])
    torch.gather(pieces, 1, order, out=state.ids)
    torch.gather(nodes, 1, order, out=state.nodes)

    ends = torch.cat([is_end, is_last.expand_as(state.ids)], dim=1) & ~state.is_done
    log_probs = torch.cat([totals, state.log_probs], dim=1)
    scores = (log_probs / state.rules.index_select(0, place)[:, _SPECIAL:]).where(ends, -math.inf)
    ended = Endings(log_probs, scores, torch.cat([nodes, state.nodes], dim=1))
    best = state.finished.best_with(ended, count=state.sizes.nbest)
    state.finished.copy_(best)
    is_decided = best.scores[:, -1:] >= state.log_probs[:, :1] / state.last_penalties
    state.is_done.logical_or_(is_decided.logical_or_(is_last))

    continued = hypotheses.gather(1, order)
    state.ancestors.copy_(state.ancestors.gather(1, continued[:, :, None].expand_as(state.ancestors)))
    state.ancestors.index_copy_(2, place, continued[:, :, None].to(state.ancestors.dtype))


def _settle_by_kernel(state: State, hypotheses: Tensor) -> None:
    from nmt_cli.model.kernels import selection

    sizes = state.sizes
    selection.settle[(sizes.sentences,)](
        state.tree_log_probs,
        state.tree_pieces,
        hypotheses,
        state.rules,
        state.counters,
        state.limits,
        state.last_penalties,
        state.ids,
        state.log_probs,
        state.nodes,
        state.ancestors,
        state.finished.log_probs,
        state.finished.scores,
        state.finished.nodes,
        state.is_done,
        sizes.beam,
        sizes.candidates,
        sizes.nbest,
        sizes.length,
        SPECIAL=_SPECIAL,
        CANDIDATES=_power(sizes.candidates),
        ENDINGS=_power(sizes.nbest),
        TILE=_POSITIONS,
        num_warps=min(16, max(1, _power(sizes.candidates) // 8)),
    )


def _power(number: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << (number - 1).bit_length()
