"""The two stages that make clean text: all pairs are cleaned, then those to train on are selected, and counted."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt_cli.console import Progress
from nmt_cli.errors import DataError
from nmt_cli.files import write_file
from nmt_cli.memory import return_freed_memory
from nmt_cli.preparing.clean_chunks import (
    CleanChunk,
    NumberedChunk,
    open_chunks,
    read_chunks,
    write_arrays,
    write_chunk,
)
from nmt_cli.preparing.cleaning import dropped_pairs, text_checks
from nmt_cli.preparing.cleaning.held_out import HeldOutIndex, overlap, read_held_out, read_pairs, write_pairs
from nmt_cli.preparing.cleaning.rules import CleaningRules
from nmt_cli.preparing.cleaning.selection import choose_copies, set_aside, source_and_pair_digests
from nmt_cli.preparing.corpus import CleaningConfig, Corpus
from nmt_cli.preparing.sources.base import CorpusLanguages, LocalSource, Pairs, Split
from nmt_cli.processes import FEWER_WORKERS_HINT, worker_pool

logger = logging.getLogger(__name__)

_COUNTS_FILE = "counts.json"
_COPIES_FILE = "copies.npz"
_BEGINNING_PAIRS = 2_000


@dataclass(frozen=True, slots=True)
class CleanText:
    """The text that `clean` left in one directory, and what `select` left in another."""

    cleaned: Path
    selected: Path

    def counts(self) -> dict[str, Any]:
        """The counts of pairs read, kept, tidied and dropped; overlap, several translations, warnings, splits."""
        counts: dict[str, Any] = json.loads((self.selected / _COUNTS_FILE).read_text(encoding="utf-8"))
        return counts

    def chunks(self) -> list[CleanChunk]:
        """The training text before duplicates were dropped."""
        return open_chunks(self.cleaned)

    def copies(self) -> Callable[[int], NDArray[np.uint16]]:
        """A function of a chunk's number: how often each of its pairs is taken, [n]; 0 for a dropped pair."""
        # Open it once: opening reads the names of all chunks.
        members: Mapping[str, NDArray[np.uint16]] = np.load(self.selected / _COPIES_FILE)
        return lambda number: members[str(number)]

    def held_out(self, split: Split, *, language: str) -> Path:
        """The file of one side of a held-out split, which has sources, or is set aside."""
        name = f"{split}.{language}"
        return self.cleaned / name if (self.cleaned / name).exists() else self.selected / name


def clean(
    corpus: Corpus,
    sources: Mapping[Split, Sequence[LocalSource]],
    directory: Path,
    *,
    num_workers: int,
    progress: Progress,
) -> None:
    """Write the cleaned training text, and the held-out text of sources unchanged; finished chunks stay.

    The held-out splits are read first: they are small, so their mistakes show at once.
    """
    train, languages = sources["train"], corpus.languages
    held_out: dict[str, Pairs] = {split: list(read_held_out(sources[split], split)) for split in corpus.held_out}
    write_pairs(held_out, directory, languages=languages)
    all_chunks = read_chunks(train, limit=corpus.limit)
    first = next(all_chunks)
    beginning = first.chunk.first(_BEGINNING_PAIRS)
    first_pairs = list(zip(beginning.src, beginning.tgt, strict=True))
    dropped_pairs.check_first_encoding(first.chunk, train[0])
    sides = text_checks.training_sides({0: first_pairs}, train, languages)
    text_checks.check_no_pieces([*sides, *text_checks.held_out_sides(held_out, sources, languages)])
    job = CleaningJob(corpus.cleaning, languages, held_out, directory)
    total = _expected_pairs(corpus)
    _clean_chunks(job, chain([first], all_chunks), total=total, num_workers=num_workers, progress=progress)
    chunks = open_chunks(directory)
    by_source = dropped_pairs.count_by_source(chunks, train)
    dropped_pairs.check_encodings(by_source)
    dropped_pairs.check_some_left(by_source, corpus.cleaning, num_left=sum(map(len, chunks)))


