"""A source of parallel text: the methods that every kind of source has, and the local files that they lead to."""

from __future__ import annotations

import glob
import math
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

import yaml
from pydantic import Field, field_validator, model_validator

from nmt_cli.console import Progress
from nmt_cli.errors import DataError
from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.download import download_file
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.recipe.section import Section, SettingError
from nmt_cli.text_encoding import decompressor_of

LANGUAGE_CODE = r"^[A-Za-z][A-Za-z0-9_-]*$"
LanguageCode: TypeAlias = Annotated[str, Field(pattern=LANGUAGE_CODE)]
_TAG_TEXT = re.compile(r"[a-z0-9_-]+")
Split: TypeAlias = Literal["train", "valid", "test"]
SPLIT_NAMES: Mapping[Split, str] = {"train": "training", "valid": "validation", "test": "test"}
Markup: TypeAlias = Annotated[
    Literal["seg", "ted"] | None,
    Field(
        description="seg: read the <seg> elements (SGML and XML of WMT and IWSLT); ted: the tagged talks of IWSLT; "
        "null: plain text"
    ),
]
Pairs: TypeAlias = Sequence[tuple[str, str]]
"""Sentences of the source, each with its translation."""


class CorpusLanguages(LanguagePair):
    """The codes of the two languages; they name the files of raw text in the prepared data."""

    source: LanguageCode = Field(description="code of the language that is translated from, such as en or pt-BR")
    target: LanguageCode = Field(description="code of the language that is translated into")

    @model_validator(mode="after")
    def _two_languages(self) -> CorpusLanguages:
        if self.source == self.target:
            raise SettingError(f"source and target are both {self.source!r}", "give each language a code of its own")
        return self


@dataclass(frozen=True, slots=True)
class CorpusContext:
    """The folder that relative paths start from, the codes of a source's languages, and the age of usable downloads.

    An address without a hash is downloaded again if its copy in the cache is older than the time
    `downloads_newer_than`.
    """

    folder: Path
    languages: tuple[str, str]
    downloads_newer_than: float = 0.0

    def download(self, url: str, *, progress: Progress, size: int | None = None, sha256: str | None = None) -> Path:
        """The file behind an address, checked by what is given."""
        return download_file(url, size=size, sha256=sha256, progress=progress, newer_than=self.downloads_newer_than)

    def name(self, path: Path) -> str:
        """The name of a file in records: its path below the folder, or its whole path if it lies elsewhere."""
        return path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else path.as_posix()


@dataclass(frozen=True, slots=True)
class LocalSource:
    """Local files of a source, which read as pairs of sentences.

    `inputs` are the files by the names that the manifest records, and `origin` is their name in reports. `text_files`
    are the files of the two sides, if they hold plain lines. `items_to_count` are counted instead of the pairs,
    if reading the pairs writes to the log. `fetch_inputs` sets the last four fields, from the keys of the source.
    """

    inputs: Sequence[tuple[str, Path]]
    origin: str
    read: Callable[[], Iterator[Chunk]]
    """The pairs in chunks. DataError if a file cannot be read or is empty, or if its sides are not aligned."""
    text_files: tuple[Path | None, Path | None] = (None, None)
    items_to_count: Callable[[], Iterable[object]] | None = None
    weight: float = 1.0
    direction: int = 0
    """The index of its direction among those of the corpus."""
    tags: tuple[str, ...] = ()
    """The symbols of its tags."""
    is_synthetic: bool = False

    def count(self, *, most: int) -> int:
        """The number of pairs, or `most` if there are more; then the rest of the files is not read."""
        items = self.items_to_count() if self.items_to_count else (src for chunk in self.read() for src in chunk.src)
        return sum(1 for _ in islice(items, most))


KINDS_BY_ENDING: dict[str, type[Source]] = {}
"""Each kind of source whose files are known by their endings."""


