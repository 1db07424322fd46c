"""What a corpus is read from: the files behind its sources, with sizes and hashes, and the fingerprint of it all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_never

from nmt_cli.dataset.manifest import InputRecord
from nmt_cli.errors import DataError
from nmt_cli.files import reading_errors, sha256
from nmt_cli.preparing.corpora import (
    HubSource,
    JsonlSource,
    LanguagePair,
    LocatedCorpus,
    Source,
    Split,
    TextSource,
    TsvSource,
)
from nmt_cli.preparing.readers import read_split, text_files

# Raised when the same inputs and settings give other prepared data than before.
_PIPELINE_VERSION = 1
_FILE_KEYS: dict[str, set[str]] = {
    "text": {"prefix", "source", "target"},
    "tsv": {"file"},
    "jsonl": {"file"},
    "hub": set(),
}


def find_inputs(located: LocatedCorpus) -> list[InputRecord]:
    """Every file that the corpus is read from, hashed, or the text of a generator; none of a repository on the hub.

    Raises DataError where a file is missing or empty.
    """
    corpus = located.corpus
    records = []
    for split in corpus.splits:
        if corpus.generator is not None:
            records.append(_generated_record(located, split))
        for source in corpus.sources(split):
            for path in source_files(source, languages=corpus.languages, folder=located.folder):
                records.append(_record(split, path, located.folder))
    return records


def source_files(source: Source, *, languages: LanguagePair, folder: Path) -> Iterator[Path]:
    """The local files of a source: none for a repository on the hub."""
    match source:
        case TextSource():
            yield from text_files(source, languages=languages, folder=folder)
        case TsvSource() | JsonlSource():
            yield folder / source.file
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


def reading_key(located: LocatedCorpus, inputs: list[InputRecord]) -> str:
    """The fingerprint of the cleaned text: the inputs' contents (not their paths) and how they are read and cleaned."""
    corpus = located.corpus
    return fingerprint(
        {
            "version": _PIPELINE_VERSION,
            "languages": corpus.languages.model_dump(),
            "generator": corpus.generator and corpus.generator.model_dump(),
            "sources": {
                split: [source.model_dump(exclude=_FILE_KEYS[source.kind]) for source in corpus.sources(split)]
                for split in corpus.splits
            },
            "inputs": [(record.split, record.sha256) for record in inputs],
            "limit": corpus.limit,
            "cleaning": corpus.cleaning.model_dump(),
        }
    )


def fingerprint(values: dict[str, Any]) -> str:
    """The SHA-256 of values that JSON can hold, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _generated_record(located: LocatedCorpus, split: Split) -> InputRecord:
    """The record of generated text: its grammar may change from one version of nmt to the next."""
    digest, size = hashlib.sha256(), 0
    for chunk in read_split(located, split):
        text = "".join(f"{src}\t{tgt}\n" for src, tgt in zip(chunk.src, chunk.tgt, strict=True)).encode()
        digest.update(text)
        size += len(text)
    return InputRecord(split=split, name=f"{located.corpus.name} {split}", bytes=size, sha256=digest.hexdigest())


def _record(split: str, path: Path, folder: Path) -> InputRecord:
    name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()
    with reading_errors(path):
        record = InputRecord(split=split, name=name, bytes=path.stat().st_size, sha256=sha256(path))
    if record.bytes == 0:
        raise DataError(f"{path.name} is empty", where=str(path), hint="give a file with one sentence a line")
    return record
