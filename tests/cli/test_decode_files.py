"""Translating files: interrupted at any moment, continued at the last complete line, and never mixed up."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.cli.decode.command import decode
from nmt_cli.cli.decode.input import STANDARD, count_lines, open_input, read_blocks
from nmt_cli.cli.decode.output import PartialOutput
from nmt_cli.errors import DataError, UsageError
from nmt_cli.preparing.sources.lines import line_chunks
from nmt_cli.scoring.texts import read_text
from nmt_cli.text_encoding import check_encoding
from tests.artifacts.builders import save_tiny, tiny_recipe
from tests.cli.terminals import seen_in_terminal
from tests.forks import Forked, run_forked
from tests.waiting import wait_until

COMMAND = [sys.executable, "-m", "nmt_cli", "decode", "--device", "cpu", "--threads", "1"]
NUM_LINES = 3000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and a text whose lines are all different, some of them blank."""
    folder = tmp_path_factory.mktemp("bulk")
    save_tiny(folder / "model", spm_folder=folder, recipe=tiny_recipe(decoding={"beam": 2, "max_extra_tokens": 2}))
    lines = ["" if number % 17 == 0 else f"the old sea {number}" for number in range(NUM_LINES)]
    (folder / "text").write_text("".join(f"{line}\n" for line in lines))
    return folder


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_forked([*COMMAND, "-m", "model", "-i", "text", *options], cwd=folder)


