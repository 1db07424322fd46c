"""Two ranks that sum the gradients of a small model: `python -m tests.training.summing_ranks FILE`, started for each.

The first rank writes the sums to FILE as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import Tensor

from nmt_cli.devices import Precision
from nmt_cli.errors import NmtError
from nmt_cli.model.transformer import Transformer
from nmt_cli.training.master_weights import MasterWeights
from nmt_cli.training.ranks.ranks import Ranks, join_ranks
from tests.reference.models import logits_of, random_model, random_pairs, tiny_config

VOCAB = 21
MICRO = 4


def small_model() -> Transformer:
    """The same on every rank: tied embeddings, two layers a side."""
    return random_model(tiny_config(), vocab=VOCAB, seed=1, dtype=torch.float32).train()


def backward(model: Transformer, index: int) -> None:
    """The backward pass of micro-batch `index`."""
    logits = torch.cat(logits_of(model, random_pairs([(4, 3), (2, 5)], vocab=VOCAB, seed=index)))
    logits.float().log_softmax(-1)[:, 5].sum().backward()


def main() -> None:
    """Sum in each precision with an even and an uneven share, then lose the second rank."""
    ranks = join_ranks("cpu")
    results: dict[str, object] = {}
    for precision in ("fp32", "bf16"):
        for num_micro_batches in (MICRO, MICRO - 1):
            gradients = _summed(ranks, precision, num_micro_batches=num_micro_batches)
            results[f"{precision} {num_micro_batches}"] = gradients.tolist()
    ranks.barrier()
    results["lost"] = _lose(ranks)
    if ranks.is_first:
        Path(sys.argv[1]).write_text(json.dumps(results), encoding="utf-8")
    os._exit(0)


def _summed(ranks: Ranks, precision: Precision, *, num_micro_batches: int) -> Tensor:
    """The summed gradients."""
    model = small_model()
    weights = MasterWeights(model, precision=precision)
    mine = [index for index in range(ranks.rank, MICRO, ranks.size) if index < num_micro_batches]
    for index in mine:
        with weights.collecting(begins_sum=False):
            backward(model, index)
    ranks.sum(weights.gradients)
    return weights.gradients


def _lose(ranks: Ranks) -> list[str]:
    """The error of the first rank after the second has ended before the sum."""
    model = small_model()
    weights = MasterWeights(model, precision="bf16")
    if not ranks.is_first:
        os._exit(0)
    try:
        with weights.collecting(begins_sum=False):
            backward(model, 0)
        ranks.sum(weights.gradients)
    except NmtError as error:
        return [type(error).__name__, error.message, error.hint]
    return []


if __name__ == "__main__":
    main()
