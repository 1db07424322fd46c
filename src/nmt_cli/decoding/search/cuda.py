"""Beam search for GPUs: each step uses the same memory and shapes, so it is recorded once and replayed.

Shapes: B sentences, W hypotheses per sentence, R = B * W rows, C candidates per sentence, F kept finished hypotheses
per sentence, S source tokens, L positions, V vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from nmt_cli.decoding.search.beam import candidates, cannot_improve, finish, keep_open
from nmt_cli.decoding.search.ensemble import NEVER_GENERATED
from nmt_cli.decoding.search.hypotheses import (
    FinishedHypotheses,
    Hypothesis,
    HypothesisTree,
    SourceSentence,
    length_penalty,
    sentence_limit,
)
from nmt_cli.decoding.search.search import check_search
from nmt_cli.devices import is_out_of_memory, launching_on
from nmt_cli.model.packing import pack
from nmt_cli.model.static_cache import StaticCache, StepInputs, cache_widths, can_use_kernels, static_step, write_source
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import BOS, EOS

logger = logging.getLogger(__name__)

_MOST_RECORDINGS = 64
_STEPS_BETWEEN_CHECKS = 4
# Each size costs a recording. Empty places cost little as long as the number of kernels bounds a step.
_FEW_SENTENCES = (1, 4)
_SENTENCES, _SOURCE, _LENGTH = 16, 32, 32
_SPECIAL = EOS + 1  # pieces that have a column in `StaticState.rules`
_MOST_BLOCKS, _NARROWEST_BLOCK = 512, 8  # the kernels look at blocks of columns, so that few numbers are sorted
_TILE = 2048  # logits that one program reads
_POSITIONS = 64
_KEYS_PER_WARP = 1024  # they fit into its registers
_WIDEST_BEAM = 32  # one program holds the block maxima of all hypotheses of a sentence


class StepRecorder(Protocol):
    """Records a function, so that its operations can be repeated on the same memory."""

    def run_beside(self, function: Callable[[], None]) -> None:
        """Run the function where it would be recorded: libraries set themselves up."""

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """The repetition, without a run; RuntimeError if the function cannot be recorded."""

    def renew(self) -> None:
        """Forget all repetitions."""


class StaticSizes(NamedTuple):
    """Room for sentences, source tokens and pieces; open hypotheses, and finished ones that are kept."""

    sentences: int
    source: int
    length: int
    beam: int
    nbest: int

    @classmethod
    def that_hold(cls, *, sentences: int, source: int, length: int, beam: int, nbest: int) -> StaticSizes:
        """The smallest sizes with enough room."""
        few = [size for size in _FEW_SENTENCES if size >= sentences]
        rounded = few[0] if few else _doubled(_SENTENCES, sentences)
        return cls(rounded, _doubled(_SOURCE, source), _doubled(_LENGTH, length), beam, nbest)

    @property
    def candidates(self) -> int:
        """Continuations per sentence that a step considers: twice the beam, and one in greedy search."""
        return 2 * self.beam if self.beam > 1 else 1


@dataclass(slots=True, kw_only=True)
class StaticState:
    """All tensors that a step reads and writes, whether the step ran once, and the recording of the step.

    `counters` are the number of pieces of each hypothesis, the step's row of the tree, and the next node's number. Each
    step adds `increments` to them. `rules` [positions, 5] hold for each position what is added to the log-probabilities
    of the first four pieces, and the penalty of a hypothesis that ends there. `ancestors` [B, W, L] tell which of the W
    hypotheses each hypothesis was at each earlier position. `tree_*` [L, B, C] hold the candidates since the tree was
    last read.
    """

    sizes: StaticSizes
    caches: list[StaticCache]
    source_lengths: Tensor
    ancestors: Tensor
    counters: Tensor
    increments: Tensor
    rules: Tensor
    limits: Tensor
    last_penalties: Tensor
    ids: Tensor
    log_probs: Tensor
    nodes: Tensor
    finished: FinishedHypotheses
    is_done: Tensor
    tree_pieces: Tensor
    tree_parents: Tensor
    tree_log_probs: Tensor
    is_warm: bool = False
    replay: Callable[[], None] | None = None

    def per_sentence(self) -> list[Tensor]:
        """The tensors [B, ...] that move with a sentence, without its past."""
        finished = self.finished
        cross = [layer for cache in self.caches for layer in cache.cross]
        chosen = [self.limits, self.last_penalties, self.ids, self.log_probs, self.nodes, self.is_done]
        return [*cross, self.source_lengths, *chosen, finished.log_probs, finished.scores, finished.nodes]


@dataclass(slots=True)
class _Batch:
    """Sentences searched together, as the host knows them.

    `sentences` are the numbers of the sentences in the first places of a state; the other places hold a copy that is
    ignored. `step` counts the pieces of each hypothesis; the state's tree begins at `first_step`.
    """

    limits: list[int]
    config: DecodingConfig
    sentences: list[int]
    tree: HypothesisTree = field(default_factory=HypothesisTree)
    step: int = 0
    first_step: int = 0


class CudaSearch:
    """Beam and greedy search, as `BeamSearch` and `IndependentSearch` define them, as long as the models stay in place.

    A finished sentence stays in the batch until the open ones fit a smaller size.
    """

    def __init__(self, models: Sequence[Transformer], *, device: torch.device, recorder: StepRecorder) -> None:
        self._models = models
        self._device = device
        self._recorder = recorder
        self._vocab = models[0].target_vocab
        self._max_positions = min(model.config.max_positions for model in models)
        self._has_failed = False
        # The states of all sizes share this memory, one at a time: tensors as large as the largest size needed.
        self._memory: dict[str, Tensor] = {}
        self._states: dict[StaticSizes, StaticState] = {}

    @cached_property
    def _uses_kernels(self) -> bool:
        """Whether steps launch kernels of our own."""
        return can_use_kernels(self._device)

    def takes(self, sources: Sequence[SourceSentence], *, config: DecodingConfig) -> bool:
        """Whether it supports this search: no sampling, and no prefixes."""
        is_free = not config.samples and not any(source.prefix for source in sources)
        return is_free and self._vocab >= 2 * config.beam + len(NEVER_GENERATED)

    def search(
        self, sources: Sequence[SourceSentence], *, config: DecodingConfig, nbest: int
    ) -> list[list[Hypothesis]]:
        """For each source its best hypotheses by score, at most `nbest`, best first."""
        check_search(self._models, sources, config=config, nbest=nbest)
        limits = [sentence_limit(source, config=config, max_positions=self._max_positions) for source in sources]
        try:
            with torch.inference_mode(), launching_on(self._device):
                batch = _Batch(limits, config, sentences=list(range(len(sources))))
                return self._search(batch, self._begin(batch, sources, nbest=nbest))
        except (RuntimeError, MemoryError) as problem:
            if is_out_of_memory(problem):
                self._forget()
            raise

    def _search(self, batch: _Batch, state: StaticState) -> list[list[Hypothesis]]:
        while True:
            to_last_limit = max(batch.limits[sentence] for sentence in batch.sentences)
            for _ in range(min(_STEPS_BETWEEN_CHECKS, min(state.sizes.length, to_last_limit) - batch.step)):
                self._step(state)
                batch.step += 1
            is_done = state.is_done[: len(batch.sentences)].tolist()
            if all(is_done):
                self._note(batch, state, list(range(len(is_done))))
                found = batch.tree.read()
                return [found[sentence] for sentence in range(len(batch.limits))]
            sizes = StaticSizes.that_hold(
                sentences=is_done.count(False),
                source=state.sizes.source,
                length=batch.step + 1 if batch.step == state.sizes.length else state.sizes.length,
                beam=state.sizes.beam,
                nbest=state.sizes.nbest,
            )
            if sizes != state.sizes:
                state = self._move(batch, state, self.state(sizes), is_done=is_done)

    def _begin(self, batch: _Batch, sources: Sequence[SourceSentence], *, nbest: int) -> StaticState:
        """A state with the sources, and one open hypothesis each: BOS."""
        source, count, config = (
            pack([[*one.row, EOS] for one in sources], device=self._device),
            len(sources),
            batch.config,
        )
        sizes = StaticSizes.that_hold(sentences=count, source=source.max_len, length=1, beam=config.beam, nbest=nbest)
        state = self.state(sizes)
        for model, cache in zip(self._models, state.caches, strict=True):
            write_source(model, cache, model.encode(source), source)
        state.source_lengths.fill_(1)[:count] = source.lengths
        rules = _rules(max(batch.limits), config=config)
        state.rules[: len(rules)] = rules
        penalties = [length_penalty(limit, config=config) for limit in batch.limits]
        state.limits.fill_(1)[:count] = torch.tensor(batch.limits, device=self._device)
        state.last_penalties.fill_(1.0)[:count] = torch.tensor(penalties, device=self._device)
        state.ids.fill_(BOS)
        state.log_probs.fill_(-math.inf)[:, 0] = 0.0
        state.nodes.fill_(-1)
        state.finished.copy_(FinishedHypotheses.none(sizes.sentences, nbest, device=self._device))
        state.is_done.fill_(False)[count:] = True
        self._set_counters(state, batch)
        return state

    def _move(self, batch: _Batch, before: StaticState, after: StaticState, *, is_done: Sequence[bool]) -> StaticState:
        """Write the open sentences into another state, maybe in the same memory; finished sentences leave."""
        kept = [place for place, is_over in enumerate(is_done) if not is_over]
        self._note(batch, before, [place for place, is_over in enumerate(is_done) if is_over])
        padded = kept + [kept[0]] * (after.sizes.sentences - len(kept))
        chosen = torch.tensor(padded, device=self._device)
        for old, new in zip(before.per_sentence(), after.per_sentence(), strict=True):
            new.copy_(old.index_select(0, chosen))
        used = batch.step * before.sizes.beam
        for old_cache, new_cache in zip(before.caches, after.caches, strict=True):
            for old, new in zip(old_cache.own, new_cache.own, strict=True):
                new[:, :used] = old[:, :used].index_select(0, chosen)
        after.ancestors[..., : batch.step] = before.ancestors[..., : batch.step].index_select(0, chosen)
        after.is_done[len(kept) :] = True
        batch.sentences = [batch.sentences[place] for place in kept]
        batch.first_step = batch.step
        self._set_counters(after, batch)
        return after

    def _note(self, batch: _Batch, state: StaticState, places: list[int]) -> None:
        """Put into the tree the candidates of this state, and the finished hypotheses of the sentences at `places`."""
        grown = (state.tree_pieces, state.tree_parents, state.tree_log_probs)
        pieces, parents, log_probs = (column[: batch.step - batch.first_step].clone() for column in grown)
        batch.tree.grow(pieces, parents, log_probs)
        sentences = torch.tensor([batch.sentences[place] for place in places], dtype=torch.long)
        finished = state.finished.select(torch.tensor(places, dtype=torch.long, device=self._device))
        batch.tree.end(sentences, finished)

    def _set_counters(self, state: StaticState, batch: _Batch) -> None:
        state.counters.copy_(torch.tensor([batch.step, 0, batch.tree.size]))

    def state(self, sizes: StaticSizes) -> StaticState:
        """The state of these sizes; a recent one has its recording."""
        state = self._states.pop(sizes, None)
        if state is None:
            state = self._new_state(sizes)
            if len(self._states) >= _MOST_RECORDINGS:
                self._states.pop(next(iter(self._states)))
        self._states[sizes] = state
        return state

    def _new_state(self, sizes: StaticSizes) -> StaticState:
        sentences, beam, nbest = sizes.sentences, sizes.beam, sizes.nbest
        caches = []
        for number, model in enumerate(self._models):
            own, cross = [], []
            for layer, width in enumerate(cache_widths(model)):
                name, dtype = f"{number}.{layer}", self._models[0].output_weight.dtype
                own.append(self._take(f"own.{name}", (sentences, sizes.length * beam, width), dtype))
                cross.append(self._take(f"cross.{name}", (sentences, sizes.source, width), dtype))
            caches.append(StaticCache(own, cross))
        tree = (sizes.length, sentences, sizes.candidates)
        return StaticState(
            sizes=sizes,
            caches=caches,
            source_lengths=self._take("source_lengths", (sentences,), torch.int32),
            ancestors=self._take("ancestors", (sentences, beam, sizes.length), torch.int32),
            counters=self._take("counters", (3,), torch.long),
            increments=torch.tensor([1, 1, sentences * sizes.candidates], device=self._device),
            rules=self._take("rules", (self._max_positions, _SPECIAL + 1), torch.float32),
            limits=self._take("limits", (sentences,), torch.long),
            last_penalties=self._take("last_penalties", (sentences,), torch.float32),
            ids=self._take("ids", (sentences, beam), torch.long),
            log_probs=self._take("log_probs", (sentences, beam), torch.float32),
            nodes=self._take("nodes", (sentences, beam), torch.long),
            finished=FinishedHypotheses(
                self._take("finished_log_probs", (sentences, nbest), torch.float32),
                self._take("finished_scores", (sentences, nbest), torch.float32),
                self._take("finished_nodes", (sentences, nbest), torch.long),
            ),
            is_done=self._take("is_done", (sentences,), torch.bool),
            tree_pieces=self._take("tree_pieces", tree, torch.long),
            tree_parents=self._take("tree_parents", tree, torch.long),
            tree_log_probs=self._take("tree_log_probs", tree, torch.float32),
        )

    def _take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The beginning of the tensor of that name. It is zero, or was written to before, so it is never NaN."""
        size = math.prod(shape)
        if name not in self._memory or self._memory[name].numel() < size:
            if self._memory.pop(name, None) is not None:
                # Recordings hold the memory that they use: they go before a larger tensor is allocated.
                self._drop_recordings()
            self._memory[name] = torch.zeros(size, dtype=dtype, device=self._device)
        return self._memory[name][:size].view(shape)

    def _forget(self) -> None:
        """Give back all memory."""
        self._memory = {}
        self._drop_recordings()

    def _drop_recordings(self) -> None:
        """Drop all recordings, which use other addresses, and their memory."""
        for state in self._states.values():
            state.replay = None  # a search that moves to another state still has this one
        self._states.clear()
        self._recorder.renew()

    def _step(self, state: StaticState) -> None:
        """Add a piece to each open hypothesis: the first step of a state runs, the second is recorded and replayed."""

        def advance() -> None:
            self._advance(state)

        if state.replay is None and state.is_warm and not self._has_failed:
            try:
                state.replay = self._recorder.record(advance)
            except RuntimeError as problem:
                reason = str(problem).strip().partition("\n")[0]
                logger.warning("no CUDA graph can be made (%s): steps take longer to launch", reason)
                self._has_failed = True
                self._drop_recordings()
        if state.replay is not None:
            state.replay()
        elif self._has_failed:
            advance()
        else:
            self._recorder.run_beside(advance)
            state.is_warm = True

    def _advance(self, state: StaticState) -> None:
        """Add a piece to each open hypothesis, with a fixed sequence of kernels."""
        hypotheses = choose_candidates(state, self._logits(state), uses_kernels=self._uses_kernels)
        sort_candidates(state, hypotheses, uses_kernels=self._uses_kernels)
        state.counters.add_(state.increments)

    def _logits(self, state: StaticState) -> Tensor:
        """Logits [R, V] of the next pieces; with several models the logarithm of their summed probabilities."""
        seen = StepInputs(state.ancestors, state.source_lengths, state.counters)
        each = [
            model.logits(static_step(model, state.ids.flatten(), cache, seen, uses_kernels=self._uses_kernels))
            for model, cache in zip(self._models, state.caches, strict=True)
        ]
        if len(each) == 1:
            return each[0]
        return torch.stack([logits.log_softmax(dim=-1, dtype=torch.float32) for logits in each]).logsumexp(dim=0)


