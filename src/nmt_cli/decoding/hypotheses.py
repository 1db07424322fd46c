"""What a search finds, and the tree of prefixes that it is read from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmt_cli.tokenization.tokenizer import EOS

Numbers = npt.NDArray[np.int64]


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

    def copy_(self, others: Endings) -> None:
        """Take the others' numbers, in the same shape, into the memory of one's own."""
        self.log_probs.copy_(others.log_probs)
        self.scores.copy_(others.scores)
        self.nodes.copy_(others.nodes)

    def select(self, sentences: Tensor) -> Endings:
        """Those of some sentences [B']."""
        return Endings(self.log_probs[sentences], self.scores[sentences], self.nodes[sentences])

    @staticmethod
    def joined(parts: Sequence[Endings]) -> Endings:
        """Those of the sentences of all, one after the other."""
        return Endings(*map(torch.cat, zip(*((one.log_probs, one.scores, one.nodes) for one in parts), strict=True)))


class Tree:
    """The prefixes of a search: a node is a piece, ln P of the prefix, and the node before; -1 precedes the first.

    It stays on the device until the end, so that a search never waits for it.
    """

    def __init__(self) -> None:
        self._size = 0
        self._steps: list[tuple[Tensor, Tensor, Tensor]] = []
        self._ended: list[tuple[Tensor, Endings]] = []

    @property
    def size(self) -> int:
        """How many nodes there are, and the number of the next."""
        return self._size

    def grow(self, pieces: Tensor, parents: Tensor, log_probs: Tensor) -> Tensor:
        """The new nodes, in the shape of the three."""
        start, self._size = self._size, self._size + pieces.numel()
        self._steps.append((pieces.flatten(), parents.flatten(), log_probs.flatten()))
        return torch.arange(start, self._size, device=pieces.device).view_as(pieces)

    def end(self, sentences: Tensor, endings: Endings) -> None:
        """Note how the sentences [B'] ended, [B', C]."""
        self._ended.append((sentences, endings))

    def join(self, other: Tree, *nodes: Tensor) -> list[Tensor]:
        """Take all of another tree in; returns the new numbers of these nodes of it."""
        offset, self._size = self._size, self._size + other._size
        self._steps += [(pieces, _moved(parents, offset), totals) for pieces, parents, totals in other._steps]
        return [_moved(each, offset) for each in nodes]

    def prune(self, *nodes: Tensor) -> list[Tensor]:
        """Keep these nodes and those before them only, once all that was noted is read; returns their new numbers.

        The host waits for the device.
        """
        if self._ended:
            raise ValueError("read what was noted first")
        pieces, parents, totals = (torch.cat(column) for column in zip(*self._steps, strict=True))
        is_kept = torch.zeros_like(parents, dtype=torch.bool)
        reached = torch.cat([each.flatten() for each in nodes])
        while len(reached := reached[reached >= 0].unique()):
            is_kept[reached] = True
            reached = parents[reached]
        numbers = is_kept.cumsum(0) - 1
        kept = (pieces[is_kept], _renumbered(parents[is_kept], numbers), totals[is_kept])
        self._size, self._steps = len(kept[0]), [kept]
        return [_renumbered(each, numbers) for each in nodes]

    def read(self) -> dict[int, list[Hypothesis]]:
        """The hypotheses of each sentence that was noted since they were last read, as they were noted."""
        found: dict[int, list[Hypothesis]] = {}
        if not self._ended:
            return found
        ended, self._ended = self._ended, []
        sentences, nodes, log_probs, scores = (
            torch.cat(column).cpu()
            for column in zip(*((at, one.nodes, one.log_probs, one.scores) for at, one in ended), strict=True)
        )
        hypotheses = self._hypotheses(nodes.flatten().numpy(), log_probs.flatten().tolist(), scores.flatten().tolist())
        for sentence in sentences.tolist():
            ranked = [next(hypotheses) for _ in range(nodes.size(1))]
            found[sentence] = [one for one in ranked if one.score != -math.inf]
        return found

    def _hypotheses(self, nodes: Numbers, log_probs: list[float], scores: list[float]) -> Iterator[Hypothesis]:
        """What ended at each of the nodes [M], all of them followed back at once."""
        pieces, parents, totals = (torch.cat(column).cpu().numpy() for column in zip(*self._steps, strict=True))
        path: list[Numbers] = []
        while (nodes >= 0).any():
            path.append(nodes)
            nodes = np.where(nodes >= 0, parents[nodes], -1)
        # From the first piece to the last, with places before the first where others are longer: [length, M].
        path_LM = np.stack([nodes, *reversed(path)])
        reached_LM = np.where(path_LM >= 0, totals[path_LM].astype(np.float64), 0.0)
        columns = (pieces[path_LM[1:]].T.tolist(), np.diff(reached_LM, axis=0).T.tolist(), log_probs, scores)
        for length, row, terms, log_prob, score in zip((path_LM >= 0).sum(axis=0).tolist(), *columns, strict=True):
            first = len(row) - length
            # The last piece is EOS unless the hypothesis was cut there.
            ids = row[first:-1] if row[-1:] == [EOS] else row[first:]
            yield Hypothesis(ids, log_prob, score, terms[first:])


def _moved(nodes: Tensor, offset: int) -> Tensor:
    """The nodes' numbers raised by `offset`, -1 for none as it is."""
    return nodes + offset * (nodes >= 0)


def _renumbered(nodes: Tensor, numbers: Tensor) -> Tensor:
    return numbers[nodes.clamp(min=0)].where(nodes >= 0, -1)
