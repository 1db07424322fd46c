from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nmt_cli.errors import DataError
from nmt_cli.tokenization import text_encoder
from nmt_cli.tokenization.pieces import piece_links, word_alignment, word_ids, word_log_probs
from nmt_cli.tokenization.text_encoder import TextEncoder
from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, TokenizerKind
from nmt_cli.tokenization.train_sentencepiece import train_tokenizer
from nmt_cli.tokenization.white_space import PLAIN_SPACES, normalize_spaces
from tests.tokenization.models import trained

KINDS: list[TokenizerKind] = ["bpe", "unigram"]
TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs"]))
LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))
WORD = st.text(st.sampled_from("abeilnu▁\u00a0é漢"), min_size=1, max_size=4)
WORDS = st.text(st.sampled_from("abeilnu ▁\u00a0é漢"), max_size=20)
# "Ä" is two bytes; the second word has two pieces; the last piece is a space alone.
PIECES = ["▁ein", "▁klei", "nes", "▁", "<0xC3>", "<0x84>", "rm", "▁"]


@pytest.fixture(scope="module")
def tokenizers() -> dict[TokenizerKind, Tokenizer]:
    return {kind: Tokenizer(trained(kind)) for kind in KINDS}


@pytest.fixture(scope="module")
def tokenizer(tokenizers: dict[TokenizerKind, Tokenizer]) -> Tokenizer:
    return tokenizers["bpe"]


@pytest.mark.parametrize("kind", KINDS)
@given(lines=st.lists(TEXT, max_size=5))
@example(lines=["a ▁b▁▁ c▁", "▁", " ", "", "  two  spaces  "])
@example(lines=["\U00100000▁\U00100001", "<s> </s> <unk> <pad> <0x41>"])
@example(lines=["\u2028\ufeff\u00a0\u3000\u200b", "日本語 👩‍👩‍👧", "e\u0301 é"])
@settings(max_examples=150)
def test_any_text_without_control_characters_survives_and_has_no_special_pieces(
    tokenizers: dict[TokenizerKind, Tokenizer], kind: TokenizerKind, lines: list[str]
) -> None:
    ids = tokenizers[kind].encode(lines)
    assert tokenizers[kind].decode(ids) == lines
    assert not {PAD, UNK, BOS, EOS}.intersection(chain.from_iterable(ids))


def test_special_pieces_have_their_ids_and_decode_to_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.pieces([PAD, UNK, BOS, EOS]) == ["<pad>", "<unk>", "<s>", "</s>"]
    (ids,) = tokenizer.encode(["bade fugi"])
    assert tokenizer.decode([[], [BOS, *ids, EOS, PAD, PAD], []]) == ["", "bade fugi", ""]


def test_a_missing_or_foreign_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"source\.spm is missing") as missing:
        Tokenizer.load(tmp_path / "source.spm")
    assert "nmt prepare" in missing.value.hint
    (tmp_path / "source.spm").write_text("not a model")
    with pytest.raises(DataError, match=r"source\.spm is not a SentencePiece model") as foreign:
        Tokenizer.load(tmp_path / "source.spm")
    assert foreign.value.where == str(tmp_path / "source.spm")


def assert_encoded_alike(tokenizer: Tokenizer, encoder: TextEncoder, lines: Sequence[str]) -> None:
    encoded = encoder.encode("".join(f"{line}\n" for line in lines).encode())
    known = [
        line if line.isascii() else tokenizer.with_known_characters(line.translate(PLAIN_SPACES)) for line in lines
    ]
    texts = [line if line == before else normalize_spaces(line) for line, before in zip(known, lines, strict=True)]
    rows = [[*row, EOS] for row in tokenizer.encode(texts)]
    assert encoded.lengths.tolist() == [len(row) for row in rows]
    assert encoded.ids.tolist() == list(chain.from_iterable(rows))


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("the\u00a0old sea", "the old sea"),
        ("the\u202fold \u2003\u3000sea\u2028", "the old sea"),
        ("\ufeffthe o\u00adld\u200b sea\u2069", "the old sea"),
        ("the\told\x00\x85sea", "the old sea"),
        ("\u200b\u00ad \u2060", ""),
        ("\u3164\u2800\uffa0", ""),
        ("the\u2800old\U000e0101 s\U000e0041ea", "the old sea"),
        ("u\u0308ber", "über"),
        ("한국어", "한국어"),
        ("が", "が"),
        ("x\u0302 ≠ y", "x\u0302 ≠ y"),  # there is no composed letter
    ],
)
def test_what_the_vocabulary_lacks_becomes_what_it_may_have(tokenizer: Tokenizer, line: str, known: str) -> None:
    assert tokenizer.as_in_training(line) == known