def choose_candidates(state: StaticState, logits: Tensor, *, uses_kernels: bool) -> Tensor:
    """The hypotheses [B, C] that the best candidates continue; the candidates go into the tree's next row.

    The hypotheses are the same as from `candidates`, for logits [R, V], by kernels in Triton or by PyTorch's operators.
    """
    if uses_kernels and state.sizes.beam <= _WIDEST_BEAM:
        return _choose_by_kernels(state, logits)
    log_probs = logits.log_softmax(dim=-1, dtype=torch.float32)
    log_probs[:, :_SPECIAL].add_(state.rules.index_select(0, state.counters[:1])[:, :_SPECIAL])
    found = candidates(log_probs, state.log_probs, count=state.sizes.candidates)
    row = state.counters[1:2]
    state.tree_log_probs.index_copy_(0, row, found.log_probs[None])
    state.tree_pieces.index_copy_(0, row, found.pieces[None])
    state.tree_parents.index_copy_(0, row, state.nodes.gather(1, found.hypotheses)[None])
    return found.hypotheses


def sort_candidates(state: StaticState, hypotheses: Tensor, *, uses_kernels: bool) -> None:
    """Sort the candidates of the tree's current row, which continue `hypotheses` [B, C], into finished and open ones.

    Candidates with EOS end. The W best others are the new open hypotheses; they end too if the sentence reached its
    limit. A sentence is done at its limit, or if none of its open hypotheses can improve its finished ones.
    """
    if uses_kernels:
        _sort_by_kernel(state, hypotheses)
        return
    row, place = state.counters[1:2], state.counters[:1]
    totals, pieces = (column.index_select(0, row)[0] for column in (state.tree_log_probs, state.tree_pieces))
    nodes = torch.arange(totals.numel(), device=totals.device).view_as(totals) + state.counters[2:]
    is_end, is_last = pieces == EOS, state.limits <= place + 1
    open_log_probs, order = keep_open(totals, is_end, width=state.sizes.beam)
    state.log_probs.copy_(open_log_probs)
    torch.gather(pieces, 1, order, out=state.ids)
    torch.gather(nodes, 1, order, out=state.nodes)

    best = finish(
        state.finished,
        torch.cat([totals, state.log_probs], dim=1),
        torch.cat([nodes, state.nodes], dim=1),
        penalties=state.rules.index_select(0, place)[:, _SPECIAL:],
        where=torch.cat([is_end, is_last[:, None].expand_as(state.ids)], dim=1) & ~state.is_done[:, None],
    )
    state.finished.copy_(best)
    state.is_done.logical_or_(cannot_improve(best, state.log_probs, state.last_penalties).logical_or_(is_last))

    continued = hypotheses.gather(1, order)
    state.ancestors.copy_(state.ancestors.gather(1, continued[:, :, None].expand_as(state.ancestors)))
    state.ancestors.index_copy_(2, place, continued[:, :, None].to(state.ancestors.dtype))


