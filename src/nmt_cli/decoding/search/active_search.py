"""A search under way: sentences with their hypotheses, and which finished sentences leave the batch.

Shapes: B sentences still searched, W open hypotheses per sentence, F finished ones that are kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from nmt_cli.decoding.search.ensemble import Ensemble
from nmt_cli.decoding.search.hypotheses import (
    FinishedHypotheses,
    Hypothesis,
    HypothesisTree,
    length_penalty,
)
from nmt_cli.recipe.schema import DecodingConfig

STEPS_BETWEEN_CHECKS = {"cuda": 4}
"""Steps between checks for finished sentences: a check waits for a GPU, and costs nothing on a CPU."""
# Done sentences leave once they are this share of the batch: dropping them copies the others, and a CPU prepares matrix
# products for each new size.
_MIN_SHARE_DONE = 1 / 16


class ActiveSearch(ABC):
    """Sentences with the open and the finished hypotheses of each; it runs in inference mode.

    `_ids`, `_log_probs` and `_nodes` [B, W] are the newest token, the log-probability and the tree node of each open
    hypothesis. `_sentences` [B] are the numbers of the sentences, `_limits` [B] their maximum numbers of tokens, and
    `_is_done` [B] says which are done. `_penalties` has the length penalty of each length.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        limits: Sequence[int],
        width: int,
        num_finished: int,
        config: DecodingConfig,
        device: torch.device,
    ) -> None:
        """`limits` has the maximum number of tokens of each sentence, which begins with `width` empty hypotheses."""
        self._ensemble = ensemble
        self._config = config
        self._tree = HypothesisTree()
        self._sentences = torch.arange(len(limits), device=device)
        self._limits = torch.tensor(limits, device=device)
        penalties = [length_penalty(length, config=config) for length in range(1, max(limits) + 1)]
        self._penalties = torch.tensor([1.0, *penalties], device=device)
        self._ids = ensemble.start()[:, None].repeat(1, width)
        self._log_probs = torch.zeros(len(limits), width, device=device)
        self._nodes = torch.full_like(self._ids, -1)
        self._finished = FinishedHypotheses.empty(len(limits), num_finished, device=device)
        self._is_done = torch.zeros(len(limits), dtype=torch.bool, device=device)
        self._last_limit = max(limits)
        self._check_interval = STEPS_BETWEEN_CHECKS.get(device.type, 1)

    def run(self) -> list[list[Hypothesis]]:
        """Search until all sentences are done; returns the hypotheses of each, best first."""
        while len(self._sentences):
            rows = self._step()
            length = self._ensemble.length
            is_check = length % self._check_interval == 0 or length == self._last_limit
            kept = self._drop_done() if is_check else None
            if kept is not None:
                width = self._ids.size(1)
                own_rows = kept[:, None] * width + torch.arange(width, device=kept.device)
                rows = own_rows if rows is None else rows[kept]
            if rows is not None and len(self._sentences):
                self._ensemble.select(rows=rows.flatten(), sentences=kept)
        prefixes = self._ensemble.prefix_log_probs()
        return [
            [hypothesis.with_prefix(log_probs) if log_probs else hypothesis for hypothesis in ranked]
            for log_probs, ranked in zip(prefixes, self._tree.results(), strict=True)
        ]

    @abstractmethod
    def _step(self) -> Tensor | None:
        """Add a token to each open hypothesis; done sentences may stay, and their results no longer change.

        Returns the ensemble's rows [B, W] that the new hypotheses continue; None if each continues its own row.
        """

    def _drop_done(self) -> Tensor | None:
        """Drop the done sentences if there are enough of them; returns the others [B'], or None if all stay.

        The host waits for the device.
        """
        done = self._is_done.nonzero().flatten()
        if len(done) == 0 or len(done) < _MIN_SHARE_DONE * len(self._is_done):
            return None
        kept = (~self._is_done).nonzero().flatten()
        self._tree.add_finished(self._sentences[done], self._ranked(done))
        self._keep(kept)
        return kept

    def _ranked(self, done: Tensor) -> FinishedHypotheses:
        """The finished hypotheses of the `done` sentences, best first."""
        return self._finished.select(done)

    def _keep(self, kept: Tensor) -> None:
        """Go on with the `kept` sentences."""
        self._sentences, self._limits = self._sentences[kept], self._limits[kept]
        self._ids, self._log_probs, self._nodes = self._ids[kept], self._log_probs[kept], self._nodes[kept]
        self._finished, self._is_done = self._finished.select(kept), self._is_done[kept]
