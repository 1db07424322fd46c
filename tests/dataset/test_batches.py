"""Batches gathered from token files against a slow loop."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.dataset.batches import make_batch
from nmt_cli.dataset.data_manifest import TokenDtype
from nmt_cli.dataset.micro_batches import MicroBatchShape
from nmt_cli.dataset.prepared_data import TokenizedSide, TokenPairs
from nmt_cli.model.packing import Packed
from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD
from tests.dataset.synthetic import tokenized_side

CPU = torch.device("cpu")
# Ids up to the largest that a file of 16 bits holds.
SENTENCE = st.lists(st.integers(4, 65_535), max_size=6).map(lambda ids: [*ids, EOS])


def side_of(rows: list[list[int]], dtype: TokenDtype = "uint16") -> TokenizedSide:
    ids = np.array([token for row in rows for token in row], dtype=dtype)
    return tokenized_side(ids, np.array([len(row) for row in rows], dtype=np.int64), dtype=dtype)


def tokens_of(side: Packed) -> list[int]:
    return side.ids[: side.num_tokens].tolist()


@given(st.lists(st.tuples(SENTENCE, SENTENCE), min_size=1, max_size=9), st.data())
def test_a_batch_holds_the_pairs_asked_for_in_that_order(
    corpus: list[tuple[list[int], list[int]]], data: st.DataObject
) -> None:
    sources, targets = ([list(side) for side in sides] for sides in zip(*corpus, strict=True))
    places = data.draw(st.lists(st.integers(0, len(corpus) - 1), min_size=1, max_size=9))
    pairs = TokenPairs(side_of(sources), side_of(targets))
    batch = make_batch(pairs.rows(np.array(places)), pairs, device=CPU, shape=None, pinned=False)

    chosen = [corpus[place] for place in places]
    assert tokens_of(batch.source) == [token for source, _ in chosen for token in source]
    gold = batch.gold.tolist()
    assert gold[: batch.target.num_tokens] == [token for _, target in chosen for token in target]
    assert gold[batch.target.num_tokens :] == [PAD] * batch.target.num_empty
    # The decoder sees BOS and then all but the last gold piece, which is EOS.
    assert tokens_of(batch.target) == [token for _, target in chosen for token in (BOS, *target[:-1])]
    for side in (batch.source, batch.target):
        assert side.ids.numel() % 128 == 0
        assert side.num_empty < 128
    assert batch.source.cu_seqlens.tolist() == [0, *accumulate(len(source) for source, _ in chosen)]
    assert batch.target.cu_seqlens.tolist() == [0, *accumulate(len(target) for _, target in chosen)]
    assert batch.source.max_len == max(len(source) for source, _ in chosen)
    assert batch.target.max_len == max(len(target) for _, target in chosen)


@given(st.lists(st.tuples(SENTENCE, SENTENCE), min_size=1, max_size=9), st.integers(0, 500), st.integers(0, 500))
def test_a_batch_with_a_shape_has_its_slots_and_dummies_over_all_that_are_empty(
    corpus: list[tuple[list[int], list[int]]], more_src: int, more_tgt: int
) -> None:
    sources, targets = ([list(side) for side in sides] for sides in zip(*corpus, strict=True))
    pairs = TokenPairs(side_of(sources), side_of(targets))
    src_tokens, tgt_tokens = (sum(map(len, side)) for side in (sources, targets))
    shape = MicroBatchShape(src_tokens + more_src, tgt_tokens + more_tgt, max_sentences=14, length_bound=512)
    rows = pairs.rows(np.arange(len(corpus)))
    batch = make_batch(rows, pairs, device=CPU, shape=shape, pinned=False)
    plain = make_batch(rows, pairs, device=CPU, shape=None, pinned=False)

    for side, without, slots, more in (
        (batch.source, plain.source, shape.src_slots, more_src),
        (batch.target, plain.target, shape.tgt_slots, more_tgt),
    ):
        number = len(corpus)
        assert (side.num_sentences, side.num_empty, side.ids.numel()) == (number, more, slots)
        assert tokens_of(side) == tokens_of(without)
        assert side.ids[side.num_tokens :].tolist() == [PAD] * more
        assert (
            side.positions.tolist()
            == [place for length in side.lengths.tolist() for place in range(length)] + [0] * more
        )
        assert side.cu_seqlens.dtype == torch.int32
        ends = side.cu_seqlens.tolist()
        assert len(ends) == shape.max_sentences + 1
        assert ends[: number + 1] == without.cu_seqlens.tolist()
        assert ends[-1] == slots
        num_dummies = math.ceil(max(more_src, more_tgt) / 128)
        assert all(0 <= end - start <= 128 for start, end in pairwise(ends[number:]))
        assert ends[number + num_dummies :] == [slots] * (shape.max_sentences + 1 - number - num_dummies)
    assert batch.gold.tolist() == plain.gold.tolist()[:tgt_tokens] + [PAD] * more_tgt


@pytest.mark.parametrize(("lengths", "expected"), [((128, 128), 128), ((129, 5), 512), ((5, 129), 512)])
def test_the_bound_is_that_of_short_sentences_or_of_the_data(lengths: tuple[int, int], expected: int) -> None:
    pairs = TokenPairs(*(side_of([[7] * (length - 1) + [EOS]]) for length in lengths))
    shape = MicroBatchShape(256, 256, max_sentences=8, length_bound=512)
    batch = make_batch(pairs.rows(np.array([0])), pairs, device=CPU, shape=shape, pinned=False)
    assert batch.source.length_bound == batch.target.length_bound == expected
    assert (batch.source.max_len, batch.target.max_len) == lengths


def test_pairs_that_a_shape_does_not_hold_are_refused() -> None:
    pairs = TokenPairs(side_of([[7, EOS]]), side_of([[7, 8, EOS]]))
    shape = MicroBatchShape(8, 2, max_sentences=8, length_bound=128)
    with pytest.raises(ValueError, match=r"^1 pairs of .* do not fit"):
        make_batch(pairs.rows(np.array([0])), pairs, device=CPU, shape=shape, pinned=False)


def test_a_batch_has_the_types_that_embeddings_and_kernels_take() -> None:
    rows = [[70_000, EOS], [EOS]]
    pairs = TokenPairs(side_of(rows, "uint32"), side_of(rows, "uint32"))
    batch = make_batch(pairs.rows(np.array([0, 1])), pairs, device=CPU, shape=None, pinned=False)
    assert tokens_of(batch.source) == [70_000, EOS, EOS]
    assert batch.source.cu_seqlens.dtype == batch.target.cu_seqlens.dtype == torch.int32
    for ids in (batch.source.ids, batch.target.ids, batch.gold):
        assert ids.dtype == torch.int64
