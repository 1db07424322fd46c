from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.dataset.prepared_data import open_prepared
from nmt_cli.errors import DataError
from nmt_cli.preparing.clean_chunks import read_chunks
from nmt_cli.preparing.cleaning.selection import first_occurrences, source_and_pair_digests
from nmt_cli.preparing.corpus_loading import load_corpus
from nmt_cli.preparing.inputs import fetch_inputs
from nmt_cli.preparing.pipeline import PreparationResult
from tests.preparing.corpus_files import Pairs, corpus_of, invented_pairs, run, silent, training_pairs, write_prefix

TRAINING = invented_pairs(420, seed=9)
VALIDATION = [
    TRAINING[3],
    (TRAINING[4][0].replace(" ", "  ") + " ", TRAINING[4][1]),  # the same but for spaces
    (TRAINING[5][0], "Etwas anderes!"),
    ("something else", TRAINING[6][1]),
    ("nowhere", "nirgends"),
]
PAIRS = invented_pairs(320, seed=4)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt_cli.preparing.chunks.CHUNK_PAIRS", 80)


def prepare_sources(folder: Path, sources: Mapping[str, Pairs], weight: float, *overrides: str) -> PreparationResult:
    """Prepared data of named sources, the last of them with this weight."""
    write_prefix(folder / "valid", VALIDATION)
    for name, pairs in sources.items():
        write_prefix(folder / name, pairs)
    train = ", ".join(f"{{kind: text, prefix: {name}}}" for name in sources).removesuffix("}")
    return run(corpus_of(folder, f"{train}, weight: {weight}}}", *overrides), folder / "data")


def test_of_equal_pairs_the_first_remains_wherever_they_are(tmp_path: Path) -> None:
    first, second = TRAINING[:250], [*TRAINING[240:400], TRAINING[0], TRAINING[399], (TRAINING[0][0], TRAINING[1][1])]
    prepared = prepare_sources(tmp_path, {"first": first, "second": second}, 1)
    assert training_pairs(prepared) == [*TRAINING[:400], (TRAINING[0][0], TRAINING[1][1])]
    dropped = prepared.report["cleaning"]["dropped"]["duplicate"]
    assert dropped["count"] == 12
    assert [example["where"] for example in dropped["examples"]] == ["second.en:1", "second.en:2", "second.en:3"]
    assert dropped["examples"][2]["source"] == TRAINING[242][0]
    assert prepared.report["cleaning"]["kept"] == 401


def test_duplicates_stay_where_the_rule_is_off(tmp_path: Path) -> None:
    prepared = prepare_sources(
        tmp_path, {"first": TRAINING[:50], "second": TRAINING[:50]}, 1, "cleaning.duplicates=false"
    )
    assert training_pairs(prepared) == [*TRAINING[:50], *TRAINING[:50]]


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        ("all", [("a cat", "eine Katze"), ("a dog", "ein Hund"), ("a cat", "die Katze"), ("a cat", "ein Kater")]),
        ("first", [("a cat", "eine Katze"), ("a dog", "ein Hund")]),
        ("newest", [("a dog", "ein Hund"), ("a cat", "ein Kater")]),
    ],
)
def test_a_source_with_several_translations_keeps_all_or_one(
    tmp_path: Path, choice: str, kept: list[tuple[str, str]]
) -> None:
    first = [("a cat", "eine Katze"), ("a dog", "ein Hund"), ("a cat", "eine Katze")]
    second = [*TRAINING[:300], ("a cat", "die Katze"), ("a  cat ", "ein Kater"), ("a dog", "ein  Hund")]
    setting = f"cleaning.several_translations={choice}"
    prepared = prepare_sources(tmp_path, {"first": first, "second": second}, 1, setting)
    assert [pair for pair in training_pairs(prepared) if pair not in TRAINING] == kept
    assert prepared.report["several_translations"] == {
        "sources": 1,
        "pairs": 3,
        "examples": [
            {
                "source": "a cat",
                "translations": [
                    {"where": "first.en:1", "text": "eine Katze"},
                    {"where": "second.en:301", "text": "die Katze"},
                    {"where": "second.en:302", "text": "ein Kater"},
                ],
            }
        ],
    }
    dropped = prepared.report["cleaning"]["dropped"]
    assert (dropped["duplicate"]["count"], dropped["other translation"]["count"]) == (2, 4 - len(kept))
    assert "<h2>Several translations</h2>" in (prepared.directory / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        (["several_translations=newest"], ["die Katze"]),
        (["several_translations=first", "duplicates=false"], ["die Katze", "die Katze"]),
    ],
)
def test_a_translation_that_comes_again_is_one_translation(
    tmp_path: Path, settings: list[str], kept: list[str]
) -> None:
    translations = ["die Katze", "ein Kater", "ein Kater", "die Katze"]
    pairs = [*TRAINING, *(("a cat", translation) for translation in translations)]
    prepared = prepare_sources(tmp_path, {"text": pairs}, 1, *(f"cleaning.{one}" for one in settings))
    assert [tgt for src, tgt in training_pairs(prepared) if src == "a cat"] == kept


