"""manifest.json of a model or a checkpoint: its files with their sizes and SHA-256, written and verified.

Prepared data has a manifest of another form: `dataset/data_manifest.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt_cli import files
from nmt_cli.errors import ModelError

MANIFEST = "manifest.json"
CONFIG = "config.yaml"
WEIGHTS = "model.safetensors"
RUN_FILE = "run.json"
DAMAGED_HINT = "remove the directory, and copy or import it again, or make it again: nmt average runs/NAME"
_FORMAT = 1
LICENCE_FILES = ("LICENSE", "NOTICE")  # which a user may add


def licence_files(models: Sequence[Path]) -> dict[str, bytes]:
    """LICENSE and NOTICE of models, for a model made of them; different ones of several models follow one another."""
    contents = {
        name: dict.fromkeys((model / name).read_bytes() for model in models if (model / name).is_file())
        for name in LICENCE_FILES
    }
    return {name: b"\n".join(different) for name, different in contents.items() if different}


def write_manifest(directory: Path, fields: Mapping[str, Any]) -> None:
    """Write manifest.json: the format, `fields`, and size and SHA-256 of every file in `directory`.

    The card and the licence are not listed, because people edit them.
    """
    listed = {
        path.name: {"bytes": path.stat().st_size, "sha256": files.sha256(path)}
        for path in sorted(directory.iterdir())
        if path.is_file() and path.name not in ("README.md", *LICENCE_FILES, MANIFEST)
    }
    content = {"format": _FORMAT, **fields, "files": listed}
    (directory / MANIFEST).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_manifest(directory: Path, *, hint: str) -> dict[str, Any]:
    """The whole content of manifest.json, `files` included; no other file is read.

    Raises ModelError with `hint` if it is missing or damaged.
    """
    where = str(directory / MANIFEST)
    content = files.read_json(directory / MANIFEST, error=ModelError, hint=hint)
    if not isinstance(content, dict) or not isinstance(content.get("files"), dict):
        raise ModelError(f"{MANIFEST} is damaged: it lists no files", where=where, hint=hint)
    if content.get("format") != _FORMAT:
        raise ModelError(
            f"{MANIFEST} has format {content.get('format')!r}, but this nmt reads format {_FORMAT}",
            where=where,
            hint="install the version of nmt that wrote it, or a newer one: pip install -U nmt-cli",
        )
    return content


def verify_files(directory: Path, *, hint: str, names_to_hash: Collection[str] | None = None) -> dict[str, Any]:
    """Check that the listed files are there, unchanged, and return the manifest.

    `names_to_hash` restricts the slow check of SHA-256 to these files; None checks all. Raises ModelError with `hint`
    for the first file that is missing, truncated or changed. Other files may come and go: nothing reads them.
    """
    manifest = read_manifest(directory, hint=hint)
    listed = manifest["files"]
    for name, entry in listed.items():
        _check_size(directory / name, entry["bytes"], hint=hint)
    for name in listed if names_to_hash is None else sorted(names_to_hash):
        file = directory / name
        if name not in listed:
            raise ModelError(f"{name} is not listed in {MANIFEST}", where=str(directory / MANIFEST), hint=hint)
        try:
            digest = files.sha256(file)
        except PermissionError:
            raise files.unreadable_error(file, name=name, error=ModelError) from None
        if digest != listed[name]["sha256"]:
            changed = f"{name} was changed after it was written, or comes from another directory"
            raise ModelError(f"{changed}: its SHA-256 is not the one in {MANIFEST}", where=str(file), hint=hint)
    return manifest


def _check_size(path: Path, expected: int, *, hint: str) -> None:
    if not path.is_file():
        raise ModelError(f"{path.name} is missing", where=str(path), hint=hint)
    size = path.stat().st_size
    if size < expected:
        raise ModelError(f"{path.name} is cut short: {size:,} of {expected:,} bytes", where=str(path), hint=hint)
    if size > expected:
        raise ModelError(f"{path.name} was changed: {size:,} bytes instead of {expected:,}", where=str(path), hint=hint)


def model_digest(directory: Path) -> str:
    """Twelve characters that identify the model of a directory, made of the hashes in its manifest.

    ModelError if the manifest cannot be read.
    """
    listed = read_manifest(directory, hint=DAMAGED_HINT)["files"]
    return hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()[:12]


def holds_model(directory: Path, digest: str) -> bool:
    """Whether the directory holds the model of that digest, and its manifest can be read."""
    try:
        return model_digest(directory) == digest
    except ModelError:
        return False
