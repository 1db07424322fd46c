"""From pieces to words."""

from __future__ import annotations

import pytest

from nmt_cli.tokenization.tokenizer import Tokenizer, word_alignment, word_ids, word_log_probs
from tests.artifacts.builders import spm_bytes

# "Ä" is two bytes; the second word has two pieces; the last piece is a space alone.
PIECES = ["▁ein", "▁klei", "nes", "▁", "<0xC3>", "<0x84>", "rm", "▁"]


def test_each_piece_belongs_to_the_word_it_ends_in() -> None:
    assert word_ids(PIECES) == [0, 1, 1, None, 2, 2, 2, None]
    assert word_ids(["a", "<0x20>", "b", "<0x0A>", "c"]) == [0, None, 1, None, 2]
    assert word_ids([]) == []
    # A no-break space in bytes is a space, as str.split has it; half a character is part of a word.
    assert word_ids(["a", "<0xC2>", "<0xA0>", "b"]) == [0, None, None, 1]
    assert word_ids(["a", "<0xC3>", "▁b"]) == [0, 0, 1]


def test_word_scores_add_up_to_the_whole() -> None:
    scores = [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0]
    assert word_log_probs(PIECES, [*scores, -9.0]) == [-1.0, -5.0, -30.0, -9.0]
    assert word_log_probs(PIECES, scores) == [-1.0, -5.0, -30.0]
    assert word_log_probs([], [-0.5]) == [-0.5]


def test_alignment_is_of_words() -> None:
    source = ["▁a", "▁small", "▁h", "ouse"]
    assert word_alignment(source, ["▁ein", "▁Haus", "▁"], [0, 3, 1]) == [(0, 0), (2, 1)]
    assert word_alignment(source, ["▁kleines", "es"], [1, 1]) == [(1, 0)]


@pytest.mark.parametrize("text", ["the old sea", "a  small ëxträ house", "日本 語", "x\u00a0y z"])
def test_words_of_a_tokenized_text_are_those_of_split(text: str) -> None:
    tokenizer = Tokenizer(spm_bytes())
    (ids,) = tokenizer.encode([text])
    words = {word for word in word_ids(tokenizer.pieces(ids)) if word is not None}
    assert words == set(range(len(text.split())))
