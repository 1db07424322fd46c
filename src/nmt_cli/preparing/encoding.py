"""The third stage of a preparation: the token files, written shard by shard, with the statistics of the report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from nmt_cli.console import Progress
from nmt_cli.dataset.manifest import TokenDtype
from nmt_cli.dataset.store import SIDES, TokenWriter, token_dtype
from nmt_cli.preparing.clean_text import CleanText
from nmt_cli.preparing.corpus import Corpus
from nmt_cli.preparing.shards import CleanShard, write_arrays
from nmt_cli.processes import worker_pool
from nmt_cli.tokenization.tokenizer import Tokenizer
from nmt_cli.tokenization.training import TokenizerKind
from nmt_cli.tokenization.word_cache import EncodedText, TextEncoder

logger = logging.getLogger(__name__)

_RECORD_ENDING = ".npz"
_STATISTICS = ("words", "pieces", "usage")


@dataclass(frozen=True, slots=True)
class EncodedSide:
    """One side of some sentences as ids, with its statistics."""

    text: EncodedText
    statistics: TokenStatistics


@dataclass(frozen=True, slots=True)
class EncodedSplit:
    """The written part of a split: the number of shards and sentences, and tokens and statistics of each side."""

    shards: int
    sentences: int
    tokens: Mapping[str, int]
    statistics: Mapping[str, TokenStatistics]

    def with_shard(self, sides: Mapping[str, EncodedSide]) -> EncodedSplit:
        """The written part after one more shard."""
        return EncodedSplit(
            self.shards + 1,
            self.sentences + len(sides["source"].text.lengths),
            {side: self.tokens[side] + len(one.text.ids) for side, one in sides.items()},
            {side: self.statistics[side].plus(one.statistics) for side, one in sides.items()},
        )


def write_tokens(
    corpus: Corpus, text: CleanText, tokenizers: Path, directory: Path, *, num_workers: int, progress: Progress
) -> None:
    """Write the token files of every split. Training text that an earlier run has written stays."""
    encoders = _Encoders(tokenizers, kind=corpus.tokenizer.kind_in_use)
    languages = {"source": corpus.languages.source, "target": corpus.languages.target}
    for split in corpus.splits:
        if split != "train":
            lines = {side: text.heldout(split, language=language) for side, language in languages.items()}
            with _TokenFiles(directory, split, encoders.nothing(), dtype=encoders.dtype) as files:
                files.append({side: encoders.encode_lines(side, lines[side]) for side in SIDES})
    total = text.num_pairs()["train"]
    written = _read(directory, "train") or encoders.nothing()
    if written.shards:
        logger.info("encoded: %s pairs encoded before, kept", f"{written.sentences:,}")
    progress("encoding", written.sentences, total)
    job = EncodingJob(text, tokenizers, corpus.tokenizer.kind_in_use)
    with ExitStack() as stack:
        files = stack.enter_context(_TokenFiles(directory, "train", written, dtype=encoders.dtype))
        run = stack.enter_context(worker_pool([job] * num_workers))
        for sides in run(range(written.shards, len(text.shards()))):
            files.append(sides)
            progress("encoding", files.written.sentences, total)
    tokens = files.written.tokens
    logger.info("encoded: %s source and %s target tokens", *(f"{tokens[side]:,}" for side in SIDES))


def encoded_splits(corpus: Corpus, directory: Path) -> dict[str, EncodedSplit]:
    """The written part of each split."""
    written = {split: _read(directory, split) for split in corpus.splits}
    return {split: one for split, one in written.items() if one is not None}


@dataclass(frozen=True, slots=True)
class EncodingJob:
    """Encodes a shard of the clean text, given its number."""

    text: CleanText
    tokenizers: Path
    kind: TokenizerKind | None

    def start(self) -> Callable[[int], dict[str, EncodedSide]]:
        """The function for one shard."""
        encoders, shards = _Encoders(self.tokenizers, kind=self.kind), self.text.shards()
        return lambda number: {
            side: encoders.encode_shard(side, shards[number], self.text.copies(number)) for side in SIDES
        }


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """One side of a split: sentences by length in words and in pieces without EOS, and the uses of each id, [V]."""

    words: NDArray[np.int64]
    pieces: NDArray[np.int64]
    usage: NDArray[np.int64]

    def plus(self, other: TokenStatistics) -> TokenStatistics:
        """The statistics of both texts together."""
        return TokenStatistics(
            _sum(self.words, other.words), _sum(self.pieces, other.pieces), _sum(self.usage, other.usage)
        )


def token_statistics(encoded: EncodedText, *, words: NDArray[np.integer], vocab_size: int) -> TokenStatistics:
    """The statistics of encoded sentences; `words` holds the length of each in words, [n]."""
    return TokenStatistics(
        np.bincount(words), np.bincount(encoded.lengths - 1), np.bincount(encoded.ids, minlength=vocab_size)
    )


class _Encoders:
    """The tokenizers of both sides, for whole texts."""

    def __init__(self, directory: Path, *, kind: TokenizerKind | None) -> None:
        loaded = {side: Tokenizer.load(directory / f"{side}.spm") for side in SIDES}
        self._encoders = {side: TextEncoder(tokenizer, kind=kind) for side, tokenizer in loaded.items()}
        self._vocab_sizes = {side: tokenizer.vocab_size for side, tokenizer in loaded.items()}
        self.dtype = token_dtype(max(self._vocab_sizes.values()))

    def nothing(self) -> EncodedSplit:
        """The written part before the first shard."""
        none = np.zeros(0, dtype=np.int64)
        statistics = {
            side: TokenStatistics(none, none, np.zeros(size, dtype=np.int64))
            for side, size in self._vocab_sizes.items()
        }
        return EncodedSplit(0, 0, dict.fromkeys(SIDES, 0), statistics)

    def encode_lines(self, side: str, lines: Sequence[str]) -> EncodedSide:
        """Lines of held-out text."""
        words = np.array([len(line.split()) for line in lines], dtype=np.int64)
        return self._encode(side, "".join(f"{line}\n" for line in lines).encode(), words, None)

    def encode_shard(self, side: str, shard: CleanShard, copies: NDArray[np.uint16]) -> EncodedSide:
        """Each line of a shard as often as it is taken."""
        text, words, is_taken = shard.text(side), shard.array(f"{side}_words"), copies > 0
        if not is_taken.all():
            text = b"".join(line + b"\n" for line in compress(text.split(b"\n"), is_taken))
        return self._encode(side, text, words[is_taken], copies[is_taken])

    def _encode(
        self, side: str, text: bytes, words: NDArray[np.integer], copies: NDArray[np.uint16] | None
    ) -> EncodedSide:
        encoded = self._encoders[side].encode(text)
        if copies is not None and (copies != 1).any():
            encoded, words = encoded.repeated(copies), np.repeat(words, copies)
        statistics = token_statistics(encoded, words=words, vocab_size=self._vocab_sizes[side])
        return EncodedSide(replace(encoded, ids=encoded.ids.astype(self.dtype)), statistics)


class _TokenFiles:
    """The token files of a split, and a record of the written part beside them, so that a kill costs a single shard."""

    def __init__(self, directory: Path, split: str, written: EncodedSplit, *, dtype: TokenDtype) -> None:
        self._record = directory / f"{split}{_RECORD_ENDING}"
        self.written = written
        with ExitStack() as stack:
            self._writers = {
                side: stack.enter_context(
                    TokenWriter(
                        directory,
                        split=split,
                        side=side,
                        dtype=dtype,
                        sentences=written.sentences,
                        tokens=written.tokens[side],
                    )
                )
                for side in SIDES
            }
            self._open = stack.pop_all()

    def __enter__(self) -> _TokenFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.close()

    def append(self, sides: Mapping[str, EncodedSide]) -> None:
        """Add the sentences of one more shard, and record them."""
        for side, writer in self._writers.items():
            writer.append(sides[side].text.ids, sides[side].text.lengths)
            writer.sync()
        self.written = self.written.with_shard(sides)
        write_arrays(self._record, _arrays(self.written))


def _arrays(written: EncodedSplit) -> dict[str, NDArray[np.int64]]:
    """The record of the written part, as arrays."""
    return {
        "counts": np.array([written.shards, written.sentences, *(written.tokens[side] for side in SIDES)]),
        **{f"{side}_{name}": getattr(written.statistics[side], name) for side in SIDES for name in _STATISTICS},
    }


def _read(directory: Path, split: str) -> EncodedSplit | None:
    """The record of the written part of a split, or None if nothing is written."""
    record = directory / f"{split}{_RECORD_ENDING}"
    if not record.exists():
        return None
    with np.load(record) as arrays:
        shards, sentences, *tokens = arrays["counts"].tolist()
        statistics = {side: TokenStatistics(*(arrays[f"{side}_{name}"] for name in _STATISTICS)) for side in SIDES}
    return EncodedSplit(shards, sentences, dict(zip(SIDES, tokens, strict=True)), statistics)


def _sum(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    shorter, longer = sorted((first, second), key=len)
    total = longer.copy()
    total[: len(shorter)] += shorter
    return total
