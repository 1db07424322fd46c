"""The parameters of a model, counted from its recipe: torch takes seconds to import."""

from __future__ import annotations

import math

from nmt_cli.recipe.schema import ModelConfig


def num_parameters(model: ModelConfig, *, source_vocab: int, target_vocab: int) -> int:
    """The parameters of a model with vocabularies of these sizes; tied embeddings count once."""
    return _layers(model) + _positions(model) + _embeddings(model, source_vocab, target_vocab)


def _layers(model: ModelConfig) -> int:
    """The parameters of encoder and decoder, with the last norm of each if norms come first."""
    attention, feed_forward, norm = _attention(model), _feed_forward(model), _norm(model)
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    last_norms = 2 * norm if model.norm == "pre" else 0
    return model.encoder_layers * encoder_layer + model.decoder_layers * decoder_layer + last_norms


def _attention(model: ModelConfig) -> int:
    """The parameters of one attention: queries, keys, values and the output."""
    keys, values = model.heads * model.d_k, model.heads * model.d_v
    biases = 2 * keys + values + model.d_model if model.attention_bias else 0
    return 2 * model.d_model * keys + 2 * model.d_model * values + biases


def _feed_forward(model: ModelConfig) -> int:
    """The parameters of one feed-forward sub-layer; SwiGLU has a second inner matrix, its gate."""
    inner = model.d_ff * (2 if model.activation == "swiglu" else 1)
    into = model.d_model * inner + inner
    out = model.d_ff * model.d_model + model.d_model
    return into + out


def _norm(model: ModelConfig) -> int:
    """The parameters of one norm: a gain and, in layer normalisation, a bias."""
    return model.d_model * (2 if model.norm_type == "layer" else 1)


def _positions(model: ModelConfig) -> int:
    """The parameters of learned positions of both sides."""
    return 2 * model.max_positions * model.d_model if model.positions == "learned" else 0


def _embeddings(model: ModelConfig, source_vocab: int, target_vocab: int) -> int:
    """The parameters of the tables of embeddings, of the output projection and of its bias.

    A table has a multiple of `embedding_multiple` rows.
    """
    source, target = (num_rows(vocab, multiple=model.embedding_multiple) for vocab in (source_vocab, target_vocab))
    tables = {"all": target, "target": source + target, "none": source + 2 * target}[model.tying]
    bias = target if model.output_bias else 0
    return tables * model.d_model + bias


def num_rows(vocab: int, *, multiple: int) -> int:
    """The rows of the table of a vocabulary, rounded up to a multiple."""
    return math.ceil(vocab / multiple) * multiple
