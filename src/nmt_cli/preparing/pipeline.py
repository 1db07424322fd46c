"""Preparation: clean, train the tokenizers, encode, report; an interrupted one continues after its finished stages."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import nmt_cli
from nmt_cli.console import Progress
from nmt_cli.dataset.manifest import (
    MANIFEST,
    InputRecord,
    Manifest,
    SplitCounts,
    TokenizerRecord,
    Tokenizers,
)
from nmt_cli.dataset.store import SIDES, open_prepared, token_dtype
from nmt_cli.errors import DataError
from nmt_cli.files import new_directory, sha256
from nmt_cli.preparing.clean_text import CleanText, write_clean_text
from nmt_cli.preparing.corpus import Corpus, LocatedCorpus
from nmt_cli.preparing.encoding import EncodedSplit, encoded_splits, write_tokens
from nmt_cli.preparing.inputs import (
    declared_key,
    describe_remote_inputs,
    fetch_inputs,
    find_local_inputs,
    fingerprint,
    reading_key,
)
from nmt_cli.preparing.report.page import render_page
from nmt_cli.preparing.report.report import REPORT, REPORT_PAGE, build_report, read_report
from nmt_cli.preparing.shards import finished_shards
from nmt_cli.preparing.stages import (
    WorkFolder,
    discard_interrupted,
    is_finished,
    link_or_copy,
    open_work_folder,
    work_path,
)
from nmt_cli.preparing.vocabulary import copy_vocabulary, given_vocabulary, tokenizer_counts, write_tokenizers
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_STAGES = ("cleaned", "tokenizer", "encoded")


@dataclass(frozen=True, slots=True)
class Prepared:
    """The outcome of a preparation: the folder, its report, and whether it was finished before."""

    directory: Path
    report: dict[str, Any]
    was_finished: bool


def prepare(located: LocatedCorpus, *, output: Path, overwrite: bool, num_workers: int, progress: Progress) -> Prepared:
    """Make the prepared data of a corpus at `output`, unless it is there.

    Raises DataError if a source cannot be used, if `output` holds something else, or if the disk is full. Finished
    stages stay in `output.partial`, and the same call continues after them.
    """
    if output.is_symlink():
        output = output.resolve()  # renaming a folder to a link would replace the link
    inputs = find_local_inputs(located)
    if is_finished(output, located.corpus, key=partial(_key, located, inputs), overwrite=overwrite):
        discard_interrupted(output)
        return Prepared(output, read_report(output), was_finished=True)
    with open_work_folder(output) as work:
        _run_stages(located, work, output, key=_key(located, inputs, {}), num_workers=num_workers, progress=progress)
        work.discard_stages()
    return Prepared(output, read_report(output), was_finished=False)


def plan(located: LocatedCorpus, *, output: Path, overwrite: bool) -> Iterator[str]:
    """The lines of a dry run: inputs, output and stages. DataError if a local input is missing."""
    inputs = find_local_inputs(located)
    for record in inputs:
        yield f"input:  {record.split}: {record.name}, {record.bytes:,} bytes"
    for split, description in describe_remote_inputs(located):
        yield f"input:  {split}: {description}"
    yield f"output: {output}"
    if is_finished(output, located.corpus, key=partial(_key, located, inputs), overwrite=overwrite):
        yield "to do:  nothing, it is prepared already"
        return
    begun = f"; {work_path(output)} was begun before" if work_path(output).exists() else ""
    yield f"to do:  {', '.join(_STAGES)}, report{begun}"


def _key(located: LocatedCorpus, inputs: list[InputRecord], earlier: Mapping[str, Any]) -> str:
    """The fingerprint of the prepared data of a corpus file, which the manifest keeps.

    `earlier` is the corpus of a manifest to compare with, or empty.
    """
    declared = declared_key(located, inputs, earlier=earlier)
    return fingerprint({"text": declared, "tokenizer": _tokenizer_settings(located)})


def _tokenizer_settings(located: LocatedCorpus) -> dict[str, Any]:
    """The settings that determine the vocabulary, or the hashes of the files that it is taken from."""
    given = given_vocabulary(located)
    return located.corpus.tokenizer.model_dump() if given is None else {file.name: sha256(file) for file in given}


def _run_stages(
    located: LocatedCorpus, work: WorkFolder, output: Path, *, key: str, num_workers: int, progress: Progress
) -> None:
    corpus, clock = located.corpus, _Clock()
    fetched = fetch_inputs(located, progress=progress)
    clock.stop("fetched")
    text_key = reading_key(located, fetched)
    text = CleanText(
        work.stage_in_pieces(
            "cleaned",
            key=text_key,
            build=lambda to: write_clean_text(corpus, fetched.sources, to, num_workers=num_workers, progress=progress),
            has_pieces=lambda at: bool(finished_shards(at)),
        )
    )
    clock.stop("cleaned")
    tokenizer_key = fingerprint({"text": text_key, "tokenizer": _tokenizer_settings(located)})

    def build_tokenizers(to: Path) -> None:
        if (given := given_vocabulary(located)) is not None:
            copy_vocabulary(given, to)
        else:
            write_tokenizers(corpus, text, to, num_workers=num_workers, progress=progress)

    tokenizers = work.stage("tokenizer", key=tokenizer_key, build=build_tokenizers)
    clock.stop("tokenizer")
    tokens = work.stage_in_pieces(
        "encoded",
        key=fingerprint({"tokenizer": tokenizer_key}),
        build=lambda to: write_tokens(corpus, text, tokenizers, to, num_workers=num_workers, progress=progress),
        has_pieces=lambda at: bool(encoded_splits(corpus, at)),
    )
    clock.stop("encoded")
    with new_directory(output, error=DataError) as final:
        _write_outcome(final, corpus, fetched.records, text, tokenizers, tokens, key=key)
    clock.stop("report")
    logger.info("%s", clock)


class _Clock:
    """The time of each stage, as one line."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._parts: list[str] = []

    def stop(self, stage: str) -> None:
        """Note the time since the previous stage."""
        now = time.monotonic()
        self._parts.append(f"{stage} {now - self._since:.1f}")
        self._since = now

    def __str__(self) -> str:
        return f"seconds: {', '.join(self._parts)}"


