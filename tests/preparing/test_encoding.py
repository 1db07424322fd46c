"""Token files and their statistics, written whole or after an interruption."""

from __future__ import annotations

import re
from pathlib import Path
from shutil import rmtree

import pytest

from nmt_cli.dataset.prepared_data import TokenWriter
from nmt_cli.preparing.pipeline import prepare
from tests.dataset.synthetic import append_rows
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
