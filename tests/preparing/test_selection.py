from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from nmt_cli.dataset.store import open_prepared
from nmt_cli.errors import DataError
from nmt_cli.preparing import shards
from nmt_cli.preparing.corpora import load_corpus
from nmt_cli.preparing.pipeline import Prepared
from nmt_cli.preparing.reading import readers
from nmt_cli.tokenization.tokenizer import Tokenizer
from tests.preparing.corpus_files import Pairs, invented_pairs, run, write_prefix

PAIRS = invented_pairs(420, seed=9)
VALID = [
    PAIRS[3],
    (PAIRS[4][0].replace(" ", "  ") + " ", PAIRS[4][1]),  # the same but for spaces
    (PAIRS[5][0], "Etwas anderes!"),
    ("something else", PAIRS[6][1]),
    ("nowhere", "nirgends"),
]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "CHUNK_PAIRS", 40)
    monkeypatch.setattr(shards, "SHARD_CHUNKS", 2)


def prepare(folder: Path, sources: Mapping[str, Pairs], settings: str, *overrides: str) -> Prepared:
    """Prepared data of named sources, each with the settings `{name: ...}` of a line of YAML."""
    write_prefix(folder / "valid", VALID)
    lines = ["languages: {source: en, target: de}", "tokenizer: {vocab_size: 400}"]
    lines += ["valid: [{kind: text, prefix: valid}]", "train:"]
    for name, pairs in sources.items():
        write_prefix(folder / name, pairs)
        lines.append(f"  - {{kind: text, prefix: {name}{settings if name == 'second' else ''}}}")
    (folder / "corpus.yaml").write_text("\n".join(lines) + "\n")
    return run(load_corpus(str(folder / "corpus.yaml"), overrides=list(overrides)), folder / "data")


def training_pairs(prepared: Prepared) -> Pairs:
    data = open_prepared(prepared.directory)
    tokenizer, train = Tokenizer.load(data.source_tokenizer_file), data.split("train")
    src, tgt = (tokenizer.decode([row.tolist() for row in side]) for side in (train.src, train.tgt))
    return list(zip(src, tgt, strict=True))


def test_of_equal_pairs_the_first_remains_wherever_they_are(tmp_path: Path) -> None:
    first, second = PAIRS[:250], [*PAIRS[240:400], PAIRS[0], PAIRS[399], (PAIRS[0][0], PAIRS[1][1])]
    prepared = prepare(tmp_path, {"first": first, "second": second}, "")
    assert training_pairs(prepared) == [*PAIRS[:400], (PAIRS[0][0], PAIRS[1][1])]
    dropped = prepared.report["cleaning"]["dropped"]["duplicate"]
    assert dropped["count"] == 12
    assert [example["where"] for example in dropped["examples"]] == ["second.en:1", "second.en:2", "second.en:3"]
    assert dropped["examples"][2]["source"] == PAIRS[242][0]
    assert prepared.report["cleaning"]["kept"] == 401


def test_duplicates_stay_where_the_rule_is_off(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, {"first": PAIRS[:50], "second": PAIRS[:50]}, "", "cleaning.duplicates=false")
    assert training_pairs(prepared) == [*PAIRS[:50], *PAIRS[:50]]


@pytest.mark.parametrize(("overlap", "without"), [("report", set[int]()), ("pairs", {3, 4}), ("sides", {3, 4, 5, 6})])
def test_text_of_other_splits_is_reported_or_dropped(tmp_path: Path, overlap: str, without: set[int]) -> None:
    prepared = prepare(tmp_path, {"first": [*PAIRS, PAIRS[3]]}, "", f"cleaning.overlap={overlap}")
    assert training_pairs(prepared) == [pair for place, pair in enumerate(PAIRS) if place not in without]
    assert prepared.report["overlap"]["valid"] == {"lines": 5, "pairs": 2, "sources": 3, "targets": 3}
    dropped = prepared.report["cleaning"]["dropped"]
    assert dropped["in validation or test text"]["count"] == len(without)
    assert dropped["duplicate"]["count"] == 1
    if without:
        assert dropped["in validation or test text"]["examples"][0]["where"] == "first.en:4"


def test_a_weight_takes_pairs_several_times_or_now_and_then(tmp_path: Path) -> None:
    first, second = PAIRS[:100], PAIRS[100:400]
    prepared = prepare(tmp_path, {"first": first, "second": second}, ", weight: 2.3")
    pairs = training_pairs(prepared)
    assert pairs[:100] == first
    copies = [pairs.count(pair) for pair in second]
    assert {*copies} == {2, 3}
    assert pairs[100:] == [pair for pair, number in zip(second, copies, strict=True) for _ in range(number)]
    assert copies.count(3) == pytest.approx(90, abs=4 * (300 * 0.3 * 0.7) ** 0.5)
    assert prepared.report["pairs"]["train"] == len(pairs)
    assert prepared.report["splits"]["train"]["source"]["words"]["mean"] == pytest.approx(
        sum(len(src.split()) for src, _ in pairs) / len(pairs), abs=0.005
    )
    assert prepared.report["vocabulary"]["source"]["lines"] == 2 * len(pairs)


def test_weights_that_leave_nothing_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no training pair is left: of 5 none is drawn") as caught:
        prepare(tmp_path, {"second": PAIRS[:5]}, ", weight: 0.000001")
    assert caught.value.hint.startswith("raise the weights of the sources")
    assert not (tmp_path / "data.partial").exists()


@pytest.mark.parametrize("limit", [39, 40, 41, 100, 130, 420])
def test_a_limit_counts_over_pieces_and_sources(tmp_path: Path, limit: int) -> None:
    sources = {"first": PAIRS[:90], "second": PAIRS[90:]}
    prepared = prepare(tmp_path, sources, "", f"limit={limit}", "tokenizer.vocab_size=320")
    assert training_pairs(prepared) == PAIRS[:limit]
    assert prepared.report["cleaning"]["read"] == limit
