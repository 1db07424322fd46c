from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nmt_cli.errors import DataError
from nmt_cli.tokenization.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, TokenizerKind
from nmt_cli.tokenization.training import train_tokenizer
from tests.preparing.corpus_files import invented_pairs

KINDS: list[TokenizerKind] = ["bpe", "unigram"]
TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs"]))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[TokenizerKind, Path]:
    """A small model of each kind."""
    folder = tmp_path_factory.mktemp("tokenizers")
    lines = [side.encode() for pair in invented_pairs(400, seed=3) for side in pair]
    for kind in KINDS:
        train_tokenizer(lines, vocab_size=400, kind=kind, character_coverage=1.0, output=folder / f"{kind}.spm")
    return {kind: folder / f"{kind}.spm" for kind in KINDS}


@pytest.fixture(scope="module")
def tokenizer(files: dict[TokenizerKind, Path]) -> Tokenizer:
    return Tokenizer.load(files["bpe"])


@pytest.mark.parametrize("kind", KINDS)
@given(lines=st.lists(TEXT, max_size=5))
@example(lines=["a ▁b▁▁ c▁", "▁", " ", "", "  two  spaces  "])
@example(lines=["\U00100000▁\U00100001", "<s> </s> <unk> <pad> <0x41>"])
@example(lines=["\u2028\ufeff\u00a0\u3000\u200b", "日本語 👩‍👩‍👧", "e\u0301 é"])
@settings(max_examples=150, deadline=None)
def test_any_text_without_control_characters_survives(
    files: dict[TokenizerKind, Path], kind: TokenizerKind, lines: list[str]
) -> None:
    tokenizer = Tokenizer.load(files[kind])
    assert tokenizer.decode(tokenizer.encode(lines)) == lines


@given(text=TEXT)
@settings(max_examples=100, deadline=None)
def test_no_text_is_unknown_or_a_special_piece(tokenizer: Tokenizer, text: str) -> None:
    (ids,) = tokenizer.encode([text])
    assert not {PAD, UNK, BOS, EOS} & set(ids)


def test_pieces_are_those_of_the_ids_and_nothing_beyond_has_one(tokenizer: Tokenizer) -> None:
    line = invented_pairs(400, seed=3)[0][0]
    (row,) = tokenizer.encode([line])
    assert "".join(tokenizer.pieces(row)).replace("\u2581", " ").strip() == line
    assert len(set(tokenizer.pieces(range(tokenizer.vocab_size)))) == tokenizer.vocab_size
    for number in (-1, tokenizer.vocab_size):
        with pytest.raises(KeyError):
            tokenizer.pieces([number])


def test_special_pieces_have_their_ids_and_decode_to_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.pieces([PAD, UNK, BOS, EOS]) == ["<pad>", "<unk>", "<s>", "</s>"]
    (ids,) = tokenizer.encode(["bade fugi"])
    assert tokenizer.decode([[], [BOS, *ids, EOS, PAD, PAD], []]) == ["", "bade fugi", ""]


def test_characters_outside_the_vocabulary_are_spelt_in_bytes(tokenizer: Tokenizer) -> None:
    (ids,) = tokenizer.encode(["漢"])
    assert tokenizer.pieces(ids)[-3:] == ["<0xE6>", "<0xBC>", "<0xA2>"]
    assert set(ids[-3:]) < set(tokenizer.byte_ids)
    assert len(tokenizer.byte_ids) == 256


def test_the_fingerprint_is_that_of_the_file(files: dict[TokenizerKind, Path], tokenizer: Tokenizer) -> None:
    assert tokenizer.fingerprint == hashlib.sha256(files["bpe"].read_bytes()).hexdigest()
    assert tokenizer.vocab_size == 400


def test_a_missing_or_foreign_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"source\.spm is missing") as missing:
        Tokenizer.load(tmp_path / "source.spm")
    assert "nmt prepare" in missing.value.hint
    (tmp_path / "source.spm").write_text("not a model")
    with pytest.raises(DataError, match=r"source\.spm is not a SentencePiece model") as foreign:
        Tokenizer.load(tmp_path / "source.spm")
    assert foreign.value.where == str(tmp_path / "source.spm")
