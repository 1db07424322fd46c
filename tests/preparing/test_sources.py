from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from nmt_cli.errors import DataError
from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.corpus import AnySource, Corpus, LocatedCorpus
from nmt_cli.preparing.corpus_loading import corpus_from_files
from nmt_cli.preparing.inputs import fetch_inputs, find_local_inputs
from nmt_cli.preparing.sources.base import CorpusContext, CorpusLanguages, LocalSource
from nmt_cli.preparing.sources.hub import HubSource
from nmt_cli.preparing.sources.jsonl_parquet import JsonlSource, ParquetSource
from nmt_cli.preparing.sources.text import TextSource, name_without_endings
from nmt_cli.preparing.sources.tsv_csv import TsvSource
from tests.hub import write_translations
from tests.preparing import corpus_files
from tests.preparing.corpus_files import corpus_of, invented_pairs, memory_below, read_chunks, run, silent

EN_DE = CorpusLanguages(source="en", target="de")
PREFIX = TextSource(kind="text", prefix="train")
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
CARD = """\
---
configs:
- config_name: de-en
  data_files:
  - {split: train, path: de-en/train-*}
  - {split: validation, path: de-en/validation-*}
---
"""
HUB_PAIRS = invented_pairs(420, seed=9)
SPLITS = ("train", "validation")


def local(source: AnySource, folder: Path) -> list[LocalSource]:
    corpus = Corpus(name="x", languages=EN_DE, train=[source], valid=[source])
    return fetch_inputs(LocatedCorpus(corpus, folder), progress=silent).sources["train"]


def read(source: AnySource, folder: Path) -> list[Chunk]:
    return list(read_chunks(local(source, folder)))


def refusal(source: AnySource, folder: Path) -> DataError:
    return corpus_files.refusal(lambda: read(source, folder))


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_text_is_read_plain_and_compressed(tmp_path: Path, ending: str) -> None:
    compress = COMPRESSORS[ending]
    (tmp_path / f"train.en{ending}").write_bytes(compress("one\ntwö\n".encode()))
    (tmp_path / f"train.de{ending}").write_bytes(compress(b"eins\nzwei"))
    for source in (PREFIX, TextSource(kind="text", source=f"train.en{ending}", target=f"train.de{ending}")):
        (chunk,) = read(source, tmp_path)
        assert (chunk.src, chunk.tgt) == (["one", "twö"], ["eins", "zwei"])
        assert chunk.where(1) == f"train.en{ending}:2"


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_bytes("\ufeffone\u2028still\x0cone\x85\r\n\n\ufefftwo \n".encode())
    (tmp_path / "train.de").write_bytes(b"caf\xe9\n\r\r\nx\n")
    (chunk,) = read(PREFIX, tmp_path)
    assert chunk.src == ["one\u2028still\x0cone\x85", "", "\ufefftwo "]
    assert chunk.tgt == ["caf\udce9", "\r", "x"]


@pytest.mark.parametrize("name", ["train", "train.jsonl", "train.parquet", "train.csv", "train.tmx"])
def test_a_tab_inside_a_text_is_a_space_in_every_format(tmp_path: Path, name: str) -> None:
    for code in ("en", "de"):
        (tmp_path / f"train.{code}").write_text(f"{code}\tone\ttwo\n")
    record = {"en": "en\tone\ttwo", "de": "de\tone\ttwo"}
    (tmp_path / "train.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "train.csv").write_text('"en\tone\ttwo","de\tone\ttwo"\n')
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record]), tmp_path / "train.parquet")
    texts = "".join(f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in record.items())
    (tmp_path / "train.tmx").write_text(f"<tmx><body><tu>{texts}</tu></body></tmx>")
    (source,) = corpus_from_files({"train": [name]}, languages="en-de", name="x", overrides=[]).corpus.train or []
    (chunk,) = read(source, tmp_path)
    assert (chunk.src, chunk.tgt) == (["en one two"], ["de one two"])


