"""Mirrors: a folder, or a place on the web, that has archives by their names, or the files that are packed in them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import assert_never

from nmt_cli.errors import DataError
from nmt_cli.preparing.sources.downloads import exists
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

_PACKINGS = (".gz", ".zst")


class Mirror:
    """The mirror of a corpus; without a place it has nothing."""

    def __init__(self, place: str | None, *, folder: Path) -> None:
        """`place` is a folder, which starts at `folder` or at the current one, or the address of one.

        DataError where it is no folder.
        """
        self.place = place
        self._address = place.rstrip("/") if place is not None and is_address(place) else None
        self._directory: Path | None = None
        if place is not None and self._address is None:
            path = Path(place).expanduser()
            self._directory = next((one for one in (folder / path, path) if one.is_dir()), None)
            if self._directory is None:
                raise DataError(
                    f"the mirror {place} is not a folder",
                    where=", ".join(dict.fromkeys(str(one) for one in (folder / path, path.absolute()))),
                    hint="name the folder that has the archives, or their unpacked files: --set mirror=FOLDER",
                )

    def file(self, url: str) -> Path | str | None:
        """What the mirror has in place of an address: a file, another address, or nothing."""
        name = url.rsplit("/", 1)[-1]
        if self._address is not None:
            address = f"{self._address}/{name}"
            return address if exists(address) else None
        return self._find(name)

    def members(self, source: ArchiveSource) -> tuple[Path, Path] | None:
        """The two files that are packed in an archive, where the mirror has them unpacked, and not the archive."""
        if self._directory is None or source.url is None or self._find(source.name) is not None:
            return None
        src, tgt = self._find(source.source), self._find(source.target)
        return None if src is None or tgt is None else (src, tgt)

    def has_all(self, sources: Sequence[Source]) -> bool:
        """True where it has everything that would be downloaded for these sources, and that is something."""
        if self.place is None:
            return False
        wanted = [name for source in sources for name, _ in self._wanted(source)]
        return bool(wanted) and not self.missing(sources)

    def missing(self, sources: Sequence[Source]) -> list[str]:
        """What would be downloaded for these sources and is not in the mirror, by name."""
        return list(dict.fromkeys(name for source in sources for name, is_here in self._wanted(source) if not is_here))

    def _wanted(self, source: Source) -> Iterator[tuple[str, bool]]:
        """Each thing that is downloaded for a source, by name, and whether the mirror has it."""
        match source:
            case ArchiveSource():
                if source.url is not None:
                    yield source.name, self.members(source) is not None or self.file(source.url) is not None
            case TextSource():
                urls = [url for url in (source.source, source.target) if url is not None and is_address(url)]
                yield from ((url.rsplit("/", 1)[-1], self.file(url) is not None) for url in urls)
            case TsvSource() | JsonlSource() | ParquetSource():
                if is_address(source.file):
                    yield source.file.rsplit("/", 1)[-1], self.file(source.file) is not None
            case TestsetSource():
                yield source.name, False
            case HubSource():
                yield source.repository, False
            case _:
                assert_never(source)

    def _find(self, name: str) -> Path | None:
        """The file whose path ends in `name`, else whose last part is that of `name`; packed or not."""
        wanted = PurePosixPath(name)
        for ending in ("", *_PACKINGS):
            stem = wanted.name.removesuffix(ending) if ending and wanted.name.endswith(ending) else wanted.name + ending
            found = self._index.get(stem, [])
            exact = [path for path in found if path.parts[-len(wanted.parts) : -1] == wanted.parts[:-1]]
            if len(exact or found) > 1:
                shown = ", ".join(map(str, (exact or found)[:4]))
                raise DataError(f"the mirror has {stem} more than once", where=shown, hint="leave one of them there")
            if found:
                return (exact or found)[0]
        return None

    @cached_property
    def _index(self) -> dict[str, list[Path]]:
        """The files of the folder by their names."""
        index: dict[str, list[Path]] = {}
        for directory, _, names in sorted(os.walk(self._directory)) if self._directory is not None else []:
            for name in names:
                index.setdefault(name, []).append(Path(directory, name))
        return index
