"""The last stage of a preparation: the token files, written chunk by chunk, with the statistics of the report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import reduce
from itertools import chain, compress, groupby
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nmt_cli.console import Progress
from nmt_cli.dataset.data_manifest import TokenDtype
from nmt_cli.dataset.prepared_data import SIDES, TokenWriter, token_dtype
from nmt_cli.preparing.clean_chunks import CleanChunk
from nmt_cli.preparing.clean_text import CleanText
from nmt_cli.preparing.cleaning.held_out import HeldOut
from nmt_cli.processes import FEWER_WORKERS_HINT, worker_pool
from nmt_cli.recipe.directions import Directions
from nmt_cli.tokenization.text_encoder import EncodedText, TextEncoder
from nmt_cli.tokenization.tokenizer import Tokenizer
from nmt_cli.tokenization.white_space import plain_spaces

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """The counts of one side of a split.

    `words[n]` is the number of sentences of n words, `pieces[n]` of n pieces without EOS and symbols. `usage[id]` is
    the number of tokens with an id, symbols among them.
    """

    words: NDArray[np.int64]
    pieces: NDArray[np.int64]
    usage: NDArray[np.int64]

    @property
    def pairs(self) -> int:
        """The number of sentences."""
        return int(self.pieces.sum())

    @property
    def tokens(self) -> int:
        """The number of tokens, with EOS."""
        return int(self.usage.sum())

    def plus(self, other: TokenStatistics) -> TokenStatistics:
        """The statistics of both texts together."""
        sums = (_sum_padded(getattr(self, one.name), getattr(other, one.name)) for one in fields(self))
        return TokenStatistics(*sums)


SideStatistics: TypeAlias = dict[str, TokenStatistics]
NO_STATISTICS = TokenStatistics(*(np.zeros(1, dtype=np.int64) for _ in range(3)))


def sum_of_directions(statistics: Sequence[SideStatistics]) -> SideStatistics:
    """The statistics of each side of a split, of all directions together."""
    return {side: reduce(TokenStatistics.plus, [sides[side] for sides in statistics]) for side in SIDES}


@dataclass(frozen=True, slots=True)
class EncodedSide:
    """One side of some sentences as ids, with its statistics."""

    text: EncodedText
    statistics: TokenStatistics


def write_tokens(
    text: CleanText, directory: Path, directions: Directions, *, num_workers: int, progress: Progress
) -> dict[str, list[SideStatistics]]:
    """Write the token files of every split beside the tokenizers in a directory.

    Returns the statistics of each direction, by split.
    """
    job = EncodingJob(text, directory, directions)
    encoders, size = job.encoders(), len(directions.pairs)
    dtype = token_dtype(max(encoder.vocab_size for encoder in encoders.values()))
    total = text.counts()["pairs"]["train"]

    def report_progress(chunks: Iterable[dict[str, EncodedSide]]) -> Iterator[dict[str, EncodedSide]]:
        num_pairs = 0
        progress("encoding", num_pairs, total)
        for sides in chunks:
            yield sides
            num_pairs += len(sides[SIDES[0]].text.lengths)
            progress("encoding", num_pairs, total)

    with worker_pool([job] * num_workers, hint=FEWER_WORKERS_HINT) as run:
        chunks = report_progress(run(range(len(text.chunks()))))
        order = [chunk.direction for chunk in text.chunks()]
        statistics = {
            "train": _write_split(directory, "train", zip(order, chunks, strict=True), size=size, dtype=dtype)
        }
    for split, texts in groupby(text.held_out(directions.pairs), key=lambda held_out: held_out.split):
        encoded = (
            (one.direction, {side: encoder.encode_held_out(one) for side, encoder in encoders.items()}) for one in texts
        )
        statistics[split] = _write_split(directory, split, encoded, size=size, dtype=dtype)
    train = sum_of_directions(statistics["train"])
    logger.info("encoded: %s source and %s target tokens", *(f"{train[side].tokens:,}" for side in SIDES))
    return statistics


@dataclass(frozen=True, slots=True)
class EncodingJob:
    """Encodes a chunk of the clean text, given its number."""

    text: CleanText
    tokenizers: Path
    directions: Directions

    def start(self) -> Callable[[int], dict[str, EncodedSide]]:
        """The function for one chunk."""
        encoders, chunks, copies_of = self.encoders(), self.text.chunks(), self.text.copies()

        def encode(number: int) -> dict[str, EncodedSide]:
            chunk, copies = chunks[number], copies_of(number)
            return {side: encoder.encode_chunk(chunk, copies) for side, encoder in encoders.items()}

        return encode

    def encoders(self) -> dict[str, _SideEncoder]:
        """The encoder of each side."""
        return {side: _SideEncoder(self.tokenizers / f"{side}.spm", side, self.directions) for side in SIDES}


class _SideEncoder:
    """Encodes one side of a corpus, and counts what the report needs."""

    def __init__(self, model: Path, side: str, directions: Directions) -> None:
        self._tokenizer, self._side, self._is_source = Tokenizer.load(model), side, side == SIDES[0]
        self._encoder = TextEncoder(self._tokenizer, is_source=self._is_source)
        self.vocab_size = self._tokenizer.vocab_size

        of_each = [directions.direction(pair) for pair in directions.pairs]
        self._symbols = [one.source_symbols if self._is_source else one.target_symbols for one in of_each]

    def encode_held_out(self, held_out: HeldOut) -> EncodedSide:
        """Encode this side of held-out text."""
        lines = [pair[SIDES.index(self._side)] for pair in held_out.pairs]
        words = np.array([len(line.split()) for line in lines], dtype=np.int64)
        tidy = self._tokenizer.as_in_training if self._is_source else plain_spaces
        text = "".join(f"{tidy(line)}\n" for line in lines)
        encoded = self._encoder.encode(text.encode())
        return self._finish(encoded, words, [self._symbol_ids(held_out.direction, tags) for tags in held_out.tags])

    def encode_chunk(self, chunk: CleanChunk, copies: NDArray[np.uint16]) -> EncodedSide:
        """Encode each line of this side of a chunk as often as it is taken."""
        text, words, is_taken = chunk.text(self._side), chunk.array(f"{self._side}_words"), copies > 0
        if not is_taken.all():
            text = b"".join(line + b"\n" for line in compress(text.split(b"\n"), is_taken))
        encoded, words, copies = self._encoder.encode(text), words[is_taken], copies[is_taken]
        if (copies != 1).any():
            encoded, words = encoded.repeat(copies), np.repeat(words, copies)
        return self._finish(encoded, words, [self._symbol_ids(chunk.direction, chunk.tags)] * len(words))

    def _symbol_ids(self, direction: int, tags: tuple[str, ...]) -> tuple[int, ...]:
        """The ids of the symbols before a sentence."""
        symbols = self._symbols[direction] + (tags if self._is_source else ())
        return self._tokenizer.symbol_ids(symbols) if symbols else ()

    def _finish(
        self, encoded: EncodedText, words: NDArray[np.integer], symbols: Sequence[tuple[int, ...]]
    ) -> EncodedSide:
        """The sentences after their symbols, with their statistics; `words` are their lengths in words, [n]."""
        pieces = np.bincount(encoded.lengths - 1)  # lengths count EOS
        encoded = _with_symbols(encoded, symbols)
        usage = np.bincount(encoded.ids, minlength=self.vocab_size)
        narrow = EncodedText(encoded.ids.astype(token_dtype(self.vocab_size)), encoded.lengths)
        return EncodedSide(narrow, TokenStatistics(np.bincount(words), pieces, usage))


def _with_symbols(encoded: EncodedText, symbols: Sequence[tuple[int, ...]]) -> EncodedText:
    """The sentences, each after its symbols."""
    if not any(symbols):
        return encoded
    numbers = np.fromiter(map(len, symbols), dtype=np.int64, count=len(symbols))
    starts = np.cumsum(encoded.lengths) - encoded.lengths
    ids = np.insert(encoded.ids, np.repeat(starts, numbers), list(chain.from_iterable(symbols)))
    return EncodedText(ids, encoded.lengths + numbers)


def _write_split(
    directory: Path,
    split: str,
    chunks: Iterable[tuple[int, Mapping[str, EncodedSide]]],
    *,
    size: int,
    dtype: TokenDtype,
) -> list[SideStatistics]:
    """Write the token files of a split, chunk by chunk, each with its direction; the statistics of each direction."""
    statistics = [dict.fromkeys(SIDES, NO_STATISTICS) for _ in range(size)]
    with ExitStack() as stack:
        writers = {
            side: stack.enter_context(TokenWriter(directory, split=split, side=side, dtype=dtype)) for side in SIDES
        }
        for direction, sides in chunks:
            for side, encoded in sides.items():
                writers[side].append(encoded.text.ids, encoded.text.lengths)
                statistics[direction][side] = statistics[direction][side].plus(encoded.statistics)
    return statistics


def _sum_padded(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of two arrays; zeros fill up the shorter one."""
    shorter, longer = sorted((first, second), key=len)
    total = longer.copy()
    total[: len(shorter)] += shorter
    return total