@pytest.mark.parametrize("kind", ["text", "tsv", "csv", "jsonl", "tmx", "parquet"])
def test_chunks_of_long_lines_are_bounded_by_bytes_and_give_the_same_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pairs = [(f"one{'x' * (number % 7)}", f"eins {number}") for number in range(300)]
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{src}</seg></tuv><tuv xml:lang="de"><seg>{tgt}</seg></tuv></tu>\n'
        for src, tgt in pairs
    )
    for side, code in enumerate(("en", "de")):
        (tmp_path / f"a.{code}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    (tmp_path / "a.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs))
    (tmp_path / "a.csv").write_text("".join(f'"{src}",{tgt}\n' for src, tgt in pairs))
    (tmp_path / "a.tmx").write_text(f"<tmx><body>\n{units}</body></tmx>")
    records = [{"en": src, "de": tgt} for src, tgt in pairs]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "a.parquet")
    name = "a" if kind == "text" else f"a.{kind}"
    (source,) = corpus_from_files({"train": [name]}, languages="en-de", name="x", overrides=[]).corpus.train or []
    (whole,) = read(source, tmp_path)
    monkeypatch.setattr("nmt_cli.preparing.chunks.CHUNK_BYTES", 1_000)
    chunks = read(source, tmp_path)
    assert len(chunks) >= 4
    assert [pair for one in chunks for pair in zip(one.src, one.tgt, strict=True)] == pairs
    places = [one.where(place, side=1) for one in chunks for place in range(len(one.src))]
    assert places == [whole.where(place, side=1) for place in range(300)]


@pytest.mark.parametrize(("name", "most"), [("a.tsv.zst", 450), ("a", 700)])
def test_many_of_the_longest_lines_do_not_fill_the_memory(tmp_path: Path, name: str, most: int) -> None:
    line = b"x" * 1_000_000
    packed = zstandard.ZstdCompressor().compress((line[:500_000] + b"\t" + line[500_000:] + b"\n") * 400)
    for file in ("a.tsv.zst", "a.en.zst", "a.de.zst"):
        (tmp_path / file).write_bytes(packed)
    (source,) = corpus_from_files({"train": [name]}, languages="en-de", name="x", overrides=[]).corpus.train or []
    (pairs,) = local(source, tmp_path)
    with memory_below(most):  # MB, for the 64 lines of a chunk; all 400 would take 850 or more
        assert sum(map(len, pairs.read())) == 400


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


@pytest.mark.parametrize(
    ("given", "names", "languages"),
    [
        ("train", ("train.en.txt", "train.de.txt"), "en-de"),
        ("train", ("train.en.txt.gz", "train.de"), "en-de"),
        ("train.de", ("train.en", "train.de"), "en-de"),
        ("train.en.txt", ("train.en.txt", "train.de.txt"), "en-de"),
        ("train.v2", ("train.v2.en", "train.v2.zh_TW"), "en-zh-TW"),
        ("train.eng", ("train.eng", "train.pt_BR"), "en-pt"),
        ("lat", ("lat.en", "lat.lat"), "en-lat"),  # the name of the text is the code of a language
        ("my", ("my.en", "my.de"), "en-de"),
        ("en", ("en", "lat"), "en-lat"),
        ("en.txt", ("en.txt", "de.txt.gz"), "en-de"),
    ],
)
def test_text_files_are_found_by_their_languages(
    tmp_path: Path, given: str, names: tuple[str, str], languages: str
) -> None:
    for name, text in zip(names, (b"one\n", b"eins\n"), strict=True):
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    (tmp_path / "train.fr").write_text("un\n")
    source, _, target = languages.partition("-")
    context = CorpusContext(tmp_path, (source, target))
    (chunk,) = read_chunks([*TextSource(kind="text", prefix=given).fetch(context, progress=silent)])
    assert (chunk.src, chunk.tgt) == (["one"], ["eins"])
    expected = {"train.v2": "train.v2", "lat": "lat", "my": "my", "en": tmp_path.name, "en.txt": tmp_path.name}
    assert name_without_endings(tmp_path / given) == expected.get(given, "train")


