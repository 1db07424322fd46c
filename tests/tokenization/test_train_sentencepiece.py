from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nmt_cli.errors import DataError
from nmt_cli.tokenization.tokenizer import Tokenizer, TokenizerKind
from nmt_cli.tokenization.train_sentencepiece import (
    MAX_LINE_BYTES,
    TokenizerReport,
    suitable_size,
    train_tokenizer,
)
from tests.preparing.corpus_files import invented_pairs
from tests.tokenization.models import OUR_IDS, train_spm

LINES = [src for src, _ in invented_pairs(400, seed=11)]
KINDS: list[TokenizerKind] = ["bpe", "unigram"]


def train(
    output: Path, *, lines: Sequence[str] = LINES, vocab_size: int = 350, kind: TokenizerKind = "bpe"
) -> TokenizerReport:
    return train_tokenizer(
        (line.encode() for line in lines),
        vocab_size=vocab_size,
        kind=kind,
        character_coverage=1.0,
        symbols=[],
        user_symbols=[],
        output=output,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_gives_the_same_bytes(tmp_path: Path, kind: TokenizerKind) -> None:
    for name in ("a", "b"):
        train(tmp_path / name, kind=kind)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_counted_words_give_the_bytes_that_sentencepiece_makes_of_the_lines(tmp_path: Path) -> None:
    lines = [*LINES, "a▁b  c", " d", "Größe 東京 東京へ", "x" * 300]
    train(tmp_path / "ours", lines=lines, vocab_size=400)
    theirs = train_spm(
        lines,
        model_type="bpe",
        vocab_size=400,
        character_coverage=1.0,
        max_sentence_length=MAX_LINE_BYTES,
        shuffle_input_sentence=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        byte_fallback=True,
        num_threads=16,
        **OUR_IDS,
    )
    assert (tmp_path / "ours").read_bytes() == theirs


def test_lines_that_sentencepiece_would_skip_are_counted(tmp_path: Path) -> None:
    unusable = ["", "a ▅ b", "x" * (MAX_LINE_BYTES + 1)]
    report = train(tmp_path / "spm", lines=[*LINES, *unusable, "x" * MAX_LINE_BYTES])
    assert (report.num_skipped, report.vocab_size) == (3, 350)
    assert "x" in Tokenizer.load(tmp_path / "spm").pieces(range(260, 350))


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_larger_than_the_text_yields_names_the_largest(tmp_path: Path, kind: TokenizerKind) -> None:
    lines = ["ba be bi", "bo bu ba"]
    with pytest.raises(DataError, match=r"5,000 pieces is more than this text yields: at most \d+") as caught:
        train(tmp_path / "spm", lines=lines, vocab_size=5000, kind=kind)
    assert caught.value.exit_code == 4
    assert caught.value.where == "tokenizer.vocab_size"
    assert caught.value.hint == "give more training text"  # no fewer than 300 pieces can be asked for
    largest = int(re.findall(r"at most (\d+)", caught.value.message)[0])
    train(tmp_path / "spm", lines=lines, vocab_size=largest, kind=kind)
    assert Tokenizer.load(tmp_path / "spm").vocab_size == largest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "lines",
    [
        LINES[:40],
        ["".join(chr(0x4E00 + (7 * i) % 900) for i in range(start, start + 40)) for start in range(0, 2000, 20)],
    ],
    ids=["words", "Han characters"],
)
def test_a_small_text_yields_the_size_that_suits_it(tmp_path: Path, kind: TokenizerKind, lines: list[str]) -> None:
    size = suitable_size((line.encode() for line in lines), num_symbols=0, most=8000)
    train(tmp_path / "spm", lines=lines, vocab_size=size, kind=kind)
    assert 300 <= size < 8000


def test_a_vocabulary_smaller_than_the_alphabet_names_the_smallest(tmp_path: Path) -> None:
    lines = ["".join(chr(0x4E00 + i) for i in range(start, start + 50)) for start in range(0, 500, 50)]
    with pytest.raises(DataError, match=r"300 pieces is too small: .* are 761") as caught:
        train(tmp_path / "spm", lines=lines, vocab_size=300)  # 500 characters, the space, 256 bytes, 4 specials
    assert caught.value.hint == "--set tokenizer.vocab_size=900, or lower tokenizer.character_coverage"


def test_text_without_a_usable_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="SentencePiece cannot train on this text: ") as caught:
        train(tmp_path / "spm", lines=["", "▅"])
    assert caught.value.where == "tokenizer.vocab_size"
    assert caught.value.hint == "check that the training text is what it should be, or try another tokenizer.vocab_size"
    assert not (tmp_path / "spm").exists()


@pytest.mark.parametrize("problem", [DataError("000003.npz is damaged", hint="remove it"), KeyboardInterrupt()])
def test_what_goes_wrong_while_lines_are_read_arrives_as_it_is(tmp_path: Path, problem: BaseException) -> None:
    def lines() -> Iterator[bytes]:
        yield from (line.encode() for line in LINES)
        raise problem

    with pytest.raises(type(problem)) as caught:
        train_tokenizer(
            lines(),
            vocab_size=350,
            kind="bpe",
            character_coverage=1.0,
            symbols=[],
            user_symbols=[],
            output=tmp_path / "spm",
        )
    assert caught.value is problem
    assert not (tmp_path / "spm").exists()
