"""Packed sentences and padded rectangles."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from nmt_cli.model.packing import from_rectangle, pack, to_rectangle
from nmt_cli.tokenization.tokenizer import PAD
from nmt_cli.training.loss import ONE_PASS, smoothed_cross_entropy
from tests.model.cases import layout_of, with_empty_slots
from tests.reference.models import CPU, random_model, tiny_config

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=8)
SOURCES = [[5, 6, 7, 3], [8, 3], [9, 10, 3]]
TARGETS = [[2, 11, 12], [2, 4, 5, 6, 7], [2, 8]]
GOLD = torch.tensor([11, 12, 3, 4, 5, 6, 7, 3, 8, 3])


def sentences(lengths: list[int], *shape: int) -> list[torch.Tensor]:
    """No element is zero, so that none can be mistaken for padding."""
    values = torch.arange(1.0, 1 + sum(lengths) * max(1, torch.Size(shape).numel()))
    return list(values.view(sum(lengths), *shape).split(lengths))


@given(LENGTHS, st.integers(0, 5))
def test_a_rectangle_has_a_row_for_each_sentence_and_zeros_behind_and_turns_back(
    lengths: list[int], num_empty: int
) -> None:
    layout, parts = layout_of(lengths, num_empty=num_empty), sentences(lengths, 2, 3)
    tokens = F.pad(torch.cat(parts), (0, 0, 0, 0, 0, num_empty))
    rectangle = to_rectangle(tokens, layout)
    assert torch.equal(rectangle, pad_sequence(parts, batch_first=True))
    # The padding may hold anything.
    rectangle = rectangle.masked_fill(~layout.keep_mask[:, :, None, None], torch.nan)
    assert torch.equal(from_rectangle(rectangle, layout), tokens)


@given(LENGTHS)
def test_layout_facts_are_those_of_a_loop(lengths: list[int]) -> None:
    layout = layout_of(lengths)
    longest = max(lengths)
    places = [(row, place) for row, length in enumerate(lengths) for place in range(length)]
    assert layout.num_sentences == len(lengths)
    assert layout.max_len == longest
    assert layout.lengths.tolist() == lengths
    assert layout.positions.tolist() == [place for _, place in places]
    assert layout.rectangle_index.tolist() == [row * longest + place for row, place in places]
    assert layout.keep_mask.tolist() == [[place < length for place in range(longest)] for length in lengths]
    assert layout.is_rectangular == (len(set(lengths)) == 1)


@given(st.lists(st.lists(st.integers(0, 40_000), min_size=1, max_size=9), min_size=1, max_size=8))
def test_pack_keeps_every_id_in_order(rows: list[list[int]]) -> None:
    layout = pack(rows, device=CPU)
    bounds = layout.cu_seqlens.tolist()
    assert [layout.ids[start:end].tolist() for start, end in pairwise(bounds)] == rows
    # The types that torch's variable-length attention and embedding take.
    assert (layout.ids.dtype, layout.cu_seqlens.dtype) == (torch.int64, torch.int32)


@pytest.mark.parametrize("lengths", [[3, 1, 4], [2, 2], [1]])
def test_gradients_pass_both_ways_as_finite_differences_say(lengths: list[int]) -> None:
    layout = layout_of(lengths)
    torch.manual_seed(1)
    tokens = torch.randn(sum(lengths), 2, 2, dtype=torch.float64, requires_grad=True)
    rectangle = torch.randn(len(lengths), max(lengths), 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: to_rectangle(x, layout), tokens)
    assert torch.autograd.gradcheck(lambda x: from_rectangle(x, layout), rectangle)


def test_a_strided_view_of_a_fused_projection_is_laid_out_like_its_copy() -> None:
    lengths = [3, 1, 4]
    for layout in (layout_of(lengths), layout_of([4, 4])):
        view = torch.randn(8, 6).split([2, 4], dim=-1)[1].unflatten(-1, (2, 2))
        assert not view.is_contiguous()
        assert torch.equal(to_rectangle(view, layout), to_rectangle(view.contiguous(), layout))


def loss_and_gradients(num_empty: int, positions: Literal["sinusoidal", "learned"]) -> tuple[Tensor, list[Tensor]]:
    model = random_model(tiny_config(positions=positions, attention_bias=True), vocab=16, seed=1)
    source, target = (with_empty_slots(pack(rows, device=CPU), num_empty) for rows in (SOURCES, TARGETS))
    hidden = model.decode(target, model.encode(source), source)
    assert hidden.size(0) == GOLD.numel() + num_empty
    gold = F.pad(GOLD, (0, num_empty), value=PAD)
    loss = smoothed_cross_entropy(
        hidden, model.output_weight, gold, output_bias=None, vocab=model.target_vocab, smoothing=0.1, function=ONE_PASS
    )
    loss.smoothed.backward()
    return loss.smoothed.detach(), [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("num_empty", [1, 118])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_empty_slots_change_neither_loss_nor_gradients(
    num_empty: int, positions: Literal["sinusoidal", "learned"]
) -> None:
    loss, gradients = loss_and_gradients(0, positions)
    padded_loss, padded_gradients = loss_and_gradients(num_empty, positions)
    torch.testing.assert_close(padded_loss, loss)
    assert len(gradients) == len(padded_gradients) > 0
    for padded, plain in zip(padded_gradients, gradients, strict=True):
        # float64 model; the statistics of the loss are float32
        torch.testing.assert_close(padded, plain, rtol=1e-5, atol=1e-7)
