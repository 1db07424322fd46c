"""Beam search (section 6.1 of the paper), and its step as functions on tensors.

Shapes: B sentences still searched, W open hypotheses per sentence, R = B * W rows, C candidates per sentence,
F finished hypotheses that are kept per sentence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nmt_cli.decoding.search.active_search import ActiveSearch
from nmt_cli.decoding.search.ensemble import NEVER_GENERATED, Ensemble
from nmt_cli.decoding.search.hypotheses import FinishedHypotheses
from nmt_cli.decoding.search.topk import topk_continuations
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import EOS


def keep_open(log_probs: Tensor, is_end: Tensor, *, width: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and indices [B, width] of the best candidates [B, C] that go on; -inf if there are fewer."""
    open_first, order = log_probs.masked_fill(is_end, -torch.inf).sort(dim=1, descending=True, stable=True)
    return open_first[:, :width], order[:, :width]


def finish(
    finished: FinishedHypotheses, log_probs: Tensor, nodes: Tensor, *, penalties: Tensor, has_ended: Tensor
) -> FinishedHypotheses:
    """The F best of the finished hypotheses and of the candidates of log_probs [B, C] that have ended."""
    scores = (log_probs / penalties).where(has_ended, -torch.inf)
    return finished.best_of_both(FinishedHypotheses(log_probs, scores, nodes), count=finished.scores.size(1))


def cannot_improve(finished: FinishedHypotheses, open_log_probs: Tensor, penalties_at_limit: Tensor) -> Tensor:
    """Whether no open hypothesis [B, W] can beat the worst finished one, [B].

    An open hypothesis scores at most its log-probability, divided by the length penalty at its limit [B].
    """
    return finished.scores[:, -1] >= open_log_probs[:, 0] / penalties_at_limit


class BeamSearch(ActiveSearch):
    """Beam search: of 2 W candidates per step, those with EOS are finished, and the W best others stay open.

    So W hypotheses stay open, however many end. A sentence is done when it reaches its limit, or when no open
    hypothesis can beat the worst finished one that is kept.
    """

    def __init__(
        self, ensemble: Ensemble, *, limits: Sequence[int], config: DecodingConfig, nbest: int, device: torch.device
    ) -> None:
        """`limits` are the maximum numbers of tokens of the sentences; `nbest` hypotheses of each sentence are kept."""
        # Before the first step each sentence has one hypothesis, BOS. The first step continues it with W hypotheses.
        super().__init__(ensemble, limits=limits, width=1, num_finished=nbest, config=config, device=device)
        self._first_limit, self._penalties_at_limit = min(limits), self._penalties[self._limits]

    def _step(self) -> Tensor:
        width = self._ids.size(1)
        log_probs = self._ensemble.next_log_probs(self._ids.flatten())
        # A first step has one hypothesis, and a tiny vocabulary has few pieces: then there are fewer candidates.
        count = 2 * self._config.beam
        count = min(count, width * min(count, log_probs.size(1) - len(NEVER_GENERATED)))
        best = topk_continuations(log_probs, self._log_probs, count=count)
        nodes = self._tree.grow(best.tokens, self._nodes.gather(1, best.hypotheses), best.log_probs)
        is_end, was_open = best.tokens == EOS, ~self._is_done[:, None]
        penalties = self._penalties[self._ensemble.length]
        self._finished = finish(self._finished, best.log_probs, nodes, penalties=penalties, has_ended=is_end & was_open)
        # Each open hypothesis has at most one candidate that ends, so at least this many candidates stay open.
        self._log_probs, order = keep_open(best.log_probs, is_end, width=min(self._config.beam, count - width))
        self._ids, self._nodes = best.tokens.gather(1, order), nodes.gather(1, order)
        becomes_done = cannot_improve(self._finished, self._log_probs, self._penalties_at_limit)
        if self._ensemble.length >= self._first_limit:
            is_at_limit = self._limits <= self._ensemble.length
            has_ended = is_at_limit[:, None] & was_open
            self._finished = finish(
                self._finished, self._log_probs, self._nodes, penalties=penalties, has_ended=has_ended
            )
            becomes_done = becomes_done | is_at_limit
        self._is_done = self._is_done | becomes_done
        first_rows = torch.arange(len(order), device=order.device)[:, None] * width
        return first_rows + best.hypotheses.gather(1, order)

    def _keep(self, kept: Tensor) -> None:
        super()._keep(kept)
        self._penalties_at_limit = self._penalties_at_limit[kept]
