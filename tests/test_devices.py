"""Float32 products on a CPU are faster only if they stay as exact; what the user says of waiting threads holds."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from nmt_cli.devices import bound_spinning, choose_device, choose_precision, multiply_float32_fast
from nmt_cli.errors import DeviceError

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


def test_what_the_user_has_set_is_left_alone() -> None:
    torch.set_float32_matmul_precision("high")
    assert not multiply_float32_fast(CPU)
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "PASSIVE"}, None)],
)
def test_the_user_says_how_threads_wait(
    given: dict[str, str], spins: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    bound_spinning(1000)
    assert os.environ.get("GOMP_SPINCOUNT") == spins


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("cuda:", "there is no device called 'cuda:'", "take auto, cpu, cuda or cuda:N"),
        ("cuda:00", "there is no device called 'cuda:00'", "take auto, cpu, cuda or cuda:N"),
        ("cuda:1", "device 'cuda:1' was asked for, but torch sees only 1 GPU here", "take cuda:0"),
    ],
)
def test_a_gpu_that_is_not_there_is_named(name: str, message: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(DeviceError) as error:
        choose_device(name)
    assert (error.value.message, error.value.hint) == (message, hint)
    assert choose_device("cuda:0") == torch.device("cuda:0")


def test_bf16_is_refused_on_a_gpu_that_does_not_multiply_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    for capability, best in (((7, 5), "fp32"), ((8, 0), "bf16")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert choose_precision("auto", device=gpu, training=True) == best
        assert choose_precision("fp32", device=gpu, training=True) == "fp32"
    assert choose_precision("bf16", device=gpu, training=True) == "bf16"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(DeviceError, match="this GPU does not multiply bf16") as error:
        choose_precision("bf16", device=gpu, training=False)
    assert (error.value.setting, error.value.hint) == ("precision", "give `precision: fp32`, or take a newer GPU")
