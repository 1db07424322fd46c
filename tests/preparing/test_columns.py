"""TSV and CSV as sources of a corpus, and the columns and keys that are found by the languages."""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import lzma
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from nmt_cli.dataset.prepared_data import open_prepared
from nmt_cli.errors import DataError, UsageError
from nmt_cli.preparing.corpus import Corpus, LocatedCorpus
from nmt_cli.preparing.corpus_loading import corpus_from_files
from nmt_cli.preparing.inputs import fetch_inputs
from nmt_cli.preparing.sources.base import Split
from tests.preparing.corpus_files import (
    Pairs,
    corpus_of,
    invented_pairs,
    memory_below,
    read_chunks,
    refusal,
    run,
    silent,
    write_prefix,
)

QUOTED = [
    ('a "drop-in" directory', 'ein "drop-in"'),
    ("comma, semicolon; tab\t.", "x"),
    ("two\nlines", 'ends in "'),
    ("plain", "y"),
]


def read(
    file: Path, text: str | bytes, *, languages: str = "en-de", columns: str | None = None
) -> list[tuple[str, str]]:
    """The pairs of a file with this text, as --train takes it."""
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    corpus = corpus_from_files({"train": [str(file)]}, languages=languages, name="x", overrides=[], columns=columns)
    chunks = read_chunks(fetch_inputs(corpus, progress=silent).sources["train"])
    return [pair for chunk in chunks for pair in zip(chunk.src, chunk.tgt, strict=True)]


def error_of(file: Path, text: str | bytes) -> DataError:
    return refusal(lambda: read(file, text))


def written_by_csv(rows: Sequence[Sequence[str]], delimiter: str) -> str:
    """The rows as Python's csv module writes them in Excel's dialect."""
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter).writerows(rows)
    return file.getvalue()


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("header", [None, ("en", "de"), ("source", " Target "), ("EN-us", "deu")])
def test_csv_is_read_with_its_delimiter_quoting_and_header(
    tmp_path: Path, delimiter: str, header: tuple[str, str] | None
) -> None:
    pairs = [*QUOTED, *invented_pairs(200, seed=2)]
    text = written_by_csv([*([header] if header else []), *pairs], delimiter)
    expected = [tuple(" ".join(cell.split()) for cell in pair) for pair in pairs]
    assert read(tmp_path / "a.csv", text) == expected
    assert read(tmp_path / "a.csv", f"\ufeff{text}") == expected


@pytest.mark.parametrize("header", [None, ("en", "de")])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_line_breaks_in_quoted_cells_of_tsv_are_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: tuple[str, str] | None, line_end: str
) -> None:
    monkeypatch.setattr("nmt_cli.preparing.chunks.CHUNK_PAIRS", 1_000)
    pairs = [("One.\nTwo.", "Eins.\n\nZwei."), ('He said "no".', 'Er sagte\n"nein".'), *invented_pairs(50, seed=2)]
    text = written_by_csv([*([header] if header else []), *pairs], "\t").replace("\r\n", line_end)
    expected = [tuple(" ".join(cell.split()) for cell in pair) for pair in pairs]
    assert read(tmp_path / "a.tsv", text) == expected
    plain = invented_pairs(1_000, seed=3)  # the first break stands below the first chunk
    error = error_of(tmp_path / "b.TSV", written_by_csv(plain, "\t") + text)
    command = error.hint.partition(": ")[2]
    assert command.endswith("b.csv")
    subprocess.run(command, shell=True, check=True)
    if header is None:
        assert read(tmp_path / "b.csv", (tmp_path / "b.csv").read_bytes()) == [*plain, *expected]