def select(corpus: Corpus, sources: Mapping[Split, Sequence[LocalSource]], cleaned: Path, directory: Path) -> None:
    """Select the pairs to train on, and pairs for each split without sources; count all of them."""
    train, languages = sources["train"], corpus.languages
    held_out: dict[str, Pairs] = {split: read_pairs(split, cleaned, languages=languages) for split in corpus.held_out}
    chunks = open_chunks(cleaned)
    by_source = dropped_pairs.count_by_source(chunks, train)
    copies, several_translations = choose_copies(chunks, corpus.cleaning, by_source)
    dropped_pairs.check_some_left(by_source, corpus.cleaning, num_left=_sum(copies))
    chosen = set_aside(corpus, chunks, copies, by_source)
    dropped_pairs.check_some_left(by_source, corpus.cleaning, num_left=_sum(copies))
    counts = dropped_pairs.sum_of_sources(by_source).counts
    logger.info("cleaned: %s of %s training pairs kept", f"{counts.kept:,}", f"{counts.read:,}")
    splits = {**held_out, **chosen}
    write_pairs(chosen, directory, languages=languages)
    write_arrays(directory / _COPIES_FILE, {str(number): of_chunk for number, of_chunk in enumerate(copies)})

    sides = list(text_checks.training_sides(text_checks.sample_by_source(chunks), train, languages))
    text_checks.check_no_pieces(sides)  # of the sources after the first
    sides += text_checks.held_out_sides(held_out, sources, languages)
    warnings = [
        text_checks.warning_of_little_validation(splits["valid"]),
        dropped_pairs.warning_of_dropped_pairs(by_source, corpus.cleaning),
        *text_checks.warnings_of_unusual_text(sides),
        *dropped_pairs.warnings_of_lost_sources(by_source),
    ]
    warnings = [warning for warning in warnings if warning is not None]
    for warning in warnings:
        logger.warning("%s", warning)
    facts = {
        **counts.to_json(),
        "overlap": {
            **overlap(held_out, (chunk.facts["found_lines"] for chunk in chunks)),
            **overlap(chosen, []),
        },
        "several_translations": several_translations,
        "warnings": warnings,
        "pairs": {"train": _sum(copies), **{split: len(pairs) for split, pairs in splits.items()}},
    }
    write_file(directory / _COUNTS_FILE, json.dumps(facts, ensure_ascii=False), error=DataError)
    return_freed_memory()  # of the text that was compared: the workers of the next stages take as much again


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """Cleans a chunk and writes its file; gives the number of pairs read."""

    config: CleaningConfig
    languages: CorpusLanguages
    held_out: Mapping[str, Pairs]
    directory: Path

    def start(self) -> Callable[[NumberedChunk], int]:
        """The function for one chunk."""
        rules, held_out = CleaningRules(self.config, self.languages), HeldOutIndex(self.held_out)
        return lambda numbered: self._clean(numbered, rules, held_out)

    def _clean(self, numbered: NumberedChunk, rules: CleaningRules, held_out: HeldOutIndex) -> int:
        chunk, kept = numbered.chunk, rules.apply(numbered.chunk)
        src, tgt, indices = kept.src, kept.tgt, kept.indices
        matches, found_lines = held_out.find(src, tgt)
        source_digests, digests = source_and_pair_digests(src, tgt)
        write_chunk(
            self.directory,
            numbered.number,
            src=src,
            tgt=tgt,
            alignments=chunk.alignments and [chunk.alignments[index] for index in indices],
            arrays={
                "digests": digests,
                "source_digests": source_digests,
                "lines": _as_narrow_array([chunk.line(index) for index in indices]),
                "dates": _as_narrow_array([chunk.dates[index] if chunk.dates else 0 for index in indices]),
                "matches": matches,
                "source_words": _as_narrow_array(_count_words(src)),
                "target_words": _as_narrow_array(_count_words(tgt)),
            },
            facts={
                "counts": kept.counts.to_json(),
                "problem": chunk.problem,
                "source": numbered.source_index,
                "origin": chunk.origin,
                "weight": numbered.weight,
                "found_lines": found_lines,
            },
        )
        return len(chunk)


def _clean_chunks(
    job: CleaningJob, chunks: Iterable[NumberedChunk], *, total: int | None, num_workers: int, progress: Progress
) -> None:
    """Clean the chunks whose files are not there yet."""
    finished = {cleaned.number for cleaned in open_chunks(job.directory)}
    if finished:
        logger.info("cleaned: %s chunks finished before, kept", f"{len(finished):,}")
    done = 0

    def read_unfinished() -> Iterator[NumberedChunk]:
        nonlocal done
        for numbered in chunks:
            if numbered.number in finished:
                done += len(numbered.chunk)
                progress("cleaning", done, total)
            else:
                yield numbered

    progress("cleaning", 0, total)
    with worker_pool([job] * num_workers, hint=FEWER_WORKERS_HINT) as run:
        for read in run(read_unfinished()):
            done += read
            progress("cleaning", done, total)


def _sum(copies: Sequence[NDArray[np.uint16]]) -> int:
    return sum(int(of_chunk.sum()) for of_chunk in copies)


def _expected_pairs(corpus: Corpus) -> int | None:
    """The number of training pairs to be read, if it is known."""
    expected = corpus.pairs.train if corpus.pairs is not None else None
    return min((number for number in (corpus.limit, expected) if number is not None), default=None)


def _count_words(lines: Sequence[str]) -> list[int]:
    """The number of words of each tidy line; in printable text, the space is the only white space."""
    return [line.count(" ") + 1 if line.isprintable() else len(line.split()) for line in lines]


def _as_narrow_array(numbers: Sequence[int]) -> NDArray[np.integer]:
    """The numbers, none negative, as an array of the narrowest type that holds them."""
    array = np.array(numbers, dtype=np.int64)
    return array.astype(np.min_scalar_type(array.max(initial=0)))
