"""Beam search for GPUs: the same memory and shapes at each step, so that a step is recorded once and replayed.

Shapes: B sentences, W open hypotheses a sentence, R = B * W rows, C candidates a sentence, V vocabulary, padded to
whole blocks.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt_cli.decoding.fixed_memory import Memory, Sizes, State
from nmt_cli.decoding.fixed_run import FixedRun
from nmt_cli.decoding.hypotheses import Hypothesis
from nmt_cli.decoding.scorer import NEVER_GENERATED
from nmt_cli.decoding.search import Source, check, limit_of
from nmt_cli.devices import is_out_of_memory
from nmt_cli.model.fixed_step import fixed_step
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import EOS

logger = logging.getLogger(__name__)

# Of so many columns the largest is looked at first.
_BLOCK, _BLOCK_OF_FEW = 64, 8
_MOST_RECORDINGS = 64
_STEPS_UNSEEN = 4


class Recorder(Protocol):
    """What makes of a function one that repeats, on the same memory, what it did."""

    def run_beside(self, function: Callable[[], None]) -> None:
        """Run the function where it would be recorded: libraries set themselves up."""

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """The repetition, without a run; RuntimeError where it cannot be."""

    def renew(self) -> None:
        """No repetition is used any more."""


@dataclass(slots=True)
class _Stepper:
    """A state, whether its step was taken once, and from then on its recording."""

    state: State
    is_warm: bool = False
    replay: Callable[[], None] | None = None


class FixedBeam:
    """Beam and greedy search as `Beam` and `Chains` define them, for as long as the models stay where they are.

    Of equal scores that which torch's `topk` takes is better; in float32 there are hardly any. A sentence that has
    ended goes along until those that are open fit a smaller size.
    """

    def __init__(self, models: Sequence[Transformer], *, device: torch.device, recorder: Recorder) -> None:
        self._models = models
        self._device = device
        self._recorder = recorder
        self._vocab = models[0].target_vocab
        self._block = _BLOCK if self._vocab >= 16 * _BLOCK else _BLOCK_OF_FEW
        self._has_failed = False
        self._steppers: dict[Sizes, _Stepper] = {}
        self._forget()

    def takes(self, sources: Sequence[Source], *, config: DecodingConfig) -> bool:
        """Whether it can search like this: not for draws, and not with beginnings that are given."""
        is_free = not config.samples and not any(source.prefix for source in sources)
        return is_free and self._vocab >= max(2 * _BLOCK_OF_FEW, 2 * config.beam + len(NEVER_GENERATED))

    def search(self, sources: Sequence[Source], *, config: DecodingConfig, nbest: int) -> list[list[Hypothesis]]:
        """For each source its best hypotheses by score, at most `nbest`, best first."""
        check(self._models, sources, config=config, nbest=nbest)
        limits = [limit_of(source, self._models, config=config) for source in sources]
        try:
            with torch.inference_mode():
                rows = [source.row for source in sources]
                run = FixedRun(self._models, rows, limits=limits, config=config, nbest=nbest, device=self._device)
                return self._search(run)
        except (RuntimeError, MemoryError) as problem:
            if is_out_of_memory(problem):
                self._forget()
            raise

    def _search(self, run: FixedRun) -> list[list[Hypothesis]]:
        stepper = self._stepper(run.sizes)
        run.begin(stepper.state)
        while True:
            for _ in range(min(_STEPS_UNSEEN, run.steps_left)):
                self._step(stepper)
                run.step += 1
            is_done = stepper.state.is_done.flatten().tolist()
            if run.is_over(is_done):
                return run.end(stepper.state)
            sizes = run.next_sizes(is_done)
            if sizes != stepper.state.sizes:
                before, stepper = stepper.state, self._stepper(sizes)
                run.move(before, stepper.state, is_done=is_done)

    def _stepper(self, sizes: Sizes) -> _Stepper:
        if sizes in self._steppers:
            stepper = self._steppers.pop(sizes)
        else:
            # Recordings hold the memory that they are of: they go before another is taken in its place.
            stepper = _Stepper(self._memory.state(sizes, before_moving=self._drop_recordings))
            if len(self._steppers) >= _MOST_RECORDINGS:
                self._steppers.pop(next(iter(self._steppers)))
        self._steppers[sizes] = stepper
        return stepper

    def _step(self, stepper: _Stepper) -> None:
        def take() -> None:
            self._advance(stepper.state)

        if stepper.replay is None and stepper.is_warm and not self._has_failed:
            try:
                stepper.replay = self._recorder.record(take)
            except RuntimeError as problem:
                reason = str(problem).strip().partition("\n")[0]
                logger.warning("no CUDA graph can be made (%s): steps take longer to launch", reason)
                self._has_failed = True
                self._drop_recordings()
        if stepper.replay is not None:
            stepper.replay()
        elif self._has_failed:
            take()
        else:
            self._recorder.run_beside(take)
            stepper.is_warm = True

    def _forget(self) -> None:
        """Give back all memory."""
        self._memory = Memory(self._models, block=self._block, device=self._device)
        self._drop_recordings()

    def _drop_recordings(self) -> None:
        """Recordings of other addresses, and what they need of memory."""
        for stepper in self._steppers.values():
            stepper.replay = None  # a search that moves has one in hand
        self._steppers.clear()
        self._recorder.renew()

    def _advance(self, state: State) -> None:
        """One more piece for each open hypothesis, with a fixed sequence of kernels."""
        beam = state.sizes.beam
        rules = state.rules.index_select(0, state.counters[:1])
        log_probs = self._log_probs(state)
        log_probs[:, :4].add_(rules[:, :4])
        totals, chosen = self._candidates(log_probs, state)
        hypotheses, pieces = chosen // log_probs.size(1), chosen % log_probs.size(1)
        nodes = state.numbers + state.counters[2:]
        row = state.counters[1:2]
        state.tree_pieces.index_copy_(0, row, pieces[None])
        state.tree_parents.index_copy_(0, row, state.nodes.gather(1, hypotheses)[None])
        state.tree_log_probs.index_copy_(0, row, totals[None])
        state.counters.add_(state.increments)
        state.slots.add_(beam)

        is_end = pieces == EOS
        open_totals, order = totals.masked_fill(is_end, -math.inf).sort(dim=1, descending=True, stable=True)
        state.log_probs.copy_(open_totals[:, :beam])
        order = order[:, :beam]
        torch.gather(pieces, 1, order, out=state.ids)
        torch.gather(nodes, 1, order, out=state.nodes)
        is_last = state.limits <= state.counters[:1]
        self._finish(state, totals, nodes, is_end=is_end, is_last=is_last, penalty=rules[:, 4:])
        is_decided = state.finished.scores[:, -1:] >= state.log_probs[:, :1] / state.last_penalties
        state.is_done.logical_or_(is_decided.logical_or_(is_last))
        continued = hypotheses.gather(1, order)[:, None, :, None].expand_as(state.past)
        state.past.copy_(state.past.gather(2, continued))

    def _log_probs(self, state: State) -> Tensor:
        """ln P [R, V] of the next pieces, the mean of the models' P; -inf in the padding."""
        own_slots = state.slots[:, None].expand(len(state.ids), 1, -1, 1)
        state.past.scatter_(3, own_slots, 0.0)
        each = []
        for model, cache in zip(self._models, state.caches, strict=True):
            hidden = fixed_step(
                model,
                state.ids.flatten(),
                cache,
                place=state.counters[:1],
                slots=state.slots,
                past=state.past,
                source_bias=state.source_bias,
            )
            each.append(model.logits(hidden).log_softmax(dim=-1, dtype=torch.float32))
        together = each[0] if len(each) == 1 else torch.stack(each).logsumexp(dim=0) - math.log(len(each))
        padding = -self._vocab % self._block
        return F.pad(together, (0, padding), value=-math.inf) if padding else together

    def _candidates(self, log_probs: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """From log_probs [R, V] the best continuations [B, C]: ln P, best first, and places among a sentence's W * V.

        They are among the blocks of columns with the largest maxima: what is sorted is short.
        """
        sizes = state.sizes
        blocks_BWN = log_probs.view(sizes.sentences, sizes.beam, -1, self._block).amax(dim=-1)
        num_blocks = blocks_BWN.size(-1)
        best = (blocks_BWN + state.log_probs[:, :, None]).flatten(1).topk(sizes.candidates, sorted=False).indices
        places = torch.add(state.columns, best[:, :, None], alpha=self._block)
        values = log_probs.view(sizes.sentences, -1).gather(1, places.flatten(1)).view_as(places)
        totals = (values + state.log_probs.gather(1, best // num_blocks)[:, :, None]).flatten(1)
        largest, order = totals.topk(sizes.candidates)
        return largest, places.flatten(1).gather(1, order)

    def _finish(
        self, state: State, totals: Tensor, nodes: Tensor, *, is_end: Tensor, is_last: Tensor, penalty: Tensor
    ) -> None:
        """Let candidates end that are EOS, and open hypotheses at their limit, in sentences that are not done."""
        finished, nbest = state.finished, state.sizes.nbest
        ends = torch.cat([is_end, is_last.expand_as(state.ids)], dim=1) & ~state.is_done
        log_probs = torch.cat([finished.log_probs, totals, state.log_probs], dim=1)
        ended = (log_probs[:, nbest:] / penalty).where(ends, -math.inf)
        scores, order = torch.cat([finished.scores, ended], dim=1).sort(dim=1, descending=True, stable=True)
        order = order[:, :nbest]
        finished.scores.copy_(scores[:, :nbest])
        nodes = torch.cat([finished.nodes, nodes, state.nodes], dim=1)
        torch.gather(log_probs, 1, order, out=finished.log_probs)
        torch.gather(nodes, 1, order, out=finished.nodes)
