"""Validation and test text: every line is kept, and searched for in the training text."""

from __future__ import annotations

import shutil
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nmt_cli.errors import DataError
from nmt_cli.files import open_bytes
from nmt_cli.preparing.chunks import ParsedChunk
from nmt_cli.preparing.cleaning.rules import is_unicode, normalize_spaces
from nmt_cli.preparing.sources.base import CorpusLanguages, LocalPairs, Split, read_chunks
from nmt_cli.preparing.sources.text import TextFiles

# The part of a training pair that is in held-out text.
NOWHERE, SIDE, PAIR = 0, 1, 2

Pairs: TypeAlias = Sequence[tuple[str, str]]
FoundLines: TypeAlias = dict[str, dict[str, list[int]]]
"""By split and by kind of match (pairs, sources, targets), the lines that training text contains, ascending."""

_KINDS = ("pairs", "sources", "targets")


class HeldOut:
    """The lines of the held-out splits, to be found in training text regardless of spaces."""

    def __init__(self, splits: Mapping[str, Pairs]) -> None:
        self._sources: dict[str, list[tuple[str, int]]] = {}
        self._targets: dict[str, list[tuple[str, int]]] = {}
        self._pairs: dict[tuple[str, str], list[tuple[str, int]]] = {}
        self._splits = list(splits)
        for split, pairs in splits.items():
            for line, (src, tgt) in enumerate(pairs):
                src, tgt = normalize_spaces(src), normalize_spaces(tgt)
                self._sources.setdefault(src, []).append((split, line))
                self._targets.setdefault(tgt, []).append((split, line))
                self._pairs.setdefault((src, tgt), []).append((split, line))

    def find(self, src: Sequence[str], tgt: Sequence[str]) -> tuple[NDArray[np.uint8], FoundLines]:
        """NOWHERE, SIDE or PAIR for each of these tidy training pairs, [n], and the lines found among them."""
        matches = np.zeros(len(src), dtype=np.uint8)
        found: dict[str, set[tuple[str, int]]] = {kind: set() for kind in _KINDS}
        for kind, texts, known in (("sources", src, self._sources), ("targets", tgt, self._targets)):
            for index in [index for index, text in enumerate(texts) if text in known]:
                matches[index] = SIDE
                found[kind].update(known[texts[index]])
        for index in np.flatnonzero(matches).tolist():
            if lines := self._pairs.get((src[index], tgt[index])):
                matches[index] = PAIR
                found["pairs"].update(lines)
        return matches, {
            split: {kind: sorted(line for where, line in found[kind] if where == split) for kind in _KINDS}
            for split in self._splits
        }


def overlap(splits: Mapping[str, Pairs], found: Iterable[FoundLines]) -> dict[str, dict[str, int]]:
    """For each split, the number of lines that occur in training text: as a pair, as a source and as a target."""
    lines = {split: {kind: set[int]() for kind in _KINDS} for split in splits}
    for part in found:
        for split, kinds in lines.items():
            for kind, known in kinds.items():
                known.update(part[split][kind])
    return {
        split: {"lines": len(pairs), **{kind: len(known) for kind, known in lines[split].items()}}
        for split, pairs in splits.items()
    }


def write_heldout(
    sources: Sequence[LocalPairs], directory: Path, *, split: Split, languages: CorpusLanguages
) -> list[tuple[str, str]]:
    """Write `SPLIT.LANGUAGE` for both languages, and return the pairs.

    Text files are copied byte for byte, uncompressed; a byte-order mark between two of them is removed. Every line
    stays, so a line that cannot be kept is a DataError.
    """
    pairs = list(_checked(read_chunks(sources), split))
    files = [source for source in sources if isinstance(source, TextFiles)]
    for side, language in enumerate((languages.source, languages.target)):
        with (directory / f"{split}.{language}").open("wb") as file:
            if len(files) == len(sources):
                for source in files:
                    _copy((source.source, source.target)[side], file)
            else:
                file.writelines(f"{pair[side]}\n".encode() for pair in pairs)
    return pairs


def _checked(chunks: Iterable[ParsedChunk], split: Split) -> Iterator[tuple[str, str]]:
    for chunk in chunks:
        for index, (src, tgt) in enumerate(zip(chunk.src, chunk.tgt, strict=True)):
            if problem := _problem(chunk, index, src, tgt):
                raise DataError(
                    f"the {split} text has {problem}",
                    where=chunk.where(index),
                    hint=f"{_lack(chunk, index)}mend that line: all lines of validation and test text are kept, "
                    "none is cleaned away",
                )
            yield src, tgt


def _lack(chunk: ParsedChunk, index: int) -> str:
    return f"{chunk.problem}; or " if index in chunk.malformed and chunk.problem else ""


def _problem(chunk: ParsedChunk, index: int, src: str, tgt: str) -> str | None:
    if index in chunk.malformed:
        return "a malformed record"
    if not is_unicode(src):
        return "a source that is not valid UTF-8"
    if not is_unicode(tgt):
        return "a target that is not valid UTF-8"
    if "\n" in src or "\n" in tgt:
        return "a line break inside a sentence"
    return None


def _copy(path: Path, file: IO[bytes]) -> None:
    """Append a file's bytes, uncompressed, and a last line end; a byte-order mark stays only at the very start."""
    with open_bytes(path) as stream:
        start = stream.read(len(BOM_UTF8))
        file.write(b"" if start == BOM_UTF8 and file.tell() > 0 else start)
        shutil.copyfileobj(stream, file)
    file.flush()
    with Path(file.name).open("rb") as written:
        written.seek(-1, 2)
        ends_well = written.read(1) == b"\n"
    if not ends_well:
        file.write(b"\n")
