"""Files of text in an archive, which is local or downloaded, and is unpacked once into the cache."""

from __future__ import annotations

import difflib
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from nmt_cli.cache import cache_folder, cache_lock, file_hash, writing_errors
from nmt_cli.console import Progress
from nmt_cli.decompression import open_bytes
from nmt_cli.errors import DataError
from nmt_cli.files import reading_errors
from nmt_cli.languages import match_code
from nmt_cli.preparing.download import check_file
from nmt_cli.preparing.sources.base import CorpusContext, LocalPairs, Markup, OneFileSource, Source, Weight, is_address
from nmt_cli.preparing.sources.jsonl_parquet import JsonlSource, ParquetSource
from nmt_cli.preparing.sources.po import PoSource
from nmt_cli.preparing.sources.text import kind_of_file, local_text, split_code
from nmt_cli.preparing.sources.tmx_xliff import TmxSource, XliffSource
from nmt_cli.preparing.sources.tsv_csv import CsvSource, TsvSource
from nmt_cli.recipe.section import PositiveInt, SettingError

_ONE_FILE_SOURCES: Mapping[str | None, type[OneFileSource]] = {
    "tmx": TmxSource,
    "xliff": XliffSource,
    "tsv": TsvSource,
    "csv": CsvSource,
    "po": PoSource,
    "jsonl": JsonlSource,
    "parquet": ParquetSource,
}
_NAMES_SHOWN = 8
_OpenEntry: TypeAlias = Callable[[], IO[bytes] | None]


class ArchiveSource(Source):
    """Two aligned text files in an archive: .tar, .tgz, .tar.gz, .tar.zst, .tar.bz2, .tar.xz or .zip."""

    places = ("file", "url", "bytes", "sha256")
    kind: Literal["archive"] = Field(description="two files of an archive")
    file: str | None = Field(None, description="path of the archive, or of a folder that it was unpacked into")
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
    weight: Weight = 1.0

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
        """The local archive, or its two files in a folder."""
        if self.file is None:
            return []
        path = context.folder / self.file
        return [_find_in_folder(path, one) for one in self._members(path, context)] if path.is_dir() else [path]

    def identity(self) -> dict[str, Any]:
        """The two files and how they are read; the address only if there is no checksum."""
        return self.model_dump(exclude={"file", "bytes", *(["url"] if self.sha256 else [])})

    def fetch(self, context: CorpusContext, *, progress: Progress) -> Iterator[LocalPairs]:
        """The two files, or the file of pairs, from the archive or the folder."""
        if self.url is not None:
            archive = context.download(self.url, progress=progress, size=self.bytes, sha256=self.sha256)
        else:
            archive = context.folder / (self.file or "")
        with reading_errors(archive):
            if archive.is_dir():
                members = self._members(archive, context)
                files = [_find_in_folder(archive, member) for member in members]
            else:
                check_file(archive, size=self.bytes, sha256=self.sha256, where=str(archive))
                members = self._members(archive, context)
                files = unpack(archive, members)
        name = (self.file or self.url or "").rstrip("/").rsplit("/", 1)[-1]
        names = [f"{name}:{member}" for member in members]
        if kind := kind_of_file(files[0]):
            reader = _ONE_FILE_SOURCES[kind]
            source = reader.model_validate({"kind": kind, "file": str(files[0]), "weight": self.weight})
            yield source.local_pairs(files[0], names[0], context)
            return
        yield local_text(self, (files[0], files[1]), names=names, markup=self.markup)

    def _members(self, archive: Path, context: CorpusContext) -> tuple[str, ...]:
        """The names of source and target, or of the file of pairs. DataError if there are none, or several."""
        if self.source is not None and self.target is not None:
            return self.source, self.target
        if archive.is_dir():
            names = [path.relative_to(archive).as_posix() for path in archive.rglob("*") if path.is_file()]
        else:
            with _damage_errors(archive), _open_entries(archive) as entries:
                names = [name for name, _ in entries]
        choices = _choices(names, context.codes)
        if len(choices) == 1:
            return choices[0]
        listed = ", ".join(sorted(names)[:_NAMES_SHOWN]) or "no files at all"
        found = f"has {len(choices)} texts" if choices else f"has no text in {' and '.join(context.codes)}"
        example = choices[0] if choices else ("NAME",)
        hint = f"unpack it, and give the files of one text ({listed}); or name two in a corpus file, such as "
        hint += f"source: {example[0]}, target: {example[-1]}"
        raise DataError(f"{archive.name} {found}", where=str(archive), hint=hint)


