"""Prepared data on disk: what is written reads back, and damage is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt_cli.dataset.prepared_data import TokenizedSide, TokenWriter, open_prepared, token_dtype
from nmt_cli.errors import DataError
from nmt_cli.files import sha256
from nmt_cli.tokenization.tokenizer import EOS, Tokenizer
from tests.dataset.synthetic import append_rows, sentences, tokenized_side
from tests.preparing.corpus_files import corpus_of_pairs, invented_pairs, run, small_corpus

ROWS = st.lists(st.lists(st.integers(4, 399), max_size=6), max_size=8)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data of a small corpus; tests that change it take `copy`."""
    folder = tmp_path_factory.mktemp("store")
    return run(small_corpus(folder), folder / "data").directory


@pytest.fixture
def copy(prepared: Path, tmp_path: Path) -> Path:
    return copytree(prepared, tmp_path / "data")


@given(batches=st.lists(ROWS, max_size=4))
@settings(max_examples=60)
def test_what_is_written_in_batches_reads_back_with_eos(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[list[int]]]
) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    with TokenWriter(folder, split="train", side="source", dtype="uint16") as writer:
        for batch in batches:
            append_rows(writer, batch)
    rows = [[*row, EOS] for batch in batches for row in batch]
    tokens = TokenizedSide(folder / "train.source.ids", folder / "train.source.offsets", dtype=np.dtype("<u2"))
    assert sentences(tokens) == rows
    assert tokens.lengths.tolist() == [len(row) for row in rows]
    assert tokens.lengths.dtype == np.int32
    assert writer.tokens == sum(map(len, rows))


@given(rows=st.lists(st.lists(st.integers(4, 399), max_size=6), min_size=1, max_size=8), data=st.data())
@settings(max_examples=60)
def test_gathered_sentences_are_those_that_were_written(rows: list[list[int]], data: st.DataObject) -> None:
    ids = np.array([token for row in rows for token in (*row, EOS)])
    side = tokenized_side(ids, np.array([len(row) + 1 for row in rows]))
    indices = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=9)))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(rows) + 1)] * 2)))
    gathered = side.gather(side.offsets[indices], side.lengths[indices])
    assert gathered.tolist() == [token for index in indices for token in (*rows[index], EOS)]
    offsets = [0, *accumulate(len(row) + 1 for row in rows)]
    assert side.read_offsets(start, stop).tolist() == offsets[start:stop]
    assert side.num_tokens == offsets[-1]


def test_a_token_file_that_is_cut_short_while_it_is_read_is_named(tmp_path: Path) -> None:
    with TokenWriter(tmp_path, split="train", side="source", dtype="uint16") as writer:
        append_rows(writer, [[7] * 5000])
    path = tmp_path / "train.source.ids"
    side = TokenizedSide(path, tmp_path / "train.source.offsets", dtype=np.dtype("<u2"))
    os.truncate(path, 100)
    with pytest.raises(DataError) as caught:
        side.gather(np.array([0]), np.array([5001]))
    assert caught.value.message == "train.source.ids was cut short while it was read"
    assert caught.value.where == str(path)
    assert "nmt prepare" in caught.value.hint


def test_ids_are_as_narrow_as_the_vocabulary_allows(tmp_path: Path) -> None:
    assert (token_dtype(65_536), token_dtype(65_537)) == ("uint16", "uint32")
    with TokenWriter(tmp_path, split="train", side="source", dtype="uint32") as writer:
        append_rows(writer, [[65_536]])
    assert np.fromfile(tmp_path / "train.source.ids", dtype="<u4").tolist() == [65_536, EOS]


def test_a_split_holds_the_tokenized_text(prepared: Path) -> None:
    data = open_prepared(prepared)
    for split in ("valid", "test"):
        pairs = data.split(split)
        for tokens, lines, file in zip(
            (pairs.src, pairs.tgt),
            data.texts(split),
            (data.source_tokenizer_file, data.target_tokenizer_file),
            strict=True,
        ):
            assert sentences(tokens) == [[*ids, EOS] for ids in Tokenizer.load(file).encode(lines)]
            assert tokens.gather(np.array([0]), np.array([1])).dtype == np.uint16
    assert len(data.split("train")) == data.manifest.splits["train"].pairs == 600
    assert data.split("train").tgt.lengths.sum() == data.manifest.splits["train"].target_tokens


