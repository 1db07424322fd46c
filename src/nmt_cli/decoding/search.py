"""Greedy and beam search over a batch of sources, with cached keys and values (section 6.1 of the paper).

Shapes: B sentences still searched, W open hypotheses a sentence, R = B * W rows, C candidates a sentence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt_cli.decoding.penalties import length_penalty, output_limit
from nmt_cli.model.cache import DecoderCache
from nmt_cli.model.packing import pack
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK

# UNK is no word: with byte pieces nothing needs it, and without them it says nothing. The probabilities of what is left
# are not renormalised, so that they are those of forced scoring.
_NEVER_GENERATED = (PAD, UNK, BOS)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A translation in pieces: ids without EOS, ln P with that of EOS unless it was cut, and ln P over the penalty."""

    ids: list[int]
    log_prob: float
    score: float


def search(
    model: Transformer, rows: Sequence[Sequence[int]], *, config: DecodingConfig, nbest: int, device: torch.device
) -> list[list[Hypothesis]]:
    """For each source its best hypotheses by score, at most `nbest`, best first; beam 1 is greedy search.

    `rows` are the sources' pieces, without EOS, all searched at once; the model is in evaluation mode, on `device`.
    A hypothesis that reaches its sentence's limit is cut there and takes part without EOS. Of equal scores the one
    found first is better, then the one with the smaller piece id. Statistics are float32, whatever the precision.
    """
    if model.training:
        raise ValueError("search needs model.eval(): dropout would change the translations")
    if not 1 <= nbest <= config.beam:
        raise ValueError(f"nbest must be from 1 to the beam of {config.beam}, not {nbest}")
    if any(row and row[-1] == EOS for row in rows):
        raise ValueError("search adds EOS itself: give the rows without it")
    limits = [output_limit(len(row), config=config, max_positions=model.config.max_positions) for row in rows]
    with torch.inference_mode():
        source = pack([[*row, EOS] for row in rows], device=device)
        cache = model.start(model.encode(source), source)
        if config.beam == 1:
            return _search_greedily(model, cache, limits=limits, config=config, device=device)
        return _Beam(model, cache, limits=limits, config=config, nbest=nbest, device=device).search()


def _search_greedily(
    model: Transformer, cache: DecoderCache, *, limits: Sequence[int], config: DecodingConfig, device: torch.device
) -> list[list[Hypothesis]]:
    """The most probable piece at each step, [B] rows, until it is EOS or the limit is reached."""
    sentences = torch.arange(len(limits), device=device)
    open_limits = torch.tensor(limits, device=device)
    ids = torch.full_like(sentences, BOS)
    nodes = torch.full_like(sentences, -1)
    log_probs = torch.zeros(len(limits), device=device)
    tree = _Tree()
    found = [Hypothesis([], 0.0, 0.0)] * len(limits)
    while len(sentences) > 0:
        best, ids = _log_probs(model.logits(model.step(ids, cache))).max(dim=-1)
        log_probs = log_probs + best
        last_nodes, nodes = nodes, tree.grow(ids, nodes)
        is_end = ids == EOS
        is_done = is_end | (open_limits <= cache.step)
        if not bool(is_done.any()):
            continue
        scores = log_probs / length_penalty(cache.step, config=config)
        columns = (sentences, last_nodes.where(is_end, nodes), log_probs, scores)
        for sentence, node, log_prob, score in zip(*(column[is_done].tolist() for column in columns), strict=True):
            found[sentence] = Hypothesis(tree.path(node), log_prob, score)
        kept = (~is_done).nonzero().squeeze(1)
        sentences, open_limits = sentences[kept], open_limits[kept]
        ids, nodes, log_probs = ids[kept], nodes[kept], log_probs[kept]
        cache.select(rows=kept, sentences=kept)
    return [[hypothesis] for hypothesis in found]


