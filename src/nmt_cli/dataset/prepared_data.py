"""The prepared data that `nmt prepare` writes and training reads: token files, raw text, and the tokenizers."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt_cli.dataset.data_manifest import PREPARE_AGAIN, Manifest, TokenDtype, TokenizerRecord, read_manifest
from nmt_cli.errors import DataError
from nmt_cli.files import sha256
from nmt_cli.recipe.schema import LanguagePair

Array = NDArray[np.integer]
Rows = NDArray[np.void]
"""Where pairs lie in a split, [n]: the fields `pair`, `src_start`, `tgt_start`, `src_length` and `tgt_length`."""
SIDES = ("source", "target")  # in names of files; rows have `src` and `tgt`
_OFFSET = np.dtype("<i8")
_BLOCK_SENTENCES = 1 << 18  # whose offsets are read at once
_ROW = np.dtype([(name, "<i8") for name in ("pair", "src_start", "tgt_start", "src_length", "tgt_length")])


def mapped_array(size: int, *, largest: int) -> NDArray[np.unsignedinteger]:
    """An array of the narrowest type that holds numbers up to `largest`, in pages of its own.

    They return to the system as soon as the array is freed; malloc would keep them.
    """
    dtype = np.dtype(next(f"<u{width}" for width in (2, 4, 8) if largest < 1 << 8 * width))
    pages = mmap.mmap(-1, max(size, 1) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):  # kernels and systems without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype=dtype, count=size)


def count_tokens(rows: Rows, *, side: str) -> int:
    """The tokens of one side of some rows, `src` or `tgt`, with EOS."""
    return int(rows[f"{side}_length"].sum(dtype=np.int64))


class TokenizedSide:
    """One side of a split: the ids of sentence i lie from `offsets[i]` to `offsets[i + 1]`, with EOS."""

    def __init__(self, id_file: Path, offset_file: Path, *, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._size = offset_file.stat().st_size // _OFFSET.itemsize - 1
        self._id_reader, self._offset_reader = _RangeReader(id_file), _RangeReader(offset_file)

    def __len__(self) -> int:
        return self._size

    @cached_property
    def offsets(self) -> NDArray[np.unsignedinteger]:
        """Where each sentence begins, and where the last one ends, [n + 1]; in memory from the first use on."""
        offsets = mapped_array(len(self) + 1, largest=self.num_tokens)
        for start in range(0, len(offsets), _BLOCK_SENTENCES):
            block = offsets[start : start + _BLOCK_SENTENCES]
            block[:] = self.read_offsets(start, start + len(block))
        return offsets

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each sentence with EOS, [n]."""
        return np.diff(self.offsets).astype(np.int32)

    @property
    def num_tokens(self) -> int:
        """Tokens of all sentences with EOS."""
        return int(self.read_offsets(len(self), len(self) + 1)[0])

    def ids(self, start: int, stop: int) -> NDArray[np.unsignedinteger]:
        """The ids of the sentences from `start` to before `stop`, end to end."""
        offsets = self.read_offsets(start, stop + 1)
        return self.gather(offsets[:1], offsets[-1:] - offsets[:1])

    def gather(self, starts: Array, lengths: Array) -> NDArray[np.unsignedinteger]:
        """The ids of sentences, end to end, by their starts and their lengths in tokens."""
        first_bytes, sizes = ((tokens.astype(np.int64) * self._dtype.itemsize).tolist() for tokens in (starts, lengths))
        return np.frombuffer(self._id_reader.read(first_bytes, sizes), dtype=self._dtype)

    def read_offsets(self, start: int, stop: int) -> NDArray[np.int64]:
        """`offsets[start:stop]`, from the file."""
        width = _OFFSET.itemsize
        return np.frombuffer(self._offset_reader.read([start * width], [(stop - start) * width]), dtype=_OFFSET)


class _RangeReader:
    """Reads ranges of bytes of a file, which stays open as long as the reader."""

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor = path, os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, starts: list[int], sizes: list[int]) -> bytes:
        """The ranges end to end; the system fetches all of them at once."""
        if hasattr(os, "posix_fadvise"):  # macOS has none
            for start, size in zip(starts, sizes, strict=True):
                os.posix_fadvise(self._descriptor, start, size, os.POSIX_FADV_WILLNEED)
        content = b"".join([os.pread(self._descriptor, size, start) for start, size in zip(starts, sizes, strict=True)])
        if len(content) != sum(sizes):
            message = f"{self._path.name} was cut short while it was read"
            raise DataError(message, where=str(self._path), hint=PREPARE_AGAIN)
        return content


@dataclass(frozen=True, slots=True)
class TokenPairs:
    """A split: the same number of sentences on both sides."""

    src: TokenizedSide
    tgt: TokenizedSide

    def __len__(self) -> int:
        return len(self.src)

    def lengths(self, pairs: Array) -> Array:
        """The tokens of some pairs, [2, n]: source, then target."""
        indices = pairs.astype(np.int64)
        sides = (self.src.offsets, self.tgt.offsets)
        return np.array([offsets[indices + 1] - offsets[indices] for offsets in sides], dtype=np.int64)

    def rows(self, pairs: Array) -> Rows:
        """The rows of some pairs."""
        rows = np.empty(len(pairs), dtype=_ROW)
        rows["pair"] = indices = pairs.astype(np.int64)
        rows["src_start"], rows["tgt_start"] = self.src.offsets[indices], self.tgt.offsets[indices]
        rows["src_length"], rows["tgt_length"] = self.lengths(pairs)
        return rows


