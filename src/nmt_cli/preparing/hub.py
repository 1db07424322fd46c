"""Pairs from data sets of the Hugging Face hub, streamed in Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmt_cli.errors import DataError
from nmt_cli.preparing.chunks import CHUNK_PAIRS, Chunk
from nmt_cli.preparing.corpora import HubSource, LanguagePair


def read_hub(source: HubSource, *, languages: LanguagePair, folder: Path) -> Iterator[Chunk]:
    """The pairs of one split of a data set; a null is an empty text. DataError where it cannot be read."""
    keys = [source.source or f"translation.{languages.source}", source.target or f"translation.{languages.target}"]
    origin = f"{source.repository}/{source.split}"
    first_row = 1
    for table in _tables(source, folder):
        src, tgt = (_texts(table, key, where=origin) for key in keys)
        yield Chunk(src, tgt, first_row, origin)
        first_row += len(src)
    if first_row == 1:
        raise DataError(f"{origin} is empty", where=origin, hint="check repository, subset and split")


def _tables(source: HubSource, folder: Path) -> Iterator[Any]:
    """Batches of rows as pyarrow tables. Any failure of the hub or of a file in it is a DataError."""
    import datasets
    from datasets.exceptions import DatasetNotFoundError

    path = str((folder / source.repository).resolve()) if source.is_local else source.repository
    try:
        data = datasets.load_dataset(path, source.subset, split=source.split, revision=source.revision, streaming=True)
        yield from data.with_format("arrow").iter(batch_size=CHUNK_PAIRS)
    except Exception as problem:  # the libraries below raise errors of a dozen unrelated classes
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        hint = "check repository, subset and split"
        if isinstance(problem, DatasetNotFoundError):  # which is an OSError, though the hub has answered
            hint = "check repository: it is OWNER/NAME on the hub, or ./FOLDER; one that is private needs HF_TOKEN"
        elif isinstance(problem, OSError):
            hint = "check the network; or download the data set and name its folder: repository: ./FOLDER"
        raise DataError(
            f"cannot read the data set {source.repository}: {reason}", where=_name(source), hint=hint
        ) from problem


def _texts(table: Any, key: str, *, where: str) -> list[str]:
    column, *fields = key.split(".")
    if column not in table.column_names:
        raise _no_such_column(key, table.column_names, where)
    values = table.column(column).combine_chunks()
    for field in fields:
        names = [field.name for field in values.type] if str(values.type).startswith("struct") else []
        if field not in names:
            raise _no_such_column(key, [f"{column}.{name}" for name in names] or table.column_names, where)
        values = values.field(field)
    return [text if isinstance(text, str) else "" for text in values.to_pylist()]


def _no_such_column(key: str, there: list[str], where: str) -> DataError:
    return DataError(
        f"the data set has no column {key}", where=where, hint=f"set source and target to two of: {', '.join(there)}"
    )


def _name(source: HubSource) -> str:
    return " ".join(part for part in (source.repository, source.subset, source.split) if part)
