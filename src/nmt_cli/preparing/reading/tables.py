"""Columns of text from tables: parquet files in record batches, and what else the library `datasets` reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt_cli.errors import DataError
from nmt_cli.files import reading_errors

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True)
class TableBatch:
    """Two columns of text as an Arrow IPC stream."""

    data: bytes
    num_rows: int


def table_batches(
    file: Path, *, columns: tuple[str, str], rows: int, builder: str, options: Mapping[str, Any]
) -> Iterator[TableBatch]:
    """The columns, dotted where nested, of a file, so many rows at a time; the last batch may be shorter.

    DataError where the file cannot be read, has no such columns (the hint lists those there), or they hold no text.
    """
    import pyarrow

    waiting: list[pyarrow.RecordBatch] = []
    num_waiting = 0
    is_parquet = builder == "parquet"
    for batch in _parquet(file, columns, rows) if is_parquet else _by_datasets(file, rows, builder, options):
        sides = [_text_column(batch, key, file) for key in columns]
        waiting.append(pyarrow.record_batch(sides, names=["source", "target"]))
        num_waiting += batch.num_rows
        while num_waiting >= rows:
            table = pyarrow.Table.from_batches(waiting)
            yield _packed(table.slice(0, rows))
            waiting, num_waiting = table.slice(rows).to_batches(), num_waiting - rows
    if num_waiting:
        yield _packed(pyarrow.Table.from_batches(waiting))


def num_rows(file: Path) -> int:
    """How many rows a parquet file has: from its footer, without reading it."""
    import pyarrow.parquet

    with _table_errors(file), pyarrow.parquet.ParquetFile(file) as table:
        return int(table.metadata.num_rows)


def _parquet(file: Path, keys: tuple[str, str], rows: int) -> Iterator[pyarrow.RecordBatch]:
    """The columns that hold the keys, so that others, such as images, are not read; all where there are none."""
    import pyarrow.parquet

    with _table_errors(file), pyarrow.parquet.ParquetFile(file) as table:
        there = table.schema_arrow.names
        wanted = list(dict.fromkeys(key if key in there else key.partition(".")[0] for key in keys))
        columns = wanted if set(wanted) <= set(there) else None
        yield from table.iter_batches(batch_size=rows, columns=columns)


def _by_datasets(file: Path, rows: int, builder: str, options: Mapping[str, Any]) -> Iterator[pyarrow.RecordBatch]:
    import datasets

    with _table_errors(file):
        data = datasets.load_dataset(builder, data_files=[str(file)], split="train", streaming=True, **options)
        for table in data.with_format("arrow").iter(batch_size=rows):
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


def _packed(table: pyarrow.Table) -> TableBatch:
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return TableBatch(sink.getvalue().to_pybytes(), table.num_rows)
