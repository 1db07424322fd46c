"""Trainings that differ in one part of the model, with nmt's model, loss and updates, on pairs of like lengths."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from padded_transformer import batches

from nmt_cli.dataset.batches import Batch, make_batch
from nmt_cli.dataset.prepared_data import TokenPairs
from nmt_cli.devices import PrecisionChoice, choose_precision, multiply_float32_fast
from nmt_cli.memory import keep_freed_memory
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training.objective import plain_loss
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.update import Updater

_CPU = torch.device("cpu")
_SCORED_PAIRS = 64


def train(recipe: Recipe, model: Transformer, pairs: TokenPairs, *, longest: int, precision: PrecisionChoice) -> None:
    """Take the recipe's updates, on pairs of at most `longest` tokens per side, with EOS.

    A batch has `training.batch_tokens` padded tokens on its longer side, and its order depends on the recipe's seed.
    """
    keep_freed_memory()
    multiply_float32_fast(_CPU)
    chosen = choose_precision(precision, device=_CPU, training=True)
    updater = Updater(recipe, model, precision=chosen, ranks=Ranks(0, 1, _CPU))
    training = recipe.training
    order = batches(pairs, max_tokens=training.batch_tokens, longest=longest, seed=training.seed)
    for number, chosen in zip(range(1, training.updates + 1), order, strict=False):
        batch = batch_of(pairs, chosen)
        launched = updater.launch(
            [(0, batch)],
            number=number,
            num_micro_batches=1,
            target_tokens=batch.target.num_tokens,
            received_signal=lambda: None,
        )
        assert launched.result().is_applied, f"a gradient of update {number} is not finite"
    model.eval()


@torch.inference_mode()
def nats_per_token(model: Transformer, pairs: TokenPairs, chosen: NDArray[np.int64]) -> float:
    """The negative log-likelihood of the chosen pairs, in nats per target token, EOS included."""
    nll, tokens = 0.0, 0
    by_length = chosen[np.argsort(pairs.tgt.lengths[chosen], kind="stable")]
    for first in range(0, len(by_length), _SCORED_PAIRS):
        batch = batch_of(pairs, by_length[first : first + _SCORED_PAIRS])
        nll += plain_loss(model, 0.0, batch).nll.item()
        tokens += batch.target.num_tokens
    return nll / tokens


def batch_of(pairs: TokenPairs, chosen: NDArray[np.int64]) -> Batch:
    """The batch of the chosen pairs."""
    return make_batch(pairs.rows(chosen), pairs, device=_CPU, shape=None, pinned=False)
