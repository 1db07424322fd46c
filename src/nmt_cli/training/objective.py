"""The loss of a batch through a model's layers, as they are or compiled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from nmt_cli.dataset.batches import Batch
from nmt_cli.devices import SHORT_SENTENCE_TOKENS
from nmt_cli.errors import DeviceError, first_line
from nmt_cli.memory import is_out_of_memory
from nmt_cli.model.attention import Kernel, choose_kernel, triton_problem
from nmt_cli.model.dropout import new_seeds
from nmt_cli.model.transformer import Embedding, Transformer, run_decoder_layer, run_encoder_layer
from nmt_cli.recipe.schema import ModelConfig, Recipe
from nmt_cli.tokenization.tokenizer import PAD
from nmt_cli.training.consistency import Consistency, interleaved_order
from nmt_cli.training.guided_alignment import decode_with_alignment_loss
from nmt_cli.training.loss import ONE_PASS, Loss, LossAndGradient, LossFunction, smoothed_cross_entropy

# Weights lie end to end in one vector, and layers that share a graph need theirs at multiples of 16 bytes.
_WIDTH_MULTIPLE = 8
logger = logging.getLogger(__name__)

# Compiles a function as a whole at its first call, for the shapes and numbers of its arguments.
compile_whole = partial(torch.compile, fullgraph=True, dynamic=False)

Objective = Callable[[Batch], Loss]
"""Computes the loss of a batch, summed over its target tokens, with gradients for the model's parameters."""


def plain_loss(
    model: Transformer,
    smoothing: float,
    batch: Batch,
    *,
    consistency: Consistency | None = None,
    guided_alignment: float = 0.0,
) -> Loss:
    """The loss of a batch through the model's own layers. With `consistency` the batch holds each pair twice.

    The loss of alignment has the weight `guided_alignment` in the smoothed loss, if the batch has links.
    """
    function = ONE_PASS
    if consistency is not None:
        batch, function = consistency.with_cuts(batch), consistency.loss_function
    memory = model.encode(batch.source)
    if batch.links is None:
        hidden = model.decode(batch.target, memory, batch.source)
        return _loss(model, hidden, batch.gold, smoothing=smoothing, function=function)
    hidden, alignment = decode_with_alignment_loss(model, batch, memory)
    loss = _loss(model, hidden, batch.gold, smoothing=smoothing, function=function)
    return replace(loss, smoothed=loss.smoothed + guided_alignment / function.rows_per_token * alignment)


class CompiledObjective:
    """The same loss through compiled parts, for batches of one shape; the model itself stays as it is.

    Each kind of layer and the input of the first layer are compiled. The loss has a Triton kernel. Compiled code sees
    only tensors of fixed shapes and `length_bound`. So all layers of a kind share one graph, and no batch needs another
    graph. The products with the embedding matrix are left to libraries.
    """

    def __init__(self, model: Transformer, *, smoothing: float, consistency: Consistency | None) -> None:
        from nmt_cli.model.kernels.loss import loss_and_gradient, loss_and_gradient_of_both_passes

        torch.compiler.reset()  # torch limits how often a function is compiled, other models included
        self._model, self._smoothing, self._consistency = model, smoothing, consistency
        self._first_layer_input = compile_whole(Embedding.first_layer_input)
        self._encode, self._decode = compile_whole(run_encoder_layer), compile_whole(run_decoder_layer)
        kernel: LossAndGradient = partial(loss_and_gradient, pad=PAD)
        if consistency is not None:
            weights = (*consistency.loss_weights, *consistency.divergence_weights)
            kernel = partial(loss_and_gradient_of_both_passes, weights=weights, pad=PAD)
        self._function = LossFunction(kernel, rows_per_token=1 if consistency is None else 2, takes_all_rows=True)
        self._seeds = new_seeds(model, device=model.output_weight.device)

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
            source_rows, target_rows = source.look_up_ids(ids).split([len(batch.source.ids), len(batch.target.ids)])
        else:
            source_rows, target_rows = source.look_up_ids(batch.source.ids), target.look_up_ids(batch.target.ids)
        source_rows = source.drop_words(source_rows, batch.source)
        target_rows = target.drop_words(target_rows, batch.target)
        memory = self._first_layer_input(source, source_rows, source.look_up_positions(batch.source.positions))
        return memory, self._first_layer_input(target, target_rows, target.look_up_positions(batch.target.positions))


def reason_not_to_compile(recipe: Recipe, *, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why a model that computes in `dtype` on `device` is not compiled; None if it is."""
    if device.type == "cpu":
        return "on a CPU"
    if not recipe.training.compile:
        return "training.compile is false"
    if recipe.training.guided_alignment:
        return "with training.guided_alignment, the number of links changes from batch to batch"
    model = recipe.model
    if model.d_model % _WIDTH_MULTIPLE or model.d_ff % _WIDTH_MULTIPLE:
        return f"d_model or d_ff is no multiple of {_WIDTH_MULTIPLE}"
    kernel = attention_kernel(model, device=device, dtype=dtype)
    if kernel not in ("triton", "varlen"):
        return f"with {kernel} attention, shapes change from batch to batch"
    problem: str | None = triton_problem(device)
    return problem


def attention_kernel(model: ModelConfig, *, device: torch.device, dtype: torch.dtype) -> Kernel:
    """The kernel of attention for training on short sentences."""
    return choose_kernel(
        device,
        dtype,
        d_k=model.d_k,
        d_v=model.d_v,
        window=model.encoder_window,
        length_bound=SHORT_SENTENCE_TOKENS,
        has_dropout=model.attention_dropout > 0,
    )


def warn_of_triton_problem(reason: str | None, device: torch.device) -> None:
    """Warn if the reason not to compile is a Triton that does not work, because the user can mend it."""
    if reason is not None and reason == triton_problem(device):
        logger.warning("the model is not compiled, and training is slower: %s", reason)


@contextmanager
def compiling(device: torch.device) -> Iterator[None]:
    """A context for first calls of compiled functions: DeviceError if they cannot be compiled."""
    try:
        yield
    except RuntimeError as error:
        from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException

        if not isinstance(error, TorchDynamoException) or is_out_of_memory(error, counts_vague_errors=False):
            raise
        reason = error.inner_exception if isinstance(error, BackendCompilerFailed) else error
        raise DeviceError(
            f"the model cannot be compiled for {device}",
            where=first_line(reason),
            hint="--no-compile trains without; compiling needs the Triton that came with torch, and a C compiler",
        ) from error


def _loss(model: Transformer, hidden: Tensor, gold: Tensor, *, smoothing: float, function: LossFunction) -> Loss:
    if function.rows_per_token == 2:
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