UNIT = '<tu{}><tuv xml:lang="en"><seg>a cat</seg></tuv><tuv xml:lang="de"{}><seg>{}</seg></tuv></tu>'


def test_the_newest_translation_goes_by_the_dates_of_tmx(tmp_path: Path) -> None:
    write_prefix(tmp_path / "valid", VALIDATION)
    write_prefix(tmp_path / "text", [*TRAINING[:300], ("a cat", "der Kater")])
    units = [
        UNIT.format(' creationdate="20200101T000000Z"', "", "die Katze"),
        UNIT.format(' creationdate="20210101T000000Z"', "", "eine Katze"),
        UNIT.format("", ' changedate="20240301T120000Z"', "die Katze"),
        UNIT.format(' changedate="20230301T120000Z"', "", "ein Kater"),
    ]
    text = f'<tmx version="1.4"><header srclang="en"/><body>{"".join(units)}</body></tmx>'
    (tmp_path / "memory.tmx").write_text(text, encoding="utf-8")
    train = "{kind: tmx, file: memory.tmx}, {kind: text, prefix: text}"
    prepared = run(corpus_of(tmp_path, train, "cleaning.several_translations=newest"), tmp_path / "data")
    assert [pair for pair in training_pairs(prepared) if pair not in TRAINING] == [("a cat", "die Katze")]


@pytest.mark.parametrize(("overlap", "without"), [("report", set[int]()), ("pairs", {3, 4}), ("sides", {3, 4, 5, 6})])
def test_text_of_other_splits_is_reported_or_dropped(tmp_path: Path, overlap: str, without: set[int]) -> None:
    prepared = prepare_sources(tmp_path, {"first": [*TRAINING, TRAINING[3]]}, 1, f"cleaning.overlap={overlap}")
    assert training_pairs(prepared) == [pair for place, pair in enumerate(TRAINING) if place not in without]
    assert prepared.report["overlap"]["valid"] == {"lines": 5, "pairs": 2, "sources": 3, "targets": 3}
    dropped = prepared.report["cleaning"]["dropped"]
    assert dropped["in validation or test text"]["count"] == len(without)
    assert dropped["duplicate"]["count"] == 1
    if without:
        assert dropped["in validation or test text"]["examples"][0]["where"] == "first.en:4"


def test_a_weight_takes_pairs_several_times_or_now_and_then(tmp_path: Path) -> None:
    first, second = TRAINING[:100], TRAINING[100:400]
    prepared = prepare_sources(tmp_path, {"first": first, "second": second}, 2.3)
    pairs = training_pairs(prepared)
    assert pairs[:100] == first
    copies = [pairs.count(pair) for pair in second]
    assert {*copies} == {2, 3}
    assert pairs[100:] == [pair for pair, number in zip(second, copies, strict=True) for _ in range(number)]
    assert copies.count(3) == pytest.approx(90, abs=4 * (300 * 0.3 * 0.7) ** 0.5)
    assert prepared.report["pairs"]["train"] == len(pairs)
    assert open_prepared(prepared.directory).manifest.unique_pairs == len(first + second)
    assert prepared.report["splits"]["train"]["source"]["words"]["mean"] == pytest.approx(
        sum(len(src.split()) for src, _ in pairs) / len(pairs), abs=0.005
    )
    assert prepared.report["vocabulary"]["source"]["lines"] == 2 * len(pairs)


def test_weights_that_leave_nothing_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no training pair is left: the weights select none of 5 pairs") as caught:
        prepare_sources(tmp_path, {"second": TRAINING[:5]}, 0.000001)
    assert caught.value.hint.startswith("raise the weights of the sources")


def test_a_limit_counts_over_pieces_and_sources(tmp_path: Path) -> None:
    sources = {"first": TRAINING[:90], "second": TRAINING[90:]}
    prepared = prepare_sources(tmp_path, sources, 1, "limit=130", "tokenizer.vocab_size=320")
    assert training_pairs(prepared) == TRAINING[:130]
    assert prepared.report["cleaning"]["read"] == 130
    assert prepared.report["pairs"] == {"train": 130, "valid": 5}
    located = load_corpus(str(tmp_path / "c.yaml"), overrides=[])
    local = fetch_inputs(located, progress=silent).sources["train"]
    for limit in (79, 80, 81, 100, 420, None):
        chunks = [numbered.chunk for numbered in read_chunks(local, limit=limit)]
        assert [pair for chunk in chunks for pair in zip(chunk.src, chunk.tgt, strict=True)] == TRAINING[:limit]


