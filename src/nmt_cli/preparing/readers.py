"""Readers: the pairs of a split and of each kind of source, in chunks, so that memory does not grow with the corpus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from nmt_cli.errors import DataError
from nmt_cli.files import open_bytes
from nmt_cli.preparing.chunks import CHUNK_PAIRS, Chunk
from nmt_cli.preparing.corpora import (
    DemoGenerator,
    HubSource,
    JsonlSource,
    LanguagePair,
    LocatedCorpus,
    Source,
    Split,
    TextSource,
    TsvSource,
)
from nmt_cli.preparing.hub import read_hub

if TYPE_CHECKING:
    from nmt_cli.preparing.demo.sampling import DemoCorpus

_ENDINGS = ("", ".gz", ".zst")


def read_split(located: LocatedCorpus, split: Split) -> Iterator[Chunk]:
    """All pairs of a split as they are, in chunks: from its sources one after another, or from the generator.

    DataError where a source cannot be used.
    """
    corpus = located.corpus
    if corpus.generator is not None:
        yield from _generated(corpus.generator, split)
    for source in corpus.sources(split):
        yield from read_pairs(source, languages=corpus.languages, folder=located.folder)


def read_pairs(source: Source, *, languages: LanguagePair, folder: Path) -> Iterator[Chunk]:
    """The pairs of a source; relative paths start at `folder`. DataError where it cannot be read or is not aligned."""
    match source:
        case TextSource():
            return _read_text(*text_files(source, languages=languages, folder=folder))
        case TsvSource():
            return _read_tsv(source, folder / source.file)
        case JsonlSource():
            return _read_jsonl(source, folder / source.file, languages)
        case HubSource():
            return read_hub(source, languages=languages, folder=folder)
        case _:
            assert_never(source)


def text_files(source: TextSource, *, languages: LanguagePair, folder: Path) -> tuple[Path, Path]:
    """The source file and the target file; DataError lists what there is where one is missing."""
    if source.prefix is None:
        assert source.source is not None
        assert source.target is not None
        return folder / source.source, folder / source.target
    prefix = folder / source.prefix
    src, tgt = (_with_ending(prefix, language) for language in (languages.source, languages.target))
    return src, tgt


def _with_ending(prefix: Path, language: str) -> Path:
    for ending in _ENDINGS:
        candidate = prefix.with_name(f"{prefix.name}.{language}{ending}")
        if candidate.is_file():
            return candidate
    wanted = f"{prefix}.{language}"
    there = sorted(path.name for path in prefix.parent.glob("*") if path.name.startswith(f"{prefix.name}."))
    if prefix.is_file() and prefix.suffix == f".{language}":
        hint = f"leave the ending out: {prefix.with_suffix('')}"
    elif not there:
        hint = f"check the path: {prefix.parent} has no file {prefix.name}.LANGUAGE"
    else:
        hint = f"there are {', '.join(there[:8])}: check the languages"
    raise DataError(f"no such file: {wanted} (nor .gz, .zst)", where=wanted, hint=hint)


def _read_text(src_file: Path, tgt_file: Path) -> Iterator[Chunk]:
    src_lines, tgt_lines = _lines(src_file), _lines(tgt_file)
    num_src = num_tgt = 0
    while True:
        src, tgt = (list(islice(lines, CHUNK_PAIRS)) for lines in (src_lines, tgt_lines))
        first_line, num_src, num_tgt = num_src + 1, num_src + len(src), num_tgt + len(tgt)
        if len(src) != len(tgt):
            num_src, num_tgt = num_src + sum(1 for _ in src_lines), num_tgt + sum(1 for _ in tgt_lines)
            raise DataError(
                f"{src_file.name} has {num_src:,} lines, {tgt_file.name} has {num_tgt:,}",
                where=f"{src_file}, {tgt_file}",
                hint="align the files line by line, then run nmt prepare again",
            )
        if not src:
            break
        yield Chunk(src, tgt, first_line, src_file.name)
    if num_src == 0:
        raise _empty(src_file)


def _read_tsv(source: TsvSource, file: Path) -> Iterator[Chunk]:
    needed = max(source.source, source.target)
    first_line = 2 if source.header else 1
    lines = islice(_lines(file), first_line - 1, None)
    is_empty = True
    while rows := [line.split("\t") for line in islice(lines, CHUNK_PAIRS)]:
        is_empty = False
        malformed = {i: "\t".join(row) for i, row in enumerate(rows) if len(row) < needed}
        rows = [row if len(row) >= needed else [""] * needed for row in rows]
        src, tgt = ([row[column - 1] for row in rows] for column in (source.source, source.target))
        yield Chunk(src, tgt, first_line, file.name, malformed)
        first_line += len(rows)
    if is_empty:
        raise _empty(file)


def _read_jsonl(source: JsonlSource, file: Path, languages: LanguagePair) -> Iterator[Chunk]:
    keys = [
        (key or code).split(".") for key, code in ((source.source, languages.source), (source.target, languages.target))
    ]
    lines = _lines(file)
    first_line = 1
    while rows := list(islice(lines, CHUNK_PAIRS)):
        sides: tuple[list[str], list[str]] = ([], [])
        malformed = {}
        for index, line in enumerate(rows):
            texts = _texts_at(line, keys)
            if texts is None:
                malformed[index] = line
            for side, text in zip(sides, texts or ("", ""), strict=True):
                side.append(text)
        yield Chunk(*sides, first_line, file.name, malformed)
        first_line += len(rows)
    if first_line == 1:
        raise _empty(file)


def _texts_at(line: str, keys: Sequence[Sequence[str]]) -> list[str] | None:
    """The texts at the keys of a JSON object; none where it is not JSON or holds no text there."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # the first for numbers of thousands of digits as well
        return None
    texts = []
    for key in keys:
        value: Any = record
        for part in key:
            value = value.get(part) if isinstance(value, dict) else None
        if not isinstance(value, str):
            return None
        texts.append(value)
    return texts


def _generated(generator: DemoGenerator, split: Split) -> Iterator[Chunk]:
    demo = _demo(generator)
    pairs = {"train": demo.train, "valid": demo.valid, "test": demo.test}[split]
    for start in range(0, len(pairs), CHUNK_PAIRS):
        chunk = pairs[start : start + CHUNK_PAIRS]
        yield Chunk([src for src, _ in chunk], [tgt for _, tgt in chunk], start + 1, f"demo {split}")


@lru_cache(maxsize=1)
def _demo(generator: DemoGenerator) -> DemoCorpus:
    from nmt_cli.preparing.demo.sampling import generate

    return generate(
        seed=generator.seed,
        num_train=generator.train_pairs,
        num_valid=generator.valid_pairs,
        num_test=generator.test_pairs,
    )


def _lines(file: Path) -> Iterator[str]:
    """Lines without their end (LF or CR LF) and without a byte-order mark; only LF ends a line."""
    with open_bytes(file) as stream:
        for number, data in enumerate(stream):
            line = data.decode("utf-8", "surrogateescape").removesuffix("\n").removesuffix("\r")
            yield line.removeprefix("\ufeff") if number == 0 else line


def _empty(file: Path) -> DataError:
    return DataError(f"{file.name} is empty", where=str(file), hint="give a file with one sentence a line")
