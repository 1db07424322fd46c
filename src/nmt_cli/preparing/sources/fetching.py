"""Everything that a corpus is read from, brought to this machine: downloaded, checked, unpacked and hashed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

from nmt_cli.dataset.manifest import InputRecord
from nmt_cli.errors import DataError
from nmt_cli.files import reading_errors
from nmt_cli.preparing.corpora import LocatedCorpus
from nmt_cli.preparing.progress import Progress
from nmt_cli.preparing.reading.markup import plain_file
from nmt_cli.preparing.reading.readers import (
    GeneratedText,
    JsonlFile,
    LocalSource,
    TableFile,
    TextFiles,
    TsvFile,
    count_pairs,
)
from nmt_cli.preparing.sources.archives import unpack
from nmt_cli.preparing.sources.downloads import MIRROR_HINT, Unreachable, check_file, download
from nmt_cli.preparing.sources.globs import matching_files, text_pairs
from nmt_cli.preparing.sources.hub import Hub, fetch_file, file_name
from nmt_cli.preparing.sources.hub_errors import HUB_HINT
from nmt_cli.preparing.sources.kinds import (
    ArchiveSource,
    HubSource,
    JsonlSource,
    ParquetSource,
    Source,
    Split,
    TestsetSource,
    TextSource,
    TsvSource,
    is_address,
)
from nmt_cli.preparing.sources.mirrors import Mirror
from nmt_cli.preparing.sources.records import file_hash, file_record, generated_record, relative_name
from nmt_cli.preparing.sources.testsets import testset_files

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fetched:
    """The sources of each split as local files, in the order in which they are read, and a record of every file."""

    sources: dict[Split, list[LocalSource]]
    inputs: list[InputRecord]


@dataclass(frozen=True, slots=True)
class _Part:
    """A local source with its files, by the names under which they are recorded."""

    source: LocalSource
    files: tuple[tuple[str, Path], ...]


def fetch(located: LocatedCorpus, *, progress: Progress) -> Fetched:
    """Download what is missing of a corpus, and say where everything lies; with a limit, only what is needed for it.

    Raises DataError where a source cannot be had or is not what it should be.
    """
    corpus = located.corpus
    sources: dict[Split, list[LocalSource]] = {}
    inputs: list[InputRecord] = []
    fetcher = _Fetcher(located, progress)
    for split in corpus.splits:
        if corpus.generator is not None:
            generated = GeneratedText(corpus.generator, split, f"demo {split}", 1.0)
            sources[split] = [generated]
            inputs.append(generated_record(generated, name=f"{corpus.name} {split}"))
            continue
        sources[split] = []
        left = corpus.limit if split == "train" else None
        for source in corpus.sources(split):
            for part in fetcher.parts(source, left):
                sources[split].append(part.source)
                inputs.extend(file_record(split, name, path) for name, path in part.files)
                left = None if left is None else left - count_pairs(part.source, most=left)
            if left is not None and left <= 0:
                break
    return Fetched(sources, inputs)


class _Fetcher:
    """Finds the local files of the sources of a corpus."""

    def __init__(self, located: LocatedCorpus, progress: Progress) -> None:
        self._languages = located.corpus.languages
        self._folder = located.folder
        self._progress = progress
        self._hub = Hub()
        self._warned: set[str] = set()
        self._mirror = Mirror(located.corpus.mirror, folder=located.folder)

    def parts(self, source: Source, left: int | None) -> list[_Part]:
        """The files of a source as local sources; where `left` is given, enough for that many pairs will do."""
        match source:
            case TextSource():
                return list(self._text(source))
            case TsvSource() | JsonlSource() | ParquetSource():
                return list(self._single_files(source))
            case ArchiveSource():
                return [self._archive(source)]
            case TestsetSource():
                src, tgt = testset_files(source, languages=self._languages)
                name = f"{source.name} {self._languages.source}-{self._languages.target}"
                files = ((f"sacrebleu:{name} source", src), (f"sacrebleu:{name} reference", tgt))
                return [_Part(TextFiles(src, tgt, name, source.weight), files)]
            case HubSource():
                return self._of_hub_or_otherwise(source, left)
            case _:
                assert_never(source)

    def _text(self, source: TextSource) -> Iterator[_Part]:
        if is_address(source.source or ""):
            urls = (source.source or "", source.target or "")
            src, tgt = (self._one(url) for url in urls)
            yield _Part(self._plain(src, tgt, src.name, source), tuple(zip(urls, (src, tgt), strict=True)))
            return
        for src, tgt in text_pairs(source, languages=self._languages, folder=self._folder):
            files = tuple((relative_name(path, self._folder), path) for path in (src, tgt))
            yield _Part(self._plain(src, tgt, src.name, source), files)

    def _plain(self, src: Path, tgt: Path, origin: str, source: TextSource | ArchiveSource) -> TextFiles:
        if source.markup is not None:
            with reading_errors(src):
                src, tgt = plain_file(src, source.markup), plain_file(tgt, source.markup)
        return TextFiles(src, tgt, origin, source.weight)

    def _single_files(self, source: TsvSource | JsonlSource | ParquetSource) -> Iterator[_Part]:
        if is_address(source.file):
            path = self._one(source.file)
            yield _Part(self._single(source, path), ((source.file, path),))
            return
        for path in matching_files(source.file, folder=self._folder):
            yield _Part(self._single(source, path), ((relative_name(path, self._folder), path),))

    def _single(self, source: TsvSource | JsonlSource | ParquetSource, path: Path) -> LocalSource:
        match source:
            case TsvSource():
                return TsvFile(path, source.source, source.target, source.header, path.name, source.weight)
            case JsonlSource():
                codes = self._languages
                keys = (source.source or codes.source, source.target or codes.target)
                return JsonlFile(path, *keys, path.name, source.weight)
            case ParquetSource():
                return TableFile(path, *self._columns(source), path.name, source.weight)
            case _:
                assert_never(source)

    def _archive(self, source: ArchiveSource) -> _Part:
        members = (source.source, source.target)
        src, tgt = self._mirror.members(source) or self._unpacked(source)
        files = tuple((f"{source.name}:{member}", path) for member, path in zip(members, (src, tgt), strict=True))
        return _Part(self._plain(src, tgt, Path(source.source).name, source), files)

    def _unpacked(self, source: ArchiveSource) -> tuple[Path, Path]:
        place: Path | str | None
        if source.file is not None:
            place = self._folder / source.file
        else:
            place = self._mirror.file(source.url or "") or source.url or ""
        if isinstance(place, str):
            archive = download(place, size=source.bytes, sha256=source.sha256, progress=self._progress)
        else:
            archive = place
            with reading_errors(archive):
                check_file(archive, file_hash(archive), size=source.bytes, sha256=source.sha256)
        with reading_errors(archive):
            src, tgt = unpack(archive, [source.source, source.target], sha256=file_hash(archive))
        return src, tgt

    def _one(self, url: str) -> Path:
        """The file behind an address."""
        place = self._mirror.file(url) or url
        if isinstance(place, Path):
            return place
        return download(place, size=None, sha256=None, progress=self._progress)

    def _of_hub_or_otherwise(self, source: HubSource, left: int | None) -> list[_Part]:
        if source.otherwise and self._mirror.has_all(source.otherwise):
            logger.info("%s, %s: read from the mirror %s", source.repository, source.split, self._mirror.place)
            return self._in_place_of(source, left)
        try:
            return list(self._of_hub(source, left))
        except Unreachable as problem:
            if not source.otherwise:
                raise
            self._warn(f"{problem.message}; reading what the corpus file names in its place")
            try:
                return self._in_place_of(source, left)
            except Unreachable as second:
                message = f"neither {source.repository} on the hub nor what replaces it can be had: {second.message}"
                way_out = MIRROR_HINT
                if self._mirror.place is not None:
                    lacking = ", ".join(self._mirror.missing(source.otherwise))
                    message += f"; the mirror {self._mirror.place} lacks {lacking}"
                    way_out = f"or put {lacking} into the mirror, packed or with the files that are in it"
                raise DataError(message, where=second.where, hint=f"{HUB_HINT}; {way_out}") from problem

    def _warn(self, message: str) -> None:
        """Log a warning, unless it was logged for another split."""
        if message not in self._warned:
            self._warned.add(message)
            logger.warning("%s", message)

    def _of_hub(self, source: HubSource, left: int | None) -> Iterator[_Part]:
        split = self._hub.find_split(source, folder=self._folder)
        for file in split.files:
            path, name = fetch_file(split, file, progress=self._progress), file_name(split, file)
            local = TableFile(
                path, *self._columns(source), _short(source, name), source.weight, split.builder, split.options
            )
            yield _Part(local, ((name, path),))
            if left is not None:
                left -= count_pairs(local, most=left)
                if left <= 0:
                    return

    def _in_place_of(self, source: HubSource, left: int | None) -> list[_Part]:
        parts: list[_Part] = []
        for one in source.otherwise:
            if left is not None and left <= 0:
                break
            for part in self.parts(one, left):
                weight = part.source.weight * source.weight
                parts.append(_Part(replace(part.source, weight=weight), part.files))
                left = None if left is None else left - count_pairs(part.source, most=left)
        return parts

    def _columns(self, source: HubSource | ParquetSource) -> tuple[str, str]:
        codes = self._languages
        return source.source or f"translation.{codes.source}", source.target or f"translation.{codes.target}"


def _short(source: HubSource, name: str) -> str:
    """A file of a data set as it is named in reports."""
    return f"{source.repository}/{name.rsplit('/', 1)[-1]}"
