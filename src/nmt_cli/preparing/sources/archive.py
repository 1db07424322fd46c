"""Files of text in an archive, which is local or downloaded, and is unpacked once into the cache."""

from __future__ import annotations

import difflib
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from nmt_cli.cache import cache_folder, cache_lock, file_hash, writing_errors
from nmt_cli.console import Progress
from nmt_cli.decompression import DECOMPRESSION_ERRORS, open_bytes
from nmt_cli.errors import DataError
from nmt_cli.files import reading_errors
from nmt_cli.languages import match_code
from nmt_cli.preparing.download import check_file
from nmt_cli.preparing.sources.base import (
    CorpusContext,
    LocalSource,
    Markup,
    OneFileSource,
    Source,
    is_address,
    kind_of_file,
    name_of_kind,
)
from nmt_cli.preparing.sources.text import local_text, split_code
from nmt_cli.recipe.section import PositiveInt, SettingError

_NAMES_SHOWN = 8
_OpenEntry: TypeAlias = Callable[[], IO[bytes] | None]


class ArchiveSource(Source):
    """Two aligned text files in an archive: .tar, .tgz, .tar.gz, .tar.zst, .tar.bz2, .tar.xz or .zip."""

    place_keys = ("file", "url", "bytes", "sha256")
    endings = (".zip", ".tar", ".tgz")
    kind: Literal["archive"] = Field(description="two files of an archive")
    file: str | None = Field(None, description="path of the archive")
    url: str | None = Field(
        None, pattern=r"^https?://[^/]+/.*[^/]$", description="instead of file: where to download the archive"
    )
    bytes: PositiveInt | None = Field(None, description="its size, checked; null: not known")
    sha256: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="its SHA-256, as sha256sum prints it, checked; null: not known, recorded in the manifest",
    )
    source: str | None = Field(
        None,
        description="path of the source's file in the archive; it may be a .gz; null: the only two files NAME.en and "
        "NAME.de, or the only file of pairs, such as a .tmx",
    )
    target: str | None = Field(None, description="path of the target's file in the archive")
    markup: Markup = None

    @model_validator(mode="after")
    def _check_names(self) -> ArchiveSource:
        if (self.source is None) != (self.target is None):
            raise SettingError("an archive needs both source and target, or neither", "write source and target")
        if (self.file is None) == (self.url is None) or (self.file is not None and is_address(self.file)):
            raise SettingError("an archive needs either file or url", "write file: PATH, or url: https://HOST/PATH")
        return self

    def describe(self) -> list[str]:
        """The address of the archive, its size and its two files."""
        size = f", {self.bytes:,} bytes" if self.bytes else ""
        members = "" if self.source is None else f": {self.source}, {self.target}"
        return [] if self.url is None else [f"{self.url}{size}{members}"]

    def files(self, context: CorpusContext) -> list[Path]:
        """The archive, if it is local."""
        return [] if self.file is None else [context.folder / self.file]

    def identity(self) -> dict[str, Any]:
        """The two files and how they are read; the address only if there is no checksum."""
        return self.model_dump(exclude={"file", "bytes", *(["url"] if self.sha256 else [])})

    def fetch(self, context: CorpusContext, *, progress: Progress) -> Iterator[LocalSource]:
        """The two files, or the file of pairs, from the archive."""
        if self.url is not None:
            archive = context.download(self.url, progress=progress, size=self.bytes, sha256=self.sha256)
        else:
            archive = context.folder / (self.file or "")
        with reading_errors(archive):
            check_file(archive, size=self.bytes, sha256=self.sha256, where=str(archive))
            members = self._members(archive, context.languages)
            files = unpack(archive, members)
        name = (self.file or self.url or "").rsplit("/", 1)[-1]
        names = [f"{name}:{member}" for member in members]
        if kind := _kind_of_member(names[0]):
            source = kind.model_validate({"kind": name_of_kind(kind), "file": str(files[0])})
            yield source.local_source(files[0], names[0], context)
        else:
            yield local_text((files[0], files[1]), names=names, markup=self.markup)

    def _members(self, archive: Path, codes: tuple[str, str]) -> tuple[str, ...]:
        """The names of source and target, or of the file of pairs. DataError if there are none, or several."""
        if self.source is not None and self.target is not None:
            return self.source, self.target
        with _open_entries(archive) as entries:
            names = sorted(name for name, _ in entries)
        choices = _choices(names, codes)
        if len(choices) == 1:
            return choices[0]
        found = f"has {len(choices)} texts" if choices else f"has no text in {' and '.join(codes)}"
        example = choices[0] if choices else ("NAME",)
        hint = f"name two of its files in a corpus file, such as source: {example[0]}, target: {example[-1]}; "
        raise DataError(f"{archive.name} {found}", where=str(archive), hint=hint + _listed(names))


