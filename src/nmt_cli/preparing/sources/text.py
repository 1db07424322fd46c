"""Text files and sacreBLEU's test sets as sources of a corpus."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, assert_never

from pydantic import Field, model_validator

from nmt_cli.console import Progress
from nmt_cli.errors import DataError
from nmt_cli.languages import is_language, match_code
from nmt_cli.preparing.chunks import Chunk, batched
from nmt_cli.preparing.sources.base import (
    KINDS_BY_ENDING,
    CorpusContext,
    LocalSource,
    Markup,
    Source,
    is_address,
    kind_of_file,
    matching_files,
    name_of_kind,
    without_compression,
)
from nmt_cli.preparing.sources.lines import text_lines, without_tabs
from nmt_cli.recipe.section import SettingError

_WILDCARD = re.compile(r"(\*\*/|\*+|\?|\[!?.[^\]]*\])")
_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.IGNORECASE | re.ASCII)
_TAG = re.compile(r"^\s*</?(\w+)\b[^>]*>", re.ASCII)
_TITLES = re.compile(r"</?(?:title|description)>")


class TextSource(Source):
    """Two aligned files, one sentence per line; plain or compressed."""

    place_keys = ("prefix", "source", "target")
    kind: Literal["text"] = Field(description="text in two files")
    prefix: str | None = Field(None, description="PREFIX.en and PREFIX.de, each also with .txt, or compressed")
    source: str | None = Field(
        None, description="instead of prefix: file of the source, its address, or a pattern such as parts/*.en"
    )
    target: str | None = Field(
        None, description="instead of prefix: the same of the target; wildcards of both patterns match the same text"
    )
    markup: Markup = None

    @model_validator(mode="after")
    def _prefix_or_files(self) -> TextSource:
        files = [file for file in (self.source, self.target) if file is not None]
        if len(files) != (0 if self.prefix is not None else 2):
            message = "a text source needs either prefix, or both source and target"
            raise SettingError(message, "write prefix: PREFIX for PREFIX.CODE, or source: FILE and target: FILE")
        if len({is_address(file) for file in files}) == 2 or is_address(self.prefix or ""):
            raise SettingError(
                "a text source is two files, or two addresses",
                "write source: https://HOST/FILE and target: https://HOST/FILE",
            )
        return self

    def files(self, context: CorpusContext) -> list[Path]:
        """The files of each pair, source first."""
        return [] if self.addresses else [file for pair in self._pairs(context) for file in pair]

    def fetch(self, context: CorpusContext, *, progress: Progress) -> Iterator[LocalSource]:
        """One pair of files for each match of a pattern."""
        if self.addresses:
            source, target = (context.download(url, progress=progress) for url in self.addresses)
            yield local_text((source, target), names=self.addresses, markup=self.markup)
            return
        for pair in self._pairs(context):
            yield local_text(pair, names=[context.name(file) for file in pair], markup=self.markup)

    def _pairs(self, context: CorpusContext) -> list[tuple[Path, Path]]:
        """The files of the source and of the target, one pair for each match of a pattern.

        DataError if a file is missing, or if the two sides match different files.
        """
        if self.prefix is not None:
            return [find_text_files(context.folder / self.prefix, context.languages)]
        return _matching_pairs(self.source or "", self.target or "", folder=context.folder)


def local_text(files: tuple[Path, Path], *, names: Sequence[str], markup: Markup) -> LocalSource:
    """The pairs of two files with a sentence per line, or in markup. `names` are their names in records.

    DataError if a file has no sentence in the markup.
    """
    for file in files:
        if markup is not None and next(_sentences(file, markup), None) is None:
            message = f"{file.name} has no sentence in the markup {markup}"
            hint = "write markup: seg for <seg> elements, ted for tagged talks, null for plain text"
            raise DataError(message, where=str(file), hint=hint)
    read = partial(_read_text, files, (files[0].name, files[1].name), markup)
    inputs, plain_files = list(zip(names, files, strict=True)), files if markup is None else (None, None)
    return LocalSource(inputs, files[0].name, read, plain_files)


def _read_text(files: tuple[Path, Path], origins: tuple[str, str], markup: Markup) -> Iterator[Chunk]:
    """The sentences of both files side by side. DataError gives both numbers of lines if they differ."""
    first_line, pairs = 1, zip(*(_sentences(file, markup) for file in files), strict=True)
    try:
        for batch in batched(pairs, size=lambda pair: len(pair[0]) + len(pair[1])):
            src, tgt = map(without_tabs, zip(*batch, strict=True))
            yield Chunk(src, tgt, first_line, origins[0], target_origin=origins[1])
            first_line += len(batch)
    except ValueError:  # of zip
        source, target = (f"{file.name} has {sum(1 for _ in _sentences(file, markup)):,}" for file in files)
        where = f"{files[0]}, {files[1]}"
        hint = "align the files line by line, then run nmt prepare again"
        raise DataError(f"{source} lines, {target}", where=where, hint=hint) from None


def _sentences(file: Path, markup: Markup) -> Iterator[str]:
    """The sentences of a file, which are its lines if it has no markup; entities such as &amp; stay.

    `seg`: the <seg> elements, as sacreBLEU reads them. `ted`: the lines of IWSLT's talks that are no tag such as <url>;
    titles and descriptions are sentences.
    """
    match markup:
        case None:
            yield from text_lines(file)
        case "seg":
            for line in text_lines(file):
                yield from (" ".join(segment[1].split()) for segment in _SEGMENT.finditer(line))
        case "ted":
            for line in text_lines(file):
                tag = _TAG.match(line)
                if tag is None or tag[1] in ("title", "description"):
                    yield _TITLES.sub("", line).strip(string.whitespace)
        case _:
            assert_never(markup)


def name_without_endings(file: Path) -> str:
    """The name of a file of pairs without its endings, such as my for my.tsv.gz and my.en.txt; or of a prefix.

    Files that are called by their languages alone, such as en.txt, have the name of their folder.
    """
    if kind_of_file(file):
        return Path(without_compression(file.name)).stem
    name, code = split_code(file.name)
    if not name and file.is_file():
        return file.resolve().parent.name
    return name if name and is_language(code) else file.name


def split_code(name: str) -> tuple[str, str]:
    """The name of a text file without its endings, and the code of its language, such as my and en for my.en.txt.gz."""
    prefix, _, code = without_compression(name).removesuffix(".txt").rpartition(".")
    return prefix, code


def find_text_files(prefix: Path, codes: tuple[str, str]) -> tuple[Path, Path]:
    """PREFIX.CODE for both languages, also with .txt, and compressed. The prefix may be one of the two files.

    DataError if there is no such file.
    """
    name, code = split_code(prefix.name)
    is_side = prefix.is_file() and match_code(code, codes) is not None
    name = name if is_side else prefix.name
    present = {
        split_code(path.name)[1]: path
        for path in sorted(prefix.parent.glob("*"), reverse=True)  # the plain file is taken before the compressed one
        if split_code(path.name)[0] == name and not path.is_dir()
    }
    source, target = (match_code(code, list(present)) for code in codes)
    if source is not None and target is not None:
        return present[source], present[target]
    if prefix.exists() and not is_side:
        raise _not_a_prefix_error(prefix, codes)
    wanted = str(prefix.parent / f"{name}.{codes[0] if source is None else codes[1]}".removeprefix("."))
    hint = f"check the path: {prefix.parent} has no file {name}.LANGUAGE"
    if present:
        hint = f"there are {', '.join(sorted(path.name for path in present.values())[:8])}: check the languages"
    raise DataError(f"no such file: {wanted} (nor with .txt, .gz, .zst, .xz, .bz2)", where=wanted, hint=hint)


def _not_a_prefix_error(prefix: Path, codes: tuple[str, str]) -> DataError:
    """The error for a file or a folder that is given as the beginning of two files."""
    message = f"{prefix.name} has none of the endings {', '.join(sorted(KINDS_BY_ENDING))}"
    hint = f"give two files with a sentence per line, NAME.{codes[0]} and NAME.{codes[1]}, or a table NAME.tsv"
    if prefix.is_dir():
        message = f"{prefix} is a folder"
        hint = f"name a file in it, or the beginning of two: {prefix / 'train'} for train.{codes[0]}"
    elif kind := kind_of_file(prefix):
        message = f"{prefix.name} is one file, not the beginning of two"
        hint = f"write kind: {name_of_kind(kind)}, file: {prefix}"
    return DataError(message, where=str(prefix), hint=hint)


def _matching_pairs(source: str, target: str, *, folder: Path) -> list[tuple[Path, Path]]:
    """The files that match the two patterns, in pairs, in the order of the source's names."""
    src_files, tgt_files = (
        {_parts_at_wildcards(file, pattern, folder): file for file in matching_files(pattern, folder=folder)}
        for pattern in (source, target)
    )
    if alone := sorted(src_files.keys() ^ tgt_files.keys()):
        file = src_files.get(alone[0]) or tgt_files[alone[0]]
        raise DataError(
            f"{file.name} has no partner",
            where=f"{folder / source}, {folder / target}",
            hint="both sides need files whose names agree in what the patterns leave open",
        )
    return [(file, tgt_files[parts]) for parts, file in src_files.items()]


