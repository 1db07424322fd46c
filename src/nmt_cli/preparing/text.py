"""The first stage of a preparation: clean training text, held-out text, and the counts of it all."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import zstandard

from nmt_cli.errors import DataError
from nmt_cli.files import open_bytes
from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.cleaning import Cleaner
from nmt_cli.preparing.corpora import LocatedCorpus
from nmt_cli.preparing.heldout import HeldOut, write_heldout
from nmt_cli.preparing.progress import Progress
from nmt_cli.preparing.readers import read_split
from nmt_cli.preparing.report import WordCounts

logger = logging.getLogger(__name__)

_COUNTS = "counts.json"
_ZSTD_LEVEL = 1


@dataclass(frozen=True, slots=True)
class CleanText:
    """The text that `write_clean_text` left in a directory."""

    directory: Path

    def lines(self, split: str, side: str, *, language: str) -> Iterator[str]:
        """The lines of one side of a split, without line ends."""
        name = f"train.{side}.zst" if split == "train" else f"{split}.{language}"
        with open_bytes(self.directory / name) as stream:
            for number, line in enumerate(stream):
                text = line.decode().removesuffix("\n").removesuffix("\r")
                yield text.removeprefix("\ufeff") if number == 0 else text

    def counts(self) -> dict[str, Any]:
        """What was read, kept, tidied and dropped; words and overlap by split."""
        counts: dict[str, Any] = json.loads((self.directory / _COUNTS).read_text(encoding="utf-8"))
        return counts

    def num_pairs(self) -> dict[str, int]:
        """How many pairs each split has, as counted when it was written."""
        counts = self.counts()
        return {"train": counts["kept"], **{split: facts["lines"] for split, facts in counts["overlap"].items()}}


def write_clean_text(located: LocatedCorpus, directory: Path, *, progress: Progress) -> None:
    """Write the cleaned training text in compressed form, the held-out text as it was given, and the counts.

    The held-out splits are read first: they are small, and a mistake in them shows at once.
    """
    corpus = located.corpus
    heldout = {split: write_heldout(located, split, directory) for split in corpus.splits if split != "train"}
    cleaner, words = Cleaner(corpus.cleaning), WordCounts()
    with ExitStack() as stack:
        files = [stack.enter_context(_zstd_writer(directory / f"train.{side}.zst")) for side in ("source", "target")]
        for chunk in _limited(read_split(located, "train"), corpus.limit):
            pairs = cleaner.clean(chunk)
            for side, file in enumerate(files):
                file.write("".join(f"{pair[side]}\n" for pair in pairs).encode())
            words.add(pairs)
            for split in heldout.values():
                split.look_in(pairs)
            progress("cleaning", cleaner.read, corpus.limit)
    if cleaner.kept == 0:
        raise _nothing_left(cleaner)
    logger.info("cleaned: %s of %s training pairs kept", f"{cleaner.kept:,}", f"{cleaner.read:,}")
    counts = json.dumps(_counts(cleaner, words, heldout), ensure_ascii=False)
    (directory / _COUNTS).write_text(counts, encoding="utf-8")


def _counts(cleaner: Cleaner, words: WordCounts, heldout: dict[Any, HeldOut]) -> dict[str, Any]:
    return {
        "read": cleaner.read,
        "kept": cleaner.kept,
        "tidied": cleaner.tidied,
        "dropped": {reason: asdict(dropped) for reason, dropped in cleaner.dropped.items()},
        "words": {"train": words.report(), **{split: text.words.report() for split, text in heldout.items()}},
        "overlap": {split: text.overlap() for split, text in heldout.items()},
    }


def _limited(chunks: Iterator[Chunk], limit: int | None) -> Iterator[Chunk]:
    """The chunks up to `limit` pairs in all."""
    left = limit
    for chunk in chunks:
        if left is not None and len(chunk.src) >= left:
            yield replace(chunk, src=chunk.src[:left], tgt=chunk.tgt[:left])
            return
        left = None if left is None else left - len(chunk.src)
        yield chunk


def _zstd_writer(path: Path) -> Any:
    return zstandard.open(path, "wb", cctx=zstandard.ZstdCompressor(level=_ZSTD_LEVEL))


def _nothing_left(cleaner: Cleaner) -> DataError:
    reason, dropped = max(cleaner.dropped.items(), key=lambda item: item[1].count)
    return DataError(
        f"no training pair is left after cleaning: {dropped.count:,} of {cleaner.read:,} dropped for {reason}",
        where=dropped.examples[0].where if dropped.examples else None,
        hint="look at that line; rules are relaxed with --set cleaning.KEY=null",
    )
