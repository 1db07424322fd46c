from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest

from nmt_cli.errors import DataError
from nmt_cli.preparing import hub
from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.corpora import HubSource, LanguagePair, load_corpus
from nmt_cli.preparing.readers import read_pairs
from tests.preparing.corpus_files import invented_pairs, run

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
    features = datasets.Features({"translation": datasets.Translation(languages=["de", "en"])})
    for name, part in (
        ("train-00000-of-00002", pairs[:200]),
        ("train-00001-of-00002", pairs[200:400]),
        ("validation-00000-of-00001", pairs[400:]),
    ):
        rows = {"translation": [{"en": src, "de": tgt} for src, tgt in part]}
        datasets.disable_progress_bars()
        (folder / "de-en").mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / "de-en" / f"{name}.parquet")
    (folder / "README.md").write_text(CARD)
    return pairs


def source(repository: str = "./wmt14", **keys: Any) -> HubSource:
    return HubSource(**{"kind": "hub", "repository": repository, "subset": "de-en", "split": "train", **keys})


def read(one: HubSource, folder: Path) -> list[Chunk]:
    return list(read_pairs(one, languages=EN_DE, folder=folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    write_repository(folder / "wmt14")
    return folder


def test_a_directory_in_the_hubs_layout_is_read_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "CHUNK_PAIRS", 150)
    chunks = read(source(), folder)
    pairs = [pair for chunk in chunks for pair in zip(chunk.src, chunk.tgt, strict=True)]
    assert pairs == invented_pairs(420, seed=9)[:400]
    assert [chunk.first_line for chunk in chunks] == [1, *(1 + len(pairs[:150]) * i for i in range(1, len(chunks)))]


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
    with pytest.raises(DataError, match=r"the data set has no column translation\.fr") as caught:
        read(source(target="translation.fr"), folder)
    assert caught.value.hint == "set source and target to two of: translation.de, translation.en"
    with pytest.raises(DataError, match="the data set has no column en") as caught:
        read(source(source="en"), folder)
    assert caught.value.hint == "set source and target to two of: translation"


@pytest.mark.parametrize(
    ("keys", "reason"),
    [({"split": "trian"}, "Bad split: trian"), ({"subset": "fr-en"}, "BuilderConfig 'fr-en' not found")],
)
def test_a_subset_or_split_that_is_not_there_is_named(folder: Path, keys: dict[str, str], reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        read(source(**keys), folder)
    assert caught.value.hint == "check repository, subset and split"


def test_a_repository_that_the_hub_does_not_have_is_not_taken_for_a_fault_of_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*args: object, **keywords: object) -> None:
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'wmt/wmt41' doesn't exist on the Hub.")

    monkeypatch.setattr(datasets, "load_dataset", unknown)
    with pytest.raises(DataError) as caught:
        read(source("wmt/wmt41"), tmp_path)
    assert caught.value.message == "cannot read the data set wmt/wmt41: Dataset 'wmt/wmt41' doesn't exist on the Hub."
    assert caught.value.hint.startswith("check repository: it is OWNER/NAME on the hub, or ./FOLDER")


def test_an_unreachable_hub_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object, **keywords: object) -> None:
        raise ConnectionError("Couldn't reach 'wmt/wmt14' on the Hub (OfflineModeIsEnabled)")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(DataError) as caught:
        read(source("wmt/wmt14"), tmp_path)
    expected = "cannot read the data set wmt/wmt14: Couldn't reach 'wmt/wmt14' on the Hub (OfflineModeIsEnabled)"
    assert caught.value.message == expected
    assert caught.value.where == "wmt/wmt14 de-en train"
    assert "check the network; or download the data set" in caught.value.hint
    assert "repository: ./FOLDER" in caught.value.hint
    assert caught.value.exit_code == 4


def test_a_local_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "corpus.yaml").write_text(CORPUS)
    located = load_corpus(str(tmp_path / "corpus.yaml"), overrides=[])
    with pytest.raises(DataError, match=r"no such directory: .*wmt14") as caught:
        run(located, tmp_path / "data")
    assert caught.value.hint == "check the path of the repository"