class Source(Section):
    """Parallel text as a corpus file names it. Each kind of source is a subclass, with the keys that it takes."""

    place_keys: ClassVar[tuple[str, ...]] = ()
    """The keys that say where the text is, and not how it is read."""

    path_keys: ClassVar[tuple[str, ...]] = ("alignments",)
    """Further keys that are paths."""

    endings: ClassVar[tuple[str, ...]] = ()
    """The endings by which the files of this kind are known."""

    kind: str
    weight: float = Field(
        1.0,
        gt=0,
        le=1000,
        allow_inf_nan=False,
        description="of training text: how often each kept pair is taken; 2: twice, 0.5: half of the pairs, sampled",
    )
    alignments: str | None = Field(
        None,
        description="of training text: file of its word alignments, a line per pair such as 0-0 1-2 (Pharaoh), for "
        "training.guided_alignment",
    )

    languages: CorpusLanguages | None = Field(None, description="its two languages, if they are not the corpus's")
    tags: dict[str, str] = Field(
        {},
        description="labels that the model reads before each source sentence, such as {domain: news, origin: "
        "back-translation}",
    )
    synthetic: bool = Field(
        False, description="of training text: a program wrote a side of it, so no pair is set aside for valid or test"
    )

    @model_validator(mode="before")
    @classmethod
    def _tilde_is_the_home_folder(cls, values: Any) -> Any:
        paths = {key: values.get(key) for key in (*cls.place_keys, *cls.path_keys)}
        return {**values, **{key: os.path.expanduser(path) for key, path in paths.items() if isinstance(path, str)}}

    @field_validator("tags", mode="before")
    @classmethod
    def _tags_are_symbols(cls, tags: Any) -> Any:
        if not isinstance(tags, dict):
            raise SettingError(f"tags is {tags!r}, and not names with values", "write tags: {domain: news}")
        texts = [str(text) for tag in tags.items() for text in tag]
        if wrong := [text for text in texts if not _TAG_TEXT.fullmatch(text)]:
            right = [re.sub("[^a-z0-9_]+", "-", text.lower()).strip("-") or "name" for text in texts]
            written = ", ".join(map(": ".join, zip(right[::2], right[1::2], strict=True)))
            problem = f"tags has {wrong[0]!r}, and a tag is of small letters, digits, - and _"
            raise SettingError(problem, f"write tags: {{{written}}}")
        return {str(name): str(value) for name, value in tags.items()}

    @property
    def tag_symbols(self) -> tuple[str, ...]:
        """The symbols of its tags, in the order of their names."""
        return tuple(f"<{name}:{value}>" for name, value in sorted(self.tags.items()))

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        KINDS_BY_ENDING.update(dict.fromkeys(cls.endings, cls))

    @property
    def addresses(self) -> list[str]:
        """The addresses of the text on the web; none if it is local."""
        return [place for key in self.place_keys if is_address(place := str(getattr(self, key)))]

    def describe(self) -> list[str]:
        """The downloads of the source, in words; empty if it is local."""
        return self.addresses

    def files(self, context: CorpusContext) -> list[Path]:
        """The local files of the source. DataError if a file is missing, or a pattern or a prefix matches nothing."""
        return []

    def identity(self) -> dict[str, Any]:
        """The keys that identify the text, without the paths of local files."""
        return self.model_dump(exclude=set() if self.addresses else set(self.place_keys))

    @abstractmethod
    def fetch(self, context: CorpusContext, *, progress: Progress) -> Iterator[LocalSource]:
        """The source as local files; a missing file is downloaded when its turn comes.

        Raises DataError if a file cannot be had or is not the file that it should be.
        """


class OneFileSource(Source):
    """A source whose two sides are in one file, or in each file that matches a pattern."""

    place_keys = ("file",)
    file: str = Field(description="path or address of the file, or a pattern such as parts/*")

    @abstractmethod
    def reader(self, file: Path, languages: tuple[str, str]) -> Callable[[], Iterator[Chunk]]:
        """The function that reads a file. DataError if the two columns, say, cannot be chosen."""

    def files(self, context: CorpusContext) -> list[Path]:
        """The file, or the files that match the pattern."""
        return [] if self.addresses else matching_files(self.file, folder=context.folder)

    def fetch(self, context: CorpusContext, *, progress: Progress) -> Iterator[LocalSource]:
        """The file, or the files that match the pattern."""
        for address in self.addresses:
            yield self.local_source(context.download(address, progress=progress), address, context)
        for path in self.files(context):
            yield self.local_source(path, context.name(path), context)

    def local_source(self, file: Path, name: str, context: CorpusContext) -> LocalSource:
        """The pairs of one of the files; `name` is its name in records."""
        return LocalSource([(name, file)], file.name, self.reader(file, context.languages))


def kind_of_file(file: Path) -> type[Source] | None:
    """The kind of source that reads a file of pairs, by the ending of its name; None for any other file."""
    return KINDS_BY_ENDING.get(Path(without_compression(file.name)).suffix.lower())


def name_of_kind(kind: type[Source]) -> str:
    """The name of a kind of source, as corpus files have it."""
    name: str = get_args(kind.model_fields["kind"].annotation)[0]
    return name


def without_compression(name: str) -> str:
    """The name of a file without the ending of its compression."""
    return name.removesuffix(Path(name).suffix) if decompressor_of(Path(name)) else name


def sources_in_yaml(sources: Sequence[Mapping[str, Any]]) -> str:
    """The sources as a list in one line of YAML."""
    written: str = yaml.safe_dump(
        list(map(dict, sources)), default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf
    )
    return written.strip()


def is_address(path: str) -> bool:
    """True if a path is the address of something on the web."""
    return path.startswith(("http://", "https://"))


def without_query(path: str) -> Path:
    """A path, or the path of an address without a query such as ?download=true."""
    return Path(urlsplit(path).path if is_address(path) else path)


def matching_files(path: str, *, folder: Path) -> list[Path]:
    """The file at a path, or the files that match a pattern, sorted; both start at `folder`.

    DataError if nothing matches a pattern; a path is returned even if there is no file.
    """
    if not glob.has_magic(path) or (folder / path).exists():
        return [folder / path]
    matches = sorted(folder / name for name in glob.glob(path, root_dir=folder, recursive=True))
    files = [match for match in matches if match.is_file()]
    if not files:
        raise DataError(
            f"no file matches {path}",
            where=str(folder / path),
            hint="check the pattern: * is part of a name, ** any folders; it starts at the folder of the corpus file",
        )
    return files


def empty_error(file: Path, *, below_header: bool) -> DataError:
    """The error for an empty file, or for a table with nothing but a header."""
    problem = "has only a header" if below_header else "is empty"
    return DataError(f"{file.name} {problem}", where=str(file), hint="give a file with text in it")
