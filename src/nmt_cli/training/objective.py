"""The loss of a batch under a model, through its layers as they are or compiled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn

from nmt_cli.dataset.batches import Batch
from nmt_cli.devices import is_out_of_memory, missing_for_triton
from nmt_cli.errors import DeviceError
from nmt_cli.model.attention import choose_kernel
from nmt_cli.model.dropout import Dropout
from nmt_cli.model.layers import FeedForward, Residual
from nmt_cli.model.packing import SHORT, Spans
from nmt_cli.model.transformer import Embedding, Transformer
from nmt_cli.recipe.schema import Recipe
from nmt_cli.tokenization.tokenizer import PAD
from nmt_cli.training.loss import GradientsOf, Loss, smoothed_cross_entropy

# Weights lie end to end in one vector, and layers that share a graph need theirs at multiples of 16 bytes.
_WIDTH_MULTIPLE = 8
_log = logging.getLogger(__name__)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Objective(Protocol):
    """Computes the loss of a batch, summed over its target tokens, with gradients for the model's parameters."""

    def __call__(self, batch: Batch) -> Loss:
        """The loss of a batch."""


class PlainObjective:
    """The loss through the model's own layers."""

    def __init__(self, model: Transformer, *, smoothing: float) -> None:
        self._model, self._smoothing = model, smoothing

    def __call__(self, batch: Batch) -> Loss:
        """The loss of a batch."""
        memory = self._model.encode(batch.source)
        hidden = self._model.decode(batch.target, memory, batch.source)
        return _loss(self._model, hidden, batch.gold, smoothing=self._smoothing, gradients_of=None)


class CompiledObjective:
    """The same loss through compiled parts, for batches of one shape; the model itself stays as it is.

    Each kind of layer and the placing of embeddings are compiled. The loss has a Triton kernel. Compiled code sees only
    tensors of fixed shapes and `bound`, so all layers of a kind share one graph, and no batch needs another graph. The
    products with the embedding matrix are left to libraries.
    """

    def __init__(self, model: Transformer, *, smoothing: float) -> None:
        from nmt_cli.model.kernels.loss import gradients_by_rows

        torch.compiler.reset()  # torch limits how often a function is compiled, other models included
        self._model, self._smoothing = model, smoothing
        self._place, self._encode, self._decode = compiled(_place), compiled(_encode), compiled(_decode)
        self._gradients_of = partial(gradients_by_rows, pad=PAD)
        dropouts = [module for module in model.modules() if isinstance(module, Dropout)]
        self._seeds = torch.zeros(len(dropouts), 2, dtype=torch.int32, device=model.output_weight.device)
        for dropout, seed in zip(dropouts, self._seeds.unbind(), strict=True):
            dropout.seed = seed
        for module in model.modules():
            if isinstance(module, Residual | FeedForward):
                module.uses_kernels = True

    def __call__(self, batch: Batch) -> Loss:
        """The loss of a batch."""
        self._seeds.random_(-(2**31), 2**31)
        model, source, target = self._model, batch.source.spans, batch.target.spans
        memory, hidden = self._embed(batch)
        for layer in model.encoder:
            memory = self._encode(layer, memory, source)
        memory = model.encoder_norm(memory)
        for layer in model.decoder:
            hidden = self._decode(layer, hidden, target, memory, source)
        hidden = model.decoder_norm(hidden)
        return _loss(model, hidden, batch.gold, smoothing=self._smoothing, gradients_of=self._gradients_of)

    def _embed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The inputs of encoder [M, D] and decoder [N, D]; the gradient of a shared matrix is computed once."""
        # Rows are gathered outside: compiled code would add up the gradients of a row in a random order.
        source, target = self._model.source_embedding, self._model.target_embedding
        if source.weight is target.weight:
            ids = torch.cat([batch.source.ids, batch.target.ids])
            source_rows, target_rows = source.rows(ids).split([len(batch.source.ids), len(batch.target.ids)])
        else:
            source_rows, target_rows = source.rows(batch.source.ids), target.rows(batch.target.ids)
        memory = self._place(source, source_rows, source.encodings(batch.source.positions))
        return memory, self._place(target, target_rows, target.encodings(batch.target.positions))


def compiled(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The function, compiled as a whole at its first call, for the shapes and numbers of its arguments."""
    return torch.compile(function, fullgraph=True, dynamic=False)


def reason_not_to_compile(recipe: Recipe, *, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why a model that computes in `dtype` on `device` is not compiled; None if it is."""
    if device.type == "cpu":
        return "on a CPU"
    if not recipe.training.compile:
        return "training.compile is false"
    model = recipe.model
    if model.d_model % _WIDTH_MULTIPLE or model.d_ff % _WIDTH_MULTIPLE:
        return f"d_model or d_ff is no multiple of {_WIDTH_MULTIPLE}"
    kernel = choose_kernel(device, dtype, d_k=model.d_k, d_v=model.d_v, window=model.encoder_window, bound=SHORT)
    if kernel not in ("triton", "varlen"):
        return f"with {kernel} attention, shapes change from batch to batch"
    return missing_for_triton()


def warn_of_missing_tool(reason: str | None) -> None:
    """Warn if the reason not to compile is a tool that the user can install."""
    if reason is not None and reason == missing_for_triton():
        _log.warning("the model is not compiled, and training is slower: %s", reason)


@contextmanager
def compiling(device: torch.device) -> Iterator[None]:
    """A context for first calls of compiled functions: DeviceError if they cannot be compiled."""
    try:
        yield
    except RuntimeError as problem:
        from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException

        if not isinstance(problem, TorchDynamoException) or is_out_of_memory(problem, is_told=True):
            raise
        reason = problem.inner_exception if isinstance(problem, BackendCompilerFailed) else problem
        raise DeviceError(
            f"the model cannot be compiled for {device}",
            where=str(reason).strip().partition("\n")[0],
            hint="--no-compile trains without; compiling needs the Triton that came with torch, and a C compiler",
        ) from problem


def _loss(
    model: Transformer, hidden: Tensor, gold: Tensor, *, smoothing: float, gradients_of: GradientsOf | None
) -> Loss:
    return smoothed_cross_entropy(
        hidden,
        model.output_weight,
        gold,
        output_bias=model.output_bias,
        vocab=model.target_vocab,
        smoothing=smoothing,
        gradients_of=gradients_of,
    )


def _place(embedding: Embedding, rows: Tensor, encodings: Tensor | None) -> Tensor:
    return embedding.place(rows, encodings)


def _encode(layer: nn.Module, x: Tensor, source: Spans) -> Tensor:
    out: Tensor = layer(x, own=lambda module, y: module(y, source))
    return out


def _decode(layer: nn.Module, x: Tensor, target: Spans, memory: Tensor, source: Spans) -> Tensor:
    out: Tensor = layer(
        x, own=lambda module, y: module(y, target), cross=lambda module, y: module(y, target, memory, source)
    )
    return out
