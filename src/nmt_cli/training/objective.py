"""The loss of a batch under a model, through its layers as they are or compiled."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from nmt_cli.dataset.batch import Batch
from nmt_cli.model.dropout import Dropout
from nmt_cli.model.layers import FeedForward, Residual
from nmt_cli.model.packing import Spans
from nmt_cli.model.transformer import Embedding, Transformer
from nmt_cli.tokenization.tokenizer import PAD
from nmt_cli.training.compiling import compiled
from nmt_cli.training.loss import GradientsOf, Loss, smoothed_cross_entropy


class Objective(Protocol):
    """Gives the loss of a batch, summed over its target tokens, with a way back to the model's parameters."""

    def __call__(self, batch: Batch) -> Loss:
        """The loss of a batch."""


class PlainObjective:
    """The loss by the model's own passes."""

    def __init__(self, model: Transformer, *, smoothing: float) -> None:
        self._model, self._smoothing = model, smoothing

    def __call__(self, batch: Batch) -> Loss:
        """The loss of a batch."""
        memory = self._model.encode(batch.source)
        hidden = self._model.decode(batch.target, memory, batch.source)
        return _loss(self._model, hidden, batch.gold, smoothing=self._smoothing, gradients_of=None)


class CompiledObjective:
    """The same loss through compiled parts, for batches of one shape; the model itself stays as it is.

    Each kind of layer and the placing of embeddings are compiled. The loss has a Triton kernel. They see tensors of
    fixed shapes and `bound` and nothing else of a batch, so that all layers of a kind share one graph, and no batch
    needs another. The products with the embedding matrix stay with the libraries.
    """

    def __init__(self, model: Transformer, *, smoothing: float) -> None:
        from nmt_cli.model.kernels.loss import gradients_by_rows

        torch.compiler.reset()  # what was compiled for other models would count towards torch's limit
        self._model, self._smoothing = model, smoothing
        self._place, self._encode, self._decode = compiled(_place), compiled(_encode), compiled(_decode)
        self._gradients_of = partial(gradients_by_rows, pad=PAD)
        dropouts = [module for module in model.modules() if isinstance(module, Dropout)]
        self._seeds = torch.zeros(len(dropouts), 2, dtype=torch.int32, device=model.output_weight.device)
        for dropout, seed in zip(dropouts, self._seeds.unbind(), strict=True):
            dropout.seed = seed
        for module in model.modules():
            if isinstance(module, Residual | FeedForward):
                module.is_fused = True

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
        """What encoder [M, D] and decoder [N, D] begin with; a matrix that they share has its gradient taken once."""
        # Rows are gathered outside: compiled, the gradients of a row would be added up in an order left to chance.
        source, target = self._model.source_embedding, self._model.target_embedding
        if source.weight is target.weight:
            ids = torch.cat([batch.source.ids, batch.target.ids])
            source_rows, target_rows = source.rows(ids).split([len(batch.source.ids), len(batch.target.ids)])
        else:
            source_rows, target_rows = source.rows(batch.source.ids), target.rows(batch.target.ids)
        memory = self._place(source, source_rows, source.encodings(batch.source.positions))
        return memory, self._place(target, target_rows, target.encodings(batch.target.positions))


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
    out: Tensor = layer(x, source)
    return out


def _decode(layer: nn.Module, x: Tensor, target: Spans, memory: Tensor, source: Spans) -> Tensor:
    out: Tensor = layer(x, target, memory, source)
    return out
