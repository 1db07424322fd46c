"""JSON lines, parquet, and other files that `datasets` reads: two keys or columns of each record are taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from nmt_cli.errors import DataError, first_line
from nmt_cli.files import reading_errors
from nmt_cli.preparing import chunks
from nmt_cli.preparing.chunks import JsonlChunk, RawChunk, TableChunk, keys_of_texts
from nmt_cli.preparing.sources.base import CorpusContext, LocalPairs, OneFileSource, Weight, empty_error
from nmt_cli.preparing.sources.columns import GIVE_COLUMNS, find_columns
from nmt_cli.preparing.sources.lines import line_chunks

if TYPE_CHECKING:
    import pyarrow

_RECORDS_COMPARED = 200


class JsonlSource(OneFileSource):
    """A file with one JSON object per line; plain or compressed."""

    kind: Literal["jsonl"] = Field(description="two keys of the objects in one file")
    source: str | None = Field(
        None, description="key of the source, dotted where nested; null: the key that is called by the language"
    )
    target: str | None = Field(None, description="key of the target; null: the key that is called by the language")
    weight: Weight = 1.0

    def local_pairs(self, file: Path, name: str, context: CorpusContext) -> JsonlFile:
        """The two keys of a file."""
        keys: dict[str, None] = {}  # of the first records: a record may lack a text
        for line in next(line_chunks(file))[1][:_RECORDS_COMPARED]:
            keys |= dict.fromkeys(keys_of_texts(line))
        return JsonlFile(
            ((name, file),),
            file.name,
            self.weight,
            file,
            *_choose_names(self, list(keys), file, context, default=context.codes),
        )


class ParquetSource(OneFileSource):
    """A parquet file."""

    kind: Literal["parquet"] = Field(description="two columns of one file")
    source: str | None = Field(
        None, description="column of the source, dotted where nested; null: the column that is called by the language"
    )
    target: str | None = Field(None, description="column of the target; null: the column called by the language")
    weight: Weight = 1.0

    def local_pairs(self, file: Path, name: str, context: CorpusContext) -> TableFile:
        """The two columns of a file."""
        default = translation_columns(None, None, context)
        columns = _choose_names(self, _columns_of_text(file), file, context, default=default)
        return TableFile(((name, file),), file.name, self.weight, file, *columns)


def translation_columns(source: str | None, target: str | None, context: CorpusContext) -> tuple[str, str]:
    """The given columns, or else the columns of the two languages in a data set of the hub."""
    return source or f"translation.{context.languages.source}", target or f"translation.{context.languages.target}"


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
        pending = pyarrow.schema(dict.fromkeys(("source", "target"), pyarrow.string())).empty_table()
        for table in self._batches_of_parquet() if self.builder == "parquet" else self._batches_of_datasets():
            flat = _flatten_columns(table)
            sides = [_text_column(flat, key, self.file) for key in (self.source, self.target)]
            pending = pyarrow.concat_tables([pending, pyarrow.table(sides, schema=pending.schema)])
            while pending.num_rows >= chunks.CHUNK_PAIRS or pending.nbytes >= chunks.CHUNK_BYTES:
                rows_in_chunk_bytes = chunks.CHUNK_BYTES * pending.num_rows // pending.nbytes
                num_rows = min(chunks.CHUNK_PAIRS, max(1, rows_in_chunk_bytes))
                yield _table_chunk(pending.slice(0, num_rows), first_row, self.origin)
                first_row += num_rows
                pending = pending.slice(num_rows)
        if pending.num_rows:
            yield _table_chunk(pending, first_row, self.origin)
        elif first_row == 1:
            raise empty_error(self.file, below_header=False)

    def _batches_of_parquet(self) -> Iterator[pyarrow.Table]:
        """The columns of the keys, so that images, for example, are not read; all columns if a key has no column."""
        import pyarrow.parquet

        with _table_errors(self.file), pyarrow.parquet.ParquetFile(self.file) as table:
            present = table.schema_arrow.names
            wanted = [key if key in present else key.partition(".")[0] for key in (self.source, self.target)]
            columns = list(dict.fromkeys(wanted)) if set(wanted) <= set(present) else None
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
    table: JsonlSource | ParquetSource,
    present: list[str],
    file: Path,
    context: CorpusContext,
    *,
    default: tuple[str, str],
) -> tuple[str, str]:
    """The names of the two keys or columns. A name that is not given is found by its language, or is the default.

    DataError if source and target would be the same one.
    """
    given = table.source, table.target
    src_index, tgt_index = (present.index(name) if name in present else None for name in given)
    found = find_columns(present, context.codes, given=(src_index, tgt_index))
    chosen = default if found is None else [present[index] for index in found]
    source, target = (name or default_name for name, default_name in zip(given, chosen, strict=True))
    if source == target and None in given:
        message = f"source and target of {file.name} are both {source}; it has {', '.join(present[:8])}"
        raise DataError(message, where=str(file), hint=f"{GIVE_COLUMNS} SOURCE,TARGET")
    return source, target


def _columns_of_text(file: Path) -> list[str]:
    """The dotted names of the columns of a parquet file that hold text."""
    import pyarrow.parquet

    with _table_errors(file):
        table = _flatten_columns(pyarrow.parquet.read_schema(file).empty_table())
    return [column.name for column in table.schema if _is_text(column.type)]


@contextmanager
def _table_errors(file: Path) -> Iterator[None]:
    try:
        with reading_errors(file):
            yield
    except (DataError, MemoryError):
        raise
    except Exception as error:  # pyarrow and datasets raise errors of a dozen unrelated classes
        message = f"{file.name} cannot be read as a table: {first_line(error) or type(error).__name__}"
        raise DataError(message, where=str(file), hint="check that it is a table, or fetch it again") from error


def _flatten_columns(table: pyarrow.Table) -> pyarrow.Table:
    """The table with each column of structs replaced by columns for its fields, under their dotted names."""
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
    present = ", ".join(f"{column.name} ({column.type})" for column in table.schema)
    message = f"{file.name} has no column of text {key}"
    raise DataError(message, where=str(file), hint=f"set source and target to two of its columns: {present}")


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
