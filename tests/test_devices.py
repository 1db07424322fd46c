"""Float32 products on a CPU: faster only where they stay as exact."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from nmt_cli import devices
from nmt_cli.devices import multiply_float32_fast

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def as_torch_begins() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def test_products_stay_as_exact_as_float32() -> None:
    multiply_float32_fast(CPU)
    left, right = torch.randn(300, 700), torch.randn(700, 500)
    exact = left.double() @ right.double()
    # 700 terms, each rounded at 6e-8; in bf16 the error is near 2e-3.
    assert float((left @ right - exact).abs().max() / exact.abs().max()) < 5e-6


def test_it_is_taken_back_where_products_lose_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_FLOAT32_ERROR", 0.0)  # as on a CPU that multiplies in bf16: an error above the limit
    assert not multiply_float32_fast(CPU)
    assert torch.get_float32_matmul_precision() == "highest"


def test_what_the_user_has_set_is_left_alone() -> None:
    torch.set_float32_matmul_precision("high")
    assert not multiply_float32_fast(CPU)
    assert torch.get_float32_matmul_precision() == "high"


def test_nothing_is_set_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not multiply_float32_fast(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert not multiply_float32_fast(CPU)
    assert torch.get_float32_matmul_precision() == "highest"
