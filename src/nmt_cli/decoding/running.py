"""A search that is under way: what beam search and chains have in common.

Shapes: B sentences still searched, W open hypotheses a sentence, C ended ones that are kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from nmt_cli.decoding.hypotheses import Endings, Hypothesis, Tree
from nmt_cli.decoding.penalties import Penalties
from nmt_cli.decoding.scorer import Scorer
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import BOS


class Search(ABC):
    """Sentences that have numbers, and the open and the ended hypotheses of each.

    It goes on in inference mode.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        limits: Mapping[int, int],
        width: int,
        num_ended: int,
        config: DecodingConfig,
        device: torch.device,
    ) -> None:
        """`limits` are the most pieces of each sentence, by its number; it begins with `width` hypotheses of BOS."""
        self._scorer = scorer
        self._config = config
        self._tree = Tree()
        self._sentences = torch.tensor(list(limits), device=device)
        self._limits = torch.tensor(list(limits.values()), device=device)
        self._penalties = Penalties(max(limits.values()), config=config, device=device)
        self._ids = torch.full((len(limits), width), BOS, device=device)
        self._log_probs = torch.zeros(len(limits), width, device=device)
        self._nodes = torch.full_like(self._ids, -1)
        self._ended = Endings.none(len(limits), num_ended, device=device)

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
    @abstractmethod
    def is_joinable(self) -> bool:
        """Whether each sentence has all its hypotheses."""

    def run(self, *, down_to: int) -> None:
        """Go on until no more than `down_to` sentences are open."""
        while self.num_open > down_to:
            self._advance()

    def read(self) -> dict[int, list[Hypothesis]]:
        """The hypotheses, best first, of each sentence that was done since they were last read, by its number."""
        return self._tree.read()

    def join(self, others: Sequence[Self]) -> None:
        """Take the sentences of others of the same kind and settings in; the others are used up.

        All are joinable, and what was found is read. The host waits for the device.
        """
        searches = [self, *others]
        for one in searches:
            one._nodes, one._ended.nodes = one._tree.prune(one._nodes, one._ended.nodes)
        for other in others:
            other._nodes, other._ended.nodes = self._tree.join(other._tree, other._nodes, other._ended.nodes)
        self._scorer.join([other._scorer for other in others])
        self._sentences = torch.cat([one._sentences for one in searches])
        self._limits = torch.cat([one._limits for one in searches])
        self._ids = torch.cat([one._ids for one in searches])
        self._log_probs = torch.cat([one._log_probs for one in searches])
        self._nodes = torch.cat([one._nodes for one in searches])
        self._ended = Endings.joined([one._ended for one in searches])
        self._penalties = max((one._penalties for one in searches), key=lambda one: one.longest)

    @abstractmethod
    def _advance(self) -> None:
        """One more piece for each open hypothesis; sentences that are done leave, if enough are."""

    def _end(self, done: Tensor, endings: Endings, *, kept: Tensor) -> None:
        """Let the sentences `done` leave, which ended so, best first, and those `kept` go on."""
        self._tree.end(self._sentences[done], endings)
        self._sentences, self._limits = self._sentences[kept], self._limits[kept]
        self._ids, self._log_probs, self._nodes = self._ids[kept], self._log_probs[kept], self._nodes[kept]
        self._ended = self._ended.select(kept)
