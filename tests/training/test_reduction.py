"""Gradients summed over ranks are those of one rank."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt_cli.devices import Precision
from nmt_cli.training.master_weights import MasterWeights
from tests.training.summing_ranks import MICRO, backward, small_model
from tests.training.two_ranks import run_module


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two ranks, joined by gloo, have summed."""
    file = tmp_path_factory.mktemp("sums") / "sums.json"
    run_module("tests.training.summing_ranks", file)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def of_one(precision: Precision, *, num_micro_batches: int) -> Tensor:
    weights = MasterWeights(model := small_model(), precision=precision)
    for index in range(num_micro_batches):
        with weights.collecting(begins_sum=False):
            backward(model, index)
    return weights.gradients


@pytest.mark.parametrize("num_micro_batches", [MICRO, MICRO - 1], ids=["even", "the last rank has one fewer"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_sum_of_two_ranks_is_that_of_one(
    of_two: dict[str, Any], precision: Precision, num_micro_batches: int
) -> None:
    expected = of_one(precision, num_micro_batches=num_micro_batches)
    found = torch.tensor(of_two[f"{precision} {num_micro_batches}"])
    # Another order of four float32 summands.
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


def test_a_rank_that_is_lost_in_the_middle_is_one_plain_error(of_two: dict[str, Any]) -> None:
    kind, message, hint = of_two["lost"]
    assert kind == "ConnectionLost"
    assert message == "rank 0 of 2 lost the connection to the others"
    assert hint.startswith("look for what ended another process; the same command, without --restart, continues from")
