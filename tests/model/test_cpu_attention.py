"""Attention by products over groups of sentences of like length: against loops, and what the groups are."""

from __future__ import annotations

import random

import pytest
import torch

from nmt_cli.model.cpu_attention import attend_cpu, group_by_length
from nmt_cli.model.cpu_linear import can_pack, can_quantize, pack_linear_layers
from nmt_cli.model.packing import pack
from tests.model.cases import CPU, Case, assert_attention, layout_of
from tests.reference.attention import sees_all, sees_neighbours, sees_the_past
from tests.reference.models import random_model, tiny_config

HEADS = 3


def some_lengths(count: int, *, longest: int, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randint(1, longest) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 3, 8, 9, 16, 17, 70])
@pytest.mark.parametrize("longest", [1, 40])
def test_values_and_gradients_are_those_of_loops(count: int, longest: int) -> None:
    src, tgt = (some_lengths(count, longest=longest, seed=seed) for seed in (1, 2))
    for case in (
        Case(tgt, src, False, None, sees_all),
        Case(tgt, tgt, True, None, sees_the_past),
        Case(src, src, False, 3, sees_neighbours(3)),
    ):
        inputs = case.inputs(d_k=4, d_v=4)
        assert_attention(case.attend(*inputs), case.by_loops(*inputs), inputs)


def test_queries_keys_and_values_may_be_columns_of_one_matrix() -> None:
    lengths = some_lengths(40, longest=30, seed=1)
    layout = layout_of(lengths)
    joint = torch.randn(sum(lengths), 3 * HEADS * 4, dtype=torch.float64).requires_grad_()
    parts = [part.unflatten(1, (HEADS, 4)) for part in joint.split(HEADS * 4, dim=1)]
    apart = [part.detach().contiguous().requires_grad_() for part in parts]
    outs = [
        attend_cpu(*x, queries=layout, keys=layout, is_causal=True, window=None, dropout=0.0) for x in (parts, apart)
    ]
    assert torch.equal(*outs)
    (ours,) = torch.autograd.grad(outs[0].square().sum(), joint)
    theirs = torch.autograd.grad(outs[1].square().sum(), apart)
    assert torch.equal(ours, torch.cat([gradient.flatten(1) for gradient in theirs], dim=1))


def test_empty_slots_are_not_looked_at_and_get_zeros() -> None:
    lengths = some_lengths(20, longest=9, seed=1)
    layout = layout_of(lengths, num_empty=5)
    x = torch.randn(sum(lengths) + 5, HEADS, 4)
    x[-5:] = torch.nan
    x.requires_grad_()
    out = attend_cpu(x, x, x, queries=layout, keys=layout, is_causal=False, window=None, dropout=0.0)
    (gradient,) = torch.autograd.grad(out[:-5].sum(), x)
    for tensor in (out, gradient):
        assert tensor[:-5].isfinite().all()
        assert not tensor[-5:].any()


def test_bf16_is_near_float64_on_the_same_inputs() -> None:
    lengths = some_lengths(60, longest=30, seed=1)
    layout = layout_of(lengths)
    inputs = [torch.randn(sum(lengths), HEADS, 16).bfloat16() for _ in range(3)]
    ours, theirs = (
        attend_cpu(
            *(x.to(dtype) for x in inputs), queries=layout, keys=layout, is_causal=False, window=None, dropout=0.0
        )
        for dtype in (torch.bfloat16, torch.float64)
    )
    # Scores, weights and output are rounded at 2^-9 each.
    assert float((ours.double() - theirs).norm() / theirs.norm()) < 1e-2


def test_groups_have_little_padding_and_sizes_that_come_again() -> None:
    generator = random.Random(1)
    src = [min(60, max(2, round(generator.lognormvariate(2.5, 0.45)))) for _ in range(320)]
    tgt = [max(2, round(length * generator.uniform(0.8, 1.3))) for length in src]
    groups = group_by_length(layout_of(tgt), layout_of(src), heads=HEADS).groups
    rectangles = [(len(group.query_lengths), group.num_queries, group.num_keys) for group in groups]
    assert all(count % 16 == width % 8 == keys % 8 == 0 for count, width, keys in rectangles)
    assert sum(count for count, _, _ in rectangles) == 320
    # One rectangle for all would have four times the slots.
    assert sum(count * width for count, width, _ in rectangles) < 1.7 * sum(tgt)
    assert 320 * max(tgt) > 3 * sum(tgt)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("changes", [{}, {"encoder_window": 5, "positions": "rotary"}])
@torch.inference_mode()
def test_the_encoding_of_a_sentence_does_not_depend_on_its_batch(precision: str, changes: dict[str, object]) -> None:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    if not (can_quantize() if precision == "int8" else can_pack(dtype)):
        pytest.skip(f"this CPU has no {precision}")
    widths = {"d_model": 512, "d_ff": 1024, "heads": 8, "d_k": 64, "d_v": 64}
    model = random_model(tiny_config(**widths, **changes), vocab=300, seed=1, dtype=dtype)
    pack_linear_layers(model, is_int8=precision == "int8")
    generator = random.Random(2)

    def sentences(lengths: list[int]) -> list[list[int]]:
        return [[generator.randrange(4, 300) for _ in range(length)] for length in lengths]

    for length in (2, 9, 33, 60):
        (sentence,) = sentences([length])
        alone = model.encode(pack([sentence], device=CPU))
        for others in (1, 2, 4, 9, 40):
            rows = [*sentences(some_lengths(others, longest=50, seed=others)), sentence]
            together = model.encode(pack(rows, device=CPU))[-length:]
            if precision == "bf16":  # CPUs with AMX sum in another order for other numbers of rows
                assert float((together - alone).float().norm() / alone.float().norm()) < 0.02, others
            else:
                assert torch.equal(together, alone), others
