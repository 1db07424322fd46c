"""Beam search (section 6.1 of the paper), and its step as functions on tensors.

Shapes: B sentences still searched, W open hypotheses per sentence, R = B * W rows, C candidates per sentence,
F finished hypotheses that are kept per sentence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from nmt_cli.decoding.search.ensemble import NEVER_GENERATED, Ensemble
from nmt_cli.decoding.search.hypotheses import FinishedHypotheses
from nmt_cli.decoding.search.search import ActiveSearch, plan_compaction
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import EOS

# Columns per block: if there are many columns, the maximum of each block is compared first.
_BLOCK = 64
_PLACES = 1 << 32  # places are smaller, and fit into the low half of a key
# Steps between checks for finished sentences: a check waits for a GPU, and costs nothing on a CPU.
_STEPS_BETWEEN_CHECKS = {"cuda": 4}


class Candidates(NamedTuple):
    """Continuations of the open hypotheses of each sentence, best first; all [B, C]."""

    log_probs: Tensor
    pieces: Tensor
    hypotheses: Tensor


def candidates(log_probs: Tensor, before: Tensor, *, count: int) -> Candidates:
    """The `count` best continuations of each sentence, by log_probs [R, V] of the next piece and `before` [B, W]."""
    totals, places = topk_continuations(log_probs, before, count=count)
    vocabulary = log_probs.size(1)
    return Candidates(totals, places % vocabulary, places // vocabulary)


def keep_open(log_probs: Tensor, is_end: Tensor, *, width: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and places, [B, width], of the best candidates [B, C] that do not end; -inf beyond the last."""
    open_first, order = log_probs.masked_fill(is_end, -torch.inf).sort(dim=1, descending=True, stable=True)
    return open_first[:, :width], order[:, :width]


def finish(
    finished: FinishedHypotheses, log_probs: Tensor, nodes: Tensor, *, penalties: Tensor, where: Tensor
) -> FinishedHypotheses:
    """The F best of the finished hypotheses and of the candidates of log_probs [B, C] that `where` [B, C] marks."""
    scores = (log_probs / penalties).where(where, -torch.inf)
    return finished.best_of_both(FinishedHypotheses(log_probs, scores, nodes), count=finished.scores.size(1))


def cannot_improve(finished: FinishedHypotheses, open_log_probs: Tensor, last_penalties: Tensor) -> Tensor:
    """Whether no open hypothesis [B, W] can beat the worst finished one, [B].

    The score of an open hypothesis is at most its log-probability over the penalty at the limit, `last_penalties` [B].
    """
    return finished.scores[:, -1] >= open_log_probs[:, 0] / last_penalties


