from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from nmt_cli.errors import DataError
from nmt_cli.preparing.chunks import ParsedChunk, RawChunk
from nmt_cli.preparing.corpus import AnySource, Corpus, LocatedCorpus, load_corpus
from nmt_cli.preparing.download import Unreachable
from nmt_cli.preparing.inputs import fetch_inputs
from nmt_cli.preparing.sources.base import CorpusLanguages, LocalPairs, first_pairs, read_chunks
from nmt_cli.preparing.sources.hub import HubSource
from nmt_cli.preparing.sources.tables import JsonlSource, ParquetSource, TsvSource
from nmt_cli.preparing.sources.text import TextSource
from tests.hub import write_translations
from tests.preparing.corpus_files import invented_pairs, run, silent

EN_DE = CorpusLanguages(source="en", target="de")
PREFIX = TextSource(kind="text", prefix="train")
CARD = """\
---
configs:
- config_name: de-en
  data_files:
  - {split: train, path: de-en/train-*}
  - {split: validation, path: de-en/validation-*}
---
"""
HUB_CORPUS = """\
languages: {source: en, target: de}
train: [{kind: hub, repository: ./wmt14, subset: de-en, split: train}]
valid: [{kind: hub, repository: ./wmt14, subset: de-en, split: validation}]
tokenizer: {vocab_size: 400}
"""


def local(source: AnySource, folder: Path, *, languages: CorpusLanguages = EN_DE) -> list[LocalPairs]:
    corpus = Corpus(name="x", languages=languages, train=[source], valid=[source])
    return fetch_inputs(LocatedCorpus(corpus, folder), progress=silent).sources["train"]


def read(source: AnySource, folder: Path, *, languages: CorpusLanguages = EN_DE) -> list[ParsedChunk]:
    return list(read_chunks(local(source, folder, languages=languages)))


def refusal(source: AnySource, folder: Path, *, languages: CorpusLanguages = EN_DE) -> DataError:
    with pytest.raises(DataError) as caught:
        read(source, folder, languages=languages)
    assert caught.value.exit_code == 4
    return caught.value


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_text_is_read_plain_and_compressed(tmp_path: Path, ending: str) -> None:
    compressors: dict[str, Callable[[bytes], bytes]] = {
        "": bytes,
        ".gz": gzip.compress,
        ".zst": zstandard.ZstdCompressor().compress,
    }
    compress = compressors[ending]
    (tmp_path / f"train.en{ending}").write_bytes(compress("one\ntwö\n".encode()))
    (tmp_path / f"train.de{ending}").write_bytes(compress(b"eins\nzwei"))
    (chunk,) = read(PREFIX, tmp_path)
    assert (chunk.src, chunk.tgt) == (["one", "twö"], ["eins", "zwei"])
    assert chunk.where(1) == f"train.en{ending}:2"


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_bytes("\ufeffone\u2028still\x0cone\x85\r\n\n\ufefftwo \n".encode())
    (tmp_path / "train.de").write_bytes(b"caf\xe9\n\r\r\nx\n")
    (chunk,) = read(PREFIX, tmp_path)
    assert chunk.src == ["one\u2028still\x0cone\x85", "", "\ufefftwo "]
    assert chunk.tgt == ["caf\udce9", "\r", "x"]


def test_files_of_any_name_are_taken(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.txt").write_text("eins\n")
    (chunk,) = read(TextSource(kind="text", source="a.txt", target="b.txt"), tmp_path)
    assert (chunk.src, chunk.tgt) == (["one"], ["eins"])


def test_a_large_file_comes_in_chunks_that_know_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt_cli.preparing.chunks.CHUNK_PAIRS", 3)
    for code in ("en", "de"):
        (tmp_path / f"train.{code}").write_text("".join(f"{code} {number}\n" for number in range(1, 8)))
    chunks = read(PREFIX, tmp_path)
    assert [len(chunk.src) for chunk in chunks] == [3, 3, 1]
    assert [line for chunk in chunks for line in chunk.src] == [f"en {number}" for number in range(1, 8)]
    assert (chunks[1].src[2], chunks[1].where(2)) == ("en 6", "train.en:6")


@pytest.mark.parametrize(("num_src", "num_tgt"), [(7, 5), (2, 7), (3, 6)])
def test_sides_of_different_length_are_named_with_both_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_src: int, num_tgt: int
) -> None:
    monkeypatch.setattr("nmt_cli.preparing.chunks.CHUNK_PAIRS", 3)
    (tmp_path / "train.en").write_text("a\n" * num_src)
    (tmp_path / "train.de").write_text("b\n" * num_tgt)
    error = refusal(PREFIX, tmp_path)
    assert error.message == f"train.en has {num_src} lines, train.de has {num_tgt}"
    assert error.where == f"{tmp_path / 'train.en'}, {tmp_path / 'train.de'}"
    assert error.hint == "align the files line by line, then run nmt prepare again"


