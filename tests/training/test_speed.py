"""The floating-point operations of a model, as torch counts them, and the rate of a device's matrix products."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nmt_cli.model.packing import pack
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import ModelConfig
from nmt_cli.training import speed
from nmt_cli.training.distributed import Ranks
from nmt_cli.training.speed import Speed, matrix_rate, speed_of

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "d_k": 8,
    "d_v": 8,
    "dropout": 0.0,
    "embedding_multiple": 1,
}


def counted(model: Transformer, sources: list[list[int]], targets: list[list[int]]) -> int:
    """What torch counts in the forward and backward passes, without the products of batches: those of attention."""
    source, target = pack(sources, device=CPU), pack(targets, device=CPU)
    with FlopCounterMode(display=False) as counter:
        model.logits(model.decode(target, model.encode(source), source)).sum().backward()
    return sum(count for kind, count in counter.get_flop_counts()["Global"].items() if "bmm" not in str(kind))


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"activation": "swiglu"},
        {"activation": "gelu", "norm": "pre", "norm_type": "rms", "positions": "rotary"},
        {"d_k": 4, "d_v": 12},
        {"encoder_layers": 4, "decoder_layers": 1},
        {"tying": "none", "output_bias": True},
        {"tying": "target"},
        {"attention_bias": True, "encoder_window": 3},
    ],
)
def test_operations_are_those_that_torch_counts(variant: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "matrix_rate", lambda device, dtype: 1.0)
    model = Transformer(ModelConfig.model_validate({**SMALL, **variant}), source_vocab=40, target_vocab=40)
    found = speed_of(model, Ranks(0, 1, CPU))
    sources, targets = [[5, 6, 7, 3], [8, 3], [9, 10, 3]], [[2, 11], [2, 12, 13, 14, 15], [2, 16]]
    expected = counted(model, sources, targets)
    assert found.flops(source_tokens=9, target_tokens=9) == expected
    assert found.flops(source_tokens=9, target_tokens=0) < expected


def test_rows_that_are_no_pieces_are_no_part_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "matrix_rate", lambda device, dtype: 1.0)

    def of(multiple: int) -> Speed:
        config = ModelConfig.model_validate({**SMALL, "embedding_multiple": multiple})
        return speed_of(Transformer(config, source_vocab=40, target_vocab=40), Ranks(0, 1, CPU))

    assert of(64) == of(1)


def test_the_base_model_takes_what_the_arithmetic_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "matrix_rate", lambda device, dtype: 1.0)
    with torch.device("meta"):
        model = Transformer(ModelConfig(), source_vocab=37_000, target_vocab=37_000)
    found = speed_of(model, Ranks(0, 1, CPU))
    # 6 layers of 4 d^2 + 2 d f, and 2 d^2 for the decoder's keys and values of the source; d = 512, f = 2048.
    assert found.flops_per_source_token == 6 * 6 * (4 * 512**2 + 2 * 512 * 2048 + 2 * 512**2)
    assert found.flops_per_target_token == 6 * (6 * (6 * 512**2 + 2 * 512 * 2048) + 37_000 * 512)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rate_is_measured_in_a_moment(dtype: torch.dtype) -> None:
    matrix_rate(CPU, dtype)
    start = time.perf_counter()
    rate = matrix_rate(CPU, dtype)
    assert time.perf_counter() - start < 2.0  # 0.15 s on a machine that does nothing else
    assert 1e8 < rate < 1e15


def test_a_rate_is_that_of_the_fastest_product_whatever_else_the_machine_does_meanwhile() -> None:
    # Each product takes the next of these seconds; the first on smaller matrices, by which the size is chosen.
    taken = iter([1.0] * 8 + [0.001] + [5.0, 0.04, 0.02] + [0.04] * 6)
    now, is_running = 0.0, False

    def clock() -> float:
        nonlocal now, is_running
        if is_running:
            now += next(taken)
        is_running = not is_running
        return now

    assert matrix_rate(CPU, torch.float32, clock=clock) == pytest.approx(2 * 1024**3 / 0.02)


def test_random_numbers_of_the_training_are_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    matrix_rate(CPU, torch.float32)
    assert torch.equal(torch.rand(4), expected)


def test_several_devices_have_the_sum_of_their_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "matrix_rate", lambda device, dtype: 3e9)
    monkeypatch.setattr(Ranks, "sum", lambda self, tensor: tensor.mul_(2) if self.size > 1 else None)
    monkeypatch.setattr(Ranks, "wait", lambda self: None)
    model = Transformer(ModelConfig.model_validate(SMALL), source_vocab=40, target_vocab=40)
    assert speed_of(model, Ranks(0, 2, CPU)).matrix_rate == pytest.approx(6e9)