@pytest.mark.parametrize("name", ["fuzzy", "Fuzzy"])
def test_fuzzy_rows_of_weblate_are_left_out_and_counted_unless_they_are_kept(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rows = [("location", "source", "target", "id", name, "context"), ("", "One", "Eins", "1", "False", "")]
    rows += [("", "Two", "Zwei", "2", "True", ""), ("", "Three", "Drei", "3", "", "")]
    text = written_by_csv(rows, ",")
    assert read(tmp_path / "a.csv", text) == [("One", "Eins"), ("Two", ""), ("Three", "Drei")]
    assert "1 translations are left out" in caplog.text
    write_prefix(tmp_path / "valid", invented_pairs(3, seed=2))
    kept = corpus_of(tmp_path, "{kind: csv, file: a.csv, keep_unfinished: true}")
    chunks = list(read_chunks(fetch_inputs(kept, progress=silent).sources["train"]))
    assert chunks[0].tgt == ["Eins", "Zwei", "Drei"]


def test_blank_lines_before_the_header_of_csv_are_no_rows(tmp_path: Path) -> None:
    assert read(tmp_path / "a.csv", b"\n\r\nid,de,en\n\n7,eins,one\n") == [("one", "eins")]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_table_with_nothing_below_its_header_is_answered(tmp_path: Path, name: str) -> None:
    error = error_of(tmp_path / name, "en\tde\n")
    assert (error.message, error.hint) == (f"{name} has only a header", "give a file with text in it")


def test_csv_without_the_column_is_answered_with_its_width(tmp_path: Path) -> None:
    write_prefix(tmp_path / "valid", invented_pairs(3, seed=2))
    (tmp_path / "train.csv").write_text("one,eins\ntwo,zwei\n")
    located = corpus_of(tmp_path, "{kind: csv, file: train.csv, source: 1, target: 4}")
    error = refusal(lambda: list(read_chunks(fetch_inputs(located, progress=silent).sources["train"])))
    assert error.message == "no row of train.csv has a column 4: the longest has 2"
    assert error.hint == "give the two columns, by number or by name: --columns SOURCE,TARGET"


def test_columns_that_are_called_by_the_languages_are_found_among_others(tmp_path: Path) -> None:
    rows = [("id", "de-DE", "note", "en"), ("1", "eins", "", "one"), ("2", "zwei", "x", "two")]
    for name, delimiter in (("a.csv", ","), ("a.tsv", "\t")):
        text = written_by_csv(rows, delimiter)
        assert read(tmp_path / name, text) == [("one", "eins"), ("two", "zwei")]
        assert read(tmp_path / name, text, languages="de-en") == [("eins", "one"), ("zwei", "two")]
    assert read(tmp_path / "no.tsv", "no\tnein\nja\tja\n", languages="no-de") == [("no", "nein"), ("ja", "ja")]


@pytest.mark.parametrize(("english", "german"), [("en", "de"), ("Englisch", "Deutsch"), ("anglais", "allemand")])
def test_a_first_line_that_names_both_languages_is_no_pair(tmp_path: Path, english: str, german: str) -> None:
    for columns in (None, "1,2"):
        text = f"{english}\t{german}\none\teins\n"
        assert read(tmp_path / "a.tsv", text, columns=columns) == [("one", "eins")]
    for columns in (None, "2,1"):
        text = f"{german}\t{english}\neins\tone\n"
        assert read(tmp_path / "a.tsv", text, columns=columns) == [("one", "eins")]


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ","), ("a.tsv", "\t")])
def test_three_columns_without_names_are_asked_for_and_taken_by_number_or_name(
    tmp_path: Path, name: str, separator: str
) -> None:
    file, pairs = tmp_path / name, [("one word", "ein Wort"), ("two", "zwei")]
    rows = [("id", "Original", "Text"), *((f"{number}", *pair) for number, pair in enumerate(pairs))]
    error = error_of(file, written_by_csv(rows, separator))
    assert error.message == (
        f"{name} has 3 columns, and its first line does not call two by en and de: 'id', 'Original', 'Text'"
    )
    assert (error.where, error.hint) == (
        f"{file}:1",
        "give the two columns, by number or by name: --columns SOURCE,TARGET",
    )
    assert read(file, file.read_bytes(), columns="Original,Text") == pairs
    error = refusal(lambda: read(file, file.read_bytes(), columns="original,Text"))
    assert error.message == f"the first line of {name} names no column original: it has 'id', 'Original', 'Text'"
    assert read(file, file.read_bytes(), columns="2, 3") == [("Original", "Text"), *pairs]
    with pytest.raises(UsageError, match=r"train\.zip is an archive"):
        corpus_from_files({"train": ["train.zip"]}, languages="en-de", columns="2,3", name="x", overrides=[])
    with pytest.raises(UsageError, match="columns '2' is not SOURCE,TARGET"):
        read(file, file.read_bytes(), columns="2")