def _write_outcome(
    directory: Path,
    corpus: Corpus,
    inputs: list[InputRecord],
    text: CleanText,
    tokenizers: Path,
    tokens: Path,
    *,
    key: str,
) -> None:
    """Write the prepared data: the files of the stages, the manifest, and the report."""
    for file in _outcome(corpus, text.directory, tokenizers, tokens):
        link_or_copy(file, directory / file.name)
    written = encoded_splits(corpus, tokens)
    manifest = _manifest(directory, corpus, inputs, key=key, written=written)
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    report = build_report(
        open_prepared(directory),
        corpus,
        cleaning=text.counts(),
        tokenizers=tokenizer_counts(tokenizers),
        statistics={split: one.statistics for split, one in written.items()},
    )
    (directory / REPORT).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (directory / REPORT_PAGE).write_text(render_page(report), encoding="utf-8")


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
    directory: Path, corpus: Corpus, inputs: list[InputRecord], *, key: str, written: Mapping[str, EncodedSplit]
) -> Manifest:
    """The manifest of the files in a directory."""
    loaded = [Tokenizer.load(directory / f"{side}.spm") for side in SIDES]
    source, target = (TokenizerRecord(vocab_size=one.vocab_size, fingerprint=one.fingerprint) for one in loaded)
    dtype = token_dtype(max(source.vocab_size, target.vocab_size))
    return Manifest(
        nmt_version=nmt_cli.__version__,
        name=corpus.name,
        languages=LanguagePair(source=corpus.languages.source, target=corpus.languages.target),
        shared_vocabulary=source.fingerprint == target.fingerprint,
        tokenizers=Tokenizers(source=source, target=target),
        dtype=dtype,
        splits={
            split: SplitCounts(pairs=one.sentences, **{f"{side}_tokens": one.tokens[side] for side in SIDES})
            for split, one in written.items()
        },
        inputs=inputs,
        fingerprint=key,
        corpus=corpus.model_dump(mode="json"),
        files={path.name: path.stat().st_size for path in sorted(directory.iterdir())},
    )
