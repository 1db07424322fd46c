"""The plan of an epoch on disk: written once, and read update by update.

A plan says which pairs make up each update of an epoch. `plan_computation` computes it, this file writes it and reads
it back, and `plan_cache` finds the plan with a key or builds it. A plan is a directory. All trainings with its key
share it, with all their ranks. An update is read by one `pread`. Mapped pages would grow the process, and would end it
with a bus error if another machine removed the file.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal
from zlib import crc32

import numpy as np

from nmt_cli.dataset.manifest import Record, TokenDtype
from nmt_cli.dataset.prepared_data import SIDES, Array, Rows, TokenPairs, open_pairs

FORMAT = 3
SAMPLED = "sampled"
"""The split in the names of the files of sampled ids."""
_MANIFEST, _ROWS, _UPDATES, _LONGEST = "manifest.json", "rows", "updates", "longest"
_ID_FILES = tuple(f"{SAMPLED}.{side}.ids" for side in SIDES)
_BYTES_PER_READ = 1 << 20
_UPDATE_DTYPE = np.dtype([("start", "<u8"), ("crc32", "<u4")])


class DamagedPlan(Exception):  # not an error that users see: the plan is built again
    """A plan that is cut short, changed, of another key, or gone."""


class PlanKey(Record):
    """Everything that a plan depends on.

    `data` is the fingerprint in the manifest of the prepared data; pairs and tokens are counted in its training split.
    With `alpha`, the pieces of each epoch are sampled (`sampled_pieces`).
    """

    data: str
    num_pairs: int
    src_tokens: int
    tgt_tokens: int
    batch_tokens: int
    max_positions: int
    seed: int
    epoch: int
    alpha: float | None = None

    @property
    def training_hash(self) -> str:
        """A short hash of the key without its epoch, the same for all plans of a training."""
        text = f"{FORMAT} {self.model_copy(update={'epoch': 0}).model_dump_json(exclude_defaults=True)}"
        return sha256(text.encode()).hexdigest()[:12]

    @property
    def directory_name(self) -> str:
        """The name of the plan's directory."""
        return f"{self.training_hash}-epoch-{self.epoch:05}"


@dataclass(frozen=True, slots=True)
class TokenBudgets:
    """The most tokens that an update may have on each side."""

    src: int
    tgt: int


class EpochInvariants(Record):
    """The part of a plan that all epochs of a training share: it depends on the lengths of pairs, not on their order.

    `num_pairs_left_out` pairs are too long for the model. `pairs_in_update` is the average number of pairs in a full
    update; of the two length classes, the larger average. No sentence of any epoch has more than
    `max_tokens_in_sentence`, with EOS. If pieces are sampled, every field except `num_pairs_left_out` is computed from
    expected lengths.
    """

    num_pairs_left_out: int
    budgets: TokenBudgets
    pairs_in_update: int
    max_tokens_in_sentence: int


class _PlanManifest(Record):
    kind: Literal["plan"] = "plan"
    format: int = FORMAT
    key: PlanKey
    invariants: EpochInvariants
    row: list[tuple[str, str]]
    """The name and the type of each field of a row."""
    sampled_dtype: TokenDtype | None = None
    """The type of the sampled ids in the plan's directory; None if it has none."""
    crc32: dict[str, int]
    """By file, but not for `rows`: the file `updates` has a checksum of the rows of each update."""