def _choices(names: Sequence[str], codes: tuple[str, str]) -> list[tuple[str, ...]]:
    """The texts among files: two files NAME.CODE in the two languages, or else single files of pairs."""
    names = [name for name in sorted(names) if not PurePosixPath(name).name.startswith(".")]
    families: dict[str, dict[str, str]] = {}
    for name in names:
        prefix, code = split_code(name)
        families.setdefault(prefix, {})[code] = name
    pairs = [[match_code(code, list(family)) for code in codes] for family in families.values()]
    texts: list[tuple[str, ...]] = [
        (family[source], family[target])
        for family, (source, target) in zip(families.values(), pairs, strict=True)
        if source is not None and target is not None and source != target
    ]
    return texts or [(name,) for name in names if kind_of_file(Path(name)) in _ONE_FILE_SOURCES]


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


def _find_in_folder(folder: Path, member: str) -> Path:
    """The file of a member in the folder that an archive was unpacked into. DataError if there is no such file."""
    file = folder / _path_of(member)
    if not file.is_file():
        present = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        raise _no_such_member_error(folder, member, names=present)
    return file


def _extract(archive: Path, wanted: Sequence[PurePosixPath], folder: Path) -> None:
    """Write each wanted member below a folder. DataError if one is not there."""
    missing, names = dict.fromkeys(wanted), []
    with _damage_errors(archive), _open_entries(archive) as entries:
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
    raise _no_such_member_error(archive, str(next(iter(missing))), names=names)


@contextmanager
def _open_entries(archive: Path) -> Iterator[Iterator[tuple[str, _OpenEntry]]]:
    """The files in an archive in their order: the name of each, and a function that opens it."""
    with archive.open("rb") as file:
        is_zip = file.read(2) == b"PK"  # by content: an address need not end in .zip
    if is_zip:
        with zipfile.ZipFile(archive) as zipped:
            files = (info for info in zipped.infolist() if not info.is_dir())
            yield ((info.filename, partial(zipped.open, info)) for info in files)
    else:
        opened = open_bytes(archive) if archive.name.endswith(".zst") else archive.open("rb")
        with opened as stream, tarfile.open(fileobj=stream, mode="r|*") as tar:
            yield ((info.name, partial(tar.extractfile, info)) for info in tar if info.isfile())


def _path_of(member: str) -> PurePosixPath:
    """The path of a member, which does not lead out of a folder."""
    return PurePosixPath(*(part for part in PurePosixPath(member).parts if part not in ("/", "..")))


@contextmanager
def _damage_errors(archive: Path) -> Iterator[None]:
    """Raise DataError if the code inside finds that the archive is damaged, encrypted, or of no known kind."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, RuntimeError, zlib.error, lzma.LZMAError) as error:
        reason = str(error) or type(error).__name__
    except DataError as error:  # of damage to zstd
        reason = error.message.rpartition(": ")[2]
    except OSError as error:
        if error.errno is not None:  # of the disk; damage to gzip or bzip2 has no number
            raise
        reason = str(error)
    else:
        return
    hint = "remove it and fetch it again, or unpack it with another program and write file: FOLDER in the corpus file"
    raise DataError(f"{archive.name} cannot be unpacked: {reason}", where=str(archive), hint=hint)


def _no_such_member_error(archive: Path, member: str, *, names: Sequence[str]) -> DataError:
    """The error for a member that is not among the names."""
    by_end: dict[str, list[str]] = {}
    for name in sorted(names):
        by_end.setdefault(PurePosixPath(name).name, []).append(name)
    near = [name for end in difflib.get_close_matches(PurePosixPath(member).name, by_end, n=2) for name in by_end[end]]
    listed = ", ".join(sorted(names)[:_NAMES_SHOWN]) or "no files at all"
    hint = f"did you mean {' or '.join(near[:_NAMES_SHOWN])}?" if near else f"it has {listed}"
    return DataError(f"{archive.name} has no member {member}", where=str(archive), hint=hint)