def test_keys_of_jsonl_without_the_languages_are_given_by_name(tmp_path: Path) -> None:
    text = json.dumps({"id": 7, "pair": {"original": "Good day", "other": "Guten Tag"}})
    corpus = corpus_from_files({"train": [str(tmp_path / "a.jsonl")]}, languages="en-de", name="x", overrides=[])
    (tmp_path / "a.jsonl").write_text(text)
    (chunk,) = read_chunks(fetch_inputs(corpus, progress=silent).sources["train"])
    assert chunk.problem is not None
    assert chunk.problem.endswith("has 'pair.original', 'pair.other': name the two keys: --columns SOURCE,TARGET")
    assert read(tmp_path / "a.jsonl", text, columns="pair.original,pair.other") == [("Good day", "Guten Tag")]


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_row_of_csv_with_more_cells_than_its_header_is_malformed(tmp_path: Path, split: Split) -> None:
    rows = "".join(f"{src.replace(' ', ', ', 1)},{tgt}\n" for src, tgt in invented_pairs(60, seed=2))
    (tmp_path / "a.csv").write_text(f"en,de\n{rows}")
    files: dict[Split, Sequence[str]] = {"train": [write_prefix(tmp_path / "text", invented_pairs(40, seed=3))]}
    files = {**files, split: [str(tmp_path / "a.csv")]}
    located = corpus_from_files(files, languages="en-de", name="x", overrides=[])
    error = refusal(lambda: run(located, tmp_path / "data"))
    assert error.where == "a.csv:2"
    assert error.hint.startswith(
        "that row has 3 cells, and 2 are expected: put quotes around cells with a delimiter, or name all "
    )
    pairs = [("A house.", "Ein Haus.")]
    assert read(tmp_path / "a.csv", "en,de,score\nA house.,Ein Haus.,0.9\n") == pairs
    assert read(tmp_path / "a.tsv", "en\tde\nA house.\tEin Haus.\t0.9\n") == pairs
    assert read(tmp_path / "a.csv", "en,de\nA house.,Ein Haus.,\n") == pairs


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ";"), ("a.tsv", "\t")])
@pytest.mark.parametrize("above", ["sep=;", "Glossary;\n;"])
def test_a_line_above_the_names_of_two_columns_is_told(tmp_path: Path, name: str, separator: str, above: str) -> None:
    table = '"de";"en"\nHallo;Hi\nBaum;Tree\n'.replace(";", separator)
    above = above.replace(";", separator)
    error = error_of(tmp_path / name, f"{above}\n{table}")
    assert error.message == f"line 1 of {name} stands above the names of the columns"
    assert (error.where, error.hint) == (f"{tmp_path / name}:1", "remove the lines above the names of the columns")
    assert read(tmp_path / name, table) == [("Hi", "Hallo"), ("Tree", "Baum")]
    (tmp_path / name).write_text(f"{above}\n{table}")  # without a header, as the user says: all rows are pairs
    assert "de" in [text.strip('"') for text in text_of(tmp_path / name, kind=name[2:], header=False)[0]]


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ","), ("a.tsv", "\t")])
def test_a_table_with_two_columns_of_other_languages_is_refused(tmp_path: Path, name: str, separator: str) -> None:
    file = tmp_path / name
    error = error_of(file, f"fr{separator}de\nun{separator}eins\n")
    assert error.message == f"{name} has 2 columns, and its first line does not call two by en and de: 'fr', 'de'"
    assert read(file, file.read_bytes(), languages="fr-de") == [("un", "eins")]
    file.write_text(f"it{separator}es\nhe{separator}er\n")  # a word list, whose first pair could be two codes
    for keys in ({"source": 1, "target": 2}, {"header": False}):
        assert text_of(file, kind=name[2:], **keys) == (["it", "he"], ["es", "er"])


def test_carriage_returns_inside_quoted_cells_of_csv_are_spaces(tmp_path: Path) -> None:
    long = "one " * 50_000 + "one"  # more than a cell of csv may have
    text = f'one,eins\r\n"two\rthree","zwei \r\n drei"\r\n{long},eins\r\n'
    assert read(tmp_path / "a.csv", text) == [("one", "eins"), ("two three", "zwei drei"), (long, "eins")]


