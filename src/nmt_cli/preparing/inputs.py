"""The inputs of a preparation: local files found, all others fetched, and the fingerprints of both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nmt_cli.cache import file_hash
from nmt_cli.console import Progress
from nmt_cli.dataset.data_manifest import InputRecord
from nmt_cli.errors import DataError
from nmt_cli.files import reading_errors
from nmt_cli.preparing.alignments import with_alignments
from nmt_cli.preparing.corpus import LocatedCorpus
from nmt_cli.preparing.sources.base import LocalSource, Source, Split, empty_error
from nmt_cli.text_encoding import is_unicode

# Raised when the same inputs and settings give other token files than before.
_PIPELINE_VERSION = 4


@dataclass(frozen=True, slots=True)
class FetchedInputs:
    """The sources of each split as local files, in reading order, and a record of every file."""

    sources: dict[Split, list[LocalSource]]
    records: list[InputRecord]


def find_local_inputs(located: LocatedCorpus) -> list[InputRecord]:
    """A record of every local file of the corpus; nothing is downloaded.

    Raises DataError if a file is missing or empty.
    """
    return [
        _input_record(split, context.name(path), path)
        for split in located.corpus.splits
        for source in located.corpus.sources(split)
        for context in [located.context(source)]
        for path in [*source.files(context), *([context.folder / source.alignments] if source.alignments else [])]
    ]


def fetch_inputs(located: LocatedCorpus, *, progress: Progress, downloads_newer_than: float = 0.0) -> FetchedInputs:
    """Download the missing files of a corpus; with a limit, only the files that the limit needs.

    `downloads_newer_than` is as in `CorpusContext`. Raises DataError if a source cannot be fetched, or is not the file
    that it should be.
    """
    corpus = located.corpus
    fetched = FetchedInputs({split: [] for split in corpus.splits}, [])
    for split in corpus.splits:
        pairs_left = [corpus.limit if split == "train" else None for _ in corpus.directions.pairs]
        for source in corpus.sources(split):
            direction = corpus.direction_of(source)
            if pairs_left[direction] == 0:
                continue
            context = located.context(source, downloads_newer_than=downloads_newer_than)
            for local in with_alignments(source, source.fetch(context, progress=progress), context):
                fetched.sources[split].append(
                    replace(
                        local,
                        weight=source.weight,
                        direction=direction,
                        tags=source.tag_symbols,
                        is_synthetic=source.synthetic,
                    )
                )
                fetched.records.extend(_input_record(split, name, path) for name, path in local.inputs)
                if (left := pairs_left[direction]) is not None:
                    pairs_left[direction] = left = left - local.count(most=left)
                    if left == 0:
                        break
    return fetched


def text_fingerprint(located: LocatedCorpus, inputs: Sequence[InputRecord]) -> str:
    """The fingerprint of clean text: contents of local files, names and checksums of all others, and how it is cleaned.

    With the inputs of `find_local_inputs` it needs no network. With the records of `fetch_inputs` it covers the
    contents of all files. `pipeline.py` says what each is compared with.
    """
    corpus = located.corpus
    sizes = {f"{split}_size": getattr(corpus, f"{split}_size") for split in corpus.set_aside}
    pairs = corpus.directions.pairs
    directions = {split: list(map(corpus.direction_of, corpus.sources(split))) for split in corpus.splits}
    return fingerprint_of(
        {
            "version": _PIPELINE_VERSION,
            "languages": pairs[0].model_dump() if len(pairs) == 1 else list(map(str, pairs)),
            "limit": corpus.limit,
            "cleaning": corpus.cleaning.model_dump(),
            "sources": {split: [_identity(source) for source in corpus.sources(split)] for split in corpus.splits},
            **({"directions": directions} if len(pairs) > 1 else {}),
            "inputs": [(record.split, record.sha256) for record in inputs],
            **({"set_aside": {**sizes, "seed": corpus.split_seed}} if sizes else {}),
        }
    )


def fingerprint_before_selection(located: LocatedCorpus, inputs: Sequence[InputRecord]) -> str:
    """The `text_fingerprint` of a corpus with the usual selection of pairs, whatever its own is."""
    usual = {"duplicates": True, "several_translations": "all", "overlap": "report"}
    cleaning = located.corpus.cleaning.model_copy(update=usual)
    settings = {"valid_size": None, "test_size": None, "split_seed": 1, "cleaning": cleaning}
    return text_fingerprint(replace(located, corpus=located.corpus.model_copy(update=settings)), inputs)


def fingerprint_of(values: dict[str, Any]) -> str:
    """The SHA-256 of values that JSON can hold, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _identity(source: Source) -> dict[str, Any]:
    """The identity of a source without its languages, and without the path of its alignments, which are an input."""
    return {key: value for key, value in source.identity().items() if key not in ("alignments", "languages")}


def _input_record(split: Split, name: str, path: Path) -> InputRecord:
    """The record of a file under a name; DataError if it is missing, empty or a pipe, or the name is not Unicode."""
    if not is_unicode(name):
        raise DataError("the name of a file is not UTF-8", where=ascii(name), hint="give the file a name in UTF-8")
    if path.exists() and not path.is_file() and not path.is_dir():
        hint = "write the text to a file, and give the file"
        raise DataError(f"{path} is a pipe or a device, and nmt prepare reads a text twice", where=str(path), hint=hint)
    with reading_errors(path):
        record = InputRecord(split=split, name=name, bytes=path.stat().st_size, sha256=file_hash(path))
    if record.bytes == 0:
        raise empty_error(path, below_header=False)
    return record
