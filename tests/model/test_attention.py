"""Attention kernels against loops and against torch's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt_cli.model import attention, cuda_attention
from nmt_cli.model.attention import Kernel, attend, choose_kernel
from nmt_cli.model.dropout import Dropout
from nmt_cli.model.packing import Packed
from tests.model.cases import CASES, Case, assert_attention, assert_dropout, gradients, joined, layout_of
from tests.reference.varlen import register

BF16 = torch.bfloat16
OFF = Dropout(0.0)


@pytest.mark.parametrize("kernel", ["products", "sdpa"])
@pytest.mark.parametrize(("d_k", "d_v"), [(4, 4), (2, 6)])
@pytest.mark.parametrize("name", CASES)
def test_padded_kernels_are_attention_by_loops(
    name: str, d_k: int, d_v: int, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "choose_kernel", lambda *_, **__: kernel)
    case = CASES[name]
    inputs = case.inputs(d_k=d_k, d_v=d_v)
    assert_attention(case.attend(*inputs), case.by_loops(*inputs), inputs)


@pytest.mark.parametrize("kernel", ["products", "sdpa"])
@pytest.mark.parametrize("name", ["self", "cross", "causal", "window 3"])
def test_dropout_zeroes_weights_of_the_softmax_and_scales_the_rest(
    name: str, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "choose_kernel", lambda *_, **__: kernel)
    case = CASES[name]
    case = replace(case, q_lengths=[5 * length for length in case.q_lengths], k_lengths=[5 * x for x in case.k_lengths])
    assert_dropout(case, case.inputs(d_k=4, d_v=4), tolerance=1e-12)


@pytest.mark.parametrize(
    ("device", "dtype", "widths", "window", "length_bound", "expected", "without_triton"),
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
    length_bound: int,
    expected: Kernel,
    without_triton: Kernel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_attention, "_TAKES_WINDOW", True)
    d_k, d_v = widths
    for has_triton, kernel in ((True, expected), (False, without_triton)):
        monkeypatch.setattr(
            attention, "triton_problem", lambda device, found=has_triton: None if found else "no compiler"
        )
        given: dict[str, Any] = {"d_k": d_k, "d_v": d_v, "window": window, "length_bound": length_bound}
        assert choose_kernel(torch.device(device), dtype, **given, has_dropout=False) == kernel
        # Our kernel has dropout, and torch's variable-length kernel has none.
        with_dropout = {"varlen": "triton" if has_triton and max(widths) <= 128 else "sdpa"}.get(kernel, kernel)
        assert choose_kernel(torch.device(device), dtype, **given, has_dropout=True) == with_dropout


def test_compiled_code_takes_the_kernel_that_was_chosen_before() -> None:
    cuda, widths = torch.device("cuda", 0), {"d_k": 64, "d_v": 64}

    def choice(x: Tensor) -> Tensor:
        kernel = choose_kernel(cuda, BF16, **widths, window=None, length_bound=128, has_dropout=False)
        return x + (1 if kernel == "triton" else 2)

    x = torch.zeros(1)
    assert torch.equal(choice(x), torch.compile(choice, fullgraph=True, dynamic=False, backend="eager")(x))


@pytest.mark.parametrize(("has_triton", "expected"), [(True, "triton"), (False, "sdpa")])
def test_windows_that_torch_does_not_take_go_elsewhere(
    has_triton: bool, expected: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"d_k": 64, "d_v": 64, "window": 5, "length_bound": 512}
    assert cuda_attention.varlen_supports(BF16, d_k=64, d_v=64, window=3)
    monkeypatch.setattr(cuda_attention, "_TAKES_WINDOW", False)
    monkeypatch.setattr(attention, "triton_problem", lambda device: None if has_triton else "no compiler")
    assert not cuda_attention.varlen_supports(BF16, d_k=64, d_v=64, window=3)
    assert choose_kernel(torch.device("cuda"), BF16, **given, has_dropout=False) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("width", [16, 64, 128, 256])
@pytest.mark.parametrize("name", CASES)
def test_the_cuda_kernels_are_attention_by_loops(name: str, width: int) -> None:
    device, case = torch.device("cuda"), CASES[name]
    rounded = [x.detach().bfloat16().requires_grad_() for x in case.inputs(d_k=width, d_v=width)]
    out = case.attend(*(x.to(device) for x in rounded), device=device)
    # bf16 keeps 8 bits: 4e-3 of values below 4; the probabilities are rounded as well.
    assert_attention(out, case.by_loops(*rounded), rounded, tolerance=2e-2, of_gradients=5e-2)


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


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch's own operator serve attention on the CPU."""
    register()
    monkeypatch.setattr(attention, "choose_kernel", lambda *_, **__: "varlen")


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", CASES)
def test_torchs_operator_with_the_kernel_for_cpus_is_attention_by_loops(name: str) -> None:
    case = CASES[name]
    inputs = case.inputs(d_k=8, d_v=8)
    assert_attention(case.attend(*inputs), case.by_loops(*inputs), inputs)