def test_tsv_with_a_quote_around_every_cell_is_unquoted(tmp_path: Path) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter="\t", quoting=csv.QUOTE_ALL).writerows([("Hi", "Hallo"), ("Tree", "")])
    assert read(tmp_path / "a.tsv", file.getvalue()) == [("Hi", "Hallo"), ("Tree", "")]
    for text in ('"Hi"\t"Hallo"\n', '"Hi"\t"Hallo"\n"Tree"\tBaum\n'):  # one pair, or sentences that are quotations
        assert read(tmp_path / "a.tsv", text)[0] == ('"Hi"', '"Hallo"')


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_an_identifier_is_not_taken_as_indonesian(tmp_path: Path, ending: str) -> None:
    pairs = [("Good morning", "Selamat pagi"), ("Thank you", "Terima kasih")]
    file = tmp_path / f"a{ending}"
    records = [{"id": str(n), "translation": {"en": src, "id": tgt}} for n, (src, tgt) in enumerate(pairs)]
    match ending:
        case ".jsonl":
            file.write_text("".join(json.dumps(dict(reversed(record.items()))) + "\n" for record in records))
        case _:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), file)
    assert read(file, file.read_bytes(), languages="en-id") == pairs


@pytest.mark.parametrize("first", ["", '{"id": "7", "source": null, "target": "x"}', '{"id": "7"}'])
def test_a_first_record_without_text_does_not_hide_the_keys(tmp_path: Path, first: str) -> None:
    text = f'{first}\n{{"id": "8", "source": "one", "target": "eins"}}\n'
    assert read(tmp_path / "a.jsonl", text) == [(first, ""), ("one", "eins")]


def test_a_byte_that_is_not_utf8_in_the_first_record_hides_no_key(tmp_path: Path) -> None:
    first, second = '{"src": "caf\xe9", "tgt": "ein"}\n'.encode("latin-1"), b'{"src": "two", "tgt": "zwei"}\n'
    assert [tgt for _, tgt in read(tmp_path / "a.jsonl", first + second)] == ["ein", "zwei"]
    assert [tgt for _, tgt in read(tmp_path / "a.tsv", b"caf\xe9\tein\ntwo\tzwei\n")] == ["ein", "zwei"]


def test_columns_of_language_codes_are_no_names(tmp_path: Path) -> None:
    pairs = [("A house.", "Ein Haus."), ("A tree.", "Ein Baum.")]
    text = "".join(f"{src}\t{tgt}\ten\tde\n" for src, tgt in pairs)
    error = error_of(tmp_path / "a.tsv", text)
    assert error.message.startswith("a.tsv has 4 columns, and its first line does not call two by ")
    assert read(tmp_path / "a.tsv", text, columns="1,2") == pairs


@pytest.mark.parametrize(
    "broken",
    [
        '"A quote" he said,Ein Wort\r\n',
        "Good,Gut\rBye,Bis bald\r\n",
        'one,"never closed\r\n' + "a,b\r\n" * 150,
        'one,"never closed',
        'one,"' + "x" * 140_000,
    ],
)
def test_a_broken_quote_in_csv_is_named_with_its_line(tmp_path: Path, broken: str) -> None:
    rest = "" if broken[-1] != "\n" else '"two","zwei"\r\n'
    error = error_of(tmp_path / "a.csv", f'"one","eins\r\nzwei"\r\n{broken}{rest}')
    assert error.message.startswith("a cell in line 3 of a.csv is broken: ")
    assert error.where == f"{tmp_path / 'a.csv'}:3"


def test_rows_of_csv_keep_the_line_where_they_begin_and_short_ones_are_counted(tmp_path: Path) -> None:
    rows = [(src.replace(" ", "\n", 1), tgt) for src, tgt in invented_pairs(60, seed=3)]
    text = written_by_csv([*rows[:30], ("short",), *rows[30:], ("a\x07b c d e", "f g h i j")], ",")
    (tmp_path / "a.csv").write_text(text)
    overrides = ["tokenizer.vocab_size=300", "cleaning.max_length_ratio=null"]
    corpus = corpus_from_files({"train": [str(tmp_path / "a.csv")]}, languages="en-de", name="x", overrides=overrides)
    dropped = run(corpus, tmp_path / "data").report["cleaning"]["dropped"]
    assert [one["where"] for one in dropped["no translation"]["examples"]] == ["a.csv:61"]
    assert [one["where"] for one in dropped["control characters"]["examples"]] == ["a.csv:122"]


