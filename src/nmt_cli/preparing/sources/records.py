"""Records of inputs: sizes and hashes of files, each read once by a process, and of generated text."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from nmt_cli.dataset.manifest import InputRecord
from nmt_cli.errors import DataError
from nmt_cli.files import reading_errors, sha256
from nmt_cli.preparing.reading.readers import GeneratedText, read_chunks


def file_record(split: str, name: str, path: Path) -> InputRecord:
    """The record of a file under a name; DataError where it is missing or empty."""
    with reading_errors(path):
        record = InputRecord(split=split, name=name, bytes=path.stat().st_size, sha256=file_hash(path))
    if record.bytes == 0:
        raise DataError(f"{path.name} is empty", where=str(path), hint="give a file with one sentence a line")
    return record


def generated_record(source: GeneratedText, *, name: str) -> InputRecord:
    """The record of generated text: its grammar may change from one version of nmt to the next."""
    digest, size = hashlib.sha256(), 0
    for chunk in read_chunks([source]):
        text = "".join(f"{src}\t{tgt}\n" for src, tgt in zip(chunk.src, chunk.tgt, strict=True)).encode()
        digest.update(text)
        size += len(text)
    return InputRecord(split=source.split, name=name, bytes=size, sha256=digest.hexdigest())


def file_hash(path: Path) -> str:
    """The SHA-256 of a file; computed once, unless the file changes."""
    facts = path.stat()
    return _hash(path, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=4096)
def _hash(path: Path, size: int, changed: int) -> str:
    return sha256(path)


def relative_name(path: Path, folder: Path) -> str:
    """A path as it is named in records: from the corpus file's folder on, where it lies below that."""
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()
