"""The kinds of sources that a corpus file may name, and the languages of their two sides."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from nmt_cli.recipe.schema import PositiveInt, Section

CODE = r"^[A-Za-z][A-Za-z0-9_-]*$"
LanguageCode: TypeAlias = Annotated[str, Field(pattern=CODE)]
Markup: TypeAlias = Literal["seg", "ted"]
Split: TypeAlias = Literal["train", "valid", "test"]
Weight: TypeAlias = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]

_WEIGHT = "of training text: how often each kept pair is taken; 2: twice, 0.5: every other pair, drawn by seed"
_GLOB = "path of the file, or a pattern such as parts/*"
_MARKUP = (
    "seg: read the <seg> elements (SGML and XML of WMT and IWSLT); ted: the tagged talks of IWSLT; null: plain text"
)


def is_address(path: str) -> bool:
    """True where a path is the address of something on the web."""
    return path.startswith(("http://", "https://"))


class LanguagePair(Section):
    """The codes of the two languages; they name the files of raw text in the prepared data."""

    source: LanguageCode = Field(description="code of the language that is translated from, such as en or pt-BR")
    target: LanguageCode = Field(description="code of the language that is translated into")

    @model_validator(mode="after")
    def _two_languages(self) -> LanguagePair:
        if self.source == self.target:
            raise ValueError(f"source and target are both {self.source!r}", "give each language a code of its own")
        return self


class TextSource(Section):
    """Two aligned files, one sentence a line; plain, .gz or .zst."""

    kind: Literal["text"] = Field(description="text in two files")
    prefix: str | None = Field(None, description="PREFIX.en and PREFIX.de, each also with .gz or .zst")
    source: str | None = Field(None, description="or the file of the source, or a pattern such as parts/*.en")
    target: str | None = Field(None, description="and the file of the target, or a pattern with as many files")
    markup: Markup | None = Field(None, description=_MARKUP)
    weight: Weight = Field(1.0, description=_WEIGHT)

    @model_validator(mode="after")
    def _prefix_or_files(self) -> TextSource:
        files = [file for file in (self.source, self.target) if file is not None]
        if len(files) != (0 if self.prefix is not None else 2):
            raise ValueError(
                "a text source needs either prefix, or both source and target",
                "write prefix: PREFIX for PREFIX.CODE, or source: FILE and target: FILE",
            )
        if len({is_address(file) for file in files}) == 2 or is_address(self.prefix or ""):
            raise ValueError(
                "a text source is two files, or two whole addresses",
                "write source: https://HOST/FILE and target: https://HOST/FILE, or fetch the other file as well",
            )
        return self


class TsvSource(Section):
    """A file of tab-separated columns, without quoting; plain, .gz or .zst."""

    kind: Literal["tsv"] = Field(description="two columns of one file")
    file: str = Field(description=_GLOB)
    source: PositiveInt = Field(1, description="column of the source, counted from 1")
    target: PositiveInt = Field(2, description="column of the target")
    header: bool = Field(False, description="the first line names the columns")
    weight: Weight = Field(1.0, description=_WEIGHT)


class JsonlSource(Section):
    """A file with one JSON object a line; plain, .gz or .zst."""

    kind: Literal["jsonl"] = Field(description="two keys of the objects in one file")
    file: str = Field(description=_GLOB)
    source: str | None = Field(None, description="key of the source, dotted where nested; null: its language code")
    target: str | None = Field(None, description="key of the target; null: its language code")
    weight: Weight = Field(1.0, description=_WEIGHT)


class ParquetSource(Section):
    """A parquet file."""

    kind: Literal["parquet"] = Field(description="two columns of one file")
    file: str = Field(description=_GLOB)
    source: str | None = Field(None, description="column of the source, dotted where nested; null: translation.CODE")
    target: str | None = Field(None, description="column of the target; null: translation.CODE")
    weight: Weight = Field(1.0, description=_WEIGHT)


class ArchiveSource(Section):
    """Two aligned text files in an archive: .tar, .tgz, .tar.gz, .tar.zst, .tar.bz2, .tar.xz or .zip."""

    kind: Literal["archive"] = Field(description="two files of an archive")
    file: str | None = Field(None, description="path of the archive")
    url: str | None = Field(None, description="or where to download it")
    bytes: PositiveInt | None = Field(None, description="its size, checked; null: not known")
    sha256: str | None = Field(None, description="its SHA-256, checked; null: not known, recorded in the manifest")
    source: str = Field(description="path of the source's file in the archive, or its last part; it may be a .gz")
    target: str = Field(description="path of the target's file in the archive, or its last part")
    markup: Markup | None = Field(None, description=_MARKUP)
    weight: Weight = Field(1.0, description=_WEIGHT)

    @model_validator(mode="after")
    def _file_or_url(self) -> ArchiveSource:
        if (self.file is None) == (self.url is None):
            raise ValueError("an archive needs either file or url", "write file: PATH, or url: https://HOST/PATH")
        if self.file is not None and is_address(self.file):
            raise ValueError("the file of an archive is an address", f"write url: {self.file}")
        if self.url is not None and not re.match(r"^https?://[^/]+/.*[^/]$", self.url):
            hint = "write the whole address of the file, with http:// or https://"
            raise ValueError(f"{self.url!r} is not the address of a file", hint)
        if self.sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            hint = "write what sha256sum prints for the file, or null"
            raise ValueError(f"sha256 is {self.sha256!r}, not 64 hexadecimal digits in lower case", hint)
        return self

    @property
    def name(self) -> str:
        """The archive's file name."""
        return (self.file or self.url or "").rsplit("/", 1)[-1]


