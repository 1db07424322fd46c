"""Attention kernels against loops and against torch's own."""

from __future__ import annotations

import pytest
import torch

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


@pytest.mark.parametrize(
    ("device", "dtype", "widths", "window", "takes_window", "expected"),
    [
        ("cpu", torch.float32, (64, 64), None, True, "products"),
        ("cpu", torch.bfloat16, (64, 64), 5, True, "products"),
        ("cuda", torch.bfloat16, (64, 64), None, True, "varlen"),
        ("cuda", torch.bfloat16, (64, 64), None, False, "varlen"),
        ("cuda", torch.bfloat16, (256, 256), None, True, "varlen"),
        ("cuda", torch.bfloat16, (64, 64), 5, True, "varlen"),
        ("cuda", torch.bfloat16, (64, 64), 5, False, "sdpa"),
        ("cuda", torch.float32, (64, 64), None, True, "sdpa"),
        ("cuda", torch.bfloat16, (16, 64), None, True, "sdpa"),  # row B of Table 3
        ("cuda", torch.bfloat16, (512, 512), None, True, "sdpa"),  # row A with one head
        # torch's flash attention refuses widths that are no multiple of 8: flash_api.cpp, mha_varlen_fwd.
        ("cuda", torch.bfloat16, (20, 20), None, True, "sdpa"),
    ],
)
def test_the_kernel_is_chosen_by_device_precision_widths_window_and_torch(
    device: str,
    dtype: torch.dtype,
    widths: tuple[int, int],
    window: int | None,
    takes_window: bool,
    expected: Kernel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(varlen, "_TAKES_WINDOW", takes_window)
    d_k, d_v = widths
    assert choose_kernel(torch.device(device), dtype, d_k=d_k, d_v=d_v, window=window) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("width", [16, 64, 256])
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