def in_slots(case: Case, *, is_query: bool, slots: int, dummies: int, sentences: int) -> Packed:
    """The sentences of a case in a fixed shape: dummies of like length in what is left, then empty sentences."""
    lengths = case.q_lengths if is_query else case.k_lengths
    num_tokens = sum(lengths)
    packed = layout_of(lengths, num_empty=slots - num_tokens)
    ends = [num_tokens + packed.num_empty * number // dummies for number in range(1, dummies + 1)]
    ends += (ends[-1:] or [num_tokens]) * (sentences - len(lengths) - dummies)
    cu_seqlens = torch.cat([packed.cu_seqlens, torch.tensor(ends, dtype=torch.int32)])
    return replace(packed, cu_seqlens=cu_seqlens, length_bound=8)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("q_slots", "k_slots", "dummies", "sentences"),
    [(25, 27, 3, 9), (25, 14, 2, 5), (12, 27, 3, 7), (20, 20, 0, 3)],
    ids=["both", "queries", "keys", "nothing covers them"],
)
def test_empty_slots_stay_finite_and_change_nothing(
    name: str, q_slots: int, k_slots: int, dummies: int, sentences: int
) -> None:
    case = CASES[name]
    is_cross = case.q_lengths != case.k_lengths
    queries = in_slots(case, is_query=True, slots=q_slots, dummies=dummies, sentences=sentences)
    keys = in_slots(case, is_query=False, slots=k_slots, dummies=dummies, sentences=sentences) if is_cross else queries
    inputs = case.inputs(d_k=8, d_v=8)
    q, k, v = (F.pad(x, (0, 0, 0, 0, 0, side.num_empty)) for x, side in zip(inputs, (queries, keys, keys), strict=True))
    projections = joined(q, k, v, matrices=2 if is_cross else 1)
    out = attend(projections, queries=queries, keys=keys, is_causal=case.is_causal, window=case.window, dropout=OFF)
    assert len(out) == q_slots
    assert out.isfinite().all()
    assert_attention(out[: queries.num_tokens], case.by_loops(*inputs), inputs)


@pytest.mark.parametrize(
    ("name", "takes_window", "expected"),
    [
        ("self", False, {"is_causal": False}),  # as torch 2.10
        ("cross", False, {"is_causal": False}),
        ("causal", False, {"is_causal": True}),
        ("self", True, {"window_size": (-1, -1)}),
        ("cross", True, {"window_size": (-1, -1)}),
        ("causal", True, {"window_size": (-1, 0)}),
        ("window 1", True, {"window_size": (0, 0)}),
        ("window 3", True, {"window_size": (1, 1)}),
        ("window 4", True, {"window_size": (2, 2)}),
    ],
)
def test_torchs_kernel_is_told_how_far_each_token_sees(
    name: str, takes_window: bool, expected: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, told = CASES[name], dict[str, object]()

    def note(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *longest: int, **options: object) -> Tensor:
        told.update(options, longest=longest)
        return q.new_empty(*q.shape[:2], v.size(2))

    monkeypatch.setattr(cuda_attention, "varlen_attn", note)
    monkeypatch.setattr(cuda_attention, "_TAKES_WINDOW", takes_window)
    monkeypatch.setattr(attention, "choose_kernel", lambda *_, **__: "varlen")
    case.attend(*case.inputs(d_k=4, d_v=4))
    assert told == expected | {"longest": (max(case.q_lengths), max(case.k_lengths))}
