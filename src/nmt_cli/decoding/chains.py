"""Hypotheses that grow one piece at a time without a choice between them: greedy search, and draws from the model.

Shapes: B sentences still open, W hypotheses a sentence, R = B * W rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol, Self

import torch
from torch import Tensor

from nmt_cli.decoding.hypotheses import Endings
from nmt_cli.decoding.largest import most_probable
from nmt_cli.decoding.leaving import who_leaves
from nmt_cli.decoding.running import Search
from nmt_cli.decoding.scorer import Scorer
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import EOS


class Choice(Protocol):
    """Which piece comes next."""

    def __call__(self, log_probs: Tensor, sentences: Tensor) -> Tensor:
        """From log_probs [R, V] and the numbers of the sentences still open [B], the next pieces [R]."""

    def join(self, others: Sequence[Self], sentences: Sequence[int]) -> None:
        """Choose for the sentences of others, too; these are all that are still open."""


class Chains(Search):
    """`width` hypotheses a sentence, each of which goes on with what `choose` says until EOS or the sentence's limit.

    A sentence leaves the batch when all its hypotheses have ended.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        choose: Choice,
        limits: Mapping[int, int],
        config: DecodingConfig,
        device: torch.device,
    ) -> None:
        """`limits` are the most pieces of each sentence, by its number."""
        width = config.num_candidates
        super().__init__(scorer, limits=limits, width=width, num_ended=width, config=config, device=device)
        self._choose, self._width = choose, width
        self._is_begun = False
        self._is_open = torch.ones_like(self._ids, dtype=torch.bool)

    @property
    def is_joinable(self) -> bool:
        """Whether each sentence has all its hypotheses: after one step."""
        return self._is_begun

    def join(self, others: Sequence[Self]) -> None:
        """Take the sentences of others in."""
        super().join(others)
        self._choose.join([other._choose for other in others], self.open_sentences)
        self._is_open = torch.cat([one._is_open for one in [self, *others]])

    def _advance(self) -> None:
        is_first, self._is_begun = not self._is_begun, True
        self._step(is_first=is_first)
        kept = self._leave()
        if self.num_open and (is_first or kept is not None):
            self._scorer.select(rows=self._rows(kept, before=1 if is_first else self._width), sentences=kept)

    def _rows(self, kept: Tensor | None, *, before: int) -> Tensor:
        """Which of the scorer's rows go on, where it had `before` a sentence: each sentence is `width` from now on."""
        sentences = torch.arange(self.num_open, device=self._ids.device) if kept is None else kept
        within = torch.arange(self._width, device=sentences.device) % before
        return (sentences[:, None] * before + within).flatten()

    def _step(self, *, is_first: bool) -> None:
        """One more piece for each hypothesis; those that have ended go along, and change no more."""
        given = self._ids[:, :1] if is_first else self._ids
        log_probs = self._scorer.log_probs(given.flatten())
        if is_first and self._width > 1:
            log_probs = log_probs.repeat_interleave(self._width, dim=0)
        chosen = self._choose(log_probs, self._sentences)
        gained = log_probs.gather(1, chosen[:, None]).view_as(self._log_probs)
        self._ids = chosen.view_as(self._ids)
        self._log_probs = self._log_probs + gained
        self._nodes = self._tree.grow(self._ids, self._nodes, self._log_probs)
        places = self._scorer.places
        ends = self._is_open & ((self._ids == EOS) | (self._limits <= places)[:, None])
        self._ended = Endings(
            self._log_probs.where(ends, self._ended.log_probs),
            (self._log_probs / self._penalties.at(places)).where(ends, self._ended.scores),
            self._nodes.where(ends, self._ended.nodes),
        )
        self._is_open = self._is_open & ~ends

    def _leave(self) -> Tensor | None:
        """Let sentences that are done leave, if enough are; those that stay [B'], or None where nothing changes."""
        leaving = who_leaves(~self._is_open.any(dim=1))
        if leaving is None:
            return None
        done, kept = leaving
        none = Endings.none(len(done), 0, device=done.device)
        self._end(done, none.best_with(self._ended.select(done), count=self._width), kept=kept)
        self._is_open = self._is_open[kept]
        return kept


class Greedy:
    """The most probable piece of each row, whosever it is."""

    def __call__(self, log_probs: Tensor, sentences: Tensor) -> Tensor:
        """One piece [R] a row of log_probs [R, V]."""
        return most_probable(log_probs)

    def join(self, others: Sequence[Greedy], sentences: Sequence[int]) -> None:
        """Nothing of it belongs to a sentence."""


class Draws:
    """Pieces drawn from the model, by random numbers that belong to a sentence, so that no neighbour changes them."""

    def __init__(self, keys: Mapping[int, str], *, config: DecodingConfig) -> None:
        """`keys` are the names of the sentences, by their numbers."""
        self._config = config
        self._generators = {
            sentence: [Random(f"{config.seed} {key} {number}") for number in range(config.samples)]
            for sentence, key in keys.items()
        }

    def join(self, others: Sequence[Draws], sentences: Sequence[int]) -> None:
        """Draw for the sentences of others, too; these are all that are still open."""
        known = [self._generators, *(other._generators for other in others)]
        self._generators = {number: each[number] for each in known for number in sentences if number in each}

    def __call__(self, log_probs: Tensor, sentences: Tensor) -> Tensor:
        """One piece [R] a row of log_probs [R, V]; `sentences` [B] says whose they are."""
        points = [generator.random() for sentence in sentences.tolist() for generator in self._generators[sentence]]
        values, columns = log_probs / self._config.temperature, None
        if self._config.top_k is not None:
            values, columns = values.topk(min(self._config.top_k, values.size(-1)), dim=-1)
        elif self._config.top_p < 1:
            values, columns = values.sort(dim=-1, descending=True, stable=True)
        weights = values.double().softmax(dim=-1)
        reached = weights.cumsum(dim=-1)
        if self._config.top_p < 1:
            # The fewest of the most probable that together have top_p.
            reached = (weights * (reached - weights < self._config.top_p)).cumsum(dim=-1)
        aims = reached[:, -1] * torch.tensor(points, dtype=torch.float64, device=log_probs.device)
        places = torch.searchsorted(reached, aims[:, None], right=True)
        return (places if columns is None else columns.gather(1, places)).squeeze(1)
