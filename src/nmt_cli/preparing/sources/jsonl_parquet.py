"""JSON lines, parquet, and other files that `datasets` reads: two keys or columns of each record are taken."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from nmt_cli.errors import DataError, first_line
from nmt_cli.files import reading_errors
from nmt_cli.preparing.chunks import CHUNK_PAIRS, Chunk, batched, record_chunk
from nmt_cli.preparing.sources.base import CorpusContext, LocalPairs, OneFileSource, Weight, empty_error
from nmt_cli.preparing.sources.columns import GIVE_COLUMNS, find_columns
from nmt_cli.preparing.sources.lines import line_chunks, without_tabs

if TYPE_CHECKING:
    import pyarrow

_RECORDS_COMPARED = 200
_KEYS_SHOWN = 8
_KEY_CHARACTERS = 40
_MAX_KEY_DEPTH = 8
_BROKEN = object()
_JSON_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


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
            keys |= dict.fromkeys(_keys_of_texts(line))
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

    def read(self) -> Iterator[Chunk]:
        """The two texts of each line; a line without both is malformed."""
        keys = self.source.split("."), self.target.split(".")
        for number, lines in line_chunks(self.file):
            pairs = [_pair_at_keys(_parse_json(line), *keys) for line in lines]
            yield record_chunk(lines, pairs, first_line=number, origin=self.origin, describe=self._describe_malformed)

    def _describe_malformed(self, line: str) -> str:
        record = _parse_json(line)
        if record is _BROKEN:
            return "that line is not JSON, so it is broken or cut short: mend it, or fetch the file again"
        return (
            f"text is looked for under the keys {self.source} and {self.target}, and that line "
            f"{_describe_record(record)}: name the two keys: --columns SOURCE,TARGET"
        )


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

    def read(self) -> Iterator[Chunk]:
        """The rows of the file; a null is an empty text. DataError lists its columns if it has no such ones of text."""
        first_row = 1
        for rows in batched(self._rows(), size=lambda row: len(row[0]) + len(row[1])):
            src, tgt = (without_tabs(side) for side in zip(*rows, strict=True))
            yield Chunk(src, tgt, first_row, self.origin)
            first_row += len(rows)
        if first_row == 1:
            raise empty_error(self.file, below_header=False)

    def _rows(self) -> Iterator[tuple[str, str]]:
        for table in self._batches_of_parquet() if self.builder == "parquet" else self._batches_of_datasets():
            flat = _flatten_columns(table)
            yield from zip(*(_texts_of_column(flat, key, self.file) for key in (self.source, self.target)), strict=True)

    def _batches_of_parquet(self) -> Iterator[pyarrow.Table]:
        """The columns of the keys, so that images, for example, are not read; all columns if a key has no column."""
        import pyarrow.parquet

        with _table_errors(self.file), pyarrow.parquet.ParquetFile(self.file) as table:
            present = table.schema_arrow.names
            wanted = [key if key in present else key.partition(".")[0] for key in (self.source, self.target)]
            columns = list(dict.fromkeys(wanted)) if set(wanted) <= set(present) else None
            for batch in table.iter_batches(batch_size=CHUNK_PAIRS, columns=columns):
                yield pyarrow.Table.from_batches([batch])

    def _batches_of_datasets(self) -> Iterator[pyarrow.Table]:
        import datasets

        options = dict(self.options)
        with _table_errors(self.file):
            rows = datasets.load_dataset(
                self.builder, data_files=[str(self.file)], split="train", streaming=True, **options
            )
            yield from rows.with_format("arrow").iter(batch_size=CHUNK_PAIRS)


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


def _keys_of_texts(line: str) -> list[str]:
    """The dotted keys of the texts in a line of JSON; none if it is no object."""
    record = _parse_json(line)
    items = _dotted_items(record, "") if isinstance(record, dict) else ()
    return [key for key, value in items if isinstance(value, str)]


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


def _describe_record(record: Any) -> str:
    """A value of JSON in words: its dotted keys, with the kind of value if a key has no text."""
    if not isinstance(record, dict):
        return f"is no object but {_JSON_KINDS[type(record)]}"
    keys = [
        repr(key[:_KEY_CHARACTERS])[1:-1]  # with escapes for what cannot be printed
        + ("" if isinstance(value, str) else f" ({_JSON_KINDS[type(value)]})")
        for key, value in _dotted_items(record, "")
    ]
    more = f" and {len(keys) - _KEYS_SHOWN:,} more" if len(keys) > _KEYS_SHOWN else ""
    return f"has {', '.join(keys[:_KEYS_SHOWN])}{more}" if keys else "has no keys"


def _dotted_items(record: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """All values that are no objects, each after its dotted key."""
    for key, value in record.items():
        if isinstance(value, dict) and value and prefix.count(".") < _MAX_KEY_DEPTH:
            yield from _dotted_items(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
