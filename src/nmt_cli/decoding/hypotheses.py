"""What a search finds, and the tree of prefixes that it is read from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nmt_cli.tokenization.tokenizer import EOS


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A translation in pieces: ids without EOS, ln P with that of EOS unless it was cut, and ln P over the penalty.

    `piece_log_probs` are the terms of ln P, one for each id and one for EOS where it is there; `alignment` has for each
    id a place among the source's pieces. An engine leaves out what is not asked for.
    """

    ids: list[int]
    log_prob: float
    score: float
    piece_log_probs: list[float] = field(default_factory=list)
    alignment: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Endings:
    """Log-probability, score and last node of some ended hypotheses a sentence, each [B, C]; score -inf: none."""

    log_probs: Tensor
    scores: Tensor
    nodes: Tensor

    @classmethod
    def none(cls, num_sentences: int, count: int, *, device: torch.device) -> Endings:
        """Room for `count` a sentence, empty."""
        nothing = torch.full((num_sentences, count), -torch.inf, device=device)
        return cls(nothing, nothing, torch.full_like(nothing, -1, dtype=torch.long))

    def best_with(self, others: Endings, *, count: int) -> Endings:
        """The `count` best of both by score, best first; of equal ones those that stood here, then others in order."""
        scores, order = torch.cat([self.scores, others.scores], dim=1).sort(dim=1, descending=True, stable=True)
        order = order[:, :count]
        return Endings(
            torch.cat([self.log_probs, others.log_probs], dim=1).gather(1, order),
            scores[:, :count],
            torch.cat([self.nodes, others.nodes], dim=1).gather(1, order),
        )

    def select(self, sentences: Tensor) -> Endings:
        """Those of some sentences [B']."""
        return Endings(self.log_probs[sentences], self.scores[sentences], self.nodes[sentences])


class Tree:
    """The prefixes of a search: a node is a piece, ln P of the prefix, and the node before; -1 precedes the first.

    It stays on the device until the end, so that a search never waits for it.
    """

    def __init__(self) -> None:
        self._size = 0
        self._steps: list[tuple[Tensor, Tensor, Tensor]] = []
        self._ended: list[tuple[Tensor, Endings]] = []

    def grow(self, pieces: Tensor, parents: Tensor, log_probs: Tensor) -> Tensor:
        """The new nodes, in the shape of the three."""
        start, self._size = self._size, self._size + pieces.numel()
        self._steps.append((pieces.flatten(), parents.flatten(), log_probs.flatten()))
        return torch.arange(start, self._size, device=pieces.device).view_as(pieces)

    def end(self, sentences: Tensor, endings: Endings) -> None:
        """Note how the sentences [B'] ended, [B', C]."""
        self._ended.append((sentences, endings))

    def read(self, num_sentences: int) -> list[list[Hypothesis]]:
        """The hypotheses of each sentence as they were noted."""
        pieces, parents, totals = (torch.cat(column).tolist() for column in zip(*self._steps, strict=True))
        found: list[list[Hypothesis]] = [[] for _ in range(num_sentences)]
        for sentences, endings in self._ended:
            columns = (sentences, endings.nodes, endings.log_probs, endings.scores)
            for sentence, *ranked in zip(*(column.tolist() for column in columns), strict=True):
                found[sentence] = [
                    _hypothesis(node, log_prob, score, pieces=pieces, parents=parents, totals=totals)
                    for node, log_prob, score in zip(*ranked, strict=True)
                    if score != -math.inf
                ]
        return found


def _hypothesis(
    node: int, log_prob: float, score: float, *, pieces: list[int], parents: list[int], totals: list[float]
) -> Hypothesis:
    """The hypothesis that ended at `node`, whose piece is EOS unless it was cut there."""
    ids: list[int] = []
    reached: list[float] = []
    while node >= 0:
        ids.append(pieces[node])
        reached.append(totals[node])
        node = parents[node]
    ids, reached = ids[::-1], reached[::-1]
    terms = [total - earlier for total, earlier in zip(reached, [0.0, *reached], strict=False)]
    return Hypothesis(ids[:-1] if ids[-1:] == [EOS] else ids, log_prob, score, terms)
