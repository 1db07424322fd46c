"""JSON objects, parquet, and what `datasets` reads: records of which two texts are taken, by key or column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from nmt_cli.errors import DataError
from nmt_cli.files import reading_errors
from nmt_cli.preparing import chunks
from nmt_cli.preparing.chunks import JsonlChunk, RawChunk, TableChunk, keys_with_text
from nmt_cli.preparing.sources.base import LocalPairs, Location, OneFileSource, Weight, empty_file, places_of_languages
from nmt_cli.preparing.sources.lines import line_chunks

if TYPE_CHECKING:
    import pyarrow


class JsonlSource(OneFileSource):
    """A file with one JSON object per line; plain, .gz, .zst or .xz."""

    kind: Literal["jsonl"] = Field(description="two keys of the objects in one file")
    source: str | None = Field(
        None, description="key of the source, dotted where nested; null: the key that is called by the language"
    )
    target: str | None = Field(None, description="key of the target; null: the key that is called by the language")
    weight: Weight = 1.0

    def local_pairs(self, file: Path, name: str, location: Location) -> JsonlFile:
        """The two keys of a file."""
        there = keys_with_text(next(line_chunks(file))[1][0])
        keys = _choose_names(self.source, self.target, lambda: there, location, otherwise=location.codes)
        source, target = there[:2] if len(there) > 1 else ("SOURCE", "TARGET")
        fix = self.setting(location, source=source, target=target)
        return JsonlFile(((name, file),), file.name, self.weight, file, *keys, fix)


class ParquetSource(OneFileSource):
    """A parquet file."""

    kind: Literal["parquet"] = Field(description="two columns of one file")
    source: str | None = Field(
        None, description="column of the source, dotted where nested; null: the column that is called by the language"
    )
    target: str | None = Field(None, description="column of the target; null: the column called by the language")
    weight: Weight = 1.0

    def local_pairs(self, file: Path, name: str, location: Location) -> TableFile:
        """The two columns of a file."""
        otherwise = translation_columns(None, None, location)
        columns = _choose_names(self.source, self.target, lambda: _columns_of_text(file), location, otherwise=otherwise)
        return TableFile(((name, file),), file.name, self.weight, file, *columns)


def translation_columns(source: str | None, target: str | None, location: Location) -> tuple[str, str]:
    """The given columns, or else the columns of the two languages in a data set of the hub."""
    return source or f"translation.{location.languages.source}", target or f"translation.{location.languages.target}"


@dataclass(frozen=True, slots=True)
class JsonlFile(LocalPairs):
    """Two keys, dotted where nested, of the JSON objects in a file; `fix` is the setting that names others."""

    not_in_key = (*LocalPairs.not_in_key, "fix")
    file: Path
    source: str
    target: str
    fix: str

    def read(self) -> Iterator[RawChunk]:
        """The lines of the file."""
        for number, lines in line_chunks(self.file):
            yield JsonlChunk(len(lines), number, self.origin, b"".join(lines), self.source, self.target, self.fix)


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
        for table in self._batches_of_parquet() if self.builder == "parquet" else self._batches_of_datasets():
            sides = [_text_column(_with_dotted_columns(table), key, self.file) for key in (self.source, self.target)]
            waiting = pyarrow.concat_tables([waiting, pyarrow.table(sides, schema=waiting.schema)])
            while waiting.num_rows >= chunks.CHUNK_PAIRS or waiting.nbytes >= chunks.CHUNK_BYTES:
                rows_of_bytes = chunks.CHUNK_BYTES * waiting.num_rows // waiting.nbytes
                num_rows = min(chunks.CHUNK_PAIRS, max(1, rows_of_bytes))
                yield _table_chunk(waiting.slice(0, num_rows), first_row, self.origin)
                first_row += num_rows
                waiting = waiting.slice(num_rows)
        if waiting.num_rows:
            yield _table_chunk(waiting, first_row, self.origin)
        elif first_row == 1:
            raise empty_file(self.file, below_header=False)

    def _batches_of_parquet(self) -> Iterator[pyarrow.Table]:
        """The columns of the keys, so that others, such as images, are not read; all columns if a key has none."""
        import pyarrow.parquet

        with _table_errors(self.file), pyarrow.parquet.ParquetFile(self.file) as table:
            there = table.schema_arrow.names
            wanted = [key if key in there else key.partition(".")[0] for key in (self.source, self.target)]
            columns = list(dict.fromkeys(wanted)) if set(wanted) <= set(there) else None
            for batch in table.iter_batches(batch_size=chunks.CHUNK_PAIRS, columns=columns):
                yield pyarrow.Table.from_batches([batch])

    def _batches_of_datasets(self) -> Iterator[pyarrow.Table]:
        import datasets

        options = dict(self.options)
        with _table_errors(self.file):
            rows = datasets.load_dataset(
                self.builder, data_files=[str(self.file)], split="train", streaming=True, **options
            )
            yield from rows.with_format("arrow").iter(batch_size=chunks.CHUNK_PAIRS)


def _choose_names(
    source: str | None,
    target: str | None,
    names: Callable[[], Sequence[str]],
    location: Location,
    *,
    otherwise: tuple[str, str],
) -> tuple[str, str]:
    """The two keys or columns that are given, or that are called by the languages, or else `otherwise`."""
    if source is not None and target is not None:
        return source, target
    there = names()
    # A given key stands for its language, so that the other one is found beside it.
    given = {source: location.codes[0], target: location.codes[1]}
    places = places_of_languages([given.get(name, name) for name in there], location.codes)
    found = otherwise if places is None else (there[places[0]], there[places[1]])
    return source or found[0], target or found[1]


def _columns_of_text(file: Path) -> list[str]:
    """The columns of a parquet file that hold text, in columns as well."""
    import pyarrow.parquet

    with _table_errors(file):
        table = _with_dotted_columns(pyarrow.parquet.read_schema(file).empty_table())
    return [column.name for column in table.schema if _is_text(column.type)]


@contextmanager
def _table_errors(file: Path) -> Iterator[None]:
    try:
        with reading_errors(file):
            yield
    except (DataError, MemoryError):
        raise
    except Exception as error:  # pyarrow and datasets raise errors of a dozen unrelated classes
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        message = f"{file.name} cannot be read as a table: {first_line}"
        raise DataError(message, where=str(file), hint="fetch it again") from error


def _with_dotted_columns(table: pyarrow.Table) -> pyarrow.Table:
    """The table with a column for each field of a column of structs, under its dotted name."""
    import pyarrow

    while any(pyarrow.types.is_struct(column.type) for column in table.schema):
        table = table.flatten()
    return table


def _text_column(table: pyarrow.Table, key: str, file: Path) -> pyarrow.ChunkedArray:
    """The column of this name, as strings."""
    import pyarrow

    for name, column in zip(table.schema.names, table.columns, strict=True):
        if name == key and _is_text(column.type):
            return column.cast(pyarrow.string())
    there = ", ".join(f"{column.name} ({column.type})" for column in table.schema)
    message = f"{file.name} has no column of text {key}"
    raise DataError(message, where=str(file), hint=f"set source and target to two of its columns: {there}")


def _is_text(kind: pyarrow.DataType) -> bool:
    import pyarrow

    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    return kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.null())


def _table_chunk(table: pyarrow.Table, first_row: int, origin: str) -> TableChunk:
    """The rows as an Arrow IPC stream, which is cheap to send to another process."""
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return TableChunk(table.num_rows, first_row, origin, sink.getvalue().to_pybytes())
