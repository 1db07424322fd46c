"""Batches gathered from token files against a slow loop."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt_cli.dataset.batch import make_batch
from nmt_cli.dataset.store import TokenFile, TokenPairs
from nmt_cli.model.packing import Packed

BOS, EOS = 2, 3
CPU = torch.device("cpu")
# Ids up to the largest that a file of 16 bits holds.
SENTENCE = st.lists(st.integers(4, 65_535), max_size=6).map(lambda ids: [*ids, EOS])


def token_file(rows: list[list[int]], dtype: type[np.unsignedinteger] = np.uint16) -> TokenFile:
    ids = np.array([token for row in rows for token in row], dtype=dtype)
    return TokenFile(ids, np.array([0, *accumulate(len(row) for row in rows)], dtype=np.int64))


def tokens_of(side: Packed) -> list[int]:
    return side.ids[: side.num_tokens].tolist()


@given(st.lists(st.tuples(SENTENCE, SENTENCE), min_size=1, max_size=9), st.data())
@settings(deadline=None)
def test_a_batch_holds_the_pairs_asked_for_in_that_order(
    corpus: list[tuple[list[int], list[int]]], data: st.DataObject
) -> None:
    sources, targets = ([list(side) for side in sides] for sides in zip(*corpus, strict=True))
    places = data.draw(st.lists(st.integers(0, len(corpus) - 1), min_size=1, max_size=9))
    pairs = TokenPairs(token_file(sources), token_file(targets))
    batch = make_batch(pairs.rows(np.array(places)), pairs, device=CPU)

    chosen = [corpus[place] for place in places]
    assert tokens_of(batch.source) == [token for source, _ in chosen for token in source]
    assert batch.gold.tolist() == [token for _, target in chosen for token in target]
    # The decoder sees BOS and then all but the last gold piece, which is EOS.
    assert tokens_of(batch.target) == [token for _, target in chosen for token in (BOS, *target[:-1])]
    for side in (batch.source, batch.target):
        assert side.ids.numel() % 128 == 0
        assert side.num_empty < 128
    assert batch.source.cu_seqlens.tolist() == [0, *accumulate(len(source) for source, _ in chosen)]
    assert batch.target.cu_seqlens.tolist() == [0, *accumulate(len(target) for _, target in chosen)]
    assert batch.source.max_len == max(len(source) for source, _ in chosen)
    assert batch.target.max_len == max(len(target) for _, target in chosen)


def test_a_batch_has_the_types_that_embeddings_and_kernels_take() -> None:
    rows = [[70_000, EOS], [EOS]]
    pairs = TokenPairs(token_file(rows, np.uint32), token_file(rows, np.uint32))
    batch = make_batch(pairs.rows(np.array([0, 1])), pairs, device=CPU)
    assert tokens_of(batch.source) == [70_000, EOS, EOS]
    assert batch.source.ids.dtype == batch.target.ids.dtype == batch.gold.dtype == torch.int64
    assert batch.source.cu_seqlens.dtype == batch.target.cu_seqlens.dtype == torch.int32


def test_the_token_files_are_left_as_they_were() -> None:
    rows = [[7, 8, EOS], [9, EOS]]
    pairs = TokenPairs(token_file(rows), token_file(rows))
    for side in (pairs.src, pairs.tgt):
        side.ids.flags.writeable = False  # as files mapped for reading
    batch = make_batch(pairs.rows(np.array([1, 0])), pairs, device=CPU)
    batch.source.ids.zero_()
    batch.target.ids.zero_()
    batch.gold.zero_()
    assert pairs.src.ids.tolist() == pairs.tgt.ids.tolist() == [7, 8, EOS, 9, EOS]
