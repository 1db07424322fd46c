"""Beam search (section 6.1 of the paper).

Shapes: B sentences still searched, W open hypotheses a sentence, R = B * W rows, C candidates a sentence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from nmt_cli.decoding.hypotheses import Endings
from nmt_cli.decoding.largest import best_continuations
from nmt_cli.decoding.leaving import who_leaves
from nmt_cli.decoding.running import Search
from nmt_cli.decoding.scorer import NEVER_GENERATED, Scorer
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import EOS

# Steps between looks at which sentences have ended: a look waits for a GPU, and costs nothing on a CPU.
_STEPS_UNSEEN = {"cuda": 4}


class Beam(Search):
    """Beam search: of 2 W candidates a step, those that end are finished, and the W best others stay open.

    So W stay open whatever ends. A sentence is done when its limit is reached, or when nothing open can beat its n-th
    best finished score: that is at least the best open log-probability over the penalty at the limit.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        limits: Mapping[int, int],
        config: DecodingConfig,
        nbest: int,
        device: torch.device,
    ) -> None:
        """`limits` are the most pieces of each sentence, by its number; `nbest` hypotheses of each are kept."""
        super().__init__(scorer, limits=limits, width=1, num_ended=nbest, config=config, device=device)
        self._nbest = nbest
        # Steps until a limit is reached, and until all are.
        self._to_nearest, self._to_last = min(limits.values()), max(limits.values())
        self._last_penalties = self._penalties.at(self._limits)[:, 0]
        self._every = _STEPS_UNSEEN.get(device.type, 1)
        self._num_steps = 0
        self._is_done = torch.zeros(len(limits), dtype=torch.bool, device=device)

    @property
    def is_joinable(self) -> bool:
        """Whether each sentence has all its open hypotheses: after one step, unless the vocabulary is tiny."""
        return self._ids.size(1) == self._config.beam

    def join(self, others: Sequence[Self]) -> None:
        """Take the sentences of others in."""
        super().join(others)
        searches = [self, *others]
        self._last_penalties = torch.cat([one._last_penalties for one in searches])
        self._is_done = torch.cat([one._is_done for one in searches])
        self._to_nearest = int((self._limits - self._scorer.places).min())
        self._to_last = max(one._to_last for one in searches)

    def _advance(self) -> None:
        rows = self._step()
        kept = self._leave()
        if self.num_open:
            self._scorer.select(rows=(rows if kept is None else rows[kept]).flatten(), sentences=kept)

    def _step(self) -> Tensor:
        """One more piece for each open hypothesis; returns the rows [B, W] that the new ones continue."""
        width = self._ids.size(1)
        log_probs, ids, hypotheses = self._candidates(self._scorer.log_probs(self._ids.flatten()))
        is_end = ids == EOS
        nodes = self._tree.grow(ids, self._nodes.gather(1, hypotheses), log_probs)
        self._finish(log_probs, nodes, where=is_end)
        # Of each open hypothesis at most one candidate ends, so this many others are among them.
        open_width = min(self._config.beam, ids.size(1) - width)
        is_open_first = is_end.byte().argsort(dim=1, stable=True)[:, :open_width]
        self._ids = ids.gather(1, is_open_first)
        self._log_probs = log_probs.gather(1, is_open_first)
        self._nodes = nodes.gather(1, is_open_first)
        self._num_steps, self._to_nearest, self._to_last = self._num_steps + 1, self._to_nearest - 1, self._to_last - 1
        is_decided = self._ended.scores[:, -1] >= self._log_probs[:, 0] / self._last_penalties
        if self._to_nearest <= 0:
            is_last = self._limits <= self._scorer.places
            self._finish(self._log_probs, self._nodes, where=is_last[:, None])
            is_decided = is_decided | is_last
        self._is_done = self._is_done | is_decided
        starts = torch.arange(len(ids), device=ids.device)[:, None] * width
        return starts + hypotheses.gather(1, is_open_first)

    def _candidates(self, log_probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From log_probs [R, V] the best continuations: log-probabilities, pieces, and hypotheses continued, [B, C]."""
        width, vocabulary = self._ids.size(1), log_probs.size(1)
        count = 2 * self._config.beam
        count = min(count, width * min(count, vocabulary - len(NEVER_GENERATED)))
        totals, places = best_continuations(log_probs, self._log_probs, count=count)
        return totals, places % vocabulary, places // vocabulary

    def _finish(self, log_probs: Tensor, nodes: Tensor, *, where: Tensor) -> None:
        """Let the hypotheses of log_probs [B, C] end `where` that is True, in sentences that are not done."""
        scores = (log_probs / self._penalties.at(self._scorer.places)).where(
            where & ~self._is_done[:, None], -torch.inf
        )
        self._ended = self._ended.best_with(Endings(log_probs, scores, nodes), count=self._nbest)

    def _leave(self) -> Tensor | None:
        """Let sentences that are done leave, if enough are; those that stay [B'], or None where nothing changes."""
        if self._num_steps % self._every and self._to_last > 0:
            return None
        leaving = who_leaves(self._is_done)
        if leaving is None:
            return None
        done, kept = leaving
        self._end(done, self._ended.select(done), kept=kept)
        self._last_penalties, self._is_done = self._last_penalties[kept], self._is_done[kept]
        return kept
