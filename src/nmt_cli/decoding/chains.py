"""Hypotheses that grow one piece at a time without a choice between them: greedy search, and draws from the model.

Shapes: B sentences still open, W hypotheses a sentence, R = B * W rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol, Self

import torch
from torch import Tensor

from nmt_cli.decoding.hypotheses import Endings, Hypothesis, Tree, moved
from nmt_cli.decoding.largest import most_probable
from nmt_cli.decoding.leaving import who_leaves
from nmt_cli.decoding.penalties import Penalties
from nmt_cli.decoding.scorer import Scorer
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import BOS, EOS


class Choice(Protocol):
    """Which piece comes next."""

    def __call__(self, log_probs: Tensor, sentences: Tensor) -> Tensor:
        """From log_probs [R, V] and the numbers of the sentences still open [B], the next pieces [R]."""

    def join(self, others: Sequence[Self], sentences: Sequence[int]) -> None:
        """Choose for the sentences of others, too; these are all that are still open."""


class Chains:
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
        self._scorer, self._choose, self._width = scorer, choose, config.num_candidates
        self._tree = Tree()
        self._sentences = torch.tensor(list(limits), device=device)
        self._limits = torch.tensor(list(limits.values()), device=device)
        self._penalties = Penalties(max(limits.values()), config=config, device=device)
        self._is_begun = False
        self._ids = torch.full((len(limits), self._width), BOS, device=device)
        self._nodes = torch.full_like(self._ids, -1)
        self._log_probs = torch.zeros(len(limits), self._width, device=device)
        self._is_open = torch.ones_like(self._ids, dtype=torch.bool)
        self._ended = Endings.none(len(limits), self._width, device=device)

    @property
    def num_open(self) -> int:
        """Sentences that are still searched, and those that are done and have not left yet."""
        return len(self._sentences)

    @property
    def open_sentences(self) -> list[int]:
        """Their numbers."""
        numbers: list[int] = self._sentences.tolist()
        return numbers

    @property
    def is_joinable(self) -> bool:
        """Whether each sentence has all its hypotheses: after one step."""
        return self._is_begun

    def run(self, *, down_to: int) -> None:
        """Go on until no more than `down_to` sentences are open."""
        while self.num_open > down_to:
            self.advance()

    def advance(self) -> None:
        """One more piece for each hypothesis; sentences that are done leave, if enough are."""
        is_first, self._is_begun = not self._is_begun, True
        self._step(is_first=is_first)
        kept = self._leave()
        if self.num_open and (is_first or kept is not None):
            self._scorer.select(rows=self._rows(kept, before=1 if is_first else self._width), sentences=kept)

    def join(self, others: Sequence[Chains]) -> None:
        """Take the sentences of others with the same settings in; all are joinable, and the others are used up."""
        searches = [self, *others]
        for one in searches:
            one._nodes, one._ended.nodes = one._tree.prune(one._nodes, one._ended.nodes)
        for other in others:
            offset = self._tree.join(other._tree)
            other._nodes, other._ended = moved(other._nodes, offset), other._ended.moved(offset)
        self._choose.join(
            [other._choose for other in others], [number for one in searches for number in one.open_sentences]
        )
        self._scorer.join([other._scorer for other in others])
        self._sentences = torch.cat([one._sentences for one in searches])
        self._limits = torch.cat([one._limits for one in searches])
        self._ids = torch.cat([one._ids for one in searches])
        self._nodes = torch.cat([one._nodes for one in searches])
        self._log_probs = torch.cat([one._log_probs for one in searches])
        self._is_open = torch.cat([one._is_open for one in searches])
        self._ended = Endings.joined([one._ended for one in searches])
        self._penalties = max((one._penalties for one in searches), key=lambda one: one.longest)

    def read(self) -> dict[int, list[Hypothesis]]:
        """The hypotheses, best first, of each sentence that was done since they were last read, by its number."""
        return self._tree.read()

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
        self._tree.end(self._sentences[done], none.best_with(self._ended.select(done), count=self._width))
        self._sentences, self._limits = self._sentences[kept], self._limits[kept]
        self._ids, self._log_probs, self._nodes = self._ids[kept], self._log_probs[kept], self._nodes[kept]
        self._is_open, self._ended = self._is_open[kept], self._ended.select(kept)
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
