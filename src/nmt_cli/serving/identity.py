"""Which model stands in a directory, so that another one that came to stand there is noticed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from nmt_cli.bundle.config import DAMAGED
from nmt_cli.bundle.manifest import read_manifest
from nmt_cli.errors import ModelError


def digest_of(directory: Path) -> str:
    """Twelve characters made of the hashes that the manifest lists: those of another model are others.

    ModelError where the manifest cannot be read.
    """
    listed = read_manifest(directory, error=ModelError, hint=DAMAGED)["files"]
    return hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()[:12]


def stands_in(directory: Path, digest: str) -> bool:
    """Whether the model of that digest stands there; not where there is none, or one that cannot be read."""
    try:
        return digest_of(directory) == digest
    except ModelError:
        return False
