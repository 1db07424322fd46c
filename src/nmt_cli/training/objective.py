"""The loss of a batch through a model's layers, as they are or compiled; and steps recorded as CUDA graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from nmt_cli.dataset.batches import Batch
from nmt_cli.devices import SHORT_SENTENCE_TOKENS, missing_for_triton
from nmt_cli.errors import DeviceError
from nmt_cli.memory import is_out_of_memory
from nmt_cli.model.attention import choose_kernel
from nmt_cli.model.dropout import Dropout
from nmt_cli.model.layers import FeedForward, Residual
from nmt_cli.model.packing import Spans
from nmt_cli.model.transformer import Embedding, Transformer
from nmt_cli.recipe.schema import Recipe
from nmt_cli.tokenization.tokenizer import PAD
from nmt_cli.training.consistency import Consistency, interleaved_order
from nmt_cli.training.loss import ONE_PASS, Loss, LossAndGradient, LossFunction, smoothed_cross_entropy

# Weights lie end to end in one vector, and layers that share a graph need theirs at multiples of 16 bytes.
_WIDTH_MULTIPLE = 8
logger = logging.getLogger(__name__)

# Compiles a function as a whole at its first call, for the shapes and numbers of its arguments.
compiled = partial(torch.compile, fullgraph=True, dynamic=False)

Objective = Callable[[Batch], Loss]
"""Computes the loss of a batch, summed over its target tokens, with gradients for the model's parameters."""

Recorder = Callable[[Callable[[], None]], Callable[[], None]]
"""Records a function: returns one that repeats its work on the same memory. RuntimeError if that is impossible."""


def plain_loss(model: Transformer, smoothing: float, batch: Batch, *, consistency: Consistency | None = None) -> Loss:
    """The loss of a batch through the model's own layers. With `consistency` the batch holds each pair twice."""
    function = ONE_PASS
    if consistency is not None:
        batch, function = consistency.with_cuts(batch), consistency.loss_function
    hidden = model.decode(batch.target, model.encode(batch.source), batch.source)
    return _loss(model, hidden, batch.gold, smoothing=smoothing, function=function)


class CompiledObjective:
    """The same loss through compiled parts, for batches of one shape; the model itself stays as it is.

    Each kind of layer and the input of the first layer are compiled. The loss has a Triton kernel. Compiled code sees
    only tensors of fixed shapes and `bound`, so all layers of a kind share one graph, and no batch needs another graph.
    The products with the embedding matrix are left to libraries.
    """

    def __init__(self, model: Transformer, *, smoothing: float, consistency: Consistency | None) -> None:
        from nmt_cli.model.kernels.loss import loss_and_gradient, loss_and_gradient_of_both_passes

        torch.compiler.reset()  # torch limits how often a function is compiled, other models included
        self._model, self._smoothing, self._consistency = model, smoothing, consistency
        self._first_layer_input = compiled(_first_layer_input)
        self._encode, self._decode = compiled(_encode), compiled(_decode)
        kernel: LossAndGradient = partial(loss_and_gradient, pad=PAD)
        if consistency is not None:
            weights = (*consistency.loss_weights, *consistency.divergence_weights)
            kernel = partial(loss_and_gradient_of_both_passes, weights=weights, pad=PAD)
        self._function = LossFunction(kernel, rows_per_token=1 if consistency is None else 2, takes_all_rows=True)
        dropouts = [module for module in model.modules() if isinstance(module, Dropout) and module.probability > 0]
        self._seeds = torch.zeros(len(dropouts), 2, dtype=torch.int32, device=model.output_weight.device)
        for dropout, seed in zip(dropouts, self._seeds.unbind(), strict=True):
            dropout.seed = seed
        for module in model.modules():
            if isinstance(module, Residual | FeedForward):
                module.uses_kernels = True

    def __call__(self, batch: Batch) -> Loss:
        """The loss of a batch."""
        self._seeds.random_(-(2**31), 2**31)
        if self._consistency is not None:
            batch = self._consistency.with_cuts(batch)
        model, source, target = self._model, batch.source.spans, batch.target.spans
        memory, hidden = self._embed(batch)
        for layer in model.encoder:
            memory = self._encode(layer, memory, source)
        memory = model.encoder_norm(memory)
        for layer in model.decoder:
            hidden = self._decode(layer, hidden, target, memory, source)
        hidden = model.decoder_norm(hidden)
        return _loss(model, hidden, batch.gold, smoothing=self._smoothing, function=self._function)

    def _embed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The inputs of encoder [M, D] and decoder [N, D]; the gradient of a shared matrix is computed once."""
        # Rows are gathered outside: compiled code would add up the gradients of a row in a random order.
        source, target = self._model.source_embedding, self._model.target_embedding
        if source.weight is target.weight:
            ids = torch.cat([batch.source.ids, batch.target.ids])
            source_rows, target_rows = source.rows(ids).split([len(batch.source.ids), len(batch.target.ids)])
        else:
            source_rows, target_rows = source.rows(batch.source.ids), target.rows(batch.target.ids)
        source_rows = source.drop_words(source_rows, batch.source)
        target_rows = target.drop_words(target_rows, batch.target)
        memory = self._first_layer_input(source, source_rows, source.encodings(batch.source.positions))
        return memory, self._first_layer_input(target, target_rows, target.encodings(batch.target.positions))


def reason_not_to_compile(recipe: Recipe, *, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why a model that computes in `dtype` on `device` is not compiled; None if it is."""
    if device.type == "cpu":
        return "on a CPU"
    if not recipe.training.compile:
        return "training.compile is false"
    model = recipe.model
    if model.d_model % _WIDTH_MULTIPLE or model.d_ff % _WIDTH_MULTIPLE:
        return f"d_model or d_ff is no multiple of {_WIDTH_MULTIPLE}"
    kernel = choose_kernel(
        device,
        dtype,
        d_k=model.d_k,
        d_v=model.d_v,
        window=model.encoder_window,
        bound=SHORT_SENTENCE_TOKENS,
        has_dropout=model.attention_dropout > 0,
    )
    if kernel not in ("triton", "varlen"):
        return f"with {kernel} attention, shapes change from batch to batch"
    missing = missing_for_triton()
    return None if missing is None else str(missing)


