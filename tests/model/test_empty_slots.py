"""Empty slots at the end of a batch change neither loss nor gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt_cli.model.packing import Packed, pack
from nmt_cli.tokenization.tokenizer import PAD
from nmt_cli.training.loss import smoothed_cross_entropy
from tests.reference.models import random_model, tiny_config

CPU = torch.device("cpu")
SOURCES = [[5, 6, 7, 3], [8, 3], [9, 10, 3]]
TARGETS = [[2, 11, 12], [2, 4, 5, 6, 7], [2, 8]]
GOLD = torch.tensor([11, 12, 3, 4, 5, 6, 7, 3, 8, 3])


def with_empty_slots(packed: Packed, count: int) -> Packed:
    ids, positions = (F.pad(part, (0, count)) for part in (packed.ids, packed.positions))
    return replace(packed, ids=ids, positions=positions, num_empty=count)


def loss_and_gradients(num_empty: int, positions: Literal["sinusoidal", "learned"]) -> tuple[Tensor, list[Tensor]]:
    model = random_model(tiny_config(positions=positions, attention_bias=True), vocab=16, seed=1)
    source, target = (with_empty_slots(pack(rows, device=CPU), num_empty) for rows in (SOURCES, TARGETS))
    hidden = model.decode(target, model.encode(source), source)
    assert hidden.size(0) == GOLD.numel() + num_empty
    gold = F.pad(GOLD, (0, num_empty), value=PAD)
    loss = smoothed_cross_entropy(
        hidden, model.output_weight, gold, output_bias=None, vocab=model.target_vocab, smoothing=0.1
    )
    loss.smoothed.backward()
    return loss.smoothed.detach(), [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("num_empty", [1, 118])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_empty_slots_change_neither_loss_nor_gradients(
    num_empty: int, positions: Literal["sinusoidal", "learned"]
) -> None:
    loss, gradients = loss_and_gradients(0, positions)
    padded_loss, padded_gradients = loss_and_gradients(num_empty, positions)
    torch.testing.assert_close(padded_loss, loss)
    assert len(gradients) == len(padded_gradients) > 0
    for padded, plain in zip(padded_gradients, gradients, strict=True):
        # float64 model; the statistics of the loss are float32
        torch.testing.assert_close(padded, plain, rtol=1e-5, atol=1e-7)