@dataclass(slots=True)
class _Hypotheses:
    """Log-probability, score and last node of some hypotheses a sentence, each [B, C]; score -inf where none is."""

    log_probs: Tensor
    scores: Tensor
    nodes: Tensor

    def best_with(self, others: _Hypotheses, *, count: int) -> _Hypotheses:
        """The `count` best of both by score, best first; of equal ones those that stood here, then others in order."""
        scores, order = torch.cat([self.scores, others.scores], dim=1).sort(dim=1, descending=True, stable=True)
        order = order[:, :count]
        return _Hypotheses(
            torch.cat([self.log_probs, others.log_probs], dim=1).gather(1, order),
            scores[:, :count],
            torch.cat([self.nodes, others.nodes], dim=1).gather(1, order),
        )

    def select(self, sentences: Tensor) -> _Hypotheses:
        """Those of some sentences [B']."""
        return _Hypotheses(self.log_probs[sentences], self.scores[sentences], self.nodes[sentences])


class _Tree:
    """The prefixes of a search as a tree: a node is a piece and the node before it; -1 comes before the first piece."""

    def __init__(self) -> None:
        self._pieces: list[int] = []
        self._parents: list[int] = []

    def grow(self, pieces: Tensor, parents: Tensor) -> Tensor:
        """The new nodes, in the shape of `pieces` and of `parents`."""
        start = len(self._pieces)
        self._pieces += pieces.flatten().tolist()
        self._parents += parents.flatten().tolist()
        return torch.arange(start, len(self._pieces), device=pieces.device).view_as(pieces)

    def path(self, node: int) -> list[int]:
        """The pieces from the first one to that of `node`."""
        pieces = []
        while node >= 0:
            pieces.append(self._pieces[node])
            node = self._parents[node]
        return pieces[::-1]