def topk_continuations(log_probs: Tensor, before: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest sums of `before` [B, W] and log_probs [R, V], and their places w * V + v; both [B, C].

    The largest sum comes first, and in a tie the smallest place: torch.topk leaves ties open, and logits in bf16 are
    often equal. Sums are float32, and W * V is less than 2 ** 32.
    """
    vocabulary = log_probs.size(1)
    by_sentence = log_probs.view(len(before), -1, vocabulary)
    num_blocks = vocabulary // _BLOCK
    if num_blocks * before.size(1) < 2 * count:
        totals = (by_sentence + before[:, :, None]).flatten(1)
        return _first_largest(totals, torch.arange(totals.size(1), device=totals.device), count=count)
    # Each of the `count` best blocks has a sum that comes before all sums of the other blocks.
    whole = by_sentence[:, :, : num_blocks * _BLOCK].unflatten(2, (num_blocks, _BLOCK))
    largest = (whole.amax(dim=-1) + before[:, :, None]).flatten(1)
    _, blocks = _first_largest(largest, torch.arange(largest.size(1), device=largest.device), count=count)
    starts = blocks // num_blocks * vocabulary + blocks % num_blocks * _BLOCK
    places = (starts[:, :, None] + torch.arange(_BLOCK, device=starts.device)).flatten(1)
    if num_blocks * _BLOCK < vocabulary:
        rest = torch.arange(num_blocks * _BLOCK, vocabulary, device=starts.device)
        rows = torch.arange(before.size(1), device=starts.device) * vocabulary
        places = torch.cat([places, (rows[:, None] + rest).flatten().expand(len(places), -1)], dim=1)
    values = by_sentence.flatten(1).gather(1, places)
    return _first_largest(values + before.gather(1, places // vocabulary), places, count=count)


def _first_largest(values: Tensor, places: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
    """The largest values [B, N], in a tie the ones with the smallest `places`, and their places; both [B, C].

    Both numbers make one key: the bits of the float, changed so that they ascend with it, and the inverted place.
    """
    keys = (_ascending(values.view(torch.int32)).long() * _PLACES + (_PLACES - 1 - places)).topk(count).values
    return _ascending((keys >> 32).int()).view(torch.float32), _PLACES - 1 - (keys & (_PLACES - 1))


def _ascending(bits: Tensor) -> Tensor:
    """The bits [B, N] of floats as integers in the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


class BeamSearch(ActiveSearch):
    """Beam search: of 2 W candidates per step, those with EOS are finished, and the W best others stay open.

    So W hypotheses stay open whatever ends. A sentence is done when it reaches its limit, or when no open hypothesis
    can beat the worst finished one that is kept.
    """

    def __init__(
        self, ensemble: Ensemble, *, limits: Mapping[int, int], config: DecodingConfig, nbest: int, device: torch.device
    ) -> None:
        """`limits` are the maximum numbers of pieces, by sentence; `nbest` hypotheses of each sentence are kept."""
        super().__init__(ensemble, limits=limits, width=1, num_finished=nbest, config=config, device=device)
        # Steps until the first sentence reaches its limit, and until the last sentence does.
        self._to_first_limit, self._to_last_limit = min(limits.values()), max(limits.values())
        self._last_penalties = self._penalties.at(self._limits)[:, 0]
        self._check_interval = _STEPS_BETWEEN_CHECKS.get(device.type, 1)
        self._num_steps = 0
        self._is_done = torch.zeros(len(limits), dtype=torch.bool, device=device)

    @property
    def is_joinable(self) -> bool:
        """Whether each sentence has W open hypotheses: after one step, unless the vocabulary is tiny."""
        return self._ids.size(1) == self._config.beam

    def join(self, others: Sequence[Self]) -> None:
        """Take in the sentences of other searches."""
        super().join(others)
        searches = [self, *others]
        self._last_penalties = torch.cat([one._last_penalties for one in searches])
        self._is_done = torch.cat([one._is_done for one in searches])
        self._to_first_limit = int((self._limits - self._ensemble.lengths).min())
        self._to_last_limit = max(one._to_last_limit for one in searches)

    def _advance(self) -> None:
        rows = self._step()
        kept = self._drop_done()
        if self.num_sentences:
            self._ensemble.select(rows=(rows if kept is None else rows[kept]).flatten(), sentences=kept)

    def _step(self) -> Tensor:
        """Add a piece to each open hypothesis; returns the rows [B, W] that the new hypotheses continue."""
        width = self._ids.size(1)
        log_probs = self._ensemble.log_probs(self._ids.flatten())
        count = 2 * self._config.beam
        count = min(count, width * min(count, log_probs.size(1) - len(NEVER_GENERATED)))
        found = candidates(log_probs, self._log_probs, count=count)
        nodes = self._tree.grow(found.pieces, self._nodes.gather(1, found.hypotheses), found.log_probs)
        is_end, was_open = found.pieces == EOS, ~self._is_done[:, None]
        penalties = self._penalties.at(self._ensemble.lengths)
        self._finished = finish(self._finished, found.log_probs, nodes, penalties=penalties, where=is_end & was_open)
        # Each open hypothesis has at most one candidate that ends, so at least this many candidates stay open.
        self._log_probs, order = keep_open(found.log_probs, is_end, width=min(self._config.beam, count - width))
        self._ids, self._nodes = found.pieces.gather(1, order), nodes.gather(1, order)
        self._num_steps, self._to_first_limit, self._to_last_limit = (
            self._num_steps + 1,
            self._to_first_limit - 1,
            self._to_last_limit - 1,
        )
        is_over = cannot_improve(self._finished, self._log_probs, self._last_penalties)
        if self._to_first_limit <= 0:
            is_last = self._limits <= self._ensemble.lengths
            where = is_last[:, None] & was_open
            self._finished = finish(self._finished, self._log_probs, self._nodes, penalties=penalties, where=where)
            is_over = is_over | is_last
        self._is_done = self._is_done | is_over
        starts = torch.arange(len(order), device=order.device)[:, None] * width
        return starts + found.hypotheses.gather(1, order)

    def _drop_done(self) -> Tensor | None:
        """Drop done sentences if there are enough of them; returns the others [B'], or None if all stay."""
        if self._num_steps % self._check_interval and self._to_last_limit > 0:
            return None
        compaction = plan_compaction(self._is_done)
        if compaction is None:
            return None
        done, kept = compaction
        self._note_and_drop(done, self._finished.select(done), kept=kept)
        self._last_penalties, self._is_done = self._last_penalties[kept], self._is_done[kept]
        return kept
