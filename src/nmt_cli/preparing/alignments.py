"""Word alignments of training text: lines in Pharaoh's format, checked as they are read, and stored as links."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np

from nmt_cli.dataset.links import LINKS, WORD_DTYPE
from nmt_cli.dataset.prepared_data import SIDES, TokenWriter, open_pairs, token_dtype
from nmt_cli.errors import DataError
from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.clean_text import CleanText
from nmt_cli.preparing.sources.base import CorpusContext, LocalSource, Source
from nmt_cli.preparing.sources.lines import text_lines
from nmt_cli.tokenization.tokenizer import Tokenizer
from nmt_cli.tokenization.word_numbers import WordNumbers

logger = logging.getLogger(__name__)

_LINK = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_FORM = "a line has pairs of source and target words, counted from 0, such as 0-0 1-2, and may be blank"


def with_alignments(source: Source, local: Iterator[LocalSource], context: CorpusContext) -> Iterator[LocalSource]:
    """The local files of a source, and with them its word alignments, if it has any.

    DataError if it has more than one text, because a file of alignments belongs to one.
    """
    if source.alignments is None:
        yield from local
        return
    file = context.folder / source.alignments
    first, *others = islice(local, 2)
    if others:
        message = f"{file.name} is one file of alignments, and its source has several texts"
        raise DataError(message, where=str(file), hint="write a source with alignments for each text")
    inputs = [*first.inputs, (context.name(file), file)]
    yield replace(first, inputs=inputs, read=partial(_read_aligned, first, file))


def _read_aligned(source: LocalSource, file: Path) -> Iterator[Chunk]:
    """The chunks of a text with their lines of alignments.

    DataError if a line is malformed or names a word that its pair does not have, or if the numbers of lines differ.
    """
    lines, num_pairs, is_short = text_lines(file), 0, False
    for chunk in source.read():
        alignments = [*islice(lines, len(chunk))]
        for index, line in enumerate(alignments):
            if index not in chunk.malformed and (fault := _fault(line, chunk.src[index], chunk.tgt[index])):
                raise DataError(fault, where=f"{file}:{num_pairs + index + 1}", hint=_FORM)
        num_pairs += len(chunk)
        is_short = len(alignments) < len(chunk)
        if is_short:
            break
        yield replace(chunk, alignments=alignments)
    if is_short or next(lines, None) is not None:
        num_lines, num_pairs = sum(1 for _ in text_lines(file)), source.count(most=sys.maxsize)
        message = f"{file.name} has {num_lines:,} lines, and {source.origin} has {num_pairs:,} pairs"
        raise DataError(message, where=str(file), hint="align the text again: the file needs a line for each pair")


def _fault(line: str, src: str, tgt: str) -> str | None:
    """What is wrong with the alignment of a pair; None if nothing is."""
    numbers = []
    for link in line.split():
        match = _LINK.fullmatch(link)
        if match is None:
            return f"{link[:20]!r} is no pair of words"
        numbers.append((int(match[1]), int(match[2])))
    for side, text, indices in zip(SIDES, (src, tgt), zip(*numbers, strict=True), strict=False):
        if max(indices) >= (num_words := len(text.split())):
            return f"the {side} has no word {max(indices)}: it has {num_words} words, counted from 0"
    return None


def write_links(text: CleanText, directory: Path) -> None:
    """Write the links of the training pairs beside their token files and the tokenizers.

    A pair has none if its pieces have other words than its text.
    """
    tokenizers = [Tokenizer.load(directory / f"{side}.spm") for side in SIDES]
    dtype = token_dtype(max(tokenizer.vocab_size for tokenizer in tokenizers))
    pairs, copies_of, start, num_linked = open_pairs(directory, "train", dtype=dtype), text.copies(), 0, 0
    counters = list(map(WordNumbers, tokenizers))
    with TokenWriter(directory, split="train", side=LINKS, dtype=WORD_DTYPE) as writer:
        for number, chunk in enumerate(text.chunks()):
            rows = np.repeat(np.arange(len(chunk)), copies_of(number))
            stop = start + len(rows)
            lines, is_usable = chunk.alignments(), np.ones(len(rows), dtype=bool)
            for side, tokens, counter in zip(SIDES, (pairs.src, pairs.tgt), counters, strict=True):
                num_words = chunk.array(f"{side}_words")[rows]
                lengths = np.diff(tokens.read_offsets(start, stop + 1))
                is_usable &= (num_words == counter.count(tokens.ids(start, stop), lengths)) & (num_words <= 1 << 16)
            links = [
                sorted({(int(src), int(tgt)) for src, tgt in _LINK.findall(lines[row])}) if usable else []
                for row, usable in zip(rows.tolist(), is_usable.tolist(), strict=True)
            ]
            words = np.fromiter(chain.from_iterable(chain.from_iterable(links)), dtype=np.int64)
            writer.append(words, 2 * np.array([*map(len, links)], dtype=np.int64))
            start, num_linked = stop, num_linked + sum(map(bool, links))
    logger.info("aligned: %s of %s training pairs have links between their words", f"{num_linked:,}", f"{start:,}")