@dataclass(frozen=True, slots=True)
class PreparedData:
    """A directory that `nmt prepare` wrote, checked for completeness and opened for reading only."""

    directory: Path
    manifest: Manifest

    @property
    def source_tokenizer_file(self) -> Path:
        """The SentencePiece model of the source."""
        return self.directory / "source.spm"

    @property
    def target_tokenizer_file(self) -> Path:
        """The SentencePiece model of the target."""
        return self.directory / "target.spm"

    def split(self, name: str) -> TokenPairs:
        """The pairs of `train`, `valid` or `test`; DataError if there is no such split, or other data by now."""
        self._check_has_split(name)
        try:
            pairs = open_pairs(self.directory, name, dtype=self.manifest.dtype)
        except OSError:
            self._check_unchanged()  # other data may explain the error
            raise
        self._check_unchanged()
        return pairs

    def texts(self, name: str) -> tuple[list[str], list[str]]:
        """Source and reference lines of `valid` or `test` as they were given, without line ends.

        They are in the order of the token files: the lines of each direction follow one another.
        """
        self._check_has_split(name)
        src: list[str] = []
        ref: list[str] = []
        files = held_out_files(name, self.manifest.languages.pairs)
        for (source, target), pairs in zip(files, self.manifest.splits[name].ranges, strict=True):
            if pairs or len(files) == 1:
                src += held_out_lines(self.directory / source)
                ref += held_out_lines(self.directory / target)
        return src, ref

    def _check_unchanged(self) -> None:
        if read_manifest(self.directory).fingerprint != self.manifest.fingerprint:
            message = f"{self.directory} was prepared anew, with other settings, while it was in use"
            hint = "prepare the earlier data again in another folder (-o), and name the folder with --data"
            # Without the error that the other data has raised, if it has.
            raise DataError(message, where=str(self.directory), hint=hint) from None

    def _check_has_split(self, name: str) -> None:
        if name not in self.manifest.splits:
            message = f"the corpus {self.manifest.name} has no {name} split, but {', '.join(self.manifest.splits)}"
            raise DataError(message, where=str(self.directory), hint=f"prepare it with --{name} PREFIX")


def held_out_files(split: str, directions: Sequence[LanguagePair]) -> list[tuple[str, str]]:
    """The names of the two files with the text of each direction: valid.en, or valid.en-de.en if there are several."""
    stems = [f"{split}.{direction}" if len(directions) > 1 else split for direction in directions]
    return [(f"{stem}.{pair.source}", f"{stem}.{pair.target}") for stem, pair in zip(stems, directions, strict=True)]


def held_out_lines(file: Path) -> list[str]:
    """The lines of held-out text, without line ends."""
    lines = file.read_bytes().decode("utf-8").removeprefix("\ufeff").split("\n")
    return [line.removesuffix("\r") for line in lines[:-1]]


def open_prepared(directory: Path) -> PreparedData:
    """The prepared data in a directory, after a check of sizes and tokenizers; big files are not read.

    Raises DataError naming the file that is missing, cut short, or from another preparation.
    """
    data = PreparedData(directory, read_manifest(directory))
    tokenizers = data.manifest.tokenizers
    _check_tokenizer(data.source_tokenizer_file, tokenizers.source)
    _check_tokenizer(data.target_tokenizer_file, tokenizers.target)
    for name, size in data.manifest.files.items():
        path = directory / name
        _check_present(path)
        if (present := path.stat().st_size) != size:
            message = f"{name} has {present:,} bytes, and should have {size:,}"
            raise DataError(message, where=str(path), hint=PREPARE_AGAIN)
    return data


def open_pairs(directory: Path, split: str, *, dtype: TokenDtype) -> TokenPairs:
    """The pairs of a split in the token files of a directory."""
    stored = np.dtype(dtype).newbyteorder("<")
    stems = [f"{split}.{side}" for side in SIDES]
    files = [(directory / f"{stem}.ids", directory / f"{stem}.offsets") for stem in stems]
    src, tgt = (TokenizedSide(ids, offsets, dtype=stored) for ids, offsets in files)
    return TokenPairs(src, tgt)


def token_dtype(vocab_size: int) -> TokenDtype:
    """The narrowest type that holds every id."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class TokenWriter:
    """Writes one side of a split, batch by batch, to the token files `DIRECTORY/SPLIT.SIDE.ids` and `.offsets`."""

    def __init__(self, directory: Path, *, split: str, side: str, dtype: TokenDtype) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self.tokens = 0
        self._ids = (directory / f"{split}.{side}.ids").open("wb")
        self._offsets = (directory / f"{split}.{side}.offsets").open("wb")
        self._offsets.write(np.zeros(1, dtype=_OFFSET).tobytes())

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with self._offsets:  # closed even if closing the other fails because the disk is full
            self._ids.close()

    def append(self, ids: NDArray[np.integer], lengths: NDArray[np.integer]) -> None:
        """Add sentences given end to end, each with its EOS, and their lengths with EOS."""
        self._ids.write(ids.astype(self._dtype, copy=False).tobytes())
        self._offsets.write((self.tokens + np.cumsum(lengths, dtype=_OFFSET)).astype(_OFFSET).tobytes())
        self.tokens += len(ids)


def _check_tokenizer(path: Path, record: TokenizerRecord) -> None:
    _check_present(path)
    if (fingerprint := sha256(path)) != record.fingerprint:
        raise DataError(
            f"{path.name} is not the tokenizer that this data was prepared with: "
            f"its fingerprint is {fingerprint[:12]}, the data's {record.fingerprint[:12]}",
            where=str(path),
            hint=PREPARE_AGAIN,
        )


def _check_present(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"{path.name} is missing", where=str(path), hint=PREPARE_AGAIN)
