"""Input and output of a search: source sentences, hypotheses, the tree of their prefixes, length penalties."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, assert_never

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmt_cli.errors import ModelError
from nmt_cli.recipe.directions import Direction
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import BOS, EOS, Tokenizer

NodeArray = npt.NDArray[np.int64]


class SymbolIds(NamedTuple):
    """The symbols of a direction: what stands before the pieces of a source, and before those of its translation."""

    source: tuple[int, ...] = ()
    target: tuple[int, ...] = ()

    @classmethod
    def of(cls, direction: Direction, *, source: Tokenizer, target: Tokenizer) -> Self:
        """The symbols of a direction in the vocabularies of a model; DataError if one is missing."""
        return cls(source.symbol_ids(direction.source_symbols), target.symbol_ids(direction.target_symbols))


NO_SYMBOLS = SymbolIds()


@dataclass(frozen=True, slots=True)
class SourceSentence:
    """A sentence to translate: its pieces without EOS, the first pieces of its translation, and a key for sampling.

    Its symbols are no part of these pieces, nor of the translation.
    """

    ids: Sequence[int]
    prefix: Sequence[int] = ()
    key: str = ""
    symbols: SymbolIds = NO_SYMBOLS

    @property
    def encoder_ids(self) -> list[int]:
        """What the encoder reads: symbols, pieces and EOS."""
        return [*self.symbols.source, *self.ids, EOS]

    @property
    def start_ids(self) -> list[int]:
        """What the decoder reads before the first piece of the translation: BOS and symbols."""
        return [BOS, *self.symbols.target]

    @property
    def length(self) -> int:
        """The pieces of both sides that a search begins with; 0 if there is nothing to translate."""
        return len(self.ids) + len(self.prefix) if self.ids else 0


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A translation in pieces: ids without EOS, its log-probability, and its score.

    The log-probability includes EOS unless the hypothesis was cut. The score is the log-probability of what follows a
    given prefix, divided by the length penalty. `piece_log_probs` are the terms of the log-probability, one per id and
    one for EOS. `alignment` has pairs of positions, of a source piece and of an id; it is empty if not asked for.
    """

    ids: list[int]
    log_prob: float
    score: float
    piece_log_probs: list[float] = field(default_factory=list)
    alignment: list[tuple[int, int]] = field(default_factory=list)

    def with_prefix(self, log_probs: Sequence[float]) -> Hypothesis:
        """The hypothesis of a search in which the prefix was certain, with the prefix's log-probabilities."""
        piece_log_probs = [*log_probs, *self.piece_log_probs[len(log_probs) :]]
        return replace(self, log_prob=self.log_prob + sum(log_probs), piece_log_probs=piece_log_probs)


