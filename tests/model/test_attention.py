"""Attention kernels against loops and against torch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt_cli.model import attention
from nmt_cli.model.attention import Kernel, attend, choose_kernel
from nmt_cli.model.packing import pack
from tests.reference.attention import Sees, packed_attention, sees_all, sees_neighbours, sees_the_past

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """Lengths of the sentences on both sides, what `attend` is told, and what that means."""

    q_lengths: list[int]
    k_lengths: list[int]
    is_causal: bool
    window: int | None
    sees: Sees

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, device: torch.device = CPU) -> Tensor:
        queries, keys = (
            pack([[0] * length for length in lengths], device=device) for lengths in (self.q_lengths, self.k_lengths)
        )
        return attend(q, k, v, queries=queries, keys=keys, is_causal=self.is_causal, window=self.window)

    def by_loops(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q_bounds, k_bounds = ([0, *accumulate(lengths)] for lengths in (self.q_lengths, self.k_lengths))
        return packed_attention(q, k, v, q_bounds=q_bounds, k_bounds=k_bounds, sees=self.sees)

    def inputs(self, *, d_k: int, d_v: int) -> list[Tensor]:
        """q, k, v in float64 with three heads."""
        generator = torch.Generator().manual_seed(1)
        shapes = [(sum(self.q_lengths), d_k), (sum(self.k_lengths), d_k), (sum(self.k_lengths), d_v)]
        return [
            torch.randn(tokens, 3, width, dtype=torch.float64, generator=generator).requires_grad_()
            for tokens, width in shapes
        ]


CASES = {
    "self": Case([4, 1, 6], [4, 1, 6], False, None, sees_all),
    "self, equal lengths": Case([4, 4, 4], [4, 4, 4], False, None, sees_all),
    "cross": Case([4, 1, 6], [3, 5, 2], False, None, sees_all),
    "causal": Case([4, 1, 6], [4, 1, 6], True, None, sees_the_past),
    "window 1": Case([4, 1, 6], [4, 1, 6], False, 1, sees_neighbours(1)),
    "window 3": Case([4, 1, 6], [4, 1, 6], False, 3, sees_neighbours(3)),
    "window 4": Case([4, 1, 6], [4, 1, 6], False, 4, sees_neighbours(4)),
}


@pytest.fixture(autouse=True)
def _no_signature_remembered() -> Iterator[None]:
    attention._varlen_parameters.cache_clear()
    yield
    attention._varlen_parameters.cache_clear()


def gradients(out: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Those of a sum with weights that are all different."""
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64, device=out.device).view(out.shape)
    return torch.autograd.grad((out.double() * weights).sum(), inputs)


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


@pytest.mark.parametrize("is_masked", [True, False])
def test_products_are_scaled_dot_product_attention_in_float32(is_masked: bool) -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 3, length, 8, requires_grad=True) for length in (5, 7, 7))
    mask = torch.arange(7) < torch.tensor([7, 4])[:, None, None, None] if is_masked else None
    ours = attention._products(q, k, v, mask=mask)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    # float32 rounds at 6e-8; scores and outputs are below 10 and sums have eight terms.
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)
    for mine, other in zip(gradients(ours, q, k, v), gradients(theirs, q, k, v), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=2e-6)