def test_quoting_in_tsv_is_taken_off_and_quotes_of_plain_text_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    pairs = [('a "drop-in" directory', "eins"), ("plain", 'ein "Wort"'), ('"', "x")]
    assert read(tmp_path / "excel.tsv", written_by_csv(pairs, "\t").replace("\r", "")) == pairs
    assert caplog.messages == ["excel.tsv: cells are quoted as in CSV, and the quotes are taken off"]
    for number, row in enumerate(('"Hi"\t"Hallo"\n"Yes"\t"Ja"\n', 'en\tde\n"Hi"\t"Hallo"\n"Yes"\t"Ja"\n')):
        assert read(tmp_path / f"{number}.tsv", row) == [("Hi", "Hallo"), ("Yes", "Ja")]
    caplog.clear()
    for plain in (
        [('"Hello," he said, "friend"', '"Hallo"'), ("a", "b")],
        [('"Come here!"', '"Komm her!"')],
        [('"a ""b"" c"', "x"), ('an inch is 1"', "y")],
    ):
        assert read(tmp_path / "plain.tsv", "".join(f"{src}\t{tgt}\n" for src, tgt in plain)) == plain
    assert caplog.messages == []


def test_quotes_hide_delimiters_and_a_stray_quote_below_quoted_cells_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f'{number};"The radio, yes";"Das Radio"' for number in range(9)]
    assert error_of(tmp_path / "a.csv", "\n".join(rows)).message.startswith("a.csv has 3 columns")
    monkeypatch.setattr("nmt_cli.preparing.chunks.CHUNK_PAIRS", 2)
    stray = '"Yes," he said.\t"Ja", sagte er.'
    found = read(tmp_path / "a.tsv", f'"a ""b"""\t"x"\n"c"\t"y"\n{stray}\n')
    assert found == [('a "b"', "x"), ("c", "y"), ('"Yes," he said.', '"Ja", sagte er.')]


@pytest.mark.parametrize(
    "keys",
    [
        ("en", "de"),
        ("translation.en", "translation.de"),
        ("en-US", "de_DE"),
        ("src", "tgt"),
        ("paragraphs_of_the_whole_document_in_order.en", "paragraphs_of_the_whole_document_in_order.de"),
    ],
)
def test_keys_of_jsonl_and_columns_of_parquet_are_found_by_the_languages(tmp_path: Path, keys: tuple[str, str]) -> None:
    pairs = invented_pairs(30, seed=4)
    records = []
    for pair in pairs:
        record: dict[str, object] = {"id": 7}
        for key, text in zip(keys, pair, strict=True):
            outer, _, inner = key.rpartition(".")
            if outer:
                nested = record.setdefault(outer, {})
                assert isinstance(nested, dict)
                nested[inner] = text
            else:
                record[key] = text
        records.append(record)
    assert read(tmp_path / "a.jsonl", "".join(f"{json.dumps(record)}\n" for record in records)) == pairs
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), sink)
    assert read(tmp_path / "a.parquet", sink.getvalue()) == pairs


def test_a_blank_line_is_called_blank_and_line_ends_around_validation_text_go(tmp_path: Path) -> None:
    train = write_prefix(tmp_path / "text", invented_pairs(300, seed=3))
    files: dict[Split, Sequence[str]] = {"train": [train], "valid": [str(tmp_path / "v.jsonl")]}
    located = corpus_from_files(files, languages="en-de", name="x", overrides=["tokenizer.vocab_size=300"])
    record = json.dumps({"en": "Good day\n", "de": "\r\nGuten Tag"})
    (tmp_path / "v.jsonl").write_text(f"{record}\n\n")
    error = refusal(lambda: run(located, tmp_path / "data"))
    assert (error.message, error.where) == ("the valid text has a malformed record", "v.jsonl:2")
    assert error.hint == "that line is blank: remove it"
    (tmp_path / "v.jsonl").write_text(record)
    assert open_prepared(run(located, tmp_path / "data").directory).texts("valid") == (["Good day"], ["Guten Tag"])