class _Beam:
    """Beam search: of 2 W candidates a step, those that end are finished, and the W best others stay open.

    So W stay open whatever ends. A sentence leaves the batch when its limit is reached, or when nothing open can beat
    its n-th best finished score: that is at least the best open log-probability over the penalty at the limit.
    """

    def __init__(
        self,
        model: Transformer,
        cache: DecoderCache,
        *,
        limits: Sequence[int],
        config: DecodingConfig,
        nbest: int,
        device: torch.device,
    ) -> None:
        self.model = model
        self.cache = cache
        self.config = config
        self.nbest = nbest
        self.tree = _Tree()
        self.found: list[list[Hypothesis]] = [[] for _ in limits]
        self.sentences = torch.arange(len(limits), device=device)
        self.limits = torch.tensor(limits, device=device)
        self.last_penalties = torch.tensor([length_penalty(limit, config=config) for limit in limits], device=device)
        # One open hypothesis at first: BOS.
        self.ids = torch.full((len(limits), 1), BOS, device=device)
        self.log_probs = torch.zeros(len(limits), 1, device=device)
        self.nodes = torch.full((len(limits), 1), -1, device=device)
        none = torch.full((len(limits), nbest), -torch.inf, device=device)
        self.finished = _Hypotheses(none, none, torch.full_like(none, -1, dtype=torch.long))

    def search(self) -> list[list[Hypothesis]]:
        """The best hypotheses of each sentence."""
        while len(self.sentences) > 0:
            rows = self._step()
            is_done = self._is_done()
            kept = None
            if bool(is_done.any()):
                self._collect(is_done.nonzero().squeeze(1))
                kept = (~is_done).nonzero().squeeze(1)
                rows = rows[kept]
                self._keep(kept)
            if rows.numel() > 0:
                self.cache.select(rows=rows.flatten(), sentences=kept)
        return self.found

    def _step(self) -> Tensor:
        """One more piece for each open hypothesis; returns the rows [B, W] that the new ones continue."""
        width = self.ids.size(1)
        logits = self.model.logits(self.model.step(self.ids.flatten(), self.cache))
        allowed = logits.size(-1) - len(_NEVER_GENERATED)
        log_probs, ids, hypotheses = self._candidates(_log_probs(logits), count=min(2 * self.config.beam, allowed))
        is_end = ids == EOS
        before = self.nodes.gather(1, hypotheses)
        penalty = length_penalty(self.cache.step, config=self.config)
        self._finish(_Hypotheses(log_probs, (log_probs / penalty).masked_fill(~is_end, -torch.inf), before))
        # Of each open hypothesis at most one candidate ends, so this many others are among them.
        open_width = min(self.config.beam, ids.size(1) - width)
        is_open_first = is_end.byte().argsort(dim=1, stable=True)[:, :open_width]
        self.ids = ids.gather(1, is_open_first)
        self.log_probs = log_probs.gather(1, is_open_first)
        self.nodes = self.tree.grow(self.ids, before.gather(1, is_open_first))
        is_cut = (self.limits <= self.cache.step)[:, None]
        if bool(is_cut.any()):
            self._finish(_Hypotheses(self.log_probs, (self.log_probs / penalty).where(is_cut, -torch.inf), self.nodes))
        starts = torch.arange(len(ids), device=ids.device)[:, None] * width
        return starts + hypotheses.gather(1, is_open_first)

    def _candidates(self, log_probs: Tensor, *, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """From log_probs [R, V] the best continuations: log-probabilities, pieces, and hypotheses continued, [B, C]."""
        num_sentences, width = self.ids.shape
        values, ids = _first_largest(log_probs, count=count)
        totals = (self.log_probs[:, :, None] + values.view(num_sentences, width, count)).flatten(1)
        totals, order = totals.sort(dim=1, descending=True, stable=True)
        totals, order = totals[:, : 2 * self.config.beam], order[:, : 2 * self.config.beam]
        return totals, ids.view(num_sentences, -1).gather(1, order), order // count

    def _finish(self, ended: _Hypotheses) -> None:
        self.finished = self.finished.best_with(ended, count=self.nbest)

    def _is_done(self) -> Tensor:
        """Which sentences [B] no open hypothesis can change any more."""
        is_decided = self.finished.scores[:, -1] >= self.log_probs[:, 0] / self.last_penalties
        return is_decided | (self.limits <= self.cache.step)

    def _collect(self, done: Tensor) -> None:
        """Write down the finished hypotheses of the sentences `done`."""
        ended = self.finished.select(done)
        columns = (self.sentences[done], ended.nodes, ended.log_probs, ended.scores)
        for sentence, nodes, log_probs, scores in zip(*(column.tolist() for column in columns), strict=True):
            self.found[sentence] = [
                Hypothesis(self.tree.path(node), log_prob, score)
                for node, log_prob, score in zip(nodes, log_probs, scores, strict=True)
                if score != -torch.inf
            ]

    def _keep(self, kept: Tensor) -> None:
        """Go on with the sentences `kept` only."""
        self.sentences, self.limits = self.sentences[kept], self.limits[kept]
        self.last_penalties = self.last_penalties[kept]
        self.ids, self.log_probs, self.nodes = self.ids[kept], self.log_probs[kept], self.nodes[kept]
        self.finished = self.finished.select(kept)


def _log_probs(logits: Tensor) -> Tensor:
    """Natural log-probabilities in float32 of logits [R, V], -inf for what is never generated."""
    log_probs = logits.log_softmax(dim=-1, dtype=torch.float32)
    log_probs[:, _NEVER_GENERATED] = -torch.inf
    return log_probs


def _first_largest(x: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of each row of x [R, V], count < V, and their columns, in the order of the columns.

    Of equal values the first columns are taken: torch.topk leaves that open, and logits in bf16 are often equal.
    """
    values, columns = x.topk(count + 1, dim=-1)
    tied = (values[:, count - 1] == values[:, count]).nonzero().squeeze(1)
    columns = columns[:, :count]
    if len(tied) > 0:
        least = values[tied, count][:, None]
        is_larger, is_equal = x[tied] > least, x[tied] == least
        room = count - is_larger.sum(dim=-1, keepdim=True)
        is_taken = is_larger | (is_equal & (is_equal.cumsum(dim=-1) <= room))
        columns[tied] = is_taken.nonzero()[:, 1].view(-1, count)
    columns = columns.sort(dim=-1).values
    return x.gather(1, columns), columns