@pytest.mark.parametrize("kind", KINDS)
def test_whole_texts_are_encoded_with_known_characters(
    tokenizers: dict[TokenizerKind, Tokenizer], kind: TokenizerKind
) -> None:
    encoder = TextEncoder(tokenizers[kind], is_source=True)
    odd, plain = "ba\u00a0fu u\u0308 \u200b\nsea\n\u00a0bade\n", "ba fu ü\nsea\nbade\n"
    for _ in range(2):  # once new, once remembered
        assert encoder.encode(odd.encode()).ids.tolist() == encoder.encode(plain.encode()).ids.tolist()
    target = TextEncoder(tokenizers[kind], is_source=False)
    rows = tokenizers[kind].encode(odd.split("\n")[:-1])
    assert target.encode(odd.encode()).ids.tolist() == list(chain.from_iterable([*row, EOS] for row in rows))


def test_what_the_vocabulary_has_stays(tmp_path: Path) -> None:
    text = ["می\u200cخواهم e\u0301te\u0301 a\u00a0b", "نمی\u200cدانم cafe\u0301 c\u00a0d"] * 50
    settings: dict[str, Any] = {"vocab_size": 330, "kind": "bpe", "character_coverage": 1.0, "output": tmp_path / "spm"}
    train_tokenizer([line.encode() for line in text], symbols=[], user_symbols=[], **settings)
    tokenizer = Tokenizer.load(tmp_path / "spm")
    assert [tokenizer.as_in_training(line) for line in text] == [line.replace("\u00a0", " ") for line in text]
    assert tokenizer.decode(tokenizer.encode_target(text)) == text
    assert tokenizer.as_in_training(" \u200c ") == ""


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(st.lists(st.one_of(LINE, WORDS), max_size=4), max_size=3))
@example(texts=[["a b", "", " a", "b ", "a  b"], ["a b"], []])
@example(texts=[["<s> </s> <unk> <pad> <0x41> \r \x00 \t a\rb"], ["a ▁b▁▁ c▁", "▁"]])
@settings(max_examples=200)
def test_whole_texts_get_the_ids_of_their_sentences(
    tokenizers: dict[TokenizerKind, Tokenizer], kind: TokenizerKind, texts: list[list[str]]
) -> None:
    encoder = TextEncoder(tokenizers[kind], is_source=True)
    for lines in texts:
        assert_encoded_alike(tokenizers[kind], encoder, lines)


@given(texts=st.lists(st.lists(st.lists(WORD, min_size=1, max_size=6), max_size=6), max_size=4))
@settings(max_examples=100)
def test_words_that_are_remembered_or_forgotten_change_nothing(
    tokenizer: Tokenizer, texts: list[list[list[str]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_encoder, "_MAX_CACHED_WORDS", 5)
        encoder = TextEncoder(tokenizer, is_source=True)
        for lines in texts:
            assert_encoded_alike(tokenizer, encoder, [" ".join(words) for words in lines])


def test_real_text_gets_the_ids_of_its_sentences(tmp_path: Path, shared_data: Path) -> None:
    text = {
        side: (shared_data / "wmt14-sample" / f"train.{side}").read_text().split("\n")[:3000] for side in ("en", "de")
    }
    lines = [" ".join(filter(None, line.split(" "))) for side in text.values() for line in side if line]
    train_tokenizer(
        [line.encode() for line in lines],
        vocab_size=4000,
        kind="bpe",
        character_coverage=0.9999,
        symbols=[],
        user_symbols=[],
        output=tmp_path / "spm",
    )
    tokenizer = Tokenizer.load(tmp_path / "spm")
    encoder = TextEncoder(tokenizer, is_source=True)
    assert_encoded_alike(tokenizer, encoder, lines)
    assert_encoded_alike(tokenizer, encoder, lines[::-1])


def test_lines_are_repeated_and_left_out(tokenizer: Tokenizer) -> None:
    lines = ["bade fugi", "a", "ba be", "do"]
    encoder = TextEncoder(tokenizer, is_source=True)
    encoded = encoder.encode("".join(f"{line}\n" for line in lines).encode())
    copies = [2, 0, 1, 3]
    expected = encoder.encode(
        "".join(f"{line}\n" * number for line, number in zip(lines, copies, strict=True)).encode()
    )
    repeated = encoded.repeat(np.array(copies))
    assert repeated.ids.tolist() == expected.ids.tolist()
    assert repeated.lengths.tolist() == expected.lengths.tolist()


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
    assert word_log_probs(["▁"], [-1.0, -0.5]) == [-1.5]
    assert word_log_probs(["▁"], [-1.0]) == []


def test_alignment_is_of_words() -> None:
    def alignment(source: list[str], target: list[str], indices: list[int], texts: tuple[str, str]) -> object:
        return word_alignment(piece_links(source, target, zip(indices, range(len(target)), strict=True), texts), *texts)

    source = ["▁a", "▁small", "▁h", "ouse"]
    assert alignment(source, ["▁ein", "▁Haus", "▁"], [0, 3, 1], ("a small house", "ein Haus")) == [(0, 0), (2, 1)]
    assert alignment(source, ["▁kleines", "es"], [1, 1], ("a small house", "kleineses")) == [(1, 0)]
    # The tokenizer wrote three dots as one character.
    assert alignment(["▁so", "…"], ["▁so", "▁…"], [0, 1], ("so...", "so …")) == [(0, 0), (0, 1)]
