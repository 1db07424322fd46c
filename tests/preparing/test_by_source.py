from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from nmt_cli.errors import DataError
from nmt_cli.preparing.cleaning.by_source import SourceCounts, warn_of_lost_sources
from nmt_cli.preparing.cleaning.rules import Tally
from nmt_cli.preparing.corpora import load_corpus
from nmt_cli.preparing.pipeline import Prepared
from tests.preparing.corpus_files import invented_pairs, run, write_prefix

PAIRS = invented_pairs(320, seed=4)


def prepare(folder: Path, train: str, *overrides: str) -> Prepared:
    write_prefix(folder / "valid", PAIRS[:20])
    write_prefix(folder / "train", PAIRS[20:])
    rows = [json.dumps({"id": 1, "pair": {"src": src, "tgt": tgt}}) for src, tgt in PAIRS[20:40]]
    (folder / "x.jsonl").write_text("".join(f"{row}\n" for row in rows))
    (folder / "x.tsv").write_text("one\teins\ntwo\tzwei\n")
    (folder / "c.yaml").write_text(
        "languages: {source: en, target: de}\ntokenizer: {vocab_size: 400}\n"
        f"valid: [{{kind: text, prefix: valid}}]\ntrain: [{train}]\n"
    )
    return run(load_corpus(str(folder / "c.yaml"), overrides=list(overrides)), folder / "data")


def test_each_source_of_which_nothing_is_kept_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = "{kind: text, prefix: train}, {kind: jsonl, file: x.jsonl}, {kind: tsv, file: x.tsv, target: 5}"
    prepared = prepare(tmp_path, f"{train}, {{kind: text, prefix: train}}")
    warnings = [
        "nothing is kept of x.jsonl (training file 2 of 4): of 20 pairs read, 20 dropped for malformed record, first "
        "at x.jsonl:1: text is looked for under the keys en and de, and that line has id (a number), pair.src, "
        "pair.tgt: set source and target in the corpus file to keys of text",
        "nothing is kept of x.tsv (training file 3 of 4): of 2 pairs read, 2 dropped for malformed record, first at "
        "x.tsv:1: columns 1 and 5 are looked for, and that line has 2 columns: set source and target in the corpus "
        "file to columns that it has",
        "nothing is kept of train.en (training file 4 of 4): of 300 pairs read, 300 dropped for duplicate, first at "
        "train.en:1",
    ]
    assert prepared.report["warnings"] == warnings
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == warnings
    assert prepared.report["cleaning"]["read"] == 622
    assert prepared.report["cleaning"]["kept"] == 300


def test_sources_behind_the_limit_are_not_told_of(tmp_path: Path) -> None:
    train = "{kind: text, prefix: train}, {kind: jsonl, file: x.jsonl}"
    assert prepare(tmp_path, train, "limit=300").report["warnings"] == []


def test_of_many_lost_sources_the_first_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally(read=1)
    tally.drop_text("empty", "x:1", "", "")
    assert len(warn_of_lost_sources([SourceCounts(f"x{number}", tally) for number in range(8)])) == 8
    assert len(caplog.messages) == 6
    assert caplog.messages[-1] == "nothing is kept of 3 more, which the report names"


@pytest.mark.parametrize(
    ("line", "there"),
    [
        ('{"src": "a", "tgt": "b"}', "has src, tgt"),
        ('{"en": "a", "de": ["b"]}', "has en, de (a list)"),
        ('{"\\u001b[31m": "a"}', "has \\x1b[31m"),
        ("{}", "has no keys"),
        ('["a", "b"]', "is no object but a list"),
        ("a\tb", "is not JSON"),
        (json.dumps({f"k{number}": "" for number in range(10)}), "has k0, k1, k2, k3, k4, k5, k6, k7 and 2 more"),
    ],
)
def test_records_without_the_keys_are_answered_with_those_that_they_have(tmp_path: Path, line: str, there: str) -> None:
    (tmp_path / "y.jsonl").write_text(f"{line}\n")
    with pytest.raises(DataError, match=r"no training pair is left .* malformed record") as caught:
        prepare(tmp_path, "{kind: jsonl, file: y.jsonl}")
    assert caught.value.where == "y.jsonl:1"
    assert caught.value.hint == (
        f"text is looked for under the keys en and de, and that line {there}: "
        "set source and target in the corpus file to keys of text"
    )


def test_columns_that_are_not_there_are_answered_with_their_number(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no training pair is left .* malformed record") as caught:
        prepare(tmp_path, "{kind: tsv, file: x.tsv, source: 3, target: 4}")
    assert caught.value.hint.startswith("columns 3 and 4 are looked for, and that line has 2 columns: ")


def test_a_malformed_record_of_validation_text_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the valid text has a malformed record") as caught:
        prepare(tmp_path, "{kind: text, prefix: train}", "valid=[{kind: tsv, file: x.tsv, target: 3}]")
    assert caught.value.hint.startswith("columns 1 and 3 are looked for, and that line has 2 columns: set source")
    assert "; or mend that line" in caught.value.hint
