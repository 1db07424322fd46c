"""Tables with a pair of sentences per row: tab-separated columns, JSON objects, and parquet."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from nmt_cli.console import Progress
from nmt_cli.errors import DataError
from nmt_cli.files import reading_errors
from nmt_cli.preparing import chunks
from nmt_cli.preparing.chunks import JsonlChunk, RawChunk, TableChunk, TsvChunk
from nmt_cli.preparing.sources.base import (
    FILE,
    WEIGHT,
    LocalPairs,
    Location,
    Source,
    Weight,
    download_unchecked,
    empty_file,
    is_address,
    matching_files,
)
from nmt_cli.preparing.sources.text import line_chunks
from nmt_cli.recipe.schema import PositiveInt

if TYPE_CHECKING:
    import pyarrow


class _OneFileSource(Source):
    """A source whose two sides are in one file, or in each file that matches a pattern."""

    file: str = Field(description=FILE)

    @abstractmethod
    def local_pairs(self, file: Path, name: str, at: Location) -> LocalPairs:
        """One of the files; `name` is its name in records."""

    def describe(self) -> list[str]:
        """The address of the file."""
        return [self.file] if is_address(self.file) else []

    def files(self, at: Location) -> list[Path]:
        """The file, or the files that match the pattern."""
        return [] if is_address(self.file) else matching_files(self.file, folder=at.folder)

    def key(self) -> dict[str, Any]:
        """How the file is read, and its address."""
        return self.key_without(*([] if is_address(self.file) else ["file"]))

    def fetch(self, at: Location, *, progress: Progress) -> Iterator[LocalPairs]:
        """The file, or the files that match the pattern."""
        if is_address(self.file):
            yield self.local_pairs(download_unchecked(self.file, progress=progress), self.file, at)
            return
        for path in matching_files(self.file, folder=at.folder):
            yield self.local_pairs(path, at.name(path), at)


class TsvSource(_OneFileSource):
    """A file of tab-separated columns, without quoting; plain, .gz or .zst."""

    kind: Literal["tsv"] = Field(description="two columns of one file")
    source: PositiveInt = Field(1, description="column of the source, counted from 1")
    target: PositiveInt = Field(2, description="column of the target")
    header: bool = Field(False, description="the first line names the columns")
    weight: Weight = Field(1.0, description=WEIGHT)

    def local_pairs(self, file: Path, name: str, at: Location) -> TsvFile:
        """The two columns of a file."""
        return TsvFile(((name, file),), file.name, self.weight, file, self.source, self.target, self.header)


class JsonlSource(_OneFileSource):
    """A file with one JSON object per line; plain, .gz or .zst."""

    kind: Literal["jsonl"] = Field(description="two keys of the objects in one file")
    source: str | None = Field(None, description="key of the source, dotted where nested; null: its language code")
    target: str | None = Field(None, description="key of the target; null: its language code")
    weight: Weight = Field(1.0, description=WEIGHT)

    def local_pairs(self, file: Path, name: str, at: Location) -> JsonlFile:
        """The two keys of a file."""
        keys = (self.source or at.languages.source, self.target or at.languages.target)
        return JsonlFile(((name, file),), file.name, self.weight, file, *keys)


class ParquetSource(_OneFileSource):
    """A parquet file."""

    kind: Literal["parquet"] = Field(description="two columns of one file")
    source: str | None = Field(None, description="column of the source, dotted where nested; null: translation.CODE")
    target: str | None = Field(None, description="column of the target; null: translation.CODE")
    weight: Weight = Field(1.0, description=WEIGHT)

    def local_pairs(self, file: Path, name: str, at: Location) -> TableFile:
        """The two columns of a file."""
        columns = translation_columns(self.source, self.target, at)
        return TableFile(((name, file),), file.name, self.weight, file, *columns)


def translation_columns(source: str | None, target: str | None, at: Location) -> tuple[str, str]:
    """The given columns, or else the columns of the two languages in a data set of the hub."""
    return source or f"translation.{at.languages.source}", target or f"translation.{at.languages.target}"


@dataclass(frozen=True, slots=True)
class TsvFile(LocalPairs):
    """Two columns of a file of tab-separated columns, counted from 1."""

    file: Path
    source: int
    target: int
    header: bool

    def read(self) -> Iterator[RawChunk]:
        """The lines below the header. DataError if there is no tabulator, though a second column is asked for."""
        number = 1 + self.header
        for lines in line_chunks(self.file, skip=int(self.header)):
            if number == 1 + self.header:
                self._check_columns(lines)
            yield TsvChunk(b"".join(lines), self.source, self.target, len(lines), number, self.origin)
            number += len(lines)
        if number == 1 + self.header:
            raise empty_file(self.file)

    def _check_columns(self, lines: Sequence[bytes]) -> None:
        if max(self.source, self.target) == 1 or any(b"\t" in line for line in lines):
            return
        separators = {b"|||": "by |||", b"  ": "by spaces", b";": "by semicolons", b",": "by commas"}
        found = next((name for separator, name in separators.items() if all(separator in line for line in lines)), None)
        seems = f"; these seem to be separated {found}: put one tabulator in place of each separator" if found else ""
        raise DataError(
            f"{self.file.name} has no columns: there is no tabulator in its first {len(lines):,} lines",
            where=f"{self.file}:{1 + self.header}",
            hint=f"kind: tsv takes columns with one tabulator between them{seems}",
        )


@dataclass(frozen=True, slots=True)
class JsonlFile(LocalPairs):
    """Two keys, dotted where nested, of the JSON objects in a file."""

    file: Path
    source: str
    target: str

    def read(self) -> Iterator[RawChunk]:
        """The lines of the file."""
        number = 1
        for lines in line_chunks(self.file):
            yield JsonlChunk(b"".join(lines), self.source, self.target, len(lines), number, self.origin)
            number += len(lines)
        if number == 1:
            raise empty_file(self.file)


@dataclass(frozen=True, slots=True)
class TableFile(LocalPairs):
    """Two columns, dotted where nested, of a parquet file, or of another kind of file that `datasets` reads.

    `builder` is the name of the module of `datasets` for that kind; `options` are its settings that differ from the
    usual ones, as (name, value).
    """

    file: Path
    source: str
    target: str
    builder: str = "parquet"
    options: tuple[tuple[str, Any], ...] = ()

    def count(self, *, most: int) -> int:
        """The number of rows: of a parquet file from its footer, without reading it."""
        if self.builder == "parquet":
            return min(_num_rows(self.file), most)
        return LocalPairs.count(self, most=most)

    def read(self) -> Iterator[RawChunk]:
        """The rows of the file. DataError lists its columns if it has no such columns of text."""
        import pyarrow

        first_row, waiting, num_waiting = 1, list[pyarrow.RecordBatch](), 0
        for batch in self._batches():
            sides = [_text_column(batch, key, self.file) for key in (self.source, self.target)]
            waiting.append(pyarrow.record_batch(sides, names=["source", "target"]))
            num_waiting += batch.num_rows
            while num_waiting >= chunks.CHUNK_PAIRS:
                table = pyarrow.Table.from_batches(waiting)
                yield _packed(table.slice(0, chunks.CHUNK_PAIRS), first_row, self.origin)
                first_row, num_waiting = first_row + chunks.CHUNK_PAIRS, num_waiting - chunks.CHUNK_PAIRS
                waiting = table.slice(chunks.CHUNK_PAIRS).to_batches()
        if num_waiting:
            yield _packed(pyarrow.Table.from_batches(waiting), first_row, self.origin)
        elif first_row == 1:
            raise empty_file(self.file)

    def _batches(self) -> Iterator[pyarrow.RecordBatch]:
        if self.builder == "parquet":
            return _parquet_batches(self.file, (self.source, self.target))
        return _batches_by_datasets(self.file, self.builder, dict(self.options))


def _num_rows(file: Path) -> int:
    import pyarrow.parquet

    with _table_errors(file), pyarrow.parquet.ParquetFile(file) as table:
        return int(table.metadata.num_rows)


def _parquet_batches(file: Path, keys: tuple[str, str]) -> Iterator[pyarrow.RecordBatch]:
    """The columns of the keys, so that others, such as images, are not read; all columns if a key has none."""
    import pyarrow.parquet

    with _table_errors(file), pyarrow.parquet.ParquetFile(file) as table:
        there = table.schema_arrow.names
        wanted = list(dict.fromkeys(key if key in there else key.partition(".")[0] for key in keys))
        columns = wanted if set(wanted) <= set(there) else None
        yield from table.iter_batches(batch_size=chunks.CHUNK_PAIRS, columns=columns)


def _batches_by_datasets(file: Path, builder: str, options: Mapping[str, Any]) -> Iterator[pyarrow.RecordBatch]:
    import datasets

    with _table_errors(file):
        data = datasets.load_dataset(builder, data_files=[str(file)], split="train", streaming=True, **options)
        for table in data.with_format("arrow").iter(batch_size=chunks.CHUNK_PAIRS):
            yield from table.combine_chunks().to_batches()


@contextmanager
def _table_errors(file: Path) -> Iterator[None]:
    try:
        with reading_errors(file):
            yield
    except (DataError, MemoryError):
        raise
    except Exception as problem:  # the libraries below raise errors of a dozen unrelated classes
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise DataError(
            f"{file.name} cannot be read as a table: {reason}", where=str(file), hint="fetch it again"
        ) from problem


def _text_column(batch: pyarrow.RecordBatch, key: str, file: Path) -> pyarrow.Array:
    """The column at a dotted key, as strings."""
    import pyarrow

    name, *fields = [key] if key in batch.schema.names else key.split(".")
    if name not in batch.schema.names:
        raise _no_such_column(key, batch.schema, file)
    values = batch.column(name)
    for field in fields:
        if not pyarrow.types.is_struct(values.type) or field not in [one.name for one in values.type]:
            raise _no_such_column(key, batch.schema, file)
        values = values.field(field)
    kind = values.type.value_type if pyarrow.types.is_dictionary(values.type) else values.type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or pyarrow.types.is_null(kind)):
        raise _no_such_column(key, batch.schema, file)
    return values.cast(pyarrow.string())


def _no_such_column(key: str, schema: pyarrow.Schema, file: Path) -> DataError:
    there = [f"{path} ({kind})" for column in schema for path, kind in _leaves(column, "")]
    return DataError(
        f"{file.name} has no column of text {key}",
        where=str(file),
        hint=f"set source and target to two of its columns: {', '.join(there)}",
    )


def _leaves(column: pyarrow.Field, prefix: str) -> Iterator[tuple[str, str]]:
    """The dotted names of the columns in a column, each with its type."""
    import pyarrow

    path = f"{prefix}{column.name}"
    if pyarrow.types.is_struct(column.type):
        for inner in column.type:
            yield from _leaves(inner, f"{path}.")
    else:
        yield path, str(column.type)


def _packed(table: pyarrow.Table, first_row: int, origin: str) -> TableChunk:
    """The rows as an Arrow IPC stream, which is cheap to send to another process."""
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return TableChunk(sink.getvalue().to_pybytes(), table.num_rows, first_row, origin)