def text_of(file: Path, **keys: object) -> tuple[list[str], list[str]]:
    """The sides of a file from English to German, as a corpus file with these keys takes it."""
    values = {"name": "x", "languages": {"source": "en", "target": "de"}, "train": [{"file": str(file), **keys}]}
    corpus = LocatedCorpus(Corpus.model_validate(values), file.parent)
    (chunk,) = read_chunks(fetch_inputs(corpus, progress=silent).sources["train"])
    return chunk.src, chunk.tgt


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "tsv", "csv"])
@pytest.mark.parametrize("names", [("text", "de"), ("en", "Text"), ("text", "target")])
def test_one_given_key_is_taken_and_the_other_found_by_its_language(
    tmp_path: Path, kind: str, names: tuple[str, str]
) -> None:
    record = {"other": "uno", names[1]: "eins", names[0]: "one"}
    match kind:
        case "jsonl":
            (tmp_path / "a").write_text(json.dumps(record))
        case "parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record]), tmp_path / "a")
        case _:
            rows = written_by_csv([list(record), list(record.values())], "\t" if kind == "tsv" else ",")
            (tmp_path / "a").write_text(rows)
    given = {"target": names[1]} if names[0] == "en" else {"source": names[0]}
    assert text_of(tmp_path / "a", kind=kind, **given) == (["one"], ["eins"])
    if kind in ("tsv", "csv"):
        by_number = {side: list(record).index(name) + 1 for side, name in given.items()}
        assert text_of(tmp_path / "a", kind=kind, **by_number) == (["one"], ["eins"])


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.po", "a.en"])
def test_a_line_is_bounded_however_it_is_compressed(tmp_path: Path, name: str) -> None:
    file = tmp_path / f"{name}.gz"
    file.write_bytes(gzip.compress(b"a\tb\n" + b"x" * 150_000_000, compresslevel=1))
    (tmp_path / "a.de").write_text("b\n" * 2)
    train = [str(tmp_path / "a" if name == "a.en" else file)]
    corpus = corpus_from_files({"train": train}, languages="en-de", name="x", overrides=[])
    with memory_below(100):
        error = refusal(lambda: list(read_chunks(fetch_inputs(corpus, progress=silent).sources["train"])))
    assert error.message == f"line 2 of {file.name} is longer than 1,048,576 bytes"
    assert error.where == f"{file}:2"
    assert error.hint == "give text with one sentence a line"


def test_the_longest_line_is_read_wherever_the_blocks_end(tmp_path: Path) -> None:
    longest = "x" * ((1 << 20) - 4)
    text = f"a\tb\n{longest}\tcd\ne\tf\n"
    assert read(tmp_path / "a.tsv", text) == [("a", "b"), (longest, "cd"), ("e", "f")]
    assert error_of(tmp_path / "a.tsv", text.replace("cd", "cdef")).where == f"{tmp_path / 'a.tsv'}:2"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_utf16_text_of_a_spreadsheet_is_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    text = 'one\tgrößer\r\n"two\nlines"\tzwei\r\n'.encode("utf-16")
    assert read(tmp_path / "a.tsv", pack(text)) == [("one", "größer"), ("two lines", "zwei")]


def test_lines_that_end_with_cr_alone_are_answered_with_the_command_that_converts_them(tmp_path: Path) -> None:
    error = error_of(tmp_path / "a.tsv", "en\tde\rone\teins\r")
    assert error.message == "the lines of a.tsv end with CR alone, as on old Macs"
    subprocess.run(error.hint, shell=True, check=True)
    assert (tmp_path / "lf-a.tsv").read_bytes() == b"en\tde\none\teins\n"


def test_several_training_files_of_any_kind_are_all_used(tmp_path: Path) -> None:
    parts: list[Pairs] = [invented_pairs(90, seed=seed) for seed in (1, 2, 3)]
    (tmp_path / "a.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in parts[0]))
    (tmp_path / "b.csv").write_text(written_by_csv(parts[1], ","))
    files = [str(tmp_path / "a.tsv"), str(tmp_path / "b.csv"), write_prefix(tmp_path / "c", parts[2])]
    (tmp_path / "t.tsv.xz").write_bytes(lzma.compress(b"one\teins\n"))
    tests = [str(tmp_path / "t.tsv.xz"), write_prefix(tmp_path / "u", [("two", "zwei")])]
    overrides = ["tokenizer.vocab_size=400", "cleaning.max_length_ratio=null"]
    corpus = corpus_from_files({"train": files, "test": tests}, languages="en-de", name="x", overrides=overrides)
    prepared = run(corpus, tmp_path / "data")
    assert prepared.report["pairs"] == {"train": 243, "valid": 27, "test": 2}
    assert (tmp_path / "data" / "test.de").read_text() == "eins\nzwei\n"
    inputs = open_prepared(prepared.directory).manifest.inputs
    assert [Path(one.name).name for one in inputs] == ["a.tsv", "b.csv", "c.en", "c.de", "t.tsv.xz", "u.en", "u.de"]
