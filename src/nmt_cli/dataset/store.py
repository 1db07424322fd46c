"""Prepared data on disk: token files mapped into memory, raw text, and the tokenizers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt_cli.dataset.manifest import PREPARE_AGAIN, Manifest, TokenDtype, TokenizerRecord, read_manifest
from nmt_cli.errors import DataError
from nmt_cli.files import sha256
from nmt_cli.tokenization.tokenizer import EOS

SIDES = ("source", "target")
_OFFSET = np.dtype("<i8")


class TokenFile:
    """One side of a split: `ids` flat, an EOS after each sentence; sentence i is `ids[offsets[i]:offsets[i + 1]]`."""

    def __init__(self, ids: NDArray[np.unsignedinteger], offsets: NDArray[np.int64]) -> None:
        self.ids = ids
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.unsignedinteger]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sentence {index} of {len(self)}")
        index %= len(self)
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[NDArray[np.unsignedinteger]]:
        return (self[index] for index in range(len(self)))

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each sentence with EOS, [n]."""
        return np.diff(self.offsets).astype(np.int32)


class TokenPairs:
    """A split: the same number of sentences on both sides."""

    def __init__(self, src: TokenFile, tgt: TokenFile) -> None:
        self.src = src
        self.tgt = tgt

    def __len__(self) -> int:
        return len(self.src)


class PreparedData:
    """A directory that `nmt prepare` wrote, checked for completeness and opened for reading only."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory = directory
        self.manifest = manifest

    @property
    def source_tokenizer_file(self) -> Path:
        """The SentencePiece model of the source."""
        return self.directory / "source.spm"

    @property
    def target_tokenizer_file(self) -> Path:
        """The SentencePiece model of the target."""
        return self.directory / "target.spm"

    def split(self, name: str) -> TokenPairs:
        """The token files of `train`, `valid` or `test`; DataError where the corpus has no such split."""
        self._require(name)
        src, tgt = (self._token_file(name, side) for side in SIDES)
        return TokenPairs(src, tgt)

    def texts(self, name: str) -> tuple[list[str], list[str]]:
        """Source and reference lines of `valid` or `test` as they were given, without line ends."""
        self._require(name)
        languages = self.manifest.languages
        src, ref = (self._lines(f"{name}.{language}") for language in (languages.source, languages.target))
        return src, ref

    def _require(self, name: str) -> None:
        if name not in self.manifest.splits:
            raise DataError(
                f"the corpus {self.manifest.name} has no {name} split, but {', '.join(self.manifest.splits)}",
                where=str(self.directory),
                hint=f"prepare it with --{name} PREFIX",
            )

    def _token_file(self, split: str, side: str) -> TokenFile:
        stem = self.directory / f"{split}.{side}"
        ids_file, offsets_file = (stem.with_name(f"{stem.name}.{part}") for part in ("ids", "offsets"))
        return TokenFile(_map(ids_file, np.dtype(self.manifest.dtype).newbyteorder("<")), _map(offsets_file, _OFFSET))

    def _lines(self, name: str) -> list[str]:
        text = (self.directory / name).read_bytes().decode("utf-8")
        lines = text.removeprefix("\ufeff").split("\n")
        return [line.removesuffix("\r") for line in lines[:-1]]


def open_prepared(directory: Path) -> PreparedData:
    """The prepared data in a directory, after a check of sizes and tokenizers; big files are not read.

    Raises DataError naming the file that is missing, cut short, or from another preparation.
    """
    manifest = read_manifest(directory)
    data = PreparedData(directory, manifest)
    for path, record in (
        (data.source_tokenizer_file, manifest.tokenizers.source),
        (data.target_tokenizer_file, manifest.tokenizers.target),
    ):
        _check_tokenizer(path, record)
    for name, size in manifest.files.items():
        _check_size(directory / name, size)
    return data


def token_dtype(vocab_size: int) -> TokenDtype:
    """The narrowest type that holds every id."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class TokenWriter:
    """Writes one side of a split, batch by batch: `DIRECTORY/SPLIT.SIDE.ids` and `.offsets`."""

    def __init__(self, directory: Path, *, split: str, side: str, dtype: TokenDtype) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._ids = (directory / f"{split}.{side}.ids").open("wb")
        self._offsets = (directory / f"{split}.{side}.offsets").open("wb")
        self._offsets.write(np.zeros(1, dtype=_OFFSET).tobytes())
        self.tokens = 0
        self.sentences = 0

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ids.close()
        self._offsets.close()

    def append(self, rows: Sequence[Sequence[int]]) -> None:
        """Add sentences given without EOS; EOS is added to each."""
        lengths = np.fromiter((len(row) + 1 for row in rows), dtype=_OFFSET, count=len(rows))
        ends = self.tokens + np.cumsum(lengths)
        ids = np.fromiter(chain.from_iterable((*row, EOS) for row in rows), dtype=self._dtype, count=int(lengths.sum()))
        self._ids.write(ids.tobytes())
        self._offsets.write(ends.astype(_OFFSET).tobytes())
        self.tokens += len(ids)
        self.sentences += len(rows)


def _check_tokenizer(path: Path, record: TokenizerRecord) -> None:
    if not path.is_file():
        raise DataError(f"{path.name} is missing", where=str(path), hint=PREPARE_AGAIN)
    if (fingerprint := sha256(path)) != record.fingerprint:
        raise DataError(
            f"{path.name} is not the tokenizer that this data was prepared with: "
            f"its fingerprint is {fingerprint[:12]}, the data's {record.fingerprint[:12]}",
            where=str(path),
            hint=PREPARE_AGAIN,
        )


def _check_size(path: Path, size: int) -> None:
    if not path.is_file():
        raise DataError(f"{path.name} is missing", where=str(path), hint=PREPARE_AGAIN)
    if (found := path.stat().st_size) != size:
        raise DataError(
            f"{path.name} has {found:,} bytes, and should have {size:,}", where=str(path), hint=PREPARE_AGAIN
        )


def _map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The array in a file, mapped read-only; mmap refuses an empty file, which is an empty array."""
    if path.stat().st_size == 0:
        return np.zeros(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")
