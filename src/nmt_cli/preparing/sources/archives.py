"""Files out of archives: found by path or by the last part of it, unpacked once, into the cache."""

from __future__ import annotations

import difflib
import lzma
import shlex
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from nmt_cli.errors import DataError
from nmt_cli.files import open_bytes, reading_errors
from nmt_cli.preparing.sources.cache import cache_folder, held, writing_errors

_BLOCK = 1 << 20


def unpack(archive: Path, members: Sequence[str], *, sha256: str) -> list[Path]:
    """The members of an archive with this SHA-256 as files, unpacked if they are not yet.

    A member is named by its path or the last part of that. DataError lists near names where there is none, and says
    what to do with an archive that is cut short.
    """
    folder = cache_folder() / "unpacked" / sha256[:32]
    files = [folder.joinpath(*_parts(member)) for member in members]
    with held(folder):
        if not all(file.is_file() for file in files):
            temporary = folder.with_name(f".{folder.name}.partial")
            with writing_errors(folder):
                shutil.rmtree(temporary, ignore_errors=True)
                try:
                    _write(archive, members, [temporary.joinpath(*_parts(member)) for member in members])
                    for file in dict.fromkeys(files):
                        file.parent.mkdir(parents=True, exist_ok=True)
                        (temporary / file.relative_to(folder)).replace(file)
                finally:
                    shutil.rmtree(temporary, ignore_errors=True)
    return files


def _write(archive: Path, members: Sequence[str], files: Sequence[Path]) -> None:
    """Write each member to its file; of several members with the same last part, the path decides."""
    wanted = dict(zip(members, files, strict=True))
    similar: dict[str, list[str]] = {member: [] for member in wanted}
    names: list[str] = []
    with _damage(archive), _open(archive) as entries:
        for name, copy in entries:
            names.append(name)
            for member, file in list(wanted.items()):
                is_exact, is_similar = _parts(name) == _parts(member), _parts(name)[-1:] == _parts(member)[-1:]
                if is_exact or (is_similar and not similar[member]):
                    file.parent.mkdir(parents=True, exist_ok=True)
                    copy(file)
                if is_exact:
                    del wanted[member]
                elif is_similar:
                    similar[member].append(name)
            if not wanted:
                return
    for member in wanted:
        if len(similar[member]) != 1:
            raise _no_member(archive, member, similar[member] or names, is_ambiguous=bool(similar[member]))


@contextmanager
def _open(archive: Path) -> Iterator[Iterator[tuple[str, Callable[[Path], None]]]]:
    """The files in an archive in their order: the name of each, and a function that writes it to a path."""
    if _begins_with(archive, b"PK"):  # by content: an address need not end in .zip
        with reading_errors(archive), zipfile.ZipFile(archive) as zipped:
            yield ((info.filename, _copier(zipped.open, info)) for info in zipped.infolist() if not info.is_dir())
    elif archive.name.endswith(".zst"):
        with open_bytes(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            yield _of_tar(tar)
    else:
        with reading_errors(archive), tarfile.open(archive, mode="r|*") as tar:
            yield _of_tar(tar)


def _begins_with(archive: Path, magic: bytes) -> bool:
    with reading_errors(archive), archive.open("rb") as stream:
        return stream.read(len(magic)) == magic


def _of_tar(tar: tarfile.TarFile) -> Iterator[tuple[str, Callable[[Path], None]]]:
    for info in tar:
        if info.isfile():
            yield info.name, _copier(tar.extractfile, info)


def _copier(open_entry: Callable[..., IO[bytes] | None], info: object) -> Callable[[Path], None]:
    def copy(target: Path) -> None:
        stream = open_entry(info)
        assert stream is not None  # as for every entry that is a file
        with stream, target.open("wb") as file:
            shutil.copyfileobj(stream, file, _BLOCK)

    return copy


def _parts(name: str) -> tuple[str, ...]:
    """The parts of a member's path; none of them leads out of a folder."""
    return tuple(part for part in PurePosixPath(name).parts if part not in ("/", ".", ".."))


@contextmanager
def _damage(archive: Path) -> Iterator[None]:
    """Raise DataError where the block finds that an archive is not whole."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError) as problem:
        reason = str(problem) or type(problem).__name__
    except OSError as problem:
        if problem.errno is not None:  # of the disk; damage to gzip or bzip2 has no number
            raise
        reason = str(problem)
    else:
        return
    is_ours = archive.is_relative_to(cache_folder())
    raise DataError(
        f"{archive.name} is damaged or cut short: {reason}",
        where=str(archive),
        hint=f"fetch it again: rm {shlex.quote(str(archive))}, then give the same command again"
        if is_ours
        else "check that it is a .tar or .zip archive, or fetch it again",
    )


def _no_member(archive: Path, member: str, names: Sequence[str], *, is_ambiguous: bool) -> DataError:
    if is_ambiguous:
        return DataError(
            f"{archive.name} has {len(names)} members called {PurePosixPath(member).name}",
            where=str(archive),
            hint=f"write the whole path of one: {', '.join(names[:8])}",
        )
    by_end = {PurePosixPath(name).name: name for name in names}
    near = difflib.get_close_matches(PurePosixPath(member).name, by_end, n=4, cutoff=0.6)
    shown = ", ".join(by_end[name] for name in near) if near else ", ".join(sorted(names)[:8])
    return DataError(
        f"{archive.name} has no member {member}",
        where=str(archive),
        hint=f"{'near it there are' if near else 'there are'} {shown}" if names else "it has no files at all",
    )
