"""`nmt corpora`: a table for people, columns with tabs for programs, and everything about one corpus."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nmt_cli.cli import printing
from tests.cli.conftest import Shell
from tests.preparing.corpus_files import run, small_corpus

pytestmark = pytest.mark.usefixtures("recipe_folder")


def test_a_pipe_gets_columns_with_sizes_and_what_is_prepared(tmp_path: Path, nmt: Shell) -> None:
    run(small_corpus(tmp_path, "limit=500"), tmp_path / "data" / "multi30k-en-de")
    (tmp_path / "data" / "wmt14-en-fr.partial").mkdir()
    rows = [line.split("\t") for line in nmt("corpora").stdout.splitlines()]
    assert rows[0] == ["name", "languages", "pairs", "download", "prepared", "licence", "description"]
    by_name = {row[0]: row[1:] for row in rows[1:]}
    assert by_name["wmt14-en-de"][:4] == ["en-de", "4,508,785", "818.5 MB", "no"]
    assert by_name["wmt14-en-fr"][:4] == ["en-fr", "40,836,715", "7.5 GB", "begun in data/wmt14-en-fr.partial"]
    assert by_name["multi30k-en-de"][3] == "500 pairs in data/multi30k-en-de, of the first 500"
    assert by_name["iwslt14-de-en"][:3] == ["de-en", "174,443", "?"]
    assert by_name["demo"][:3] == ["en-de", "20,000", "none"]
    assert all(len(row) == 7 for row in rows)


def test_json_says_everything(nmt: Shell) -> None:
    listed = {one["name"]: one for one in json.loads(nmt("corpora", "--json").stdout)}
    one = json.loads(nmt("corpora", "wmt14-en-de", "--json").stdout)
    assert one == listed["wmt14-en-de"]
    assert one["pairs"] == {"train": 4508785, "valid": 3000, "test": 3003}
    assert one["prepared"] is None
    (train,) = one["sources"]["train"]
    assert train["from"] == ["wmt/wmt14 on the hub, de-en, train"]
    assert one["citation"].startswith("@inproceedings{bojar-etal-2014-findings")


def test_one_corpus_is_told_in_full(nmt: Shell) -> None:
    told = nmt("corpora", "wmt14-en-fr").stdout
    assert "languages    en to fr\npairs        train 40,836,715, valid 3,000, test 3,003\n" in told
    assert "train        wmt/wmt14 on the hub, fr-en, train\n" in told
    assert "vocabulary   32,000 pieces, shared\n" in told
    assert told.endswith("prepared     no\nnext         nmt prepare wmt14-en-fr\n")
    Path("mine.yaml").write_text(
        "languages: {source: en, target: de}\ntrain: [{kind: text, prefix: a}]\nvalid: [{kind: text, prefix: b}]\n"
    )
    told = nmt("corpora", "mine.yaml").stdout
    assert "pairs        not known before they are read\n" in told
    assert "train        local files\n" in told
    assert told.endswith("next         nmt prepare mine.yaml\n")


def test_a_terminal_gets_a_table(nmt: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "160")
    shown = nmt("corpora").stdout
    assert "\t" not in shown
    assert re.search(r"^wmt14-en-de +en-de +4,508,785 ", shown, flags=re.MULTILINE)


@pytest.mark.parametrize(("command", "name", "meant"), [("corpora", "demmo", "demo"), ("recipes", "smal", "small")])
def test_a_misspelt_name_is_answered_with_the_same_command(nmt: Shell, command: str, name: str, meant: str) -> None:
    assert nmt(command, name).stderr[-1] == f"fix:   did you mean nmt {command} {meant}?"
