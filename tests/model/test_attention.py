"""Attention kernels against loops and against torch's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends

from nmt_cli.model import attention, varlen
from nmt_cli.model.attention import Kernel, choose_kernel
from tests.model.cases import CASES, gradients


@pytest.mark.parametrize("kernel", ["products", "sdpa"])
@pytest.mark.parametrize(("d_k", "d_v"), [(4, 4), (2, 6)])
@pytest.mark.parametrize("name", CASES)
def test_padded_kernels_are_attention_by_loops(
    name: str, d_k: int, d_v: int, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "choose_kernel", lambda *_, **__: kernel)
    case = CASES[name]
    inputs = case.inputs(d_k=d_k, d_v=d_v)
    out, expected = case.attend(*inputs), case.by_loops(*inputs)
    # float64 rounds at 1e-16 of values near 1; sums have ten terms.
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(gradients(out, *inputs), gradients(expected, *inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("device", "dtype", "widths", "window", "bound", "expected", "without_triton"),
    [
        ("cpu", torch.float32, (64, 64), None, 128, "products", "products"),
        ("cpu", BF16, (64, 64), 5, 128, "products", "products"),
        ("cuda", BF16, (64, 64), None, 128, "triton", "varlen"),
        ("cuda", BF16, (64, 64), None, 129, "varlen", "varlen"),
        ("cuda", BF16, (128, 128), None, 128, "triton", "varlen"),
        ("cuda", BF16, (256, 256), None, 128, "varlen", "varlen"),
        ("cuda", BF16, (64, 64), 5, 128, "triton", "varlen"),
        ("cuda", BF16, (64, 64), 5, 512, "varlen", "varlen"),
        ("cuda", torch.float32, (64, 64), None, 128, "sdpa", "sdpa"),
        ("cuda", BF16, (16, 64), None, 512, "triton", "sdpa"),  # row B of Table 3
        ("cuda", BF16, (512, 512), None, 128, "sdpa", "sdpa"),  # row A with one head
        # torch's flash attention refuses widths that are no multiple of 8: flash_api.cpp, mha_varlen_fwd.
        ("cuda", BF16, (20, 20), None, 128, "sdpa", "sdpa"),
    ],
)
def test_the_kernel_is_chosen_by_device_precision_widths_window_and_length(
    device: str,
    dtype: torch.dtype,
    widths: tuple[int, int],
    window: int | None,
    bound: int,
    expected: Kernel,
    without_triton: Kernel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(varlen, "_TAKES_WINDOW", True)
    d_k, d_v = widths
    for has_triton, kernel in ((True, expected), (False, without_triton)):
        monkeypatch.setattr(attention, "_HAS_TRITON", has_triton)
        assert choose_kernel(torch.device(device), dtype, d_k=d_k, d_v=d_v, window=window, bound=bound) == kernel


@pytest.mark.parametrize(("has_triton", "expected"), [(True, "triton"), (False, "sdpa")])
def test_windows_that_torch_does_not_take_go_elsewhere(
    has_triton: bool, expected: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "_TAKES_WINDOW", False)
    monkeypatch.setattr(attention, "_HAS_TRITON", has_triton)
    assert choose_kernel(torch.device("cuda"), BF16, d_k=64, d_v=64, window=5, bound=512) == expected


def test_the_padded_kernel_is_never_cudnns(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[SDPBackend] = []
    compute = F.scaled_dot_product_attention

    def note(*inputs: Any, **options: Any) -> Tensor:
        allowed.extend(_cur_sdpa_kernel_backends())
        return compute(*inputs, **options)

    monkeypatch.setattr(attention, "choose_kernel", lambda *_, **__: "sdpa")
    monkeypatch.setattr(F, "scaled_dot_product_attention", note)
    CASES["cross"].attend(*CASES["cross"].inputs(d_k=4, d_v=4))
    assert SDPBackend.FLASH_ATTENTION in allowed
    assert SDPBackend.MATH in allowed
    assert SDPBackend.CUDNN_ATTENTION not in allowed


@pytest.mark.gpu
@pytest.mark.parametrize("width", [16, 64, 128, 256])
@pytest.mark.parametrize("name", CASES)
def test_the_cuda_kernels_are_attention_by_loops(name: str, width: int) -> None:
    device, case = torch.device("cuda"), CASES[name]
    rounded = [x.detach().bfloat16().requires_grad_() for x in case.inputs(d_k=width, d_v=width)]
    on_device = [x.detach().to(device).requires_grad_() for x in rounded]
    out, expected = case.attend(*on_device, device=device), case.by_loops(*rounded)
    # bf16 keeps 8 bits: 4e-3 of values below 4; the probabilities are rounded as well.
    torch.testing.assert_close(out.double().cpu(), expected, rtol=2e-2, atol=2e-2)
    for ours, theirs in zip(gradients(out, *on_device), gradients(expected, *rounded), strict=True):
        torch.testing.assert_close(ours.double().cpu(), theirs.double(), rtol=5e-2, atol=5e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_our_cuda_kernel_gives_the_same_bits_again(name: str) -> None:
    device, case = torch.device("cuda"), CASES[name]
    case = replace(case, q_lengths=case.q_lengths * 200, k_lengths=case.k_lengths * 200)
    inputs = [x.detach().to(device, BF16).requires_grad_() for x in case.inputs(d_k=64, d_v=64)]
    first, *others = (gradients(case.attend(*inputs, device=device), *inputs) for _ in range(5))
    for again in others:
        for ours, theirs in zip(first, again, strict=True):
            assert torch.equal(ours, theirs)