def prepare(folder: Path, train: str, *overrides: str) -> PreparationResult:
    write_prefix(folder / "valid", PAIRS[:20])
    write_prefix(folder / "train", PAIRS[20:])
    rows = [json.dumps({"id": 1, "pair": {"one": src, "two": tgt}}) for src, tgt in PAIRS[20:40]]
    (folder / "x.jsonl").write_text("".join(f"{row}\n" for row in rows))
    (folder / "x.tsv").write_text("one\teins\ntwo\tzwei\n")
    return run(corpus_of(folder, train, *overrides), folder / "data")


def test_each_source_of_which_nothing_is_kept_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = "{kind: text, prefix: train}, {kind: jsonl, file: x.jsonl}, {kind: tsv, file: x.tsv, source: 1, target: 5}"
    prepared = prepare(tmp_path, f"{train}, {{kind: text, prefix: train}}")
    warnings = [
        "nothing is kept of x.jsonl (training file 2 of 4): of 20 pairs read, 20 dropped for malformed record, first "
        "at x.jsonl:1: text is looked for under the keys en and de, and that line has 'pair.one', 'pair.two': "
        "name the two keys: --columns SOURCE,TARGET",
        "nothing is kept of x.tsv (training file 3 of 4): of 2 pairs read, 2 dropped for malformed record, first at "
        "x.tsv:1: columns 1 and 5 are looked for, and that line has 2 columns: mend the line, or give two "
        "columns that it has: --columns SOURCE,TARGET",
        "nothing is kept of train.en (training file 4 of 4): of 300 pairs read, 300 dropped for duplicate, first at "
        "train.en:1",
    ]
    assert prepared.report["warnings"] == warnings
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == warnings
    assert prepared.report["cleaning"]["read"] == 622
    assert prepared.report["cleaning"]["kept"] == 300


def test_a_few_malformed_records_are_mistakes_of_the_file(tmp_path: Path) -> None:
    broken = range(49, 57)
    rows = [f"{src} caf\xe9" if index in broken else f"{src}\t{tgt}" for index, (src, tgt) in enumerate(PAIRS)]
    (tmp_path / "x.tsv").write_text("\n".join(rows) + "\n", encoding="latin-1")
    write_prefix(tmp_path / "valid", VALIDATION)
    assert run(corpus_of(tmp_path, "{kind: tsv, file: x.tsv}"), tmp_path / "data").report["warnings"][-1] == (
        "8 of 320 training pairs are dropped for malformed record, first at x.tsv:50: columns 1 and 2 are looked for, "
        "and that line has 1 column: mend the line, or give two columns that it has: --columns SOURCE,TARGET"
    )


def test_sources_behind_the_limit_are_not_told_of(tmp_path: Path) -> None:
    train = "{kind: text, prefix: train}, {kind: jsonl, file: x.jsonl}"
    assert prepare(tmp_path, train, "limit=300").report["warnings"] == []


def test_a_line_of_jsonl_that_is_cut_is_called_so(tmp_path: Path) -> None:
    write_prefix(tmp_path / "train", invented_pairs(300, seed=5))
    lines = [json.dumps({"en": "one word", "de": "ein Wort"}), json.dumps({"en": "two", "de": "zwei"})]
    (tmp_path / "cut.jsonl").write_text("\n".join(lines)[:-7])
    with pytest.raises(DataError, match="the valid text has a malformed record") as caught:
        prepare(tmp_path, "{kind: text, prefix: train}", "valid=[{kind: jsonl, file: cut.jsonl}]")
    assert caught.value.where == "cut.jsonl:2"
    assert caught.value.hint.startswith(
        "that line is not JSON, so it is broken or cut short: mend it, or fetch the file again"
    )


@given(values=st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**64 - 1)), max_size=60))
def test_new_is_what_a_set_has_not_seen(values: list[int]) -> None:
    expected = [value not in values[:place] for place, value in enumerate(values)]
    assert first_occurrences(np.array(values, dtype=np.uint64)).tolist() == expected


def test_pairs_that_differ_have_other_digests() -> None:
    src, tgt = ["a", "a", "a b", "b", "é"], ["b", "c", "", "a", "b"]
    sources, digests = source_and_pair_digests(src, tgt)
    assert len(set(digests.tolist())) == 5
    assert [sources.tolist().index(digest) for digest in sources.tolist()] == [0, 0, 2, 3, 4]
    assert source_and_pair_digests(src[::-1], tgt[::-1])[1].tolist() == digests.tolist()[::-1]
    assert digests.dtype == np.uint64
    assert source_and_pair_digests([], [])[0].shape == (0,)