def kill_when_begun(folder: Path, *options: str, output: str) -> bytes:
    """Start a translation, kill it by SIGKILL when a part is written; that part."""
    process = Forked[bytes]([*COMMAND, "-m", "model", "-i", "text", *options, "-o", output], cwd=folder)
    partial = folder / f"{output}.partial"
    wait_until(lambda: partial.exists() and partial.stat().st_size, process=process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return partial.read_bytes()


@pytest.mark.parametrize(
    "options", [(), ("--format", "tsv", "--nbest", "2"), ("--format", "jsonl", "--samples", "2", "--nbest", "2")]
)
def test_a_killed_translation_continues_at_its_last_complete_line(folder: Path, options: tuple[str, ...]) -> None:
    name = f"out-{len(options)}"
    assert run(folder, *options, "-o", f"{name}.whole").returncode == 0
    whole = (folder / f"{name}.whole").read_bytes()
    part = kill_when_begun(folder, *options, output=name)
    assert whole.startswith(part)
    assert 0 < len(part) < len(whole)
    # As if the kill had come in the middle of a line.
    with (folder / f"{name}.partial").open("r+b") as stream:
        stream.truncate(len(part) - 7)
    process = run(folder, *options, "-o", name)
    assert process.returncode == 0
    assert f"{folder}/{name}.partial has " in process.stderr
    assert "lines: going on after them" in process.stderr
    assert (folder / name).read_bytes() == whole
    assert not list(folder.glob(f"{name}.partial*"))


def test_what_was_begun_otherwise_is_not_continued(folder: Path, tmp_path: Path) -> None:
    kill_when_begun(folder, output="other")
    part = (folder / "other.partial").read_bytes()
    process = run(folder, "-o", "other", "--beam", "3")
    assert process.returncode == 2
    assert process.stderr.splitlines() == [
        f"error: {folder}/other.partial was begun with another beam",
        f"at:    {folder}/other.partial",
        "fix:   repeat the earlier command to continue it, or add --overwrite to begin anew",
    ]
    assert (folder / "other.partial").read_bytes() == part
    save_tiny(folder / "second", spm_folder=folder, seed=5)
    (folder / "copy").write_bytes((folder / "text").read_bytes() + b"one more\n")
    with pytest.raises(UsageError) as error:
        decode(model=[folder / "second"], source=folder / "copy", output=folder / "other", beam=2, max_extra_tokens=2)
    assert error.value.message == f"{folder}/other.partial was begun with another input, model 1"
    process = run(folder, "-o", "other", "--beam", "3", "--overwrite")
    assert process.returncode == 0
    assert "going on" not in process.stderr
    assert len((folder / "other").read_bytes().splitlines()) == NUM_LINES


def test_two_processes_do_not_write_one_file(folder: Path) -> None:
    process = Forked[bytes]([*COMMAND, "-m", "model", "-i", "text", "-o", "busy"], cwd=folder)
    try:
        wait_until((folder / "busy.partial").exists, process=process)
        with pytest.raises(DataError, match=f"another nmt decode writes this file: process {process.pid} on"):
            decode(model=[folder / "model"], source=folder / "text", output=folder / "busy", device="cpu")
    finally:
        process.kill()
        process.wait()


def test_complete_rows_are_told_from_the_last_ones(tmp_path: Path) -> None:
    unfinished = PartialOutput(tmp_path / "out")
    job = {"beam": 4, "format": "text"}
    assert unfinished.begin(job, may_replace=False) == 0
    unfinished.path.write_bytes(b"one\n\nthree\nfo")
    assert unfinished.begin(job, may_replace=False) == 3
    assert unfinished.path.read_bytes() == b"one\n\nthree\n"
    job = {"beam": 4, "format": "tsv"}
    assert unfinished.begin(job, may_replace=True) == 0
    unfinished.path.write_bytes(b"1\t1\ta\n1\t2\tb\n2\t1\tc\n2\t2")
    assert unfinished.begin(job, may_replace=False) == 1
    assert unfinished.path.read_bytes() == b"1\t1\ta\n1\t2\tb\n"
    unfinished.path.write_bytes(b"1\t1")
    assert unfinished.begin(job, may_replace=False) == 0
    assert unfinished.path.read_bytes() == b""
    record = json.loads((tmp_path / "out.partial.json").read_text())
    assert record == job
    unfinished.path.write_bytes(b"one\n")
    with pytest.raises(UsageError, match="begun with another beam, nbest"):
        unfinished.begin({"beam": 5, "nbest": 2, "format": "tsv"}, may_replace=False)


def test_the_lines_before_the_damage_of_a_compressed_file_are_translated(folder: Path) -> None:
    (folder / "damaged.gz").write_bytes(gzip.compress(b"the sea\n" + b"\n" * 80_000)[:-4])
    command = ["decode", "--device", "cpu", "--threads", "1", "-m", "model", "-i", "damaged.gz", "-o", "damaged"]
    lines = seen_in_terminal(command, columns=200, folder=folder, code=4)
    assert any(line.startswith("error: damaged.gz is not a whole gzip file") for line in lines)
    assert len((folder / "damaged.partial").read_bytes().splitlines()) >= 1000


def test_a_part_of_which_nothing_is_known_is_not_replaced_unasked(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out.partial").write_bytes(b"one\ntwo\n")
    for source in (folder / "text", Path("/dev/null")):
        with pytest.raises(UsageError) as error:
            decode(model=[folder / "model"], source=source, output=tmp_path / "out", device="cpu")
        assert error.value.message == (
            f"{tmp_path}/out.partial has translations of an earlier command, which this one cannot continue"
        )
        assert error.value.where == f"{tmp_path}/out.partial"
        assert error.value.hint == "rename it to keep them, or add --overwrite to begin anew"
        assert (tmp_path / "out.partial").read_bytes() == b"one\ntwo\n"
    decode(model=[folder / "model"], source=Path("/dev/null"), output=tmp_path / "out", overwrite=True, device="cpu")
    assert (tmp_path / "out").read_bytes() == b""
    assert not (tmp_path / "out.partial").exists()


def test_prefixes_of_another_length_are_refused_before_anything_is_translated(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a\nb\nc\n")
    (tmp_path / "prefixes").write_text("x\n")
    with pytest.raises(DataError, match=r"text has 3 lines, .*prefixes has 1") as error:
        decode(
            model=[folder / "model"],
            source=tmp_path / "text",
            prefix=tmp_path / "prefixes",
            output=tmp_path / "out",
            device="cpu",
        )
    assert error.value.where == "--prefix"
    assert error.value.hint == (
        "give one line of prefixes for each line of text; an empty one leaves its translation free"
    )
    assert not (tmp_path / "out.partial").exists()
    command = [*COMMAND, "-m", "model", "--prefix", str(tmp_path / "prefixes")]
    process = run_forked(command, cwd=folder, input="a\nb\n")
    assert process.returncode == 4
    assert f"error: {tmp_path / 'prefixes'} has fewer lines than the text" in process.stderr
    assert len(process.stdout.splitlines()) == 1


def test_prefixes_stay_beside_their_lines_when_continued(folder: Path) -> None:
    prefixes = [f"Haus {number % 7}" if number % 3 and number % 17 else "" for number in range(NUM_LINES)]
    (folder / "prefixes").write_text("".join(f"{prefix}\n" for prefix in prefixes))
    options = ("--prefix", "prefixes", "--beam", "1")
    assert kill_when_begun(folder, *options, output="prefixed")
    process = run(folder, *options, "-o", "prefixed")
    assert "lines: going on after them" in process.stderr
    lines = (folder / "prefixed").read_bytes().decode().split("\n")[:-1]
    assert len(lines) == NUM_LINES
    assert all(line.startswith(prefix) for line, prefix in zip(lines, prefixes, strict=True))


@pytest.mark.parametrize(("prefixes", "problem", "done"), [("am\nHaus\nsea\n", "more", 2), ("am\n", "fewer", 1)])
def test_an_output_with_too_many_or_too_few_prefixes_does_not_get_its_name(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, prefixes: str, problem: str, done: int
) -> None:
    source, prefix, output = (tmp_path / name for name in ("source", "prefix", "output"))
    os.mkfifo(source)
    threading.Thread(target=source.write_text, args=("the sea\nthe old sea\n",), daemon=True).start()
    prefix.write_text(prefixes)
    with pytest.raises(DataError, match=f"prefix has {problem} lines than the text"):
        decode(model=[folder / "model"], source=source, prefix=prefix, output=output, device="cpu")
    assert not output.exists()
    assert len((tmp_path / "output.partial").read_text().splitlines()) == done
    assert f"the translations so far are in {output}.partial" in caplog.messages


def test_an_output_named_as_compressed_is_refused_before_any_work(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"writes plain text, and .* is the name of a compressed file") as error:
        decode(model=[folder / "no model"], source=folder / "text", output=folder / "hyp.de.gz")
    assert (error.value.where, error.value.hint) == ("--output", f"-o {folder / 'hyp.de'}")


def test_a_damaged_input_is_not_taken_for_a_full_disk(folder: Path, tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"the old sea {number}\n" for number in range(100)).encode())
    for place in (-6, 40):  # the checksum at the end; the compressed text
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        (tmp_path / "text.gz").write_bytes(damaged)
        with pytest.raises(DataError, match=r"text\.gz is not a whole gzip file"):
            decode(model=[folder / "model"], source=tmp_path / "text.gz", output=tmp_path / "out", beam=1, device="cpu")


@pytest.mark.parametrize(
    ("options", "where", "message"),
    [
        ({"word_scores": True}, "--word-scores", "no room for --word-scores"),
        ({"temperature": 0.5}, "--temperature", "`temperature` is about sampling, and this is a search"),
        ({"samples": 2, "beam": 4}, "--beam", "sampling has no beam"),
        ({"beam": 301}, "--beam", "a beam of 301 is larger than the target vocabulary of 300 pieces"),
        ({"nbest": 3, "samples": 2, "form": "tsv"}, "--nbest", "`nbest: 3` needs `samples` of at least 3, but it is 2"),
        ({"engine": "marian"}, "--engine", "there is no engine called 'marian'"),
    ],
)
def test_options_that_make_no_sense(folder: Path, options: dict[str, Any], where: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        decode(model=[folder / "model"], source=folder / "text", device="cpu", **options)
    assert message in error.value.message
    assert (error.value.where or f"--{str(error.value.setting).replace('_', '-')}") == where
    assert error.value.hint


def test_lines_that_trickle_in_are_answered_while_more_come(folder: Path) -> None:
    """A line every 2 ms, with no pause: the first answer comes long before the last line."""
    process = Forked[bytes](
        [*COMMAND, "-m", "model", "--beam", "1"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    answered = 0
    try:
        for number in range(30_000):
            process.stdin.write(f"the sea {number}\n".encode())
            process.stdin.flush()
            time.sleep(0.002)
            if process.stdout.read():
                answered = number
                break
    finally:
        process.kill()
        process.wait()
    assert 0 < answered < 29_000


def blocks(chunks: list[bytes], *, max_lines: int = 100, more: list[bool] | None = None) -> Iterator[list[str]]:
    answers = iter(more or [])
    return read_blocks(chunks, has_more=lambda: next(answers, True), max_lines=max_lines, name="stdin", errors="strict")


@given(
    st.lists(st.text(st.characters(exclude_characters="\0\n\r\ufeff", exclude_categories=["Cs"]))),
    st.booleans(),
    st.integers(1, 7),
    st.integers(1, 4),
    st.lists(st.booleans()),
)
def test_lines_survive_any_chunks_and_blocks(
    lines: list[str], ends_in_newline: bool, chunk_bytes: int, max_lines: int, more: list[bool]
) -> None:
    data = "".join(line + "\n" for line in lines).encode()
    if not ends_in_newline and lines and lines[-1]:
        data = data[:-1]
    chunks = [data[start : start + chunk_bytes] for start in range(0, len(data), chunk_bytes)]
    found = list(blocks(chunks, max_lines=max_lines, more=more))
    assert [line for block in found for line in block] == lines
    assert all(0 < len(block) <= max_lines for block in found)


def test_a_line_is_given_before_the_next_is_waited_for() -> None:
    waited = []

    def chunks() -> Iterator[bytes]:
        for chunk in (b"one\ntw", b"o\nthree\n"):
            waited.append(chunk)
            yield chunk

    found = read_blocks(chunks(), has_more=lambda: False, max_lines=100, name="stdin", errors="strict")
    assert next(found) == ["one"]
    assert len(waited) == 1
    assert list(found) == [["two", "three"]]


def test_a_stream_that_does_not_block_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)

    def write_later() -> None:
        time.sleep(0.2)
        os.write(writer, b"the sea\n")
        os.close(writer)

    with os.fdopen(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        threading.Thread(target=write_later).start()
        with open_input(STANDARD, is_streamed=False, errors="strict") as lines:
            assert list(lines) == [["the sea"]]


def test_line_ends_of_other_systems_and_a_byte_order_mark_are_no_text() -> None:
    assert list(blocks([b"\xef\xbb\xbfone\r\n", b"\r\n", "Zeile\u2028zwei\x0b\n".encode()])) == [
        ["one", "", "Zeile\u2028zwei\x0b"]
    ]


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_a_file_of_any_system_has_its_lines(tmp_path: Path, end: str) -> None:
    lines = ["one house", "", "two", "三"]
    for text in (end.join(lines), end.join([*lines, ""])):
        (tmp_path / "my.txt").write_bytes(text.encode())
        with open_input(tmp_path / "my.txt", is_streamed=False, errors="strict") as found:
            assert [line for block in found for line in block] == lines
        assert [line for block in blocks([text.encode()]) for line in block] == lines
        assert count_lines(tmp_path / "my.txt") == 4
        byte_by_byte = [bytes([byte]) for byte in text.encode()]
        assert [line for block in blocks(byte_by_byte) for line in block] == lines


def test_a_line_that_is_not_utf8_is_named_after_those_before_it() -> None:
    found = blocks([b"one\n", b"two\nthree\n", b"f\xfcnf\nsix\n"], max_lines=2)
    assert next(found) == ["one", "two"]
    assert next(found) == ["three"]
    with pytest.raises(DataError, match=r"(?m)^line 4 is not UTF-8: it has the byte 0xfc$") as error:
        next(found)
    assert error.value.where == "stdin:4"
    assert error.value.hint == (
        "if the text is Latin-1 or Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 < FILE > NEW; "
        "or --errors replace, which writes U+FFFD for each such byte"
    )


def test_compressed_bytes_are_called_so() -> None:
    data = gzip.compress(b"one\ntwo\n", mtime=0)
    with pytest.raises(DataError, match=r"(?m)^stdin is compressed by gzip, not text$") as error:
        list(blocks([data]))
    assert error.value.hint == "give it as a file, or uncompress it first: zcat FILE"
    with pytest.raises(DataError, match=r"^stdin is not text"):
        list(blocks([b"one\n" + data]))


@pytest.mark.parametrize(
    "encode",
    [
        gzip.compress,
        bz2.compress,
        lzma.compress,
        zstandard.ZstdCompressor().compress,
        lambda text: text.decode().encode("utf-16"),
        lambda text: codecs.BOM_UTF16_BE + text.decode().encode("utf-16-be"),
        lambda text: bz2.compress(text.decode().encode("utf-32")),
    ],
    ids=["gzip", "bzip2", "xz", "zstd", "UTF-16", "UTF-16BE", "UTF-32 in bzip2"],
)
def test_files_are_read_by_their_first_bytes_in_prepare_decode_and_score(
    tmp_path: Path, encode: Callable[[bytes], bytes]
) -> None:
    text = "größe\u2028 one\n" * 3_000 + "😀\n"
    (tmp_path / "x.txt").write_bytes(encode(text.encode()))
    with open_input(tmp_path / "x.txt", is_streamed=False, errors="strict") as found:
        assert [line for block in found for line in block] == text.split("\n")[:-1]
    assert [line for _, lines in line_chunks(tmp_path / "x.txt") for line in lines] == text.split("\n")[:-1]
    assert read_text(str(tmp_path / "x.txt"), stdin=None).lines == text.split("\n")[:-1]


def test_files_that_are_no_utf8_are_answered_alike_by_prepare_decode_and_score(tmp_path: Path) -> None:
    data, file = "one\ntwo\n".encode("utf-16-le"), tmp_path / "x.txt"
    file.write_bytes(data)

    def decode_reads() -> None:
        with open_input(file, is_streamed=False, errors="strict") as found:
            list(found)

    for read in (decode_reads, lambda: list(line_chunks(file)), lambda: read_text(str(file), stdin=None)):
        with pytest.raises(DataError) as error:
            read()
        assert (error.value.message, error.value.where) == ("x.txt is UTF-16LE, not UTF-8", str(file))
        subprocess.run(error.value.hint, shell=True, check=True)
    assert (tmp_path / "utf8-x.txt").read_text(encoding="utf-8") == "one\ntwo\n"
    with pytest.raises(DataError, match="stdin is UTF-16LE, not UTF-8"):
        list(blocks([data]))
    with pytest.raises(DataError, match="stdin is UTF-16LE, not UTF-8"):
        read_text("-", stdin=io.TextIOWrapper(io.BytesIO(data)))


def test_documents_are_not_called_compressed(tmp_path: Path) -> None:
    hints = {"my.docx": "give it as a document, with its ending: nmt decode", "my.xlsx": "save it as plain text"}
    for name, hint in hints.items():
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("[Content_Types].xml", "one")
        with (
            pytest.raises(DataError, match=rf"{name} is a document, not (lines of )?text") as error,
            open_input(tmp_path / name, is_streamed=False, errors="strict") as text,
        ):
            list(text)
        assert error.value.hint.startswith(hint)
    with pytest.raises(DataError, match="stdin is a document, not text"):
        list(blocks([b"%PDF-1.7\n"]))
    check_encoding(b"PDF is a format, %PDF- its beginning\n", name="x.txt")


STRUCTURED = {
    "my.tmx": '<?xml version="1.0"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4">',
    "my.xlf": '<xliff version="1.2"><file><body>',
    "my.po": '# A comment\nmsgid ""\nmsgstr ""\n"Language: de\\n"\n',
    "my.srt": "1\r\n00:00:01,000 --> 00:00:02,500\r\none\r\n",
    "my.vtt": "WEBVTT - a film\n\n00:01.000 --> 00:02.500 align:start\none\n",
    "my.tsv": "one\teins\ntwo\tzwei\n",
    "my.csv.gz": "one;eins\ntwo;zwei\n",
    "my.jsonl": '{"text": "one"}\n',
    "my.json": '[\n  "one",\n  "two"\n]\n',
    "my.html": "<!DOCTYPE html>\n<html><head>",
    "page.txt": "<!-- x -->\n<HTML lang='en'>\n<body>\n<p>one</p>",
    "my.xml": '<?xml version="1.0"?>\n<r><s>one</s></r>',
}


@pytest.mark.parametrize("name", STRUCTURED)
def test_a_file_with_more_than_a_text_is_refused(tmp_path: Path, name: str) -> None:
    text, kind = STRUCTURED[name], "JSON" if "json" in name else "a document"
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    with (
        pytest.raises(DataError, match=re.escape(f"{name} is {kind}, not lines of text")),
        open_input(tmp_path / name, is_streamed=False, errors="strict"),
    ):
        pytest.fail("it is opened")
    if name in ("my.tsv", "my.csv.gz"):  # text on stdin may have tabs and commas
        assert sum(map(len, blocks([text.encode()]))) == text.count("\n")
    else:
        with pytest.raises(DataError, match=re.escape(f"stdin is {kind}, not lines of text")):
            list(blocks([text.encode()]))


ENDINGS = (".txt", ".en", "", ".tmx", ".po", ".xlf", ".tsv", ".csv", ".jsonl", ".srt", ".vtt")


@pytest.mark.parametrize("name", [f"my{ending}" for ending in ENDINGS])
def test_lines_of_text_are_read_whatever_the_file_is_called(tmp_path: Path, name: str) -> None:
    beginnings = ("<b>two</b> tmx\n", "msgid is a word\n", "<?xml is how it begins\n", "WEBVTT is a format\n")
    brackets = (
        "{0} files\n",
        "[Music] one\n",
        '["Yes" she said]\n',
        '{"x"} is a set\n',
        "<html> is a tag\n",
        "[1] one\n",
    )
    for text in ("", "\n", "one house\n", "1\n2 --> 3\n", *beginnings, *brackets):
        (tmp_path / name).write_text(text)
        with open_input(tmp_path / name, is_streamed=False, errors="strict") as found:
            assert [line for block in found for line in block] == text.splitlines()
        assert [line for block in blocks([text.encode()] if text else []) for line in block] == text.splitlines()


def test_what_is_no_text_is_not_taken_for_another_encoding() -> None:
    program = Path(sys.executable).read_bytes()[:3000]
    with pytest.raises(DataError, match=r"^stdin is not text: it holds control characters such as ") as error:
        list(blocks([program]))
    assert error.value.hint == "give a text file"
    with pytest.raises(DataError, match="line 2 is not UTF-8") as error:
        list(blocks([b"one\na\x1b[1m caf\xe9\x1b[0m\n"]))
    assert "--errors replace" in error.value.hint


def test_bytes_that_are_not_utf8_can_be_replaced(caplog: pytest.LogCaptureFixture) -> None:
    chunks = [b"one\n", b"f\xfcnf\n", b"sechs\xff\n"]
    found = read_blocks(chunks, has_more=lambda: True, max_lines=2, name="stdin", errors="replace")
    assert [line for block in found for line in block] == ["one", "f\ufffdnf", "sechs\ufffd"]
    assert [record.getMessage() for record in caplog.records] == [
        "line 2 of stdin is not UTF-8: such bytes are replaced by U+FFFD, in later lines too"
    ]


def test_text_in_pieces_is_told_with_the_command_that_joins_them(caplog: pytest.LogCaptureFixture) -> None:
    words, pieces = [b"a house\n"] * 3, [b"a ho@@ use\n"] * 3
    for chunks in (words + pieces[:2], pieces):
        list(read_blocks(chunks, has_more=lambda: True, max_lines=9, name="a text", errors="strict"))
    assert [record.getMessage() for record in caplog.records] == [
        "a text is cut into pieces ('@@ ' in 'a ho@@ use'), but the model cuts words itself; join them first: "
        "sed -r 's/@@( |$)//g' < FILE"
    ]
