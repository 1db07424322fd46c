"""The words of tokens, against the words of pieces, one sentence at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from nmt_cli.tokenization.pieces import word_ids
from nmt_cli.tokenization.sentencepiece_model import CONTROL, Piece, read_pieces, with_pieces
from nmt_cli.tokenization.subword_sampling import subword_sampler
from nmt_cli.tokenization.tokenizer import EOS, Tokenizer, TokenizerKind
from nmt_cli.tokenization.word_numbers import WordNumbers
from tests.tokenization.models import OUR_IDS, TEXT, train_spm, trained


def compare(tokenizer: Tokenizer, rows: Sequence[Sequence[int]], lines: Sequence[str]) -> None:
    """Compare the words of some sentences, without EOS, with those of their pieces and of their text."""
    numbers, ids = WordNumbers(tokenizer), np.array([number for row in rows for number in (*row, EOS)])
    lengths = np.array([len(row) + 1 for row in rows])
    assert numbers.count(ids, lengths).tolist() == [len(line.split()) for line in lines]
    found, first = numbers.of_tokens(ids, lengths), 0
    for (start, stop), row in zip(pairwise([0, *np.cumsum(lengths).tolist()]), rows, strict=True):
        *of_sentence, of_end = (found[start:stop] - first).tolist()
        words = word_ids(tokenizer.pieces(row))
        assert [word for word, other in zip(of_sentence, words, strict=True) if other is not None] == [
            word for word in words if word is not None
        ]
        first += of_end + 1
    assert first == sum(len(line.split()) + 1 for line in lines)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_words_are_found_in_prepared_and_in_sampled_pieces(kind: TokenizerKind) -> None:
    tokenizer, lines = Tokenizer(trained(kind)), TEXT[:200]
    rows = tokenizer.encode(lines)
    compare(tokenizer, rows, lines)
    ids = np.array([number for row in rows for number in (*row, EOS)], dtype="<u2")
    sampled = subword_sampler(trained(kind), alpha=0.3).sample(ids, longest=999, generator=np.random.default_rng(1))
    sampled_rows = [row[:-1].tolist() for row in np.split(sampled.ids, np.cumsum(sampled.lengths)[:-1])]
    assert sampled_rows != rows
    compare(tokenizer, sampled_rows, lines)


def test_symbols_before_a_sentence_belong_to_none_of_its_words() -> None:
    pieces = [*read_pieces(trained("bpe")), Piece("<2de>", 0.0, CONTROL), Piece("<domain:news>", 0.0, CONTROL)]
    tokenizer, lines = Tokenizer(with_pieces(trained("bpe"), pieces, has_bytes=True)), TEXT[:50]
    numbers, symbols = WordNumbers(tokenizer), [len(pieces) - 2, len(pieces) - 1]
    plain = tokenizer.encode(lines)
    found = []
    for before in ([], symbols):
        rows = [[*before, *row, EOS] for row in plain]
        ids, lengths = np.array([number for row in rows for number in row]), np.array([*map(len, rows)])
        assert numbers.count(ids, lengths).tolist() == [len(line.split()) for line in lines]
        found.append([part.tolist() for part in np.split(numbers.of_tokens(ids, lengths), np.cumsum(lengths)[:-1])])
    without, with_symbols = found
    assert [words[2:] for words in with_symbols] == without
    assert all(max(words[:2]) < words[2] for words in with_symbols)


def test_other_white_space_in_pieces_separates_words() -> None:
    lines = [line.replace(" ", "\u00a0", 1).replace("!", "\u00a0!") for line in TEXT[:300]]
    options = {"model_type": "bpe", "vocab_size": 300, "normalization_rule_name": "identity", **OUR_IDS}
    tokenizer = Tokenizer(train_spm(lines, **options))
    assert any("\u00a0" in piece for piece in tokenizer.pieces(range(tokenizer.vocab_size)))
    compare(tokenizer, tokenizer.encode(lines), lines)
