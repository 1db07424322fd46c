from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.dataset.store import open_prepared
from nmt_cli.preparing.corpora import corpus_of_prefixes
from nmt_cli.preparing.reporting.report import bin_width, summarise
from nmt_cli.tokenization.tokenizer import EOS, Tokenizer
from tests.preparing.corpus_files import invented_pairs, run, write_prefix

TRAIN = invented_pairs(500, seed=21)
VALID = [
    TRAIN[3],  # a pair of the training text
    (f"  {TRAIN[4][0]}", TRAIN[4][1]),  # the same but for space
    (TRAIN[5][0], "Etwas anderes!"),  # its source alone
    ("something else", TRAIN[6][1]),  # its target alone
    ("bytes: 漢字", "Bytes: 漢字!"),
    ("", ""),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_prefix(folder / "train", [*TRAIN, ("x" * 30, "short"), ("a <b> & c", "a <b> & c")])
    write_prefix(folder / "valid", VALID)
    located = corpus_of_prefixes(
        {"train": str(folder / "train"), "valid": str(folder / "valid")},
        languages="en-de",
        name="small",
        overrides=[
            *("tokenizer.vocab_size=400", "tokenizer.shared=false", "cleaning.max_words=90"),
            *("description=Invented", "licence=CC0", "citation=Nobody 2017"),
        ],
    )
    return run(located, folder / "data").directory


@pytest.fixture(scope="module")
def report(directory: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((directory / "report.json").read_text(encoding="utf-8"))
    return values


@given(lengths=st.lists(st.integers(0, 300), min_size=1, max_size=60), width=st.integers(1, 20))
def test_lengths_are_summarised_as_from_the_sorted_list(lengths: list[int], width: int) -> None:
    summary = summarise(np.bincount(lengths), width=width)
    ordered = sorted(lengths)
    assert summary["total"] == sum(lengths)
    assert summary["mean"] == pytest.approx(statistics.mean(lengths), abs=0.005)
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert summary[name] == ordered[math.ceil(share * len(ordered)) - 1]
    assert summary["max"] == ordered[-1]
    for one in summary["histogram"]:
        last = math.inf if one["to"] is None else one["to"]
        assert one["sentences"] == sum(one["from"] <= length <= last for length in lengths)
        assert one["from"] % width == 0
    assert sum(one["sentences"] for one in summary["histogram"]) == len(lengths)


@given(lengths=st.lists(st.integers(0, 5000), min_size=1, max_size=60))
def test_the_bins_hold_nearly_all_sentences_and_are_as_narrow_as_may_be(lengths: list[int]) -> None:
    sentences = np.bincount(lengths)
    width = bin_width([sentences, np.bincount([0])])
    assert width in {factor * 10**power for power in range(4) for factor in (1, 2, 5)}
    summary = summarise(sentences, width=width)
    assert summary["p99"] < 40 * width
    assert width == 1 or summary["p99"] >= 40 * width / 2.5
    assert len(summary["histogram"]) <= 41


def test_the_longest_sentence_is_reported_as_long_as_it_is() -> None:
    summary = summarise(np.bincount([12_345, 0, 0]), width=5)
    assert (summary["max"], summary["mean"], summary["p50"]) == (12_345, 4115, 0)
    assert summary["histogram"][-1] == {"from": 200, "to": None, "sentences": 1}
    nothing = summarise(np.bincount([], minlength=1), width=1)
    assert (nothing["max"], nothing["total"], nothing["mean"], nothing["p99"]) == (0, 0, 0, 0)


def test_lengths_and_rates_are_those_of_the_text(directory: Path, report: dict[str, Any]) -> None:
    data = open_prepared(directory)
    files = {"source": data.source_tokenizer_file, "target": data.target_tokenizer_file}
    for split, pairs in (("train", TRAIN), ("valid", VALID)):
        for index, (side, file) in enumerate(files.items()):
            tokenizer = Tokenizer.load(file)
            rows = tokenizer.encode([pair[index] for pair in pairs])
            words = [len(pair[index].split()) for pair in pairs]
            used = Counter(piece for row in rows for piece in row)
            num_bytes = sum(count for piece, count in used.items() if tokenizer.pieces([piece])[0].startswith("<0x"))
            facts = report["splits"][split][side]
            assert facts["words"]["mean"] == pytest.approx(statistics.mean(words), abs=0.005)
            assert (facts["words"]["max"], facts["words"]["total"]) == (max(words), sum(words))
            assert facts["pieces"]["mean"] == pytest.approx(statistics.mean(map(len, rows)), abs=0.005)
            assert (facts["pieces"]["max"], facts["pieces"]["total"]) == (max(map(len, rows)), used.total())
            assert facts["pieces_per_word"] == pytest.approx(used.total() / sum(words), abs=0.0005)
            assert facts["byte_rate"] == pytest.approx(num_bytes / used.total(), abs=5e-7)
            assert facts["unknown_rate"] == 0
            assert facts["pieces_used"] == len(used | {EOS: 1})
    assert report["splits"]["valid"]["source"]["byte_rate"] > 0


def test_overlap_counts_lines_of_held_out_text_that_were_trained_on(report: dict[str, Any]) -> None:
    assert report["overlap"] == {"valid": {"lines": 6, "pairs": 2, "sources": 3, "targets": 3}}


def test_cleaning_and_vocabulary_are_reported(report: dict[str, Any]) -> None:
    cleaning = report["cleaning"]
    assert (cleaning["read"], cleaning["kept"], cleaning["tidied"]) == (502, 500, 0)
    dropped = {reason: facts["count"] for reason, facts in cleaning["dropped"].items() if facts["count"]}
    assert dropped == {"length ratio": 1, "identical sides": 1}
    assert report["vocabulary"]["source"] == {"size": 400, "lines": 500, "sampled": 500, "skipped": 0}
    assert report["vocabulary"]["shared"] is False


def test_origin_and_settings_are_reported(report: dict[str, Any]) -> None:
    assert [(record["split"], record["name"].rpartition("/")[2]) for record in report["inputs"]] == [
        *(("train", "train.en"), ("train", "train.de"), ("valid", "valid.en"), ("valid", "valid.de"))
    ]
    assert all(len(record["sha256"]) == 64 for record in report["inputs"])
    settings = report["settings"]
    assert settings["cleaning"]["max_words"] == {"value": 90, "is_default": False}
    assert settings["cleaning"]["max_characters"] == {"value": 2000, "is_default": True}
    assert settings["tokenizer"]["shared"] == {"value": False, "is_default": False}
    assert (report["description"], report["licence"], report["citation"]) == ("Invented", "CC0", "Nobody 2017")
    assert (report["limit"], report["warnings"]) == (None, [])


def test_examples_are_training_pairs_with_their_pieces(report: dict[str, Any]) -> None:
    assert len(report["examples"]) == 5
    for example in report["examples"]:
        assert (example["source"]["text"], example["target"]["text"]) in TRAIN
        for side in ("source", "target"):
            assert "".join(example[side]["pieces"]).replace("▁", " ").strip() == example[side]["text"]


def test_the_page_says_what_the_report_says(directory: Path, report: dict[str, Any]) -> None:
    page = (directory / "report.html").read_text(encoding="utf-8")
    assert "500 of 502 training pairs are kept (99.6%)." in page
    assert "1 (0.20%)" in page
    assert "a &lt;b&gt; &amp; c</span>" in page
    assert "train.en:502" in page
    assert "2 of 6 pairs of the validation text are in the training text too (33.3%)" in page
    assert report["examples"][0]["source"]["text"] in page
    assert not (directory / "report.md").exists()
