"""The translations of a file before they are complete: the lines so far, their job, and the place to continue."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmt_cli import files
from nmt_cli.artifacts.manifest import MANIFEST
from nmt_cli.errors import DataError, UsageError

_BLOCK = 1 << 20


class PartialOutput:
    """FILE.partial beside the output, and FILE.partial.json, which describes the job.

    A process may be killed at any moment, so only complete lines of FILE.partial count.
    """

    def __init__(self, output: Path) -> None:
        self.path = output.with_name(f"{output.name}.partial")
        self._record = output.with_name(f"{output.name}.partial.json")

    @property
    def files(self) -> tuple[Path, Path]:
        """Both files."""
        return self.path, self._record

    def begin(self, job: Mapping[str, Any], *, may_replace: bool, rows_are_numbered: bool) -> int:
        """The number of input lines that are done; everything after the last of them is cut off.

        Where FILE.partial belongs to another `job`, or nothing says to which, it is begun anew if `may_replace`, else
        UsageError says so, and what differs. With `rows_are_numbered` an input line has several rows that begin with
        its number, and the last one's may not be all.
        """
        known = self._known()
        is_same = known is not None and _without_paths(known) == _without_paths(job)
        if known is not None and not is_same and not may_replace:
            raise UsageError(
                f"{self.path} was begun otherwise: {_differences(known, job)}",
                where=str(self.path),
                hint="give the command of then to continue it, or add --overwrite to begin anew",
            )
        if not is_same:
            self.begin_anew(may_replace=may_replace)
            files.write_file(self._record, json.dumps(job, indent=2) + "\n", error=DataError)
            return 0
        done, size = _complete_numbered(self.path) if rows_are_numbered else _complete(self.path)
        os.truncate(self.path, size)
        return done

    def begin_anew(self, *, may_replace: bool) -> None:
        """Remove both files; UsageError if there is text, unless `may_replace`."""
        has_text = self.path.exists() and self.path.stat().st_size > 0
        if has_text and not may_replace:
            raise UsageError(
                f"{self.path} has translations of an earlier command, which this one cannot continue",
                where=str(self.path),
                hint="rename it to keep them, or add --overwrite to begin anew",
            )
        self.forget()
        self.path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove the record, once the output is complete or is not to be continued."""
        self._record.unlink(missing_ok=True)

    def _known(self) -> Mapping[str, Any] | None:
        """The job on record, if there is one and its text exists."""
        try:
            known = json.loads(self._record.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return known if isinstance(known, dict) and self.path.is_file() else None


def file_identity(path: Path) -> dict[str, Any]:
    """The size and SHA-256 of a file, which take seconds beside hours of translation.

    The path is for messages only, since a moved file is still the same; a manifest has the path of its directory.
    """
    shown = path.parent if path.name == MANIFEST else path
    with files.reading_errors(path):
        return {"bytes": path.stat().st_size, "sha256": files.sha256(path), "path": str(shown.absolute())}


def _complete(path: Path) -> tuple[int, int]:
    """The lines of a file that have an end, and the bytes that they take."""
    lines = size = place = 0
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            lines += block.count(b"\n")
            last = block.rfind(b"\n")
            size = place + last + 1 if last >= 0 else size
            place += len(block)
    return lines, size


def _complete_numbered(path: Path) -> tuple[int, int]:
    """The number of complete lines, and the byte where the rows of the last, perhaps incomplete, line begin."""
    number = start = place = 0
    with path.open("rb") as stream:
        for row in stream:
            if not row.endswith(b"\n"):
                break
            found = int(row.partition(b"\t")[0])
            if found != number:
                number, start = found, place
            place += len(row)
    return max(0, number - 1), start


def _without_paths(job: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {key: part for key, part in value.items() if key != "path"} if isinstance(value, dict) else value
        for name, value in job.items()
        if value is not None
    }


def _differences(known: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    before, now = _without_paths(known), _without_paths(job)
    changed = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    return "; ".join(_difference(name, known.get(name), job.get(name)) for name in changed)


def _difference(name: str, before: Any, now: Any) -> str:
    if isinstance(before, dict) and isinstance(now, dict) and _short(before) == _short(now):
        return f"{name} is {_short(now)}, which has changed since"
    return f"{name} was {_short(before)} and is {_short(now)}"


def _short(value: Any) -> str:
    return str(value.get("path", "another file")) if isinstance(value, dict) else json.dumps(value)
