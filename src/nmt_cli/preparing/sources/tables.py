"""Tables with a pair of sentences per row: tab-separated columns, JSON objects, and parquet."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
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
from nmt_cli.preparing.download import download_file
from nmt_cli.preparing.sources.base import (
    LocalPairs,
    Location,
    Source,
    Weight,
    empty_file,
    first_line,
    is_address,
    matching_files,
)
from nmt_cli.preparing.sources.text import line_chunks
from nmt_cli.recipe.schema import PositiveInt

if TYPE_CHECKING:
    import pyarrow

_SEPARATORS = {b"|||": "by |||", b"  ": "by spaces", b";": "by semicolons", b",": "by commas"}


class _OneFileSource(Source):
    """A source whose two sides are in one file, or in each file that matches a pattern."""

    file: str = Field(description="path of the file, or a pattern such as parts/*")

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
        return self.model_dump(exclude=set() if is_address(self.file) else {"file"})

    def fetch(self, at: Location, *, progress: Progress) -> Iterator[LocalPairs]:
        """The file, or the files that match the pattern."""
        if is_address(self.file):
            file = download_file(self.file, size=None, sha256=None, progress=progress)
            yield self.local_pairs(file, self.file, at)
        for path in self.files(at):
            yield self.local_pairs(path, at.name(path), at)


class TsvSource(_OneFileSource):
    """A file of tab-separated columns, without quoting; plain, .gz or .zst."""

    kind: Literal["tsv"] = Field(description="two columns of one file")
    source: PositiveInt = Field(1, description="column of the source, counted from 1")
    target: PositiveInt = Field(2, description="column of the target")
    header: bool = Field(False, description="the first line names the columns")
    weight: Weight = 1.0

    def local_pairs(self, file: Path, name: str, at: Location) -> TsvFile:
        """The two columns of a file."""
        return TsvFile(((name, file),), file.name, self.weight, file, self.source, self.target, self.header)


class JsonlSource(_OneFileSource):
    """A file with one JSON object per line; plain, .gz or .zst."""

    kind: Literal["jsonl"] = Field(description="two keys of the objects in one file")
    source: str | None = Field(None, description="key of the source, dotted where nested; null: its language code")
    target: str | None = Field(None, description="key of the target; null: its language code")
    weight: Weight = 1.0

    def local_pairs(self, file: Path, name: str, at: Location) -> JsonlFile:
        """The two keys of a file."""
        keys = (self.source or at.languages.source, self.target or at.languages.target)
        return JsonlFile(((name, file),), file.name, self.weight, file, *keys)


class ParquetSource(_OneFileSource):
    """A parquet file."""

    kind: Literal["parquet"] = Field(description="two columns of one file")
    source: str | None = Field(None, description="column of the source, dotted where nested; null: translation.CODE")
    target: str | None = Field(None, description="column of the target; null: translation.CODE")
    weight: Weight = 1.0

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
        for number, lines in line_chunks(self.file, skip=int(self.header)):
            if number == 1 + self.header:
                self._check_columns(lines)
            yield TsvChunk(len(lines), number, self.origin, b"".join(lines), self.source, self.target)

    def _check_columns(self, lines: Sequence[bytes]) -> None:
        if max(self.source, self.target) == 1 or any(b"\t" in line for line in lines):
            return
        found = next((name for mark, name in _SEPARATORS.items() if all(mark in line for line in lines)), None)
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
        for number, lines in line_chunks(self.file):
            yield JsonlChunk(len(lines), number, self.origin, b"".join(lines), self.source, self.target)


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
        import pyarrow.parquet

        if self.builder != "parquet":
            return LocalPairs.count(self, most=most)
        with _table_errors(self.file), pyarrow.parquet.ParquetFile(self.file) as table:
            return min(int(table.metadata.num_rows), most)

    def read(self) -> Iterator[RawChunk]:
        """The rows of the file. DataError lists its columns if it has no such columns of text."""
        import pyarrow

        first_row = 1
        waiting = pyarrow.schema(dict.fromkeys(("source", "target"), pyarrow.string())).empty_table()
        for table in self._parquet() if self.builder == "parquet" else self._through_datasets():
            sides = [_text_column(_flattened(table), key, self.file) for key in (self.source, self.target)]
            waiting = pyarrow.concat_tables([waiting, pyarrow.table(sides, schema=waiting.schema)])
            while waiting.num_rows >= chunks.CHUNK_PAIRS:
                yield _packed(waiting.slice(0, chunks.CHUNK_PAIRS), first_row, self.origin)
                first_row += chunks.CHUNK_PAIRS
                waiting = waiting.slice(chunks.CHUNK_PAIRS)
        if waiting.num_rows:
            yield _packed(waiting, first_row, self.origin)
        elif first_row == 1:
            raise empty_file(self.file)

    def _parquet(self) -> Iterator[pyarrow.Table]:
        """The columns of the keys, so that others, such as images, are not read; all columns if a key has none."""
        import pyarrow.parquet

        with _table_errors(self.file), pyarrow.parquet.ParquetFile(self.file) as table:
            there = table.schema_arrow.names
            wanted = [key if key in there else key.partition(".")[0] for key in (self.source, self.target)]
            columns = list(dict.fromkeys(wanted)) if set(wanted) <= set(there) else None
            for batch in table.iter_batches(batch_size=chunks.CHUNK_PAIRS, columns=columns):
                yield pyarrow.Table.from_batches([batch])

    def _through_datasets(self) -> Iterator[pyarrow.Table]:
        import datasets

        options = dict(self.options)
        with _table_errors(self.file):
            rows = datasets.load_dataset(
                self.builder, data_files=[str(self.file)], split="train", streaming=True, **options
            )
            yield from rows.with_format("arrow").iter(batch_size=chunks.CHUNK_PAIRS)


@contextmanager
def _table_errors(file: Path) -> Iterator[None]:
    try:
        with reading_errors(file):
            yield
    except (DataError, MemoryError):
        raise
    except Exception as problem:  # pyarrow and datasets raise errors of a dozen unrelated classes
        message = f"{file.name} cannot be read as a table: {first_line(problem)}"
        raise DataError(message, where=str(file), hint="fetch it again") from problem


def _flattened(table: pyarrow.Table) -> pyarrow.Table:
    """The table with a column for each field of a column of structs, under its dotted name."""
    import pyarrow

    while any(pyarrow.types.is_struct(column.type) for column in table.schema):
        table = table.flatten()
    return table


def _text_column(table: pyarrow.Table, key: str, file: Path) -> pyarrow.ChunkedArray:
    """The column of this name, as strings."""
    import pyarrow

    for name, column in zip(table.schema.names, table.columns, strict=True):
        kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
        if name == key and kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.null()):
            return column.cast(pyarrow.string())
    there = ", ".join(f"{column.name} ({column.type})" for column in table.schema)
    message = f"{file.name} has no column of text {key}"
    raise DataError(message, where=str(file), hint=f"set source and target to two of its columns: {there}")


def _packed(table: pyarrow.Table, first_row: int, origin: str) -> TableChunk:
    """The rows as an Arrow IPC stream, which is cheap to send to another process."""
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return TableChunk(table.num_rows, first_row, origin, sink.getvalue().to_pybytes())