@pytest.mark.parametrize(
    ("name", "target"), [("train.{}.txt", "de"), ("{}", "de"), ("{}.txt", "id"), ("train.{}", "ceb")]
)
def test_both_sides_given_as_two_files_are_read_once(tmp_path: Path, name: str, target: str) -> None:
    files = [str(tmp_path / folder / name.format(code)) for folder in ("a.b", "c") for code in ("en", target)]
    for file in files:
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_text("a\n")
    located = corpus_from_files({"train": files}, languages=f"en-{target}", name="x", overrides=[])
    assert len(fetch_inputs(located, progress=silent).sources["train"]) == 2


@pytest.mark.parametrize(
    ("prefix", "there", "wanted", "hint"),
    [
        ("train", ["train.en", "train.fr.gz"], "train.de", "there are train.en, train.fr.gz: check the languages"),
        ("train", [], "train.en", "check the path: {folder} has no file train.LANGUAGE"),
        ("train.en", ["train.en"], "train.de", "there are train.en: check the languages"),
    ],
)
def test_a_prefix_without_files_is_answered_with_what_there_is(
    tmp_path: Path, prefix: str, there: list[str], wanted: str, hint: str
) -> None:
    for name in there:
        (tmp_path / name).write_text("a\n")
    error = refusal(TextSource(kind="text", prefix=prefix), tmp_path)
    assert error.message == f"no such file: {tmp_path / wanted} (nor with .txt, .gz, .zst, .xz, .bz2)"
    assert error.hint == hint.format(folder=tmp_path)


@pytest.mark.parametrize(
    ("prefix", "message", "hint"),
    [
        (".", ". is a folder", "name a file in it, or the beginning of two: train for train.en"),
        ("my", "my is a folder", "name a file in it, or the beginning of two: my/train for train.en"),
        (
            "a.txt",
            "a.txt has none of the endings .csv, .jsonl, ",
            "give two files with a sentence per line, NAME.en and NAME.de, or a table NAME.tsv",
        ),
        ("a.tsv", "a.tsv is one file, not the beginning of two", "write kind: tsv, file: a.tsv"),
    ],
)
def test_what_is_no_beginning_of_two_files_is_answered_with_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, message: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my").mkdir()
    if prefix.startswith("a"):
        (tmp_path / prefix).write_text(f"{prefix}\n")
    error = refusal(TextSource(kind="text", prefix=prefix), Path())
    assert error.message.startswith(message)
    assert error.hint == hint
    for code in ("en", "de"):
        (tmp_path / f"my.{code}").write_text("a\n")
    assert read(TextSource(kind="text", prefix="my"), Path())[0].src == ["a"]


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
    assert error.hint == "give a file with text in it"


@pytest.mark.parametrize("text", ["p", "p.tsv"])
def test_a_pipe_is_no_text_of_a_corpus_which_is_read_twice(tmp_path: Path, text: str) -> None:
    pipe, end = os.pipe()
    os.close(end)  # so that nobody who reads the pipe waits
    for name in ("p.en", "p.de", "p.tsv"):
        (tmp_path / name).symlink_to(f"/dev/fd/{pipe}")
    located = corpus_from_files({"train": [str(tmp_path / text)]}, languages="en-de", name="c", overrides=())
    with pytest.raises(DataError, match=r"/p\.(en|tsv) is a pipe or a device, and nmt prepare reads a text twice"):
        find_local_inputs(located)
    os.close(pipe)


def test_what_cannot_be_opened_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def error_of(name: str) -> tuple[str, str]:
        error = refusal(TsvSource(kind="tsv", file=name), tmp_path)
        return error.message, error.hint

    folder, file = tmp_path / "a folder", tmp_path / "a file"
    folder.mkdir()
    file.touch()
    assert error_of("a folder") == (f"{folder} is a directory, not a file", "name a file in it")
    assert error_of("none") == (f"no such file: {tmp_path / 'none'}", "check the path")
    monkeypatch.setattr(Path, "open", Mock(side_effect=PermissionError))  # root may read everything
    assert error_of("a file") == (f"{file} may not be read", f"chmod +r '{file}'")