WITH_WINDOW = frozenset({"query", "key", "window_size"})
WITHOUT_WINDOW = frozenset({"query", "key", "is_causal"})
NO_KERNEL: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("device", "dtype", "widths", "window", "parameters", "expected"),
    [
        ("cpu", torch.float32, (64, 64), None, WITH_WINDOW, "products"),
        ("cpu", torch.bfloat16, (64, 64), 5, WITH_WINDOW, "products"),
        ("cuda", torch.bfloat16, (64, 64), None, WITH_WINDOW, "varlen"),
        ("cuda", torch.bfloat16, (64, 64), None, WITHOUT_WINDOW, "varlen"),
        ("cuda", torch.bfloat16, (256, 256), None, WITH_WINDOW, "varlen"),
        ("cuda", torch.bfloat16, (64, 64), 5, WITH_WINDOW, "varlen"),
        ("cuda", torch.bfloat16, (64, 64), 5, WITHOUT_WINDOW, "sdpa"),
        ("cuda", torch.bfloat16, (64, 64), None, NO_KERNEL, "sdpa"),
        ("cuda", torch.float32, (64, 64), None, WITH_WINDOW, "sdpa"),
        ("cuda", torch.bfloat16, (16, 64), None, WITH_WINDOW, "sdpa"),  # row B of Table 3
        ("cuda", torch.bfloat16, (512, 512), None, WITH_WINDOW, "sdpa"),  # row A with one head
        # torch's flash attention refuses widths that are no multiple of 8: flash_api.cpp, mha_varlen_fwd.
        ("cuda", torch.bfloat16, (20, 20), None, WITH_WINDOW, "sdpa"),
    ],
)
def test_the_kernel_is_chosen_by_device_precision_widths_window_and_torch(
    device: str,
    dtype: torch.dtype,
    widths: tuple[int, int],
    window: int | None,
    parameters: frozenset[str],
    expected: Kernel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "_varlen_parameters", lambda: parameters)
    d_k, d_v = widths
    assert choose_kernel(torch.device(device), dtype, d_k=d_k, d_v=d_v, window=window) == expected


def test_the_torch_at_hand_has_the_kernel_with_one_of_the_two_known_signatures() -> None:
    parameters = attention._varlen_parameters()
    assert {"is_causal", "window_size"} & parameters


class Recorder:
    """Stands in for torch's kernel: notes what it is given, and computes it in loops."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.largest: tuple[int, int] = (0, 0)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, sees: Sees) -> Tensor:
        assert cu_q.dtype == cu_k.dtype == torch.int32
        return packed_attention(q, k, v, q_bounds=cu_q.tolist(), k_bounds=cu_k.tolist(), sees=sees)


def torch_2_10(recorder: Recorder) -> Callable[..., Tensor]:
    """The kernel with the parameters that it had in torch 2.10."""

    def varlen_attn(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        is_causal: bool = False,
        return_aux: object = None,
    ) -> Tensor:
        recorder.options, recorder.largest = {"is_causal": is_causal}, (max_q, max_k)
        return recorder.compute(query, key, value, cu_seq_q, cu_seq_k, sees_the_past if is_causal else sees_all)

    return varlen_attn


def later_torch(recorder: Recorder) -> Callable[..., Tensor]:
    """The kernel with a window as (left, right), -1 for no bound."""

    def varlen_attn(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        return_aux: object = None,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
    ) -> Tensor:
        left, right = window_size
        recorder.options, recorder.largest = {"window_size": window_size}, (max_q, max_k)

        def sees(query_place: int, key_place: int) -> bool:
            return (left < 0 or query_place - key_place <= left) and (right < 0 or key_place - query_place <= right)

        return recorder.compute(query, key, value, cu_seq_q, cu_seq_k, sees)

    return varlen_attn


def options_given(
    kernel: Callable[[Recorder], Callable[..., Tensor]], name: str, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """What a stand-in kernel is told in a case, after a comparison with loops."""
    recorder, case = Recorder(), CASES[name]
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel(recorder))
    monkeypatch.setattr(attention, "choose_kernel", lambda *_, **__: "varlen")
    inputs = case.inputs(d_k=4, d_v=4)
    torch.testing.assert_close(case.attend(*inputs), case.by_loops(*inputs), rtol=0, atol=0)
    assert recorder.largest == (max(case.q_lengths), max(case.k_lengths))
    return recorder.options


@pytest.mark.parametrize("name", ["self", "cross", "causal"])
def test_torch_2_10_is_told_whether_attention_is_causal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert options_given(torch_2_10, name, monkeypatch) == {"is_causal": name == "causal"}


@pytest.mark.parametrize(
    ("name", "window_size"),
    [
        ("self", (-1, -1)),
        ("cross", (-1, -1)),
        ("causal", (-1, 0)),
        ("window 1", (0, 0)),
        ("window 3", (1, 1)),
        ("window 4", (2, 2)),
    ],
)
def test_later_torch_is_told_how_far_each_token_sees(
    name: str, window_size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert options_given(later_torch, name, monkeypatch) == {"window_size": window_size}


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