def test_texts_are_the_lines_as_given(tmp_path: Path) -> None:
    located = small_corpus(tmp_path)
    raw = "  two  spaces \r\n\n\u2028 a\x0bb\r\n".encode()
    (tmp_path / "valid.en").write_bytes(b"\xef\xbb\xbf" + raw)
    (tmp_path / "valid.de").write_bytes(b"eins\nzwei\ndrei")
    data = open_prepared(run(located, tmp_path / "data").directory)
    assert data.texts("valid") == (["  two  spaces ", "", "\u2028 a\x0bb"], ["eins", "zwei", "drei"])
    assert (data.directory / "valid.en").read_bytes() == raw.replace(b"\r\n", b"\n")
    assert sentences(data.split("valid").src)[1] == [EOS]


def test_texts_of_several_directions_are_in_the_order_of_the_token_files(copy: Path) -> None:
    def add_directions(values: dict[str, Any]) -> None:
        pairs = [{"source": source, "target": "de"} for source in ("en", "fr", "it")]
        values["languages"] = {"pairs": pairs, "target_symbols": {"de": "<2de>"}}
        values["splits"]["valid"] |= {"pairs": 3, "by_direction": [2, 0, 1]}

    edit_manifest(copy, add_directions)
    for name, text in {
        "en-de.en": "1\n2\n",
        "en-de.de": "eins\nzwei\n",
        "it-de.it": "3\n",
        "it-de.de": "drei\n",
    }.items():
        (copy / f"valid.{name}").write_text(text)
    data = open_prepared(copy)
    assert data.texts("valid") == (["1", "2", "3"], ["eins", "zwei", "drei"])
    assert data.manifest.splits["valid"].ranges == [range(2), range(2, 2), range(2, 3)]
    assert data.manifest.splits["train"].ranges == [range(600)]  # its counts are not by direction


def test_a_split_that_the_corpus_lacks_is_named(tmp_path: Path) -> None:
    located = corpus_of_pairs(tmp_path, train=invented_pairs(300, seed=7), valid=[("a", "b")])
    data = open_prepared(run(located, tmp_path / "data").directory)
    with pytest.raises(DataError, match="small has no test split, but train, valid") as caught:
        data.split("test")
    assert "--test PREFIX" in caught.value.hint


@pytest.mark.parametrize("name", ["train.source.ids", "train.target.offsets", "valid.de"])
def test_a_truncated_file_is_named_with_both_sizes(copy: Path, name: str) -> None:
    whole = (copy / name).read_bytes()
    (copy / name).write_bytes(whole[:-2])
    error = refusal(copy)
    assert error.message == f"{name} has {len(whole) - 2:,} bytes, and should have {len(whole):,}"
    assert error.where == str(copy / name)
    assert "nmt prepare" in error.hint
    assert error.exit_code == 4


@pytest.mark.parametrize("name", ["train.source.ids", "source.spm", "test.en"])
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    assert refusal(copy).message == f"{name} is missing"


def test_a_tokenizer_of_another_preparation_is_refused(copy: Path) -> None:
    tokenizer = copy / "target.spm"
    expected = sha256(tokenizer)[:12]
    tokenizer.write_bytes(tokenizer.read_bytes() + b"\n")
    error = refusal(copy)
    assert error.message == (
        "target.spm is not the tokenizer that this data was prepared with: "
        f"its fingerprint is {sha256(tokenizer)[:12]}, the data's {expected}"
    )
    assert "nmt prepare" in error.hint


def test_a_damaged_manifest_is_named(copy: Path) -> None:
    manifest = copy / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text[:100])
    assert "manifest.json is damaged" in refusal(copy).message
    manifest.write_text(text)
    edit_manifest(copy, lambda values: values.pop("dtype"))
    assert refusal(copy).message == "manifest.json is damaged: dtype: Field required"


def test_another_format_and_another_kind_are_refused(copy: Path) -> None:
    edit_manifest(copy, lambda values: values.update(format=2))
    error = refusal(copy)
    assert error.message == "this prepared data has format 2, and this nmt reads format 1"
    assert "this version of nmt" in error.hint
    edit_manifest(copy, lambda values: values.update(kind="checkpoint"))
    assert "holds something other than prepared data" in refusal(copy).message


def test_a_directory_that_is_not_prepared_data_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path / "nowhere")
    assert error.message == f"there is no prepared data at {tmp_path / 'nowhere'}"
    assert error.hint == f"nmt prepare NAME -o {tmp_path / 'nowhere'}"
    assert refusal(tmp_path / "no where").hint == f"nmt prepare NAME -o '{tmp_path / 'no where'}'"
    assert "is not prepared data: it has no manifest.json" in refusal(tmp_path).message


def refusal(directory: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        open_prepared(directory)
    return caught.value


def edit_manifest(directory: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads((directory / "manifest.json").read_text())
    edit(values)
    (directory / "manifest.json").write_text(json.dumps(values))
