"""Greedy search and sampling: hypotheses that grow independently of each other.

Shapes: B sentences still open, W hypotheses per sentence, R = B * W rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol, Self

import torch
from torch import Tensor

from nmt_cli.decoding.search.ensemble import Ensemble
from nmt_cli.decoding.search.hypotheses import FinishedHypotheses
from nmt_cli.decoding.search.search import ActiveSearch, plan_compaction
from nmt_cli.decoding.search.topk import first_argmax
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import EOS


class PieceChoice(Protocol):
    """Chooses the next piece of each hypothesis."""

    def __call__(self, log_probs: Tensor, sentences: Tensor) -> Tensor:
        """The next pieces [R], by log_probs [R, V] and the numbers [B] of the open sentences."""

    def join(self, others: Sequence[Self], sentences: Sequence[int]) -> None:
        """Choose for the sentences of others, too; `sentences` are the numbers of all open ones."""


class IndependentSearch(ActiveSearch):
    """A search in which each hypothesis continues with the piece that `choose` returns, until EOS or its limit.

    A sentence may leave the batch when all its hypotheses have ended.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        choose: PieceChoice,
        limits: Mapping[int, int],
        config: DecodingConfig,
        device: torch.device,
    ) -> None:
        """`limits` are the maximum numbers of pieces, by sentence."""
        width = config.num_candidates
        super().__init__(ensemble, limits=limits, width=width, num_finished=width, config=config, device=device)
        self._choose, self._width = choose, width
        self._is_begun = False
        self._is_open = torch.ones_like(self._ids, dtype=torch.bool)

    @property
    def is_joinable(self) -> bool:
        """Whether each sentence has all its hypotheses: after one step."""
        return self._is_begun

    def join(self, others: Sequence[Self]) -> None:
        """Take in the sentences of other searches."""
        super().join(others)
        self._choose.join([other._choose for other in others], self.open_sentences)
        self._is_open = torch.cat([one._is_open for one in [self, *others]])

    def _advance(self) -> None:
        is_first, self._is_begun = not self._is_begun, True
        self._step(is_first=is_first)
        kept = self._drop_done()
        if self.num_open and (is_first or kept is not None):
            self._ensemble.select(rows=self._rows(kept, before=1 if is_first else self._width), sentences=kept)

    def _rows(self, kept: Tensor | None, *, before: int) -> Tensor:
        """The rows that continue, if the ensemble had `before` rows per sentence; each has W from now on."""
        sentences = torch.arange(self.num_open, device=self._ids.device) if kept is None else kept
        within = torch.arange(self._width, device=sentences.device) % before
        return (sentences[:, None] * before + within).flatten()

    def _step(self, *, is_first: bool) -> None:
        """Add a piece to each hypothesis; ended ones stay in the batch, and their results no longer change."""
        given = self._ids[:, :1] if is_first else self._ids
        log_probs = self._ensemble.log_probs(given.flatten())
        if is_first and self._width > 1:
            log_probs = log_probs.repeat_interleave(self._width, dim=0)
        chosen = self._choose(log_probs, self._sentences)
        gained = log_probs.gather(1, chosen[:, None]).view_as(self._log_probs)
        self._ids = chosen.view_as(self._ids)
        self._log_probs = self._log_probs + gained
        self._nodes = self._tree.grow(self._ids, self._nodes, self._log_probs)
        places = self._ensemble.places
        ends = self._is_open & ((self._ids == EOS) | (self._limits <= places)[:, None])
        self._finished = FinishedHypotheses(
            self._log_probs.where(ends, self._finished.log_probs),
            (self._log_probs / self._penalties.at(places)).where(ends, self._finished.scores),
            self._nodes.where(ends, self._finished.nodes),
        )
        self._is_open = self._is_open & ~ends

    def _drop_done(self) -> Tensor | None:
        """Drop finished sentences if there are enough of them; the others [B'], or None if nothing changes."""
        leaving = plan_compaction(~self._is_open.any(dim=1))
        if leaving is None:
            return None
        done, kept = leaving
        none = FinishedHypotheses.none(len(done), 0, device=done.device)
        self._end(done, none.best_with(self._finished.select(done), count=self._width), kept=kept)
        self._is_open = self._is_open[kept]
        return kept


class GreedyChoice:
    """Chooses the most probable piece of each row."""

    def __call__(self, log_probs: Tensor, sentences: Tensor) -> Tensor:
        """The next pieces [R], by log_probs [R, V]."""
        return first_argmax(log_probs)

    def join(self, others: Sequence[GreedyChoice], sentences: Sequence[int]) -> None:
        """Nothing depends on a sentence."""


class SampledChoice:
    """Samples pieces from the model; each sentence has its own random numbers, so its batch changes nothing."""

    def __init__(self, keys: Mapping[int, str], *, config: DecodingConfig) -> None:
        """`keys` seed the random numbers of the sentences, by number."""
        self._config = config
        self._generators = {
            sentence: [Random(f"{config.seed} {key} {number}") for number in range(config.samples)]
            for sentence, key in keys.items()
        }

    def join(self, others: Sequence[SampledChoice], sentences: Sequence[int]) -> None:
        """Sample for the sentences of others, too; `sentences` are the numbers of all open ones."""
        known = [self._generators, *(other._generators for other in others)]
        self._generators = {number: each[number] for each in known for number in sentences if number in each}

    def __call__(self, log_probs: Tensor, sentences: Tensor) -> Tensor:
        """The next pieces [R], by log_probs [R, V] and the numbers [B] of the open sentences."""
        points = [generator.random() for sentence in sentences.tolist() for generator in self._generators[sentence]]
        values, columns = log_probs / self._config.temperature, None
        if self._config.top_k is not None:
            values, columns = values.topk(min(self._config.top_k, values.size(-1)), dim=-1)
        elif self._config.top_p < 1:
            values, columns = values.sort(dim=-1, descending=True, stable=True)
        weights = values.double().softmax(dim=-1)
        reached = weights.cumsum(dim=-1)
        if self._config.top_p < 1:
            # The fewest most probable pieces that together have top_p.
            reached = (weights * (reached - weights < self._config.top_p)).cumsum(dim=-1)
        aims = reached[:, -1] * torch.tensor(points, dtype=torch.float64, device=log_probs.device)
        places = torch.searchsorted(reached, aims[:, None], right=True)
        return (places if columns is None else columns.gather(1, places)).squeeze(1)
