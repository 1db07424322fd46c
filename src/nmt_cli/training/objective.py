"""The loss of a batch under a model, through its layers as they are or compiled."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from nmt_cli.dataset.batch import Batch
from nmt_cli.model.packing import Packed, Spans
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

    Compiled are each kind of layer, the placing of embeddings, and what the loss does to logits. They see tensors of
    fixed shapes and `bound` and nothing else of a batch, so that all layers of a kind share one graph, and no batch
    needs another. The products with the embedding matrix stay with the libraries.
    """

    def __init__(self, model: Transformer, *, smoothing: float) -> None:
        torch.compiler.reset()  # what was compiled for other models would count towards torch's limit
        self._model, self._smoothing = model, smoothing
        self._place, self._encode, self._decode = compiled(_place), compiled(_encode), compiled(_decode)
        self._gradients_of = compiled(gradients_by_columns)

    def __call__(self, batch: Batch) -> Loss:
        """The loss of a batch."""
        model, source, target = self._model, batch.source.spans, batch.target.spans
        memory = self._embed(model.source_embedding, batch.source)
        for layer in model.encoder:
            memory = self._encode(layer, memory, source)
        memory = model.encoder_norm(memory)
        hidden = self._embed(model.target_embedding, batch.target)
        for layer in model.decoder:
            hidden = self._decode(layer, hidden, target, memory, source)
        hidden = model.decoder_norm(hidden)
        return _loss(model, hidden, batch.gold, smoothing=self._smoothing, gradients_of=self._gradients_of)

    def _embed(self, embedding: Embedding, side: Packed) -> Tensor:
        # Rows are gathered outside: compiled, the gradients of a row would be added up in an order left to chance.
        return self._place(embedding, *embedding.gather(side.ids, side.positions))


def gradients_by_columns(logits: Tensor, gold: Tensor, vocab: int, smoothing: float) -> tuple[Tensor, Tensor]:
    """The sums over rows of logits [R, W], in whose place comes the gradient, as `GradientsOf` says.

    Every step is one over all columns of a row, padded ones too: a compiler makes one kernel of them, which reads the
    logits twice and writes them once.
    """
    columns = torch.arange(logits.size(1), device=logits.device)
    is_piece, is_gold, is_token = columns < vocab, columns == gold[:, None], gold != PAD
    scores = logits.float()
    logsumexp = scores.masked_fill(~is_piece, -torch.inf).logsumexp(1)
    gold_nll = (logsumexp - scores.masked_fill(~is_gold, 0).sum(1)).where(is_token, 0)
    mean_nll = (logsumexp - scores.masked_fill(~is_piece, 0).sum(1) / vocab).where(is_token, 0)
    probabilities = (scores - logsumexp[:, None]).exp()
    wanted = is_gold * (1 - smoothing) + smoothing / vocab
    logits.copy_((probabilities - wanted).where(is_piece & is_token[:, None], 0))
    nll = gold_nll.sum()
    return (1 - smoothing) * nll + smoothing * mean_nll.sum(), nll


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
