from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nmt_cli.errors import DataError
from nmt_cli.preparing.corpora import Corpus, LocatedCorpus, load_corpus
from nmt_cli.preparing.reading import readers
from nmt_cli.preparing.reading.chunks import Chunk
from nmt_cli.preparing.reading.readers import read_chunks
from nmt_cli.preparing.sources.downloads import Unreachable
from nmt_cli.preparing.sources.fetching import fetch
from nmt_cli.preparing.sources.kinds import HubSource, LanguagePair
from tests.hub import write_translations
from tests.preparing.corpus_files import invented_pairs, run, silent

EN_DE = LanguagePair(source="en", target="de")
CARD = """\
---
configs:
- config_name: de-en
  data_files:
  - {split: train, path: de-en/train-*}
  - {split: validation, path: de-en/validation-*}
---
"""
CORPUS = """\
languages: {source: en, target: de}
train: [{kind: hub, repository: ./wmt14, subset: de-en, split: train}]
valid: [{kind: hub, repository: ./wmt14, subset: de-en, split: validation}]
tokenizer: {vocab_size: 400}
"""


def write_repository(folder: Path) -> list[tuple[str, str]]:
    """A data set laid out as wmt/wmt14 is on the hub: parquet files in shards, one struct column `translation`."""
    pairs = invented_pairs(420, seed=9)
    (folder / "de-en").mkdir(parents=True)
    for name, part in (
        ("train-00000-of-00002", pairs[:200]),
        ("train-00001-of-00002", pairs[200:400]),
        ("validation-00000-of-00001", pairs[400:]),
    ):
        write_translations(folder / "de-en" / f"{name}.parquet", part, ("en", "de"))
    (folder / "README.md").write_text(CARD)
    return pairs


def source(repository: str = "./wmt14", **keys: Any) -> HubSource:
    return HubSource(**{"kind": "hub", "repository": repository, "subset": "de-en", "split": "train", **keys})


def read(one: HubSource, folder: Path) -> list[Chunk]:
    corpus = Corpus(name="x", languages=EN_DE, train=[one], valid=[one])
    return list(read_chunks(fetch(LocatedCorpus(corpus, folder), progress=silent).sources["train"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    write_repository(folder / "wmt14")
    return folder


def test_a_directory_in_the_hubs_layout_is_read_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "CHUNK_PAIRS", 150)
    chunks = read(source(), folder)
    pairs = [pair for chunk in chunks for pair in zip(chunk.src, chunk.tgt, strict=True)]
    assert pairs == invented_pairs(420, seed=9)[:400]
    assert [chunk.where(0) for chunk in chunks] == [
        f"./wmt14/train-0000{shard}-of-00002.parquet:{row}" for shard in (0, 1) for row in (1, 151)
    ]


def test_a_corpus_of_hub_sources_is_prepared(folder: Path, tmp_path: Path) -> None:
    (folder / "corpus.yaml").write_text(CORPUS)
    located = load_corpus(str(folder / "corpus.yaml"), overrides=[])
    prepared = run(located, tmp_path / "data")
    assert prepared.report["pairs"] == {"train": 400, "valid": 20}
    expected = "".join(f"{tgt}\n" for _, tgt in invented_pairs(420, seed=9)[400:])
    assert (tmp_path / "data" / "valid.de").read_text(encoding="utf-8") == expected
    assert run(located, tmp_path / "data").was_finished


def test_flat_columns_and_nulls_are_read(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "train.jsonl").write_text('{"en": "one", "de": "eins"}\n{"en": null, "de": "zwei"}\n')
    (chunk,) = read(source("./flat", subset=None, source="en", target="de"), tmp_path)
    assert (chunk.src, chunk.tgt) == (["one", ""], ["eins", "zwei"])


def test_a_column_that_is_not_there_is_answered_with_those_that_are(folder: Path) -> None:
    with pytest.raises(DataError, match=r"parquet has no column of text translation\.fr") as caught:
        read(source(target="translation.fr"), folder)
    expected = "set source and target to two of its columns: translation.de (string), translation.en (string)"
    assert caught.value.hint == expected


def test_a_split_that_is_not_there_is_answered_with_those_that_are(folder: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(source(split="trian"), folder)
    assert caught.value.message == "the data set ./wmt14 has no split trian"
    assert caught.value.where == "./wmt14 de-en trian"
    assert caught.value.hint == "its splits are train, validation: write one of them as split"


def test_a_subset_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match="BuilderConfig 'fr-en' not found") as caught:
        read(source(subset="fr-en"), folder)
    assert caught.value.hint == "check repository, subset, split and revision"


def test_a_directory_without_data_files_is_answered_with_the_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "train.en").write_text("one\n")
    with pytest.raises(DataError) as caught:
        read(source("./my", subset=None), tmp_path)
    assert not isinstance(caught.value, Unreachable)
    assert caught.value.message == "./my has no data files such as train.parquet, train.jsonl or train.csv"
    assert caught.value.hint == (
        "kind: hub reads what is laid out like a data set of the hub; a single file is read by a source of kind text, "
        "tsv, jsonl or parquet, such as {kind: tsv, file: my/x.tsv}"
    )


def test_settings_of_the_data_set_are_kept(tmp_path: Path) -> None:
    (tmp_path / "bars").mkdir()
    (tmp_path / "bars" / "train.csv").write_text("en|de\none|eins\n")
    card = "---\nconfigs:\n- config_name: default\n  data_files: train.csv\n  sep: '|'\n---\n"
    (tmp_path / "bars" / "README.md").write_text(card)
    (chunk,) = read(source("./bars", subset=None, source="en", target="de"), tmp_path)
    assert (chunk.src, chunk.tgt) == (["one"], ["eins"])


def test_a_local_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "corpus.yaml").write_text(CORPUS)
    located = load_corpus(str(tmp_path / "corpus.yaml"), overrides=[])
    with pytest.raises(DataError, match=r"no such directory: .*wmt14") as caught:
        run(located, tmp_path / "data")
    assert caught.value.hint == "check the path of the repository"