@pytest.mark.parametrize(("ending", "kind"), [(".gz", "gzip"), (".zst", "zstd")])
@pytest.mark.parametrize("cut", ["en", "de"])
def test_a_compressed_file_that_is_cut_short_is_named(tmp_path: Path, ending: str, kind: str, cut: str) -> None:
    compress = COMPRESSORS[ending]
    for code in ("en", "de"):
        data = compress("".join(f"{code} {number}\n" for number in range(100_000)).encode())
        (tmp_path / f"train.{code}{ending}").write_bytes(data[: len(data) // 2] if code == cut else data)
    error = refusal(PREFIX, tmp_path)
    assert f"train.{cut}{ending} is not a whole {kind} file" in error.message
    assert error.hint == "fetch it again"


def test_zstd_frames_one_after_another_are_one_file(tmp_path: Path) -> None:
    compress = COMPRESSORS[".zst"]
    (tmp_path / "train.en.zst").write_bytes(compress(b"one\ntw") + compress(b"") + compress(b"o\nthree\n"))
    (tmp_path / "train.de.zst").write_bytes(compress(b"1\n2\n3\n"))
    (chunk,) = read(PREFIX, tmp_path)
    assert chunk.src == ["one", "two", "three"]


def test_columns_of_tsv_are_counted_from_one(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text('id\tde\ten\n1\t"eins"\tone\textra\n2\tzwei\n3\tdrei\tthree\n')
    source = TsvSource(kind="tsv", file="pairs.tsv", source=3, target=2, header=True)
    (chunk,) = read(source, tmp_path)
    assert (chunk.src, chunk.tgt) == (["one", "2\tzwei", "three"], ['"eins"', "", "drei"])
    assert chunk.malformed == {1}
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
    assert (chunk.malformed, chunk.src[1:8]) == (frozenset(range(1, 8)), records[1:8])
    (tmp_path / "flat.jsonl").write_text('{"de": "eins", "en": "one"}\n')
    (chunk,) = read(JsonlSource(kind="jsonl", file="flat.jsonl"), tmp_path)  # by default, the language codes
    assert (chunk.src, chunk.tgt) == (["one"], ["eins"])


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
    assert error.message == "part-d.en has no partner"
    assert error.where == f"{tmp_path}/part-*.en, {tmp_path}/part-*.de.gz"
    assert error.hint == "both sides need files whose names agree in what the patterns leave open"


@pytest.mark.parametrize("pattern", ["*_", "**/*s*_", "*w?*_"])
def test_files_are_paired_by_what_the_patterns_leave_open(tmp_path: Path, pattern: str) -> None:
    for name in ("news", "news_dev"):  # news_dev_ stands between news_de and news_en
        for code in ("en", "de"):
            (tmp_path / f"{name}_{code}.txt").write_text(f"{name} {code}\n")
    source = TextSource(kind="text", source=f"{pattern}en.txt", target=f"{pattern}de.txt")
    pairs = [(chunk.src, chunk.tgt) for chunk in read(source, tmp_path)]
    assert pairs == [(["news_dev en"], ["news_dev de"]), (["news en"], ["news de"])]


@pytest.mark.parametrize("pattern", ["./part-[!c]", "**/part-?"])
def test_a_folder_whose_name_looks_like_a_pattern_is_a_folder(tmp_path: Path, pattern: str) -> None:
    folder = tmp_path / "[old] *"
    folder.mkdir()
    for name in ("part-a.en", "part-b.de"):
        (folder / name).write_text("x\n")
    error = refusal(TextSource(kind="text", source=f"{pattern}.en", target=f"{pattern}.de"), folder)
    assert error.message == "part-a.en has no partner"
    (folder / "part-a.de").write_text("y\n")
    (folder / "part-b.de").unlink()
    (chunk,) = read(TextSource(kind="text", source=f"{pattern}.en", target=f"{pattern}.de"), folder)
    assert (chunk.src, chunk.tgt) == (["x"], ["y"])


def test_a_name_that_is_not_utf8_is_refused_though_a_pattern_finds_it(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.tsv")).write_text("one\teins\n")
    error = refusal(TsvSource(kind="tsv", file="*.tsv"), tmp_path)
    assert (error.message, error.where) == ("the name of a file is not UTF-8", r"'caf\udce9.tsv'")


def test_a_pattern_without_a_match_says_how_patterns_work(tmp_path: Path) -> None:
    error = refusal(TsvSource(kind="tsv", file="none/*.tsv"), tmp_path)
    assert (error.message, error.where) == ("no file matches none/*.tsv", str(tmp_path / "none/*.tsv"))
    assert error.hint.startswith("check the pattern: * is part of a name, ** any folders")
    (tmp_path / "a[1].tsv").write_text("one\teins\n")  # the name of a file, though it looks like a pattern
    (chunk,) = read(TsvSource(kind="tsv", file="a[1].tsv"), tmp_path)
    assert chunk.src == ["one"]


def test_a_tsv_file_without_tabs_is_answered(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("one,eins\n")
    error = refusal(TsvSource(kind="tsv", file="pairs.tsv"), tmp_path)
    assert error.message == "pairs.tsv has no columns: there is no tab in its first lines"
    assert error.where == f"{tmp_path / 'pairs.tsv'}:1"
    assert error.hint == "separate source and target by one tab, or call a table with commas or semicolons .csv"


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
    table = pyarrow.table({"id": [1], "text": [{"one": "one", "two": "eins"}], "words": [["one"]], "a.b": ["x"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    error = refusal(ParquetSource(kind="parquet", file="a.parquet"), tmp_path)
    assert error.message == "a.parquet has no column of text translation.en"
    assert error.where == str(tmp_path / "a.parquet")
    assert error.hint == (
        "set source and target to two of its columns: id (int64), text.one (string), text.two (string), "
        "words (list<element: string>), a.b (string)"
    )
    for column in ("id", "text", "text.fr", "words", "text.one.x"):
        error = refusal(ParquetSource(kind="parquet", file="a.parquet", source="text.one", target=column), tmp_path)
        assert error.message == f"a.parquet has no column of text {column}"
    (chunk,) = read(ParquetSource(kind="parquet", file="a.parquet", source="text.one", target="a.b"), tmp_path)
    assert (chunk.src, chunk.tgt) == (["one"], ["x"])


def test_a_parquet_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    write_translations(tmp_path / "a.parquet", invented_pairs(50, seed=1), ("en", "de"))
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(content[: len(content) // 2])
    error = refusal(ParquetSource(kind="parquet", file="a.parquet"), tmp_path)
    assert error.message.startswith("a.parquet cannot be read as a table: ")
    assert (error.where, error.hint) == (str(tmp_path / "a.parquet"), "check that it is a table, or fetch it again")


def test_nulls_and_other_kinds_of_strings_are_read(tmp_path: Path) -> None:
    columns = {
        "en": pyarrow.array(["one", None], pyarrow.large_string()),
        "de": pyarrow.array(["eins", "zwei"]).dictionary_encode(),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    (chunk,) = read(ParquetSource(kind="parquet", file="a.parquet", source="en", target="de"), tmp_path)
    assert (chunk.src, chunk.tgt) == (["one", ""], ["eins", "zwei"])


def test_bytes_of_parquet_that_are_not_utf8_are_kept_for_the_rule_that_drops_them(tmp_path: Path) -> None:
    unchecked = pyarrow.array([b"caf\xe9", b"two"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"en": unchecked, "de": ["eins", "zwei"]}), tmp_path / "a.parquet")
    (chunk,) = read(ParquetSource(kind="parquet", file="a.parquet", source="en", target="de"), tmp_path)
    assert (chunk.src, chunk.tgt) == (["caf\udce9", "two"], ["eins", "zwei"])


def hub_source(repository: str = "./wmt14", **keys: Any) -> HubSource:
    return HubSource(**{"kind": "hub", "repository": repository, "subset": "de-en", "split": "train", **keys})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `wmt14`, laid out as on the hub: parquet files in shards, one struct column `translation`."""
    folder = tmp_path_factory.mktemp("hub")
    (folder / "wmt14" / "de-en").mkdir(parents=True)
    for name, part in (
        ("train-00000-of-00002", HUB_PAIRS[:200]),
        ("train-00001-of-00002", HUB_PAIRS[200:400]),
        ("validation-00000-of-00001", HUB_PAIRS[400:]),
    ):
        write_translations(folder / "wmt14" / "de-en" / f"{name}.parquet", part, ("en", "de"))
    (folder / "wmt14" / "README.md").write_text(CARD)
    return folder


def test_a_directory_in_the_hubs_layout_is_read_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt_cli.preparing.chunks.CHUNK_PAIRS", 150)
    chunks = read(hub_source(), folder)
    assert [pair for chunk in chunks for pair in zip(chunk.src, chunk.tgt, strict=True)] == HUB_PAIRS[:400]
    assert [chunk.where(0) for chunk in chunks] == [
        f"./wmt14/train-0000{shard}-of-00002.parquet:{row}" for shard in (0, 1) for row in (1, 151)
    ]


def test_a_corpus_file_of_another_folder_is_printed_with_whole_paths_of_its_data_sets(folder: Path) -> None:
    sources = (f"{{kind: hub, repository: {repository}, split: train}}" for repository in ("./wmt14", "wmt/wmt14"))
    printed = corpus_of(folder, ", ".join(sources)).values_here()
    assert [one["repository"] for one in printed["train"]] == [str(folder / "wmt14"), "wmt/wmt14"]


def test_a_corpus_of_hub_sources_is_prepared(folder: Path, tmp_path: Path) -> None:
    train, valid = (f"{{kind: hub, repository: ./wmt14, subset: de-en, split: {split}}}" for split in SPLITS)
    located = corpus_of(folder, train, valid=valid)
    prepared = run(located, tmp_path / "data")
    assert prepared.report["pairs"] == {"train": 400, "valid": 20}
    expected = "".join(f"{tgt}\n" for _, tgt in HUB_PAIRS[400:])
    assert (tmp_path / "data" / "valid.de").read_text(encoding="utf-8") == expected
    # What `hf download` and Spark leave beside the data, and what differs after each download.
    (folder / "wmt14" / ".cache" / "huggingface").mkdir(parents=True)
    (folder / "wmt14" / ".cache" / "huggingface" / "train.metadata").write_text("1700000000")
    (folder / "wmt14" / ".cache" / "huggingface" / "train.lock").touch()
    (folder / "wmt14" / "_SUCCESS").touch()
    assert run(located, tmp_path / "data").was_finished


@pytest.mark.parametrize(
    ("name", "content", "card"),
    [
        ("train.jsonl", '{"en": "one", "de": "eins"}\n{"en": null, "de": "zwei"}\n', ""),
        (
            "train.csv",
            "en|de\none|eins\n|zwei\n",
            "---\nconfigs:\n- config_name: default\n  data_files: train.csv\n  sep: '|'\n---\n",
        ),
    ],
)
def test_flat_columns_nulls_and_settings_of_a_data_set_are_read(
    tmp_path: Path, name: str, content: str, card: str
) -> None:
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / name).write_text(content)
    (tmp_path / "flat" / "README.md").write_text(card)
    (chunk,) = read(hub_source("./flat", subset=None, source="en", target="de"), tmp_path)
    assert (chunk.src, chunk.tgt) == (["one", ""], ["eins", "zwei"])


@pytest.mark.parametrize(
    ("keys", "message", "hint"),
    [
        (
            {"target": "translation.fr"},
            "train-00000-of-00002.parquet has no column of text translation.fr",
            "set source and target to two of its columns: translation.de (string), translation.en (string)",
        ),
        (
            {"split": "trian"},
            "the data set ./wmt14 has no split trian",
            "its splits are train, validation: write one of them as split",
        ),
        ({"repository": "./none"}, "no such directory: HERE/none", "check the path of the repository"),
        (
            {"repository": "./my", "subset": None},
            "cannot read the data set ./my train: No (supported) data files found in HERE/my",
            "check repository, subset and split; a single file is read by kind: text, tsv, jsonl or parquet",
        ),
    ],
)
def test_what_a_data_set_does_not_have_is_answered_with_what_it_has(
    folder: Path, keys: dict[str, Any], message: str, hint: str
) -> None:
    (folder / "my").mkdir(exist_ok=True)
    (folder / "my" / "train.en").write_text("one\n")
    error = refusal(hub_source(**keys), folder)
    assert (error.message, error.hint) == (message.replace("HERE", str(folder)), hint)
