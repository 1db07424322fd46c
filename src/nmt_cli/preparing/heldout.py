"""Validation and test text: kept line for line, and looked for in the training text."""

from __future__ import annotations

import shutil
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from nmt_cli.errors import DataError
from nmt_cli.files import open_bytes
from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.cleaning import digests, is_unicode, tidy
from nmt_cli.preparing.corpora import LocatedCorpus, Split, TextSource
from nmt_cli.preparing.readers import read_split, text_files
from nmt_cli.preparing.report import WordCounts


class HeldOut:
    """The pairs of a split that is not trained on: their lengths, and which of them the training text contains."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._digests = _three_digests([(tidy(src), tidy(tgt)) for src, tgt in pairs])
        self._found = [np.zeros(len(pairs), dtype=bool) for _ in self._digests]
        self.words = WordCounts()
        self.words.add(pairs)

    def look_in(self, training: Sequence[tuple[str, str]]) -> None:
        """Note which pairs, sources and targets are among these training pairs."""
        for found, own, theirs in zip(self._found, self._digests, _three_digests(training), strict=True):
            found |= np.isin(own, theirs)

    def overlap(self) -> dict[str, int]:
        """How many of the split's lines occur in the training pairs seen so far, as a pair, as source, as target."""
        pairs, sources, targets = (int(found.sum()) for found in self._found)
        return {"lines": len(self._found[0]), "pairs": pairs, "sources": sources, "targets": targets}


def write_heldout(located: LocatedCorpus, split: Split, directory: Path) -> HeldOut:
    """Write `SPLIT.LANGUAGE` for both languages, and return the pairs' digests and lengths.

    Text files are copied byte for byte, uncompressed; only a byte-order mark does not get between two of them. Every
    line stays, so what cannot be kept is a DataError.
    """
    pairs = list(_checked(located, split))
    languages = located.corpus.languages
    sources = [source for source in located.corpus.sources(split) if isinstance(source, TextSource)]
    are_files = len(sources) == len(located.corpus.sources(split)) > 0
    for side, language in enumerate((languages.source, languages.target)):
        with (directory / f"{split}.{language}").open("wb") as file:
            if are_files:
                for source in sources:
                    _copy(text_files(source, languages=languages, folder=located.folder)[side], file)
            else:
                file.writelines(f"{pair[side]}\n".encode() for pair in pairs)
    return HeldOut(pairs)


def _checked(located: LocatedCorpus, split: Split) -> Iterator[tuple[str, str]]:
    for chunk in read_split(located, split):
        for index, (src, tgt) in enumerate(zip(chunk.src, chunk.tgt, strict=True)):
            if problem := _problem(chunk, index, src, tgt):
                raise DataError(
                    f"the {split} text has {problem}",
                    where=chunk.where(index),
                    hint="mend that line: all lines of validation and test text are kept, none is cleaned away",
                )
            yield src, tgt


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


def _three_digests(pairs: Sequence[tuple[str, str]]) -> list[NDArray[np.uint64]]:
    return [
        digests(f"{src}\n{tgt}" for src, tgt in pairs),
        digests(src for src, _ in pairs),
        digests(tgt for _, tgt in pairs),
    ]