def _choose_by_kernels(state: StaticState, logits: Tensor) -> Tensor:
    from triton import cdiv, next_power_of_2

    from nmt_cli.model.kernels import search as kernels

    sizes, (num_rows, vocabulary) = state.sizes, logits.shape
    block = max(_NARROWEST_BLOCK, next_power_of_2(cdiv(vocabulary, _MOST_BLOCKS)))
    num_blocks = cdiv(vocabulary, block)
    tile = min(next_power_of_2(num_blocks), max(1, _TILE // block))
    largest = torch.empty(num_rows, num_blocks, device=logits.device)
    log_sums = torch.empty_like(largest)
    hypotheses = torch.empty(sizes.sentences, sizes.candidates, dtype=torch.int32, device=logits.device)
    kernels.summarise_blocks[(num_rows, cdiv(num_blocks, tile))](
        logits,
        state.rules,
        state.counters,
        largest,
        log_sums,
        logits.stride(0),
        vocabulary,
        num_blocks,
        SPECIAL=_SPECIAL,
        BLOCK=block,
        TILE=tile,
    )
    kernels.choose_candidates[(sizes.sentences,)](
        logits,
        largest,
        log_sums,
        state.rules,
        state.counters,
        state.log_probs,
        state.nodes,
        state.tree_log_probs,
        state.tree_pieces,
        state.tree_parents,
        hypotheses,
        logits.stride(0),
        vocabulary,
        num_blocks,
        sizes.beam,
        sizes.candidates,
        SPECIAL=_SPECIAL,
        BLOCK=block,
        BLOCKS=next_power_of_2(num_blocks),
        BEAM=next_power_of_2(sizes.beam),
        CANDIDATES=next_power_of_2(sizes.candidates),
        num_warps=min(16, max(4, next_power_of_2(sizes.beam) * next_power_of_2(num_blocks) // _KEYS_PER_WARP)),
    )
    return hypotheses


def _sort_by_kernel(state: StaticState, hypotheses: Tensor) -> None:
    from triton import next_power_of_2

    from nmt_cli.model.kernels import search as kernels

    sizes = state.sizes
    kernels.sort_candidates[(sizes.sentences,)](
        state.tree_log_probs,
        state.tree_pieces,
        hypotheses,
        state.rules,
        state.counters,
        state.limits,
        state.last_penalties,
        state.ids,
        state.log_probs,
        state.nodes,
        state.ancestors,
        state.finished.log_probs,
        state.finished.scores,
        state.finished.nodes,
        state.is_done,
        sizes.beam,
        sizes.candidates,
        sizes.nbest,
        sizes.length,
        SPECIAL=_SPECIAL,
        CANDIDATES=next_power_of_2(sizes.candidates),
        ENDINGS=next_power_of_2(sizes.nbest),
        TILE=_POSITIONS,
        num_warps=min(16, max(1, next_power_of_2(sizes.candidates) // 8)),
    )


def _rules(num_places: int, *, config: DecodingConfig) -> Tensor:
    """`StaticState.rules` of the first positions."""
    never = [-math.inf if piece in NEVER_GENERATED else 0.0 for piece in range(EOS)]
    return torch.tensor(
        [
            [*never, -math.inf if place < config.min_tokens else 0.0, length_penalty(place + 1, config=config)]
            for place in range(num_places)
        ]
    )


def _doubled(least: int, needed: int) -> int:
    """The first of `least`, twice `least`, and so on that is enough."""
    return least << max(0, math.ceil(math.log2(needed / least))) if needed > least else least
