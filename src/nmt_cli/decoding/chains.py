"""Hypotheses that grow one piece at a time without a choice between them: greedy search, and draws from the model.

Shapes: B sentences still open, W hypotheses a sentence, R = B * W rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import torch
from torch import Tensor

from nmt_cli.decoding.hypotheses import Endings, Hypothesis, Tree
from nmt_cli.decoding.largest import most_probable
from nmt_cli.decoding.leaving import who_leaves
from nmt_cli.decoding.penalties import length_penalty
from nmt_cli.decoding.scorer import Scorer
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import BOS, EOS

# From log-probabilities [R, V] and the numbers of the sentences still open [B], the next pieces [R].
Choice = Callable[[Tensor, Tensor], Tensor]


class Chains:
    """`width` hypotheses a sentence, each of which goes on with what `choose` says until EOS or the sentence's limit.

    A sentence leaves the batch when all its hypotheses have ended.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        choose: Choice,
        width: int,
        limits: Sequence[int],
        config: DecodingConfig,
        device: torch.device,
    ) -> None:
        self._scorer, self._choose, self._width, self._config = scorer, choose, width, config
        self._tree = Tree()
        self._num_sentences = len(limits)
        self._sentences = torch.arange(len(limits), device=device)
        self._limits = torch.tensor(limits, device=device)
        self._ids = torch.full((len(limits), width), BOS, device=device)
        self._nodes = torch.full_like(self._ids, -1)
        self._log_probs = torch.zeros(len(limits), width, device=device)
        self._is_open = torch.ones_like(self._ids, dtype=torch.bool)
        self._ended = Endings.none(len(limits), width, device=device)

    def search(self) -> list[list[Hypothesis]]:
        """The hypotheses of each sentence, best first by score."""
        while True:
            self._step()
            kept = self._leave()
            if kept is not None and len(kept) == 0:
                return self._tree.read(self._num_sentences)
            if kept is not None or self._scorer.step == 1:
                self._scorer.select(rows=self._rows(kept), sentences=kept)

    def _rows(self, kept: Tensor | None) -> Tensor:
        """Which rows of the scorer's go on: after the first step each is `width` rows."""
        before = 1 if self._scorer.step == 1 else self._width
        sentences = torch.arange(len(self._sentences), device=self._ids.device) if kept is None else kept
        within = torch.arange(self._width, device=sentences.device) % before
        return (sentences[:, None] * before + within).flatten()

    def _step(self) -> None:
        """One more piece for each hypothesis; those that have ended go along, and change no more."""
        given = self._ids[:, :1] if self._scorer.step == 0 else self._ids
        log_probs = self._scorer.log_probs(given.flatten())
        if self._scorer.step == 1 and self._width > 1:
            log_probs = log_probs.repeat_interleave(self._width, dim=0)
        chosen = self._choose(log_probs, self._sentences)
        gained = log_probs.gather(1, chosen[:, None]).view_as(self._log_probs)
        self._ids = chosen.view_as(self._ids)
        self._log_probs = self._log_probs + gained
        self._nodes = self._tree.grow(self._ids, self._nodes, self._log_probs)
        ends = self._is_open & ((self._ids == EOS) | (self._limits <= self._scorer.step)[:, None])
        self._ended = Endings(
            self._log_probs.where(ends, self._ended.log_probs),
            (self._log_probs / length_penalty(self._scorer.step, config=self._config)).where(ends, self._ended.scores),
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


def greedy(log_probs: Tensor, sentences: Tensor) -> Tensor:
    """The most probable piece of each row, whosever it is."""
    return most_probable(log_probs)


class Draws:
    """Pieces drawn from the model, by random numbers that belong to a sentence, so that no neighbour changes them."""

    def __init__(self, keys: Sequence[str], *, config: DecodingConfig) -> None:
        self._config = config
        self._generators = [
            [Random(f"{config.seed} {key} {number}") for number in range(config.samples)] for key in keys
        ]

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
