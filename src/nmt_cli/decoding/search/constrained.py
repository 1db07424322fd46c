"""Beam search for translations that must have certain terms, by dynamic beam allocation.

Post and Vilar 2018, arXiv:1804.06609, vectorised as in Hu et al. 2019, N19-1090. A hypothesis belongs to a bank: the
number of pieces of its terms that it has. The open hypotheses are the best of each bank, then the second best of each,
and so on. A translation ends when it has all its terms.

Shapes: B sentences, W open hypotheses per sentence, R = B * W rows, V vocabulary, T terms, N nodes of the trie of a
sentence's terms, A pieces in it, C = A + W continuations of a hypothesis, M masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from nmt_cli.decoding.search.active_search import ActiveSearch
from nmt_cli.decoding.search.beam import finish
from nmt_cli.decoding.search.ensemble import Ensemble
from nmt_cli.decoding.search.hypotheses import SourceSentence, Term
from nmt_cli.decoding.search.topk import topk_continuations
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import EOS, PAD

_MIN_WIDTH = 6  # of a beam with terms, however narrow the beam without them is
_MOST_DOUBLINGS = 2  # of its width, for sentences with many terms


def width_of(source: SourceSentence, *, beam: int) -> int:
    """The open hypotheses for the terms of a source: half as many again as the beam, or one for two banks."""
    narrow = max(_MIN_WIDTH, beam + beam // 2)
    banks = 1 + sum(map(_size, source.terms))
    return narrow << min(_MOST_DOUBLINGS, (-(-banks // (2 * narrow)) - 1).bit_length())


def fitting_terms(source: SourceSentence, *, limit: int) -> tuple[Term, ...]:
    """The first terms of a source that fit together into a translation of `limit` pieces."""
    room, fitting = limit - len(source.prefix), []
    for term in source.terms:
        shortest = min(map(len, term.alternatives), default=limit + 1)
        if shortest <= room:
            room -= shortest
            fitting.append(Term(tuple(ids for ids in term.alternatives if len(ids) <= limit), term.may_follow))
    return tuple(fitting)


class TermTries:
    """The terms of each sentence as a trie of pieces, in tensors.

    `pieces` [B, A] are EOS and all pieces of the terms. `next_nodes` [B, N, A] is the node after a piece: the longest
    beginning of an alternative with which a hypothesis then ends (Aho and Corasick 1975); 0 is the root. `ends` and
    `leads` [B, N, T] say whether a term ends at a node, and whether it ends there or below. `depths` [B, N] counts
    pieces, and `sizes` [B, T] those of the longest alternative. `masks` [B, T] is the number of a mask in `may_follow`
    [M, V]. `is_absent` [B, T] marks terms that fill the shape.
    """

    def __init__(self, sentences: Sequence[Sequence[Term]], *, vocabulary: int, device: torch.device) -> None:
        tries = [_trie(terms) for terms in sentences]
        pieces = [[EOS, *sorted({piece for prefix in trie for piece in prefix[-1:]})] for trie in tries]
        num_sentences, num_terms = len(sentences), max(map(len, sentences))
        num_nodes, num_pieces = max(map(len, tries)), max(map(len, pieces))
        self.pieces = torch.full((num_sentences, num_pieces), PAD)
        self.next_nodes = torch.zeros(num_sentences, num_nodes, num_pieces, dtype=torch.long)
        self.ends = torch.zeros(num_sentences, num_nodes, num_terms, dtype=torch.bool)
        self.leads, self.depths = self.ends.clone(), torch.zeros(num_sentences, num_nodes, dtype=torch.long)
        self.sizes = torch.zeros(num_sentences, num_terms, dtype=torch.long)
        self.masks, self.is_absent = self.sizes.clone(), torch.ones_like(self.sizes, dtype=torch.bool)
        masks: dict[int, int] = {}
        may_follow = [torch.ones(vocabulary, dtype=torch.bool, device=device)]
        for index, (terms, trie) in enumerate(zip(sentences, tries, strict=True)):
            self.pieces[index, : len(pieces[index])] = torch.tensor(pieces[index])
            for prefix, node in trie.items():
                self.depths[index, node] = len(prefix)
                for column, piece in enumerate(pieces[index]):
                    self.next_nodes[index, node, column] = trie[_longest_suffix((*prefix, piece), trie)]
            for number, term in enumerate(terms):
                self.is_absent[index, number], self.sizes[index, number] = False, _size(term)
                if term.may_follow is not None:
                    if id(term.may_follow) not in masks:
                        masks[id(term.may_follow)] = len(may_follow)
                        may_follow.append(term.may_follow.to(device))
                    self.masks[index, number] = masks[id(term.may_follow)]
                for ids in term.alternatives:
                    self.ends[index, trie[ids], number] = True
                    for length in range(1, len(ids) + 1):
                        self.leads[index, trie[ids[:length]], number] = True
        for name, value in vars(self).items():
            setattr(self, name, value.to(device))
        self.may_follow = torch.stack(may_follow)

    def keep(self, kept: Tensor) -> None:
        """Go on with the `kept` sentences."""
        for name in ("pieces", "next_nodes", "ends", "leads", "depths", "sizes", "masks", "is_absent"):
            setattr(self, name, getattr(self, name)[kept])


class ConstrainedSearch(ActiveSearch):
    """Beam search in which a translation ends when it has all terms; at the limit, those with the most terms end.

    `_at` [B, W] is the node of the trie at which each open hypothesis is, and `_met` [B, W, T] says which terms it has.
    A term that ends at the node counts as soon as the next token may follow it.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        sources: Sequence[SourceSentence],
        *,
        limits: Sequence[int],
        config: DecodingConfig,
        nbest: int,
        vocabulary: int,
        device: torch.device,
    ) -> None:
        """`limits` are the maximum numbers of tokens of the sources; `nbest` hypotheses of each are kept."""
        super().__init__(ensemble, limits=limits, width=1, num_finished=nbest, config=config, device=device)
        self._width = max(width_of(source, beam=config.beam) for source in sources)
        terms = [fitting_terms(source, limit=limit) for source, limit in zip(sources, limits, strict=True)]
        self._tries = TermTries(terms, vocabulary=vocabulary, device=device)
        self._at = torch.zeros_like(self._ids)
        self._met = self._tries.is_absent[:, None]
        self._penalties_at_limit = self._penalties[self._limits]

    def _step(self) -> Tensor:
        tries, was_open = self._tries, ~self._is_done[:, None]
        log_probs, tokens = self._continuations()
        met, nodes = self._advance(tokens)
        totals = self._log_probs[:, :, None] + log_probs
        ends = totals[:, :, 0].where(met[:, :, 0].all(dim=2), -torch.inf)  # the first continuation is EOS
        totals[:, :, 0] = -torch.inf
        end_nodes = self._tree.grow(tokens[:, :, 0], self._nodes, ends)
        penalties = self._penalties[self._ensemble.length]
        self._finished = finish(self._finished, ends, end_nodes, penalties=penalties, has_ended=was_open)
        banks = (met * tries.sizes[:, None, None]).sum(dim=3) + _of_sentences(tries.depths, nodes)
        chosen = choose_by_bank(totals.flatten(1), banks.flatten(1), width=self._width)
        hypotheses = chosen // tokens.size(2)
        self._log_probs, self._ids = totals.flatten(1).gather(1, chosen), tokens.flatten(1).gather(1, chosen)
        self._nodes = self._tree.grow(self._ids, self._nodes.gather(1, hypotheses), self._log_probs)
        self._at = nodes.flatten(1).gather(1, chosen)
        self._met = _of_sentences(met.flatten(1, 2), chosen)
        # A hypothesis that lacks a term still has to pay for it, so its bound is its score at the present length.
        penalties_of_bounds = self._penalties_at_limit[:, None].where(self._met.all(dim=2), penalties)
        bounds = (self._log_probs / penalties_of_bounds).amax(dim=1)
        is_at_limit = self._limits <= self._ensemble.length
        self._finished = finish(
            self._finished,
            self._log_probs,
            self._nodes,
            penalties=penalties,
            has_ended=was_open & is_at_limit[:, None] & self._has_most_terms(),
        )
        self._is_done = self._is_done | is_at_limit | (self._finished.scores[:, -1] >= bounds)
        width = log_probs.size(1)
        return torch.arange(len(chosen), device=chosen.device)[:, None] * width + hypotheses

    def _continuations(self) -> tuple[Tensor, Tensor]:
        """Log-probabilities and tokens [B, W, C]: EOS, all pieces of the terms, and the best other ones."""
        log_probs = self._ensemble.next_log_probs(self._ids.flatten())  # [R, V]
        num_sentences, width = self._ids.shape
        pieces = self._tries.pieces.repeat_interleave(width, dim=0)  # [R, A]
        of_pieces = log_probs.gather(1, pieces)
        log_probs = log_probs.scatter_(1, pieces, -torch.inf)
        count = min(self._width, log_probs.size(1))
        others = topk_continuations(log_probs, log_probs.new_zeros(len(log_probs), 1), count=count)
        shape = (num_sentences, width, -1)
        return (
            torch.cat([of_pieces, others.log_probs], dim=1).view(shape),
            torch.cat([pieces, others.tokens], dim=1).view(shape),
        )

    def _advance(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The terms [B, W, C, T] that the hypotheses have after tokens [B, W, C], and their nodes [B, W, C]."""
        tries, num_pieces = self._tries, self._tries.pieces.size(1)
        newly_met = self._ended_term()  # [B, W, T]
        masks = (newly_met * tries.masks[:, None]).sum(dim=2)  # [B, W]
        is_end = tries.may_follow[masks[:, :, None], tokens] | (tokens == EOS)
        met = self._met[:, :, None] | (newly_met[:, :, None] & is_end[..., None])
        nodes = torch.zeros_like(tokens)
        has_ended = newly_met.any(dim=2)[:, :, None] & is_end[:, :, :num_pieces]
        nodes[:, :, :num_pieces] = tries.next_nodes[:, :1].where(has_ended, _of_sentences(tries.next_nodes, self._at))
        leads_on = (_of_sentences(tries.leads, nodes) & ~met).any(dim=3)
        return met, nodes * leads_on

    def _ended_term(self) -> Tensor:
        """The term [B, W, T] that ends with the newest piece of each open hypothesis, and that it did not have yet."""
        ended = _of_sentences(self._tries.ends, self._at) & ~self._met
        return ended & (ended.cumsum(dim=2) == 1)

    def _has_most_terms(self) -> Tensor:
        """Whether an open hypothesis [B, W] has all terms, or as many as any other if none has ended with all."""
        num_met = (self._met | self._ended_term()).sum(dim=2)
        num_met = num_met.where(self._log_probs != -torch.inf, -1)
        most = num_met.amax(dim=1).where(self._finished.scores[:, 0] == -torch.inf, self._met.size(2))
        return num_met == most[:, None]

    def _keep(self, kept: Tensor) -> None:
        super()._keep(kept)
        self._tries.keep(kept)
        self._at, self._met = self._at[kept], self._met[kept]
        self._penalties_at_limit = self._penalties_at_limit[kept]


def choose_by_bank(log_probs: Tensor, banks: Tensor, *, width: int) -> Tensor:
    """The indices [B, width] of the candidates [B, C] to go on with: of each bank the best, then the second best, ...

    Those of a higher bank come first.
    """
    order = log_probs.sort(dim=1, descending=True, stable=True).indices
    by_bank, in_banks = banks.gather(1, order).sort(dim=1, stable=True)
    places = torch.arange(by_bank.size(1), device=banks.device).expand_as(by_bank)
    is_first = by_bank != by_bank.roll(1, dims=1)
    is_first[:, 0] = True
    ranks = places - places.where(is_first, 0).cummax(dim=1).values
    order = order.gather(1, in_banks)
    is_dead = log_probs.gather(1, order) == -torch.inf
    highest = banks.max() + 1
    keys = ((ranks + 1) * highest - by_bank).masked_fill(is_dead, torch.iinfo(torch.long).max)
    return order.gather(1, keys.sort(dim=1, stable=True).indices[:, :width])


def _of_sentences(values: Tensor, indices: Tensor) -> Tensor:
    """The values [B, N, ...] at the indices [B, ...] of each sentence: [B, ..., ...]."""
    sentences = torch.arange(len(values), device=values.device).view(-1, *[1] * (indices.dim() - 1))
    return values[sentences, indices]


def _size(term: Term) -> int:
    return max(map(len, term.alternatives), default=0)


def _trie(terms: Sequence[Term]) -> dict[tuple[int, ...], int]:
    """The numbers of the beginnings of all alternatives; the empty one, the root, is 0."""
    nodes: dict[tuple[int, ...], int] = {(): 0}
    for ids in chain.from_iterable(term.alternatives for term in terms):
        for length in range(1, len(ids) + 1):
            nodes.setdefault(ids[:length], len(nodes))
    return nodes


def _longest_suffix(ids: tuple[int, ...], trie: Mapping[tuple[int, ...], int]) -> tuple[int, ...]:
    """The longest end of the ids with which an alternative begins."""
    return next(suffix for start in range(len(ids) + 1) if (suffix := ids[start:]) in trie)