class TestsetSource(Section):
    """A public test set by the name that sacreBLEU knows it by; the languages are the corpus's."""

    kind: Literal["testset"] = Field(description="a test set of sacreBLEU")
    name: str = Field(description="such as wmt14/full; sacrebleu --list names them all")
    weight: Weight = Field(1.0, description=_WEIGHT)


_Rescue = Annotated[
    TextSource | TsvSource | JsonlSource | ParquetSource | ArchiveSource | TestsetSource, Field(discriminator="kind")
]


class HubSource(Section):
    """A data set of the Hugging Face hub, or a directory laid out like one (starts with ./, ../ or /)."""

    kind: Literal["hub"] = Field(description="two columns of a data set")
    repository: str = Field(description="OWNER/NAME on the hub, or a directory")
    subset: str | None = Field(None, description="configuration of the data set")
    split: str = Field(description="split of the data set, such as train or validation")
    revision: str | None = Field(None, description="commit, tag or branch; null: the newest")
    source: str | None = Field(None, description="column of the source, dotted where nested; null: translation.CODE")
    target: str | None = Field(None, description="column of the target; null: translation.CODE")
    weight: Weight = Field(1.0, description=_WEIGHT)
    otherwise: list[_Rescue] = Field([], description="sources to read where the hub cannot be reached")

    @property
    def is_local(self) -> bool:
        """True where `repository` is a directory."""
        return self.repository.startswith(("./", "../", "/"))


Source = Annotated[
    TextSource | TsvSource | JsonlSource | ParquetSource | ArchiveSource | TestsetSource | HubSource,
    Field(discriminator="kind"),
]
Sources = Annotated[list[Source], Field(min_length=1)]


class DemoGenerator(Section):
    """The English-German grammar that is built in: no word combination of the test is in the training text."""

    kind: Literal["demo"] = Field(description="the built-in grammar")
    seed: int = Field(1, ge=0, description="other sentences for each seed")
    train_pairs: PositiveInt = Field(20_000, description="pairs of training text")
    valid_pairs: PositiveInt = Field(500, description="pairs of validation text")
    test_pairs: PositiveInt = Field(1_000, description="pairs of test text")
