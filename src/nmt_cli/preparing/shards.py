"""Shards: parts of the training text that are cleaned one by one, and the files of the cleaned parts."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any
from zipfile import BadZipFile

import numpy as np
import zstandard
from numpy.typing import NDArray

from nmt_cli.dataset.prepared_data import SIDES
from nmt_cli.errors import DataError
from nmt_cli.files import write_file
from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.sources.base import LocalPairs

SHARD_CHUNKS = 5
_ENDING = ".npz"
_ZSTD_LEVEL = 1


@dataclass(frozen=True, slots=True)
class RawShard:
    """Consecutive chunks of one source, and the weight of their pairs."""

    number: int
    source_index: int
    weight: float
    chunks: list[Chunk]


def read_shards(sources: Sequence[LocalPairs], *, limit: int | None) -> Iterator[RawShard]:
    """The first `limit` pairs of sources, in shards. The content of a shard depends on the sources alone."""
    number, pairs_left = 0, sys.maxsize if limit is None else limit
    for index, source in enumerate(sources):
        chunks: list[Chunk] = []
        for chunk in source.read():
            chunks.append(chunk.first(pairs_left))
            pairs_left -= len(chunks[-1])
            if len(chunks) == SHARD_CHUNKS or pairs_left == 0:
                yield RawShard(number, index, source.weight, chunks)
                number, chunks = number + 1, []
            if pairs_left == 0:
                return
        if chunks:
            yield RawShard(number, index, source.weight, chunks)
            number += 1


class CleanShard:
    """The file of a cleaned shard of n pairs: compressed text, arrays with an entry per pair, and facts.

    The arrays are the `digests` of the pairs, the `source_digests` of their sources, their `indices` in the raw shard,
    their `lines` if a pair may take several lines, their `matches` with held-out text, and the lengths `source_words`
    and `target_words`. The facts are the counts, where the pairs come from, their weight, and the held-out lines found
    among them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return int(self.facts["pairs"])

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts that were written, and `pairs`, the number of pairs."""
        facts: dict[str, Any] = json.loads(self._read("facts").tobytes())
        return facts

    @property
    def number(self) -> int:
        """Its index among the shards."""
        return int(self.path.stem)

    def where(self, index: int) -> str:
        """File and line of a pair."""
        if self.facts.get("has_lines"):
            return f"{self.facts['chunks'][0][0]}:{self.array('lines')[index]}"
        remaining = int(self.array("indices")[index])
        for origin, first_line, num_pairs in self.facts["chunks"]:
            if remaining < num_pairs:
                return f"{origin}:{first_line + remaining}"
            remaining -= num_pairs
        raise self._damaged_error()

    def array(self, name: str) -> NDArray[Any]:
        """One of the arrays, [n]."""
        array = self._read(name)
        if len(array) != len(self):
            raise self._damaged_error()
        return array

    def text(self, side: str) -> bytes:
        """The lines of a side in UTF-8, with a line feed after each."""
        try:
            text = zstandard.ZstdDecompressor().decompress(self._read(side).tobytes())
        except zstandard.ZstdError:
            raise self._damaged_error() from None
        if text.count(b"\n") != len(self):
            raise self._damaged_error()
        return text

    def sentences(self, side: str) -> list[str]:
        """The sentences of a side."""
        return self.text(side).decode().split("\n")[:-1]

    def pair(self, index: int) -> tuple[str, str]:
        """The text of a pair. It decompresses the whole shard, so it suits a few pairs."""
        src, tgt = (self.sentences(side)[index] for side in SIDES)
        return src, tgt

    def _read(self, name: str) -> NDArray[Any]:
        try:
            with self.path.open("rb") as file, np.load(file) as members:
                array: NDArray[Any] = members[name]
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            raise self._damaged_error() from None
        return array

    def _damaged_error(self) -> DataError:
        work = quote(str(self.path.parent.parent))
        hint = f"it was changed after it was written: rm -r {work}, then run nmt prepare again"
        return DataError(f"{self.path.name} is damaged", where=str(self.path), hint=hint)


def write_shard(
    directory: Path,
    number: int,
    *,
    src: Sequence[str],
    tgt: Sequence[str],
    arrays: Mapping[str, NDArray[Any]],
    facts: Mapping[str, Any],
) -> None:
    """Write the file of a shard, which appears whole or not at all. DataError if the disk is full."""
    compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
    texts = {side: "\n".join([*lines, ""]).encode() for side, lines in zip(SIDES, (src, tgt), strict=True)}
    facts_text = json.dumps({**facts, "pairs": len(src)}, ensure_ascii=False).encode()
    compressed = {side: np.frombuffer(compressor.compress(text), dtype=np.uint8) for side, text in texts.items()}
    members = {**compressed, **arrays, "facts": np.frombuffer(facts_text, dtype=np.uint8)}
    write_arrays(directory / f"{number:06d}{_ENDING}", members)


def open_shards(directory: Path) -> list[CleanShard]:
    """The finished shards in a directory, in their order."""
    return [CleanShard(path) for path in sorted(directory.glob(f"[0-9]*{_ENDING}"))]


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to a file that `numpy.load` reads one by one. DataError if the disk is full."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # to mypy, a name could be that of its option
    write_file(path, buffer.getvalue(), error=DataError)
