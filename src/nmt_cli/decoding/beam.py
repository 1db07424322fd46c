"""Beam search (section 6.1 of the paper).

Shapes: B sentences still searched, W open hypotheses a sentence, R = B * W rows, C candidates a sentence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nmt_cli.decoding.hypotheses import Endings, Hypothesis, Tree
from nmt_cli.decoding.largest import best_continuations
from nmt_cli.decoding.leaving import who_leaves
from nmt_cli.decoding.penalties import length_penalty
from nmt_cli.decoding.scorer import NEVER_GENERATED, Scorer
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import BOS, EOS

# Steps between looks at which sentences have ended: a look waits for a GPU, and costs nothing on a CPU.
_STEPS_UNSEEN = {"cuda": 4}


class Beam:
    """Beam search: of 2 W candidates a step, those that end are finished, and the W best others stay open.

    So W stay open whatever ends. A sentence is done when its limit is reached, or when nothing open can beat its n-th
    best finished score: that is at least the best open log-probability over the penalty at the limit.
    """

    def __init__(
        self, scorer: Scorer, *, limits: Sequence[int], config: DecodingConfig, nbest: int, device: torch.device
    ) -> None:
        self._scorer = scorer
        self._config = config
        self._nbest = nbest
        self._tree = Tree()
        self._num_sentences = len(limits)
        self._sentences = torch.arange(len(limits), device=device)
        self._limits = torch.tensor(limits, device=device)
        self._nearest_limit, self._last_limit = min(limits), max(limits)
        penalties = [length_penalty(limit, config=config) for limit in limits]
        self._last_penalties = torch.tensor(penalties, device=device)
        self._every = _STEPS_UNSEEN.get(device.type, 1)
        # One open hypothesis at first: BOS.
        self._ids = torch.full((len(limits), 1), BOS, device=device)
        self._log_probs = torch.zeros(len(limits), 1, device=device)
        self._nodes = torch.full((len(limits), 1), -1, device=device)
        self._finished = Endings.none(len(limits), nbest, device=device)
        self._is_done = torch.zeros(len(limits), dtype=torch.bool, device=device)

    def search(self) -> list[list[Hypothesis]]:
        """The best hypotheses of each sentence."""
        while True:
            rows = self._step()
            kept = self._leave()
            if kept is not None:
                if len(kept) == 0:
                    return self._tree.read(self._num_sentences)
                rows = rows[kept]
            self._scorer.select(rows=rows.flatten(), sentences=kept)

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
        if self._scorer.step >= self._nearest_limit:
            self._finish(self._log_probs, self._nodes, where=(self._limits <= self._scorer.step)[:, None])
        is_decided = self._finished.scores[:, -1] >= self._log_probs[:, 0] / self._last_penalties
        self._is_done = self._is_done | is_decided | (self._limits <= self._scorer.step)
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
        penalty = length_penalty(self._scorer.step, config=self._config)
        scores = (log_probs / penalty).where(where & ~self._is_done[:, None], -torch.inf)
        self._finished = self._finished.best_with(Endings(log_probs, scores, nodes), count=self._nbest)

    def _leave(self) -> Tensor | None:
        """Let sentences that are done leave, if enough are; those that stay [B'], or None where nothing changes."""
        is_last = self._scorer.step >= self._last_limit
        if self._scorer.step % self._every and not is_last:
            return None
        leaving = who_leaves(self._is_done)
        if leaving is None:
            return None
        done, kept = leaving
        self._tree.end(self._sentences[done], self._finished.select(done))
        self._sentences, self._limits = self._sentences[kept], self._limits[kept]
        self._last_penalties = self._last_penalties[kept]
        self._ids, self._log_probs, self._nodes = self._ids[kept], self._log_probs[kept], self._nodes[kept]
        self._finished, self._is_done = self._finished.select(kept), self._is_done[kept]
        return kept