def _choices(names: Sequence[str], codes: tuple[str, str]) -> list[tuple[str, ...]]:
    """The texts among files: two files NAME.CODE in the two languages, or else single files of pairs."""
    names = [name for name in sorted(names) if not PurePosixPath(name).name.startswith(".")]
    families: dict[tuple[PurePosixPath, str], dict[str, str]] = {}
    for name in names:
        path = PurePosixPath(name)
        prefix, code = split_code(path.name)
        families.setdefault((path.parent, prefix), {})[code] = name
    pairs = [[match_code(code, list(family)) for code in codes] for family in families.values()]
    texts: list[tuple[str, ...]] = [
        (family[source], family[target])
        for family, (source, target) in zip(families.values(), pairs, strict=True)
        if source is not None and target is not None and source != target
    ]
    return texts or [(name,) for name in names if _kind_of_member(name)]


def _kind_of_member(name: str) -> type[OneFileSource] | None:
    """The kind of source that reads a member with this name as a file of pairs; None for text and for archives."""
    kind = kind_of_file(Path(name))
    return kind if kind is not None and issubclass(kind, OneFileSource) else None


def unpack(archive: Path, members: Sequence[str]) -> list[Path]:
    """Members of an archive as files in the cache, unpacked unless an equal archive was unpacked before.

    A member is named by its path. DataError lists similar names if there is no such member, and says what to do with an
    archive that is cut short.
    """
    folder = cache_folder() / "unpacked" / file_hash(archive)[:32]
    paths = [_path_of(member) for member in members]
    with cache_lock(folder), writing_errors(folder):
        missing = [path for path in dict.fromkeys(paths) if not (folder / path).is_file()]
        if missing:
            _extract(archive, missing, folder)
    return [folder / path for path in paths]


def _extract(archive: Path, wanted: Sequence[PurePosixPath], folder: Path) -> None:
    """Write each wanted member below a folder. DataError if one is not there."""
    missing, names = dict.fromkeys(wanted), []
    with _open_entries(archive) as entries:
        for name, open_entry in entries:
            names.append(name)
            path = _path_of(name)
            if path in missing:
                del missing[path]
                file = folder / path
                file.parent.mkdir(parents=True, exist_ok=True)
                part = file.with_name(f".{file.name}.part")
                packed = open_entry()
                assert packed is not None  # as for every entry that is a file
                with packed, part.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)
                part.replace(file)
            if not missing:
                return
    member = str(next(iter(missing)))
    near = difflib.get_close_matches(member, names, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else _listed(sorted(names))
    raise DataError(f"{archive.name} has no member {member}", where=str(archive), hint=hint)


def _listed(names: Sequence[str]) -> str:
    return f"it has {', '.join(names[:_NAMES_SHOWN]) or 'no files at all'}"


def _path_of(member: str) -> PurePosixPath:
    """The path of a member, which does not lead out of a folder."""
    return PurePosixPath(*(part for part in PurePosixPath(member).parts if part not in ("/", "..")))


@contextmanager
def _open_entries(archive: Path) -> Iterator[Iterator[tuple[str, _OpenEntry]]]:
    """The files in an archive in their order: the name of each, and a function that opens it.

    DataError if the code inside finds that the archive is damaged, encrypted, or of no known kind.
    """
    with archive.open("rb") as file:
        is_zip = file.read(2) == b"PK"  # by content: an address need not end in .zip
    try:
        if is_zip:
            with zipfile.ZipFile(archive) as zipped:
                files = (info for info in zipped.infolist() if not info.is_dir())
                yield ((info.filename, partial(zipped.open, info)) for info in files)
        else:
            with open_bytes(archive, in_utf8=False) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
                yield ((info.name, partial(tar.extractfile, info)) for info in tar if info.isfile())
        return
    except DataError as error:
        if error.where != str(archive):  # not of damage to what compresses the tar
            raise
        reason = error.message.rpartition(": ")[2]
    except (OSError, tarfile.TarError, zipfile.BadZipFile, RuntimeError, *DECOMPRESSION_ERRORS) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = str(error) or type(error).__name__
    hint = "fetch it again, or unpack it with another program and name its two files by kind: text"
    raise DataError(f"{archive.name} cannot be unpacked: {reason}", where=str(archive), hint=hint)
