"""Packed sentences and padded rectangles."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from nmt_cli.model.packing import Packed, from_rectangle, pack, to_rectangle

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def layout_of(lengths: list[int]) -> Packed:
    return pack([[0] * length for length in lengths], device=CPU)


def sentences(lengths: list[int], *shape: int) -> list[torch.Tensor]:
    """No element is zero, so that none can be mistaken for padding."""
    values = torch.arange(1.0, 1 + sum(lengths) * max(1, torch.Size(shape).numel()))
    return list(values.view(sum(lengths), *shape).split(lengths))


@given(LENGTHS)
@settings(deadline=None)
def test_a_rectangle_holds_each_sentence_in_its_row_and_zeros_behind(lengths: list[int]) -> None:
    parts = sentences(lengths, 2)
    rectangle = to_rectangle(torch.cat(parts), layout_of(lengths))
    torch.testing.assert_close(rectangle, pad_sequence(parts, batch_first=True), rtol=0, atol=0)


@given(LENGTHS)
@settings(deadline=None)
def test_from_rectangle_undoes_to_rectangle_whatever_the_padding_holds(lengths: list[int]) -> None:
    layout, tokens = layout_of(lengths), torch.cat(sentences(lengths, 2, 3))
    rectangle = to_rectangle(tokens, layout)
    rectangle = rectangle.masked_fill(~layout.keep_mask[:, :, None, None], torch.nan)
    assert torch.equal(from_rectangle(rectangle, layout), tokens)


@given(LENGTHS)
@settings(deadline=None)
def test_layout_facts_are_those_of_a_loop(lengths: list[int]) -> None:
    layout = layout_of(lengths)
    longest = max(lengths)
    places = [(row, place) for row, length in enumerate(lengths) for place in range(length)]
    assert layout.num_sentences == len(lengths)
    assert layout.max_len == longest
    assert layout.lengths.tolist() == lengths
    assert layout.positions.tolist() == [place for _, place in places]
    assert layout.slots.tolist() == [row * longest + place for row, place in places]
    assert layout.keep_mask.tolist() == [[place < length for place in range(longest)] for length in lengths]
    assert layout.is_rectangular == (len(set(lengths)) == 1)


@given(st.lists(st.lists(st.integers(0, 40_000), min_size=1, max_size=9), min_size=1, max_size=8))
@settings(deadline=None)
def test_pack_keeps_every_id_in_order(rows: list[list[int]]) -> None:
    layout = pack(rows, device=CPU)
    bounds = layout.cu_seqlens.tolist()
    assert [layout.ids[start:end].tolist() for start, end in pairwise(bounds)] == rows
    # The types that torch's variable-length attention and embedding take.
    assert (layout.ids.dtype, layout.cu_seqlens.dtype) == (torch.int64, torch.int32)


@pytest.mark.parametrize("rows", [[], [[]], [[1], [], [2]]])
def test_an_empty_sentence_cannot_be_packed(rows: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="empty sentence"):
        pack(rows, device=CPU)


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
