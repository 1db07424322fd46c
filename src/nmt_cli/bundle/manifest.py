"""The list of a directory's files with sizes and SHA-256: what is damaged or mixed up is noticed before it is used."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from nmt_cli import files
from nmt_cli.errors import NmtError

MANIFEST = "manifest.json"
_FORMAT = 1
# Files that people write or change by hand, on a model hub for example: neither listed nor foreign.
_FREE = frozenset({"README.md", "LICENSE", "NOTICE"})


def write_manifest(directory: Path, fields: Mapping[str, Any]) -> None:
    """Write manifest.json: the format, `fields`, and size and SHA-256 of every file in `directory` but the card's."""
    if clash := {"format", "files"} & fields.keys():
        raise ValueError(f"reserved in a manifest: {', '.join(sorted(clash))}")
    listed = {
        path.name: {"bytes": path.stat().st_size, "sha256": files.sha256(path)}
        for path in sorted(directory.iterdir())
        if path.is_file() and path.name not in _FREE | {MANIFEST}
    }
    content = {"format": _FORMAT, **fields, "files": listed}
    (directory / MANIFEST).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_manifest(directory: Path, *, error: type[NmtError], hint: str) -> dict[str, Any]:
    """All of manifest.json, `files` included, without a look at the files; `error` where it is missing or damaged."""
    where = str(directory / MANIFEST)
    content = files.read_json(directory / MANIFEST, error=error, hint=hint)
    if not isinstance(content, dict) or not _lists_files(content.get("files")):
        raise error(f"{MANIFEST} is damaged: it lists no files", where=where, hint=hint)
    if content.get("format") != _FORMAT:
        raise error(
            f"{MANIFEST} has format {content.get('format')!r}, but this nmt reads format {_FORMAT}",
            where=where,
            hint="install the version of nmt that wrote it, or a newer one: pip install -U nmt-cli",
        )
    return content


def verify(
    directory: Path, *, error: type[NmtError], hint: str, hashed: Collection[str] | None = None
) -> dict[str, Any]:
    """The manifest's fields, once every listed file is there, has its size and its SHA-256, and no other file is there.

    `hashed` restricts the SHA-256, the slow part, to these files; None: all. Raises `error` with `hint` for the first
    file that is missing, truncated, changed or foreign; hidden files, folders and the card may come and go.
    """
    manifest = read_manifest(directory, error=error, hint=hint)
    listed = manifest["files"]
    for name, entry in listed.items():
        _check_size(directory / name, entry["bytes"], error=error, hint=hint)
    for path in sorted(directory.iterdir()):
        known = path.name in listed or path.name in _FREE | {MANIFEST}
        if not known and path.is_file() and not path.name.startswith("."):
            raise error(
                f"{path.name} does not belong in this directory: its {MANIFEST} does not list it",
                where=str(path),
                hint=f"move it elsewhere: mv {path} {directory.parent}",
            )
    for name in listed if hashed is None else sorted(hashed):
        if name not in listed:
            raise error(f"{name} is not listed in {MANIFEST}", where=str(directory / MANIFEST), hint=hint)
        if _sha256(directory / name, error=error) != listed[name]["sha256"]:
            raise error(
                f"{name} was changed after it was written, or comes from another directory: its SHA-256 is not"
                f" the one in {MANIFEST}",
                where=str(directory / name),
                hint=hint,
            )
    return {key: value for key, value in manifest.items() if key not in ("format", "files")}


def _sha256(path: Path, *, error: type[NmtError]) -> str:
    try:
        return files.sha256(path)
    except PermissionError:
        raise files.unreadable(path, name=path.name, error=error) from None


def _check_size(path: Path, expected: int, *, error: type[NmtError], hint: str) -> None:
    if not path.is_file():
        raise error(f"{path.name} is missing", where=str(path), hint=hint)
    size = path.stat().st_size
    if size < expected:
        raise error(f"{path.name} is cut short: {size:,} of {expected:,} bytes", where=str(path), hint=hint)
    if size > expected:
        raise error(f"{path.name} was changed: {size:,} bytes instead of {expected:,}", where=str(path), hint=hint)


def _lists_files(listed: Any) -> bool:
    """True for a mapping of plain file names to sizes and hashes: a name never leads out of the directory."""
    return isinstance(listed, dict) and all(
        Path(name).name == name
        and isinstance(entry, dict)
        and isinstance(entry.get("bytes"), int)
        and isinstance(entry.get("sha256"), str)
        for name, entry in listed.items()
    )
