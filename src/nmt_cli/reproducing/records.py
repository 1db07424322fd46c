"""What a finished stage was made from and has made, by their hashes: it is repeated where either has changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from nmt_cli.bundle.manifest import MANIFEST
from nmt_cli.errors import DataError
from nmt_cli.files import sha256, write_file

# Of a file or a directory, by what it is in the stage: the SHA-256 of its content.
Identities = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Record:
    """A stage as it ended: its command, what it read and wrote, and the seconds that its last process took."""

    command: Sequence[str]
    made_from: Identities
    made: Identities
    seconds: float


def write_record(file: Path, record: Record) -> None:
    """Keep the record of a stage that has ended well."""
    write_file(file, json.dumps(asdict(record), indent=2, ensure_ascii=False) + "\n", error=DataError)


def read_record(file: Path) -> Record | None:
    """The record of a stage; None where there is none that can be read, and the stage is to be run."""
    try:
        return Record(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def model_identity(directory: Path) -> str:
    """The identity of a model directory: its manifest has the hash of every file."""
    return sha256(directory / MANIFEST)
