"""Gradients summed over ranks in buckets while the backward pass goes on: the same sum, begun early and in order."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt_cli.devices import Precision
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.weights import GradientSum, MasterWeights, make_buckets
from tests.reference.models import random_model, tiny_config
from tests.training.summing_ranks import MICRO, VOCAB, backward, small_model
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
        backward(model, index)
        weights.collect()
    return weights.gradients


@pytest.mark.parametrize("num_micro_batches", [MICRO, MICRO - 1], ids=["even", "the last rank has one fewer"])
@pytest.mark.parametrize("wire", ["fp32", "bf16"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_sum_of_two_ranks_is_that_of_one(
    of_two: dict[str, Any], precision: Precision, wire: str, num_micro_batches: int
) -> None:
    expected = of_one(precision, num_micro_batches=num_micro_batches)
    found = torch.tensor(of_two[f"{precision} {wire} {num_micro_batches}"]["gradients"])
    # Another order of four float32 summands; on the wire in bf16, three roundings of 2^-9 of parts that may cancel.
    tolerance = 1e-6 if wire == "fp32" else 2**-7
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def test_every_sum_is_begun_by_the_end_of_the_backward_pass(of_two: dict[str, Any]) -> None:
    for precision in ("fp32", "bf16"):
        begun, buckets = of_two[f"{precision} fp32 {MICRO}"]["begun"]
        assert begun == buckets > 10  # each by the hook that completed it


def test_a_rank_that_is_lost_in_the_middle_is_one_plain_error(of_two: dict[str, Any]) -> None:
    kind, message, hint = of_two["lost"]
    assert kind == "ConnectionLost"
    assert message == "rank 0 of 2 lost the connection to the others"
    assert hint.startswith("look for what ended another process; the same command, without --restart, continues from")


def test_buckets_take_matrices_from_the_last_on_and_then_the_vectors() -> None:
    buckets = make_buckets([90, 40, 30, 60, 5, 6, 7], num_matrices=4, max_elements=100)
    assert buckets.bounds == ((130, 220), (90, 130), (0, 90), (220, 238))
    assert buckets.of_parameter == (2, 1, 0, 0, 3, 3, 3)
    # A parameter larger than a bucket is a bucket of its own.
    assert make_buckets([500, 10, 500], num_matrices=3, max_elements=100).bounds == ((510, 1010), (500, 510), (0, 500))


@pytest.mark.parametrize("tying", ["all", "target", "none"])
def test_buckets_lie_in_the_order_of_the_backward_pass(tying: str) -> None:
    config = tiny_config(tying=tying, encoder_layers=2, decoder_layers=2, norm="pre")
    model = random_model(config, vocab=VOCAB, seed=1, dtype=torch.float32)
    weights = MasterWeights(model, precision="fp32")
    completed: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: completed.append(name))
    backward(model, 0)
    made, planned = (
        list(dict.fromkeys(_stage(name) for name in names if len(weights.shapes[name]) >= 2))
        for names in (completed, reversed(weights.shapes))
    )
    assert made == planned


def _stage(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] in ("encoder", "decoder") else parts[0]


def test_sums_are_begun_in_one_order_whatever_is_complete_first(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[float]] = []
    monkeypatch.setattr(Ranks, "begin_sum", lambda self, tensor: begun.append(tensor.tolist()))
    monkeypatch.setattr(Ranks, "finish_sum", lambda self, work: None)
    buckets = make_buckets([4, 4, 4], num_matrices=3, max_elements=4)
    total = GradientSum(torch.arange(12.0), buckets, ranks=Ranks(0, 2, torch.device("cpu")), precision="fp32")
    total.complete(0)
    assert begun == []
    total.complete(2)
    assert begun == [[8, 9, 10, 11]]
    total.complete(1)
    assert begun[1:] == [[4, 5, 6, 7], [0, 1, 2, 3]]
    total.finish()
    assert len(begun) == 3
