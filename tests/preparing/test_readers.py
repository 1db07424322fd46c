from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from nmt_cli.errors import DataError
from nmt_cli.preparing import readers
from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.corpora import JsonlSource, LanguagePair, Source, TextSource, TsvSource
from nmt_cli.preparing.readers import read_pairs

EN_DE = LanguagePair(source="en", target="de")


def read(source: Source, folder: Path, *, languages: LanguagePair = EN_DE) -> list[Chunk]:
    return list(read_pairs(source, languages=languages, folder=folder))


def refusal(source: Source, folder: Path, *, languages: LanguagePair = EN_DE) -> DataError:
    with pytest.raises(DataError) as caught:
        read(source, folder, languages=languages)
    assert caught.value.exit_code == 4
    return caught.value


PREFIX = TextSource(kind="text", prefix="train")


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
    monkeypatch.setattr(readers, "CHUNK_PAIRS", 3)
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
    monkeypatch.setattr(readers, "CHUNK_PAIRS", 3)
    (tmp_path / "train.en").write_text("a\n" * num_src)
    (tmp_path / "train.de").write_text("b\n" * num_tgt)
    error = refusal(PREFIX, tmp_path)
    assert error.message == f"train.en has {num_src} lines, train.de has {num_tgt}"
    assert error.where == f"{tmp_path / 'train.en'}, {tmp_path / 'train.de'}"
    assert error.hint == "align the files line by line, then run nmt prepare again"


def test_languages_that_do_not_match_list_what_there_is(tmp_path: Path) -> None:
    for code in ("en", "de.gz", "cs"):
        (tmp_path / f"train.{code}").write_text("a\n")
    error = refusal(PREFIX, tmp_path, languages=LanguagePair(source="en", target="fr"))
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
def test_an_empty_file_is_an_error(tmp_path: Path, source: Source) -> None:
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
