"""The inputs of a preparation: local files found, all others fetched, and the fingerprints of both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from nmt_cli.console import Progress
from nmt_cli.dataset.manifest import InputRecord
from nmt_cli.errors import DataError
from nmt_cli.files import reading_errors
from nmt_cli.preparing.corpus import LocatedCorpus, parse_source
from nmt_cli.preparing.download import file_hash
from nmt_cli.preparing.sources.base import LocalPairs, Source, Split

# Raised when the same inputs and settings give other prepared data than before.
_PIPELINE_VERSION = 2


@dataclass(frozen=True, slots=True)
class FetchedInputs:
    """The sources of each split as local files, in reading order, and a record of every file."""

    sources: dict[Split, list[LocalPairs]]
    records: list[InputRecord]


def find_local_inputs(located: LocatedCorpus) -> list[InputRecord]:
    """A record of every local file of the corpus; nothing is downloaded.

    Raises DataError if a file is missing or empty.
    """
    at = located.location()
    return [
        _record(split, at.name(path), path)
        for split in located.corpus.splits
        for source in located.corpus.sources(split)
        for path in source.files(at)
    ]


def describe_remote_inputs(located: LocatedCorpus) -> Iterator[tuple[Split, str]]:
    """The downloads of each split, in words."""
    for split in located.corpus.splits:
        for source in located.corpus.sources(split):
            for description in source.describe():
                yield split, description


def fetch_inputs(located: LocatedCorpus, *, progress: Progress) -> FetchedInputs:
    """Download the missing files of a corpus; with a limit, only the files that the limit needs.

    Raises DataError if a source cannot be had or is not what it should be.
    """
    corpus, at = located.corpus, located.location()
    fetched = FetchedInputs({split: [] for split in corpus.splits}, [])
    for split in corpus.splits:
        left = corpus.limit if split == "train" else None
        for pairs in (pairs for source in corpus.sources(split) for pairs in source.fetch(at, progress=progress)):
            fetched.sources[split].append(pairs)
            fetched.records.extend(_record(split, name, path) for name, path in pairs.inputs)
            if left is not None:
                left -= pairs.count(most=left)
                if left == 0:
                    break
    return fetched


def declared_key(located: LocatedCorpus, inputs: Sequence[InputRecord], *, earlier: Mapping[str, Any]) -> str:
    """The fingerprint of a corpus file: contents of local files, names and checksums of all others.

    `inputs` come from `find_local_inputs`. No network is needed, so prepared data is recognised by this fingerprint.
    `earlier` is the corpus of a manifest to compare with: see `_declared`.
    """
    corpus = located.corpus
    sources = {
        split: [_declared(source, old) for source, old in _beside(corpus.sources(split), earlier.get(split))]
        for split in corpus.splits
    }
    return fingerprint({**_settings(located), "sources": sources, "inputs": _contents(inputs)})


def reading_key(located: LocatedCorpus, fetched: FetchedInputs) -> str:
    """The fingerprint of the cleaned text: the contents of all files, and how they are read and cleaned."""
    sources = {split: [pairs.key() for pairs in sources] for split, sources in fetched.sources.items()}
    return fingerprint({**_settings(located), "sources": sources, "inputs": _contents(fetched.records)})


def fingerprint(values: dict[str, Any]) -> str:
    """The SHA-256 of values that JSON can hold, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _settings(located: LocatedCorpus) -> dict[str, Any]:
    corpus = located.corpus
    return {
        "version": _PIPELINE_VERSION,
        "languages": corpus.languages.model_dump(),
        "generator": None,  # a former key of corpus files, which belongs to the fingerprints of prepared data
        "limit": corpus.limit,
        "cleaning": corpus.cleaning.model_dump(),
    }


def _contents(inputs: Sequence[InputRecord]) -> list[tuple[str, str]]:
    return [(record.split, record.sha256) for record in inputs]


def _declared(source: Source, old: Mapping[str, Any]) -> dict[str, Any]:
    """The key of a source. A source of the hub gets the `otherwise` that a manifest has for it."""
    key = source.key()
    if "otherwise" in key:
        key["otherwise"] = [parse_source(one).key() for one in old.get("otherwise", [])]
    return key


def _beside(
    sources: Sequence[Source], old: Sequence[Mapping[str, Any]] | None
) -> Iterator[tuple[Source, Mapping[str, Any]]]:
    """Each source with the values that a manifest has in its place."""
    return zip(sources, chain(old or [], repeat({})), strict=False)


def _record(split: Split, name: str, path: Path) -> InputRecord:
    """The record of a file under a name; DataError if it is missing or empty."""
    with reading_errors(path):
        record = InputRecord(split=split, name=name, bytes=path.stat().st_size, sha256=file_hash(path))
    if record.bytes == 0:
        raise DataError(f"{path.name} is empty", where=str(path), hint="give a file with one sentence a line")
    return record
