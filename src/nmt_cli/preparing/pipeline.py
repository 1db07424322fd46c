"""Preparation: clean, train the tokenizers, encode, report; an interrupted one continues after its finished stages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nmt_cli
from nmt_cli.dataset.manifest import (
    MANIFEST,
    InputRecord,
    Languages,
    Manifest,
    SplitCounts,
    TokenizerRecord,
    Tokenizers,
)
from nmt_cli.dataset.store import SIDES, open_prepared, token_dtype
from nmt_cli.errors import DataError
from nmt_cli.files import new_directory
from nmt_cli.preparing.corpora import Corpus, HubSource, LocatedCorpus
from nmt_cli.preparing.encoding import token_counts, tokenizer_counts, write_tokenizers, write_tokens
from nmt_cli.preparing.inputs import find_inputs, fingerprint, reading_key
from nmt_cli.preparing.progress import Progress
from nmt_cli.preparing.report import REPORT, REPORT_PAGE, build_report, read_report
from nmt_cli.preparing.report_page import render_page
from nmt_cli.preparing.text import CleanText, write_clean_text
from nmt_cli.preparing.work import WorkFolder, discard_work, is_finished, open_work_folder, place, work_path
from nmt_cli.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prepared:
    """The outcome: where the data is, its report, and whether it was there already."""

    directory: Path
    report: dict[str, Any]
    was_finished: bool


@dataclass(frozen=True, slots=True)
class StageKeys:
    """The fingerprints of what the stages make; each follows from the one before."""

    cleaned: str
    tokenizer: str
    encoded: str


def prepare(located: LocatedCorpus, *, output: Path, overwrite: bool, num_threads: int, progress: Progress) -> Prepared:
    """Make the prepared data of a corpus at `output`, or find it made.

    Raises DataError for sources that cannot be used, an output that holds something else, or a full disk; the stages
    that are finished by then stay in `output.partial`, and the same call continues after them.
    """
    inputs = find_inputs(located)
    keys = stage_keys(located, inputs)
    if is_finished(output, located.corpus, key=keys.encoded, overwrite=overwrite):
        discard_work(output)
        return Prepared(output, read_report(output), was_finished=True)
    with open_work_folder(output) as work:
        _run_stages(located, inputs, keys, work, output, num_threads=num_threads, progress=progress)
        work.discard_stages()
    return Prepared(output, read_report(output), was_finished=False)


def plan(located: LocatedCorpus, *, output: Path, overwrite: bool) -> Iterator[str]:
    """Lines that say what would be read, written, and done; DataError where an input is missing."""
    inputs = find_inputs(located)
    for record in inputs:
        yield f"input:  {record.split}: {record.name}, {record.bytes:,} bytes"
    for split in located.corpus.splits:
        for source in located.corpus.sources(split):
            if isinstance(source, HubSource) and not source.is_local:
                yield f"input:  {split}: {source.repository} on the hub, {source.subset or 'default'}, {source.split}"
    keys = stage_keys(located, inputs)
    yield f"output: {output}"
    if is_finished(output, located.corpus, key=keys.encoded, overwrite=overwrite):
        yield "to do:  nothing, it is prepared already"
        return
    work = WorkFolder(work_path(output))
    stages = {"cleaned": keys.cleaned, "tokenizer": keys.tokenizer, "encoded": keys.encoded}
    missing = [name for name, key in stages.items() if not work.has(name, key=key)]
    yield f"to do:  {', '.join([*missing, 'report'])}"


def stage_keys(located: LocatedCorpus, inputs: list[InputRecord]) -> StageKeys:
    """The fingerprints of the stages for a corpus and the inputs that it has now."""
    cleaned = reading_key(located, inputs)
    tokenizer = fingerprint({"text": cleaned, "tokenizer": located.corpus.tokenizer.model_dump()})
    return StageKeys(cleaned, tokenizer, fingerprint({"tokenizer": tokenizer}))


def _run_stages(
    located: LocatedCorpus,
    inputs: list[InputRecord],
    keys: StageKeys,
    work: WorkFolder,
    output: Path,
    *,
    num_threads: int,
    progress: Progress,
) -> None:
    corpus = located.corpus
    text = CleanText(
        work.stage("cleaned", key=keys.cleaned, build=lambda to: write_clean_text(located, to, progress=progress))
    )
    tokenizers = work.stage(
        "tokenizer", key=keys.tokenizer, build=lambda to: write_tokenizers(corpus, text, to, progress=progress)
    )
    tokens = work.stage(
        "encoded",
        key=keys.encoded,
        build=lambda to: write_tokens(corpus, text, tokenizers, to, num_threads=num_threads, progress=progress),
    )
    with new_directory(output, error=DataError) as final:
        for file in _outcome(corpus, text.directory, tokenizers, tokens):
            place(file, final / file.name)
        manifest = _manifest(final, corpus, inputs, key=keys.encoded, counts=token_counts(tokens))
        (final / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
        report = build_report(
            open_prepared(final), corpus, cleaning=text.counts(), tokenizers=tokenizer_counts(tokenizers)
        )
        (final / REPORT).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (final / REPORT_PAGE).write_text(render_page(report), encoding="utf-8")


def _outcome(corpus: Corpus, cleaned: Path, tokenizers: Path, tokens: Path) -> list[Path]:
    """The files of the stages that make up the prepared data."""
    codes = (corpus.languages.source, corpus.languages.target)
    return [
        *(tokenizers / f"{side}.spm" for side in SIDES),
        *(
            tokens / f"{split}.{side}.{part}"
            for split in corpus.splits
            for side in SIDES
            for part in ("ids", "offsets")
        ),
        *(cleaned / f"{split}.{code}" for split in corpus.splits if split != "train" for code in codes),
    ]


def _manifest(
    directory: Path, corpus: Corpus, inputs: list[InputRecord], *, key: str, counts: dict[str, dict[str, int]]
) -> Manifest:
    """The manifest of the files that lie in a directory."""
    loaded = [Tokenizer.load(directory / f"{side}.spm") for side in SIDES]
    source, target = (TokenizerRecord(vocab_size=one.vocab_size, fingerprint=one.fingerprint) for one in loaded)
    dtype = token_dtype(max(source.vocab_size, target.vocab_size))
    return Manifest(
        nmt_version=nmt_cli.__version__,
        name=corpus.name,
        languages=Languages(source=corpus.languages.source, target=corpus.languages.target),
        shared_vocabulary=corpus.tokenizer.shared,
        tokenizers=Tokenizers(source=source, target=target),
        dtype=dtype,
        splits={split: SplitCounts(**numbers) for split, numbers in counts.items()},
        inputs=inputs,
        fingerprint=key,
        corpus=corpus.model_dump(mode="json"),
        files={path.name: path.stat().st_size for path in sorted(directory.iterdir())},
    )
