from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from nmt_cli.cli.corpora import corpora
from nmt_cli.errors import RecipeError
from tests.preparing.corpus_files import run, small_corpus


def nmt(folder: Path, repository: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    command = [sys.executable, "-m", "nmt_cli", "corpora", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_a_pipe_gets_columns_with_sizes_and_what_is_prepared(tmp_path: Path, repository: Path) -> None:
    run(small_corpus(tmp_path, "limit=500"), tmp_path / "data" / "multi30k-en-de")
    (tmp_path / "data" / "wmt14-en-fr.partial").mkdir()
    rows = [line.split("\t") for line in nmt(tmp_path, repository).splitlines()]
    assert rows[0] == ["name", "languages", "pairs", "download", "prepared", "licence", "description"]
    by_name = {row[0]: row[1:] for row in rows[1:]}
    assert by_name["wmt14-en-de"][:4] == ["en-de", "4,508,785", "818.5 MB", "no"]
    assert by_name["wmt14-en-fr"][:4] == ["en-fr", "40,836,715", "7.5 GB", "begun in data/wmt14-en-fr.partial"]
    assert by_name["multi30k-en-de"][3] == "500 pairs in data/multi30k-en-de, of the first 500"
    assert by_name["iwslt14-de-en"][:3] == ["de-en", "174,443", "?"]
    assert by_name["demo"][:3] == ["en-de", "20,000", "none"]
    assert all(len(row) == 7 for row in rows)


def test_json_says_everything(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    corpora(as_json=True)
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    corpora("wmt14-en-de", as_json=True)
    one = json.loads(capsys.readouterr().out)
    assert one == listed["wmt14-en-de"]
    assert one["pairs"] == {"train": 4508785, "valid": 3000, "test": 3003}
    assert one["prepared"] is None
    (train,) = one["sources"]["train"]
    assert train["from"] == ["wmt/wmt14 on the hub, de-en, train"]
    assert one["citation"].startswith("@inproceedings{bojar-etal-2014-findings")


def test_one_corpus_is_told_in_full(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    corpora("wmt14-en-fr")
    told = capsys.readouterr().out
    assert "languages    en to fr\npairs        train 40,836,715, valid 3,000, test 3,003\n" in told
    assert "train        wmt/wmt14 on the hub, fr-en, train\n" in told
    assert "vocabulary   32,000 pieces, shared\n" in told
    assert told.endswith("prepared     no\nnext         nmt prepare wmt14-en-fr\n")
    (tmp_path / "mine.yaml").write_text(
        "languages: {source: en, target: de}\ntrain: [{kind: text, prefix: a}]\nvalid: [{kind: text, prefix: b}]\n"
    )
    corpora("mine.yaml")
    told = capsys.readouterr().out
    assert "pairs        not known before they are read\n" in told
    assert "train        local files\n" in told
    assert told.endswith("next         nmt prepare mine.yaml\n")


def test_an_unknown_name_is_answered_with_near_ones() -> None:
    with pytest.raises(RecipeError, match="there is no corpus 'wmt14-de-en'") as caught:
        corpora("wmt14-de-en")
    assert "wmt14-en-de" in caught.value.hint


def test_a_terminal_gets_a_table(tmp_path: Path, repository: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(repository / "src"),
        "COLUMNS": "160",
        "TERM": "xterm",
        "NO_COLOR": "1",
    }
    here, there = pty.openpty()
    command = [sys.executable, "-m", "nmt_cli", "corpora"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=there)
    os.close(there)
    shown = b""
    while True:
        try:
            block = os.read(here, 1 << 16)
        except OSError:  # how a pseudo-terminal ends on Linux
            break
        if not block:
            break
        shown += block
    os.close(here)
    assert process.wait() == 0
    assert "\t" not in shown.decode()
    assert "wmt14-en-de" in shown.decode()
