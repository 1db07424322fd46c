"""Greedy search and sampling: hypotheses that grow independently of each other.

Shapes: B sentences still open, W hypotheses per sentence, R = B * W rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from nmt_cli.decoding.search.active_search import ActiveSearch
from nmt_cli.decoding.search.ensemble import Ensemble
from nmt_cli.decoding.search.hypotheses import FinishedHypotheses
from nmt_cli.decoding.search.topk import first_argmax
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import EOS


class GreedyOrSamplingSearch(ActiveSearch):
    """A search in which each hypothesis continues with the most probable or a sampled token, until EOS or its limit.

    A sentence may leave the batch when all its hypotheses have ended. Each hypothesis has its own random numbers, so
    its batch changes nothing.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        limits: Sequence[int],
        keys: Sequence[str],
        config: DecodingConfig,
        device: torch.device,
    ) -> None:
        """For each sentence, `limits` has the maximum number of tokens, and `keys` seeds the random numbers."""
        width = config.num_candidates
        super().__init__(ensemble, limits=limits, width=width, num_finished=width, config=config, device=device)
        self._width = width
        self._generators = [
            [Random(f"{config.seed} {key} {number}") for number in range(config.samples)] for key in keys
        ]
        self._is_open = torch.ones_like(self._ids, dtype=torch.bool)

    def _step(self) -> Tensor | None:
        is_first = self._ensemble.length == 0
        last_ids = self._ids[:, :1] if is_first else self._ids
        log_probs = self._ensemble.next_log_probs(last_ids.flatten())
        if is_first and self._width > 1:
            log_probs = log_probs.repeat_interleave(self._width, dim=0)
        tokens = self._sample(log_probs) if self._config.samples else first_argmax(log_probs)
        self._ids = tokens.view_as(self._ids)
        self._log_probs = self._log_probs + log_probs.gather(1, tokens[:, None]).view_as(self._log_probs)
        self._nodes = self._tree.grow(self._ids, self._nodes, self._log_probs)
        length = self._ensemble.length
        ends_now = self._is_open & ((self._ids == EOS) | (self._limits <= length)[:, None])
        self._finished = FinishedHypotheses(
            self._log_probs.where(ends_now, self._finished.log_probs),
            (self._log_probs / self._penalties[length]).where(ends_now, self._finished.scores),
            self._nodes.where(ends_now, self._finished.nodes),
        )
        self._is_open = self._is_open & ~ends_now
        self._is_done = ~self._is_open.any(dim=1)
        if not is_first:
            return None
        # Before the first step, all hypotheses of a sentence share a row.
        return torch.arange(len(self._ids), device=self._ids.device)[:, None].expand_as(self._ids)

    def _ranked(self, done: Tensor) -> FinishedHypotheses:
        # Each hypothesis has kept its column. Merging with nothing sorts them.
        nothing = FinishedHypotheses.empty(len(done), 0, device=done.device)
        return nothing.best_of_both(super()._ranked(done), count=self._width)

    def _keep(self, kept: Tensor) -> None:
        super()._keep(kept)
        self._is_open = self._is_open[kept]

    def _sample(self, log_probs: Tensor) -> Tensor:
        """Sampled next tokens [R], by log_probs [R, V]."""
        config = self._config
        logits, columns = log_probs / config.temperature, None
        if config.top_k is not None:
            logits, columns = logits.topk(min(config.top_k, logits.size(-1)), dim=-1)
        elif config.top_p < 1:
            logits, columns = logits.sort(dim=-1, descending=True, stable=True)
        probabilities = logits.double().softmax(dim=-1)
        cumulated = probabilities.cumsum(dim=-1)
        if config.top_p < 1:
            # The fewest most probable tokens that together have top_p.
            is_in_nucleus = cumulated - probabilities < config.top_p
            cumulated = (probabilities * is_in_nucleus).cumsum(dim=-1)
        uniform = [
            generator.random() for sentence in self._sentences.tolist() for generator in self._generators[sentence]
        ]
        thresholds = cumulated[:, -1] * torch.tensor(uniform, dtype=torch.float64, device=log_probs.device)
        sampled = torch.searchsorted(cumulated, thresholds[:, None], right=True)
        sampled = sampled.clamp(max=cumulated.size(-1) - 1)  # of NaN, which the end of the search refuses
        return (sampled if columns is None else columns.gather(1, sampled)).squeeze(1)
