"""Our attention kernels: values and gradients against loops in float64."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import accumulate

import pytest
import torch
from torch import Tensor, nn

from nmt_cli.model import attention
from nmt_cli.model.attention import attend
from nmt_cli.model.dropout import Dropout
from nmt_cli.model.layers import CrossAttention, SelfAttention
from nmt_cli.model.packing import Spans
from nmt_cli.recipe.schema import ModelConfig
from tests.interpreted import DEVICE, IS_INTERPRETED, MARKS  # isort: split

from nmt_cli.model import cuda_attention
from nmt_cli.model.kernels import attention as kernels
from tests.model.cases import Case, assert_attention, assert_dropout, gradients, joined
from tests.reference.attention import Sees, packed_attention, sees_all, sees_neighbours, sees_the_past

pytestmark = MARKS

HEADS = 2
OFF = Dropout(0.0)
# The tiles are of 32 tokens: sentences of one tile, just more than one, and four; and sides without any tokens.
SELF = [1, 32, 0, 33, 128, 7]
SHORT = [17, 40, 32]
QUERIES, KEYS = [5, 0, 40, 128, 32], [33, 7, 0, 32, 128]
# float32 rounds at 6e-8; sums have up to 128 terms of about 1. A GPU approximates 2^x.
TOLERANCE = 1e-5 if IS_INTERPRETED else 1e-4


@pytest.fixture(autouse=True)
def _ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let our kernels serve attention on every device."""
    monkeypatch.setattr(attention, "choose_kernel", lambda *_, **__: "triton")


@pytest.fixture
def _nan_until_written() -> Iterator[None]:
    """Memory is NaN until it is written."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def inputs_of(q_lengths: list[int], k_lengths: list[int], *, d_k: int, d_v: int, heads: int = HEADS) -> list[Tensor]:
    """q, k, v in float32; the loops take the same numbers in float64."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(sum(q_lengths), d_k), (sum(k_lengths), d_k), (sum(k_lengths), d_v)]
    return [torch.randn(tokens, heads, width, generator=generator).requires_grad_() for tokens, width in shapes]


def spans(lengths: list[int]) -> Spans:
    ends = [0, *accumulate(lengths)]
    cu_seqlens = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    return Spans(cu_seqlens, torch.zeros(ends[-1], dtype=torch.int64, device=DEVICE), length_bound=128)


def by_loops(inputs: list[Tensor], q_lengths: list[int], k_lengths: list[int], sees: Sees) -> Tensor:
    """Sentence by sentence; zeros for queries without keys."""
    q, k, v = inputs
    rows = []
    for q_part, k_part, v_part in zip(q.split(q_lengths), k.split(k_lengths), v.split(k_lengths), strict=True):
        if 0 in (len(q_part), len(k_part)):
            rows.append(torch.zeros(len(q_part), *v.shape[1:], dtype=torch.float64))
        else:
            lengths = {"q_lengths": [len(q_part)], "k_lengths": [len(k_part)]}
            rows.append(packed_attention(q_part, k_part, v_part, **lengths, sees=sees, factors=None))
    return torch.cat(rows)


@pytest.mark.usefixtures("_nan_until_written")
@pytest.mark.parametrize(
    ("q_lengths", "k_lengths", "is_causal", "window", "d_k", "d_v", "matrices"),
    [
        (SELF, SELF, False, None, 16, 16, 1),
        (SELF, SELF, True, None, 64, 64, 1),
        (QUERIES, KEYS, False, None, 32, 32, 2),
        ([70, 3], [70, 3], False, 1, 16, 16, 1),
        ([70, 33], [70, 33], False, 6, 16, 16, 1),
        ([80], [80], False, 70, 16, 16, 1),
        # Heads whose width is no power of two, or another for values, or so wide that tiles have 16 tokens.
        ([20, 35], [20, 35], True, None, 16, 64, 1),
        ([20, 35], [34, 2], False, None, 48, 24, 2),
        ([17, 35], [17, 35], True, None, 128, 128, 3),
        ([35], [33], False, None, 8, 128, 3),
    ],
)
def test_our_kernels_are_attention_by_loops(
    q_lengths: list[int], k_lengths: list[int], is_causal: bool, window: int | None, d_k: int, d_v: int, matrices: int
) -> None:
    inputs = inputs_of(q_lengths, k_lengths, d_k=d_k, d_v=d_v)
    projections = joined(*(x.to(DEVICE) for x in inputs), matrices=matrices)
    queries, keys = spans(q_lengths), spans(k_lengths)
    out = attend(projections, queries=queries, keys=keys, is_causal=is_causal, window=window, dropout=OFF)
    sees = sees_the_past if is_causal else sees_all if window is None else sees_neighbours(window)
    expected = by_loops(inputs, q_lengths, k_lengths, sees)
    assert_attention(out, expected, inputs, tolerance=TOLERANCE)


