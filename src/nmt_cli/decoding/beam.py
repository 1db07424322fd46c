"""Beam search (section 6.1 of the paper).

Shapes: B sentences still searched, W open hypotheses a sentence, R = B * W rows, C candidates a sentence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nmt_cli.decoding.hypotheses import Endings, Hypothesis, Tree, moved
from nmt_cli.decoding.largest import best_continuations
from nmt_cli.decoding.leaving import who_leaves
from nmt_cli.decoding.penalties import Penalties
from nmt_cli.decoding.scorer import NEVER_GENERATED, Scorer
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import BOS, EOS

# Steps between looks at which sentences have ended: a look waits for a GPU, and costs nothing on a CPU.
_STEPS_UNSEEN = {"cuda": 4}


class Beam:
    """Beam search: of 2 W candidates a step, those that end are finished, and the W best others stay open.

    So W stay open whatever ends. A sentence is done when its limit is reached, or when nothing open can beat its n-th
    best finished score: that is at least the best open log-probability over the penalty at the limit.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        limits: Mapping[int, int],
        config: DecodingConfig,
        nbest: int,
        device: torch.device,
    ) -> None:
        """`limits` are the most pieces of each sentence, by its number."""
        self._scorer = scorer
        self._config = config
        self._nbest = nbest
        self._tree = Tree()
        self._sentences = torch.tensor(list(limits), device=device)
        self._limits = torch.tensor(list(limits.values()), device=device)
        # Steps until a limit is reached, and until all are.
        self._to_nearest, self._to_last = min(limits.values()), max(limits.values())
        self._penalties = Penalties(max(limits.values()), config=config, device=device)
        self._last_penalties = self._penalties.at(self._limits)[:, 0]
        self._every = _STEPS_UNSEEN.get(device.type, 1)
        self._num_steps = 0
        # One open hypothesis at first: BOS.
        self._ids = torch.full((len(limits), 1), BOS, device=device)
        self._log_probs = torch.zeros(len(limits), 1, device=device)
        self._nodes = torch.full((len(limits), 1), -1, device=device)
        self._finished = Endings.none(len(limits), nbest, device=device)
        self._is_done = torch.zeros(len(limits), dtype=torch.bool, device=device)

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
        """Whether each sentence has all its open hypotheses: after one step, unless the vocabulary is tiny."""
        return self._ids.size(1) == self._config.beam

    def run(self, *, down_to: int) -> None:
        """Go on until no more than `down_to` sentences are open."""
        while self.num_open > down_to:
            self.advance()

    def advance(self) -> None:
        """One more piece for each open hypothesis; sentences that are done leave, if enough are."""
        rows = self._step()
        kept = self._leave()
        if self.num_open:
            self._scorer.select(rows=(rows if kept is None else rows[kept]).flatten(), sentences=kept)

    def join(self, others: Sequence[Beam]) -> None:
        """Take the sentences of others with the same settings in; all are joinable, and the others are used up."""
        searches = [self, *others]
        for one in searches:
            one._nodes, one._finished.nodes = one._tree.prune(one._nodes, one._finished.nodes)
        for other in others:
            offset = self._tree.join(other._tree)
            other._nodes, other._finished = moved(other._nodes, offset), other._finished.moved(offset)
        self._scorer.join([other._scorer for other in others])
        self._sentences = torch.cat([one._sentences for one in searches])
        self._limits = torch.cat([one._limits for one in searches])
        self._last_penalties = torch.cat([one._last_penalties for one in searches])
        self._ids = torch.cat([one._ids for one in searches])
        self._log_probs = torch.cat([one._log_probs for one in searches])
        self._nodes = torch.cat([one._nodes for one in searches])
        self._is_done = torch.cat([one._is_done for one in searches])
        self._finished = Endings.joined([one._finished for one in searches])
        self._penalties = max((one._penalties for one in searches), key=lambda one: one.longest)
        self._to_nearest = int((self._limits - self._scorer.places).min())
        self._to_last = max(one._to_last for one in searches)

    def read(self) -> dict[int, list[Hypothesis]]:
        """The best hypotheses of each sentence that was done since they were last read, by its number."""
        return self._tree.read()

    def _step(self) -> Tensor:
        """One more piece for each open hypothesis; returns the rows [B, W] that the new ones continue."""
        width = self._ids.size(1)
        log_probs, ids, hypotheses = self._candidates(self._scorer.log_probs(self._ids.flatten()))
        is_end = ids == EOS
        nodes = self._tree.grow(ids, self._nodes.gather(1, hypotheses), log_probs)
        self._finish(log_probs, nodes, where=is_end)
        # Of each open hypothesis at most one candidate ends, so this many others are among them.
        open_width = min(self._config.beam, ids.size(1) - width)
        is_open_first = is_end.byte().argsort(dim=1, stable=True)[:, :open_width]
        self._ids = ids.gather(1, is_open_first)
        self._log_probs = log_probs.gather(1, is_open_first)
        self._nodes = nodes.gather(1, is_open_first)
        self._num_steps, self._to_nearest, self._to_last = self._num_steps + 1, self._to_nearest - 1, self._to_last - 1
        is_decided = self._finished.scores[:, -1] >= self._log_probs[:, 0] / self._last_penalties
        if self._to_nearest <= 0:
            is_last = self._limits <= self._scorer.places
            self._finish(self._log_probs, self._nodes, where=is_last[:, None])
            is_decided = is_decided | is_last
        self._is_done = self._is_done | is_decided
        starts = torch.arange(len(ids), device=ids.device)[:, None] * width
        return starts + hypotheses.gather(1, is_open_first)

    def _candidates(self, log_probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From log_probs [R, V] the best continuations: log-probabilities, pieces, and hypotheses continued, [B, C]."""
        width, vocabulary = self._ids.size(1), log_probs.size(1)
        count = 2 * self._config.beam
        count = min(count, width * min(count, vocabulary - len(NEVER_GENERATED)))
        totals, places = best_continuations(log_probs, self._log_probs, count=count)
        return totals, places % vocabulary, places // vocabulary

    def _finish(self, log_probs: Tensor, nodes: Tensor, *, where: Tensor) -> None:
        """Let the hypotheses of log_probs [B, C] end `where` that is True, in sentences that are not done."""
        scores = (log_probs / self._penalties.at(self._scorer.places)).where(
            where & ~self._is_done[:, None], -torch.inf
        )
        self._finished = self._finished.best_with(Endings(log_probs, scores, nodes), count=self._nbest)

    def _leave(self) -> Tensor | None:
        """Let sentences that are done leave, if enough are; those that stay [B'], or None where nothing changes."""
        if self._num_steps % self._every and self._to_last > 0:
            return None
        leaving = who_leaves(self._is_done)
        if leaving is None:
            return None
        done, kept = leaving
        self._tree.end(self._sentences[done], self._finished.select(done))
        self._sentences, self._limits = self._sentences[kept], self._limits[kept]
        self._last_penalties = self._last_penalties[kept]
        self._ids, self._log_probs, self._nodes = self._ids[kept], self._log_probs[kept], self._nodes[kept]
        self._finished, self._is_done = self._finished.select(kept), self._is_done[kept]
        return kept
