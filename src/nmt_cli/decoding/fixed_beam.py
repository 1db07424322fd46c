"""Beam search for GPUs: the same memory and shapes at each step, so that a step is recorded once and replayed.

Shapes: B sentences, W open hypotheses per sentence, R = B * W rows, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from nmt_cli.decoding.fixed_choice import choose, settle
from nmt_cli.decoding.fixed_memory import Memory, Sizes, State
from nmt_cli.decoding.fixed_run import FixedRun
from nmt_cli.decoding.hypotheses import Hypothesis
from nmt_cli.decoding.scorer import NEVER_GENERATED
from nmt_cli.decoding.search import Source, check, limit_of
from nmt_cli.devices import is_out_of_memory, launching_on
from nmt_cli.model.fixed_step import Seen, can_use_kernels, fixed_step
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig

logger = logging.getLogger(__name__)

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

    A sentence that has ended goes along until those that are open fit a smaller size.
    """

    def __init__(self, models: Sequence[Transformer], *, device: torch.device, recorder: Recorder) -> None:
        self._models = models
        self._device = device
        self._recorder = recorder
        self._vocab = models[0].target_vocab
        self._has_failed = False
        self._steppers: dict[Sizes, _Stepper] = {}
        self._forget()

    @cached_property
    def _is_fused(self) -> bool:
        """Whether steps launch kernels of our own."""
        return can_use_kernels(self._device)

    def takes(self, sources: Sequence[Source], *, config: DecodingConfig) -> bool:
        """Whether it can search like this: not for draws, and not with beginnings that are given."""
        is_free = not config.samples and not any(source.prefix for source in sources)
        return is_free and self._vocab >= 2 * config.beam + len(NEVER_GENERATED)

    def search(self, sources: Sequence[Source], *, config: DecodingConfig, nbest: int) -> list[list[Hypothesis]]:
        """For each source its best hypotheses by score, at most `nbest`, best first."""
        check(self._models, sources, config=config, nbest=nbest)
        limits = [limit_of(source, self._models, config=config) for source in sources]
        try:
            with torch.inference_mode(), launching_on(self._device):
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
        self._memory = Memory(self._models, device=self._device)
        self._drop_recordings()

    def _drop_recordings(self) -> None:
        """Recordings of other addresses, and what they need of memory."""
        for stepper in self._steppers.values():
            stepper.replay = None  # a search that moves has one in hand
        self._steppers.clear()
        self._recorder.renew()

    def _advance(self, state: State) -> None:
        """One more piece for each open hypothesis, with a fixed sequence of kernels."""
        hypotheses = choose(state, self._logits(state), is_fused=self._is_fused)
        settle(state, hypotheses, is_fused=self._is_fused)
        state.counters.add_(state.increments)

    def _logits(self, state: State) -> Tensor:
        """Logits [R, V] of the next pieces; of several models those of the mean of their P."""
        seen = Seen(state.ancestors, state.source_lengths, state.counters)
        each = [
            model.logits(fixed_step(model, state.ids.flatten(), cache, seen, is_fused=self._is_fused))
            for model, cache in zip(self._models, state.caches, strict=True)
        ]
        if len(each) == 1:
            return each[0]
        return torch.stack([logits.log_softmax(dim=-1, dtype=torch.float32) for logits in each]).logsumexp(dim=0)
