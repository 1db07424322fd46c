"""The last stage of a preparation: the token files, written chunk by chunk, with the statistics of the report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt_cli.console import Progress
from nmt_cli.dataset.data_manifest import TokenDtype
from nmt_cli.dataset.prepared_data import SIDES, TokenWriter, held_out_lines, token_dtype
from nmt_cli.preparing.clean_chunks import CleanChunk
from nmt_cli.preparing.clean_text import CleanText
from nmt_cli.preparing.corpus import Corpus
from nmt_cli.processes import FEWER_WORKERS_HINT, worker_pool
from nmt_cli.tokenization.sentencepiece_model import kind_if_text_unchanged
from nmt_cli.tokenization.text_encoder import EncodedText, TextEncoder
from nmt_cli.tokenization.tokenizer import Tokenizer
from nmt_cli.tokenization.white_space import plain_spaces

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """The counts of one side of a split.

    `words[n]` is the number of sentences of n words, `pieces[n]` of n pieces without EOS. `usage[id]` is the number of
    tokens with an id. `changed`, [1], is the number of lines in which odd characters are replaced.
    """

    words: NDArray[np.int64]
    pieces: NDArray[np.int64]
    usage: NDArray[np.int64]
    changed: NDArray[np.int64]

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


@dataclass(frozen=True, slots=True)
class EncodedSide:
    """One side of some sentences as ids, with its statistics."""

    text: EncodedText
    statistics: TokenStatistics


def write_tokens(
    corpus: Corpus, text: CleanText, directory: Path, *, num_workers: int, progress: Progress
) -> dict[str, dict[str, TokenStatistics]]:
    """Write the token files of every split beside the tokenizers in a directory; the statistics by split and side."""
    job = EncodingJob(text, directory)
    encoders = job.encoders()
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
        statistics = {"train": _write_split(directory, "train", chunks, dtype=dtype)}
    for split in corpus.splits:
        if split != "train":
            files = {side: text.held_out(split, language=code) for side, code in corpus.languages.model_dump().items()}
            held_out = {side: encoder.encode_lines(held_out_lines(files[side])) for side, encoder in encoders.items()}
            statistics[split] = _write_split(directory, split, [held_out], dtype=dtype)
    train = statistics["train"]
    logger.info("encoded: %s source and %s target tokens", *(f"{train[side].tokens:,}" for side in SIDES))
    if changed := int(train["source"].changed[0]):
        message = "encoded: %s source lines have odd spaces, marks without width or decomposed letters that the "
        logger.info(message + "vocabulary lacks: they are replaced, as nmt decode does it", f"{changed:,}")
    return statistics


@dataclass(frozen=True, slots=True)
class EncodingJob:
    """Encodes a chunk of the clean text, given its number."""

    text: CleanText
    tokenizers: Path

    def start(self) -> Callable[[int], dict[str, EncodedSide]]:
        """The function for one chunk."""
        encoders, chunks, copies_of = self.encoders(), self.text.chunks(), self.text.copies()

        def encode(number: int) -> dict[str, EncodedSide]:
            chunk, copies = chunks[number], copies_of(number)
            return {side: encoder.encode_chunk(chunk, copies) for side, encoder in encoders.items()}

        return encode

    def encoders(self) -> dict[str, _SideEncoder]:
        """The encoder of each side."""
        return {side: _SideEncoder(self.tokenizers / f"{side}.spm", side) for side in SIDES}


class _SideEncoder:
    """Encodes one side of a corpus, and counts what the report needs."""

    def __init__(self, model: Path, side: str) -> None:
        self._tokenizer, self._side, self._is_source = Tokenizer.load(model), side, side == SIDES[0]
        kind = kind_if_text_unchanged(model.read_bytes())
        self._encoder = TextEncoder(self._tokenizer, kind=kind, is_source=self._is_source)
        self.vocab_size = self._tokenizer.vocab_size

    def encode_lines(self, lines: list[str]) -> EncodedSide:
        """Encode lines of held-out text."""
        words = np.array([len(line.split()) for line in lines], dtype=np.int64)
        tidy = self._tokenizer.as_in_training if self._is_source else plain_spaces
        text = "".join(f"{tidy(line)}\n" for line in lines)
        return self._add_statistics(self._encoder.encode(text.encode()), words)

    def encode_chunk(self, chunk: CleanChunk, copies: NDArray[np.uint16]) -> EncodedSide:
        """Encode each line of this side of a chunk as often as it is taken."""
        text, words, is_taken = chunk.text(self._side), chunk.array(f"{self._side}_words"), copies > 0
        if not is_taken.all():
            text = b"".join(line + b"\n" for line in compress(text.split(b"\n"), is_taken))
        encoded, words, copies = self._encoder.encode(text), words[is_taken], copies[is_taken]
        if (copies != 1).any():
            encoded, words = encoded.repeat(copies), np.repeat(words, copies)
        return self._add_statistics(encoded, words)

    def _add_statistics(self, encoded: EncodedText, words: NDArray[np.integer]) -> EncodedSide:
        """The encoded sentences with their statistics; `words` is the length of each sentence in words, [n]."""
        pieces = np.bincount(encoded.lengths - 1)  # lengths count EOS
        usage = np.bincount(encoded.ids, minlength=self.vocab_size)
        changed = np.array([self._encoder.num_changed])
        self._encoder.num_changed = 0
        narrow = EncodedText(encoded.ids.astype(token_dtype(self.vocab_size)), encoded.lengths)
        return EncodedSide(narrow, TokenStatistics(np.bincount(words), pieces, usage, changed))


def _write_split(
    directory: Path, split: str, chunks: Iterable[Mapping[str, EncodedSide]], *, dtype: TokenDtype
) -> dict[str, TokenStatistics]:
    """Write the token files of a split, chunk by chunk; the statistics of each side."""
    statistics: dict[str, TokenStatistics] = {}
    with ExitStack() as stack:
        writers = {
            side: stack.enter_context(TokenWriter(directory, split=split, side=side, dtype=dtype)) for side in SIDES
        }
        for sides in chunks:
            for side, encoded in sides.items():
                writers[side].append(encoded.text.ids, encoded.text.lengths)
                written = statistics.get(side)
                statistics[side] = encoded.statistics if written is None else written.plus(encoded.statistics)
    return statistics


def _sum_padded(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of two arrays; zeros fill up the shorter one."""
    shorter, longer = sorted((first, second), key=len)
    total = longer.copy()
    total[: len(shorter)] += shorter
    return total
