"""Preparation of a corpus, in stages. An interrupted preparation continues after its finished stages.

1. `inputs.py` finds the local files of the corpus, and fetches all others; `sources/` has a class for each format.
2. `clean_text.py` reads their pairs in chunks (`chunks.py`), and cleans each chunk by the rules in `cleaning/` into a
   file (`clean_chunks.py`).
3. `clean_text.py` selects the pairs to train on, and sets others aside. Another selection cleans nothing again.
4. `vocabulary.py` trains the tokenizers on the clean text, or takes others.
5. `encoding.py` writes the text as token files, and `report.py` describes them: this is done whole, or not at all.

`corpus.py` is the schema of a corpus file. `work_folder.py` keeps finished stages by their keys:

    cleaned     `fingerprint_before_selection` of the fetched files: settings of the selection do not change it
    selected    `text_fingerprint` of the fetched files
    tokenizer   the vocabulary's `fingerprint` of that text

`Plan.fingerprint` is the last one with the local files alone. The manifest keeps it, and `finished_report` compares it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np

import nmt_cli
from nmt_cli.console import Progress
from nmt_cli.dataset.data_manifest import MANIFEST, InputRecord, Manifest, SplitCounts, TokenizerRecord, Tokenizers
from nmt_cli.dataset.prepared_data import SIDES, held_out_files, open_prepared, token_dtype
from nmt_cli.errors import DataError
from nmt_cli.files import new_directory
from nmt_cli.preparing.alignments import write_links
from nmt_cli.preparing.clean_text import CleanText, clean, select
from nmt_cli.preparing.corpus import Corpus, LocatedCorpus
from nmt_cli.preparing.encoding import SideStatistics, sum_of_directions, write_tokens
from nmt_cli.preparing.inputs import fetch_inputs, find_local_inputs, fingerprint_before_selection, text_fingerprint
from nmt_cli.preparing.report import REPORT, REPORT_PAGE, build_report, render_page
from nmt_cli.preparing.vocabulary import find_vocabulary, sample_lines, tokenizer_counts
from nmt_cli.preparing.work_folder import WorkFolder, finished_report, open_work_folder, work_path
from nmt_cli.recipe.directions import Directions
from nmt_cli.tokenization.casing import share_of_casing
from nmt_cli.tokenization.sentence_splitting import share_of_several_sentences
from nmt_cli.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_STAGES = "3:"  # raised when the files of the stages are others: no stage of an earlier version is kept
_SAMPLED_LINES = 10_000  # the share of 1 % is then exact to 0.1 %


@dataclass(frozen=True, slots=True)
class PreparationResult:
    """The outcome of a preparation: the prepared data, its report, and whether it was finished before."""

    directory: Path
    report: dict[str, Any]
    was_finished: bool


class Plan:
    """What a preparation reads, found once, before its first stage."""

    def __init__(self, located: LocatedCorpus) -> None:
        """DataError if a local input is missing."""
        self.located, self.corpus = located, located.corpus
        self.inputs, self.vocabulary = find_local_inputs(located), find_vocabulary(located)

    @property
    def directions(self) -> Directions:
        """The directions of the corpus, with the symbols of the vocabulary. A reused vocabulary is read for them."""
        return self.vocabulary.directions

    def fingerprint(self) -> str:
        """The fingerprint of the prepared data, which the manifest keeps. A reused vocabulary is read for it."""
        return self.vocabulary.fingerprint(text_fingerprint(self.located, self.inputs))


def prepare(plan: Plan, *, output: Path, overwrite: bool, num_workers: int, progress: Progress) -> PreparationResult:
    """Make the prepared data of a plan at `output`, unless it is there.

    With `overwrite`, addresses without a hash are downloaded again. Raises DataError if a source cannot be used, if
    `output` holds something else, or if the disk is full. Finished stages stay in `output.partial`, and the same call
    continues after them.
    """
    if output.is_symlink():
        output = output.resolve()  # renaming a directory to a link would replace the link
    report = finished_report(output, plan.corpus, compute_fingerprint=plan.fingerprint, overwrite=overwrite)
    if report is not None:
        if work_path(output).is_dir():  # of an interrupted preparation
            with open_work_folder(output) as work:
                work.discard_stages()
        return PreparationResult(output, report, was_finished=True)
    plan.fingerprint()  # an error of the vocabulary comes before the work
    newer_than = time.time() if overwrite else 0.0
    with open_work_folder(output) as work:
        report = _run_stages(plan, work, output, newer_than=newer_than, num_workers=num_workers, progress=progress)
        work.discard_stages()
    return PreparationResult(output, report, was_finished=False)


def dry_run_lines(plan: Plan, *, output: Path, overwrite: bool) -> Iterator[str]:
    """Inputs, output and stages, a line each."""
    for record in plan.inputs:
        yield f"input:  {record.split}: {record.name}, {record.bytes:,} bytes"
    for split in plan.corpus.splits:
        for source in plan.corpus.sources(split):
            yield from (f"input:  {split}: {description}" for description in source.describe())
    for split in plan.corpus.set_aside:
        yield f"input:  {split}: set aside from the training text"
    yield f"output: {output}"
    if finished_report(output, plan.corpus, compute_fingerprint=plan.fingerprint, overwrite=overwrite) is not None:
        yield "to do:  nothing, it is prepared already"
        return
    begun = f"; {work_path(output)} was begun before" if work_path(output).exists() else ""
    yield f"to do:  cleaned, selected, tokenizer, encoded, report{begun}"


def _run_stages(
    plan: Plan, work: WorkFolder, output: Path, *, newer_than: float, num_workers: int, progress: Progress
) -> dict[str, Any]:
    """Run the stages that are not finished yet, and write the prepared data; its report."""
    corpus = plan.corpus
    end_times = {"start": time.monotonic()}
    fetched = fetch_inputs(plan.located, progress=progress, downloads_newer_than=newer_than)
    end_times["fetched"] = time.monotonic()
    cleaned = work.stage(
        "cleaned",
        key=_STAGES + fingerprint_before_selection(plan.located, fetched.records),
        build=partial(clean, corpus, fetched.sources, num_workers=num_workers, progress=progress),
    )
    text_key = text_fingerprint(plan.located, fetched.records)
    selected = work.stage(
        "selected",
        key=_STAGES + text_key,
        build=partial(select, corpus, fetched.sources, cleaned),
    )
    text = CleanText(cleaned, selected)
    end_times["cleaned"] = time.monotonic()
    tokenizers = work.stage(
        "tokenizer",
        key=plan.vocabulary.fingerprint(text_key),
        build=partial(plan.vocabulary.write, text, num_workers=num_workers, progress=progress),
    )
    end_times["tokenizer"] = time.monotonic()
    with new_directory(output, error=DataError) as final:
        _copy_files(final, corpus, text, tokenizers)
        statistics = write_tokens(text, final, plan.directions, num_workers=num_workers, progress=progress)
        if any(source.alignments is not None for source in corpus.sources("train")):
            write_links(text, final)
        end_times["encoded"] = time.monotonic()
        _write_manifest(final, plan, fetched.records, text, statistics)
        report = build_report(
            open_prepared(final),
            corpus,
            cleaning=text.counts(),
            tokenizers=tokenizer_counts(tokenizers),
            statistics=statistics,
        )
        (final / REPORT).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (final / REPORT_PAGE).write_text(render_page(report), encoding="utf-8")
    end_times["report"] = time.monotonic()
    seconds = [f"{stage} {end - start:.1f}" for (_, start), (stage, end) in pairwise(end_times.items())]
    logger.info("seconds: %s", ", ".join(seconds))
    return report


def _copy_files(directory: Path, corpus: Corpus, text: CleanText, tokenizers: Path) -> None:
    """Copy the tokenizers and the held-out text into a directory."""
    for side in SIDES:
        copyfile(tokenizers / f"{side}.spm", directory / f"{side}.spm")
    for held_out in text.held_out(corpus.directions.pairs):
        for name in held_out_files(held_out.split, corpus.directions.pairs)[held_out.direction]:
            copyfile(text.file(name), directory / name)


def _write_manifest(
    directory: Path,
    plan: Plan,
    inputs: list[InputRecord],
    text: CleanText,
    statistics: Mapping[str, Sequence[SideStatistics]],
) -> None:
    """Write the manifest of prepared data, whose other files lie in the directory."""
    corpus = plan.corpus
    pairs = corpus.directions.pairs
    loaded = [Tokenizer.load(directory / f"{side}.spm") for side in SIDES]
    source, target = (TokenizerRecord(vocab_size=one.vocab_size, fingerprint=one.fingerprint) for one in loaded)
    samples = {}
    for number, pair in enumerate(pairs):
        sampled = sample_lines(text, SIDES[:1], size=_SAMPLED_LINES, seed=corpus.tokenizer.seed, direction=number)
        samples[pair] = [line.decode() for line in sampled]
    sizes = [sides["source"].pairs for sides in statistics["train"]]

    def share(of_sample: Callable[[Sequence[str], str], float]) -> float:
        """A share of all training lines, from those of each direction."""
        shares = [of_sample(sample, pair.source) for pair, sample in samples.items()]
        return shares[0] if len(shares) == 1 else float(np.average(shares, weights=sizes))

    manifest = Manifest(
        nmt_version=nmt_cli.__version__,
        name=corpus.name,
        languages=plan.directions,
        shared_vocabulary=source.fingerprint == target.fingerprint,
        tokenizers=Tokenizers(source=source, target=target),
        dtype=token_dtype(max(source.vocab_size, target.vocab_size)),
        unique_pairs=text.counts()["unique_pairs"],
        splits={split: _counts(of_split) for split, of_split in statistics.items()},
        several_sentences=share(share_of_several_sentences),
        in_capitals=share(lambda sample, language: share_of_casing(sample, language, "capitals")),
        in_title_case=share(lambda sample, language: share_of_casing(sample, language, "title")),
        inputs=inputs,
        fingerprint=plan.fingerprint(),
        corpus=corpus.model_dump(mode="json"),
        files={path.name: path.stat().st_size for path in sorted(directory.iterdir())},
    )
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")


def _counts(statistics: Sequence[SideStatistics]) -> SplitCounts:
    """The size of a split, given the statistics of each direction."""
    sides = sum_of_directions(statistics)
    return SplitCounts(
        pairs=sides["source"].pairs,
        source_tokens=sides["source"].tokens,
        target_tokens=sides["target"].tokens,
        by_direction=[one["source"].pairs for one in statistics] if len(statistics) > 1 else None,
    )
