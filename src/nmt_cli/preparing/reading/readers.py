"""Readers: the pairs of local files in chunks of bytes, so that memory does not grow with the corpus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

from nmt_cli.errors import DataError
from nmt_cli.files import open_bytes
from nmt_cli.preparing.reading.chunks import (
    CHUNK_PAIRS,
    Chunk,
    RawChunk,
    RawColumns,
    RawPairs,
    RawRecords,
    RawTable,
    RawText,
)
from nmt_cli.preparing.reading.tables import num_rows, table_batches
from nmt_cli.preparing.sources.kinds import DemoGenerator, Split

if TYPE_CHECKING:
    from nmt_cli.preparing.demo.sampling import DemoCorpus


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Two aligned files of plain text, one sentence a line; also .gz and .zst."""

    source: Path
    target: Path
    origin: str
    weight: float


@dataclass(frozen=True, slots=True)
class TsvFile:
    """Two columns of a file of tab-separated columns, counted from 1."""

    file: Path
    source: int
    target: int
    header: bool
    origin: str
    weight: float


@dataclass(frozen=True, slots=True)
class JsonlFile:
    """Two keys, dotted where nested, of the JSON objects in a file."""

    file: Path
    source: str
    target: str
    origin: str
    weight: float


@dataclass(frozen=True, slots=True)
class TableFile:
    """Two columns, dotted where nested, of a parquet file, or of another kind of file that `datasets` reads.

    `builder` is the name of the module of `datasets` for that kind, `options` its settings where they are not the
    usual ones, as (name, value).
    """

    file: Path
    source: str
    target: str
    origin: str
    weight: float
    builder: str = "parquet"
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """A split of the built-in grammar."""

    generator: DemoGenerator
    split: Split
    origin: str
    weight: float


LocalSource: TypeAlias = TextFiles | TsvFile | JsonlFile | TableFile | GeneratedText


def read_raw(source: LocalSource) -> Iterator[RawChunk]:
    """The pairs of a source in chunks of `CHUNK_PAIRS`, of which only the last may be shorter; no text is decoded.

    DataError where it cannot be read, is empty, or its sides are not aligned.
    """
    match source:
        case TextFiles():
            return _read_text(source)
        case TsvFile():
            return _read_tsv(source)
        case JsonlFile():
            return _read_jsonl(source)
        case TableFile():
            return _read_table(source)
        case GeneratedText():
            return _generated(source)
        case _:
            assert_never(source)


def read_chunks(sources: Sequence[LocalSource]) -> Iterator[Chunk]:
    """The pairs of sources, one after another, as text."""
    for source in sources:
        for raw in read_raw(source):
            yield raw.parse()


def first_pairs(raw: RawChunk, number: int) -> RawChunk:
    """The first so many pairs of a chunk, or all of it where it has no more."""
    return raw if raw.num_pairs <= number else replace(raw, num_pairs=number)


def count_pairs(source: LocalSource, *, most: int) -> int:
    """How many pairs a source has, or `most` where it has more; of a large one no more is read than that takes."""
    if isinstance(source, TableFile) and source.builder == "parquet":
        return min(num_rows(source.file), most)
    number = 0
    for raw in read_raw(source):
        number += raw.num_pairs
        if number >= most:
            return most
    return number


def _read_text(source: TextFiles) -> Iterator[RawChunk]:
    src_chunks, tgt_chunks = _line_chunks(source.source), _line_chunks(source.target)
    first_line = 1
    for src in src_chunks:
        tgt = next(tgt_chunks, [])
        if len(src) != len(tgt):
            sides = [(src, src_chunks), (tgt, tgt_chunks)]
            raise _misaligned(source, [first_line - 1 + len(lines) + sum(map(len, rest)) for lines, rest in sides])
        yield RawText(b"".join(src), b"".join(tgt), len(src), first_line, source.origin)
        first_line += len(src)
    if more := sum(map(len, tgt_chunks)):
        raise _misaligned(source, [first_line - 1, first_line - 1 + more])
    if first_line == 1:
        raise _empty(source.source)


def _read_tsv(source: TsvFile) -> Iterator[RawChunk]:
    number = 1 + source.header
    for lines in _line_chunks(source.file, skip=int(source.header)):
        if number == 1 + source.header:
            _check_columns(lines, source)
        yield RawColumns(b"".join(lines), source.source, source.target, len(lines), number, source.origin)
        number += len(lines)
    if number == 1 + source.header:
        raise _empty(source.file)


def _check_columns(lines: Sequence[bytes], source: TsvFile) -> None:
    """DataError where no line has a tabulator, though a second column is asked for."""
    if max(source.source, source.target) == 1 or any(b"\t" in line for line in lines):
        return
    separators = {b"|||": "by |||", b"  ": "by spaces", b";": "by semicolons", b",": "by commas"}
    found = next((name for separator, name in separators.items() if all(separator in line for line in lines)), None)
    seems = f"; these seem to be separated {found}: put one tabulator in place of each separator" if found else ""
    raise DataError(
        f"{source.file.name} has no columns: there is no tabulator in its first {len(lines):,} lines",
        where=f"{source.file}:{1 + source.header}",
        hint=f"kind: tsv takes columns with one tabulator between them{seems}",
    )


def _read_jsonl(source: JsonlFile) -> Iterator[RawChunk]:
    number = 1
    for lines in _line_chunks(source.file):
        yield RawRecords(b"".join(lines), source.source, source.target, len(lines), number, source.origin)
        number += len(lines)
    if number == 1:
        raise _empty(source.file)


def _line_chunks(file: Path, *, skip: int = 0) -> Iterator[list[bytes]]:
    """The lines of a file after the first `skip`, so many at a time."""
    with open_bytes(file) as stream:
        for _ in islice(stream, skip):
            pass
        while lines := list(islice(stream, CHUNK_PAIRS)):
            yield lines


def _read_table(source: TableFile) -> Iterator[RawChunk]:
    first_row = 1
    batches = table_batches(
        source.file,
        columns=(source.source, source.target),
        rows=CHUNK_PAIRS,
        builder=source.builder,
        options=dict(source.options),
    )
    for batch in batches:
        yield RawTable(batch.data, batch.num_rows, first_row, source.origin)
        first_row += batch.num_rows
    if first_row == 1:
        raise _empty(source.file)


def _generated(source: GeneratedText) -> Iterator[RawChunk]:
    demo = _demo(source.generator)
    pairs = {"train": demo.train, "valid": demo.valid, "test": demo.test}[source.split]
    for start in range(0, len(pairs), CHUNK_PAIRS):
        src, tgt = zip(*pairs[start : start + CHUNK_PAIRS], strict=True)
        yield RawPairs(src, tgt, len(src), start + 1, source.origin)


@lru_cache(maxsize=1)
def _demo(generator: DemoGenerator) -> DemoCorpus:
    from nmt_cli.preparing.demo.sampling import generate

    return generate(
        seed=generator.seed,
        num_train=generator.train_pairs,
        num_valid=generator.valid_pairs,
        num_test=generator.test_pairs,
    )


def _misaligned(source: TextFiles, num_lines: Sequence[int]) -> DataError:
    files = (source.source, source.target)
    counts = [f"{file.name} has {number:,}" for file, number in zip(files, num_lines, strict=True)]
    return DataError(
        f"{counts[0]} lines, {counts[1]}",
        where=f"{source.source}, {source.target}",
        hint="align the files line by line, then run nmt prepare again",
    )


def _empty(file: Path) -> DataError:
    return DataError(f"{file.name} is empty", where=str(file), hint="give a file with one sentence a line")
