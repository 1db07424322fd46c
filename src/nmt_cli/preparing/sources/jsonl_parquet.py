"""JSON lines, parquet, and other files that `datasets` reads: two keys or columns of each record are taken."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from nmt_cli.errors import DataError, first_line
from nmt_cli.files import reading_errors
from nmt_cli.preparing.chunks import CHUNK_PAIRS, Chunk, batched, record_chunk
from nmt_cli.preparing.sources.base import OneFileSource, empty_error
from nmt_cli.preparing.sources.columns import GIVE_COLUMNS, find_columns, shown
from nmt_cli.preparing.sources.lines import line_chunks, without_tabs

if TYPE_CHECKING:
    import pyarrow

_RECORDS_COMPARED = 200
_MAX_KEY_DEPTH = 8
_BROKEN = object()


class JsonlSource(OneFileSource):
    """A file with one JSON object per line; plain or compressed."""

    endings = (".jsonl", ".ndjson")
    kind: Literal["jsonl"] = Field(description="two keys of the objects in one file")
    source: str | None = Field(
        None, description="key of the source, dotted where nested; null: the key that is called by the language"
    )
    target: str | None = Field(None, description="key of the target; null: the key that is called by the language")

    def reader(self, file: Path, languages: tuple[str, str]) -> Callable[[], Iterator[Chunk]]:
        """The function that reads the two keys of a file."""
        keys: dict[str, None] = {}  # of the first records: a record may lack a text
        for line in next(line_chunks(file))[1][:_RECORDS_COMPARED]:
            keys |= dict.fromkeys(_keys_of_texts(_parse_json(line)))
        return partial(read_jsonl, file, _choose_names(self, list(keys), file, languages, default=languages))


class ParquetSource(OneFileSource):
    """A parquet file."""

    endings = (".parquet",)
    kind: Literal["parquet"] = Field(description="two columns of one file")
    source: str | None = Field(
        None, description="column of the source, dotted where nested; null: the column that is called by the language"
    )
    target: str | None = Field(None, description="column of the target; null: the column called by the language")

    def reader(self, file: Path, languages: tuple[str, str]) -> Callable[[], Iterator[Chunk]]:
        """The function that reads the two columns of a file."""
        default = translation_columns(None, None, languages)
        columns = _choose_names(self, _columns_of_text(file), file, languages, default=default)
        return partial(read_table, file, columns, partial(parquet_tables, file, columns), origin=file.name)


def translation_columns(source: str | None, target: str | None, languages: tuple[str, str]) -> tuple[str, str]:
    """The given columns, or else the columns of the two languages in a data set of the hub."""
    return source or f"translation.{languages[0]}", target or f"translation.{languages[1]}"


def read_jsonl(file: Path, keys: tuple[str, str]) -> Iterator[Chunk]:
    """The texts under two keys, dotted where nested, of the object in each line; a line without both is malformed."""
    source, target = (key.split(".") for key in keys)
    for number, lines in line_chunks(file):
        pairs = [_pair_at_keys(_parse_json(line), source, target) for line in lines]
        yield record_chunk(
            lines, pairs, first_line=number, origin=file.name, describe=partial(_describe_malformed, keys)
        )


def read_table(
    file: Path, columns: tuple[str, str], read_parts: Callable[[], Iterator[pyarrow.Table]], *, origin: str
) -> Iterator[Chunk]:
    """The texts in two columns, dotted where nested, of the parts of a table; a null is an empty text.

    DataError lists the columns of the file if it has no such ones of text.
    """

    def rows() -> Iterator[tuple[str, str]]:
        for table in map(_flatten_columns, read_parts()):
            yield from zip(*(_texts_of_column(table, column, file) for column in columns), strict=True)

    first_row = 1
    for batch in batched(rows(), size=lambda row: len(row[0]) + len(row[1])):
        src, tgt = (without_tabs(side) for side in zip(*batch, strict=True))
        yield Chunk(src, tgt, first_row, origin)
        first_row += len(batch)
    if first_row == 1:
        raise empty_error(file, below_header=False)


def parquet_tables(file: Path, columns: tuple[str, str]) -> Iterator[pyarrow.Table]:
    """Parts of a parquet file, without columns of images, for example; with all columns if one is not there."""
    import pyarrow.parquet

    with _table_errors(file), pyarrow.parquet.ParquetFile(file) as table:
        present = table.schema_arrow.names
        wanted = {column if column in present else column.partition(".")[0] for column in columns}
        names = sorted(wanted) if wanted <= {*present} else None
        for batch in table.iter_batches(batch_size=CHUNK_PAIRS, columns=names):
            yield pyarrow.Table.from_batches([batch])


def datasets_tables(file: Path, builder: str, options: Mapping[str, Any]) -> Iterator[pyarrow.Table]:
    """Parts of a file that a module of `datasets` reads, with its settings that differ from the usual ones."""
    import datasets

    with _table_errors(file):
        rows = datasets.load_dataset(builder, data_files=[str(file)], split="train", streaming=True, **options)
        yield from rows.with_format("arrow").iter(batch_size=CHUNK_PAIRS)


def _choose_names(
    table: JsonlSource | ParquetSource,
    present: list[str],
    file: Path,
    languages: tuple[str, str],
    *,
    default: tuple[str, str],
) -> tuple[str, str]:
    """The names of the two keys or columns. A name that is not given is found by its language, or is the default.

    DataError if source and target would be the same one.
    """
    given = table.source, table.target
    src_index, tgt_index = (present.index(name) if name in present else None for name in given)
    found = find_columns(present, languages, given=(src_index, tgt_index))
    chosen = default if found is None else [present[index] for index in found]
    source, target = (name or default_name for name, default_name in zip(given, chosen, strict=True))
    if source == target and None in given:
        message = f"source and target of {file.name} are both {source}; it has {', '.join(present[:8])}"
        raise DataError(message, where=str(file), hint=GIVE_COLUMNS)
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


def _texts_of_column(table: pyarrow.Table, key: str, file: Path) -> list[str]:
    """The texts of the column of this name."""
    import pyarrow

    for name, column in zip(table.schema.names, table.columns, strict=True):
        if name == key and _is_text(column.type):
            # As bytes, because writers of tables do not check that text is UTF-8.
            texts = column.cast(pyarrow.string()).cast(pyarrow.binary()).to_pylist()
            return [(text or b"").decode("utf-8", "surrogateescape") for text in texts]
    present = ", ".join(f"{column.name} ({column.type})" for column in table.schema)
    message = f"{file.name} has no column of text {key}"
    raise DataError(message, where=str(file), hint=f"set source and target to two of its columns: {present}")


def _is_text(kind: pyarrow.DataType) -> bool:
    import pyarrow

    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    return kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.null())


def _keys_of_texts(record: Any, prefix: str = "") -> Iterator[str]:
    """The dotted keys of the texts in a record of JSON; none if it is no object."""
    for key, value in record.items() if isinstance(record, dict) else ():
        if isinstance(value, str):
            yield f"{prefix}{key}"
        elif prefix.count(".") < _MAX_KEY_DEPTH:
            yield from _keys_of_texts(value, f"{prefix}{key}.")


def _parse_json(line: str) -> Any:
    """The value that a line of JSON holds; `_BROKEN` if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):  # the first for numbers of thousands of digits as well
        return _BROKEN


def _pair_at_keys(record: Any, source: Sequence[str], target: Sequence[str]) -> tuple[str, str] | None:
    """The texts at the parts of two dotted keys; None if one of them is missing."""
    src, tgt = _value_at_key(source, record), _value_at_key(target, record)
    are_texts = isinstance(src, str) and isinstance(tgt, str)
    return (src.replace("\t", " "), tgt.replace("\t", " ")) if are_texts else None


def _value_at_key(key: Sequence[str], record: Any) -> Any:
    for part in key:
        record = record.get(part) if isinstance(record, dict) else None
    return record


def _describe_malformed(keys: tuple[str, str], line: str) -> str:
    """What is wrong with a line of JSON that lacks a text under one of two keys."""
    record = _parse_json(line)
    if record is _BROKEN:
        return "that line is not JSON, so it is broken or cut short: mend it, or fetch the file again"
    found = shown(list(_keys_of_texts(record))) or "no text"
    looked_for = f"text is looked for under the keys {keys[0]} and {keys[1]}"
    return f"{looked_for}, and that line has {found}: name the two keys: --columns SOURCE,TARGET"
