"""The two stages that make clean text: all pairs are cleaned, then those to train on are selected, and counted."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from nmt_cli.preparing.cleaning.held_out import (
    FoundLines,
    HeldOut,
    HeldOutIndex,
    load_held_out,
    overlap,
    read_held_out,
    write_held_out,
)
from nmt_cli.preparing.cleaning.rules import EXAMPLES_PER_REASON, CleaningRules
from nmt_cli.preparing.cleaning.selection import TrainingText, choose_copies, set_aside, source_and_pair_digests
from nmt_cli.preparing.corpus import CleaningConfig, Corpus
from nmt_cli.preparing.sources.base import LocalSource, Split
from nmt_cli.processes import FEWER_WORKERS_HINT, worker_pool
from nmt_cli.recipe.schema import LanguagePair

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

    def file(self, name: str) -> Path:
        """A file of held-out text, of sources or set aside."""
        return self.cleaned / name if (self.cleaned / name).exists() else self.selected / name

    def held_out(self, directions: Sequence[LanguagePair]) -> list[HeldOut]:
        """The validation and test text, of sources or set aside."""
        texts = [text for folder in (self.cleaned, self.selected) for text in load_held_out(folder, directions)]
        return sorted(texts, key=lambda text: ("valid", "test").index(text.split))


def clean(
    corpus: Corpus,
    sources: Mapping[Split, Sequence[LocalSource]],
    directory: Path,
    *,
    num_workers: int,
    progress: Progress,
) -> None:
    """Write the cleaned training text, and the held-out text of sources unchanged.

    The held-out splits are read first: they are small, so their mistakes show at once.
    """
    train, directions = sources["train"], corpus.directions.pairs
    held_out = [
        text for split, own in sources.items() if split != "train" for text in read_held_out(own, split, directions)
    ]
    write_held_out(held_out, directory, directions)
    if len(directions) > 1:
        text_checks.check_not_read_alike(train, directions)
    all_chunks = read_chunks(train, limit=corpus.limit)
    first = next(all_chunks)
    beginning = first.chunk.first(_BEGINNING_PAIRS)
    first_pairs = [
        pair
        for index, pair in enumerate(zip(beginning.src, beginning.tgt, strict=True))
        if index not in beginning.malformed
    ]
    dropped_pairs.check_first_encoding(first.chunk, train[0])
    sides = text_checks.training_sides({0: first_pairs}, train, directions)
    text_checks.check_no_pieces([*sides, *text_checks.held_out_sides(held_out, sources)])
    job = CleaningJob(corpus.cleaning, directions, held_out, directory)
    total = _expected_pairs(corpus)
    _clean_chunks(job, chain([first], all_chunks), total=total, num_workers=num_workers, progress=progress)
    chunks = open_chunks(directory)
    by_source = dropped_pairs.count_by_source(chunks, train)
    dropped_pairs.check_encodings(by_source)
    dropped_pairs.check_some_left(by_source, corpus.cleaning, num_left=sum(map(len, chunks)))


def select(corpus: Corpus, sources: Mapping[Split, Sequence[LocalSource]], cleaned: Path, directory: Path) -> None:
    """Select the pairs to train on, and pairs for each split without sources; count all of them."""
    train, directions, config = sources["train"], corpus.directions.pairs, corpus.cleaning
    held_out, chunks = load_held_out(cleaned, directions), open_chunks(cleaned)
    by_source = dropped_pairs.count_by_source(chunks, train)
    texts: list[TrainingText] = []
    several_translations = []
    for direction, languages in enumerate(directions):
        own = [chunk for chunk in chunks if chunk.direction == direction]
        counts = {index: by_source[index] for index, source in enumerate(train) if source.direction == direction}
        copies, several = choose_copies(own, config, counts)
        texts.append(TrainingText(languages, own, copies, counts))
        several_translations.append(several)
    _check_some_left(texts, config)
    chosen = set_aside(corpus, texts)
    _check_some_left(texts, config)
    total = dropped_pairs.sum_of_sources(by_source).counts
    logger.info("cleaned: %s of %s training pairs kept", f"{total.kept:,}", f"{total.read:,}")
    write_held_out(chosen, directory, directions)
    all_copies = [of_chunk for text in texts for of_chunk in text.copies]
    write_arrays(directory / _COPIES_FILE, {str(number): of_chunk for number, of_chunk in enumerate(all_copies)})

    sides = list(text_checks.training_sides(text_checks.sample_by_source(chunks), train, directions))
    text_checks.check_no_pieces(sides)  # of the sources after the first
    sides += text_checks.held_out_sides(held_out, sources)
    valid = [text for text in (*held_out, *chosen) if text.split == "valid"]
    warnings = [
        *(text_checks.warning_of_little_validation(text, is_only=len(directions) == 1) for text in valid),
        dropped_pairs.warning_of_dropped_pairs(by_source, config),
        *text_checks.warnings_of_unusual_text(sides),
        *dropped_pairs.warnings_of_lost_sources(by_source),
        *text_checks.warnings_of_smaller_splits(chosen, {"valid": corpus.valid_size, "test": corpus.test_size}),
        *text_checks.warnings_of_directions(valid, {text.languages: text.num_pairs for text in texts}),
    ]
    warnings = [warning for warning in warnings if warning is not None]
    for warning in warnings:
        logger.warning("%s", warning)
    facts = {
        **total.to_json(),
        "unique_pairs": sum(text.num_unique_pairs for text in texts),
        "warnings": warnings,
        **_facts_by_split(texts, held_out, chosen, [chunk.facts["found_lines"] for chunk in chunks]),
        "several_translations": {
            "sources": sum(several["sources"] for several in several_translations),
            "pairs": sum(several["pairs"] for several in several_translations),
            "examples": [one for several in several_translations for one in several["examples"]][:EXAMPLES_PER_REASON],
        },
    }
    for part, text, several in zip(facts["directions"], texts, several_translations, strict=True):
        whole = dropped_pairs.sum_of_sources(text.by_source.values()).counts
        part.update(read=whole.read, kept=whole.kept, several_translations=several["sources"])
    write_file(directory / _COUNTS_FILE, json.dumps(facts, ensure_ascii=False), error=DataError)
    return_freed_memory()  # of the text that was compared: the workers of the next stages take as much again


def _check_some_left(texts: Sequence[TrainingText], config: CleaningConfig) -> None:
    for text in texts:
        dropped_pairs.check_some_left(text.by_source.values(), config, num_left=text.num_pairs)


def _facts_by_split(
    texts: Sequence[TrainingText], held_out: Sequence[HeldOut], chosen: Sequence[HeldOut], found: Sequence[FoundLines]
) -> dict[str, Any]:
    """The pairs and the overlap of each split, the latter also by direction.

    `found` are the lines of `held_out` in each chunk of the training text, which has none of `chosen`.
    """
    num_pairs = Counter({"train": sum(text.num_pairs for text in texts)})
    overlaps: dict[str, Counter[str]] = {}
    directions: list[dict[str, Any]] = [{"overlap": {}} for _ in texts]
    for text, counts in zip((*held_out, *chosen), overlap(held_out, found) + overlap(chosen, []), strict=True):
        num_pairs[text.split] += len(text.pairs)
        overlaps.setdefault(text.split, Counter()).update(counts)
        directions[text.direction]["overlap"][text.split] = counts
    return {"pairs": num_pairs, "overlap": overlaps, "directions": directions}


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """Cleans a chunk and writes its file; gives the number of pairs read."""

    config: CleaningConfig
    directions: Sequence[LanguagePair]
    held_out: Sequence[HeldOut]
    directory: Path

    def start(self) -> Callable[[NumberedChunk], int]:
        """The function for one chunk."""
        rules = [CleaningRules(self.config, languages) for languages in self.directions]
        held_out = HeldOutIndex(self.held_out)
        return lambda numbered: self._clean(numbered, rules[numbered.facts["direction"]], held_out)

    def _clean(self, numbered: NumberedChunk, rules: CleaningRules, held_out: HeldOutIndex) -> int:
        chunk, kept = numbered.chunk, rules.apply(numbered.chunk)
        src, tgt, indices = kept.src, kept.tgt, kept.indices
        matches, found_lines = held_out.find(src, tgt, self.directions[numbered.facts["direction"]])
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
                "origin": chunk.origin,
                **numbered.facts,
                "found_lines": found_lines,
            },
        )
        return len(chunk)


def _clean_chunks(
    job: CleaningJob, chunks: Iterable[NumberedChunk], *, total: int | None, num_workers: int, progress: Progress
) -> None:
    done = 0
    progress("cleaning", 0, total)
    with worker_pool([job] * num_workers, hint=FEWER_WORKERS_HINT) as run:
        for read in run(chunks):
            done += read
            progress("cleaning", done, total)


def _expected_pairs(corpus: Corpus) -> int | None:
    """The number of training pairs to be read, if it is known."""
    expected = corpus.pairs.train if corpus.pairs is not None else None
    limit = None if corpus.limit is None else corpus.limit * len(corpus.directions.pairs)
    return min((number for number in (limit, expected) if number is not None), default=None)


def _count_words(lines: Sequence[str]) -> list[int]:
    """The number of words of each tidy line; in printable text, the space is the only white space."""
    return [line.count(" ") + 1 if line.isprintable() else len(line.split()) for line in lines]


def _as_narrow_array(numbers: Sequence[int]) -> NDArray[np.integer]:
    """The numbers, none negative, as an array of the narrowest type that holds them."""
    array = np.array(numbers, dtype=np.int64)
    return array.astype(np.min_scalar_type(array.max(initial=0)))
