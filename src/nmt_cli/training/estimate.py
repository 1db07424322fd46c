"""What a recipe will need, before it runs: parameters, accumulation, memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nmt_cli.dataset.shape import accumulation
from nmt_cli.devices import Precision
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import ModelConfig, Recipe, TrainingConfig


def max_tokens_of(training: TrainingConfig) -> int:
    """The tokens a side that a recipe lets a device take at once; where it leaves that open, all of an update."""
    return training.batch_tokens if training.max_tokens_per_device == "auto" else training.max_tokens_per_device


@dataclass(frozen=True, slots=True)
class Estimate:
    """Parameters, micro-batches a device and update, tokens a side of a full one, and bytes on each device."""

    num_parameters: int
    accumulation: int
    tokens: int
    weight_bytes: int
    activation_bytes: int

    @property
    def bytes_a_token(self) -> float:
        """Bytes of activations for a source and a target token."""
        return self.activation_bytes / self.tokens


def estimate(
    recipe: Recipe, *, source_vocab: int, target_vocab: int, precision: Precision, world_size: int
) -> Estimate:
    """The needs of a recipe with vocabularies of these sizes on `world_size` devices.

    Memory is that of weights, gradients and moments, with an average of the weights that average and the weights set
    aside, and of what a device's one full micro-batch keeps for its backward pass; the library's own and the
    allocator's come on top. Where the recipe leaves the size of micro-batches open, it is the device's whole share.
    """
    with torch.device("meta"):
        model = Transformer(recipe.model, source_vocab=source_vocab, target_vocab=target_vocab)
    num_parameters = model.num_parameters()
    training = recipe.training
    has_average = training.ema is not None or training.optimizer.name == "schedule_free"
    bytes_each = 4 + 4 + 8 + (2 + 2 if precision == "bf16" else 0) + (8 if has_average else 0)
    tokens = min(max_tokens_of(training), -(-training.batch_tokens // world_size))
    element = 2 if precision == "bf16" else 4
    per_pair = _kept_per_token(recipe.model) * element + model.output_weight.size(0) * element
    return Estimate(
        num_parameters,
        accumulation(batch_tokens=training.batch_tokens, max_tokens=tokens, world_size=world_size),
        tokens,
        num_parameters * bytes_each,
        tokens * per_pair,
    )


def _kept_per_token(model: ModelConfig) -> int:
    """Elements kept for backward for one source and one target token, without attention weights and logits.

    Attention: projections, mixed values, output; each sub-layer: dropout mask, residual sum, norm; feed-forward: twice
    d_ff, and four times with gates.
    """
    heads_width = model.heads * (2 * model.d_k + 2 * model.d_v)
    around = 4 * model.d_model
    feed_forward = (4 if model.activation == "swiglu" else 2) * model.d_ff
    encoder = heads_width + 2 * around + feed_forward
    decoder = 2 * heads_width + 3 * around + feed_forward
    return model.encoder_layers * encoder + model.decoder_layers * decoder + 2 * around
