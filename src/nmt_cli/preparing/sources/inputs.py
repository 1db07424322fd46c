"""What prepared data follows from: the keys of what a corpus file declares, and of what was found behind it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, assert_never

from nmt_cli.dataset.manifest import InputRecord
from nmt_cli.errors import DataError
from nmt_cli.preparing.corpora import LocatedCorpus
from nmt_cli.preparing.reading.readers import GeneratedText, LocalSource
from nmt_cli.preparing.sources.fetching import Fetched
from nmt_cli.preparing.sources.globs import matching_files, text_pairs
from nmt_cli.preparing.sources.kinds import (
    ArchiveSource,
    HubSource,
    JsonlSource,
    ParquetSource,
    Source,
    TestsetSource,
    TextSource,
    TsvSource,
    is_address,
)
from nmt_cli.preparing.sources.mirrors import Mirror
from nmt_cli.preparing.sources.records import file_record, generated_record, relative_name

# Raised when the same inputs and settings give other prepared data than before.
_PIPELINE_VERSION = 2


def find_inputs(located: LocatedCorpus) -> list[InputRecord]:
    """Every local file that the corpus is read from, hashed, or the text of a generator; nothing that is downloaded.

    Raises DataError where a file is missing or empty.
    """
    corpus = located.corpus
    records = []
    for split in corpus.splits:
        if corpus.generator is not None:
            generated = GeneratedText(corpus.generator, split, f"demo {split}", 1.0)
            records.append(generated_record(generated, name=f"{corpus.name} {split}"))
        for source in corpus.sources(split):
            for path in _local_files(source, located):
                records.append(file_record(split, relative_name(path, located.folder), path))
    return records


def remote_inputs(located: LocatedCorpus) -> Iterator[tuple[str, str]]:
    """What else the corpus is read from: the split, and in words what is downloaded for it."""
    for split in located.corpus.splits:
        for source in located.corpus.sources(split):
            for description in describe_remote(source):
                yield split, description


def describe_remote(source: Source) -> Iterator[str]:
    """In words, what of a source is downloaded."""
    match source:
        case HubSource():
            if not source.is_local:
                revision = f" at {source.revision}" if source.revision else ""
                yield f"{source.repository} on the hub, {source.subset or 'default'}, {source.split}{revision}"
        case ArchiveSource():
            if source.url is not None:
                size = f", {source.bytes:,} bytes" if source.bytes else ""
                yield f"{source.url}{size}: {source.source}, {source.target}"
        case TestsetSource():
            yield f"{source.name}, from sacreBLEU"
        case TextSource():
            yield from (file for file in (source.source, source.target) if file and is_address(file))
        case TsvSource() | JsonlSource() | ParquetSource():
            yield from [source.file] if is_address(source.file) else []
        case _:
            assert_never(source)


def declared_key(located: LocatedCorpus, inputs: Sequence[InputRecord]) -> str:
    """The fingerprint of what a corpus file declares: contents of local files, names and checksums of all others.

    `inputs` are those of `find_inputs`. It needs no network: prepared data is recognised by it.
    """
    corpus = located.corpus
    sources = {split: [_declared(source) for source in corpus.sources(split)] for split in corpus.splits}
    return fingerprint({**_settings(located), "sources": sources, "inputs": _contents(inputs)})


def reading_key(located: LocatedCorpus, fetched: Fetched) -> str:
    """The fingerprint of the cleaned text: what was found, by contents, and how it is read and cleaned."""
    sources = {split: [_as_read(source) for source in sources] for split, sources in fetched.sources.items()}
    return fingerprint({**_settings(located), "sources": sources, "inputs": _contents(fetched.inputs)})


def fingerprint(values: dict[str, Any]) -> str:
    """The SHA-256 of values that JSON can hold, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _settings(located: LocatedCorpus) -> dict[str, Any]:
    corpus = located.corpus
    return {
        "version": _PIPELINE_VERSION,
        "languages": corpus.languages.model_dump(),
        "generator": corpus.generator and corpus.generator.model_dump(),
        "limit": corpus.limit,
        "cleaning": corpus.cleaning.model_dump(),
    }


def _contents(inputs: Sequence[InputRecord]) -> list[tuple[str, str]]:
    return [(record.split, record.sha256) for record in inputs]


def _declared(source: Source) -> dict[str, Any]:
    """A source without the paths of local files, and an archive of known checksum without its address."""
    values = source.model_dump()
    match source:
        case TextSource():
            is_remote = is_address(source.source or "")
            dropped = set() if is_remote else {"prefix", "source", "target"}
        case TsvSource() | JsonlSource() | ParquetSource():
            dropped = set() if is_address(source.file) else {"file"}
        case ArchiveSource():
            dropped = {"file", "bytes", *(["url"] if source.sha256 else [])}
        case TestsetSource():
            dropped = set()
        case HubSource():
            dropped = set()
            values["otherwise"] = [_declared(one) for one in source.otherwise]
        case _:
            assert_never(source)
    return {key: value for key, value in values.items() if key not in dropped}


def _as_read(source: LocalSource) -> dict[str, Any]:
    """How a local source is read, wherever it lies."""
    values = {field.name: getattr(source, field.name) for field in fields(source)}
    where = {"origin", "generator", *(name for name, value in values.items() if isinstance(value, Path))}
    return {"kind": type(source).__name__, **{name: value for name, value in values.items() if name not in where}}


def _local_files(source: Source, located: LocatedCorpus) -> Iterator[Path]:
    """The local files of a source, also those in the mirror that take the place of members of archives.

    What stands in for the hub is not among them: it need not be there, and is by declaration the same text.
    """
    folder = located.folder
    match source:
        case TextSource():
            if not is_address(source.source or ""):
                for pair in text_pairs(source, languages=located.corpus.languages, folder=folder):
                    yield from pair
        case TsvSource() | JsonlSource() | ParquetSource():
            if not is_address(source.file):
                yield from matching_files(source.file, folder=folder)
        case ArchiveSource():
            if source.file is not None:
                yield folder / source.file
            yield from Mirror(located.corpus.mirror, folder=folder).members(source) or ()
        case TestsetSource():
            return
        case HubSource():
            if source.is_local:
                directory = folder / source.repository
                if not directory.is_dir():
                    raise DataError(
                        f"no such directory: {directory}", where=str(directory), hint="check the path of the repository"
                    )
                yield from sorted(path for path in directory.rglob("*") if path.is_file())
        case _:
            assert_never(source)
