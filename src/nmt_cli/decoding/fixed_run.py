"""One batch on its way through states of fixed sizes: how it begins, moves to other sizes, and ends.

Shapes: B sentences that a state has room for, W hypotheses a sentence, C candidates a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nmt_cli.decoding.fixed_memory import Sizes, State
from nmt_cli.decoding.hypotheses import Hypothesis, Tree
from nmt_cli.decoding.penalties import length_penalty
from nmt_cli.decoding.scorer import NEVER_GENERATED
from nmt_cli.model.fixed_step import write_source
from nmt_cli.model.packing import pack
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import BOS, EOS


class FixedRun:
    """The sentences that are searched together, and what the host knows of them; `step` counts their pieces."""

    def __init__(
        self,
        models: Sequence[Transformer],
        rows: Sequence[Sequence[int]],
        *,
        limits: Sequence[int],
        config: DecodingConfig,
        nbest: int,
        device: torch.device,
    ) -> None:
        self._models = models
        self._source = pack([[*row, EOS] for row in rows], device=device)
        self._limits = limits
        self._config = config
        self._device = device
        self._tree = Tree()
        # Which sentence each of the first places of a state holds; the others hold a copy that is not looked at.
        self._sentences = list(range(len(rows)))
        self._first_step = 0
        self.step = 0
        self.sizes = Sizes.that_hold(
            sentences=len(rows), source=self._source.max_len, length=1, beam=config.beam, nbest=nbest
        )

    @property
    def steps_left(self) -> int:
        """Steps until the state is full, or all sentences are at their limits."""
        return min(self.sizes.length, max(self._limits[sentence] for sentence in self._sentences)) - self.step

    def begin(self, state: State) -> None:
        """Write the sources, and one open hypothesis each: BOS."""
        source, count = self._source, len(self._limits)
        for model, cache in zip(self._models, state.caches, strict=True):
            write_source(model, cache, model.encode(source), source)
        state.source_lengths.fill_(1)[:count] = source.lengths
        rules = self._rules(max(self._limits))
        state.rules[: len(rules)] = rules
        penalties = [length_penalty(limit, config=self._config) for limit in self._limits]
        state.limits.fill_(1)[:count, 0] = torch.tensor(self._limits, device=self._device)
        state.last_penalties.fill_(1.0)[:count, 0] = torch.tensor(penalties, device=self._device)
        state.ids.fill_(BOS)
        state.log_probs.fill_(-math.inf)[:, 0] = 0.0
        state.nodes.fill_(-1)
        state.finished.log_probs.fill_(-math.inf)
        state.finished.scores.fill_(-math.inf)
        state.finished.nodes.fill_(-1)
        state.is_done.fill_(False)[count:] = True
        self._count(state)

    def is_over(self, is_done: Sequence[bool]) -> bool:
        """Whether no sentence is open, by what a state says [B]."""
        return all(is_done[: len(self._sentences)])

    def next_sizes(self, is_done: Sequence[bool]) -> Sizes:
        """The sizes to go on with: as few sentences as hold those that are open, and room for more pieces."""
        is_full = self.step == self.sizes.length
        return Sizes.that_hold(
            sentences=is_done[: len(self._sentences)].count(False),
            source=self.sizes.source,
            length=self.step + 1 if is_full else self.sizes.length,
            beam=self.sizes.beam,
            nbest=self.sizes.nbest,
        )

    def move(self, before: State, after: State, *, is_done: Sequence[bool]) -> None:
        """Let sentences that are done leave, and write the others into another state, maybe in the same memory."""
        kept = [place for place in range(len(self._sentences)) if not is_done[place]]
        self._note(before, [place for place in range(len(self._sentences)) if is_done[place]])
        padded = kept + [kept[0]] * (after.sizes.sentences - len(kept))
        chosen = torch.tensor(padded, device=self._device)
        for old, new in zip(before.of_sentences(), after.of_sentences(), strict=True):
            new.copy_(old.index_select(0, chosen))
        used = self.step * self.sizes.beam
        for old_cache, new_cache in zip(before.caches, after.caches, strict=True):
            for old, new in zip(old_cache.own, new_cache.own, strict=True):
                new[:, :used] = old[:, :used].index_select(0, chosen)
        after.ancestors[..., : self.step] = before.ancestors[..., : self.step].index_select(0, chosen)
        after.is_done[len(kept) :] = True
        self._sentences = [self._sentences[place] for place in kept]
        self._first_step, self.sizes = self.step, after.sizes
        self._count(after)

    def end(self, state: State) -> list[list[Hypothesis]]:
        """The best hypotheses of each sentence."""
        self._note(state, list(range(len(self._sentences))))
        found = self._tree.read()
        return [found[sentence] for sentence in range(len(self._limits))]

    def _note(self, state: State, places: list[int]) -> None:
        """Put into the tree what was found in this state, and how the sentences at `places` ended."""
        grown = (state.tree_pieces, state.tree_parents, state.tree_log_probs)
        pieces, parents, log_probs = (column[: self.step - self._first_step].clone() for column in grown)
        self._tree.grow(pieces, parents, log_probs)
        sentences = torch.tensor([self._sentences[place] for place in places], dtype=torch.long)
        self._tree.end(sentences, state.finished.select(torch.tensor(places, dtype=torch.long, device=self._device)))

    def _count(self, state: State) -> None:
        """Set what counts the steps of a state."""
        state.counters.copy_(torch.tensor([self.step, 0, self._tree.size]))

    def _rules(self, num_places: int) -> Tensor:
        """What is added to ln P of the first pieces at each place, and the penalty of a hypothesis that ends there."""
        config = self._config
        is_refused = [piece in NEVER_GENERATED for piece in range(EOS)]
        refused = [-math.inf if refused else 0.0 for refused in is_refused]
        return torch.tensor(
            [
                [*refused, -math.inf if place < config.min_tokens else 0.0, length_penalty(place + 1, config=config)]
                for place in range(num_places)
            ]
        )
