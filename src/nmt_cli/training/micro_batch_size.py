"""How many tokens a device takes at once: the recipe's number or, for `auto`, an estimate that the warm-up checks.

The run's record keeps the number found for `auto`. A training that continues on the same devices splits each update
into the same micro-batches as before.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from nmt_cli.artifacts.run import MeasuredTokens, Run
from nmt_cli.dataset.micro_batches import accumulation_steps
from nmt_cli.devices import Precision
from nmt_cli.errors import OutOfMemory
from nmt_cli.memory import free_cpu_bytes, free_gpu_bytes
from nmt_cli.model.packing import round_up
from nmt_cli.recipe.schema import ModelConfig, Recipe, num_embedding_rows, num_parameters
from nmt_cli.recipe.training import TrainingConfig
from nmt_cli.training.data_order import DataOrder
from nmt_cli.training.ranks.ranks import Ranks

if TYPE_CHECKING:
    from nmt_cli.training.update import Updater

# The part of the free memory that a micro-batch may fill by the estimate, which may be wrong by a factor of two. On a
# GPU the warm-up checks it. On a CPU nothing does, other programs need memory too, and small micro-batches cost little.
_SHARE_OF_GPU, _SHARE_OF_CPU = 0.9, 1 / 3
_TOKEN_MULTIPLE = 128
logger = logging.getLogger(__name__)


def max_tokens_before_fitting(training: TrainingConfig) -> int:
    """The tokens per side that a device may take until `fit_to_memory` limits them: for `auto`, a whole update."""
    return training.batch_tokens if training.max_tokens_per_device == "auto" else training.max_tokens_per_device


def fit_to_memory(
    order: DataOrder, run: Run, updater: Updater, *, ranks: Ranks, open_plan: Callable[[], object]
) -> Run:
    """For `auto`, limit the micro-batches of `order` to what a device holds at once.

    The limit is the number that the run's record has for this hardware, or else an estimate. Returns the run with the
    number in its record; run.json is not written. To estimate, this opens the plan of the epoch with `open_plan`. If
    nothing is to be trained, `open_plan` returns an ending, and nothing is estimated. The model is on its device, with
    its optimizer beside it. Raises OutOfMemory if a CPU has too little memory.
    """
    if run.recipe.training.max_tokens_per_device != "auto":
        return run
    name = torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else "CPU"
    hardware = {"devices": ranks.size, "device": name, "precision": updater.precision}
    recorded = run.record.max_tokens_per_device
    is_usable = recorded is not None and recorded.model_dump(exclude={"tokens"}) == hardware
    tokens = ranks.broadcast(recorded.tokens if recorded is not None and is_usable else 0)
    if tokens == 0:
        if open_plan() is not None:
            return run
        tokens = _estimate_tokens(run.recipe, updater, longest=order.max_tokens_in_sentence, ranks=ranks)
    order.limit(tokens)
    return _with_tokens(run, MeasuredTokens.model_validate({"tokens": tokens, **hardware}))


def _estimate_tokens(recipe: Recipe, updater: Updater, *, longest: int, ranks: Ranks) -> int:
    """The tokens that each of the ranks can take at once, by the memory that is free on the fullest of them."""
    needs = estimate_device_needs(
        recipe,
        source_vocab=updater.model.source_vocab,
        target_vocab=updater.model.target_vocab,
        precision=updater.precision,
        world_size=ranks.size,
    )
    tokens_that_fit = ranks.smallest(int(_usable_bytes(ranks) / needs.bytes_per_token))
    if tokens_that_fit < longest and ranks.device.type == "cpu":
        raise _memory_error(ranks.device, longest)
    batch_tokens = recipe.training.batch_tokens
    return even_share(tokens_that_fit, batch_tokens=batch_tokens, world_size=ranks.size, longest=longest)


def warm_up_with_tokens_that_fit(
    order: DataOrder, run: Run, warm_up: Callable[[], None], *, release: Callable[[], None], ranks: Ranks
) -> Run:
    """Warm up. For `auto`, halve the limit of `order` each time that the memory of a rank does not suffice.

    `release` gives back the memory of a failed warm-up. Returns the run, whose record keeps a smaller number. Raises
    OutOfMemory if the longest sentence, or the recipe's number, does not fit.
    """
    if run.recipe.training.max_tokens_per_device != "auto":
        warm_up()
        return run
    while True:
        has_failed = False
        try:
            warm_up()
        except OutOfMemory:
            has_failed = True
        if not ranks.any(has_failed):
            return run
        release()
        too_many, longest = order.max_tokens, order.max_tokens_in_sentence
        if too_many <= longest:
            raise _memory_error(ranks.device, longest)
        batch_tokens = run.recipe.training.batch_tokens
        order.limit(even_share(too_many // 2, batch_tokens=batch_tokens, world_size=ranks.size, longest=longest))
        logger.info("memory does not hold %s tokens at once: trying %s", f"{too_many:,}", f"{order.max_tokens:,}")
        recorded = run.record.max_tokens_per_device
        assert recorded is not None, "fit_to_memory records a number before the warm-up"
        run = _with_tokens(run, recorded.model_copy(update={"tokens": order.max_tokens}))


def even_share(max_tokens: int, *, batch_tokens: int, world_size: int, longest: int) -> int:
    """Tokens that a device needs at once, at most `max_tokens`, to take its share of an update in equal parts.

    At least `longest`, even above `max_tokens`: a device takes the longest sentence whole.
    """
    max_tokens = max(max_tokens, longest)
    steps = accumulation_steps(batch_tokens=batch_tokens, max_tokens=max_tokens, world_size=world_size)
    part = math.ceil(batch_tokens / (steps * world_size))
    return min(max_tokens, max(longest, round_up(part, _TOKEN_MULTIPLE)))


@dataclass(frozen=True, slots=True)
class DeviceNeeds:
    """The needs of a training on each of its devices. `tokens` counts one side of a full micro-batch."""

    num_parameters: int
    accumulation_steps: int
    tokens: int
    weight_bytes: int
    activation_bytes: int

    @property
    def bytes_per_token(self) -> float:
        """Bytes of activations for a source token and a target token."""
        return self.activation_bytes / self.tokens


def estimate_device_needs(
    recipe: Recipe, *, source_vocab: int, target_vocab: int, precision: Precision, world_size: int
) -> DeviceNeeds:
    """The needs of a recipe with vocabularies of these sizes on each of `world_size` devices.

    The weights' memory includes gradients and moments; with an average of the weights, also the average and a copy of
    the weights. Activations are what one full micro-batch keeps for its backward pass. With `auto`, this micro-batch is
    a device's whole share of an update. Libraries and the allocator need more memory.
    """
    model, training = recipe.model, recipe.training
    parameters = num_parameters(model, source_vocab=source_vocab, target_vocab=target_vocab)
    bytes_per_parameter = 4 + 4 + 2 * 4  # float32: weight, gradient and two moments
    if precision == "bf16":
        bytes_per_parameter += 2 + 2  # bf16: weight and gradient
    if training.ema is not None:
        bytes_per_parameter += 4 + 4  # float32: the average and a copy of the weights
    tokens = min(max_tokens_before_fitting(training), math.ceil(training.batch_tokens / world_size))
    steps = accumulation_steps(batch_tokens=training.batch_tokens, max_tokens=tokens, world_size=world_size)
    logits = num_embedding_rows(target_vocab, multiple=model.embedding_multiple)
    activations_per_token = training.num_passes * (_num_activations(model) + logits)
    return DeviceNeeds(
        num_parameters=parameters,
        accumulation_steps=steps,
        tokens=tokens,
        weight_bytes=parameters * bytes_per_parameter,
        activation_bytes=tokens * activations_per_token * (2 if precision == "bf16" else 4),
    )


def _num_activations(model: ModelConfig) -> int:
    """Numbers kept for the backward pass for one source and one target token, without attention weights and logits."""
    attention = model.heads * (2 * model.d_k + 2 * model.d_v)  # queries, keys, values, and attention output
    residual = 4 * model.d_model  # the sub-layer's output, dropout mask, sum, norm
    # Input and output of the activation; with gates, also the gate and the product; dropout's mask and output.
    feed_forward = ((4 if model.is_gated else 2) + (2 if model.ffn_dropout else 0)) * model.d_ff
    encoder_layer = attention + 2 * residual + feed_forward
    decoder_layer = 2 * attention + 3 * residual + feed_forward
    embeddings_and_last_norms = 2 * residual
    return model.encoder_layers * encoder_layer + model.decoder_layers * decoder_layer + embeddings_and_last_norms


def _with_tokens(run: Run, measured: MeasuredTokens) -> Run:
    return replace(run, record=run.record.model_copy(update={"max_tokens_per_device": measured}))


def _memory_error(device: torch.device, longest: int) -> OutOfMemory:
    return OutOfMemory(
        f"the memory of {device} does not hold a micro-batch of one sentence of {longest:,} pieces",
        where="training.max_tokens_per_device",
        hint="end what else takes memory there, prepare with a smaller cleaning.max_words, or train a smaller model",
    )


def _usable_bytes(ranks: Ranks) -> int:
    """Bytes that a micro-batch of this rank may fill; the ranks of one machine share its memory on a CPU."""
    if ranks.device.type == "cuda":
        return int(_SHARE_OF_GPU * free_gpu_bytes(ranks.device))
    return int(_SHARE_OF_CPU * free_cpu_bytes()) // int(os.environ.get("LOCAL_WORLD_SIZE", ranks.size))
