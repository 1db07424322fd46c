"""Validation and test text: kept line for line, and looked for in the training text."""

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
from nmt_cli.preparing.cleaning.rules import is_unicode, tidy
from nmt_cli.preparing.reading.chunks import Chunk
from nmt_cli.preparing.reading.readers import LocalSource, TextFiles, read_chunks
from nmt_cli.preparing.sources.kinds import LanguagePair, Split

# What of a training pair is in held-out text.
NOWHERE, SIDE, PAIR = 0, 1, 2

Pairs: TypeAlias = Sequence[tuple[str, str]]
FoundLines: TypeAlias = dict[str, dict[str, list[int]]]
"""By split and by kind of match (pairs, sources, targets), the lines that training text contains, ascending."""

_KINDS = ("pairs", "sources", "targets")


class HeldOut:
    """The lines of the splits that are not trained on, to be found in training text whatever their spaces."""

    def __init__(self, splits: Mapping[str, Pairs]) -> None:
        self._sources: dict[str, list[tuple[str, int]]] = {}
        self._targets: dict[str, list[tuple[str, int]]] = {}
        self._pairs: dict[tuple[str, str], list[tuple[str, int]]] = {}
        self._splits = list(splits)
        for split, pairs in splits.items():
            for line, (src, tgt) in enumerate(pairs):
                src, tgt = tidy(src), tidy(tgt)
                self._sources.setdefault(src, []).append((split, line))
                self._targets.setdefault(tgt, []).append((split, line))
                self._pairs.setdefault((src, tgt), []).append((split, line))

    def find(self, src: Sequence[str], tgt: Sequence[str]) -> tuple[NDArray[np.uint8], FoundLines]:
        """Of each of these tidy training pairs NOWHERE, SIDE or PAIR, [n], and the lines that are among them."""
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
    """How many lines of each split occur in training text, as a pair, as source, as target, by what parts of it say."""
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
    sources: Sequence[LocalSource], directory: Path, *, split: Split, languages: LanguagePair
) -> list[tuple[str, str]]:
    """Write `SPLIT.LANGUAGE` for both languages, and return the pairs.

    Text files are copied byte for byte, uncompressed; only a byte-order mark does not get between two of them. Every
    line stays, so what cannot be kept is a DataError.
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


def _checked(chunks: Iterable[Chunk], split: Split) -> Iterator[tuple[str, str]]:
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


def _lack(chunk: Chunk, index: int) -> str:
    return f"{chunk.problem}; or " if index in chunk.malformed and chunk.problem else ""


def _problem(chunk: Chunk, index: int, src: str, tgt: str) -> str | None:
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
    """Append a file's bytes, uncompressed: with a last line end, and only at the very start with a byte-order mark."""
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
