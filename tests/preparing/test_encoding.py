"""Token files and their statistics, written whole or after an interruption."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest

from nmt_cli.dataset.prepared_data import SIDES, TokenWriter, open_prepared
from nmt_cli.preparing import shards
from nmt_cli.preparing.corpus import Corpus
from nmt_cli.preparing.encoding import EncodedSplit, encoded_splits
from nmt_cli.preparing.pipeline import prepare
from nmt_cli.tokenization.tokenizer import Tokenizer
from tests.dataset.synthetic import append_rows, sentences
from tests.preparing.corpus_files import contents, refusal, run, small_corpus


def test_token_files_go_on_after_what_was_recorded(tmp_path: Path) -> None:
    rows = [[5, 6, 7], [], [8], [9, 10], [11]]
    (tmp_path / "whole").mkdir()
    with TokenWriter(tmp_path / "whole", split="train", side="source", dtype="uint16") as writer:
        append_rows(writer, rows)
    for first in range(len(rows) + 1):
        begun = tmp_path / str(first)
        begun.mkdir()
        with TokenWriter(begun, split="train", side="source", dtype="uint16") as writer:
            append_rows(writer, rows[:first])
            sentences, tokens = writer.sentences, writer.tokens
            append_rows(writer, [[99] * 50] * 20)  # written, and not recorded
        with TokenWriter(
            begun, split="train", side="source", dtype="uint16", sentences=sentences, tokens=tokens
        ) as writer:
            append_rows(writer, rows[first:])
        assert contents(begun) == contents(tmp_path / "whole")


def test_statistics_are_those_of_the_written_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt_cli.preparing.chunks.CHUNK_PAIRS", 40)
    monkeypatch.setattr(shards, "SHARD_CHUNKS", 2)
    located = small_corpus(tmp_path)
    kept: dict[str, EncodedSplit] = {}

    def noted(corpus: Corpus, directory: Path) -> dict[str, EncodedSplit]:
        found = encoded_splits(corpus, directory)
        kept.update(found)
        return found

    monkeypatch.setattr("nmt_cli.preparing.pipeline.encoded_splits", noted)
    data = open_prepared(run(located, tmp_path / "data").directory)
    assert kept["train"].num_shards == 8
    for split in ("train", "valid", "test"):
        pairs = data.split(split)
        for side, tokens in zip(SIDES, (pairs.src, pairs.tgt), strict=True):
            statistics = kept[split].statistics[side]
            rows = sentences(tokens)
            lines = Tokenizer.load(data.directory / f"{side}.spm").decode(rows)
            assert _counts(statistics.pieces) == Counter(len(row) - 1 for row in rows)
            assert _counts(statistics.words) == Counter(len(line.split()) for line in lines)
            assert _counts(statistics.usage) == Counter(piece for row in rows for piece in row)
            assert len(statistics.usage) == 400


def test_token_files_that_lost_what_was_recorded_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(stage: str, done: int, total: int | None) -> None:
        if stage == "encoding" and done:
            raise KeyboardInterrupt

    located = small_corpus(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        prepare(located, output=tmp_path / "data", overwrite=False, num_workers=1, progress=stop)
    file = tmp_path / "data.partial" / "encoded" / "train.target.ids"
    file.write_bytes(file.read_bytes()[:100])
    error = refusal(lambda: run(located, tmp_path / "data"))
    assert re.fullmatch(r"train\.target\.ids has 100 bytes, and [\d,]+ were written", error.message)
    assert error.where == str(file)
    assert error.hint == f"rm -r {file.parent}, then give the same nmt prepare command once more"
    rmtree(file.parent)
    assert not run(located, tmp_path / "data").was_finished


def _counts(numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Counter[int]:
    return Counter({value: int(number) for value, number in enumerate(numbers) if number})