def warn_of_missing_tool(reason: str | None) -> None:
    """Warn if the reason not to compile is a tool that the user can install."""
    if reason is not None and reason == str(missing_for_triton()):
        logger.warning("the model is not compiled, and training is slower: %s", reason)


@contextmanager
def compiling(device: torch.device) -> Iterator[None]:
    """A context for first calls of compiled functions: DeviceError if they cannot be compiled."""
    try:
        yield
    except RuntimeError as problem:
        from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException

        if not isinstance(problem, TorchDynamoException) or is_out_of_memory(problem, must_name_memory=True):
            raise
        reason = problem.inner_exception if isinstance(problem, BackendCompilerFailed) else problem
        raise DeviceError(
            f"the model cannot be compiled for {device}",
            where=str(reason).strip().partition("\n")[0],
            hint="--no-compile trains without; compiling needs the Triton that came with torch, and a C compiler",
        ) from problem


def _loss(model: Transformer, hidden: Tensor, gold: Tensor, *, smoothing: float, function: LossFunction) -> Loss:
    if function.takes_both_passes:
        order = interleaved_order(gold)
        hidden, gold = hidden.index_select(0, order), gold.index_select(0, order)
    return smoothed_cross_entropy(
        hidden,
        model.output_weight,
        gold,
        output_bias=model.output_bias,
        vocab=model.target_vocab,
        smoothing=smoothing,
        function=function,
    )


def _first_layer_input(embedding: Embedding, rows: Tensor, encodings: Tensor | None) -> Tensor:
    return embedding.first_layer_input(rows, encodings)


def _encode(layer: nn.Module, x: Tensor, source: Spans) -> Tensor:
    out: Tensor = layer(x, self_attend=lambda module, y: module(y, source))
    return out


def _decode(layer: nn.Module, x: Tensor, target: Spans, memory: Tensor, source: Spans) -> Tensor:
    out: Tensor = layer(
        x,
        self_attend=lambda module, y: module(y, target),
        cross_attend=lambda module, y: module(y, target, memory, source),
    )
    return out


class Step(Protocol):
    """Adds the gradients of a batch's loss, divided by a float32 scalar, to their sum."""

    def __call__(self, batch: Batch, divisor: Tensor, *, is_first: bool) -> Tensor:
        """The sums of the batch's `Loss`; the first step of an update begins the sum anew."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """Replays of the first step of an update and of later steps, and the memory that they share.

    A replay reads the batch and its divisor from this memory, and writes the losses into it.
    """

    batch: Batch
    divisor: Tensor
    losses: Tensor
    first: Callable[[], None]
    later: Callable[[], None]


class RecordedSteps:
    """Two recorded steps for each `bound`: one for the first micro-batch of an update, one for later micro-batches.

    In all else, batches have one shape.
    """

    def __init__(self, step: Step, recorder: Recorder, *, num_losses: int) -> None:
        self._step, self._recorder, self._num_losses = step, recorder, num_losses
        self._recorded: dict[int, _Recorded] = {}
        self._cannot_record = False

    def __contains__(self, batch: Batch) -> bool:
        return batch.source.bound in self._recorded

    def record(self, batch: Batch) -> None:
        """Run the step with a batch, and record it, unless one with that bound was recorded before.

        If the device cannot record, a warning says so; from then on, no step is recorded or replayed.
        """
        if self._cannot_record or batch in self:
            return
        inputs, device = batch.map_tensors(Tensor.clone), batch.gold.device
        divisor, losses = torch.ones((), device=device), torch.zeros(self._num_losses, device=device)

        def step(*, is_first: bool) -> None:
            losses.copy_(self._step(inputs, divisor, is_first=is_first))

        try:
            first, later = (self._recorder(partial(step, is_first=is_first)) for is_first in (True, False))
        except RuntimeError as problem:
            if is_out_of_memory(problem, must_name_memory=True):
                raise
            reason = str(problem).strip().partition("\n")[0]
            logger.warning("no CUDA graph can be made (%s): updates take longer to launch", reason)
            self._cannot_record = True
            self._recorded.clear()  # replays use a generator that may be gone
            return
        self._recorded[batch.source.bound] = _Recorded(inputs, divisor, losses, first, later)

    def replay(self, batch: Batch, *, divisor: int, is_first: bool) -> Tensor:
        """Replay the step with another batch; return the sums of its `Loss`.

        A replay takes the same random numbers from torch's generators, seeded before, as the step itself.
        """
        recorded = self._recorded[batch.source.bound]
        for kept, new in zip(recorded.batch.tensors(), batch.tensors(), strict=True):
            if kept.shape != new.shape:
                raise ValueError(f"a batch has {list(new.shape)} where the recorded one had {list(kept.shape)}")
            kept.copy_(new, non_blocking=True)
        recorded.divisor.fill_(divisor)
        (recorded.first if is_first else recorded.later)()
        return recorded.losses.clone()
