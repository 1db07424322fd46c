"""Beam search for GPUs: each step uses the same memory and shapes, so it is recorded once and replayed.

Shapes: B sentences, W hypotheses per sentence, R = B * W rows, V vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import Lock

import torch
from torch import Tensor

from nmt_cli.decoding.search.active_search import STEPS_BETWEEN_CHECKS
from nmt_cli.decoding.search.ensemble import NEVER_GENERATED
from nmt_cli.decoding.search.hypotheses import (
    FinishedHypotheses,
    Hypothesis,
    HypothesisTree,
    SourceSentence,
    length_penalty,
)
from nmt_cli.decoding.search.searcher import Searcher
from nmt_cli.decoding.search.static_state import (
    MAX_BEAM,
    NUM_SPECIAL,
    StaticSizes,
    StaticState,
    advance_hypotheses,
    choose_candidates,
)
from nmt_cli.errors import first_line
from nmt_cli.memory import is_out_of_memory
from nmt_cli.model.attention import triton_problem
from nmt_cli.model.cuda_graphs import CudaGraphs, launching_on
from nmt_cli.model.packing import pack
from nmt_cli.model.static_cache import StaticCache, StepInputs, cache_width, static_step, write_source
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import DecodingConfig
from nmt_cli.tokenization.tokenizer import BOS, EOS

logger = logging.getLogger(__name__)

_MAX_RECORDINGS = 64  # states kept; the least recently used goes


@dataclass(slots=True)
class _Batch:
    """Sentences searched together, as the host knows them.

    `sentences[i]` is the number of the sentence at index i of the state. Later indices are unused, and their content is
    ignored. `step` counts the tokens of each hypothesis; the state's tree begins at `first_step`.
    """

    limits: list[int]
    sentences: list[int]
    tree: HypothesisTree = field(default_factory=HypothesisTree)
    step: int = 0
    first_step: int = 0


def searcher_for(models: Sequence[Transformer], *, device: torch.device) -> Searcher:
    """The search by these models, which are on `device`."""
    if device.type != "cuda":
        return Searcher(models, device=device)
    # The time to record a step is saved again within a batch or two.
    return CudaSearch(models, device=device, recorder=CudaGraphs(device))


class CudaSearch(Searcher):
    """Beam search and greedy search with the results of `Searcher`, which does what is not supported here.

    The models must stay in place. A finished sentence stays in the batch until the open ones fit a smaller size.
    Threads take turns, because all searches use the same memory.
    """

    def __init__(self, models: Sequence[Transformer], *, device: torch.device, recorder: CudaGraphs) -> None:
        super().__init__(models, device=device)
        self._recorder = recorder
        self._vocab = models[0].target_vocab
        self._cannot_record = self._has_warned = False
        self._lock = Lock()
        # The states of all sizes share this memory, one at a time: tensors as large as the largest size needed.
        self._memory: dict[str, Tensor] = {}
        self._states: dict[StaticSizes, StaticState] = {}

    @cached_property
    def _has_kernels(self) -> bool:
        """Whether the device runs our kernels; a warning says why not."""
        if (problem := triton_problem(self._device)) is not None:
            logger.warning("Triton does not work here (%s): the search records no steps, and is slower", problem)
        return problem is None

    def supports(self, sources: Sequence[SourceSentence], *, config: DecodingConfig) -> bool:
        """Whether this search can run here: kernels, a full beam, and no sampling, prefix, target symbol or watch."""
        is_watched = config.no_repeat_ngram > 0 or config.stop_loops
        if config.samples or is_watched or config.beam > MAX_BEAM:
            return False
        if any(source.prefix or source.symbols.target for source in sources):
            return False
        # Each step needs enough candidates.
        return self._vocab >= 2 * config.beam + len(NEVER_GENERATED) and self._has_kernels

    def search(
        self, sources: Sequence[SourceSentence], *, config: DecodingConfig, nbest: int
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, at most `nbest`, best first."""
        if not self.supports(sources, config=config):
            return super().search(sources, config=config, nbest=nbest)
        limits = self._limits(sources, config=config)
        with self._lock:
            self._cannot_record = False
            try:
                with torch.inference_mode(), launching_on(self._device):
                    batch = _Batch(limits, sentences=list(range(len(sources))))
                    return self._search(batch, self._start(batch, sources, config=config, nbest=nbest))
            except (RuntimeError, MemoryError) as error:
                if is_out_of_memory(error, counts_vague_errors=True):
                    self.free_memory()
                raise

    def free_memory(self) -> None:
        """Give back the memory of all states and recordings; the next search takes it anew."""
        self._memory = {}
        self._drop_recordings()

    def state_for(self, sizes: StaticSizes) -> StaticState:
        """The state of these sizes, kept with its recording if it was used recently."""
        state = self._states.pop(sizes, None)
        if state is None:
            state = self._new_state(sizes)
            if len(self._states) >= _MAX_RECORDINGS:
                self._states.pop(next(iter(self._states)))
        self._states[sizes] = state
        return state

    def _search(self, batch: _Batch, state: StaticState) -> list[list[Hypothesis]]:
        """Search all sentences. After every few steps, finished ones leave if the open ones fit a smaller state."""
        while True:
            last_limit = max(batch.limits[sentence] for sentence in batch.sentences)
            num_steps = min(STEPS_BETWEEN_CHECKS["cuda"], state.sizes.positions - batch.step, last_limit - batch.step)
            for _ in range(num_steps):
                self._step(state)
                batch.step += 1
            is_done = state.is_done[: len(batch.sentences)].tolist()
            if all(is_done):
                self._add_to_tree(batch, state, list(range(len(is_done))))
                return batch.tree.results()
            is_full = batch.step == state.sizes.positions
            sizes = StaticSizes.with_room(
                num_sentences=is_done.count(False),
                source_tokens=state.sizes.source_tokens,
                positions=batch.step + 1 if is_full else state.sizes.positions,
                beam=state.sizes.beam,
                nbest=state.sizes.nbest,
            )
            if sizes != state.sizes:
                state = self._move(batch, state, sizes, is_done=is_done)

    def _start(
        self, batch: _Batch, sources: Sequence[SourceSentence], *, config: DecodingConfig, nbest: int
    ) -> StaticState:
        """A state with the sources, and one open hypothesis each: BOS."""
        packed = pack([source.encoder_ids for source in sources], device=self._device)
        count = len(sources)
        sizes = StaticSizes.with_room(
            num_sentences=count, source_tokens=packed.max_len, positions=1, beam=config.beam, nbest=nbest
        )
        state = self.state_for(sizes)
        for model, cache in zip(self._models, state.caches, strict=True):
            write_source(model, cache, model.encode(packed), packed)
        state.source_lengths.fill_(1)[:count] = packed.lengths
        masks_and_penalties = _masks_and_penalties(max(batch.limits), config=config)
        state.masks_and_penalties[: len(masks_and_penalties)] = masks_and_penalties
        penalties = [length_penalty(limit, config=config) for limit in batch.limits]
        state.limits.fill_(1)[:count] = torch.tensor(batch.limits, device=self._device)
        state.penalties_at_limit.fill_(1.0)[:count] = torch.tensor(penalties, device=self._device)
        state.ids.fill_(BOS)
        state.log_probs.fill_(-math.inf)[:, 0] = 0.0
        state.nodes.fill_(-1)
        state.finished.log_probs.fill_(-math.inf)
        state.finished.scores.fill_(-math.inf)
        state.finished.nodes.fill_(-1)
        state.is_done.fill_(False)[count:] = True
        state.start_tree(position=batch.step, first_new_node=batch.tree.size)
        return state

    def _move(self, batch: _Batch, before: StaticState, sizes: StaticSizes, *, is_done: Sequence[bool]) -> StaticState:
        """The open sentences in a state of other sizes, maybe in the same memory; finished sentences leave."""
        after = self.state_for(sizes)
        open_indices = [index for index, sentence_is_done in enumerate(is_done) if not sentence_is_done]
        self._add_to_tree(batch, before, [index for index, sentence_is_done in enumerate(is_done) if sentence_is_done])
        num_unused = after.sizes.num_sentences - len(open_indices)
        moved = torch.tensor(open_indices + [open_indices[0]] * num_unused, device=self._device)
        for old, new in zip(before.tensors_by_sentence(), after.tensors_by_sentence(), strict=True):
            new.copy_(old.index_select(0, moved))
        used_slots = batch.step * before.sizes.beam
        for old_cache, new_cache in zip(before.caches, after.caches, strict=True):
            for old, new in zip(old_cache.own, new_cache.own, strict=True):
                new[:, :used_slots] = old[:, :used_slots].index_select(0, moved)
        after.ancestors[..., : batch.step] = before.ancestors[..., : batch.step].index_select(0, moved)
        after.is_done[len(open_indices) :] = True
        batch.sentences = [batch.sentences[index] for index in open_indices]
        batch.first_step = batch.step
        after.start_tree(position=batch.step, first_new_node=batch.tree.size)
        return after

    def _add_to_tree(self, batch: _Batch, state: StaticState, done_indices: list[int]) -> None:
        """Add the state's candidates to the tree of the batch, and the finished hypotheses at `done_indices`."""
        trees = (state.tree_tokens, state.tree_parents, state.tree_log_probs)
        tokens, parents, log_probs = (tree[: batch.step - batch.first_step].clone() for tree in trees)
        batch.tree.grow(tokens, parents, log_probs)
        sentences = torch.tensor([batch.sentences[index] for index in done_indices], dtype=torch.long)
        finished = state.finished.select(torch.tensor(done_indices, dtype=torch.long, device=self._device))
        batch.tree.add_finished(sentences, finished)

    def _new_state(self, sizes: StaticSizes) -> StaticState:
        sentences, beam, nbest = sizes.num_sentences, sizes.beam, sizes.nbest
        caches = []
        dtype = self._models[0].output_weight.dtype
        for number, model in enumerate(self._models):
            own, cross, width = [], [], cache_width(model)
            for layer in range(model.config.decoder_layers):
                name = f"{number}.{layer}"
                own.append(self._reserve(f"own.{name}", (sentences, sizes.positions * beam, width), dtype))
                cross.append(self._reserve(f"cross.{name}", (sentences, sizes.source_tokens, width), dtype))
            caches.append(StaticCache(own, cross))
        tree_shape, rows_shape = (sizes.positions, sentences, sizes.candidates), (self._max_positions, NUM_SPECIAL + 1)
        return StaticState(
            sizes=sizes,
            caches=caches,
            source_lengths=self._reserve("source_lengths", (sentences,), torch.int32),
            ancestors=self._reserve("ancestors", (sentences, beam, sizes.positions), torch.int32),
            counters=self._reserve("counters", (3,), torch.long),
            masks_and_penalties=self._reserve("masks_and_penalties", rows_shape, torch.float32),
            limits=self._reserve("limits", (sentences,), torch.long),
            penalties_at_limit=self._reserve("penalties_at_limit", (sentences,), torch.float32),
            ids=self._reserve("ids", (sentences, beam), torch.long),
            log_probs=self._reserve("log_probs", (sentences, beam), torch.float32),
            nodes=self._reserve("nodes", (sentences, beam), torch.long),
            finished=FinishedHypotheses(
                self._reserve("finished_log_probs", (sentences, nbest), torch.float32),
                self._reserve("finished_scores", (sentences, nbest), torch.float32),
                self._reserve("finished_nodes", (sentences, nbest), torch.long),
            ),
            is_done=self._reserve("is_done", (sentences,), torch.bool),
            tree_tokens=self._reserve("tree_tokens", tree_shape, torch.long),
            tree_parents=self._reserve("tree_parents", tree_shape, torch.long),
            tree_log_probs=self._reserve("tree_log_probs", tree_shape, torch.float32),
        )

    def _reserve(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor in the memory of that name. It holds zeros, or what earlier searches left in it."""
        size = math.prod(shape)
        if name not in self._memory or self._memory[name].numel() < size:
            if self._memory.pop(name, None) is not None:
                # Recordings hold the memory that they use: they go before a larger tensor is allocated.
                self._drop_recordings()
            self._memory[name] = torch.zeros(size, dtype=dtype, device=self._device)
        return self._memory[name][:size].view(shape)

    def _drop_recordings(self) -> None:
        """Drop all recordings, and their memory."""
        for state in self._states.values():
            state.replay = None  # `_move` may still hold this state, so its replay is dropped too
        self._states.clear()
        self._recorder.use_new_pool()

    def _step(self, state: StaticState) -> None:
        """Add a token to each open hypothesis: the first step of a state runs, the second is recorded and replayed."""
        launch = partial(self._launch_step, state)
        if state.replay is None and state.is_warm and not self._cannot_record:
            self._record(state, launch)
        if state.replay is not None:
            state.replay()
        elif self._cannot_record:
            launch()
        else:
            self._recorder.run_on_recording_stream(launch)
            state.is_warm = True

    def _record(self, state: StaticState, launch: Callable[[], None]) -> None:
        """Record the step of a state; after a failure, all later steps of this search are launched."""
        try:
            state.replay = self._recorder.record(launch)
        except RuntimeError as error:
            # Also if it is out of memory: steps that are launched need none for recordings, and the next search may.
            if not self._has_warned:
                logger.warning("no CUDA graph can be made (%s): steps take longer to launch", first_line(error))
            self._cannot_record = self._has_warned = True
            self._drop_recordings()

    def _launch_step(self, state: StaticState) -> None:
        """Add a token to each open hypothesis, with a fixed sequence of kernels."""
        hypotheses = choose_candidates(state, self._logits(state))
        advance_hypotheses(state, hypotheses)
        state.advance_counters()

    def _logits(self, state: StaticState) -> Tensor:
        """Logits [R, V] of the next tokens; with several models the logarithm of their summed probabilities."""
        inputs = StepInputs(state.ancestors, state.source_lengths, state.counters)
        logits_by_model = [
            model.logits(static_step(model, state.ids.flatten(), cache, inputs))
            for model, cache in zip(self._models, state.caches, strict=True)
        ]
        if len(logits_by_model) == 1:
            return logits_by_model[0]
        log_probs = [logits.log_softmax(dim=-1, dtype=torch.float32) for logits in logits_by_model]
        return torch.stack(log_probs).logsumexp(dim=0)


def _masks_and_penalties(num_positions: int, *, config: DecodingConfig) -> Tensor:
    """The first rows of `StaticState.masks_and_penalties`: special pieces that may not come next get -inf."""
    mask_before_eos = [-math.inf if piece in NEVER_GENERATED else 0.0 for piece in range(EOS)]
    rows = []
    for position in range(num_positions):
        mask_of_eos = -math.inf if position < config.min_tokens else 0.0
        rows.append([*mask_before_eos, mask_of_eos, length_penalty(position + 1, config=config)])
    return torch.tensor(rows)
