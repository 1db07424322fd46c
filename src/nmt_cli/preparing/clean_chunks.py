"""The chunks of the training text, which are cleaned one by one, and the files of the clean chunks."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
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
from nmt_cli.preparing.sources.base import LocalSource


@dataclass(frozen=True, slots=True)
class NumberedChunk:
    """A chunk, its number among all chunks, and facts about its source, as `CleanChunk` has them."""

    number: int
    facts: Mapping[str, Any]
    chunk: Chunk


def read_chunks(sources: Sequence[LocalSource], *, limit: int | None) -> Iterator[NumberedChunk]:
    """The first `limit` pairs of each direction in chunks, whose content depends on the sources alone."""
    number, pairs_read = 0, Counter[int]()
    for index, source in enumerate(sources):
        facts = {
            "source": index,
            "weight": source.weight,
            "direction": source.direction,
            "tags": source.tags,
            "is_synthetic": source.is_synthetic,
        }
        for chunk in source.read() if limit is None or pairs_read[source.direction] < limit else ():
            pairs_left = sys.maxsize if limit is None else limit - pairs_read[source.direction]
            yield NumberedChunk(number, facts, chunk.first(pairs_left))
            number += 1
            pairs_read[source.direction] += len(chunk)
            if len(chunk) >= pairs_left:
                break


class CleanChunk:
    """The file of n pairs that are kept of a chunk: compressed text, arrays with an entry per pair, and facts.

    The arrays are the `digests` of the pairs, the `source_digests` of their sources, their `lines`, their `dates` as in
    `UnitPair`, their `matches` with held-out text, and the lengths `source_words` and `target_words`. The facts are the
    counts, the held-out lines found among them, and where the pairs come from: the index, the weight, the direction and
    the tags of their source.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return int(self.facts["pairs"])

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts that were written, and `pairs`, the number of pairs."""
        facts: dict[str, Any] = json.loads(self.array("facts").tobytes())
        return facts

    @property
    def number(self) -> int:
        """Its index among the chunks."""
        return int(self.path.stem)

    @property
    def direction(self) -> int:
        """The index of its direction."""
        return int(self.facts["direction"])

    @property
    def tags(self) -> tuple[str, ...]:
        """The symbols of its source's tags."""
        return tuple(self.facts["tags"])

    def where(self, index: int) -> str:
        """File and line of a pair."""
        return f"{self.facts['origin']}:{self.array('lines')[index]}"

    def array(self, name: str) -> NDArray[Any]:
        """One of the arrays, [n]."""
        try:
            with self.path.open("rb") as file, np.load(file) as members:
                array: NDArray[Any] = members[name]
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            work = quote(str(self.path.parent.parent))
            hint = f"it was changed after it was written: rm -r {work}, then run nmt prepare again"
            raise DataError(f"{self.path.name} is damaged", where=str(self.path), hint=hint) from None
        return array

    def text(self, side: str) -> bytes:
        """The lines of a side in UTF-8, with a line feed after each."""
        return zstandard.ZstdDecompressor().decompress(self.array(side).tobytes())

    def alignments(self) -> list[str]:
        """The word alignments of the pairs in Pharaoh's format, blank if their source has none."""
        return self.sentences("alignments") if self.facts.get("has_alignments") else [""] * len(self)

    def sentences(self, side: str) -> list[str]:
        """The sentences of a side."""
        return self.text(side).decode().split("\n")[:-1]

    def pair(self, index: int) -> tuple[str, str]:
        """The text of a pair. It decompresses the whole chunk, so it suits a few pairs."""
        src, tgt = (self.sentences(side)[index] for side in SIDES)
        return src, tgt


def write_chunk(
    directory: Path,
    number: int,
    *,
    src: Sequence[str],
    tgt: Sequence[str],
    alignments: Sequence[str] | None,
    arrays: Mapping[str, NDArray[Any]],
    facts: Mapping[str, Any],
) -> None:
    """Write the file of a chunk, which appears whole or not at all. DataError if the disk is full."""
    compressor = zstandard.ZstdCompressor(level=1)
    all_lines = {**dict(zip(SIDES, (src, tgt), strict=True)), "alignments": alignments}
    texts = {name: "\n".join([*lines, ""]).encode() for name, lines in all_lines.items() if lines is not None}
    all_facts = {**facts, "pairs": len(src), "has_alignments": alignments is not None}
    facts_text = json.dumps(all_facts, ensure_ascii=False).encode()
    as_bytes = {"facts": facts_text, **{name: compressor.compress(text) for name, text in texts.items()}}
    members = {**arrays, **{name: np.frombuffer(data, dtype=np.uint8) for name, data in as_bytes.items()}}
    write_arrays(directory / f"{number:06d}.npz", members)


def open_chunks(directory: Path) -> list[CleanChunk]:
    """The chunks in a directory, in their order."""
    return [CleanChunk(path) for path in sorted(directory.glob("[0-9]*.npz"))]


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to a file that `numpy.load` reads one by one. DataError if the disk is full."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # to mypy, a name could be that of its option
    write_file(path, buffer.getvalue(), error=DataError)