def test_languages_that_do_not_match_list_what_there_is(tmp_path: Path) -> None:
    for code in ("en", "de.gz", "cs"):
        (tmp_path / f"train.{code}").write_text("a\n")
    error = refusal(PREFIX, tmp_path, languages=CorpusLanguages(source="en", target="fr"))
    assert error.message == f"no such file: {tmp_path / 'train'}.fr (nor .gz, .zst)"
    assert error.hint == "there are train.cs, train.de.gz, train.en: check the languages"


def test_a_prefix_without_files_says_so(tmp_path: Path) -> None:
    error = refusal(PREFIX, tmp_path)
    assert error.message == f"no such file: {tmp_path / 'train'}.en (nor .gz, .zst)"
    assert error.hint == f"check the path: {tmp_path} has no file train.LANGUAGE"


@pytest.mark.parametrize(
    "source",
    [PREFIX, TsvSource(kind="tsv", file="train.en"), JsonlSource(kind="jsonl", file="train.en")],
    ids=lambda source: str(source.kind),
)
def test_an_empty_file_is_an_error(tmp_path: Path, source: AnySource) -> None:
    for code in ("en", "de"):
        (tmp_path / f"train.{code}").touch()
    error = refusal(source, tmp_path)
    assert error.message == "train.en is empty"
    assert error.where == str(tmp_path / "train.en")
    assert error.hint == "give a file with one sentence a line"


def test_what_cannot_be_opened_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a file").touch()
    error = refusal(TsvSource(kind="tsv", file="a folder"), tmp_path)
    assert error.message == f"{tmp_path / 'a folder'} is a directory, not a file"
    assert error.hint == "name a file in it"
    error = refusal(TsvSource(kind="tsv", file="none"), tmp_path)
    assert (error.message, error.hint) == (f"no such file: {tmp_path / 'none'}", "check the path")

    def forbidden(*args: object, **keywords: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "open", forbidden)  # root may read everything
    error = refusal(TsvSource(kind="tsv", file="a file"), tmp_path)
    assert error.message == f"{tmp_path / 'a file'} may not be read"
    assert error.where == str(tmp_path / "a file")
    assert error.hint == f"chmod +r '{tmp_path / 'a file'}'"