def _parts_at_wildcards(file: Path, pattern: str, folder: Path) -> tuple[str, ...]:
    """The parts of a file's path that the wildcards of a pattern stand for; empty if the pattern is its path."""
    expression = ""
    for index, part in enumerate(_WILDCARD.split(str(Path(pattern)))):  # texts and wildcards in turn
        wildcard = "(.*/|)" if part == "**/" else "(.*)" if part.startswith("*") else "(.)"
        expression += wildcard if index % 2 else re.escape(part)
    path = file if Path(pattern).is_absolute() else file.relative_to(folder)
    matched = re.fullmatch(expression, str(path), re.DOTALL)
    return matched.groups() if matched else ()


class TestsetSource(Source):
    """A public test set by its name in sacreBLEU; the languages are the corpus's."""

    kind: Literal["testset"] = Field(description="a test set of sacreBLEU")
    name: str = Field(description="such as wmt14/full; sacrebleu --list names them all")

    def describe(self) -> list[str]:
        """The name of the test set."""
        return [f"{self.name}, from sacreBLEU"]

    def fetch(self, context: CorpusContext, *, progress: Progress) -> Iterator[LocalSource]:
        """Source and first reference of the test set, downloaded unless sacreBLEU has them."""
        from nmt_cli.testsets import find_test_set

        languages = "-".join(context.languages)
        where = f"kind: testset, name: {self.name}"
        test_set = find_test_set(self.name, languages, error=DataError, name_where=where, languages_where=where)
        files, name = (test_set.source, test_set.references[0]), f"{self.name} {languages}"
        inputs = list(zip((f"sacrebleu:{name} source", f"sacrebleu:{name} reference"), files, strict=True))
        yield LocalSource(inputs, name, partial(_read_text, files, (name, name), None), files)
