"""Blocks of lines out of chunks of bytes."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.decoding.reading import read_blocks
from nmt_cli.errors import DataError


def blocks(chunks: list[bytes], *, max_lines: int = 100, more: list[bool] | None = None) -> Iterator[list[str]]:
    answers = iter(more or [])
    return read_blocks(chunks, has_more=lambda: next(answers, True), max_lines=max_lines, name="stdin")


@given(
    st.lists(st.text(st.characters(exclude_characters="\n\r\ufeff", exclude_categories=["Cs"]))),
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

    found = read_blocks(chunks(), has_more=lambda: False, max_lines=100, name="stdin")
    assert next(found) == ["one"]
    assert len(waited) == 1
    assert list(found) == [["two", "three"]]


def test_line_ends_of_other_systems_and_a_byte_order_mark_are_no_text() -> None:
    assert list(blocks([b"\xef\xbb\xbfone\r\n", b"\r\n", "Zeile\u2028zwei\x0b\n".encode()])) == [
        ["one", "", "Zeile\u2028zwei\x0b"]
    ]


def test_a_line_that_is_not_utf8_is_named_after_those_before_it() -> None:
    found = blocks([b"one\n", b"two\nthree\n", b"f\xfcnf\nsix\n"], max_lines=2)
    assert next(found) == ["one", "two"]
    assert next(found) == ["three"]
    with pytest.raises(DataError, match=r"^line 4 is not UTF-8: it has the byte 0xfc$") as error:
        next(found)
    assert error.value.where == "stdin:4"
    assert "iconv -f LATIN1 -t UTF-8" in error.value.hint


@pytest.mark.parametrize(
    ("data", "program", "fix"),
    [
        (gzip.compress(b"one\ntwo\n", mtime=0), "gzip", "name ends in .gz, or uncompress it first: zcat FILE"),
        (b"\x28\xb5\x2f\xfd\x04\n", "zstd", "name ends in .zst, or uncompress it first: zstdcat FILE"),
    ],
    ids=["gzip", "zstd"],
)
def test_compressed_bytes_are_called_so(data: bytes, program: str, fix: str) -> None:
    with pytest.raises(DataError, match=f"^stdin is compressed by {program}, not text$") as error:
        list(blocks([data]))
    assert error.value.where == "stdin"
    assert error.value.hint == f"give it with -i, as a file whose {fix}"
    with pytest.raises(DataError, match=r"^line 2 is not UTF-8"):
        list(blocks([b"one\n" + data]))


def test_a_long_line_comes_in_many_chunks() -> None:
    stream = io.BytesIO(b"x" * 1_000_000 + b"\ny")
    assert [len(line) for block in blocks(list(iter(lambda: stream.read(1000), b""))) for line in block] == [
        1_000_000,
        1,
    ]