EMPTY_HYPOTHESIS = Hypothesis([], 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Details:
    """The optional parts of a hypothesis: log-probabilities of its pieces, and its alignment to the source."""

    piece_log_probs: bool
    alignment: bool


class FinishedHypotheses(NamedTuple):
    """Log-probabilities, scores and last nodes of finished hypotheses, each [B, F]; a score of -inf marks a gap."""

    log_probs: Tensor
    scores: Tensor
    nodes: Tensor

    @classmethod
    def empty(cls, num_sentences: int, count: int, *, device: torch.device) -> FinishedHypotheses:
        """`count` gaps for each sentence."""
        nothing = torch.full((num_sentences, count), -torch.inf, device=device)
        return cls(nothing, nothing.clone(), torch.full_like(nothing, -1, dtype=torch.long))

    def best_of_both(self, others: FinishedHypotheses, *, count: int) -> FinishedHypotheses:
        """The `count` best of both by score, best first; ties keep their order, own ones first."""
        scores, order = torch.cat([self.scores, others.scores], dim=1).sort(dim=1, descending=True, stable=True)
        order = order[:, :count]
        return FinishedHypotheses(
            torch.cat([self.log_probs, others.log_probs], dim=1).gather(1, order),
            scores[:, :count],
            torch.cat([self.nodes, others.nodes], dim=1).gather(1, order),
        )

    def select(self, sentences: Tensor) -> FinishedHypotheses:
        """The hypotheses of some sentences [B']."""
        return FinishedHypotheses(*(column[sentences] for column in self))


class HypothesisTree:
    """The prefixes of a search: a node is a token, the prefix's log-probability, and the parent node or -1.

    The tree stays on the device until the end, so that a search never waits for it.
    """

    def __init__(self) -> None:
        # The number of nodes, which is the number of the next node.
        self.size = 0
        self._steps: list[tuple[Tensor, Tensor, Tensor]] = []
        self._finished: list[tuple[Tensor, FinishedHypotheses]] = []

    def grow(self, tokens: Tensor, parents: Tensor, log_probs: Tensor) -> Tensor:
        """Add nodes; returns their numbers, in the shape of the arguments."""
        start, self.size = self.size, self.size + tokens.numel()
        self._steps.append((tokens.flatten(), parents.flatten(), log_probs.flatten()))
        return torch.arange(start, self.size, device=tokens.device).view_as(tokens)

    def add_finished(self, sentences: Tensor, finished: FinishedHypotheses) -> None:
        """Add the finished hypotheses [B', F] of the sentences [B']."""
        self._finished.append((sentences, finished))

    def results(self) -> list[list[Hypothesis]]:
        """The hypotheses of each sentence, in the order of their numbers; all sentences have been added.

        Raises ModelError if the model's outputs are not finite.
        """
        sentences = torch.cat([numbers for numbers, _ in self._finished])
        columns = zip(*(hypotheses for _, hypotheses in self._finished), strict=True)
        log_probs, scores, nodes = (torch.cat(column)[sentences.argsort()].cpu() for column in columns)
        if not scores[:, 0].isfinite().all():
            raise not_finite_error()
        hypotheses = self._hypotheses(nodes.flatten().numpy(), log_probs.flatten().tolist(), scores.flatten().tolist())
        ranked = zip(*[hypotheses] * nodes.size(1), strict=True)
        return [[hypothesis for hypothesis in of_sentence if hypothesis.score != -math.inf] for of_sentence in ranked]

    def _hypotheses(self, nodes: NodeArray, log_probs: list[float], scores: list[float]) -> Iterator[Hypothesis]:
        """The hypotheses that end at the nodes [M]; all are followed back to their beginnings at once.

        Shapes: M hypotheses, L the length of the longest one plus 1.
        """
        columns = zip(*self._steps, strict=True)
        tokens, parents, prefix_log_probs = (torch.cat(column).cpu().numpy() for column in columns)
        path: list[NodeArray] = []
        while (nodes >= 0).any():
            path.append(nodes)
            nodes = np.where(nodes >= 0, parents[nodes], -1)
        # From before the first token (all -1, log-probability 0) to the last; shorter ones are empty at the start.
        nodes_LM = np.stack([nodes, *reversed(path)])
        prefix_log_probs_LM = np.where(nodes_LM >= 0, prefix_log_probs[nodes_LM].astype(np.float64), 0.0)
        lengths = (nodes_LM >= 0).sum(axis=0).tolist()
        token_rows = tokens[nodes_LM[1:]].T.tolist()
        log_prob_rows = np.diff(prefix_log_probs_LM, axis=0).T.tolist()
        for index, length in enumerate(lengths):
            first = len(token_rows[index]) - length
            ids = token_rows[index][first:]
            if ids[-1:] == [EOS]:  # unless the hypothesis was cut
                ids.pop()
            yield Hypothesis(ids, log_probs[index], scores[index], log_prob_rows[index][first:])


def not_finite_error() -> ModelError:
    """The error of a model whose outputs are NaN."""
    message = "the model's outputs are not finite: its training diverged, or its weights are damaged"
    return ModelError(message, hint="take another model, or an earlier checkpoint of its run")


def length_penalty(length: int, *, config: DecodingConfig) -> float:
    """The divisor of a log-probability: ((5 + length) / 6) ** alpha in the `gnmt` form, length ** alpha, or 1.

    Wu et al. 2016, arXiv:1609.08144, section 7, without the coverage term. `length` is at least 1 and
    counts EOS, but not BOS.
    """
    match config.length_penalty_form:
        case "gnmt":
            return float(((5 + length) / 6) ** config.length_penalty)
        case "length":
            return float(length**config.length_penalty)
        case "none":
            return 1.0
        case other:
            assert_never(other)


def max_output_tokens(source: SourceSentence, *, config: DecodingConfig, max_positions: int) -> int:
    """The maximum number of output tokens: the source's pieces, without EOS, plus `max_extra_tokens`.

    A hypothesis with fewer pieces ended in EOS, which counts as a token. A hypothesis with exactly so many pieces was
    cut and has no EOS. The limit leaves room for a token after the prefix, and is at most the positions of the model.
    """
    positions = max_positions - len(source.symbols.target)
    return min(max(len(source.ids) + config.max_extra_tokens, len(source.prefix) + 1), positions)
