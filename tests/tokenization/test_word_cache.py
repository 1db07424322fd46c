from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nmt_cli.tokenization import tokenizer as tokenizer_module
from nmt_cli.tokenization.tokenizer import EOS, TextEncoder, Tokenizer, TokenizerKind
from nmt_cli.tokenization.training import train_tokenizer
from tests.preparing.corpus_files import invented_pairs

KINDS: list[TokenizerKind] = ["bpe", "unigram"]
LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))
WORD = st.text(st.sampled_from("abeilnu▁\u00a0é漢"), min_size=1, max_size=4)
WORDS = st.text(st.sampled_from("abeilnu ▁\u00a0é漢"), max_size=20)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[TokenizerKind, Tokenizer]:
    """A small model of each kind."""
    folder = tmp_path_factory.mktemp("tokenizers")
    lines = [side.encode() for pair in invented_pairs(400, seed=3) for side in pair]
    for kind in KINDS:
        train_tokenizer(lines, vocab_size=400, kind=kind, character_coverage=1.0, output=folder / kind)
    return {kind: Tokenizer.load(folder / kind) for kind in KINDS}


def assert_encoded_alike(tokenizer: Tokenizer, encoder: TextEncoder, lines: Sequence[str]) -> None:
    encoded = encoder.encode("".join(f"{line}\n" for line in lines).encode())
    rows = [[*row, EOS] for row in tokenizer.encode(lines)]
    assert encoded.lengths.tolist() == [len(row) for row in rows]
    assert encoded.ids.tolist() == list(chain.from_iterable(rows))


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(st.lists(st.one_of(LINE, WORDS), max_size=4), max_size=3))
@example(texts=[["a b", "", " a", "b ", "a  b"], ["a b"], []])
@example(texts=[["<s> </s> <unk> <pad> <0x41> \r \x00 \t a\rb"], ["a ▁b▁▁ c▁", "▁"]])
@settings(max_examples=200, deadline=None)
def test_whole_texts_get_the_ids_of_their_sentences(
    tokenizers: dict[TokenizerKind, Tokenizer], kind: TokenizerKind, texts: list[list[str]]
) -> None:
    encoder = TextEncoder(tokenizers[kind], kind=kind)
    for lines in texts:
        assert_encoded_alike(tokenizers[kind], encoder, lines)


@given(texts=st.lists(st.lists(st.lists(WORD, min_size=1, max_size=6), max_size=6), max_size=4))
@settings(max_examples=100, deadline=None)
def test_words_that_are_remembered_or_forgotten_change_nothing(
    tokenizers: dict[TokenizerKind, Tokenizer], texts: list[list[list[str]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_module, "_MAX_WORDS", 5)
        encoder = TextEncoder(tokenizers["bpe"], kind="bpe")
        for lines in texts:
            assert_encoded_alike(tokenizers["bpe"], encoder, [" ".join(words) for words in lines])


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
        output=tmp_path / "spm",
    )
    tokenizer = Tokenizer.load(tmp_path / "spm")
    encoder = TextEncoder(tokenizer, kind="bpe")
    assert_encoded_alike(tokenizer, encoder, lines)
    assert_encoded_alike(tokenizer, encoder, lines[::-1])


def test_lines_are_repeated_and_left_out(tokenizers: dict[TokenizerKind, Tokenizer]) -> None:
    lines = ["bade fugi", "a", "ba be", "do"]
    encoder = TextEncoder(tokenizers["bpe"], kind="bpe")
    encoded = encoder.encode("".join(f"{line}\n" for line in lines).encode())
    copies = [2, 0, 1, 3]
    expected = encoder.encode(
        "".join(f"{line}\n" * number for line, number in zip(lines, copies, strict=True)).encode()
    )
    repeated = encoded.repeated(np.array(copies))
    assert repeated.ids.tolist() == expected.ids.tolist()
    assert repeated.lengths.tolist() == expected.lengths.tolist()