class EpochPlan:
    """A plan that is open for reading, and locked against removal; DamagedPlan if it cannot be read."""

    invariants: EpochInvariants
    longest_rows: Rows
    """The rows of the longest pairs, longest first."""
    sampled_pairs: TokenPairs | None
    """The sampled ids that the rows point into; None if they point into the prepared data."""

    def __init__(self, directory: Path, *, key: PlanKey) -> None:
        self.directory = directory
        try:
            self._rows_file = os.open(directory / _ROWS, os.O_RDONLY)
        except OSError as error:
            raise DamagedPlan(f"{directory.name}: {error.strerror}") from None
        self._finalizer = weakref.finalize(self, os.close, self._rows_file)
        try:
            fcntl.flock(self._rows_file, fcntl.LOCK_SH)
            self._load(key)
        except (OSError, TypeError, ValueError) as error:
            raise DamagedPlan(f"{directory.name}: {error}") from None

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def fullest_update(self) -> int:
        """The index of the update with the most pairs: a full update of ordinary pairs."""
        return int(np.diff(self._starts).argmax())

    def rows(self, index: int) -> Rows:
        """The rows of one update, counted from 0; DamagedPlan if they were changed."""
        start, stop = int(self._starts[index]), int(self._starts[index + 1])
        row_bytes = self._row_dtype.itemsize
        try:
            content = os.pread(self._rows_file, (stop - start) * row_bytes, start * row_bytes)
        except OSError as error:
            raise DamagedPlan(f"{self.directory.name}: {error.strerror}") from None
        if crc32(content) != self._crc32[index]:
            raise DamagedPlan(f"{self.directory.name}: the rows of update {index} have changed since they were written")
        return np.frombuffer(content, dtype=self._row_dtype)

    def close(self) -> None:
        """Release the lock, so that the plan can be removed."""
        self._finalizer()

    def _load(self, key: PlanKey) -> None:
        manifest = _PlanManifest.model_validate_json((self.directory / _MANIFEST).read_bytes())
        if manifest.key != key or manifest.format != FORMAT:
            raise ValueError("it has another key")
        status = os.fstat(self._rows_file)
        if status.st_nlink == 0:
            raise ValueError("it was removed")
        contents = {name: (self.directory / name).read_bytes() for name in (_UPDATES, _LONGEST)}
        checksums = {name: crc32(content) for name, content in contents.items()}
        if manifest.sampled_dtype is not None:
            checksums |= _checksums_of_sampled_ids(self.directory)
        for name, checksum in checksums.items():
            if checksum != manifest.crc32.get(name):
                raise ValueError(f"{name} has changed since it was written")
        updates = np.frombuffer(contents[_UPDATES], dtype=_UPDATE_DTYPE)
        self._starts, self._crc32 = updates["start"], updates["crc32"]
        self._row_dtype = np.dtype(manifest.row)
        if status.st_size != int(self._starts[-1]) * self._row_dtype.itemsize:
            raise ValueError(f"{_ROWS} has {status.st_size:,} bytes")
        self.longest_rows = np.frombuffer(contents[_LONGEST], dtype=self._row_dtype)
        self.invariants = manifest.invariants
        dtype = manifest.sampled_dtype
        self.sampled_pairs = None if dtype is None else open_pairs(self.directory, SAMPLED, dtype=dtype)


def write_plan(
    directory: Path,
    blocks: Iterable[Rows],
    *,
    sizes: Array,
    longest_rows: Rows,
    invariants: EpochInvariants,
    key: PlanKey,
    sampled_dtype: TokenDtype | None,
) -> None:
    """Write a plan from blocks of whole updates, without syncing it; update u has `sizes[u]` rows.

    If pieces are sampled, their ids lie in the directory already, with this type.
    """
    updates = np.zeros(len(sizes) + 1, dtype=_UPDATE_DTYPE)
    np.cumsum(sizes, out=updates["start"][1:])
    index = 0
    with (directory / _ROWS).open("wb") as file:
        for block in blocks:
            file.write(block.data)
            start = 0
            while start < len(block):
                stop = start + int(sizes[index])
                updates["crc32"][index] = crc32(block[start:stop].data)
                start, index = stop, index + 1
    small_files = {_UPDATES: updates.tobytes(), _LONGEST: longest_rows.tobytes()}
    checksums = {} if sampled_dtype is None else _checksums_of_sampled_ids(directory)
    for name, content in small_files.items():
        (directory / name).write_bytes(content)
        checksums[name] = crc32(content)
    manifest = _PlanManifest(
        key=key,
        invariants=invariants,
        row=[(name, str(longest_rows.dtype[name].str)) for name in longest_rows.dtype.names or ()],
        sampled_dtype=sampled_dtype,
        crc32=checksums,
    )
    text = manifest.model_dump_json(indent=2, exclude_none=True)
    (directory / _MANIFEST).write_text(f"{text}\n", encoding="utf-8")


def _checksums_of_sampled_ids(directory: Path) -> dict[str, int]:
    """The checksums of the files of sampled ids, by name."""
    checksums = dict.fromkeys(_ID_FILES, 0)
    for name in _ID_FILES:
        with (directory / name).open("rb") as file:
            while block := file.read(_BYTES_PER_READ):
                checksums[name] = crc32(block, checksums[name])
    return checksums


def is_in_use(directory: Path) -> bool:
    """True if a process on any machine holds the plan in `directory` open, or if this cannot be told."""
    try:
        with (directory / _ROWS).open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