@pytest.mark.parametrize(("ending", "kind"), [(".gz", "gzip"), (".zst", "zstd")])
@pytest.mark.parametrize("cut", ["en", "de"])
def test_a_truncated_archive_is_an_error(tmp_path: Path, ending: str, kind: str, cut: str) -> None:
    compress = gzip.compress if ending == ".gz" else zstandard.ZstdCompressor().compress
    for code in ("en", "de"):
        data = compress("".join(f"{code} {number}\n" for number in range(100_000)).encode())
        (tmp_path / f"train.{code}{ending}").write_bytes(data[: len(data) // 2] if code == cut else data)
    error = refusal(PREFIX, tmp_path)
    assert f"train.{cut}{ending} is not a whole {kind} file" in error.message
    assert error.hint == "fetch it again"


def test_zstd_frames_one_after_another_are_one_file(tmp_path: Path) -> None:
    compress = zstandard.ZstdCompressor().compress
    (tmp_path / "train.en.zst").write_bytes(compress(b"one\ntw") + compress(b"") + compress(b"o\nthree\n"))
    (tmp_path / "train.de.zst").write_bytes(compress(b"1\n2\n3\n"))
    (chunk,) = read(PREFIX, tmp_path)
    assert chunk.src == ["one", "two", "three"]


def test_columns_of_tsv_are_counted_from_one(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text('id\tde\ten\n1\t"eins"\tone\textra\n2\tzwei\n3\tdrei\tthree\n')
    source = TsvSource(kind="tsv", file="pairs.tsv", source=3, target=2, header=True)
    (chunk,) = read(source, tmp_path)
    assert (chunk.src, chunk.tgt) == (["one", "", "three"], ['"eins"', "", "drei"])
    assert chunk.malformed == {1: "2\tzwei"}
    assert chunk.where(1) == "pairs.tsv:3"


def test_keys_of_jsonl_may_be_nested(tmp_path: Path) -> None:
    records = [
        json.dumps({"translation": {"en": "one\n", "de": "eins"}}),
        '{"translation": {"en": "no German"}}',
        '{"translation": "text"}',
        "[1]",
        "{not json",
        '{"translation": {"en": "\\ud800", "de": 5}}',
        f'{{"translation": {{"en": "one", "de": "eins"}}, "id": {"9" * 5000}}}',
        f'{{"translation": {{"en": "one", "de": "eins"}}, "deep": {"[" * 100_000}',
        '{"translation": {"en": "two", "de": "zwei"}}',
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(records) + "\n")
    source = JsonlSource(kind="jsonl", file="pairs.jsonl", source="translation.en", target="translation.de")
    (chunk,) = read(source, tmp_path)
    assert (chunk.src[0], chunk.tgt[0]) == ("one\n", "eins")
    assert (chunk.src[8], chunk.tgt[8]) == ("two", "zwei")
    assert chunk.malformed == {index: records[index] for index in range(1, 8)}


def test_keys_of_jsonl_are_the_language_codes_by_default(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"de": "eins", "en": "one"}\n')
    (chunk,) = read(JsonlSource(kind="jsonl", file="pairs.jsonl"), tmp_path)
    assert (chunk.src, chunk.tgt) == (["one"], ["eins"])


def test_a_prefix_that_is_a_file_is_told_to_leave_the_ending_out(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("a\n")
    error = refusal(TextSource(kind="text", prefix="train.en"), tmp_path)
    assert error.hint == f"leave the ending out: {tmp_path / 'train'}"


def test_patterns_are_matched_in_order_and_pair_by_pair(tmp_path: Path) -> None:
    for name in ("b", "a", "c.x"):
        (tmp_path / f"part-{name}.en").write_text(f"{name}\n")
        (tmp_path / f"part-{name}.de.gz").write_bytes(gzip.compress(f"{name.upper()}\n".encode()))
    source = TextSource(kind="text", source="part-*.en", target="part-*.de.gz")
    assert [(chunk.src, chunk.tgt) for chunk in read(source, tmp_path)] == [
        (["a"], ["A"]),
        (["b"], ["B"]),
        (["c.x"], ["C.X"]),
    ]
    (tmp_path / "part-d.en").write_text("d\n")
    error = refusal(source, tmp_path)
    assert error.message == "part-*.en matches 4 files, part-*.de.gz 3"
    assert error.hint == "part-d.en has no partner; files are taken in pairs, in the order of their names"
    (tmp_path / "part-e.de.gz").write_bytes(gzip.compress(b"E\n"))
    error = refusal(source, tmp_path)
    assert error.message == "part-d.en and part-e.de.gz do not belong together"
    assert error.hint == "both sides need files whose names agree in what the patterns leave open"


@pytest.mark.parametrize("pattern", ["part-*", "./part-[!c]", "**/part-?"])
def test_a_folder_whose_name_looks_like_a_pattern_is_a_folder(tmp_path: Path, pattern: str) -> None:
    folder = tmp_path / "[old] *"
    folder.mkdir()
    for name in ("part-a.en", "part-b.de"):
        (folder / name).write_text("x\n")
    error = refusal(TextSource(kind="text", source=f"{pattern}.en", target=f"{pattern}.de"), folder)
    assert error.message == "part-a.en and part-b.de do not belong together"
    (folder / "part-a.de").write_text("y\n")
    (folder / "part-b.de").unlink()
    (chunk,) = read(TextSource(kind="text", source=f"{pattern}.en", target=f"{pattern}.de"), folder)
    assert (chunk.src, chunk.tgt) == (["x"], ["y"])


def test_a_pattern_without_a_match_says_how_patterns_work(tmp_path: Path) -> None:
    error = refusal(TsvSource(kind="tsv", file="none/*.tsv"), tmp_path)
    assert error.message == "no file matches none/*.tsv"
    assert error.where == str(tmp_path / "none/*.tsv")
    assert error.hint.startswith("check the pattern: * is part of a name, ** any folders")


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].tsv").write_text("one\teins\n")
    (chunk,) = read(TsvSource(kind="tsv", file="a[1].tsv"), tmp_path)
    assert chunk.src == ["one"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (
            "one  eins\ntwo  zwei\n",
            "kind: tsv takes columns with one tabulator between them; these seem to be separated by spaces: put one "
            "tabulator in place of each separator",
        ),
        ("one ||| eins\n", "separated by |||: put one tabulator"),
        ("one\n", "kind: tsv takes columns with one tabulator between them"),
    ],
)
def test_a_tsv_file_without_tabulators_says_what_separates_its_columns(tmp_path: Path, text: str, hint: str) -> None:
    (tmp_path / "pairs.tsv").write_text(text)
    error = refusal(TsvSource(kind="tsv", file="pairs.tsv"), tmp_path)
    lines = text.count("\n")
    assert error.message == f"pairs.tsv has no columns: there is no tabulator in its first {lines} lines"
    assert error.where == f"{tmp_path / 'pairs.tsv'}:1"
    assert hint in error.hint


def test_parquet_is_read_in_batches_that_do_not_follow_its_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = invented_pairs(2500, seed=1)
    write_translations(tmp_path / "a.parquet", pairs, ("en", "de"))  # in row groups of 1,000
    monkeypatch.setattr("nmt_cli.preparing.chunks.CHUNK_PAIRS", 700)
    chunks = read(ParquetSource(kind="parquet", file="*.parquet"), tmp_path)
    assert [len(chunk.src) for chunk in chunks] == [700, 700, 700, 400]
    assert [chunk.first_line for chunk in chunks] == [1, 701, 1401, 2101]
    assert [pair for chunk in chunks for pair in zip(chunk.src, chunk.tgt, strict=True)] == pairs
    (one,) = local(ParquetSource(kind="parquet", file="a.parquet"), tmp_path)
    assert (one.count(most=10_000), one.count(most=800)) == (2500, 800)


def test_a_parquet_file_with_another_schema_lists_the_columns_that_it_has(tmp_path: Path) -> None:
    table = pyarrow.table({"id": [1], "text": [{"en": "one", "de": "eins"}], "words": [["one"]], "a.b": ["x"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    error = refusal(ParquetSource(kind="parquet", file="a.parquet"), tmp_path)
    assert error.message == "a.parquet has no column of text translation.en"
    assert error.where == str(tmp_path / "a.parquet")
    assert error.hint == (
        "set source and target to two of its columns: id (int64), text.en (string), text.de (string), "
        "words (list<element: string>), a.b (string)"
    )
    for column in ("id", "text", "text.fr", "words", "text.en.x"):
        error = refusal(ParquetSource(kind="parquet", file="a.parquet", source="text.en", target=column), tmp_path)
        assert error.message == f"a.parquet has no column of text {column}"
    (chunk,) = read(ParquetSource(kind="parquet", file="a.parquet", source="text.en", target="a.b"), tmp_path)
    assert (chunk.src, chunk.tgt) == (["one"], ["x"])


def test_columns_of_a_parquet_file_that_are_not_asked_for_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pyarrow.table({"image": [b"x"], "text": [{"en": "one", "de": "eins"}], "de": ["EINS"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    real, seen = pyarrow.parquet.ParquetFile.iter_batches, []

    def iter_batches(file: pyarrow.parquet.ParquetFile, **options: Any) -> Iterator[pyarrow.RecordBatch]:
        for batch in real(file, **options):
            seen.append(batch.schema.names)
            yield batch

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", iter_batches)
    (chunk,) = read(ParquetSource(kind="parquet", file="a.parquet", source="text.en", target="de"), tmp_path)
    assert (chunk.src, chunk.tgt) == (["one"], ["EINS"])
    assert seen == [["text", "de"]]


def test_a_parquet_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    write_translations(tmp_path / "a.parquet", invented_pairs(50, seed=1), ("en", "de"))
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(content[: len(content) // 2])
    error = refusal(ParquetSource(kind="parquet", file="a.parquet"), tmp_path)
    assert error.message.startswith("a.parquet cannot be read as a table: ")
    assert (error.where, error.hint) == (str(tmp_path / "a.parquet"), "fetch it again")


def test_nulls_and_other_kinds_of_strings_are_read(tmp_path: Path) -> None:
    columns = {
        "en": pyarrow.array(["one", None], pyarrow.large_string()),
        "de": pyarrow.array(["eins", "zwei"]).dictionary_encode(),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    (chunk,) = read(ParquetSource(kind="parquet", file="a.parquet", source="en", target="de"), tmp_path)
    assert (chunk.src, chunk.tgt) == (["one", ""], ["eins", "zwei"])


def raw_chunks(folder: Path) -> list[RawChunk]:
    """One chunk of every kind, each of five pairs."""
    pairs = invented_pairs(5, seed=1)
    (folder / "a.en").write_text("\ufeff" + "".join(f"{src}\r\n" for src, _ in pairs))
    (folder / "a.de").write_text("\n".join(tgt for _, tgt in pairs))
    (folder / "a.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs))
    (folder / "a.jsonl").write_text("".join(json.dumps({"en": src, "de": tgt}) + "\n" for src, tgt in pairs))
    write_translations(folder / "a.parquet", pairs, ("en", "de"))
    sources: list[AnySource] = [
        TextSource(kind="text", prefix="a"),
        TsvSource(kind="tsv", file="a.tsv"),
        JsonlSource(kind="jsonl", file="a.jsonl"),
        ParquetSource(kind="parquet", file="a.parquet"),
    ]
    return [raw for source in sources for one in local(source, folder) for raw in one.read()]


def test_raw_chunks_can_be_sent_to_another_process_and_shortened(tmp_path: Path) -> None:
    pairs = invented_pairs(5, seed=1)
    raws = raw_chunks(tmp_path)
    assert len(raws) == 4
    for raw in raws:
        assert raw.num_pairs == 5
        whole = pickle.loads(pickle.dumps(raw)).parse()
        assert list(zip(whole.src, whole.tgt, strict=True)) == pairs
        part = first_pairs(raw, 3)
        assert part.num_pairs == 3
        assert (part.parse().src, part.parse().tgt) == (whole.src[:3], whole.tgt[:3])
        assert first_pairs(raw, 5) is raw


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


def hub_source(repository: str = "./wmt14", **keys: Any) -> HubSource:
    return HubSource(**{"kind": "hub", "repository": repository, "subset": "de-en", "split": "train", **keys})


def read_hub(one: HubSource, folder: Path) -> list[ParsedChunk]:
    corpus = Corpus(name="x", languages=EN_DE, train=[one], valid=[one])
    return list(read_chunks(fetch_inputs(LocatedCorpus(corpus, folder), progress=silent).sources["train"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    write_repository(folder / "wmt14")
    return folder


def test_a_directory_in_the_hubs_layout_is_read_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt_cli.preparing.chunks.CHUNK_PAIRS", 150)
    chunks = read_hub(hub_source(), folder)
    pairs = [pair for chunk in chunks for pair in zip(chunk.src, chunk.tgt, strict=True)]
    assert pairs == invented_pairs(420, seed=9)[:400]
    assert [chunk.where(0) for chunk in chunks] == [
        f"./wmt14/train-0000{shard}-of-00002.parquet:{row}" for shard in (0, 1) for row in (1, 151)
    ]


def test_a_corpus_of_hub_sources_is_prepared(folder: Path, tmp_path: Path) -> None:
    (folder / "corpus.yaml").write_text(HUB_CORPUS)
    located = load_corpus(str(folder / "corpus.yaml"), overrides=[])
    prepared = run(located, tmp_path / "data")
    assert prepared.report["pairs"] == {"train": 400, "valid": 20}
    expected = "".join(f"{tgt}\n" for _, tgt in invented_pairs(420, seed=9)[400:])
    assert (tmp_path / "data" / "valid.de").read_text(encoding="utf-8") == expected
    assert run(located, tmp_path / "data").was_finished


def test_flat_columns_and_nulls_are_read(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "train.jsonl").write_text('{"en": "one", "de": "eins"}\n{"en": null, "de": "zwei"}\n')
    (chunk,) = read_hub(hub_source("./flat", subset=None, source="en", target="de"), tmp_path)
    assert (chunk.src, chunk.tgt) == (["one", ""], ["eins", "zwei"])


def test_a_column_that_is_not_there_is_answered_with_those_that_are(folder: Path) -> None:
    with pytest.raises(DataError, match=r"parquet has no column of text translation\.fr") as caught:
        read_hub(hub_source(target="translation.fr"), folder)
    expected = "set source and target to two of its columns: translation.de (string), translation.en (string)"
    assert caught.value.hint == expected


def test_a_split_that_is_not_there_is_answered_with_those_that_are(folder: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_hub(hub_source(split="trian"), folder)
    assert caught.value.message == "the data set ./wmt14 has no split trian"
    assert caught.value.where == "./wmt14 de-en trian"
    assert caught.value.hint == "its splits are train, validation: write one of them as split"


def test_a_subset_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match="BuilderConfig 'fr-en' not found") as caught:
        read_hub(hub_source(subset="fr-en"), folder)
    assert caught.value.hint == "check repository, subset, split and revision"


def test_a_directory_without_data_files_is_answered_with_the_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "train.en").write_text("one\n")
    with pytest.raises(DataError) as caught:
        read_hub(hub_source("./my", subset=None), tmp_path)
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
    (chunk,) = read_hub(hub_source("./bars", subset=None, source="en", target="de"), tmp_path)
    assert (chunk.src, chunk.tgt) == (["one"], ["eins"])


def test_a_local_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "corpus.yaml").write_text(HUB_CORPUS)
    located = load_corpus(str(tmp_path / "corpus.yaml"), overrides=[])
    with pytest.raises(DataError, match=r"no such directory: .*wmt14") as caught:
        run(located, tmp_path / "data")
    assert caught.value.hint == "check the path of the repository"