@pytest.mark.parametrize(
    ("q_lengths", "k_lengths", "is_causal", "window"),
    # A tile of keys and several, whose gradients are computed in one sweep and in two.
    [(SHORT, SHORT, False, None), (SHORT, SHORT, True, None), ([20, 40], [50, 9], False, None), ([40], [40], False, 9)],
)
def test_dropout_zeroes_weights_of_the_softmax_and_scales_the_rest(
    q_lengths: list[int], k_lengths: list[int], is_causal: bool, window: int | None
) -> None:
    sees = sees_the_past if is_causal else sees_all if window is None else sees_neighbours(window)
    case = Case(q_lengths, k_lengths, is_causal, window, sees)
    inputs = inputs_of(q_lengths, k_lengths, d_k=16, d_v=16)
    assert_dropout(case, inputs, device=DEVICE, tolerance=TOLERANCE)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("q_lengths", "k_lengths", "is_causal", "matrices"),
    [(SELF, SELF, False, 1), (SELF, SELF, True, 1), (QUERIES, KEYS, False, 2)],
)
def test_our_kernels_in_bf16_are_attention_by_loops_in_base_s_width(
    q_lengths: list[int], k_lengths: list[int], is_causal: bool, matrices: int
) -> None:
    """On a GPU only: the interpreter multiplies bf16 as if its bits were integers."""
    inputs = inputs_of(q_lengths, k_lengths, d_k=64, d_v=64, heads=8)
    rounded = [x.detach().bfloat16().requires_grad_() for x in inputs]
    projections = joined(*(x.to(DEVICE) for x in rounded), matrices=matrices)
    out = attend(
        projections, queries=spans(q_lengths), keys=spans(k_lengths), is_causal=is_causal, window=None, dropout=OFF
    )
    expected = by_loops(rounded, q_lengths, k_lengths, sees_the_past if is_causal else sees_all)
    # bf16 keeps 8 bits: 4e-3 of values below 4; the probabilities are rounded as well.
    assert_attention(out, expected, rounded, tolerance=2e-2, of_gradients=5e-2)


def test_no_gradient_is_added_up_in_an_order_left_to_chance() -> None:
    assert "atomic" not in inspect.getsource(kernels)


@pytest.mark.usefixtures("_nan_until_written")
def test_slots_outside_of_sentences_are_neither_read_nor_written() -> None:
    inputs = inputs_of([40, 10], [40, 10], d_k=16, d_v=16)
    projections = joined(*(x.to(DEVICE) for x in inputs), matrices=1)
    (matrix,) = projections.matrices
    matrix = torch.cat([matrix, matrix.new_full((3, matrix.size(1)), torch.nan)])
    projections = projections._replace(matrices=[matrix])
    out = attend(projections, queries=spans([40, 10]), keys=spans([40, 10]), is_causal=False, window=None, dropout=OFF)
    expected = by_loops(inputs, [40, 10], [40, 10], sees_all)
    torch.testing.assert_close(out[:50].double().cpu(), expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert out[50:].isnan().all()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("is_self", [True, False])
def test_the_operator_keeps_what_torch_asks_of_operators(is_self: bool, dropout: float) -> None:
    seed = torch.tensor([7, -8], dtype=torch.int32, device=DEVICE) if dropout else None
    inputs = inputs_of([3, 2], [3, 2], d_k=16, d_v=16)
    given = joined(*(x.to(DEVICE) for x in inputs), matrices=1 if is_self else 2)
    matrices = [x.detach().requires_grad_() for x in given.matrices]
    ends = spans([3, 2]).cu_seqlens
    torch.library.opcheck(cuda_attention._attention, (matrices, ends, ends, seed, HEADS, 16, 16, is_self, -1, dropout))


def test_attention_layers_with_our_kernels_are_compiled_whole_to_the_same_bits() -> None:
    config = ModelConfig(d_model=32, heads=HEADS, d_k=16, d_v=16, d_ff=32)
    torch.manual_seed(1)
    layers: list[nn.Module] = [
        SelfAttention(config, is_causal=True, window=None),
        SelfAttention(config.model_copy(update={"positions": "rotary"}), is_causal=False, window=3),
        CrossAttention(config),
    ]
    x, layout = torch.randn(9, 32, device=DEVICE, requires_grad=True), spans([5, 4])
    for layer in layers:
        layer.to(DEVICE)
        given = (x, layout, x, layout) if isinstance(layer, CrossAttention) else (x, layout)
        out = layer(*given)
        compiled = torch.compile(layer, fullgraph=True, dynamic=False, backend="aot_eager")(*given)
        assert torch.equal(out, compiled)
        wanted = [x, *(each for name, each in layer.named_parameters() if not name.startswith("output"))]
        for ours, theirs in zip(gradients(compiled, *wanted), gradients(out, *wanted), strict=True):
            assert torch.equal(ours, theirs)
    torch.compiler.reset()
